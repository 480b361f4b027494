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
from labkit.drafters.mtp import Mtp
from labkit.drafters.pairs import Pairs
from labkit.heads.eagle import HeadStep
from labkit.heads.layers import FINAL
from labkit.heads.mtp import LAST, HeadNorm, MtpHead
from labkit.lab.broken_heads import twin
from labkit.lab.gallery import Fault

_FORMULAS = (
    "the draft logits, worked out once more from the family's formulas; or acceptance under both "
    "settings of the switch."
)


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


def _switch(name: str) -> Callable[[MtpHead, int], Mtp]:
    return lambda head, layers: Mtp(flipped(head, name))


def _any(head: MtpHead, layers: int) -> bool:
    return True


def _unread(head: MtpHead, layers: int) -> Mtp:
    drafter = Mtp(head)
    drafter.pairs = PromptUnread(head, clock=drafter.pairs.clock)
    return drafter


_EVERY = "every head with prediction modules"

_RECORDS = (
    Fault(
        key="concat_reversed",
        title="Token and state in the other order",
        wrong="The two halves of the projection change places: it reads [state, token] where it "
        "was trained on [token, state], or the other way round.",
        source="speculators PR #366: the order was reversed. MiMo-7B has the state first, nearly "
        "all other families the token.",
        found_by=_FORMULAS,
        heads=_EVERY,
        exists=_any,
        drafter=_switch("hidden_first"),
    ),
    Fault(
        key="other_side_of_the_norm",
        title="State from the other side of the norm",
        wrong="The first module gets the target's state before its final norm where it was trained "
        "on the one after it, or the other way round.",
        source="LightLLM PR #1402, Qwen3.5-0.8B: 1.80 tokens per round before the norm, 2.74 after "
        "it. DeepSeek-V3 issue #839 asks which is right, and was closed without an answer.",
        found_by="the state itself, which must be transformers' own, bit for bit; then acceptance "
        "under both.",
        heads=_EVERY,
        exists=_any,
        drafter=_switch("state"),
    ),
    Fault(
        key="recycled_unnormed",
        title="Its own state handed on from the other side of the norm",
        wrong="From its second guess on the head reads its own state before its norm where it was "
        "trained on the one after it, or the other way round.",
        source="ROCm/ATOM #1742, GLM-5.2: 3.04 tokens per forward before the norm, 3.46 after it; "
        "vLLM PR #45895 mended the same for DeepSeek.",
        found_by="acceptance by depth: the first guess is as good as ever, later ones are not.",
        heads=_EVERY,
        exists=_any,
        drafter=_switch("recycles_normed"),
    ),
    Fault(
        key="norms_off_by_one",
        title="Norms off by one",
        wrong="Norms scale by 1 + weight where the file means weight, or the other way round "
        "(Qwen3-Next and 3.5 mean 1 + weight).",
        source="omlx issue #1507: none of 148 guesses accepted; later conversions guessed the kind "
        "from the mean of the weights, and guessed wrongly (omlx #3742).",
        found_by=_FORMULAS,
        heads=_EVERY,
        exists=_any,
        drafter=_switch("norm_adds_one"),
    ),
    Fault(
        key="guess_unheard",
        title="Its own guess never read",
        wrong="From its second guess on the head reads the last committed token again, not the "
        "token that it guessed.",
        source="not a report: what a sequential head would be without its one advantage over "
        "parallel ones.",
        found_by="acceptance by depth, and drafts that repeat themselves.",
        heads="heads of one module",
        exists=lambda head, layers: head.config.modules == 1,
        drafter=lambda head, layers: Mtp(deaf(head)),
    ),
    Fault(
        key="prompt_unread",
        title="Prompt never read",
        wrong="The modules begin with the reply: their own cache holds nothing of the prompt.",
        source="a step that is easily left out; vLLM and transformers both run the modules over "
        "the whole prompt first.",
        found_by="the length of the head's cache, which must be that of the text.",
        heads=_EVERY,
        exists=_any,
        drafter=_unread,
    ),
)

MODULES: Mapping[str, Fault] = {fault.key: fault for fault in _RECORDS}
"""All faults of prediction modules by key."""
