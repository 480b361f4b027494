"""Changes that a person makes to a draft before it is judged.

Owns: replacing, cutting and adding nodes. Does not know: models, text, who asks.
Invariants: the result is judged as one-hot, all of it. Once somebody has seen a drawn draft and may
change it, its tokens are no longer draws from q: what is left standing was chosen. Judging a
chosen token with min(1, p/q) would change the law; judging it as certain cannot, whatever it is.
"""

from collections.abc import Sequence
from dataclasses import replace

from labkit.draft import Draft
from labkit.errors import BadInput
from labkit.ids import numbered
from labkit.tree import DraftTree


def seen(draft: Draft) -> Draft:
    """The same guesses, judged as one-hot: somebody has seen them and let them stand."""
    return replace(draft, q=(None,) * len(draft.tree))


def replaced(draft: Draft, node: int, token: int) -> Draft:
    """Another guess at ``node``; what hangs below it stays, as guesses that go on from there.

    Raises:
        BadInput: there is no such drafted node.
    """
    node = check_node(draft, node, first=1)
    tokens = (*draft.tree.tokens[:node], token, *draft.tree.tokens[node + 1 :])
    logits = list(draft.logits)
    for other in range(1, len(logits)):
        if node in draft.tree.path(other)[:-1]:  # the drafter read another token above it
            logits[other] = None
    return Draft(
        DraftTree(tokens, draft.tree.parents),
        (None,) * len(tokens),
        draft.forwards,
        draft.forward_seconds,
        tuple(logits),
    )


def cut(draft: Draft, node: int) -> Draft:
    """Without ``node`` and everything below it.

    Raises:
        BadInput: there is no such drafted node.
    """
    node = check_node(draft, node, first=1)
    tree = draft.tree
    kept = [i for i in range(len(tree)) if node not in tree.path(i)]
    place = {old: new for new, old in enumerate(kept)} | {-1: -1}
    logits = list(draft.logits)
    return Draft(
        DraftTree(tuple(tree.tokens[i] for i in kept), tuple(place[tree.parents[i]] for i in kept)),
        (None,) * len(kept),
        draft.forwards,
        draft.forward_seconds,
        tuple(logits[i] for i in kept) if logits else (),
    )


def added(draft: Draft, after: int, tokens: Sequence[int]) -> Draft:
    """With ``tokens`` as a chain below node ``after`` (0: below the pending token). Where ``after``
    has a child already, the draft branches, and the older child is tried first.

    Raises:
        BadInput: there is no such node.
    """
    after = check_node(draft, after, first=0)
    tree, n = draft.tree, len(draft.tree)
    grown = DraftTree(
        (*tree.tokens, *tokens), (*tree.parents, *((after, *range(n, n + len(tokens) - 1))))
    )
    logits = (*draft.logits, *(None,) * len(tokens)) if draft.logits else ()
    return Draft(grown, (None,) * len(grown), draft.forwards, draft.forward_seconds, tuple(logits))


def check_node(draft: Draft, node: object, *, first: int) -> int:
    """``node`` as a plain int.

    Args:
        first: 0: the pending token counts as a node; 1: it does not.

    Raises:
        BadInput: there is no such node.
    """
    last = len(draft.tree) - 1
    if last < first:
        raise BadInput(
            "node", expected="a drafted token", got=repr(node), next_step="add a guess first"
        )
    return numbered(
        node, first=first, last=last, name="node", next_step="choose a node of the draft"
    )
