"""A training that is under way, in a notebook cell: bar, numbers and curve, redrawn in place.

Owns: what is shown and how often. Does not know: what is trained.
Invariants: one output, which at the end holds the last state, for pages without a kernel too.
"""

import html
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.viz.courses import course
from labkit.viz.sentences import rate

_PAUSE = 0.25  # seconds between redraws


class Watch:
    """Give ``progress`` and ``measured`` to `labkit.training.eagle.train_eagle`:

        watch = Watch()
        train_eagle(..., progress=watch.progress, watch=watch.measured)

    Args:
        show: displays an object and returns a handle with ``update``; None: IPython's display.
        clock: in seconds.
    """

    def __init__(
        self,
        *,
        show: Callable[[Any], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show or _display
        self._clock = clock
        self._handle: Any = None
        self._drawn_at = float("-inf")
        self._now = ("", 0, 0)
        self._points: tuple[Mapping[str, Any], ...] = ()

    def progress(self, what: str, done: int, total: int) -> None:
        """Called after every step; see `labkit.progress`."""
        self._now = (what, done, total)
        if self._clock() - self._drawn_at >= _PAUSE or done == total:
            self._redraw()

    def measured(self, points: Sequence[Mapping[str, Any]]) -> None:
        """Called after every measurement, with all so far; see `labkit.training.run.Watch`."""
        self._points = tuple(points)
        self._redraw()

    def _redraw(self) -> None:
        self._drawn_at = self._clock()
        if self._handle is None:
            self._handle = self._show(self)
        else:
            self._handle.update(self)

    @property
    def sentence(self) -> str:
        """Where it stands."""
        if not self._points:
            what, done, total = self._now
            return f"{what}: {done} of {total}"
        last = self._points[-1]
        depths = ", ".join(rate(share) for share in last["by_depth"])
        return (
            f"step {last['step']}, {last['tokens']:,} tokens seen, loss {last['loss']:.2f}; "
            f"on held-out rows {last['mean_accepted_length']:.2f} tokens per round, "
            f"accepted by depth {depths}"
        )

    @property
    def html(self) -> str:
        """Bar, sentence and curve."""
        what, done, total = self._now
        share = done / total if total else 0.0
        words = html.escape(what.split(":")[0] or "training")
        bar = (
            f'<div role="progressbar" aria-valuemin="0" aria-valuemax="100" '
            f'aria-valuenow="{100 * share:.0f}" aria-label="{words}" '
            'style="height:.7em;border:1px solid #6b6b76;border-radius:.35em;max-width:720px">'
            f'<div style="height:100%;width:{100 * share:.1f}%;background:#0072B2"></div></div>'
        )
        told = f"<p>{words}: {html.escape(self.sentence)}.</p>"
        return bar + told + self._curve()

    def _curve(self) -> str:
        if not self._points:
            return ""
        learnt = {p["tokens"]: p["mean_accepted_length"] for p in self._points}
        chart = course(
            {"held-out rows": {0: 1.0} | learnt}, quantity="tokens per round", along="tokens seen"
        )
        return chart.picture.drawing

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return self.sentence


def _display(shown: Any) -> Any:
    from IPython.display import display

    return display(shown, display_id=True)
