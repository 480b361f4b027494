"""Hooks are scoped: what was placed is removed, whatever happens inside."""

from typing import Any

import pytest
import torch
from helpers import greedy_reference, knows, prompt_of, run, tiny
from torch import nn

from labkit.capture import capture
from labkit.errors import BadInput
from labkit.target import Target


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x + 1, "extra"


def model() -> nn.Sequential:
    return nn.Sequential(Pair(), nn.Identity())


class Chain(nn.Module):
    """Passes a pair's tensor on, so that a replaced output is seen downstream."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.last = nn.Linear(2, 2, bias=False)
        self.last.weight.data = torch.eye(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.pair(x)[0])


def hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) for m in module.modules())


X = torch.zeros(1, 2)


def test_outputs_are_seen_by_label() -> None:
    chain = Chain()
    with capture(chain, {"a": "pair", "b": "last"}) as seen:
        chain(X)
        assert seen["a"].tolist() == seen["b"].tolist() == [[1, 1]]
    assert not seen["b"].requires_grad
    assert hooks(chain) == 0


def test_an_edit_replaces_what_follows_sees() -> None:
    chain = Chain()
    with capture(chain, {"a": "pair"}, edit={"a": lambda h: h * 5}) as seen:
        assert chain(X).tolist() == [[5, 5]]
    assert seen["a"].tolist() == [[5, 5]]
    assert chain(X).tolist() == [[1, 1]]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_hooks_go_when_a_callback_raises(error: type[BaseException]) -> None:
    chain = Chain()
    mine = chain.last.register_forward_hook(lambda *_: None)

    def bad(_: torch.Tensor) -> None:
        raise error

    def look() -> None:
        with capture(chain, {"a": "pair"}, edit={"a": bad}):
            chain(X)

    with pytest.raises(error):
        look()
    assert hooks(chain) == 1  # somebody else's own hook stays
    mine.remove()
    assert chain(X).tolist() == [[1, 1]]


def test_captures_nest() -> None:
    chain = Chain()
    with capture(chain, {"a": "pair"}) as outer:
        with capture(chain, {"a": "last"}) as inner:
            chain(X)
        assert hooks(chain) == 1
        chain(X + 1)
    assert outer["a"].tolist() == [[2, 2]]
    assert inner["a"].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("names", "edit", "named"),
    [({"a": "pairs"}, {}, "pairs"), ({"a": "pair"}, {"b": lambda h: h}, "edit 'b'")],
)
def test_unknown_names_are_refused_and_nothing_is_hooked(
    names: dict[str, str], edit: dict[str, Any], named: str
) -> None:
    chain = Chain()
    with pytest.raises(BadInput, match=named), capture(chain, names, edit=edit):
        pass
    assert hooks(chain) == 0


def test_a_callback_that_raises_in_the_second_round_leaves_the_target_whole() -> None:
    """Afterwards there is no hook more than before, and a run equals an unwatched one."""
    prompt = prompt_of(9)
    text = greedy_reference(tiny(), prompt, 12)
    where, before, calls = Target(tiny()), hooks(tiny()), []

    def bad(_: torch.Tensor) -> None:
        calls.append(1)
        if len(calls) == 3:  # the prompt, round 1, round 2
            raise RuntimeError("callback")

    def watched() -> None:
        with capture(where.model, {"h": "model.layers.0"}, edit={"h": bad}):
            run(where, knows(text, start=9), prompt, max_new_tokens=12)

    with pytest.raises(RuntimeError, match="callback"):
        watched()
    assert hooks(tiny()) == before
    assert where.slots_used == where.length == 8 + 5  # as after round 1
    assert run(where, knows(text, start=9), prompt, max_new_tokens=12).tokens == text
