"""Parallel heads never change the law: greedy texts and enumerated laws, with heads that are
random, and with heads that were ruined in ways that only lower acceptance."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from helpers import greedy_reference, prompt_of, run
from mutants import MUTANTS, RIGHT, Rules

from labkit.draft import Draft
from labkit.drafters.base import Commit
from labkit.drafters.medusa import Medusa
from labkit.drafters.shapes import SMALL_TREE, Chain, Costs, DynamicTree, Shape, StaticTree
from labkit.heads.medusa import MedusaHeads, medusa_config, random_heads
from labkit.law import distance, exact_law
from labkit.sampling import Rng, Warp
from labkit.target import Target
from labkit.toy import random_table, tiny
from labkit.verify import verify

V, EXACT, LENGTH = 3, 1e-12, 3
P = random_table(V, seed=1, sharpness=1.5)
SHAPES: dict[str, Shape] = {
    "chain": Chain(),
    "static": StaticTree(((0,), (1,), (0, 0), (1, 0))),
    "dynamic": DynamicTree(top_k=2, nodes=3),
    "sized": DynamicTree(top_k=2, nodes=4, costs=Costs(((1, 1.0), (9, 2.0)), draft=0.1)),
}
HEADS: dict[str, dict[str, Any]] = {
    "medusa": {},
    "own outputs": {"shared_output": False},
    "meta": {"kind": "meta"},
    "few words": {"ids": torch.tensor([0, 2])},
}


@lru_cache
def target_model(vocab_size: int = 64) -> Any:
    return tiny("llama", vocab_size=vocab_size)


def heads_of(*, model: Any, seed: int = 3, kind: str = "medusa", **switches: Any) -> MedusaHeads:
    ids = switches.pop("ids", None)
    if ids is not None:
        switches["draft_vocab_size"] = len(ids)
    config = medusa_config(model, kind, heads=3, **switches)
    return random_heads(config, model, seed=seed, vocab_ids=ids)


Judge = Callable[[Draft, Any, Rng], list[int]]


def by_verify(draft: Draft, p: Any, rng: Rng) -> list[int]:
    verdict = verify(draft, p, rng)
    return [*(draft.tree.tokens[i] for i in verdict.path[1:]), verdict.next_token]


def error(
    heads: MedusaHeads,
    shape: Shape,
    *,
    temperature: float,
    judge: Judge = by_verify,
    drafter_of: type[Medusa] = Medusa,
    **options: Any,
) -> float:
    """Largest difference between the law of one round, continued by the target, and P's."""
    table = P if temperature else torch.nn.functional.one_hot(P.argmax(-1), V).double()
    generator = torch.Generator().manual_seed(0)
    width = heads.config.hidden_size
    hidden = {"final": torch.randn(1, width, generator=generator, dtype=torch.float64)}
    warp = Warp(temperature=temperature)

    def outcome(rng: Rng) -> tuple[int, ...]:
        drafter = drafter_of(heads, shape=shape, **options)
        drafter.observe(Commit((1, 0), hidden))
        draft = drafter.propose((1, 0), rng, depth=2, warp=warp)
        draft.check(vocab_size=V)
        out = judge(draft, torch.stack([table[t] for t in draft.tree.tokens]), rng)
        while len(out) < LENGTH:
            out.append(int(rng.pick(table[out[-1]])))
        return tuple(out[:LENGTH])

    by_hand = {
        (a, b, c): float(table[0, a] * table[a, b] * table[b, c])
        for a in range(V)
        for b in range(V)
        for c in range(V)
        if table[0, a] * table[a, b] * table[b, c] > 0
    }
    return distance(exact_law(outcome), by_hand)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", HEADS)
def test_the_law_of_a_round_is_the_target_s(name: str, shape: str, temperature: float) -> None:
    heads = heads_of(model=target_model(V), **HEADS[name]).double()
    if temperature == 0.5:  # the same through the other options
        options: dict[str, Any] = {"confidence": 0.1, "drawn": shape == "static"}
    else:
        options = {}
    assert error(heads, SHAPES[shape], temperature=temperature, **options) <= EXACT


class Pruned(Medusa):
    """Prunes drawn tokens by their probability: a selection that q does not know of."""

    def propose(self, tokens: Any, rng: Any, **options: Any) -> Draft:
        draft = super().propose(tokens, rng, **options)
        if len(draft.tree) > 1 and draft.confidence[1] < 0.4:
            return Draft.deterministic(draft.tree.up_to_depth(0))
        return draft


class Softmaxed(Medusa):
    """Says that its certain tokens were drawn from its softmax."""

    def propose(self, tokens: Any, rng: Any, **options: Any) -> Draft:
        draft = super().propose(tokens, rng, **options)
        qs = [None, *(torch.softmax(draft.logits[i], -1) for i in range(1, len(draft.tree)))]
        return Draft(draft.tree, tuple(qs))


class StaleSiblings(Medusa):
    """Every node of a depth gets the same q, whatever its earlier siblings took."""

    def propose(self, tokens: Any, rng: Any, **options: Any) -> Draft:
        draft = super().propose(tokens, rng, **options)
        law = options["warp"].law
        qs = [None, *(law(draft.logits[i][None])[0] for i in range(1, len(draft.tree)))]
        return Draft(draft.tree, tuple(qs))


@pytest.mark.parametrize(
    ("broken", "shape", "options"),
    [
        (Pruned, "chain", {}),
        (Softmaxed, "chain", {"drawn": False}),
        (StaleSiblings, "static", {}),
    ],
    ids=["pruned", "softmax q", "stale siblings"],
)
def test_lawless_drafts_are_noticed(
    broken: type[Medusa], shape: str, options: dict[str, Any]
) -> None:
    errors = [
        error(
            heads_of(model=target_model(V), seed=seed).double(),
            SHAPES[shape],
            temperature=1.0,
            drafter_of=broken,
            **options,
        )
        for seed in range(4)
    ]
    assert max(errors) > 1e-3


def typical(draft: Draft, p: Any, rng: Rng) -> list[int]:
    """Medusa's own test: take what the target finds likely enough, threshold 0.09, alpha 0.3."""
    node, out = 0, []
    while True:
        entropy = float(-(p[node] * p[node].clamp(min=1e-12).log()).sum())
        bar = min(0.09, 0.3 * torch.tensor(-entropy).exp().item())
        good = [c for c in draft.tree.children[node] if float(p[node][draft.tree.tokens[c]]) > bar]
        if not good:
            return [*out, int(rng.pick(p[node]))]
        node = good[0]
        out.append(draft.tree.tokens[node])


@pytest.mark.parametrize(
    ("judge", "lawful"),
    [
        (RIGHT, True),
        (MUTANTS["argmax draft judged by its softmax"], False),
        (MUTANTS["always accept"], False),
        (typical, False),
    ],
    ids=["by the book", "softmax q", "always accept", "typical acceptance"],
)
def test_another_rule_is_another_law(judge: Rules | Judge, lawful: bool) -> None:
    """The rule written again agrees; typical acceptance and other short cuts do not."""
    heads = heads_of(model=target_model(V)).double()
    found = error(heads, SHAPES["dynamic"], temperature=1.0, judge=judge)
    assert (found <= EXACT) if lawful else (found > 1e-3)


def ruined(kind: str, *, of: str = "medusa") -> MedusaHeads:
    """Heads with one fault of the kind that leaves the text alone."""
    heads = heads_of(model=target_model(), kind=of)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        if kind == "heads swapped":
            heads.blocks = torch.nn.ModuleList(list(heads.blocks)[::-1])
        elif kind == "ids shifted":
            heads.vocab_ids.copy_((heads.vocab_ids + 1) % 64)
        elif kind == "noise":
            for weight in heads.blocks.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator))
        elif kind == "zero":
            for weight in heads.blocks.parameters():
                weight.zero_()
    return heads


@pytest.mark.parametrize("shape", [Chain(), SMALL_TREE, DynamicTree(top_k=3, nodes=8)])
@pytest.mark.parametrize("kind", ["none", "heads swapped", "ids shifted", "noise", "zero"])
def test_greedy_text_survives_ruined_heads(kind: str, shape: Shape) -> None:
    model, heads, prompt = target_model(), ruined(kind), prompt_of(17)
    target = Target(model, needs=heads.config.needs)
    trace = run(target, Medusa(heads, shape=shape), prompt, max_new_tokens=24, draft_length=3)
    assert trace.tokens == greedy_reference(model, prompt, 24)


@pytest.mark.parametrize("length", [1, 2, 17, 200])
@pytest.mark.parametrize("make", [Chain, lambda: DynamicTree(top_k=3, nodes=8)])
def test_greedy_text_after_short_and_long_prompts(make: Callable[[], Shape], length: int) -> None:
    """E3: and between rounds the heads remember as much as the target's cache holds."""
    model, prompt = target_model(), prompt_of(length)
    for kind in ("medusa", "meta"):
        heads = heads_of(model=model, kind=kind)
        target, drafter = Target(model, needs=heads.config.needs), Medusa(heads, shape=make())
        trace = run(target, drafter, prompt, max_new_tokens=16, draft_length=3)
        assert trace.tokens == greedy_reference(model, prompt, 16)
        for kv in drafter._kv:
            assert kv.length == drafter.length <= target.length
