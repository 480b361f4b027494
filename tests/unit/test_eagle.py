"""EAGLE heads as drafters: alignment, trees, caches. Every reference here is a plain forward of
the head over one whole path, from true states, without any cache of its own."""

from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from helpers import check_nodes, checked, prompt_of, run
from torch import Tensor

from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.base import Commit, Drafter
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.nothing import Nothing
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.pairs import Guesses, Pairs
from labkit.drafters.shapes import SMALL_TREE, Chain, Costs, DynamicTree, Shape, StaticTree
from labkit.errors import BadInput
from labkit.events import Drafted
from labkit.heads.eagle import EagleHead, head_config, random_head
from labkit.metrics import acceptance
from labkit.sampling import TorchRng, Warp
from labkit.target import Target
from labkit.toy import tiny

VARIANTS: dict[str, dict[str, Any]] = {
    "eagle1": {"version": 1},
    "eagle3": {"version": 3},
    "eagle31": {"version": 3, "fc_norm": True, "norm_output": True},
    "wild": {"version": 3, "norm_before_fc": True, "norm_before_residual": True, "qk_norm": True},
    "two layers": {"version": 3, "layers": 2},
    "small vocabulary": {"version": 3, "draft_vocab_size": 40},
}
SHAPES: dict[str, Shape] = {
    "chain": Chain(),
    "static": SMALL_TREE,
    "dynamic": DynamicTree(top_k=3, nodes=9),
}
ODD = tuple(range(1, 64, 2)) + tuple(range(0, 16, 2))


@lru_cache
def deep() -> Any:
    """Layers enough for three depths."""
    return tiny("llama", layers=8)


def head_of(name: str, *, seed: int = 3) -> EagleHead:
    settings = dict(VARIANTS[name])
    ids = torch.tensor(sorted(ODD)) if "draft_vocab_size" in settings else None
    config = head_config(deep(), settings.pop("version"), **settings)
    return random_head(config, deep(), seed=seed, vocab_ids=ids)


def target_for(head: EagleHead) -> Target:
    return Target(deep(), needs=head.config.needs, clock=lambda: 0.0)


def watched(head: EagleHead, *, shape: Shape | None = None, pairs: Any = Pairs) -> Drafter:
    """Every draft is checked against `slow_logits`, and its cache against the committed text."""
    reader = pairs(head, clock=lambda: 0.0)

    def check(draft: Any, tokens: Any) -> None:
        check_nodes(draft, partial(slow_logits, head, tokens))
        assert len(draft.tree) == 1 or reader.length == len(tokens) - 1

    return checked(HeadDrafter(reader, name="watched", shape=shape), check)


@torch.inference_mode()
def slow_logits(head: EagleHead, tokens: Any, drafted: list[int]) -> Tensor:
    """[V] after ``tokens`` and ``drafted``: all pairs again in one causal forward per step.

    States of committed tokens come from transformers' own `output_hidden_states`.
    """
    model = deep()
    out = model(input_ids=torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False)
    places = [-1 if n == "final" else int(n[1:]) for n in head.config.needs]
    states = head.fuse([out.hidden_states[k][0, :-1] for k in places])
    ids = list(tokens[1:])
    for step in range(len(drafted) + 1):
        n = len(ids)
        found = head(
            torch.tensor([ids]),
            states[None],
            positions=torch.arange(n)[None],
            kv=head.cache(),
            mask=torch.ones(n, n, dtype=torch.bool).tril(),
        )
        if step < len(drafted):
            ids = [*ids, drafted[step]]
            states = torch.cat((states, found.recycled[0, -1:]))
    full = torch.full((head.config.vocab_size,), -torch.inf)
    full[head.vocab_ids] = head.logits(found.normed[0, -1])
    return full


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_node_s_logits_are_those_of_a_sequential_forward(name: str, shape: str) -> None:
    """After each of many rounds, so the cache holds what a fresh head prefilled with true states
    would hold; in trees, each node sees its own path and nothing else."""
    head = head_of(name)
    drafter = watched(head, shape=SHAPES[shape])
    prompt = prompt_of(9)
    trace = run(target_for(head), drafter, prompt, max_new_tokens=14, draft_length=3)
    reference = run(Target(deep()), Nothing(), prompt, max_new_tokens=14)
    assert trace.tokens == reference.tokens


class StaleStates(Pairs):
    """A broken cache: guesses stay in it as if they were true."""

    def observe(self, commit: Any) -> None:
        self.true[0] = max(self.true[0], self.kv[0][0].length)
        super().observe(commit)


def test_a_missing_tree_mask_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings see each other."""
    monkeypatch.setattr(Guesses, "_mask", lambda guesses, seen, own, true: None)
    head = head_of("eagle3")
    drafter = watched(head, shape=SHAPES["dynamic"])
    with pytest.raises(AssertionError):
        run(target_for(head), drafter, prompt_of(9), max_new_tokens=8, draft_length=3)


def test_stale_rows_are_noticed() -> None:
    head = head_of("eagle3")
    drafter = watched(head, pairs=StaleStates)
    with pytest.raises(AssertionError):
        run(target_for(head), drafter, prompt_of(9), max_new_tokens=8, draft_length=3)


@pytest.mark.parametrize("name", ["eagle1", "eagle3", "small vocabulary"])
def test_a_tree_one_wide_is_the_chain_trace_and_all(name: str) -> None:
    head = head_of(name)
    kinds = (
        Chain(),
        DynamicTree(top_k=1, nodes=4),
        StaticTree(((0,), (0, 0), (0, 0, 0), (0,) * 4)),
    )
    traces = [
        run(
            target_for(head),
            eagle_drafter(head, shape=kind, clock=lambda: 0.0),
            prompt_of(9),
            max_new_tokens=16,
            draft_length=4,
            detail="full",
            clock=lambda: 0.0,
        )
        for kind in kinds
    ]
    chain, top_1, static = ([asdict(e) for e in t.events] for t in traces)
    assert static == chain
    for left, right in zip(top_1, chain, strict=True):
        assert {**left, "considered": ()} == {**right, "considered": ()}


def drafted(trace: Any) -> list[Drafted]:
    return [e for e in trace.events if isinstance(e, Drafted)]


def test_dynamic_tree_keeps_the_likeliest_of_all_that_it_grew() -> None:
    """Against the definition: the best k nodes of each depth grow k children each; of all, the N
    with the largest cumulative probability stay."""
    head = head_of("eagle3")
    k, nodes = 3, 7
    trace = run(
        target_for(head),
        eagle_drafter(head, shape=DynamicTree(top_k=k, nodes=nodes)),
        prompt_of(9),
        max_new_tokens=10,
        draft_length=3,
        detail="full",
    )
    text = list(prompt_of(9))
    for event, new in zip(drafted(trace), trace.rounds, strict=True):
        expected = slow_tree(head, text, k=k, nodes=nodes, depth=event.limit)
        tree = {
            path_text(event, node): event.confidence[node] for node in range(1, len(event.tokens))
        }
        assert tree.keys() == expected.keys()
        for path, mass in expected.items():
            assert tree[path] == pytest.approx(mass, rel=1e-4)
        pruned = [row for row in event.considered[1:] if row[3] < 0]
        if tree and pruned:
            assert max(row[2] for row in pruned) <= min(tree.values()) + 1e-9
        text += new.committed.tokens


def path_text(event: Drafted, node: int) -> tuple[int, ...]:
    path: tuple[int, ...] = ()
    while node > 0:
        path, node = (event.tokens[node], *path), event.parents[node]
    return path


def slow_tree(
    head: EagleHead, text: list[int], *, k: int, nodes: int, depth: int
) -> dict[tuple[int, ...], float]:
    frontier, found = {(): 1.0}, {}
    for _ in range(depth):
        level = {}
        for path, mass in frontier.items():
            p = torch.softmax(slow_logits(head, text, list(path)), -1)
            for token in p.topk(k).indices.tolist():
                level[*path, token] = mass * float(p[token])
        found |= level
        frontier = dict(sorted(level.items(), key=lambda item: -item[1])[:k])
    return dict(sorted(found.items(), key=lambda item: -item[1])[:nodes])


def test_drafting_stops_where_the_head_is_unsure_and_says_so() -> None:
    head = head_of("eagle3")
    options = {"max_new_tokens": 12, "draft_length": 4}
    free = run(target_for(head), eagle_drafter(head), prompt_of(9), **options)
    shy = run(target_for(head), eagle_drafter(head, confidence=0.3), prompt_of(9), **options)
    assert shy.tokens == free.tokens
    assert {e.stopped for e in drafted(free)} == {""}
    stopped = [e for e in drafted(shy) if e.stopped == "confidence"]
    assert stopped
    for event in drafted(shy):
        assert all(mass >= 0.3 for mass in event.confidence)
        assert (len(event.tokens) - 1 < event.limit) == (event.stopped == "confidence")


def test_a_tree_is_sized_by_cost_and_says_so() -> None:
    head = head_of("eagle3")
    dear = DynamicTree(top_k=3, nodes=9, costs=Costs(((1, 1.0), (2, 3.0)), draft=0.01))
    cheap = DynamicTree(top_k=3, nodes=9, costs=Costs(((1, 1.0), (99, 1.001)), draft=0.01))
    sizes = {}
    for name, shape in {"dear": dear, "cheap": cheap}.items():
        trace = run(
            target_for(head),
            eagle_drafter(head, shape=shape),
            prompt_of(9),
            max_new_tokens=12,
            draft_length=3,
        )
        sizes[name] = [len(e.tokens) - 1 for e in drafted(trace) if e.limit]
        for event in drafted(trace):
            if event.limit == 3:
                assert (len(event.tokens) - 1 < 9) == (event.stopped == "cost")
    assert max(sizes["dear"]) < min(sizes["cheap"])


class OneWord:
    """Rules out every token but the one that follows the last by number."""

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        allowed = (int(ids[0, -1]) + 1) % scores.shape[-1]
        return torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor([allowed]), 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_drafted_below_a_token_that_was_ruled_out(
    shape: str, temperature: float
) -> None:
    """Where processors leave one word, a tree wider than that is the chain of such words."""
    head = head_of("eagle3")
    trace = run(
        target_for(head),
        eagle_drafter(head, shape=SHAPES[shape]),
        (1, 2, 3),
        processors=[OneWord()],
        max_new_tokens=9,
        draft_length=3,
        temperature=temperature,
    )
    assert trace.tokens == tuple(range(4, 13))
    for event in drafted(trace):
        first = event.tokens[0]
        assert event.tokens == tuple(range(first, first + event.limit + 1))


def test_a_head_that_is_never_asked_reads_everything_later() -> None:
    """Rounds without a draft leave pairs waiting; the next draft reads them all at once."""
    head = head_of("eagle3")
    target, drafter = target_for(head), watched(head)
    prompt = prompt_of(1)  # no state before the first token: nothing can be drafted at first
    events = list(
        speculate(target, drafter, prompt, config=DecodeConfig(max_new_tokens=6, draft_length=2))
    )
    found = [e for e in events if isinstance(e, Drafted)]
    assert found[0].tokens == prompt
    assert len(found[1].tokens) == 3


def test_a_target_that_lacks_the_states_is_refused() -> None:
    head = head_of("eagle3")
    with pytest.raises(BadInput, match="needs="):
        run(Target(deep()), eagle_drafter(head), prompt_of(9), max_new_tokens=4)


@pytest.mark.parametrize("name", VARIANTS)
def test_acceptance_is_what_the_logits_say(name: str) -> None:
    """A greedy chain's drafted tokens are the argmax of the slow logits, so acceptance can be
    recomputed without the engine."""
    head = head_of(name)
    prompt = prompt_of(9)
    trace = run(target_for(head), eagle_drafter(head), prompt, max_new_tokens=20, draft_length=1)
    text, right, tried = list(prompt), 0, 0
    for record in trace.rounds:
        if record.drafted.limit:
            guess = int(slow_logits(head, text, []).argmax())
            tried += 1
            right += guess == record.committed.tokens[0]
        text += record.committed.tokens
    assert (acceptance(trace).accepted, acceptance(trace).drafted) == (right, tried)


def test_a_draft_that_nobody_judged_leaves_no_trace() -> None:
    """Asked twice, with nothing committed between, a drafter says the same."""
    head = head_of("eagle3")
    for shape in SHAPES.values():
        drafter, prompt = eagle_drafter(head, shape=shape), prompt_of(9)
        target = target_for(head)
        drafter.observe(Commit(prompt, target.prefill(prompt)))
        options: dict[str, Any] = {"depth": 3, "warp": Warp()}
        first, again = (drafter.propose(prompt, TorchRng(0), **options) for _ in range(2))
        assert again.tree == first.tree
        assert again.confidence == pytest.approx(first.confidence)


def test_a_random_head_leaves_its_target_alone() -> None:
    model = tiny("llama", layers=8)
    random_head(head_config(model, 3), model).double()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
