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
from labkit.viz.states import State, Story, node_statuses, tree_of
from labkit.viz.svg import Piece, Scene, box, escape, number, shortened, text, tip, visible
from labkit.viz.theme import DRAFT, LOOKS, TONES, paint

_BLOCK = 56
_TOP = 48
_LEAST, _MOST_CELL = 13, 24
_MOST = 32


def mask_scene(story: Story, state: State, *, width: int) -> Scene:
    """The mask of the round at ``state``; its height is the same at every state of the run."""
    label = 132 if width > 480 else 94
    room = width - label - _BLOCK - 8
    longest = story.longest_tree + 1
    shown = min(longest, _MOST, room // _LEAST)
    cell = max(_LEAST, min(_MOST_CELL, room // shown))
    pieces: list[Piece] = []
    if state.at < 0 or state.phase == "finish":
        pieces.append(Piece(0, 0, text("No round is under way.", 0, 18, classes="lk-muted")))
    elif state.phase == "draft":
        words = "The target has not read this draft yet."
        pieces.append(Piece(0, 0, text(words, 0, 18, classes="lk-muted")))
    else:
        pieces += _grid(story, state, label=label, cell=cell, most=shown)
    foot = _TOP + shown * cell + 8
    legend, tall = _legend(width)
    pieces += [Piece(p.x, p.y + foot, p.markup) for p in legend]
    return Scene(width, foot + tall, tuple(pieces))


def _grid(story: Story, state: State, *, label: int, cell: int, most: int) -> Iterator[Piece]:
    round_ = story.rounds[state.at]
    tree, nodes = tree_of(round_), visible_nodes(round_, most)
    seats = round_.scored.node_slots if round_.scored else ()
    yield Piece(0, 0, text(_told(len(tree), len(nodes)), 0, 14, size=13, classes="lk-muted"))
    left = label + _BLOCK + 8
    yield Piece(label, 20, text("committed", _BLOCK - 2, 20, size=12, anchor="end"))
    size = 12 if cell >= 16 else 10
    for i, node in enumerate(nodes):
        middle = left + i * cell + cell / 2
        yield Piece(middle, 20, text(str(node), 0, 20, size=size, anchor="middle"))
    statuses = node_statuses(round_, state)
    context = round_.scored.context if round_.scored else 0
    for i, node in enumerate(nodes):
        y = _TOP + i * cell
        words = visible(story.trace.token_text(tree.tokens[node]))
        above = tree.path(node)[:-1]
        told = _row_words(node, words, above, context, seats[node])
        yield Piece(0, y, _ground(left + len(nodes) * cell, cell, node, told))
        yield Piece(0, y, _label(node, words, label, cell))
        glyph = LOOKS[statuses[node]].glyph
        yield Piece(label - 10, y, text(glyph, 0, cell / 2 + 5, size=13, anchor="end", weight=700))
        yield Piece(label, y, _context(context, cell))
        row = tuple("#" if j == node else "o" if j in above else "." for j in nodes)
        yield Piece(left, y, _cells("".join(row), cell))


def _told(count: int, shown: int) -> str:
    words = f"{count} nodes in one forward"
    return f"{words}, {count - shown} of them folded" if shown < count else words


def _row_words(node: int, words: str, above: tuple[int, ...], context: int, seat: int) -> str:
    seen = f"nodes {', '.join(map(str, above))} and itself" if above else "itself"
    return f"node {node} · {words} · slot {seat} · sees {context} committed tokens, {seen}"


@lru_cache(maxsize=4096)
def _ground(width: int, cell: int, node: int, told: str) -> str:
    """What lights up behind a row, and listens to the pointer."""
    ground = box(-4, 0, width + 6, cell, 'class="lk-row" fill="none" pointer-events="all"')
    return f'<g data-row="{node}">{ground}<title>{escape(told)}</title></g>'


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
