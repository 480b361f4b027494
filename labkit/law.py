"""The exact law of a random procedure, by trying every choice it could make.

Owns: the enumeration. Does not know: what is being enumerated.
Invariants: the probabilities returned sum to 1 up to rounding; nothing is sampled.

A procedure that takes all its randomness from an `Rng` is run again and again with a scripted
list of choices; the probabilities of the choices are multiplied, and the last choice that has an
untried alternative is changed, until none is left (depth-first search).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor

from labkit.errors import BadInput
from labkit.sampling import Flip, Rng

T = TypeVar("T", bound=Hashable)


class ReplayRng(Rng):
    """Follows a script of choices; beyond it, takes the first choice that has a probability."""

    def __init__(self, script: list[int]) -> None:
        self._script = script
        self.options: list[list[int]] = []  # per choice made: what could have been chosen
        self.chosen: list[int] = []
        self.probability = 1.0

    def flip(self, probability: float) -> Flip:
        chosen = self._choose([1 - probability, probability])
        # any draw on the right side of the threshold stands for all of them
        return Flip(bool(chosen), probability / 2 if chosen else (1 + probability) / 2)

    def pick(self, distribution: Tensor) -> Tensor:
        return torch.tensor(self._choose(distribution.tolist()), device=distribution.device)

    def pick_ahead(self, distributions: Callable[[], Tensor]) -> Tensor | None:
        return None

    def mark(self) -> Callable[[], None]:
        count, probability = len(self.chosen), self.probability

        def back() -> None:
            del self.options[count:], self.chosen[count:]
            self.probability = probability

        return back

    def _choose(self, probabilities: list[float]) -> int:
        options = [i for i, p in enumerate(probabilities) if p > 0]
        at = len(self.chosen)
        chosen = self._script[at] if at < len(self._script) else options[0]
        self.options.append(options)
        self.chosen.append(chosen)
        self.probability *= probabilities[chosen]
        return chosen

    def next_script(self) -> list[int] | None:
        """The script that differs in the last choice that can still be changed."""
        for at in range(len(self.chosen) - 1, -1, -1):
            later = [i for i in self.options[at] if i > self.chosen[at]]
            if later:
                return [*self.chosen[:at], later[0]]
        return None


def exact_law(procedure: Callable[[Rng], T], *, most: int = 200_000) -> dict[T, float]:
    """The probability of every outcome of ``procedure``.

    Args:
        procedure: takes an rng, returns a hashable outcome; it must be a function of its draws.
        most: give up after this many runs.

    Raises:
        BadInput: more than ``most`` runs would be needed.
    """
    law: dict[T, float] = defaultdict(float)
    script: list[int] | None = []
    for _ in range(most):
        rng = ReplayRng(script or [])
        outcome = procedure(rng)
        law[outcome] += rng.probability
        script = rng.next_script()
        if script is None:
            return dict(law)
    raise BadInput(
        "exact law",
        expected=f"at most {most} different courses of the procedure",
        got="more",
        next_step="use a smaller vocabulary or fewer tokens",
    )


def distance(left: dict[T, float], right: dict[T, float]) -> float:
    """The largest difference of probability between two laws."""
    return max(abs(left.get(x, 0.0) - right.get(x, 0.0)) for x in {*left, *right})


def total_variation(left: dict[T, float], right: dict[T, float]) -> float:
    """Half the sum of differences: the largest gap that any event can show."""
    return sum(abs(left.get(x, 0.0) - right.get(x, 0.0)) for x in {*left, *right}) / 2
