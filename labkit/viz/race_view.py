"""The race as a widget: lanes that grow while they run, and a replay at true speed.

Owns: the widget and what is synchronised with the browser. Does not know: models, clocks, who runs.
Invariants: Python sends what was measured and draws the final picture; the browser only shows it;
what the reader presses comes back as one message, "start" or "stop".

Needs anywidget.
"""

from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from labkit.viz.assets import script, sheet
from labkit.viz.picture import Picture
from labkit.viz.race import COLOURS, RaceRecord
from labkit.viz.turnover import take_over

_NOTE = "Run this cell to race on your own machine."


class RaceView(anywidget.AnyWidget):
    """Shows a `RaceRecord`, and every newer one that it is given.

    Args:
        record: what to show first.
        note: how the time is counted, in plain words.
        wish: called with "start" or "stop" when the reader asks for it.
    """

    _esm = script("race")
    _css = sheet("race")
    # ipywidgets 7 (Colab) would show the widget here and store no picture
    _ipython_display_ = None
    course = traitlets.Dict().tag(sync=True)
    lanes: Any = traitlets.List().tag(sync=True)
    phase = traitlets.Unicode("ready").tag(sync=True)
    sentence = traitlets.Unicode("").tag(sync=True)
    still = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self, record: RaceRecord, *, note: str = "", wish: Callable[[str], None] | None = None
    ) -> None:
        lanes = [
            {"name": lane.name, "colour": COLOURS[i % len(COLOURS)]}
            for i, lane in enumerate(record.lanes)
        ]
        course = {"goal": record.goal, "lanes": lanes, "note": note}
        self.record = record
        super().__init__(course=course)
        take_over(self)
        self.show(record)
        if wish is not None:
            self.on_msg(lambda _view, content, _buffers: _pass_on(content, wish))

    def show(self, record: RaceRecord) -> None:
        """Show how the race stands, or how it ended."""
        self.record = record
        over = record.phase in ("finished", "stopped")
        with self.hold_sync():
            self.lanes = [
                {"turns": [[round(t.seconds, 4), t.tokens, t.text] for t in lane.turns],
                 "done": lane.done}
                for lane in record.lanes
            ]  # fmt: skip
            self.sentence = record.sentence
            self.still = record.picture.svg if over and record.lanes[0].turns else ""
            self.phase = record.phase

    @property
    def is_open(self) -> bool:
        """Can it be displayed? Not once it has been closed, say by its cell running again."""
        return self.comm is not None

    @property
    def picture(self) -> Picture:
        """The static picture of how it stands."""
        return self.record.picture

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle
        page = self.record._repr_mimebundle_()["text/html"] + f"<p><em>{_NOTE}</em></p>"
        return {**data, "text/html": page, "text/plain": repr(self)}, metadata

    def __repr__(self) -> str:
        return self.record.sentence


def _pass_on(content: Any, wish: Callable[[str], None]) -> None:
    asked = content.get("kind") if isinstance(content, dict) else None
    if asked in ("start", "stop"):
        wish(asked)
