"""A drafter that says what it is told: for tests, and for a person who types guesses."""

from collections.abc import Callable, Sequence

from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.sampling import Rng, Warp
from labkit.tree import DraftTree

Script = Callable[[tuple[int, ...], Rng, int], Draft]
"""(committed text, rng, depth) -> draft."""


class Scripted(Drafter):
    """Asks ``script`` for every draft.

    Args:
        script: gets the committed text, the rng and the depth allowed, returns the draft.
    """

    name = "scripted"

    def __init__(self, script: Script, *, context_limit: int | None = None) -> None:
        self._script = script
        self._limit = context_limit

    @property
    def context_limit(self) -> int | None:
        return self._limit

    def reset(self) -> None:
        pass

    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        return self._script(tuple(tokens), rng, depth)

    def observe(self, commit: Commit) -> None:
        pass

    def forget(self) -> None:
        pass


def guessing(guess: Callable[[list[int], int], Sequence[int]]) -> Scripted:
    """A drafter from a plain function: ``guess(text, k)`` gives at most k tokens that may follow.

    A function that nobody has written yet (it raises NotImplementedError) offers nothing.
    """

    def script(tokens: tuple[int, ...], rng: Rng, depth: int) -> Draft:
        try:
            guesses = tuple(guess(list(tokens), depth))
        except NotImplementedError:
            guesses = ()
        return Draft.deterministic(DraftTree.chain((tokens[-1], *guesses)))

    return Scripted(script)
