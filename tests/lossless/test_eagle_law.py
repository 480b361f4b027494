"""EAGLE drafts never change the law: greedy texts and enumerated laws, with heads that are
random, and with heads that were ruined in ways that only lower acceptance."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from helpers import greedy_reference, prompt_of, run
from round_laws import EXACT, SHAPES, Change, V, as_it_is, law_error, pruned, softmaxed

from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.shapes import SMALL_TREE, Chain, DynamicTree, Shape
from labkit.heads.eagle import EagleHead, head_config, random_head
from labkit.target import Target
from labkit.toy import tiny


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


def error(
    head: EagleHead, shape: Shape, *, temperature: float, change: Change = as_it_is, **options: Any
) -> float:
    return law_error(
        lambda: eagle_drafter(head, shape=shape, **options),
        width=head.config.target_hidden_size,
        temperature=temperature,
        change=change,
    )


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


@pytest.mark.parametrize(
    ("broken", "options"),
    [(pruned, {}), (softmaxed, {"drawn": False})],
    ids=["pruned", "softmax q"],
)
def test_lawless_drafts_are_noticed(broken: Change, options: dict[str, Any]) -> None:
    errors = [
        error(
            head_of(3, model=target_model(V), seed=seed).double(),
            Chain(),
            temperature=1.0,
            change=broken,
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
    trace = run(target, eagle_drafter(head, shape=shape), prompt, max_new_tokens=24, draft_length=3)
    assert trace.tokens == greedy_reference(model, prompt, 24)


@pytest.mark.parametrize("length", [1, 2, 200])
@pytest.mark.parametrize("make", [Chain, lambda: DynamicTree(top_k=3, nodes=8)])
def test_greedy_text_after_short_and_long_prompts(make: Callable[[], Shape], length: int) -> None:
    model, prompt = target_model(), prompt_of(length)
    for version in (1, 3):
        head = head_of(version, model=model)
        target = Target(model, needs=head.config.needs)
        trace = run(
            target, eagle_drafter(head, shape=make()), prompt, max_new_tokens=16, draft_length=4
        )
        assert trace.tokens == greedy_reference(model, prompt, 16)
