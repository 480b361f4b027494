"""Exercises that answer back: right, or which mistake it probably is.

Owns: the cases, the likely mistakes, and the judgement. Does not know: lessons; the words, which
are in ``strings/``.
Invariants: a check never raises because of what a learner wrote; an exercise that has not been
begun is neither right nor wrong; a mistake is named only when it explains every case.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.lab import broken
from labkit.lab.cards import Card
from labkit.lab.laws import first_token, largest_gap
from labkit.lab.store import home_directory
from labkit.lab.wording import say
from labkit.trace import Round, Trace


@dataclass(frozen=True, slots=True)
class Result:
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
        """
        path = (folder or home_directory()) / "progress.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"exercise": self.exercise, "passed": self.passed}) + "\n")
        return path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.card._repr_mimebundle_()

    def __repr__(self) -> str:
        return repr(self.card)


@dataclass(frozen=True, slots=True)
class _Exercise:
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
                answer = learner(*_copies(case))
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
            right = self.right(*_copies(case))
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
        return all(self._same(explanation(*_copies(case)), answer) for case, answer in pairs)

    def _same(self, ours: Any, answer: Any) -> bool:
        try:
            return self.same(ours, answer)
        except Exception:  # an answer of another kind is a wrong answer
            return False

    def _told(self, case: Sequence[Any]) -> str:
        return ", ".join(self.show(argument) for argument in case)


def _copies(case: Sequence[Any]) -> list[Any]:
    """A case that the learner's function may change without harm."""
    return [
        x.clone() if isinstance(x, Tensor) else list(x) if isinstance(x, list) else x for x in case
    ]


def _same_number(ours: Any, answer: Any) -> bool:
    return abs(float(ours) - float(answer)) < 1e-9


def _same_row(ours: Any, answer: Any) -> bool:
    row = torch.as_tensor(answer, dtype=torch.float64)
    return row.shape == ours.shape and bool(torch.allclose(ours, row, atol=1e-9, equal_nan=True))


def _short(value: Any) -> str:
    """A number, tensor or list in few digits."""
    if isinstance(value, Tensor):
        return "[" + ", ".join(f"{v:.2f}" for v in value.flatten().tolist()) + "]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


# --- lesson 00: read one round ------------------------------------------------------------------


def read_round(
    trace: Trace,
    *,
    number: int,
    drafted: int | None,
    accepted: int | None,
    own: str | None,
    lang: str = "en",
) -> Result:
    """What a learner read off round ``number``: how many tokens were drafted and accepted, and
    the text of the target's own token."""
    if drafted is None or accepted is None or own is None:
        return Result("read_round", None, say("checks.not_answered", lang=lang))
    rounds = {r.index: r for r in trace.rounds}
    if number not in rounds:
        told = say("checks.read_round.no_round", lang=lang, round=number, rounds=len(rounds))
        return Result("read_round", False, told)
    round_ = rounds[number]
    mistake = _misread(trace, round_, drafted, accepted, own)
    told = say(
        f"checks.read_round.{mistake or 'passed'}",
        lang=lang,
        round=number,
        drafted=drafted,
        accepted=accepted,
        own=repr(_own(trace, round_)),
    )
    return Result("read_round", mistake is None, told)


def _own(trace: Trace, round_: Round) -> str:
    return trace.token_text(round_.committed.tokens[-1]) if round_.committed else ""


def _misread(trace: Trace, round_: Round, drafted: int, accepted: int, own: str) -> str | None:
    nodes = round_.drafted.tokens
    if drafted != len(nodes) - 1:
        return "drafted"
    if accepted != round_.accepted:
        return "own_counted" if accepted == round_.accepted + 1 else "accepted"
    if own.strip() == _own(trace, round_).strip():
        return None
    refused = nodes[round_.accepted + 1 : round_.accepted + 2]
    return (
        "own_rejected" if own.strip() in (trace.token_text(t).strip() for t in refused) else "own"
    )


# --- lesson 01: tokens per round ----------------------------------------------------------------

_EXPECTED = _Exercise(
    "expected_tokens",
    cases=[(0.8, 4), (0.5, 1), (0.3, 3), (0.0, 5), (1.0, 2), (0.6, 0)],
    right=lambda a, k: sum(a**i for i in range(k + 1)),
    mistakes={
        "no_own": lambda a, k: sum(a**i for i in range(1, k + 1)),
        "independent": lambda a, k: 1 + a * k,
        "independent_no_own": lambda a, k: a * k,
        "too_long": lambda a, k: sum(a**i for i in range(k + 2)),
        "last_only": lambda a, k: a**k,
    },
    same=_same_number,
    show=_short,
)


def expected_tokens(learner: Callable[[float, int], float], *, lang: str = "en") -> Result:
    """Tokens that a round adds on average: ``learner(alpha, K)``."""
    return _EXPECTED.judge(learner, lang=lang)


# --- lesson 02: the accept rule -----------------------------------------------------------------

_ACCEPT = _Exercise(
    "accept",
    cases=[
        (0.5, 0.2, 0.99),
        (0.2, 0.5, 0.39),
        (0.2, 0.5, 0.41),
        (0.2, 0.5, 0.25),
        (0.0, 0.4, 0.0),
        (0.3, 1.0, 0.31),
        (0.3, 1.0, 0.29),
        (0.1, 0.1, 0.95),
        (0.9, 0.3, 0.4),
    ],
    right=lambda p, q, u: u < min(1.0, p / q),
    mistakes={
        "swapped": lambda p, q, u: p == 0 or u < min(1.0, q / p),
        "threshold": lambda p, q, u: p >= q,
        "ignores_q": lambda p, q, u: u < p,
        "reversed": lambda p, q, u: u > min(1.0, p / q),
        "chance": lambda p, q, u: min(1.0, p / q),
        "always": lambda p, q, u: True,
        "never": lambda p, q, u: False,
    },
    same=_same_number,
    show=_short,
)


def accept(learner: Callable[[float, float, float], bool], *, lang: str = "en") -> Result:
    """The accept test: ``learner(p, q, u)`` for one drafted token."""
    return _ACCEPT.judge(learner, lang=lang)


def _row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


_PAIRS = [
    (_row(0.6, 0.3, 0.1), _row(0.2, 0.5, 0.3)),
    (_row(0.1, 0.2, 0.7), _row(0.7, 0.2, 0.1)),
    (_row(0.25, 0.25, 0.25, 0.25), _row(0.4, 0.3, 0.2, 0.1)),
    (_row(0.0, 1.0), _row(0.5, 0.5)),
    (_row(0.05, 0.9, 0.05), _row(0.3, 0.3, 0.4)),
]


def _negative(p: Tensor, q: Tensor) -> Tensor:
    return p - q


_RESIDUAL = _Exercise(
    "residual",
    cases=_PAIRS,
    right=broken.RIGHT.after,
    mistakes={
        "swapped": lambda p, q: broken.RIGHT.after(q, p),
        "negative": _negative,
        "absolute": broken.FAULTS["no_clip"].after,
        "not_normalised": lambda p, q: (p - q).clamp(min=0),
        "from_p": broken.FAULTS["from_p"].after,
        "softmax": lambda p, q: torch.softmax(p - q, -1),
    },
    same=_same_row,
    show=_short,
)


def residual(learner: Callable[[Tensor, Tensor], Tensor], *, lang: str = "en") -> Result:
    """What a rejection leaves: ``learner(p, q)`` for two rows of probabilities."""
    result = _RESIDUAL.judge(learner, lang=lang, digits=_digits(learner))
    if result.passed is False and _has_negative(learner):
        return Result("residual", False, say("checks.residual.negative", lang=lang))
    return result


def _has_negative(learner: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Negative or infinite numbers, however they came about (p - q sums to 0)."""
    try:
        rows = [torch.as_tensor(learner(*_copies(pair))) for pair in _PAIRS]
        return any(bool((row < -1e-9).any() or not row.isfinite().all()) for row in rows)
    except Exception:  # the ordinary judgement has told the learner already
        return False


def _digits(learner: Callable[[Tensor, Tensor], Tensor]) -> int:
    """To how many decimal places the round's law equals p, with the learner's residual in it."""
    rule = broken.Rule("learner's", broken.RIGHT.accept, learner)
    try:
        laws = [(first_token(rule, p=p.tolist(), q=q.tolist()), p.tolist()) for p, q in _PAIRS]
        gap = max(largest_gap(ours, right) for ours, right in laws)
    except Exception:  # not a residual at all: the ordinary judgement says so
        return 0
    return next((n for n in (12, 9, 6, 3) if gap < 0.5 * 10**-n), 0)


# --- lesson 03: who is guilty -------------------------------------------------------------------

SUSPECTED = ("swapped", "threshold", "from_p", "no_clip")


def guilty(suspect: str | None, fault: str | None, *, lang: str = "en") -> Result:
    """Which of the four verifiers is wrong, and how."""
    if suspect is None or fault is None:
        return Result("guilty", None, say("checks.not_answered", lang=lang))
    letter = suspect.strip().upper()
    key = "passed" if fault == "from_p" else fault
    if letter != "C":
        key = "innocent" if letter in broken.suspects() else "unknown"
    elif fault not in SUSPECTED:
        key = "unknown_fault"
    told = say(f"checks.guilty.{key}", lang=lang, suspect=letter, faults=", ".join(SUSPECTED))
    return Result("guilty", key == "passed", told)


# --- lesson 04: slots after a round -------------------------------------------------------------

Slots = tuple[list[int], list[int]]


def _after_round(committed: list[int], nodes: list[int], path: list[int]) -> Slots:
    kept = [nodes[i] for i in path]
    return committed + kept, [slot for slot in nodes if slot not in kept]


def _with_own_token(committed: list[int], nodes: list[int], path: list[int]) -> Slots:
    beyond = next((s for i, s in enumerate(nodes) if i not in path), max(nodes) + 1)
    kept = [nodes[i] for i in path] + [beyond]
    return committed + kept, [slot for slot in nodes if slot not in kept]


def _sorted(committed: list[int], nodes: list[int], path: list[int]) -> Slots:
    kept, freed = _after_round(committed, nodes, path)
    return sorted(kept), freed


_AFTER_ROUND = _Exercise(
    "after_round",
    cases=[
        ([0, 1, 2], [3, 4, 5, 6], [0, 1, 2]),
        ([0, 1, 2], [3, 4, 5, 6], [0]),
        ([0, 1, 2], [3, 4, 5, 6], [0, 1, 2, 3]),
        ([0, 1, 5, 3], [2, 4, 6, 7, 8], [0, 2, 4]),
        ([4, 2], [0, 1, 3], [0, 2]),
    ],
    right=_after_round,
    mistakes={
        "no_root": lambda c, n, p: _after_round(c, n, p[1:]),
        "own_token": _with_own_token,
        "keeps_all": lambda c, n, p: (c + n, []),
        "first_ones": lambda c, n, p: _after_round(c, n, list(range(len(p)))),
        "sorted": _sorted,
    },
    same=lambda ours, answer: [list(x) for x in ours] == [list(x) for x in answer],
    show=_short,
)


def after_round(
    learner: Callable[[list[int], list[int], list[int]], Slots], *, lang: str = "en"
) -> Result:
    """Slots after a round: ``learner(committed, node_slots, path) -> (committed, freed)``."""
    kept, _ = _after_round(*_AFTER_ROUND.cases[3])
    result = _AFTER_ROUND.judge(learner, lang=lang, length=len(kept))
    if result.passed is not False:
        return result
    try:
        answers = [learner(*_copies(case)) for case in _AFTER_ROUND.cases]
        pairs = [(list(kept), list(freed)) for kept, freed in answers]
    except (TypeError, ValueError):
        return Result("after_round", False, say("checks.after_round.shape", lang=lang))
    except Exception:  # the ordinary judgement has told the learner already
        return result
    rights = [_after_round(*case) for case in _AFTER_ROUND.cases]
    if all(kept == right for (kept, _), (right, _) in zip(pairs, rights, strict=True)):
        return Result("after_round", False, say("checks.after_round.freed", lang=lang))
    return result
