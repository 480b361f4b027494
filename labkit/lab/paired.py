"""Two drafters on the same known texts: what a small loss comes to.

Owns: which texts of a model are known, and what is told of both drafters.
Does not know: what is wrong with one of them.
Invariants: both rehearse the very same texts, at temperature 0, so that rounds compare one to one.

A run of twenty rounds cannot tell a loss of a tenth of a token per round from chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.drafters.base import Drafter
from labkit.gallery import gallery
from labkit.lab.rehearse import rehearse
from labkit.lab.session import Lab
from labkit.metrics import Acceptance, acceptance
from labkit.trace import Trace
from labkit.viz.sentences import counted


@dataclass(frozen=True, slots=True)
class Paired:
    """Counts of both drafters. tokens: of the texts, the prompts not counted."""

    tokens: int
    healthy: Acceptance
    broken: Acceptance

    @property
    def title(self) -> str:
        """What was counted."""
        return f"{counted(self.tokens, 'token')} of recorded text"

    @property
    def cells(self) -> tuple[str, str]:
        """Healthy, broken: rounds and tokens per round."""
        return _cell(self.healthy), _cell(self.broken)

    @property
    def told(self) -> str:
        """Both in one sentence."""
        healthy, broken = self.cells
        return f"On {self.title}: {broken} (healthy {healthy})."


def _cell(n: Acceptance) -> str:
    return f"{n.rounds} rounds, {n.mean_accepted_length or 0.0:.2f} tokens per round"


def known_texts(lab: Lab) -> tuple[Trace, ...]:
    """The greedy texts of this very model in the gallery; none of a model that it does not have."""
    runs = (gallery.open(name) for name in gallery.names)
    return tuple(
        run
        for run in runs
        if run.started.method == "ar"
        and run.header["model"] == lab.loaded.name
        and not run.header["settings"]["temperature"]
    )


def paired(
    lab: Lab, texts: Sequence[Trace], *, drafters: tuple[Drafter, Drafter], draft_length: int
) -> Paired | None:
    """Rehearse all texts with the healthy drafter, then with the broken one; None without texts."""
    if not texts:
        return None
    healthy, broken = (
        acceptance(*[rehearse(lab, t, drafter=who, draft_length=draft_length) for t in texts])
        for who in drafters
    )
    return Paired(sum(len(text.tokens) for text in texts), healthy, broken)
