"""The stepper where no widget can be shown: the same pictures, one at a time.

Owns: the stand-in and the words that name the missing package. Does not know: widgets.
Invariants: same arguments and attributes as `labkit.viz.stepper.Stepper`.
"""

from collections.abc import Sequence
from typing import Any

from labkit.trace import Trace
from labkit.viz.notes import Note
from labkit.viz.picture import Picture, stands_still
from labkit.viz.states import State
from labkit.viz.tale import Tale, check_grain


class StillStepper:
    """A static `Stepper`: set ``step`` and show it again.

    Args: as for `Stepper`; missing: the pip package without which there is no widget.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        compare: Trace | float | None = None,
        width: int | None = None,
        step: int = 0,
        grain: str = "phase",
        title: str | None = None,
        tree: bool | None = None,
        notes: Sequence[Note] = (),
        missing: str = "anywidget",
    ) -> None:
        self._tale = Tale.of(
            trace, compare=compare, width=width, title=title, tree=tree, notes=notes
        )
        self.trace = trace
        self.missing = missing
        self.grain = check_grain(grain)
        self.step = step

    @property
    def step(self) -> int:
        """Where we are."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = self._tale.check_step(step)

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return len(self._tale.story.states)

    @property
    def state(self) -> State:
        """Where we are: phase, place of the round, accept tests seen."""
        return self._tale.story.states[self.step]

    @property
    def picture(self) -> Picture:
        """The static picture of this very step."""
        return self._tale.picture(self.step)

    def goto(self, *, round: int) -> None:
        """Go to the end of ``round`` (1 is the first)."""
        self.step = self._tale.step_of_round(round)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        note = stands_still(self.missing)
        return self._tale.still(self.step, note=note)._repr_mimebundle_()

    def __repr__(self) -> str:
        return self._tale.still(self.step).sentence
