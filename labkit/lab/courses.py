"""A text in the making, round by round, and the models' caches that belong to any point of it.

Owns: what is remembered of a round; bringing a target and its drafters to any earlier round, or
onto another branch. Does not know: branches, settings, who decides.
Invariants: after `Seat.bring` the target's cache holds exactly the slots, and in them the very
numbers, that it held when the last of the given rounds was committed; a drafter has heard the same
commits in the same order. Whatever happens in between, an interrupt included, the next `bring`
puts right.

    rounds     1   2   3   4          in the cache after round 4
    rewind     1   2                  the slots of rounds 3 and 4 are forgotten, nothing is computed
    branch     1   2   3'             a new round
    go back    1   2   3   4          3' is forgotten; the drafts of 3 and 4 are read again, into
                                      the same slots
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from labkit.config import DecodeConfig
from labkit.decode import Run
from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.events import Committed, Drafted, Event, Prefilled, Scored, Verified
from labkit.sampling import Rng, Warp
from labkit.target import Target
from labkit.tree import DraftTree

How = Literal["run", "seen", "edited", "forced"]
"""A round drafted and judged in one go; one whose draft was looked at first; one whose draft was
changed by hand; a token written by hand."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One round that became text.

    by: who drafted. config, forbidden: the settings it was judged under. reason: why the text ends
    with it, or None.
    """

    drafted: Drafted
    scored: Scored
    verified: Verified
    committed: Committed
    how: How
    by: str
    config: DecodeConfig
    forbidden: tuple[int, ...] = ()
    reason: str | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        """The engine's own, in order."""
        return (self.drafted, self.scored, self.verified, self.committed)

    @property
    def tokens(self) -> tuple[int, ...]:
        """What joined the text."""
        return self.committed.tokens

    @property
    def tree(self) -> DraftTree:
        """The draft that was judged."""
        return DraftTree(self.drafted.tokens, self.drafted.parents)

    @property
    def kept(self) -> tuple[int, ...]:
        """Nodes whose slots stayed."""
        return self.verified.path[: len(self.tokens)]


def tokens_of(steps: Sequence[Step]) -> tuple[int, ...]:
    """The new tokens of a course."""
    return tuple(token for step in steps for token in step.tokens)


class Listening(Drafter):
    """Somebody's drafter, with a record of every commit that it hears of."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name, self.needs = drafter.name, drafter.needs
        self.heard: list[Commit] = []

    @property
    def context_limit(self) -> int | None:
        return self._drafter.context_limit

    def reset(self) -> None:
        self._drafter.reset()

    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        return self._drafter.propose(tokens, rng, depth=depth, warp=warp)

    def observe(self, commit: Commit) -> None:
        self._drafter.observe(commit)
        self.heard.append(commit)

    def forget(self) -> None:
        self._drafter.forget()


class Seat:
    """One target of one's own, and whichever drafter is at work beside it.

    Args:
        target: nobody else's.
        prompt: token ids.
    """

    def __init__(self, target: Target, prompt: Sequence[int]) -> None:
        self.target, self.prompt = target, tuple(prompt)
        self._steps: list[Step] = []  # what the target's cache holds, behind the prompt
        self._commits: list[Commit] = []  # the prompt's, and one for each of them
        self._told: Drafter | None = None  # who has heard all of them, and nothing else

    def bring(self, steps: Sequence[Step], drafter: Drafter, run: Run) -> Prefilled | None:
        """Target and ``drafter`` as they were after ``steps``; what was told of the prompt, when it
        had to be read.

        Args:
            run: with nothing but the prompt in it; it reads the prompt.
        """
        same = self._same(steps) if self._is_sound() else -1
        going_back = same < len(self._steps) or self.target.length > self._length()
        if going_back and self.target.recurrent_layers:
            same = -1  # states cannot forget: read everything again
        if going_back or self._told is not drafter:
            self._told = None
        prefilled = self._begin(run) if same < 0 else None
        if same >= 0 and going_back:
            del self._steps[same:], self._commits[same + 1 :]
            self.target.truncate(self._length())
        for step in steps[max(same, 0) :]:
            self._told = None
            self._read(step)
        if self._told is None:
            drafter.reset()
            for commit in self._commits:
                drafter.observe(commit)
            self._told = drafter
        return prefilled

    def judge(self, run: Run, draft: Draft) -> tuple[Scored, Verified, Committed]:
        """The second half of a round of ``run``, which holds what was brought here. `bring` takes
        it back, unless it is told of the step with `keep`."""
        told, self._told = self._told, None
        assert told is not None
        listening = Listening(told)
        run.drafter = listening
        scored, verified, committed = run.judge(draft)
        self._judged = (told, listening.heard[-1])
        assert isinstance(scored, Scored)
        assert isinstance(verified, Verified)
        assert isinstance(committed, Committed)
        return scored, verified, committed

    def keep(self, step: Step) -> None:
        """What `judge` has just done is ``step``, and stays."""
        drafter, commit = self._judged
        self._commits.append(commit)
        self._steps.append(step)
        self._told = drafter

    def _same(self, steps: Sequence[Step]) -> int:
        """How many steps the cache and ``steps`` share."""
        pairs = enumerate(zip(self._steps, steps, strict=False))
        shorter = min(len(self._steps), len(steps))
        return next((i for i, (ours, theirs) in pairs if ours is not theirs), shorter)

    def _is_sound(self) -> bool:
        """Does the cache hold what is noted here? Not before the prompt was read, nor after an
        interrupt between the one and the other."""
        noted = len(self._commits) == len(self._steps) + 1
        return noted and self.target.length >= self._length()

    def _length(self) -> int:
        return len(self.prompt) - 1 + sum(len(step.tokens) for step in self._steps)

    def _begin(self, run: Run) -> Prefilled:
        self._steps, self._commits = [], []
        listening = Listening(run.drafter)
        run.drafter = listening
        prefilled = run.prefill()
        self._commits = listening.heard[-1:]
        return prefilled

    def _read(self, step: Step) -> None:
        """Read a round's draft again and keep what was kept: the same slots, the same states."""
        tree, kept = step.tree, step.kept
        with self.target.speculation():
            scores = self.target.score(tree)
            self.target.commit(kept)
        hidden = {name: h[list(kept)] for name, h in scores.hidden.items()}
        self._commits.append(Commit(step.tokens, hidden))
        self._steps.append(step)
