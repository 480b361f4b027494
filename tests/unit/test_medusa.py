"""Parallel heads as drafters: alignment, trees, memory. Every reference is one plain forward of the
heads over all states of the text, without any cache."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from helpers import check_nodes, checked, prompt_of, run
from torch import Tensor

from labkit.drafters.base import Commit, Drafter
from labkit.drafters.medusa import LastState, medusa_drafter
from labkit.drafters.nothing import Nothing
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.shapes import SMALL_TREE, Chain, DynamicTree, Shape, StaticTree
from labkit.errors import BadInput
from labkit.events import Drafted
from labkit.heads.medusa import MedusaConfig, MedusaHeads, first_heads, medusa_config, random_heads
from labkit.metrics import acceptance
from labkit.sampling import TorchRng, Warp
from labkit.target import Target
from labkit.toy import tiny

K = 4
VARIANTS: dict[str, dict[str, Any]] = {
    "medusa": {},
    "two blocks": {"layers": 2, "bias": False},
    "own outputs": {"shared_output": False},
    "few words": {"draft_vocab_size": 40},
    "meta": {"kind": "meta"},
    "meta, few words": {"kind": "meta", "draft_vocab_size": 40},
}
SHAPES: dict[str, Shape] = {
    "chain": Chain(),
    "static": SMALL_TREE,
    "dynamic": DynamicTree(top_k=3, nodes=9),
}
FEW = torch.tensor(sorted({*range(1, 64, 2), *range(0, 16, 2)}))


@lru_cache
def model() -> Any:
    return tiny("llama")


def heads_of(name: str, *, seed: int = 3) -> MedusaHeads:
    settings = dict(VARIANTS[name])
    ids = FEW if "draft_vocab_size" in settings else None
    config = medusa_config(model(), settings.pop("kind", "medusa"), heads=K, **settings)
    return random_heads(config, model(), seed=seed, vocab_ids=ids)


def target_for(heads: MedusaHeads) -> Target:
    return Target(model(), needs=heads.config.needs, clock=lambda: 0.0)


@torch.inference_mode()
def slow_rows(heads: MedusaHeads, tokens: Sequence[int]) -> Tensor:
    """[heads, V] after ``tokens``, whose last is pending; states by transformers' own
    `output_hidden_states`, whose last entry comes after the final norm."""
    out = model()(torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False)
    states = out.hidden_states[-1][:, :-1]  # nobody has the pending token's state yet
    n = states.shape[1]
    made = heads(
        states,
        positions=torch.arange(n)[None],
        kv=heads.cache(),
        mask=torch.ones(n, n, dtype=torch.bool).tril(),
    )
    full = torch.full((K, heads.config.vocab_size), -torch.inf)
    full[:, heads.vocab_ids] = heads.logits(made[0, -1])
    return full


def watched(heads: MedusaHeads, *, shape: Shape | None = None, reads: Any = LastState) -> Drafter:
    """Every draft is checked against `slow_rows`, and that it cost one forward at most."""
    reader = reads(heads, clock=lambda: 0.0)

    def check(draft: Any, tokens: Any) -> None:
        if len(draft.tree) > 1:
            rows = slow_rows(heads, tokens)
            check_nodes(draft, lambda above: rows[len(above)])
            assert draft.forwards == 1
            assert reader.length == len(tokens) - 1

    return checked(HeadDrafter(reader, name="watched", shape=shape), check)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_node_s_logits_are_those_of_a_forward_over_the_text(name: str, shape: str) -> None:
    heads = heads_of(name)
    prompt = prompt_of(9)
    trace = run(
        target_for(heads),
        watched(heads, shape=SHAPES[shape]),
        prompt,
        max_new_tokens=14,
        draft_length=K,
    )
    assert trace.tokens == run(Target(model()), Nothing(), prompt, max_new_tokens=14).tokens


class OneLate(LastState):
    """Reads the state before the last one."""

    def observe(self, commit: Any) -> None:
        super().observe(replace(commit, hidden={n: h.roll(1, 0) for n, h in commit.hidden.items()}))


class OffByOneHead(LastState):
    """Takes each head for the one after it."""

    def _catch_up(self) -> int:
        spent = super()._catch_up()
        self._made = self._made.roll(1, 0) if spent else self._made
        return spent


class Forgetful(LastState):
    """Starts its memory again in every round."""

    def observe(self, commit: Any) -> None:
        super().observe(commit)
        self._kv = self.head.cache()


@pytest.mark.parametrize(
    ("broken", "name"),
    [(OneLate, "medusa"), (OneLate, "meta"), (OffByOneHead, "medusa"), (Forgetful, "meta")],
)
def test_a_wrong_state_head_or_memory_is_noticed(broken: type[LastState], name: str) -> None:
    heads = heads_of(name)
    with pytest.raises((AssertionError, RuntimeError)):
        run(
            target_for(heads),
            watched(heads, reads=broken),
            prompt_of(9),
            max_new_tokens=9,
            draft_length=K,
        )


@pytest.mark.parametrize("name", ["medusa", "meta", "few words"])
def test_a_tree_one_wide_is_the_chain_trace_and_all(name: str) -> None:
    heads = heads_of(name)
    kinds = (
        Chain(),
        DynamicTree(top_k=1, nodes=4),
        StaticTree(((0,), (0, 0), (0, 0, 0), (0,) * 4)),
    )
    traces = [
        run(
            target_for(heads),
            medusa_drafter(heads, shape=kind, clock=lambda: 0.0),
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


def draft_after(heads: MedusaHeads, shape: Shape, tokens: Sequence[int], **options: Any) -> Any:
    """One draft, as after a prompt."""
    warp = options.pop("warp", Warp())
    drafter = medusa_drafter(heads, shape=shape, **options)
    drafter.observe(Commit(tuple(tokens), target_for(heads).prefill(tokens)))
    return drafter.propose(tokens, TorchRng(0), depth=K, warp=warp)


@pytest.mark.parametrize("name", ["medusa", "own outputs", "few words", "meta"])
def test_the_dynamic_tree_is_the_best_of_the_cartesian_product(name: str) -> None:
    """Against Medusa's definition: each head's top tokens, combined, are as likely as the product
    of their probabilities; the likeliest paths stay."""
    heads, text, nodes = heads_of(name), prompt_of(12), 7
    p = torch.softmax(slow_rows(heads, text), -1)
    best_of = [row.topk(nodes).indices.tolist() for row in p]
    p = p.tolist()
    found = {
        path: prod(p[d][t] for d, t in enumerate(path))
        for depth in range(1, K + 1)
        for path in product(*best_of[:depth])
    }
    best = dict(sorted(found.items(), key=lambda item: -item[1])[:nodes])
    draft = draft_after(heads, DynamicTree(top_k=nodes, nodes=nodes), text)
    mine = {
        tuple(draft.tree.tokens[i] for i in draft.tree.path(node)[1:]): draft.confidence[node]
        for node in range(1, len(draft.tree))
    }
    assert mine.keys() == best.keys()
    for path, mass in best.items():
        assert mine[path] == pytest.approx(mass, rel=1e-4)


def test_a_static_tree_takes_each_head_s_tokens_by_rank() -> None:
    heads, text = heads_of("own outputs"), prompt_of(12)
    ranked = slow_rows(heads, text).topk(4, -1).indices
    draft = draft_after(heads, SMALL_TREE, text)
    paths = [[draft.tree.tokens[i] for i in draft.tree.path(n)[1:]] for n in range(len(draft.tree))]
    said = [[int(ranked[d, rank]) for d, rank in enumerate(c)] for c in SMALL_TREE.choices]
    assert sorted(paths[1:]) == sorted(said)


@pytest.mark.parametrize("name", ["medusa", "meta"])
def test_drawn_tokens_come_with_their_law(name: str) -> None:
    """One row per depth; an earlier sibling's token is taken out, and the rest renormalised."""
    heads, text = heads_of(name), prompt_of(12)
    warp = Warp(temperature=0.7, top_k=20)
    law = warp(slow_rows(heads, text))
    draft = draft_after(heads, SMALL_TREE, text, warp=warp)
    tree = draft.tree
    assert len(tree) == len(SMALL_TREE.choices) + 1
    for node in range(1, len(tree)):
        q = law[tree.depths[node] - 1].clone()
        siblings = tree.children[tree.parents[node]]
        for earlier in siblings[: siblings.index(node)]:
            q[tree.tokens[earlier]] = 0
        torch.testing.assert_close(draft.q[node], q / q.sum(), atol=1e-5, rtol=1e-4)
    draft.check(vocab_size=64)


def test_a_draft_is_no_deeper_than_there_are_heads() -> None:
    heads = heads_of("medusa")
    trace = run(
        target_for(heads),
        medusa_drafter(heads),
        prompt_of(9),
        max_new_tokens=20,
        draft_length=K + 3,
    )
    assert {len(e.tokens) - 1 for e in drafted(trace) if e.limit >= K} == {K}


def test_drafting_stops_where_the_heads_are_unsure_and_says_so() -> None:
    heads = heads_of("medusa")
    options = {"max_new_tokens": 12, "draft_length": 4}
    shy = run(target_for(heads), medusa_drafter(heads, confidence=0.3), prompt_of(9), **options)
    free = run(target_for(heads), medusa_drafter(heads), prompt_of(9), **options)
    assert shy.tokens == free.tokens
    assert any(e.stopped == "confidence" for e in drafted(shy))
    for event in drafted(shy):
        assert all(mass >= 0.3 for mass in event.confidence)
        assert (len(event.tokens) - 1 < event.limit) == (event.stopped == "confidence")


class OneWord:
    """Rules out every token but the one that follows the last by number."""

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        allowed = (int(ids[0, -1]) + 1) % scores.shape[-1]
        return torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor([allowed]), 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_processors_see_each_node_s_own_path(shape: str, temperature: float) -> None:
    """Where they leave one word, a tree wider than that is the chain of such words."""
    heads = heads_of("medusa")
    trace = run(
        target_for(heads),
        medusa_drafter(heads, shape=SHAPES[shape]),
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


@pytest.mark.parametrize("name", ["medusa", "meta"])
def test_heads_that_are_asked_late_read_everything_then(name: str) -> None:
    """A prompt of one token leaves no state: nothing is drafted at first."""
    heads = heads_of(name)
    trace = run(target_for(heads), watched(heads), prompt_of(1), max_new_tokens=6, draft_length=2)
    assert [len(e.tokens) for e in drafted(trace)][:2] == [1, 3]


@pytest.mark.parametrize("name", ["medusa", "meta"])
def test_a_draft_that_nobody_judged_leaves_no_trace(name: str) -> None:
    heads, prompt = heads_of(name), prompt_of(9)
    for shape in SHAPES.values():
        drafter = medusa_drafter(heads, shape=shape)
        drafter.observe(Commit(prompt, target_for(heads).prefill(prompt)))
        options: dict[str, Any] = {"depth": 3, "warp": Warp()}
        first, again = (drafter.propose(prompt, TorchRng(0), **options) for _ in range(2))
        assert again.tree == first.tree
        assert (first.forwards, again.forwards) == (1, 0)


@pytest.mark.parametrize("name", VARIANTS)
def test_acceptance_is_what_the_logits_say(name: str) -> None:
    heads, prompt = heads_of(name), prompt_of(9)
    trace = run(target_for(heads), medusa_drafter(heads), prompt, max_new_tokens=20, draft_length=2)
    text, right, tried = list(prompt), 0, 0
    for record in trace.rounds:
        if record.drafted.limit:
            guesses = slow_rows(heads, text).argmax(-1).tolist()[: record.drafted.limit]
            new = list(record.committed.tokens)
            tried += len(guesses)
            right += next((n for n, (g, t) in enumerate(zip(guesses, new, strict=False))
                           if g != t), min(len(guesses), len(new)))  # fmt: skip
        text += record.committed.tokens
    assert (acceptance(trace).accepted, acceptance(trace).drafted) == (right, tried)


@pytest.mark.parametrize("kind", ["medusa", "meta"])
def test_chains_on_a_target_with_recurrent_layers(kind: str) -> None:
    """Whose states of accepted tokens are those of a second reading."""
    hybrid = tiny("qwen3_5", layers=3)
    heads = random_heads(medusa_config(hybrid, kind, heads=3), hybrid)
    options = {"max_new_tokens": 14, "draft_length": 3}
    target = Target(hybrid, needs=heads.config.needs)
    trace = run(target, medusa_drafter(heads), prompt_of(9), **options)
    assert trace.tokens == run(Target(hybrid), Nothing(), prompt_of(9), max_new_tokens=14).tokens
    text = [*prompt_of(9)]
    for record in trace.rounds:
        with torch.inference_mode():
            out = hybrid(torch.tensor([text]), output_hidden_states=True, use_cache=False)
        state = out.hidden_states[-1][:, :-1]
        n = state.shape[1]
        made = heads(
            state,
            positions=torch.arange(n)[None],
            kv=heads.cache(),
            mask=torch.ones(n, n, dtype=torch.bool).tril(),
        )
        best = heads.logits(made[0, -1]).argmax(-1).tolist()
        assert list(record.drafted.tokens[1:]) == best[: record.drafted.limit]
        text += record.committed.tokens


@pytest.mark.parametrize("kind", ["medusa", "meta"])
def test_untrained_heads_say_the_target_s_next_token_again(kind: str) -> None:
    """As published: residual parts start at nothing, outputs at the target's rows."""
    config = medusa_config(model(), kind, heads=K)
    heads = first_heads(config, model(), seed=0).eval()
    text = prompt_of(12)
    with torch.inference_mode():
        plain = model()(torch.tensor([text[:-1]]), use_cache=False).logits[0, -1]
    for row in slow_rows(heads, text):
        torch.testing.assert_close(row, plain, atol=1e-5, rtol=1e-4)
    rows = model().get_output_embeddings().weight
    assert heads.output(0).weight.data_ptr() == rows.data_ptr()
    # control: random blocks say something else
    other = slow_rows(heads_of("meta" if kind == "meta" else "medusa"), text)[0]
    assert (other - plain).abs().max() > 1e-2


def test_the_state_after_the_final_norm_is_what_they_read() -> None:
    """The state of the spied forward is transformers' last one, bit for bit."""
    heads, prompt = heads_of("medusa"), prompt_of(9)
    fed: list[Tensor] = []
    hook = heads.register_forward_pre_hook(lambda _m, args: fed.append(args[0]))
    target, drafter = target_for(heads), medusa_drafter(heads)
    drafter.observe(Commit(prompt, target.prefill(prompt)))
    drafter.propose(prompt, TorchRng(0), depth=1, warp=Warp())
    hook.remove()
    with torch.inference_mode():
        out = model()(torch.tensor([prompt[:-1]]), output_hidden_states=True, use_cache=False)
        decoder = model().model
        seen: list[Tensor] = []
        spy = decoder.norm.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
        decoder(torch.tensor([prompt[:-1]]), use_cache=False)
        spy.remove()
    torch.testing.assert_close(fed[0][0, 0], out.hidden_states[-1][0, -1], atol=1e-6, rtol=1e-5)
    assert (fed[0][0, 0] - seen[0][0, -1]).abs().max() > 1e-2  # before the norm it is another


def test_a_target_that_lacks_the_state_is_refused() -> None:
    heads = heads_of("medusa")
    with pytest.raises(BadInput, match="needs="):
        run(Target(model()), medusa_drafter(heads), prompt_of(9), max_new_tokens=4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "hydra"}, "kind"),
        ({"heads": 0}, "heads"),
        ({"layers": 0}, "layers"),
        ({"draft_vocab_size": 65}, "draft_vocab_size"),
        ({"kind": "meta"}, "block"),
    ],
)
def test_impossible_shapes_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    good: dict[str, Any] = {"heads": 2, "hidden_size": 32, "vocab_size": 64, "draft_vocab_size": 64}
    MedusaConfig(**good)
    with pytest.raises(BadInput, match=f"head's {named}"):
        MedusaConfig(**good | changes)


def test_random_heads_leave_their_target_alone() -> None:
    target = tiny("llama")
    before = {name: p.clone() for name, p in target.named_parameters()}
    random_heads(medusa_config(target, heads=2, shared_output=False), target).double()
    assert all(torch.equal(p, before[name]) for name, p in target.named_parameters())
