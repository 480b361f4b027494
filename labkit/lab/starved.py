"""Heads that get less than they were trained on, to see what they live on.

Owns: what is withheld. Does not know: drafting, what it costs.
Invariants: the head that was given is left as it is, and its weights are shared, not copied; only
the target's own states are touched, the head's guesses at them stay its own.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from labkit.heads.eagle import EagleHead
from labkit.lab.broken_heads import twin
from labkit.lab.session import Lab
from labkit.target import Target


def without_tokens(head: EagleHead) -> EagleHead:
    """Reads states alone: zeros stand in place of every token's embedding."""
    other = twin(head)
    other.embed_tokens = cast(nn.Embedding, _Silent(head.config.hidden_size))
    return other


def without_states(head: EagleHead, *, keep: Sequence[int] = ()) -> EagleHead:
    """Reads zeros in place of the target's states, but for those at places ``keep`` of
    ``head.config.needs``."""
    other = cast(_Fed, twin(head))
    other.__class__ = _Fed
    other.kept, other.foreign = frozenset(keep), ()
    return other


def with_states_of(lab: Lab, head: EagleHead, text: str) -> EagleHead:
    """Reads the target's states of another text, from its beginning on and over again, beside the
    right tokens."""
    target = Target(lab.model, needs=head.config.needs)
    states = target.prefill(lab.tokens(text))
    other = cast(_Fed, without_states(head))
    other.foreign = tuple(states[name].to(head.dtype) for name in head.config.needs)
    return other


class _Silent(nn.Module):
    """Every token is nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> zeros [..., H]."""
        return torch.zeros(*ids.shape, self.width, device=ids.device)


class _Fed(EagleHead):
    """Others' states, or none. kept: places that stay; foreign: rows to give instead, in turn."""

    kept: frozenset[int]
    foreign: tuple[Tensor, ...]
    served = 0

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        rows = torch.arange(self.served, self.served + len(states[0]), device=states[0].device)
        self.served += len(rows)
        given = [
            s if i in self.kept else self.foreign[i][rows % len(self.foreign[i])]
            if self.foreign else torch.zeros_like(s)
            for i, s in enumerate(states)
        ]  # fmt: skip
        return super().fuse(given)
