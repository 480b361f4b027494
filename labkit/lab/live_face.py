"""The workbench as buttons, and as a page without a kernel.

Owns: the controls and what is shown after each. Does not know: how anything is decoded.
Invariants: after every action, of a button here or of any cell, the picture is that of the present
round; changing a setting decodes nothing. A box that is closed is drawn no more.
"""

from typing import TYPE_CHECKING, Any

from labkit.config import AVAILABLE
from labkit.lab.branches import Comparison
from labkit.lab.cards import rich
from labkit.lab.controls import Panel, box, for_both_widths, heading, page, row, told
from labkit.lab.settings import SHAPES
from labkit.viz.svg import visible

if TYPE_CHECKING:
    from labkit.lab.live import Workbench

_NONE = -1  # in the menu of guesses: none is chosen, there is no draft
_MOST_DRAFTED, _HOTTEST = 12, 2.0  # that one may type, unless more is in force
_RUN_ME = "Run this cell to work with it: draft, edit, verify, force, rewind, branch."


def still(bench: "Workbench") -> str:
    """The present round as a page without a kernel. One sentence tells of it, the bench's own: to
    the pictures a text in the making is a recording that was cut short."""
    drawn = "".join(picture.drawing for picture in bench.pictures())
    return f"{drawn}<p>{rich(repr(bench))}</p><p><em>{_RUN_ME}</em></p>"


class Face:
    """The controls of one workbench; ``box`` is what is displayed."""

    def __init__(self, bench: "Workbench") -> None:
        self.bench, self._filling = bench, False
        self._compared: Comparison | None = None
        self.panel = Panel(self.redraw)
        self.picture, self.table, self.where = page(), page(), page()
        self.box = box(
            self._rounds(),
            self.picture,
            self.panel.message,
            self.table,
            self._edits(),
            self._words(),
            self._settings(),
            self._branches(),
            self.where,
        )
        self.redraw()
        self.panel.follow(bench.standing.watchers, self.box)

    # --- controls ---------------------------------------------------------------------------------

    def _rounds(self) -> Any:
        p, bench = self.panel, self.bench
        return row(
            p.button("Draft", bench.draft, kind="info", tip="Let the drafter propose, and stop."),
            p.button("Verify", bench.verify, kind="success", tip="Let the target judge the draft."),
            p.button("Whole round", bench.step, tip="Draft and verify without looking."),
            p.button("5 rounds", lambda: bench.run(5), tip="Five rounds in one go."),
            p.button("Drop draft", bench.drop, tip="Throw the waiting draft away."),
        )

    def _edits(self) -> Any:
        p, bench = self.panel, self.bench
        self.node = p.chooser("Guess", [("no draft waits", _NONE)])
        self.guess = p.text("your words", hint="type a guess", width="15em")
        return box(
            heading("Edit the draft before it is judged"),
            row(
                self.node,
                self.guess,
                p.button("Replace", lambda: bench.replace(self.node.value, self.guess.value)),
                p.button("Cut from here", lambda: bench.cut(self.node.value)),
                p.button("Add after it", lambda: bench.add(self.guess.value, after=self._last())),
            ),
        )

    def _words(self) -> Any:
        p, bench = self.panel, self.bench
        self.word = p.text("token", hint="type a word", width="15em")
        return box(
            heading("Force or forbid a token"),
            row(
                self.word,
                p.button("Force it", lambda: bench.force(self.word.value)),
                p.button("Forbid it", lambda: bench.forbid(self.word.value)),
                p.button("Allow all again", bench.allow),
            ),
        )

    def _settings(self) -> Any:
        p, settings = self.panel, self.bench.settings
        own = () if settings.method in AVAILABLE else (settings.method,)
        self.method = p.chooser("drafter", (*own, *AVAILABLE))
        self.length = p.whole("drafted tokens (K)", most=_MOST_DRAFTED, width="13em")
        self.heat = p.real("temperature", most=_HOTTEST, value=0.0)
        self.shape = p.chooser("shape", list(SHAPES), width="18em")
        self.method.observe(lambda _: self._change(method=self.method.value), "value")
        self.length.observe(lambda _: self._change(draft_length=self.length.value), "value")
        self.heat.observe(lambda _: self._change(temperature=self.heat.value), "value")
        self.shape.observe(lambda _: self._change(shape=SHAPES[self.shape.value]), "value")
        return box(
            heading("From the next round on"), row(self.method, self.shape, self.length, self.heat)
        )

    def _branches(self) -> Any:
        p, bench = self.panel, self.bench
        self.round = p.whole("round", most=0)
        self.branch = p.chooser("branch", [bench.here])
        self.other = p.chooser("with", [bench.here])
        return box(
            heading("Go back, branch, compare"),
            row(
                self.round,
                p.button("Rewind to it", lambda: bench.rewind(self.round.value)),
                p.button("Branch here", self._branch),
                self.branch,
                p.button("Switch to it", lambda: bench.switch(self.branch.value)),
                self.other,
                p.button("Compare", self._compare, tip="The branch we are on, with this one."),
            ),
        )

    # --- actions ----------------------------------------------------------------------------------

    def _change(self, **changes: Any) -> None:
        if not self._filling:  # a reader's hand, not `redraw`
            self.panel.act(lambda: self.bench.set(**changes))

    def _last(self) -> int | None:
        return None if self.node.value == _NONE else int(self.node.value)

    def _branch(self) -> str:
        return f"You are on {self.bench.branch()} now."

    def _compare(self) -> str:
        self._compared = self.bench.compare(self.bench.here, self.other.value)
        return repr(self._compared)

    # --- what is shown ----------------------------------------------------------------------------

    def redraw(self) -> None:
        """Pictures, tables and fields as they are now."""
        bench, self._filling = self.bench, True
        try:
            self._fill()
        finally:
            self._filling = False
        self.picture.value = for_both_widths(
            lambda width: [picture.drawing for picture in bench.pictures(width=width)]
        )
        self.table.value = f'<div role="status">{self._present()}</div>'
        self.where.value = f'<div role="status">{rich(repr(bench))}</div>'

    def _present(self) -> str:
        """The table of what was done last: a comparison, a draft, or verdicts."""
        compared, self._compared = self._compared, None
        if compared is not None:
            return compared.table.html
        if self.bench.pending:
            return self.bench.guesses.html
        return told(self.bench.said) if self.bench.steps else ""

    def _fill(self) -> None:
        bench, settings = self.bench, self.bench.settings
        self.node.options = self._nodes()
        self.node.value = self.node.options[-1][1]
        self.round.max = bench.branches[bench.here]
        self.round.value = bench.at
        for menu in (self.branch, self.other):
            chosen = menu.value
            menu.options = list(bench.branches)
            menu.value = chosen if menu is self.other and chosen in menu.options else bench.here
        self.method.value = settings.method
        drafted, heat = settings.config.draft_length, settings.config.temperature
        # a field cuts what is beyond its bound, and there are no bounds to what code may set
        self.length.max, self.heat.max = max(_MOST_DRAFTED, drafted), max(_HOTTEST, heat)
        self.length.value, self.heat.value = drafted, heat
        self.shape.value = next(
            (name for name, shape in SHAPES.items() if shape == settings.shape), next(iter(SHAPES))
        )

    def _nodes(self) -> list[tuple[str, int]]:
        if self.bench.pending is None:
            return [("no draft waits", _NONE)]
        text, tree = self.bench.lab.token_text, self.bench.pending.draft.tree
        return [(f"{i} {visible(text(token))}", i) for i, token in enumerate(tree.tokens)]
