"""What a drafter is.

Owns: the interface between the decode loop and whoever guesses the next tokens.
Does not know: the target, the accept rule.
Invariants: after `observe`, a drafter's own cache is a prefix of the committed tokens, and
`propose` catches up from there by itself, so "everything was accepted" is no special case.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from labkit.draft import Draft
from labkit.errors import require
from labkit.sampling import Rng, Warp


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that just joined the text; the prompt is the first commit.

    tokens: the new ones, in order; the last is pending.
    hidden: {name: [m, D]}, the target's activations of the m tokens that entered its cache with
    this commit: the token that was pending before, and all new ones but the last.
    """

    tokens: tuple[int, ...]
    hidden: Mapping[str, Tensor] = field(default_factory=dict)


class Drafter(ABC):
    """Guesses what comes next. Implementations are final; vary by wrapping."""

    name: str
    needs: tuple[str, ...] = ()
    """Names of the target activations that `observe` must bring: "hk", the residual stream after k
    layers; "final", the last one after the final norm."""
    run: int = 0
    """Counts the runs that began with it, so that an abandoned one can notice; the loop's own."""

    @property
    @abstractmethod
    def context_limit(self) -> int | None:
        """Most tokens of text it can read, None for any number."""

    @abstractmethod
    def reset(self) -> None:
        """A new sequence begins: forget everything. Always safe."""

    def let_go(self) -> None:
        """Forget everything, and give back the memory of what is kept between sequences too."""
        self.reset()

    @abstractmethod
    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        """A draft whose root is ``tokens[-1]``, at most ``depth`` deep (0: the root alone).

        Args:
            tokens: the whole committed text, prompt included.
            rng: source of every draw.
            warp: the law that the target's tokens are drawn from; a drafter that samples does
                well to draw from its own distribution under the same one. Any q is lawful.
        """

    @abstractmethod
    def observe(self, commit: Commit) -> None:
        """The text grew. Rewinds its own cache to what was committed."""

    @abstractmethod
    def forget(self) -> None:
        """Drop whatever was guessed since the last `observe`. Always safe."""


def check_drafter(drafter: object, *, name: str = "drafter") -> Drafter:
    """``drafter``, if it is one.

    Raises:
        BadInput: it is something else; under ``name``.
    """
    expected = "a labkit.drafters.base.Drafter (a method is asked for by method=)"
    require(isinstance(drafter, Drafter), name, expected, drafter)
    assert isinstance(drafter, Drafter)
    return drafter
