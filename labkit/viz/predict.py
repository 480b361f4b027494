"""Predict first: what will the speed do when one slider moves?

Owns: the question, its three answers, and what is said to each. Does not know: widgets.
Invariants: which answer is right follows from the model at the setting and machine in hand, not
from this file.
"""

import html
from dataclasses import dataclass, replace
from typing import Any

from labkit.errors import BadInput
from labkit.whatif import CHANCE, Answer, Setting

CLOSE = 0.05  # speeds that differ by less than this share count as the same
CHOICES = {
    "rises": "It rises",
    "same": f"It stays the same, within {CLOSE:.0%}",
    "falls": "It falls",
}
_SLIDERS = {
    "draft_length": "the number of drafted tokens",
    "batch": "the batch",
    "cost_ratio": "the cost of a draft step",
    "alpha": "the chance of acceptance",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One slider goes from ``start`` to ``end``, the others stay.

    slider: draft_length, batch, cost_ratio or alpha.

    Raises:
        BadInput: another slider.
    """

    slider: str
    start: float
    end: float

    def __post_init__(self) -> None:
        if self.slider not in _SLIDERS:
            raise BadInput(
                "slider",
                expected="one of " + ", ".join(_SLIDERS),
                got=repr(self.slider),
                next_step="choose one of these",
            )


@dataclass(frozen=True, slots=True)
class Prediction:
    """A change, asked of the model at one setting."""

    change: Change
    answer: Answer

    @property
    def ends(self) -> tuple[Answer, Answer]:
        """The model before and after."""
        low, high = (
            Answer(_moved(self.answer.setting, self.change.slider, at), self.answer.machine)
            for at in (self.change.start, self.change.end)
        )
        return low, high

    @property
    def right(self) -> str:
        """The right answer: a key of `CHOICES`."""
        before, after = map(_speed, self.ends)
        if abs(after / before - 1) <= CLOSE:
            return "same"
        return "rises" if after > before else "falls"

    @property
    def question(self) -> str:
        """The sentence that asks."""
        name, change = _SLIDERS[self.change.slider], self.change
        return (
            f"Predict first. {_given(self.answer.setting, change.slider)}: what does the speed do "
            f"when {name} goes from {change.start:g} to {change.end:g}?"
        )

    def reply(self, chosen: str) -> str:
        """What is said to one of the answers."""
        before, after = self.ends
        went = {"rises": "rises", "same": "hardly moves", "falls": "falls"}[self.right]
        head = "✓ Right" if chosen == self.right else "✗ Not here"
        return (
            f"{head}: it {went}, from {_speed(before):.2f}× to {_speed(after):.2f}×. "
            f"At {self.change.start:g}, {_told(before)}; at {self.change.end:g}, {_told(after)}."
        )

    def to_json(self) -> dict[str, Any]:
        """For the browser."""
        return {
            "question": self.question,
            "slider": self.change.slider,
            "end": self.change.end,
            "first": "Answer, and the curve appears.",
            "choices": [[key, words] for key, words in CHOICES.items()],
            "replies": {key: self.reply(key) for key in CHOICES},
        }

    def page(self, shown: str) -> str:
        """The question for a page without scripts; the answer and ``shown`` are folded away."""
        items = "".join(f"<li>{html.escape(words)}</li>" for words in CHOICES.values())
        right = f"{CHOICES[self.right]}. {self.reply(self.right)}"
        return (
            f'<p style="line-height:1.5"><b>?</b> {html.escape(self.question)}</p><ul>{items}</ul>'
            f"<details><summary>Answer and curve</summary><p>{html.escape(right)}</p>{shown}"
            "</details>"
        )


def _moved(setting: Setting, slider: str, at: float) -> Setting:
    whole = slider in ("draft_length", "batch")
    change: dict[str, Any] = {slider: int(at) if whole else float(at)}
    return replace(setting, **change)


def _speed(answer: Answer) -> float:
    return answer.speed(answer.setting.draft_length)


def _told(answer: Answer) -> str:
    n = answer.setting.draft_length
    return (
        f"a round adds {answer.tokens(n):.2f} tokens for {answer.draft(n):.2f} + "
        f"{answer.check(n):.2f} steps"
    )


def _given(setting: Setting, slider: str) -> str:
    """The other sliders."""
    who = f"chance of acceptance {setting.alpha:.2f}"
    if setting.drafting != CHANCE:
        who = f"drafted by {setting.drafting}"
    parts = {
        "alpha": who,
        "draft_length": f"{setting.draft_length} drafted tokens",
        "cost_ratio": f"a draft step costs {setting.cost_ratio:.2f} target steps",
        "batch": f"batch {setting.batch}",
    }
    told = ", ".join(words for name, words in parts.items() if name != slider)
    return told[0].upper() + told[1:]
