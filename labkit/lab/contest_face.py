"""The contest as a field to type into, and as a page without a kernel.

Owns: the controls and what is shown after each turn. Does not know: how anything is judged.
Invariants: after every turn, played here or in any cell, the text, the verdict on each token and
the score are up to date. A box that is closed is drawn no more.
"""

import html
from typing import TYPE_CHECKING

from labkit.lab.cards import rich
from labkit.lab.controls import Panel, box, for_both_widths, heading, page, row, told
from labkit.viz.views import ribbon

if TYPE_CHECKING:
    from labkit.lab.contest import Contest

_RUN_ME = "Run this cell to play: type what comes next, and the target judges it."
_RULES = (
    "Type the words that you expect next. A space before the first word is put in for you; begin "
    "with + to go on with the last word (+ing), ⏎ is a line break. An empty field is a pass."
)


def still(game: "Contest") -> str:
    """Where the contest stands, as a page without a kernel."""
    drawn = ribbon(game.trace, lines=4).drawing  # its caption tells of a whole run
    asked = f"<p><strong>{html.escape(game.question)}</strong></p>"
    return f"{asked}{drawn}{game.score.html}<p>{rich(repr(game))}</p><p><em>{_RUN_ME}</em></p>"


class ContestFace:
    """The controls of one contest; ``box`` is what is displayed."""

    def __init__(self, game: "Contest") -> None:
        self.game = game
        self.panel = Panel(self.redraw)
        self.so_far, self.picture, self.said, self.score = page(), page(), page(), page()
        self.words = self.panel.text("next words", hint="type what comes next", width="26em")
        self.box = box(
            heading("Be the drafter"),
            self.so_far,
            row(
                self.words,
                self.panel.button("Guess", self._guess, kind="success"),
                self.panel.button("Pass", self._pass, tip="The target writes its next token."),
            ),
            self.panel.message,
            self.said,
            self.score,
            self.picture,
        )
        self.redraw()
        self.panel.follow(game.bench.standing.watchers, self.box)

    def _guess(self) -> str | None:
        self.game.guess(self.words.value)
        self.words.value = ""
        return None if not self.game.over else f"The text ends here ({self.game.over})."

    def _pass(self) -> str | None:
        self.words.value = ""
        return self._guess()

    def redraw(self) -> None:
        """Everything as it is now."""
        game = self.game
        shown = html.escape(game.text[-600:]) or "<em>(the answer begins here)</em>"
        self.so_far.value = (
            f'<p style="max-width:60em">{html.escape(_RULES)}</p>'
            f"<p><strong>{html.escape(game.question)}</strong></p>"
            '<div aria-live="polite" style="white-space:pre-wrap;border-left:4px solid #0072B2;'
            f'padding:.4em .9em;max-width:60em">{shown}<b>▏</b></div>'
        )
        said = told(game.said) if game.turns else ""
        self.said.value = f'<div role="status">{said}</div>'
        self.score.value = game.score.html
        self.picture.value = for_both_widths(
            lambda width: [ribbon(game.trace, width=width, lines=3).drawing]
        )
