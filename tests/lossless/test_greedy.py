"""At temperature 0 every drafter, tree and draft length gives the text of plain decoding.

The reference is one argmax at a time over the whole text with transformers' own forward, no cache.
Families of models: tests/parity/test_families.py.
"""

from typing import Any

import pytest
import torch
from helpers import branching, drafters, greedy_reference, prompt_of, run, tiny

from labkit.metrics import acceptance
from labkit.target import Target

COUNT = 40
KINDS = ("nothing", "ngram", "draft model", "stranger", "self-draft", "ruined", "tree")


@pytest.mark.parametrize("length", [1, 17, 200])
@pytest.mark.parametrize("draft_length", [1, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_text_is_that_of_plain_decoding(
    kind: str, draft_length: int, length: int, device: torch.device
) -> None:
    model, prompt = tiny(device=device), prompt_of(length)
    text = greedy_reference(model, prompt, COUNT)
    assert len(set(text)) > 8  # a text that sticks at one token would show little
    drafter = drafters(model, text, start=length)[kind]()
    trace = run(Target(model), drafter, prompt, max_new_tokens=COUNT, draft_length=draft_length)
    assert trace.tokens == text


def test_the_drafters_differ_where_they_should(device: torch.device) -> None:
    """What the test above goes through: nothing, little, some and full acceptance."""
    model, prompt = tiny(device=device), prompt_of(17)
    text = greedy_reference(model, prompt, COUNT)
    rates = {
        kind: acceptance(
            run(Target(model), make(), prompt, max_new_tokens=COUNT, draft_length=3)
        ).rate
        for kind, make in drafters(model, text, start=17).items()
    }
    assert rates["nothing"] is None
    assert rates["ruined"] == 0
    assert rates["self-draft"] == 1
    assert 0.2 < rates["draft model"] < 1
    assert 0 < rates["tree"] < 1


# Negative controls: each breaks the target in one place, and would pass unseen if the texts were
# too simple.


class SeesSiblings(Target):
    """A broken tree mask: branches see each other."""

    def _padded(self, tree: Any) -> Any:
        ids, positions, ancestors = super()._padded(tree)
        return ids, positions, ancestors.new_ones(ancestors.shape).tril()


class WrongPositions(Target):
    """Positions by node number instead of depth."""

    def _padded(self, tree: Any) -> Any:
        ids, positions, ancestors = super()._padded(tree)
        return ids, list(range(positions[0], positions[0] + len(positions))), ancestors


class KeepsRejected(Target):
    """A roll-back that is forgotten: commits whatever was scored."""

    def commit(self, path: Any) -> Any:
        return super().commit(range(len(self._slots)))


@pytest.mark.parametrize("broken", [SeesSiblings, WrongPositions, KeepsRejected])
def test_broken_targets_give_another_text(broken: type[Target], device: torch.device) -> None:
    model, prompt = tiny(device=device), prompt_of(17)
    text = greedy_reference(model, prompt, COUNT)
    drafter = branching(text, start=17)
    trace = run(broken(model), drafter, prompt, max_new_tokens=COUNT, draft_length=5)
    assert trace.tokens != text
