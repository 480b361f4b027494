"""EAGLE drafts never change the law: greedy texts and enumerated laws, with heads that are
random, and with heads that were ruined in ways that only lower acceptance."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from helpers import greedy_reference, prompt_of, run
from torch import Tensor

from labkit.draft import Draft
from labkit.drafters.base import Commit
from labkit.drafters.eagle import Eagle
from labkit.drafters.shapes import SMALL_TREE, Chain, Costs, DynamicTree, Shape, StaticTree
from labkit.heads.eagle import EagleHead, head_config, random_head
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


@lru_cache
def target_model(vocab_size: int = 64) -> Any:
    return tiny("llama", layers=8, vocab_size=vocab_size)


def head_of(version: int, *, model: Any, seed: int = 3, **switches: Any) -> EagleHead:
    ids = switches.pop("ids", None)
    if ids is not None:
        switches["draft_vocab_size"] = len(ids)
    config = head_config(model, version, **switches)
    return random_head(config, model, seed=seed, vocab_ids=ids)


HEADS: dict[str, dict[str, Any]] = {
    "eagle1": {"version": 1},
    "eagle3": {"version": 3},
    "eagle31": {"version": 3, "fc_norm": True, "norm_output": True},
    "few words": {"version": 3, "ids": torch.tensor([0, 2])},
}


def law_by_hand(p: Tensor) -> dict[tuple[int, ...], float]:
    """A product of table rows."""
    return {
        (a, b, c): float(p[0, a] * p[a, b] * p[b, c])
        for a in range(V)
        for b in range(V)
        for c in range(V)
        if p[0, a] * p[a, b] * p[b, c] > 0
    }


def error(head: EagleHead, shape: Shape, *, temperature: float, **options: Any) -> float:
    """Largest difference between the law of one round, continued by the target, and P's."""
    table = P if temperature else torch.nn.functional.one_hot(P.argmax(-1), V).double()
    generator = torch.Generator().manual_seed(0)
    width = head.config.target_hidden_size
    hidden = {
        name: torch.randn(1, width, generator=generator, dtype=torch.float64)
        for name in head.config.needs
    }
    warp = Warp(temperature=temperature)

    def outcome(rng: Rng) -> tuple[int, ...]:
        drafter = Eagle(head, shape=shape, **options)
        drafter.observe(Commit((1, 0), hidden))
        draft: Draft = drafter.propose((1, 0), rng, depth=2, warp=warp)
        draft.check(vocab_size=V)
        p = torch.stack([table[t] for t in draft.tree.tokens])
        verdict = verify(draft, p, rng)
        out = [*(draft.tree.tokens[i] for i in verdict.path[1:]), verdict.next_token]
        while len(out) < LENGTH:
            out.append(int(rng.pick(table[out[-1]])))
        return tuple(out[:LENGTH])

    return distance(exact_law(outcome), law_by_hand(table))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", HEADS)
def test_the_law_of_a_round_is_the_target_s(name: str, shape: str, temperature: float) -> None:
    settings = dict(HEADS[name])
    head = head_of(settings.pop("version"), model=target_model(V), **settings).double()
    if temperature == 0.5:  # the same through the other options
        options: dict[str, Any] = {"confidence": 0.2, "drawn": shape == "static"}
    else:
        options = {}
    assert error(head, SHAPES[shape], temperature=temperature, **options) <= EXACT


class Pruned(Eagle):
    """Prunes drawn tokens by their probability: a selection that q does not know of."""

    def propose(self, tokens: Any, rng: Any, **options: Any) -> Draft:
        draft = super().propose(tokens, rng, **options)
        if len(draft.tree) > 1 and draft.confidence[1] < 0.4:
            return Draft.deterministic(draft.tree.up_to_depth(0))
        return draft


class Softmaxed(Eagle):
    """Says that its certain tokens were drawn from its softmax."""

    def propose(self, tokens: Any, rng: Any, **options: Any) -> Draft:
        draft = super().propose(tokens, rng, **options)
        qs = [None, *(torch.softmax(draft.logits[i], -1) for i in range(1, len(draft.tree)))]
        return Draft(draft.tree, tuple(qs))


@pytest.mark.parametrize(
    ("broken", "options"),
    [(Pruned, {}), (Softmaxed, {"drawn": False})],
    ids=["pruned", "softmax q"],
)
def test_lawless_drafts_are_noticed(
    broken: type[Eagle], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.Eagle", broken)
    errors = [
        error(
            head_of(3, model=target_model(V), seed=seed).double(),
            Chain(),
            temperature=1.0,
            **options,
        )
        for seed in range(4)
    ]
    assert max(errors) > 1e-3


def ruined(kind: str) -> EagleHead:
    """A head with one fault of the kind that leaves the text alone."""
    head = head_of(3, model=target_model())
    with torch.no_grad():
        if kind == "norms swapped":
            layer = head.layers[0]
            layer.input_layernorm, layer.hidden_norm = layer.hidden_norm, layer.input_layernorm
        elif kind == "ids shifted":
            head.vocab_ids.copy_((head.vocab_ids + 1) % 64)
        elif kind == "noise":
            for weight in head.layers.parameters():
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
        elif kind == "zero":
            for weight in head.layers.parameters():
                weight.zero_()
    return head


@pytest.mark.parametrize("shape", [Chain(), SMALL_TREE, DynamicTree(top_k=3, nodes=8)])
@pytest.mark.parametrize("kind", ["none", "norms swapped", "ids shifted", "noise", "zero"])
def test_greedy_text_survives_a_ruined_head(kind: str, shape: Shape) -> None:
    model, head, prompt = target_model(), ruined(kind), prompt_of(17)
    target = Target(model, needs=head.config.needs)
    trace = run(target, Eagle(head, shape=shape), prompt, max_new_tokens=24, draft_length=3)
    assert trace.tokens == greedy_reference(model, prompt, 24)


@pytest.mark.parametrize("length", [1, 2, 200])
@pytest.mark.parametrize("make", [Chain, lambda: DynamicTree(top_k=3, nodes=8)])
def test_greedy_text_after_short_and_long_prompts(make: Callable[[], Shape], length: int) -> None:
    model, prompt = target_model(), prompt_of(length)
    for version in (1, 3):
        head = head_of(version, model=model)
        target = Target(model, needs=head.config.needs)
        trace = run(target, Eagle(head, shape=make()), prompt, max_new_tokens=16, draft_length=4)
        assert trace.tokens == greedy_reference(model, prompt, 16)
