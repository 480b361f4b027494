"""What becomes of a recurrent state in a round, whatever the verdict: measured on a real target.

Owns: the comparison with a plain run, one token at a time. Does not know: how states are kept
(`labkit.recurrent` does).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.errors import require
from labkit.lab.quiet import quiet_transformers
from labkit.target import Target
from labkit.toy import tiny
from labkit.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Recalled:
    """After ``accepted`` drafted tokens stayed.

    read_again: tokens that the recurrent layers had to read a second time. gap: largest difference
    of any number of their states from a plain run's; spoilt: the same had nobody restored them.
    """

    accepted: int
    read_again: int
    gap: float
    spoilt: float


def hybrid(*, layers: int = 3) -> Any:
    """A tiny random model of the Qwen3.5 kind: recurrent layers, and attention between them."""
    with quiet_transformers():  # which says at length that fast kernels are not installed
        model = tiny("qwen3_5", layers=layers)
        forgets(model, (1, 2, 3), ())
        forgets(model, (1, 2, 3), (4,))  # kernels for one token and for blocks complain apart
    return model


def forgets(model: Any, text: Sequence[int], draft: Sequence[int]) -> bool:
    """Is every state, bit for bit, what it was before a draft that nobody committed; and does the
    target say, bit for bit, the same afterwards?"""
    target = Target(model)
    target.prefill(text)
    before = [state.clone() for state in target.recurrent_states]
    said = [_said(target, (text[-1], *draft)) for _ in range(2)]
    kept = all(map(torch.equal, target.recurrent_states, before))
    return kept and torch.equal(*said)


def recall(model: Any, text: Sequence[int], draft: Sequence[int]) -> tuple[Recalled, ...]:
    """Every verdict on one draft, from none accepted to all.

    Args:
        model: with recurrent layers.

    Raises:
        BadInput: a model without any.
    """
    require(Target(model).recurrent_layers > 0, "model", "one with recurrent layers", "none")
    chain = (text[-1], *draft)
    ends = [_plain(model, text, chain[:n]) for n in range(1, len(chain) + 1)]
    rows = []
    for accepted, right in enumerate(ends):
        target = Target(model)
        target.prefill(text)
        with target.speculation():
            target.score(DraftTree.chain(chain))
            target.commit(tuple(range(accepted + 1)))
        gap = _apart(target.recurrent_states, right)
        rows.append(Recalled(accepted, target.replayed, gap, _apart(ends[-1], right)))
    return tuple(rows)


def _said(target: Target, chain: Sequence[int]) -> Tensor:
    with target.speculation():
        return target.score(DraftTree.chain(chain)).logits


def _plain(model: Any, text: Sequence[int], chain: Sequence[int]) -> tuple[Tensor, ...]:
    """States after the text and ``chain``, read one token at a time; the chain begins with the
    text's last token."""
    target = Target(model)
    target.prefill(text)
    for token in chain:
        with target.speculation():
            target.score(DraftTree.chain([token]))
            target.commit((0,))
    return target.recurrent_states


def _apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
