"""The stepper: one widget that plays a recorded run, phase by phase.

Owns: the widget and what is synchronised with the browser. Does not know: drawing, models.
Invariants: the pictures are sent once, as a film that Python drew (see `labkit.viz.film` for why),
so a step needs no kernel; ``step`` and ``grain`` are all that travels afterwards; every cell that
shows a stepper also stores a static picture and a sentence.

Needs anywidget; without it `labkit.viz.Stepper` is `labkit.viz.stillness.StillStepper`.
"""

from collections.abc import Sequence
from typing import Any

import anywidget
import traitlets

from labkit.trace import Trace
from labkit.viz.assets import script, sheet
from labkit.viz.notes import Note
from labkit.viz.picture import Picture
from labkit.viz.states import State
from labkit.viz.tale import Tale, check_grain
from labkit.viz.turnover import take_over

_NOTE = "Run this cell to make it interactive."


class Stepper(anywidget.AnyWidget):
    """Step through ``trace``: ribbon, accept tests, KV slots, time and totals side by side; where
    drafts branch, the draft tree and its attention mask too.

    Args:
        trace: a recorded run, of any detail.
        compare: plain decoding, for the timeline: a trace of it, or its seconds per token.
        width: draw for this page width in CSS pixels; None suits the page it is on.
        step: where to begin; negative numbers count from the end.
        grain: what ◀ and ▶ move by: every "phase" or every "round".
        title: heading of the box.
        tree: show the draft as a tree, and its attention mask; None: when a draft branches.
        notes: short passages below the pictures, each bound to a part of them, which it outlines
            when the reader points at it, walks to it, or comes to its step; see `labkit.viz.Note`.

    ``step`` and ``grain`` can be read and set at any time and follow the reader.

    Raises:
        BadInput: an impossible step or grain, or a trace without a beginning.
    """

    _esm = script("stepper")
    _css = sheet("stepper")
    # ipywidgets 7 (Colab) would show the widget here and store no picture; without this method
    # every IPython asks `_repr_mimebundle_`.
    _ipython_display_ = None
    film = traitlets.Unicode().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    grain = traitlets.Unicode("phase").tag(sync=True)

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
    ) -> None:
        tale = Tale.of(trace, compare=compare, width=width, title=title, tree=tree, notes=notes)
        self._tale = tale
        self.trace = trace
        super().__init__(film=tale.film(), step=tale.check_step(step), grain=check_grain(grain))
        take_over(self)

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

    @traitlets.validate("step")
    def _valid_step(self, proposal: dict[str, Any]) -> int:
        return self._tale.check_step(proposal["value"])

    @traitlets.validate("grain")
    def _valid_grain(self, proposal: dict[str, Any]) -> str:
        return check_grain(proposal["value"])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle
        still = self._tale.still(self.step, note=_NOTE)
        return {**data, "text/html": still.html, "text/plain": repr(self)}, metadata

    def __repr__(self) -> str:
        return self._tale.still(self.step).sentence
