"""Faults of draft trees that users of other speculative decoders have reported, as small checks.

Every test names the kind of fault. What is right comes from transformers' forward without a cache,
over one path at a time, or is written out by hand.
"""

import itertools
from functools import lru_cache
from typing import Any

import pytest
import torch
from helpers import greedy_reference, plain_logits, prompt_of, run, tiny

from labkit.cli_decode import _shape
from labkit.config import DecodeConfig
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.nothing import Nothing
from labkit.drafters.shapes import Chain, DynamicTree, Shape, StaticTree
from labkit.errors import BadInput
from labkit.heads.eagle import EagleHead, head_config, random_head
from labkit.target import Target
from labkit.toy import tiny as toy
from labkit.trace import Trace
from labkit.tree import DraftTree

WORDS = 12  # few, so that guesses of a head that knows nothing come true now and then
TWENTY = [tuple(t % WORDS for t in prompt_of(4 + seed, seed=seed)) for seed in range(20)]


@lru_cache
def model() -> Any:
    return toy("llama", vocab_size=WORDS, seed=2)


@lru_cache
def head() -> EagleHead:
    return random_head(head_config(model(), 3, boundaries=(0, 1, 2)), model(), seed=1)


def drafted(prompt: tuple[int, ...], shape: Shape | None, **settings: Any) -> Trace:
    target, drafter = Target(model(), needs=head().config.needs), eagle_drafter(head(), shape=shape)
    return run(target, drafter, prompt, **{"max_new_tokens": 12, **settings})


def second_choices(trace: Trace) -> int:
    """Accepted nodes that were not the first child of their parent."""
    found = 0
    for r in trace.rounds:
        tree = DraftTree(r.drafted.tokens, r.drafted.parents)
        for parent, node in itertools.pairwise(r.verified.path):
            found += tree.children[parent][0] != node
    return found


# EAGLE issues #301 and #9: a tree might accept a branch that plain decoding would not take.


def test_plain_decoding_a_chain_and_a_tree_write_one_text() -> None:
    """Twenty prompts in float32, a tree of four branches and depth three. Other branches than the
    head's first choice are accepted, when the target would write just them."""
    others = 0
    for prompt in TWENTY:
        expected = greedy_reference(model(), prompt, 12)
        tree = drafted(prompt, DynamicTree(top_k=4), draft_length=3)
        chain = drafted(prompt, Chain(), draft_length=3)
        plain = run(Target(model()), Nothing(), prompt, max_new_tokens=12)
        assert tree.tokens == chain.tokens == plain.tokens == expected
        others += second_choices(tree)
        assert second_choices(chain) == 0
    assert others > 20


def test_a_tree_of_one_branch_is_the_chain() -> None:
    """The same guesses in every round, and the same verdict on them."""
    for prompt in TWENTY[:5]:
        chain = drafted(prompt, Chain(), draft_length=3)
        tree = drafted(prompt, DynamicTree(top_k=1, nodes=3), draft_length=3)
        assert [r.drafted.tokens for r in tree.rounds] == [r.drafted.tokens for r in chain.rounds]
        assert [r.verified.path for r in tree.rounds] == [r.verified.path for r in chain.rounds]


# whisper-medusa issue #29, Medusa issue #88: branches see each other, and the text repeats itself.

PARENTS = (-1, 0, 0, 1, 1, 2)
MASK = """
100000
110000
101000
110100
110010
101001
"""


def test_a_node_of_a_tree_sees_its_own_path_and_nothing_else() -> None:
    """The mask as it should look, and every node's logits as of its path in plain order."""
    tree, prompt = DraftTree((9, 5, 6, 7, 8, 3), PARENTS), prompt_of(9)
    assert "\n".join("".join("01"[s] for s in row) for row in tree.mask) == MASK.strip()
    start = len(prompt) - 1  # the pending token is node 0
    assert tree.positions(start) == tuple(start + d for d in (0, 1, 1, 2, 2, 2))
    target = Target(tiny())
    target.prefill(prompt)
    with target.speculation():
        scores = target.score(tree)
    for node in range(len(tree)):
        path = [tree.tokens[i] for i in tree.path(node)]
        expected = plain_logits(tiny(), (*prompt[:-1], *path))[-1]
        torch.testing.assert_close(scores.logits[node], expected, atol=1e-5, rtol=1e-5)


class SeesAll(DraftTree):
    """The reported fault: later nodes see earlier branches."""

    @property
    def mask(self) -> tuple[tuple[bool, ...], ...]:
        return tuple(tuple(j <= i for j in range(len(self))) for i in range(len(self)))


def test_branches_that_see_each_other_would_be_noticed() -> None:
    logits = []
    for kind in (DraftTree, SeesAll):
        target = Target(tiny())
        target.prefill(prompt_of(9))
        with target.speculation():
            logits.append(target.score(kind((9, 5, 6, 7, 8, 3), PARENTS)).logits)
    right, wrong = logits
    assert torch.allclose(right[:2], wrong[:2], atol=1e-5)  # these have nobody else to see
    assert all(float((right[i] - wrong[i]).abs().max()) > 1e-2 for i in range(2, 6))


# SGLang issues #5673 and #3762: some of depth, branches and size left unset; depth 1.

SET = {"draft_length": 2, "top_k": 3, "nodes": 5}
UNSET = {"draft_length": 4, "top_k": 4, "nodes": 15}  # as documented


@pytest.mark.parametrize("named", [c for n in range(4) for c in itertools.combinations(SET, n)])
def test_any_of_a_tree_s_sizes_may_be_left_out(named: tuple[str, ...]) -> None:
    given = {name: SET[name] for name in named}
    sizes = UNSET | given
    depth = {"draft_length": given.pop("draft_length")} if "draft_length" in given else {}
    prompt = TWENTY[0]
    trace = drafted(prompt, DynamicTree(**given), detail="full", **depth)
    assert trace.tokens == greedy_reference(model(), prompt, 12)
    first = trace.rounds[0].drafted  # no end of the text cuts it short
    k = sizes["top_k"]
    grown = k + (sizes["draft_length"] - 1) * k * k  # k nodes of each depth grow k children each
    assert len(first.considered) - 1 == grown
    assert len(first.tokens) - 1 == min(sizes["nodes"], grown)
    assert DecodeConfig().draft_length == UNSET["draft_length"]


@pytest.mark.parametrize("nodes", [None, 5])
@pytest.mark.parametrize("width", [None, 4])
@pytest.mark.parametrize("tree", [None, True])
def test_so_may_the_options_of_the_command_line(
    tree: bool | None, width: int | None, nodes: int | None
) -> None:
    """Without any of them, a method's own shape; ``--tree`` alone is the size that pays on CPUs,
    3 nodes (the table of the README)."""
    shape = _shape(["eagle3"], tree=tree, nodes=nodes, width=width)
    if (tree, width, nodes) == (None, None, None):
        assert shape is None
    else:
        assert shape == DynamicTree(top_k=width or 3, nodes=nodes or 3)


@pytest.mark.parametrize("name", ["top_k", "nodes"])
def test_a_size_that_cannot_be_is_refused_by_name(name: str) -> None:
    for value in (0, -1):
        with pytest.raises(BadInput, match=name):
            DynamicTree(**{name: value})
    with pytest.raises(BadInput, match="draft_length"):
        DecodeConfig(draft_length=-1)


@pytest.mark.parametrize(
    "shape",
    [Chain(), DynamicTree(), DynamicTree(top_k=9, nodes=2), StaticTree(((0,), (1,), (0, 0)))],
    ids=["chain", "dynamic", "two of nine", "static"],
)
def test_trees_of_depth_one(shape: Shape) -> None:
    """At most one guess is accepted per round, and some are."""
    taken = 0
    for prompt in TWENTY[:4]:
        trace = drafted(prompt, shape, draft_length=1)
        assert trace.tokens == greedy_reference(model(), prompt, 12)
        assert all(r.accepted <= 1 for r in trace.rounds)
        taken += sum(r.accepted for r in trace.rounds)
    assert taken
