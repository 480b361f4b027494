"""The target's KV table as a grid of slots. Rollback is forgetting slots: nothing moves.

Owns: cells, folding, the legend of slot uses. Does not know: caches, tensors.
Invariants: a slot keeps its place in the grid for the whole run; slots that are not drawn are
counted in words.
"""

from collections.abc import Sequence
from functools import lru_cache

from labkit.viz.sentences import quoted
from labkit.viz.states import Slot, SlotUse, State, Story, node_statuses
from labkit.viz.svg import Piece, Scene, box, pane, shortened, stack, text, visible
from labkit.viz.theme import LOOKS, Status, paint

PITCH = 74
_ROW = 62
_HEAD = 26
_USES: dict[SlotUse, tuple[Status, str]] = {
    "committed": ("prompt", "committed"),
    "kept": ("accepted", "kept"),
    "speculative": ("pending", "speculative"),
    "forgotten": ("rejected", "forgotten"),
    "free": ("free", "free"),
}


def slots_scene(story: Story, state: State, *, width: int, max_rows: int = 8) -> Scene:
    """The table at ``state``; rows that do not fit are folded, the oldest first."""
    table = story.slots(state)
    columns = max(1, width // PITCH)
    first, rows = _visible_rows(story, state, columns, max_rows)
    shown = range(first * columns, min(len(table), (first + rows) * columns))
    pieces = [Piece(0, 0, text(_folded(table, shown), 0, 15, size=13, classes="lk-muted"))]
    glyphs = _glyphs(story, state)
    for i in shown:
        x, y = (i % columns) * PITCH, _HEAD + (i // columns - first) * _ROW
        pieces += [Piece(x, y, markup) for markup in _cell(story, i, table[i], glyphs)]
    y = _HEAD + rows * _ROW
    pieces.append(Piece(0, y, text(_pending(story, state), 0, 16, size=14)))
    legend, height = _legend(width)
    pieces += [Piece(p.x, p.y + y + 28, p.markup) for p in legend]
    return Scene(width, y + 28 + height, tuple(pieces))


def round_slots_scene(story: Story, at: int, *, width: int) -> Scene:
    """One round in three tables: before it, with the draft in it, after it. Old rows are folded."""
    states = [s for s in story.states if s.at == at]
    before = story.states[states[0].index - 1]
    scored = next((s for s in states if s.phase == "score"), states[0])
    committed = next((s for s in states if s.phase == "commit"), None)
    strips: list[tuple[str, State]] = [
        ("Before the round", before),
        ("Scored: the draft is in the table", scored),
    ]
    if committed:
        strips.append(("Committed: the accepted path stays, the rest is forgotten", states[-1]))
    scenes: list[tuple[float, float, Scene]] = []
    y = 0
    for heading, state in strips:
        title = Scene(width, 24, (Piece(0, 0, text(heading, 0, 17, size=16, weight=700)),))
        strip = _strip(story, state, at, width)
        scenes += [(0, y, title), (0, y + 26, strip)]
        y += 26 + strip.height + 12
    legend, height = _legend(width)
    scenes.append((0, y, Scene(width, height, tuple(legend))))
    return stack(scenes, width, y + height)


def _strip(story: Story, state: State, at: int, width: int) -> Scene:
    """The rows that round ``at`` touches, and one row before them."""
    columns = max(1, width // PITCH)
    table, scored = story.slots(state), story.rounds[at].scored
    seats = scored.node_slots if scored else (len(story.tables[at]),)
    low = max(0, min(seats) // columns - 1)
    high = min(len(table) - 1, (max(seats) // columns + 1) * columns - 1)
    shown = range(low * columns, high + 1)
    pieces = [Piece(0, 0, text(_folded(table, shown), 0, 15, size=13, classes="lk-muted"))]
    glyphs = _glyphs(story, state) if state.at == at else {}
    for i in shown:
        slot = table[i]
        if state.at != at and slot.use in ("kept", "forgotten"):
            slot = story.tables[at][i]  # what the last round kept or forgot is settled by now
        x, y = (i % columns) * PITCH, _HEAD + (i // columns - low) * _ROW
        pieces += [Piece(x, y, markup) for markup in _cell(story, i, slot, glyphs)]
    return Scene(width, _HEAD + (high // columns - low + 1) * _ROW, tuple(pieces))


def _visible_rows(story: Story, state: State, columns: int, max_rows: int) -> tuple[int, int]:
    """(first row, rows). The window moves by half its height, so it rarely moves."""
    total = -(-max(1, len(story.tables[-1])) // columns)
    rows = min(total, max_rows)
    prompt = story.trace.prefilled.tokens if story.trace.prefilled else 0
    least = max(0, min(prompt // columns - 1, total - rows))
    if state.at < 0:
        return least, rows
    scored = story.rounds[state.at].scored
    frontier = (
        max(scored.node_slots) // columns if scored else len(story.tables[state.at]) // columns
    )
    step = max(1, rows // 2)
    first = -(-max(0, frontier - rows + 1 - least) // step) * step + least
    return min(first, total - rows), rows


def _folded(table: Sequence[Slot], shown: range) -> str:
    """How full the table is, and what is not drawn."""
    used = sum(slot.use not in ("free", "forgotten") for slot in table)
    words = f"{used} slots in use"
    hidden = [f"0–{shown.start - 1}"] if shown.start else []
    hidden += [f"from {shown.stop} on"] if shown.stop < len(table) else []
    return words + (f"; slots {' and '.join(hidden)} are folded" if hidden else "")


def _pending(story: Story, state: State) -> str:
    """The committed token that has no slot yet."""
    if state.phase == "start":
        token = story.trace.prompt[-1]
    elif state.phase in ("commit", "forget", "finish") and state.at >= 0:
        committed = story.rounds[state.at].committed
        token = committed.tokens[-1] if committed and committed.tokens else -1
    elif state.phase == "draft":
        token = story.rounds[state.at].drafted.tokens[0]
    else:
        return "No token waits: the pending one is in the table now."
    return f"Pending, without a slot yet: {quoted(story.trace, token)}" if token >= 0 else ""


def _glyphs(story: Story, state: State) -> dict[int, str]:
    """The verdict on each node of the round, shown in the corner of its slot."""
    if state.at < 0 or state.phase == "finish":
        return {}
    statuses = node_statuses(story.rounds[state.at], state)
    return {node: LOOKS[status].glyph for node, status in enumerate(statuses)}


def _cell(story: Story, index: int, slot: Slot, glyphs: dict[int, str]) -> tuple[str, ...]:
    """The markup of one slot: what many slots share first, what is its own last."""
    glyph = "" if slot.use == "free" else glyphs.get(slot.node, "")
    known = slot.use != "free" and slot.token is not None
    words = visible(story.trace.token_text(slot.token)) if known and slot.token is not None else ""
    return _cell_parts(index, slot, glyph, words)


@lru_cache(maxsize=4096)
def _cell_parts(index: int, slot: Slot, glyph: str, words: str) -> tuple[str, ...]:
    status, use = _USES[slot.use]
    border = "2" if slot.use in ("kept", "speculative", "forgotten") else "1.2"
    ground = box(1, 1, PITCH - 6, _ROW - 6, f'{paint(status)} stroke-width="{border}"', round_=6)
    mark = text(glyph, PITCH - 11, 15, size=13, anchor="end", weight=700) if glyph else ""
    seat = text(str(index), 6, 15, size=12, classes="lk-muted")
    if not words:
        return ground, seat + pane(1, 1, PITCH - 6, _ROW - 6, f"slot {index} · {use}")
    middle = (PITCH - 4) / 2
    faded = " lk-muted" if slot.use == "forgotten" else ""
    again = f"  ×{slot.tenants}" if slot.tenants > 1 else ""
    tenant = text(
        shortened(words, 7), middle, 33, size=14, classes="lk-mono" + faded, anchor="middle"
    ) + text(
        f"pos {slot.position}{again}", middle, 50, size=12, classes="lk-muted", anchor="middle"
    )
    told = f"slot {index} · {words} · position {slot.position} · {use}{_order(slot.tenants)}"
    tenant += pane(1, 1, PITCH - 6, _ROW - 6, told)
    return ground + mark, seat + tenant


def _order(tenants: int) -> str:
    """How many tokens a slot has held, where it is not the first."""
    return f" · token number {tenants} in this slot" if tenants > 1 else ""


def _legend(width: int) -> tuple[list[Piece], int]:
    pieces: list[Piece] = []
    x = y = 0
    entries: list[tuple[Status | None, str]] = [*_USES.values(), (None, "×2: second token")]
    for status, word in entries:
        room = 44 + round(len(word) * 7.2)
        if x and x + room > width:
            x, y = 0, y + 24
        swatch = box(1, 1, 20, 17, paint(status) + ' stroke-width="2"', round_=4) if status else ""
        pieces.append(Piece(x, y, swatch + text(word, 27 if status else 0, 15, size=13)))
        x += room
    return pieces, y + 24
