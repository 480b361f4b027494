"""All panels of one state as one picture: for a wide, a middle and a narrow page, and for a room.

Owns: which panel stands where, and which one matters at a phase. Does not know: what is in a panel.
Invariants: a panel keeps its place and height through the run, so stepping never moves the page;
text keeps its size on every width: narrow pages get more lines, not smaller letters.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from labkit.viz.panels import inspector, totals
from labkit.viz.panels import mask as masks
from labkit.viz.panels import tree as trees
from labkit.viz.panels.inspector import inspector_scene
from labkit.viz.panels.mask import MaskPanel
from labkit.viz.panels.ribbon import Ribbon
from labkit.viz.panels.slots import PITCH, slots_scene
from labkit.viz.panels.timeline import Timeline
from labkit.viz.panels.totals import totals_scene
from labkit.viz.panels.tree import TreePanel
from labkit.viz.sentences import slots_title
from labkit.viz.states import Phase, State, Story
from labkit.viz.svg import Piece, Scene, line, text

WIDTHS = (960, 640, 390)
ROOM = 800  # page width of what is shown to a room
_HEAD = 32
_GAP = 22
_FEW = 8  # nodes of a tree that a room can read
Draw = Callable[[State], Scene]


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture at its place on the board, with a heading when it has a name. key: what prose
    calls it, see `labkit.viz.notes.PARTS`."""

    name: str
    key: str
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
    """Panels of one story at one page width. kind: a page; one with all nodes of its trees
    ("open"); or a room ("projector")."""

    width: int
    height: int
    panels: tuple[Panel, ...]
    kind: str = "page"

    def scene(self, state: State) -> Scene:
        """All panels, one group of pieces each."""
        pieces = (Piece(panel.x, panel.y, panel.scene(state).body) for panel in self.panels)
        return Scene(self.width, self.height, tuple(pieces))


def board(
    story: Story,
    *,
    width: int = 960,
    ar_seconds: float | None = None,
    tree: bool | None = None,
    unfolded: bool = False,
) -> Board:
    """Lay the panels out for a page of ``width`` pixels.

    Args:
        ar_seconds: seconds per token of plain decoding, for the timeline.
        tree: show the draft as a tree, and its attention mask; None: when a draft branches.
        unfolded: draw every node of a large tree.
    """
    margin = 8 if width < 480 else 16
    panels: list[Panel] = []
    y = margin
    rows = _rows(story, width - 2 * margin, ar_seconds)
    inner = width - 2 * margin
    for row in _with_tree(story, rows, inner, unfolded) if shows_tree(story, tree) else rows:
        x, heights = margin, []
        for name, key, across, draw in row:
            height = draw(story.states[0]).height + (_HEAD if name else 0)
            panels.append(Panel(name, key, x, y, across, height, draw))
            heights.append(height)
            x += across + _GAP
        y += max(heights) + _GAP
    return Board(width, y - _GAP + margin, tuple(panels), "open" if unfolded else "page")


def projector_board(story: Story, *, ar_seconds: float | None, tree: bool | None) -> Board:
    """For a room: the text, and below it the one panel that the phase is about."""
    inner = ROOM - 2 * 16
    ribbon = Ribbon(story, width=inner, most=2, below=1)
    text_ = Panel("", "ribbon", 16, 16, inner, 0, ribbon.scene)
    tall = text_.draw(story.states[0]).height
    spots = _spots(story, inner, ar_seconds, shows_tree(story, tree))
    height = _HEAD + max(panel.draw(story.states[0]).height for panel in spots.values())
    panels = [replace(text_, height=tall)]
    for key in dict.fromkeys(panel.key for panel in spots.values()):
        phases = [phase for phase, panel in spots.items() if panel.key == key]
        shown = _Sometimes(spots[phases[0]], tuple(phases))
        panels.append(Panel("", key, 16, 16 + tall + _GAP, inner, height, shown.scene))
    return Board(ROOM, 16 + tall + _GAP + height + 16, tuple(panels), "projector")


@dataclass(frozen=True, slots=True)
class _Sometimes:
    """A panel that is there at some phases only."""

    panel: Panel
    phases: tuple[Phase, ...]

    def scene(self, state: State) -> Scene:
        shown = state.phase in self.phases
        return self.panel.scene(state) if shown else Scene(self.panel.width, 0)


def _spots(story: Story, inner: int, ar_seconds: float | None, tree: bool) -> dict[Phase, Panel]:
    """The panel that each phase is about."""
    columns = inner // PITCH * PITCH
    slots = Panel(slots_title(story), "slots", 0, 0, columns, 0, _slots(story, inner, 4))
    tests = Panel(
        "Accept tests", "inspector", 0, 0, inner, 0,
        lambda s: inspector_scene(story, s, rows=min(4, story.longest_tree), beside=True),
    )  # fmt: skip
    tests = tests if story.longest_tree else slots
    time = Panel(
        "Time", "timeline", 0, 0, inner, 0,
        Timeline(story, width=inner, ar_seconds=ar_seconds).scene,
    )  # fmt: skip
    grown = Panel(
        "Draft tree",
        "tree",
        0,
        0,
        inner,
        0,
        TreePanel(story, width=inner, most=_FEW, pruned=False).scene,
    )
    drafted = grown if tree else tests
    return {
        "start": slots, "draft": drafted, "score": slots, "verify": drafted if tree else tests,
        "commit": tests, "forget": slots, "finish": time,
    }  # fmt: skip


def shows_tree(story: Story, asked: bool | None) -> bool:
    """Is the draft shown as a tree? asked: None leaves it to the run."""
    return has_tree(story) if asked is None else asked and story.longest_tree > 0


def folds(story: Story, asked: bool | None) -> bool:
    """Is there a tree that is not drawn whole?"""
    return shows_tree(story, asked) and story.longest_tree + 1 > trees.FOLDED


def has_tree(story: Story) -> bool:
    """Does any draft of the run branch, or was any candidate pruned?"""
    branching = any(not tree.is_chain for tree in story.trees)
    return branching or any(len(r.drafted.considered) > 1 for r in story.rounds)


_Cell = tuple[str, str, int, Draw]


def _rows(story: Story, inner: int, ar_seconds: float | None) -> list[list[_Cell]]:
    """Rows of (name, key, width, how to draw): two panels side by side where there is room."""
    beside = inner - inspector.WIDTH - _GAP
    wide, middle = beside >= 5 * PITCH, beside >= totals.WIDTH
    rest = inner - totals.WIDTH - _GAP if wide else inner

    def text_cell() -> _Cell:
        return ("", "ribbon", inner, Ribbon(story, width=inner, most=3 if middle else 4).scene)

    def slots_cell(width: int, rows: int) -> _Cell:
        return (
            slots_title(story),
            "slots",
            width // PITCH * PITCH,
            _slots(story, width, rows),
        )

    name = "Accept tests" if story.longest_tree else "Next token"
    tests = (name, "inspector", inspector.WIDTH, lambda s: inspector_scene(story, s))
    time = (
        "Time",
        "timeline",
        rest,
        Timeline(story, width=rest, ar_seconds=ar_seconds).scene,
    )
    so_far = ("So far", "totals", totals.WIDTH, lambda s: totals_scene(story, s))
    has_tests = story.longest_tree > 0 or inspector.has_detail(story)
    if wide and has_tests:
        return [[text_cell()], [tests, slots_cell(beside, 4)], [time, so_far]]
    if wide:
        return [[text_cell()], [slots_cell(inner, 4)], [time, so_far]]
    if middle and has_tests:
        return [[text_cell()], [tests, so_far], [slots_cell(inner, 4)], [time]]
    single = [tests] if has_tests else []
    return [[text_cell()], *([cell] for cell in single), [slots_cell(inner, 5)], [time], [so_far]]


def _with_tree(
    story: Story, rows: list[list[_Cell]], inner: int, unfolded: bool
) -> list[list[_Cell]]:
    """The tree below the text, and its mask beside the accept tests or in a row of its own."""
    nodes = trees.OPEN if unfolded else trees.FOLDED
    rows_ = masks.OPEN if unfolded else masks.FOLDED
    tree = ("Draft tree", "tree", inner, TreePanel(story, width=inner, most=nodes).scene)
    across = inner - inspector.WIDTH - _GAP
    ribbon, tests, *rest = rows
    if across >= 5 * PITCH:  # beside the tests; the slots, which stood there, get a whole row
        slots = (slots_title(story), "slots", inner // PITCH * PITCH, _slots(story, inner, 4))
        grid = MaskPanel(story, width=across, most=rows_)
        mask = ("Attention mask", "mask", across, grid.scene)
        return [ribbon, [tree], [tests[0], mask], [slots], *rest]
    mask = ("Attention mask", "mask", inner, MaskPanel(story, width=inner, most=rows_).scene)
    return [ribbon, [tree], tests, [mask], *rest]


def _slots(story: Story, width: int, rows: int) -> Draw:
    return lambda s: slots_scene(story, s, width=width, max_rows=rows)
