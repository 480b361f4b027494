"""All panels of one state as one picture, for a wide, a middle and a narrow page.

Owns: which panel stands where. Does not know: what is in a panel.
Invariants: a panel keeps its place and height through the run, so stepping never moves the page;
text keeps its size on every width: narrow pages get more lines, not smaller letters.
"""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.viz.panels import inspector, totals
from labkit.viz.panels.inspector import inspector_scene
from labkit.viz.panels.mask import MaskPanel
from labkit.viz.panels.ribbon import Ribbon
from labkit.viz.panels.slots import PITCH, slots_scene
from labkit.viz.panels.timeline import timeline_scene
from labkit.viz.panels.totals import totals_scene
from labkit.viz.panels.tree import TreePanel
from labkit.viz.sentences import slots_title
from labkit.viz.states import State, Story
from labkit.viz.svg import Piece, Scene, line, text

WIDTHS = (960, 640, 390)
_HEAD = 32
_GAP = 22
Draw = Callable[[State], Scene]


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture at its place on the board, with a heading when it has a name."""

    name: str
    x: int
    y: int
    width: int
    height: int
    draw: Draw

    def scene(self, state: State) -> Scene:
        """Heading and content, around the panel's own origin."""
        if not self.name:
            return self.draw(state)
        head = (
            Piece(0, 0, text(self.name, 0, 15, size=15, weight=700)),
            Piece(0, 21, line(0, 0, self.width, 0)),
        )
        drawn = tuple(Piece(p.x, p.y + _HEAD, p.markup) for p in self.draw(state).pieces)
        return Scene(self.width, self.height, head + drawn)


@dataclass(frozen=True, slots=True)
class Board:
    """Panels of one story at one page width."""

    width: int
    height: int
    panels: tuple[Panel, ...]

    def scene(self, state: State) -> Scene:
        """All panels, one group of pieces each."""
        pieces = (Piece(panel.x, panel.y, panel.scene(state).body) for panel in self.panels)
        return Scene(self.width, self.height, tuple(pieces))


def board(
    story: Story, *, width: int = 960, ar_seconds: float | None = None, tree: bool | None = None
) -> Board:
    """Lay the panels out for a page of ``width`` pixels.

    Args:
        ar_seconds: seconds per token of plain decoding, for the timeline.
        tree: show the draft as a tree, and its attention mask; None: when a draft branches.
    """
    margin = 8 if width < 480 else 16
    panels: list[Panel] = []
    y = margin
    rows = _rows(story, width - 2 * margin, ar_seconds)
    shown = has_tree(story) if tree is None else tree and story.longest_tree > 0
    for row in _with_tree(story, rows, width - 2 * margin) if shown else rows:
        x, heights = margin, []
        for name, across, draw in row:
            height = draw(story.states[0]).height + (_HEAD if name else 0)
            panels.append(Panel(name, x, y, across, height, draw))
            heights.append(height)
            x += across + _GAP
        y += max(heights) + _GAP
    return Board(width, y - _GAP + margin, tuple(panels))


def has_tree(story: Story) -> bool:
    """Does any draft of the run branch, or was any candidate pruned?"""
    branching = any(not tree.is_chain for tree in story.trees)
    return branching or any(len(r.drafted.considered) > 1 for r in story.rounds)


_Cell = tuple[str, int, Draw]


def _rows(story: Story, inner: int, ar_seconds: float | None) -> list[list[_Cell]]:
    """Rows of (name, width, how to draw): two panels side by side where there is room."""
    beside = inner - inspector.WIDTH - _GAP
    wide, middle = beside >= 5 * PITCH, beside >= totals.WIDTH
    rest = inner - totals.WIDTH - _GAP if wide else inner

    def text_cell() -> _Cell:
        return ("", inner, Ribbon(story, width=inner, most=3 if middle else 4).scene)

    def slots_cell(width: int, rows: int) -> _Cell:
        return (
            slots_title(story),
            width // PITCH * PITCH,
            _slots(story, width, rows),
        )

    name = "Accept tests" if story.longest_tree else "Next token"
    tests = (name, inspector.WIDTH, lambda s: inspector_scene(story, s))
    time = ("Time", rest, lambda s: timeline_scene(story, s, width=rest, ar_seconds=ar_seconds))
    so_far = ("So far", totals.WIDTH, lambda s: totals_scene(story, s))
    has_tests = story.longest_tree > 0 or inspector.has_detail(story)
    if wide and has_tests:
        return [[text_cell()], [tests, slots_cell(beside, 4)], [time, so_far]]
    if wide:
        return [[text_cell()], [slots_cell(inner, 4)], [time, so_far]]
    if middle and has_tests:
        return [[text_cell()], [tests, so_far], [slots_cell(inner, 4)], [time]]
    single = [tests] if has_tests else []
    return [[text_cell()], *([cell] for cell in single), [slots_cell(inner, 5)], [time], [so_far]]


def _with_tree(story: Story, rows: list[list[_Cell]], inner: int) -> list[list[_Cell]]:
    """The tree below the text, and its mask beside the accept tests or in a row of its own."""
    tree = ("Draft tree", inner, TreePanel(story, width=inner).scene)
    across = inner - inspector.WIDTH - _GAP
    ribbon, tests, *rest = rows
    if across >= 5 * PITCH:  # beside the tests; the slots, which stood there, get a whole row
        slots = (slots_title(story), inner // PITCH * PITCH, _slots(story, inner, 4))
        mask = ("Attention mask", across, MaskPanel(story, width=across).scene)
        return [ribbon, [tree], [tests[0], mask], [slots], *rest]
    mask = ("Attention mask", inner, MaskPanel(story, width=inner).scene)
    return [ribbon, [tree], tests, [mask], *rest]


def _slots(story: Story, width: int, rows: int) -> Draw:
    return lambda s: slots_scene(story, s, width=width, max_rows=rows)
