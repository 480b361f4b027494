"""Parallel heads never change the law: greedy texts and enumerated laws, with heads that are
random, and with heads that were ruined in ways that only lower acceptance."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from helpers import greedy_reference, prompt_of, run
from mutants import MUTANTS, RIGHT, Rules
from round_laws import (
    EXACT,
    SHAPES,
    Change,
    Judge,
    V,
    as_it_is,
    by_verify,
    law_error,
    pruned,
    softmaxed,
    stale_siblings,
)

from labkit.draft import Draft
from labkit.drafters.medusa import medusa_drafter
from labkit.drafters.shapes import SMALL_TREE, Chain, DynamicTree, Shape
from labkit.heads.medusa import MedusaHeads, medusa_config, random_heads
from labkit.sampling import Rng
from labkit.target import Target
from labkit.toy import tiny

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


def error(
    heads: MedusaHeads,
    shape: Shape,
    *,
    temperature: float,
    judge: Judge = by_verify,
    change: Change = as_it_is,
    **options: Any,
) -> float:
    return law_error(
        lambda: medusa_drafter(heads, shape=shape, **options),
        width=heads.config.hidden_size,
        temperature=temperature,
        change=change,
        judge=judge,
    )


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


@pytest.mark.parametrize(
    ("broken", "shape", "options"),
    [
        (pruned, "chain", {}),
        (softmaxed, "chain", {"drawn": False}),
        (stale_siblings, "static", {}),
    ],
    ids=["pruned", "softmax q", "stale siblings"],
)
def test_lawless_drafts_are_noticed(broken: Change, shape: str, options: dict[str, Any]) -> None:
    errors = [
        error(
            heads_of(model=target_model(V), seed=seed).double(),
            SHAPES[shape],
            temperature=1.0,
            change=broken,
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
    trace = run(
        target, medusa_drafter(heads, shape=shape), prompt, max_new_tokens=24, draft_length=3
    )
    assert trace.tokens == greedy_reference(model, prompt, 24)


@pytest.mark.parametrize("length", [1, 2, 17, 200])
@pytest.mark.parametrize("make", [Chain, lambda: DynamicTree(top_k=3, nodes=8)])
def test_greedy_text_after_short_and_long_prompts(make: Callable[[], Shape], length: int) -> None:
    """And between rounds the heads remember as much as the target's cache holds."""
    model, prompt = target_model(), prompt_of(length)
    for kind in ("medusa", "meta"):
        heads = heads_of(model=model, kind=kind)
        drafter = medusa_drafter(heads, shape=make())
        target = Target(model, needs=drafter.needs)
        trace = run(target, drafter, prompt, max_new_tokens=16, draft_length=3)
        assert trace.tokens == greedy_reference(model, prompt, 16)
        for kv in drafter.reader._kv:
            assert kv.length == drafter.reader.length <= target.length
