"""The draft as a tree: what was kept, what was pruned, and which path the target accepted.

Owns: chips, lines between them, the key. Does not know: where chips stand, how trees grow.
Invariants: chips keep their places while a round is judged; the target's own token hangs where it
was drawn; a status is told by its glyph and its border as well as by its colour. Shapes that
belong to a node carry its number (data-node, data-edge), so that a page can light up a path.
"""

from collections.abc import Iterator
from functools import lru_cache

from labkit.trace import Round
from labkit.viz.layout import Layout, Spot, layout
from labkit.viz.sentences import counted
from labkit.viz.states import State, Story, node_statuses, own_token
from labkit.viz.svg import (
    Piece,
    Scene,
    box,
    mono_width,
    number,
    probability,
    shortened,
    text,
    tip,
    visible,
)
from labkit.viz.theme import LOOKS, TONES, Status, paint

FOLDED, OPEN = 16, 64
_LINE_ROW, _LIST_ROW = 46, 30
_THICK = 'stroke-width="4"'
_FAINT = 'class="lk-free" fill="#ffffff" stroke="#999999" stroke-dasharray="4 4"'
_CUT = "✂\ufe0e"
_KEY: tuple[Status, ...] = ("accepted", "rejected", "dropped", "pending", "resampled", "bonus")


class TreePanel:
    """The drafts of one story on a page of ``width``.

    Args:
        at: place of the only round that is to be drawn, with a key to all marks: its own height
            will do. None: one of many states, beside a ribbon whose key says what the marks mean.
        most: nodes drawn; of larger drafts the branches that were never judged are folded.
        pruned: draw the likeliest of the candidates that were pruned.
    """

    def __init__(
        self,
        story: Story,
        *,
        width: int,
        at: int | None = None,
        most: int = FOLDED,
        pruned: bool = True,
    ) -> None:
        self.story, self.width = story, width
        self.legend, self.top = _legend(
            story, width, statuses=_KEY if at is not None else (), pruned=pruned
        )
        deepest = max((tree.depth for tree in story.trees), default=0)
        self.layouts = tuple(
            layout(r, width=width, deepest=deepest, most=most, pruned=pruned) for r in story.rounds
        )
        needed = self.layouts if at is None else self.layouts[at : at + 1]
        self.tall = max((found.rows * row_height(found) for found in needed), default=0)

    def scene(self, state: State) -> Scene:
        """The draft of the round at ``state``; the height is the same at every state."""
        pieces = list(self.legend)
        if state.at < 0 or state.phase == "finish":
            none = text("No round is under way.", 0, 18, classes="lk-muted")
            pieces.append(Piece(0, self.top, none))
        else:
            drawing = _Drawing(self.story, state, self.layouts[state.at])
            pieces += [Piece(p.x, p.y + self.top, p.markup) for p in drawing.pieces()]
        return Scene(self.width, self.top + max(24, self.tall), tuple(pieces))


def row_height(found: Layout) -> int:
    """Pixels from one row to the next."""
    return _LINE_ROW if found.lines else _LIST_ROW


class _Drawing:
    """One round at one state."""

    def __init__(self, story: Story, state: State, found: Layout) -> None:
        self.story, self.state, self.found = story, state, found
        self.round = story.rounds[state.at]
        self.tree = story.trees[state.at]
        self.statuses = node_statuses(self.round, state)
        self.pitch = row_height(found)
        self.pruned, self.folded = found.pruned, found.folded

    def pieces(self) -> Iterator[Piece]:
        shown = [s for s in self.found.spots if s.kind != "own" or self._settled]
        places = {s.node: s for s in shown if s.kind == "node"}
        edges = [self._edge(places[spot.parent], spot) for spot in shown if spot.parent >= 0]
        yield from sorted(edges, key=lambda edge: _THICK in edge.markup)  # the path on top
        for spot in shown:
            yield Piece(spot.x, spot.y * self.pitch, self._chip(spot))

    @property
    def _settled(self) -> bool:
        return self.state.phase in ("commit", "forget")

    def _edge(self, above: Spot, spot: Spot) -> Piece:
        kept = self.statuses[spot.node] == "accepted" if spot.kind == "node" else False
        own = own_token(self.round) if spot.kind == "own" else None
        status: Status | None = own[1] if own else "accepted" if kept else None
        rise = (above.y - spot.y) * self.pitch
        child = spot.node if spot.kind == "node" else -1
        dashed = spot.kind == "pruned"
        if self.found.lines:
            back = spot.x - above.x - above.width
            markup = _elbow(back, rise, status, child, dashed=dashed)
            return Piece(spot.x - back, spot.y * self.pitch + 19, markup)
        markup = _corner(rise + 13, status, child, dashed=dashed)
        return Piece(above.x + 8, spot.y * self.pitch + 13, markup)

    def _chip(self, spot: Spot) -> str:
        if spot.kind == "own":
            return self._own_chip(spot)
        if spot.kind == "pruned":
            return self._pruned_chip(spot)
        if spot.kind == "folded":
            count = self.folded[spot.node]
            told = f"{counted(count, 'node')} below node {spot.node} folded"
            words = f"+{counted(count, 'node')}"
            return _quiet(words, "folded", told, spot.width, self._l)
        node = spot.node
        words = visible(self.story.trace.token_text(self.tree.tokens[node]))
        sure = self.round.drafted.confidence
        path = " ".join(map(str, self.tree.path(node)))
        status = self.statuses[node]
        look = LOOKS[status]
        below = f"{look.glyph} {probability(sure[node])}" if sure and node else look.glyph
        below = below if node else "pending"
        markup = _chip(words, below, status, spot.width, node, self._l)
        told = f"node 0 · {words} · the pending token, root of the tree"
        told = f"{node_words(self.story, self.state, node)} · {look.word}" if node else told
        head = f'<g class="lk-node" data-node="{node}" data-path="{path}">'
        return f"{head}{markup}{tip(told)}</g>"

    @property
    def _l(self) -> bool:
        return self.found.lines

    def _own_chip(self, spot: Spot) -> str:
        own = own_token(self.round)
        assert own
        words = visible(self.story.trace.token_text(own[0]))
        look = LOOKS[own[1]]
        who = "you" if own[1] == "forced" else "target"
        markup = _chip(words, f"{look.glyph} {who}", own[1], spot.width, -1, self._l)
        whose = "a token" if own[1] == "forced" else "the target's own token,"
        told = tip(f"{words} · {whose} {look.word}, after node {spot.node}")
        return f"<g>{markup}{told}</g>"

    def _pruned_chip(self, spot: Spot) -> str:
        some = self.pruned[spot.node]
        names = [visible(self.story.trace.token_text(token)) for token, _ in some]
        first = f"{_CUT} {' '.join(names[:3])}"
        best = max(c for _, c in some)
        told = f"{len(some)} candidates below node {spot.node} were pruned: " + ", ".join(
            f"{n} {probability(c)}" for n, (_, c) in zip(names[:8], some, strict=False)
        )
        return _quiet(
            first, f"{len(some)} pruned, best {probability(best)}", told, spot.width, self._l
        )


def node_words(story: Story, state: State, node: int) -> str:
    """All that was recorded of one drafted node by ``state``, in words."""
    round_ = story.rounds[state.at]
    drafted, parent = round_.drafted, round_.drafted.parents[node]
    parts = [f"node {node} · {visible(story.trace.token_text(drafted.tokens[node]))}"]
    parts.append(f"below node {parent}")
    if drafted.deterministic:
        parts.append("no draw (q 1)")
    elif drafted.q and drafted.q[node] is not None:
        parts.append(f"q {probability(drafted.q[node] or 0.0)}")
    if drafted.confidence:
        alone = min(1.0, drafted.confidence[node] / (drafted.confidence[parent] or 1.0))
        parts.append(f"own probability {probability(alone)}")
        parts.append(f"cumulative confidence {probability(drafted.confidence[node])}")
    trial = _trial(round_, state, node)
    parts.append(f"p {probability(trial)}" if trial is not None else "")
    return " · ".join(part for part in parts if part)


def _trial(round_: Round, state: State, node: int) -> float | None:
    """p of a node that was tested by ``state``."""
    trials = round_.verified.trials if round_.verified else ()
    seen = {"draft": 0, "score": 0, "verify": state.trials}.get(state.phase, len(trials))
    return next((t.p for t in trials[:seen] if t.node == node), None)


@lru_cache(maxsize=4096)
def _chip(words: str, below: str, status: Status, width: int, node: int, lines: bool) -> str:
    """A token with what became of it; node -1 has no number."""
    tall = 38 if lines else 26
    ground = box(1, 1, width - 2, tall - 2, paint(status) + ' stroke-width="2"', round_=7)
    faded = " lk-muted" if status == "dropped" else ""
    at = 32 if lines else 17
    mark = text(str(node), width - 7, at, size=12, classes="lk-muted", anchor="end")
    mark = mark if node > 0 else ""
    if lines:
        room = int((width - 11) / mono_width("x", 14))
        name = text(shortened(words, max(1, room)), 7, 16, size=14, classes="lk-mono" + faded)
        return ground + name + mark + text(below, 7, 32, size=12, weight=700)
    room = int((width - 38 - mono_width(below, 12)) / mono_width("x", 14))
    name = text(shortened(words, max(1, room)), 7, 18, size=14, classes="lk-mono" + faded)
    told = text(below, width - 27, 17, size=12, anchor="end", weight=700)
    return ground + name + told + mark


@lru_cache(maxsize=4096)
def _quiet(words: str, below: str, told: str, width: int, lines: bool) -> str:
    """What is not a node of the draft, or not drawn."""
    tall = 38 if lines else 26
    ground = box(1, 1, width - 2, tall - 2, _FAINT, round_=7)
    if lines:
        name = shortened(words, max(2, int((width - 12) / mono_width("x", 13))))
        inside = text(name, 7, 15, size=13, classes="lk-mono lk-muted")
        inside += text(below, 7, 31, size=12, classes="lk-muted")
    else:
        across = mono_width(below, 12) + 14
        name = shortened(words, max(2, int((width - across) / mono_width("x", 13))))
        inside = text(name, 7, 17, size=13, classes="lk-mono lk-muted")
        inside += text(below, width - 6, 17, size=12, classes="lk-muted", anchor="end")
    return f"<g>{ground}{inside}{tip(told)}</g>"


@lru_cache(maxsize=4096)
def _elbow(back: int, rise: int, status: Status | None, child: int, *, dashed: bool) -> str:
    """From the right edge of a chip to the left edge of one further right, ``-rise`` lower."""
    bend = f"M0 {number(rise)}H{number(back / 2)}V0H{number(back)}" if rise else f"M0 0H{back}"
    return _stroke(bend, status, child, dashed=dashed)


@lru_cache(maxsize=4096)
def _corner(rise: int, status: Status | None, child: int, *, dashed: bool) -> str:
    """From the foot of a chip down to one that is set in below it."""
    return _stroke(f"M0 {number(rise)}V0H10", status, child, dashed=dashed)


def _stroke(path: str, status: Status | None, child: int, *, dashed: bool) -> str:
    colour = LOOKS[status].colour if status else TONES["ink"][0]
    style = f'stroke="{colour}" ' + (_THICK if status else 'stroke-width="1.2"')
    style += ' stroke-dasharray="2 3"' if dashed else ""
    name = "" if status else 'class="lk-inkline" stroke-opacity="0.5" '
    told = f' data-edge="{child}"' if child > 0 else ""
    return f'<path {name}{style} fill="none" d="{path}"{told}/>'


def _legend(
    story: Story, width: int, *, statuses: tuple[Status, ...], pruned: bool
) -> tuple[list[Piece], int]:
    """The key to the chips, and its height."""
    pieces: list[Piece] = []
    x = y = 0
    entries: list[tuple[str, str, str]] = [
        (LOOKS[s].glyph, LOOKS[s].word, paint(s) + ' stroke-width="2"') for s in statuses
    ]
    if pruned and any(r.drafted.considered for r in story.rounds):
        entries.append((_CUT, "pruned candidates, the likeliest ones", _FAINT))
    if any(r.drafted.confidence for r in story.rounds):
        entries.append(("0.42", "cumulative confidence", ""))
    for glyph, words, ground in entries:
        wide = 24 if ground else 34
        room = wide + 22 + round(len(words) * 7)
        if x and x + room > width:
            x, y = 0, y + 24
        swatch = box(1, 1, 22, 18, ground, round_=5) if ground else ""
        mark = text(glyph, wide / 2, 15, size=13, anchor="middle", weight=700)
        pieces.append(Piece(x, y, swatch + mark + text(words, wide + 5, 15, size=13)))
        x += room
    return pieces, y + 34 if entries else 0
