"""The attention mask of a round: which node may look at what while the target scores the draft.

Owns: the grid. Does not know: attention, tensors.
Invariants: rows and columns are the draft's nodes in its own order, as in `DraftTree.mask` of
`labkit.tree`; the committed tokens, which every node sees, are one column; a cell that attends is
filled and has a mark, one that does not is empty. Rows carry their node's number (data-row).

                committed  0  1  2  3
    0 the         [41]     #  .  .  .
    1   cat       [41]     o  #  .  .         o an ancestor, # the node itself
    2   dog       [41]     o  .  #  .
    3     sat     [41]     o  o  .  #
"""

from collections.abc import Iterator
from functools import lru_cache

from labkit.viz.layout import visible_nodes
from labkit.viz.states import State, Story, node_statuses
from labkit.viz.svg import Piece, Scene, box, number, shortened, text, tip, visible
from labkit.viz.theme import DRAFT, LOOKS, TONES, paint

_BLOCK = 56
_TOP = 48
_LEAST, _MOST_CELL = 13, 24
FOLDED, OPEN = 16, 64


class MaskPanel:
    """The masks of one story on a page of ``width``; beyond ``most`` nodes rows are folded."""

    def __init__(self, story: Story, *, width: int, most: int = 32) -> None:
        self.story, self.width = story, width
        self.label = 132 if width > 480 else 94
        room = width - self.label - _BLOCK - 8
        self.most = max(1, min(story.longest_tree + 1, most, room // _LEAST))
        self.cell = max(_LEAST, min(_MOST_CELL, room // self.most))
        self.legend, self.foot = _legend(width)
        self.grids = tuple(tuple(self._grid(at)) for at in range(len(story.rounds)))

    def scene(self, state: State) -> Scene:
        """The mask of the round at ``state``; the height is the same at every state."""
        if state.at < 0 or state.phase == "finish":
            pieces = [Piece(0, 0, text("No round is under way.", 0, 18, classes="lk-muted"))]
        elif state.phase == "draft":
            words = "The target has not read this draft yet."
            pieces = [Piece(0, 0, text(words, 0, 18, classes="lk-muted"))]
        else:
            pieces = [*self.grids[state.at], *self._glyphs(state)]
        foot = _TOP + self.most * self.cell + 8
        pieces += [Piece(p.x, p.y + foot, p.markup) for p in self.legend]
        return Scene(self.width, foot + self.foot, tuple(pieces))

    def _grid(self, at: int) -> Iterator[Piece]:
        """What stays the same while the round is judged."""
        round_, tree = self.story.rounds[at], self.story.trees[at]
        if round_.scored is None:
            return
        nodes, cell = visible_nodes(round_, self.most), self.cell
        context, seats = round_.scored.context, round_.scored.node_slots
        left = self.label + _BLOCK + 8
        yield Piece(0, 0, text(_told(len(tree), len(nodes)), 0, 14, size=13, classes="lk-muted"))
        yield Piece(self.label, 20, text("committed", _BLOCK - 2, 20, size=12, anchor="end"))
        yield Piece(left, 20, _numbers(nodes, cell))
        for i, node in enumerate(nodes):
            y = _TOP + i * cell
            words = visible(self.story.trace.token_text(tree.tokens[node]))
            above = tree.path(node)[:-1]
            told = f"node {node} · {words} · slot {seats[node]} · {_sees(context, above)}"
            row = "".join("#" if j == node else "o" if j in above else "." for j in nodes)
            yield Piece(0, y, _label(node, words, self.label, cell))
            yield Piece(self.label, y, _context(context, cell))
            yield Piece(left, y, _cells(row, cell))
            yield Piece(0, y, _ground(left + len(nodes) * cell, cell, node, told))

    def _glyphs(self, state: State) -> Iterator[Piece]:
        """What became of each node so far."""
        round_ = self.story.rounds[state.at]
        statuses = node_statuses(round_, state)
        for i, node in enumerate(visible_nodes(round_, self.most)):
            mark = _glyph(LOOKS[statuses[node]].glyph, self.cell)
            if mark:
                yield Piece(self.label - 10, _TOP + i * self.cell, mark)


def _told(count: int, shown: int) -> str:
    words = f"{count} nodes in one forward"
    return f"{words}, {count - shown} of them folded" if shown < count else words


def _sees(context: int, above: tuple[int, ...]) -> str:
    seen = f"nodes {', '.join(map(str, above))} and itself" if above else "itself"
    return f"sees {context} committed tokens, {seen}"


@lru_cache(maxsize=4096)
def _glyph(glyph: str, cell: int) -> str:
    return text(glyph, 0, cell / 2 + 5, size=13, anchor="end", weight=700) if glyph else ""


@lru_cache(maxsize=4096)
def _numbers(nodes: tuple[int, ...], cell: int) -> str:
    """The heads of the columns."""
    size, every = (12, 1) if cell >= 16 else (10, 2)  # narrow columns: two digits would touch
    return "".join(
        text(str(node), i * cell + cell / 2, 20, size=size, anchor="middle")
        for i, node in enumerate(nodes)
        if i % every == 0
    )


@lru_cache(maxsize=4096)
def _ground(width: int, cell: int, node: int, told: str) -> str:
    """What lights up over a row, and listens to the pointer."""
    ground = box(-4, 0, width + 6, cell, 'class="lk-row" fill="none" pointer-events="all"')
    return f'<g data-row="{node}">{ground}{tip(told)}</g>'


@lru_cache(maxsize=4096)
def _label(node: int, words: str, room: int, cell: int) -> str:
    y, size = cell / 2 + 5, 13 if cell >= 16 else 12
    cells = int((room - 54) / (size * 0.602))
    return text(str(node), 20, y, size=12, classes="lk-muted", anchor="end") + text(
        shortened(words, cells), 27, y, size=size, classes="lk-mono"
    )


@lru_cache(maxsize=4096)
def _context(count: int, cell: int) -> str:
    ground = box(1, 1, _BLOCK - 2, cell - 2, paint("prompt"), round_=3)
    dot = f'<circle class="lk-inkfill" cx="12" cy="{number(cell / 2)}" r="3" fill="#17171b"/>'
    words = text(str(count), _BLOCK - 8, cell / 2 + 4, size=12, anchor="end")
    return ground + dot + words + tip(f"{count} committed tokens, seen by every node")


@lru_cache(maxsize=4096)
def _cells(row: str, cell: int) -> str:
    """``row``: a letter for each node, # itself, o an ancestor, . not seen."""
    side = cell - 2
    empty = full = marks = ""
    for i, kind in enumerate(row):
        square = f"M{i * cell + 1} 1h{side}v{side}h-{side}z"
        x, y = number(i * cell + cell / 2), number(cell / 2)
        if kind == ".":
            empty += square
            continue
        full += square
        marks += f"M{x} {y}m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z" if kind == "#" else ""
        marks += f"M{x} {y}m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z" if kind == "o" else ""
    line = TONES["line"][0]
    drawn = f'<path class="lk-line" fill="none" stroke="{line}" d="{empty}"/>' if empty else ""
    drawn += f'<path fill="{DRAFT}" d="{full}"/>'
    return drawn + f'<path fill="#17171b" d="{marks}"/>'


def _legend(width: int) -> tuple[list[Piece], int]:
    entries = [("o", "an ancestor"), ("#", "the node itself"), (".", "not seen")]
    pieces: list[Piece] = []
    x = y = 0
    for row, words in entries:
        room = 46 + round(len(words) * 7)
        if x and x + room > width:
            x, y = 0, y + 24
        pieces.append(Piece(x, y, _cells(row, 18) + text(words, 24, 14, size=13)))
        x += room
    return pieces, y + 24
