"""How an exercise is judged: against its solution, and against the likely mistakes.

Owns: the outcome, and the comparison. Does not know: exercises; the words, which are in
``strings/``.
Invariants: judging never raises because of what a learner wrote; a mistake is named only when it
explains every case.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.lab.cards import Card, Carded
from labkit.lab.store import home_directory
from labkit.lab.wording import say
from labkit.whole_file import writing


@dataclass(frozen=True, slots=True, repr=False)
class Result(Carded):
    """The outcome of one check. passed: None when there is nothing to judge yet."""

    exercise: str
    passed: bool | None
    message: str

    @property
    def card(self) -> Card:
        return Card({True: "✓", False: "✗", None: "…"}[self.passed], self.message)

    def keep(self, folder: Path | None = None) -> Path:
        """Append this result to ``progress.jsonl``; nothing is ever kept unless you call this.

        Args:
            folder: where; by default the lab's folder in the user's cache directory.

        Raises:
            BadInput: the file cannot be written.
        """
        path = (folder or home_directory()) / "progress.jsonl"
        line = json.dumps({"exercise": self.exercise, "passed": self.passed}) + "\n"
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(line)
        return path


@dataclass(frozen=True, slots=True)
class Exercise:
    """A function to write. right: the solution; mistakes: by name, tried in order; same: do two
    answers agree; show: an argument or answer in words."""

    name: str
    cases: Sequence[tuple[Any, ...]]
    right: Callable[..., Any]
    mistakes: Mapping[str, Callable[..., Any]]
    same: Callable[[Any, Any], bool]
    show: Callable[[Any], str]

    def judge(self, learner: Callable[..., Any], *, lang: str, **values: object) -> Result:
        """Run the learner's function on every case and say what is right or likely wrong.

        Args:
            values: fill gaps of the message for "passed".
        """
        answers = []
        for case in self.cases:
            try:
                answer = learner(*copies(case))
            except NotImplementedError:
                return Result(self.name, None, say("checks.not_written", lang=lang, name=self.name))
            except Exception as error:  # whatever a learner wrote, they get an answer
                told = f"{type(error).__name__}: {error}".rstrip(": ")
                return self._no("raised", lang=lang, arguments=self._told(case), error=told)
            if answer is None:
                return self._no("returns_nothing", lang=lang)
            answers.append(answer)
        if self._explains(self.right, answers):
            return Result(self.name, True, say(f"checks.{self.name}.passed", lang=lang, **values))
        return self._diagnose(answers, lang)

    def _diagnose(self, answers: list[Any], lang: str) -> Result:
        for mistake, wrong in self.mistakes.items():
            if self._explains(wrong, answers):
                return Result(self.name, False, say(f"checks.{self.name}.{mistake}", lang=lang))
        for case, answer in zip(self.cases, answers, strict=True):
            right = self.right(*copies(case))
            if not self._same(right, answer):
                return self._no(
                    "generic",
                    lang=lang,
                    arguments=self._told(case),
                    right=self.show(right),
                    got=self.show(answer),
                )
        raise AssertionError("an answer that is wrong nowhere is right")

    def _no(self, key: str, *, lang: str, **values: object) -> Result:
        return Result(self.name, False, say(f"checks.{key}", lang=lang, name=self.name, **values))

    def _explains(self, explanation: Callable[..., Any], answers: list[Any]) -> bool:
        """Would ``explanation`` have given just these answers?"""
        pairs = zip(self.cases, answers, strict=True)
        return all(self._same(explanation(*copies(case)), answer) for case, answer in pairs)

    def _same(self, ours: Any, answer: Any) -> bool:
        try:
            return self.same(ours, answer)
        except Exception:  # an answer of another kind is a wrong answer
            return False

    def _told(self, case: Sequence[Any]) -> str:
        return ", ".join(self.show(argument) for argument in case)


def copies(case: Sequence[Any]) -> list[Any]:
    """A case that the learner's function may change without harm."""
    return [
        x.clone() if isinstance(x, Tensor) else list(x) if isinstance(x, list) else x for x in case
    ]


def same_number(ours: Any, answer: Any) -> bool:
    """Are both the same number, to rounding?"""
    return abs(float(ours) - float(answer)) < 1e-9


def same_row(ours: Any, answer: Any) -> bool:
    """Is the answer, whatever holds it, the same row of numbers, to rounding?"""
    row = torch.as_tensor(answer, dtype=torch.float64)
    return row.shape == ours.shape and bool(torch.allclose(ours, row, atol=1e-9, equal_nan=True))


def short(value: Any) -> str:
    """A number, tensor or list in few digits."""
    if isinstance(value, Tensor):
        return "[" + ", ".join(f"{v:.2f}" for v in value.flatten().tolist()) + "]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
