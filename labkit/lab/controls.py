"""Buttons and fields that belong together: what they do, and what is said when it goes wrong.

Owns: one action at a time, and errors as sentences. Does not know: what the actions are.
Invariants: an action that raises becomes a card, never a traceback in a log that nobody reads, and
its frames are let go; while one is at work every control is disabled; each control calls its
action once, however often its cell was run.

Plain ipywidgets, the set that versions 7 and 8 share.
"""

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ipywidgets as w

from labkit.errors import LabError
from labkit.lab.cards import Card, rich
from labkit.lab.standing import Watchers
from labkit.lab.tables import Table
from labkit.viz.assets import desk
from labkit.viz.turnover import take_over

Action = Callable[[], object]
"""Does something; text that it returns is said, anything else is for `redraw` to show."""


class Panel:
    """Controls that share one message line.

    Args:
        redraw: brings pictures and fields up to date, after every action.
    """

    def __init__(self, redraw: Callable[[], None]) -> None:
        self._redraw = redraw
        self._controls: list[Any] = []
        self._busy = False
        self.message = w.HTML(desk())

    def say(self, card: Card | None) -> None:
        """Show ``card``, or nothing."""
        self.message.value = desk() + (card.html if card else "")

    def act(self, action: Action) -> None:
        """Do it, say how it went, and draw again. Ignored while another action is at work."""
        if self._busy:
            return
        self._busy = True
        self._enable(False)
        self.say(Card("…", "At work."))
        try:
            self.say(self._done(action))
            self._draw_anyhow()
        except KeyboardInterrupt:  # a click has nobody to hand it on to
            pass
        finally:
            self._enable(True)
            self._busy = False

    def _done(self, action: Action) -> Card | None:
        """What is said of it; complaint or praise."""
        try:
            said = action()
        except (Exception, KeyboardInterrupt) as error:
            return Card("✗", complaint(error))
        return Card("✓", said) if isinstance(said, str) else None

    def follow(self, watchers: Watchers, shown: Any) -> None:
        """Draw again whenever somebody else has changed something, until the widget ``shown``,
        which holds these controls, is closed."""
        watchers.join(self._follow)
        shown.observe(lambda _: watchers.leave(self._follow), "comm")

    def _follow(self) -> None:
        if not self._busy:  # an action of ours draws by itself
            self.say(None)
            self._draw_anyhow()

    def _draw_anyhow(self) -> None:
        """The fields show what is so, also after a failure. A picture that cannot be drawn is
        complained of: what was done stands all the same."""
        try:
            self._redraw()
        except KeyboardInterrupt:
            self.say(Card("✗", "Interrupted while drawing. Run the cell again."))
            raise
        except LabError as error:
            self.say(Card("✗", str(error)))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self.say(Card("✗", f"This cannot be drawn ({what}). Run the cell again."))

    def _enable(self, on: bool) -> None:
        for control in self._controls:
            control.disabled = not on

    def button(self, words: str, action: Action, *, kind: str = "", tip: str = "") -> Any:
        """kind: "primary" for what one does most; tip: what it does, in a sentence."""
        made = w.Button(
            description=words, button_style=kind, tooltip=tip, layout=w.Layout(width="auto")
        )
        made.on_click(lambda _: self.act(action))
        self._controls.append(made)
        return made

    def text(self, label: str, *, hint: str, width: str = "16em") -> Any:
        """A field to type into."""
        return self._add(
            w.Text(description=label, placeholder=hint, continuous_update=False), width=width
        )

    def chooser(self, label: str, options: Sequence[Any], *, width: str = "15em") -> Any:
        """A menu."""
        return self._add(w.Dropdown(description=label, options=options), width=width)

    def whole(self, label: str, *, most: int, value: int = 0, width: str = "8em") -> Any:
        """A field for a whole number from 0, with arrows. Not a slider: those of ipywidgets have
        no name that a screen reader could say."""
        made = w.BoundedIntText(
            value=value, min=0, max=most, description=label, continuous_update=False
        )
        return self._add(made, width=width)

    def real(self, label: str, *, most: float, value: float, width: str = "11em") -> Any:
        """A field for a number from 0, with arrows for steps of 0.1."""
        made = w.BoundedFloatText(
            value=value, min=0.0, max=most, step=0.1, description=label, continuous_update=False
        )
        return self._add(made, width=width)

    def _add(self, control: Any, *, width: str) -> Any:
        control.style.description_width = "initial"
        # its own layout: one that is replaced stays open
        control.layout.width, control.layout.max_width = width, "100%"
        self._controls.append(control)
        return control


def row(*parts: Any) -> Any:
    """Side by side, and below each other where the page is narrow."""
    layout = w.Layout(flex_flow="row wrap", align_items="center", width="100%")
    return w.HBox(list(parts), layout=layout)


def heading(words: str) -> Any:
    """A name for the controls below it."""
    return w.HTML(f"<b>{html.escape(words)}</b>")


def box(*parts: Any) -> Any:
    """The whole desk."""
    made = w.VBox(list(parts), layout=w.Layout(width="100%"))
    made.add_class("labkit-desk")
    take_over(made)
    return made


def page() -> Any:
    """A place for drawings and tables."""
    return w.HTML(layout=w.Layout(width="100%"))


def told(table: Table) -> str:
    """A table, or its sentence alone where it has no rows."""
    return table.html if table.rows else f"<p>{rich(table.sentence)}</p>"


def for_both_widths(draw: Callable[[int], Iterable[str]]) -> str:
    """Drawings for a wide page and for a telephone, of which the page shows one.

    Args:
        draw: page width in pixels -> drawings.
    """
    kinds = (("labkit-wide", 960), ("labkit-narrow", 280))
    return "".join(f'<div class="{name}">{"".join(draw(width))}</div>' for name, width in kinds)


def complaint(error: BaseException, *, advice: str = "Go back a round and try again") -> str:
    """What went wrong, in a sentence or two.

    Args:
        advice: what to do about an error that nobody foresaw, beside running the cell again.
    """
    if isinstance(error, LabError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted. Nothing of what was under way was kept; try again."
    return (
        f"This did not work ({type(error).__name__}: {error}). Nothing of what was under way was "
        f"kept. {advice}, or run the cell again."
    )
