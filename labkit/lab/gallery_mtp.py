"""Silent faults of prediction modules, beside those of EAGLE heads (`labkit.lab.gallery`).

Owns: the records, and how each fault is made. Does not know: what a fault costs.
Invariants: as of `labkit.lab.gallery` and `labkit.lab.broken_heads`: public sources, weights shared
and not copied, the target untouched. Every fault but the last two is one switch of the family's
`Adapter`, set wrongly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from labkit.drafters.base import Commit
from labkit.drafters.mtp import mtp_drafter
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.pairs import Pairs
from labkit.heads.eagle import HeadStep
from labkit.heads.layers import FINAL
from labkit.heads.mtp import LAST, HeadNorm, MtpHead
from labkit.lab.broken_heads import twin, with_pairs
from labkit.lab.gallery import Fault, by_key, every_head, told


def flipped(head: MtpHead, switch: str) -> MtpHead:
    """The head under the other setting of one of `labkit.heads.mtp.SWITCHES`."""
    now = getattr(head.config.adapter, switch)
    changed: dict[str, Any] = {switch: not now}
    if switch == "state":
        changed = {switch: LAST if now == FINAL else FINAL}
    adapter = replace(head.config.adapter, **changed)
    made: MtpHead = twin(head, adapter=adapter)
    for module in made.layers:
        module._adapter = adapter  # type: ignore[assignment]
        for part in module.children():
            if isinstance(part, HeadNorm):
                part._adds_one = adapter.norm_adds_one
    return made


class _Deaf(MtpHead):
    """Reads the last committed token again in place of each of its own guesses. It knows a true
    pair by this: the states of such pairs have just been fused."""

    _true = False
    _last: Tensor

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        self._true = True
        return super().fuse(states)

    def forward(self, ids: Tensor, state: Tensor, **rest: Any) -> HeadStep:
        if self._true:
            self._last, self._true = ids[:, -1:], False
            return super().forward(ids, state, **rest)
        return super().forward(self._last.expand_as(ids), state, **rest)


def deaf(head: MtpHead) -> MtpHead:
    """Never hears what it guessed itself."""
    made: MtpHead = twin(head)
    made.__class__ = _Deaf
    return made


class PromptUnread(Pairs):
    """Reads the pairs of the reply alone: its caches know nothing of the prompt."""

    def observe(self, commit: Commit) -> None:
        if self._first:
            last = {name: states[-1:] for name, states in commit.hidden.items()}
            commit = Commit(commit.tokens[-2:], last)
        super().observe(commit)


def _switch(name: str) -> Callable[[MtpHead, int], HeadDrafter]:
    return lambda head, layers: mtp_drafter(flipped(head, name))


def _unread(head: MtpHead, layers: int) -> HeadDrafter:
    return with_pairs(PromptUnread, head)


def _of_one_module(head: MtpHead, layers: int) -> bool:
    return head.config.modules == 1


MODULES: Mapping[str, Fault] = by_key(
    told("concat_reversed", every_head, _switch("hidden_first")),
    told("other_side_of_the_norm", every_head, _switch("state")),
    told("recycled_unnormed", every_head, _switch("recycles_normed")),
    told("norms_off_by_one", every_head, _switch("norm_adds_one")),
    told("guess_unheard", _of_one_module, lambda head, layers: mtp_drafter(deaf(head))),
    told("prompt_unread", every_head, _unread),
)
"""All faults of prediction modules by key."""
