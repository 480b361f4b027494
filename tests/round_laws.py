"""The law of one round with a head's drafts, enumerated, and drafts that bend it.

A round is drafted from random states, judged, and continued by a target that is a table of
probabilities; what three tokens come out, and how often, is counted over every choice there was
and compared with a product of table rows.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.drafters.shapes import Chain, Costs, DynamicTree, Shape, StaticTree
from labkit.law import distance, exact_law
from labkit.sampling import Rng, Warp
from labkit.toy import random_table
from labkit.verify import verify

V, EXACT, LENGTH = 3, 1e-12, 3
P = random_table(V, seed=1, sharpness=1.5)
SHAPES: Mapping[str, Shape] = {
    "chain": Chain(),
    "static": StaticTree(((0,), (1,), (0, 0), (1, 0))),
    "dynamic": DynamicTree(top_k=2, nodes=3),
    "sized": DynamicTree(top_k=2, nodes=4, costs=Costs(((1, 1.0), (9, 2.0)), draft=0.1)),
}

Judge = Callable[[Draft, Any, Rng], list[int]]
"""(draft, p, rng) -> the tokens of the round."""
Change = Callable[[Draft, Warp], Draft]
"""What a broken drafter makes of a good draft."""


def by_verify(draft: Draft, p: Any, rng: Rng) -> list[int]:
    verdict = verify(draft, p, rng)
    return [*(draft.tree.tokens[i] for i in verdict.path[1:]), verdict.next_token]


def as_it_is(draft: Draft, _: Warp) -> Draft:
    return draft


def pruned(draft: Draft, _: Warp) -> Draft:
    """Prunes drawn tokens by their probability: a selection that q does not know of."""
    if len(draft.tree) > 1 and draft.confidence[1] < 0.4:
        return Draft.deterministic(draft.tree.up_to_depth(0))
    return draft


def softmaxed(draft: Draft, _: Warp) -> Draft:
    """Says that its certain tokens were drawn from its softmax."""
    qs = [None, *(torch.softmax(draft.logits[i], -1) for i in range(1, len(draft.tree)))]
    return Draft(draft.tree, tuple(qs))


def stale_siblings(draft: Draft, warp: Warp) -> Draft:
    """Every node of a depth gets the same q, whatever its earlier siblings took."""
    qs = [None, *(warp.law(draft.logits[i][None])[0] for i in range(1, len(draft.tree)))]
    return Draft(draft.tree, tuple(qs))


def law_by_hand(p: Tensor) -> dict[tuple[int, ...], float]:
    """A product of table rows, behind token 0."""
    chances = {
        (a, b, c): float(p[0, a] * p[a, b] * p[b, c]) for a, b, c in product(range(V), repeat=3)
    }
    return {tokens: chance for tokens, chance in chances.items() if chance > 0}


def law_error(
    make: Callable[[], Drafter],
    *,
    width: int,
    temperature: float,
    text: Sequence[int] = (1, 0),
    change: Change = as_it_is,
    judge: Judge = by_verify,
) -> float:
    """Largest difference between the law of one round, continued by the target, and P's.

    Args:
        make: a new drafter with a head in float64.
        width: of the states that it reads.
        text: what stands there; it ends with 0.
    """
    table = P if temperature else torch.nn.functional.one_hot(P.argmax(-1), V).double()
    generator = torch.Generator().manual_seed(0)
    shape = (len(text) - 1, width)
    hidden = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name in make().needs
    }
    warp = Warp(temperature=temperature)

    def outcome(rng: Rng) -> tuple[int, ...]:
        drafter = make()
        drafter.observe(Commit(tuple(text), hidden))
        draft = change(drafter.propose(text, rng, depth=2, warp=warp), warp)
        draft.check(vocab_size=V)
        out = judge(draft, torch.stack([table[t] for t in draft.tree.tokens]), rng)
        while len(out) < LENGTH:
            out.append(int(rng.pick(table[out[-1]])))
        return tuple(out[:LENGTH])

    return distance(exact_law(outcome), law_by_hand(table))
