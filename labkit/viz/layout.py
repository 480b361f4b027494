"""Where the nodes of a draft tree stand, and which of them are drawn.

Owns: the choice of visible nodes, rows and columns. Does not know: colours, words.
Invariants: a node keeps its place while its round lasts; a visible node's parent is visible; what
is not drawn is counted at the nearest visible node above it.

    wide page: a path reads as a line           narrow page: one line per node

    the -- cat -- sat -- on                     the
        |      |                                 |- cat
        |      +- ran                            |   |- sat
        +- dog                                   |   |   |- on
                                                 |   |- ran
                                                 |- dog
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from labkit.trace import Round
from labkit.tree import DraftTree
from labkit.viz.states import own_token, tree_of

Kind = Literal["node", "own", "folded", "pruned"]
_LEAST_COLUMN = 80  # pixels for a chip and the line that leads to it
_MOST_COLUMN = 140
_INDENT = 18
_MOST_PRUNED = 6


@dataclass(frozen=True, slots=True)
class Spot:
    """One chip. kind: a drafted node; the target's own token; nodes that are not drawn; pruned
    candidates. node: the node itself, else the one that it hangs below. parent: of the chip, as a
    node (-1 for the root). x, y: its left upper corner; width: room for it."""

    kind: Kind
    node: int
    parent: int
    x: int
    y: int
    width: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The chips of one round. lines: does a path read as a line (else one line per node)? rows:
    how many. pruned, folded: by node, see `pruned_below` and `folded_below`."""

    spots: tuple[Spot, ...]
    lines: bool
    rows: int
    pruned: dict[int, list[tuple[int, float]]]
    folded: dict[int, int]


def visible_nodes(round_: Round, most: int) -> tuple[int, ...]:
    """At most about ``most`` nodes, ascending: what was kept and judged first, then the others in
    the draft's own order, each with all nodes above it."""
    tree = tree_of(round_)
    judged = [t.node for t in round_.verified.trials] if round_.verified else []
    path = list(round_.verified.path) if round_.verified else []
    seen: dict[int, None] = {0: None}
    for node in (*path, *judged, *range(len(tree))):
        above = tree.path(node)
        if len(seen.keys() | set(above)) <= most:
            seen |= dict.fromkeys(above)
    return tuple(sorted(seen))


def pruned_below(round_: Round) -> dict[int, list[tuple[int, float]]]:
    """For each kept node, the candidates below it that were pruned: (token, confidence), those
    right below it first, each group the likeliest first."""
    rows = round_.drafted.considered
    found: dict[int, list[tuple[int, float, bool]]] = {}
    homes: list[int] = []  # the kept node that each candidate is, or hangs below
    for token, parent, confidence, node in rows:
        homes.append(node if node >= 0 else homes[parent])
        if node < 0:
            deeper = rows[parent][3] < 0
            found.setdefault(homes[parent], []).append((token, confidence, deeper))
    return {
        node: [(t, c) for t, c, _ in sorted(some, key=lambda row: (row[2], -row[1], row[0]))]
        for node, some in found.items()
    }


def _closest(pruned: dict[int, list[tuple[int, float]]]) -> tuple[int, ...]:
    """The few nodes whose pruned candidates were likeliest: where the choice was closest."""
    best = {node: max(c for _, c in some) for node, some in pruned.items()}
    return tuple(sorted(best, key=lambda node: (-best[node], node))[:_MOST_PRUNED])


def folded_below(tree: DraftTree, visible: tuple[int, ...]) -> dict[int, int]:
    """For each visible node, how many nodes that are not drawn hang below it."""
    counts: dict[int, int] = {}
    for node in range(len(tree)):
        if node not in visible:
            above = next(n for n in reversed(tree.path(node)) if n in visible)
            counts[above] = counts.get(above, 0) + 1
    return counts


def layout(round_: Round, *, width: int, deepest: int, most: int, pruned: bool = True) -> Layout:
    """Place the chips of a round.

    Args:
        width: of the panel. deepest: depth of the deepest tree of the run. most: nodes drawn.
        pruned: draw pruned candidates too.
    """
    pitch = min(_MOST_COLUMN, width // (deepest + 2))
    lines = pitch >= _LEAST_COLUMN
    pitch = pitch if lines else _INDENT
    walk = _Walk(round_, lines, most, pruned=pruned)
    spots = []
    for kind, node, parent, depth, row in walk.chips():
        x = depth * pitch
        chip = pitch - 14 if lines else min(164, width - x)
        if kind in ("pruned", "folded"):  # nothing follows on its line
            chip = min(2 * pitch - 14 if lines else 260, width - x)
        spots.append(Spot(kind, node, parent, x, row, chip))
    return Layout(tuple(spots), lines, walk.row + 1, walk.candidates, walk.folded)


class _Walk:
    """Chips in the order in which they are drawn, with their rows."""

    def __init__(self, round_: Round, lines: bool, most: int, *, pruned: bool) -> None:
        self.tree, self.lines, self.row = tree_of(round_), lines, 0
        self.visible = visible_nodes(round_, most)
        self.candidates = pruned_below(round_)
        self.pruned = _closest(self.candidates) if pruned else ()
        self.folded = folded_below(self.tree, self.visible)
        own = own_token(round_) is not None and round_.verified is not None
        self.owner = round_.verified.path[-1] if own and round_.verified else -1

    def chips(self) -> Iterator[tuple[Kind, int, int, int, int]]:
        """(kind, node, parent, depth, row) each."""
        yield from self._below(0, 0)

    def _below(self, node: int, depth: int) -> Iterator[tuple[Kind, int, int, int, int]]:
        yield "node", node, self.tree.parents[node], depth, self.row
        first = self.lines
        for kind, child in self._hanging(node):
            self.row += not first
            first = False
            if kind == "node":
                yield from self._below(child, depth + 1)
            else:
                yield kind, node, node, depth + 1, self.row

    def _hanging(self, node: int) -> Iterator[tuple[Kind, int]]:
        for child in self.tree.children[node]:
            if child in self.visible:
                yield "node", child
        if node == self.owner:
            yield "own", node
        if node in self.folded:
            yield "folded", node
        if node in self.pruned:
            yield "pruned", node
