"""The token ribbon: the end of the prompt and the new tokens, each marked by what became of it.

Owns: chips, columns, line breaks, the legend. Does not know: what the statuses mean.
Invariants: a round's columns keep their places from its draft on, so nothing jumps while it is
judged; a rejected token stands below the token that took its place.

       2  |  the | cat | sat |        marker of round 2, then one column per text position
          |   ✓  |  ✓  |  ↻  |
                       | ran |        ✗ what the draft had there
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from labkit.viz.states import State, Story, node_statuses, own_token
from labkit.viz.svg import (
    Piece,
    Scene,
    box,
    line,
    mono_width,
    shortened,
    text,
    tip,
    visible,
)
from labkit.viz.theme import LOOKS, Status, paint

_CELLS = 16  # longest token that is shown whole
_PROMPT_TAIL = 12
_CHIP = 44
_BELOW = 23
_MARKER = 24
_GAP = 6
_KEY: tuple[Status, ...] = ("accepted", "rejected", "resampled", "bonus", "pending", "dropped")


@dataclass(frozen=True, slots=True)
class _Chip:
    """A token as it is written, its id, its status; tie: were the two best almost equal?"""

    words: str
    token: int
    status: Status
    tie: bool = False


@dataclass(frozen=True, slots=True)
class _Column:
    """One text position. round: 0 for the prompt. first: does the round begin here?"""

    round: int
    first: bool
    top: _Chip | None
    below: tuple[_Chip, ...]
    width: int


class Ribbon:
    """The ribbon of one story on a page of ``width``; beyond ``most`` lines the oldest fold, and
    beyond ``below`` tokens that share a position the later ones."""

    def __init__(self, story: Story, *, width: int, most: int = 12, below: int = 3) -> None:
        self.story, self.width = story, width
        self.rows_below = min(below, _rows_below(story))
        self.prompt = tuple(_prompt_columns(story))
        self.past = tuple(tuple(_columns(story, at, None)) for at in range(len(story.rounds)))
        self.needed = self._lines_needed()
        self.lines = min(self.needed, most)

    def scene(self, state: State, *, tight: bool = False) -> Scene:
        """The ribbon at ``state``; its height is the same at every state, unless ``tight``."""
        pitch = _CHIP + self.rows_below * _BELOW + 8
        placed = list(_flow(self._columns(state), self.width))
        first = max(0, placed[-1][1] - self.lines + 1)
        pieces, top = _legend(self.story, self.width)
        if self.needed > self.lines:
            hidden = sum(1 for column, at, _ in placed if at < first and column.top)
            note = f"… {hidden} earlier tokens are folded" if hidden else ""
            pieces.append(Piece(0, top, text(note, 0, 12, size=13, classes="lk-muted")))
            top += 20
        under_way = state.at >= 0 and state.phase != "finish"
        current = self.story.rounds[state.at].index if under_way else -1
        for column, at, x in placed:
            if at >= first:
                y = top + (at - first) * pitch
                pieces += self._pieces(column, x=x, y=y, current=column.round == current)
        lines = placed[-1][1] - first + 1 if tight else self.lines
        return Scene(self.width, top + lines * pitch, tuple(pieces))

    def _columns(self, state: State) -> Iterator[_Column]:
        yield from self.prompt
        for at in range(state.at):
            yield from self.past[at]
        if state.at >= 0:
            yield from self._newest(state)

    def _newest(self, state: State) -> Iterable[_Column]:
        """The columns that stand last at ``state``: those of its round, or the prompt's."""
        if state.at < 0:
            return self.prompt
        if state.phase == "finish":
            return self.past[state.at]
        return _columns(self.story, state.at, state)

    def _lines_needed(self) -> int:
        """Lines at the state that needs most: a round's first or its last."""
        lasts = {state.at: state for state in self.story.states}
        firsts = {state.at: state for state in reversed(self.story.states)}
        needed, start = 0, (0, 0)
        for at in sorted(lasts):
            for state in (firsts[at], lasts[at]):
                placed = _flow(self._newest(state), self.width, start=start)
                needed = max([needed, *(line_ for _, line_, _ in placed)])
            settled = self.past[at] if at >= 0 else self.prompt
            for column, line_, x in _flow(settled, self.width, start=start):
                start = (x + column.width + _GAP, line_)
        return 1 + needed

    def _pieces(self, column: _Column, *, x: int, y: int, current: bool) -> Iterator[Piece]:
        if column.first:
            yield Piece(x - _MARKER, y, _marker(column.round, current))
        if column.top:
            yield Piece(x, y, _large(column.top, column.width))
        for i, chip in enumerate(column.below[: self.rows_below]):
            more = len(column.below) - i if i == self.rows_below - 1 else 1
            markup = _more(more, column.width) if more > 1 else _small(chip, column.width)
            yield Piece(x, y + _CHIP + 3 + i * _BELOW, markup)


def _prompt_columns(story: Story) -> Iterator[_Column]:
    for token in story.trace.prompt[-_PROMPT_TAIL:]:
        chip = _Chip(visible(story.trace.token_text(token)), token, "prompt")
        yield _Column(0, False, chip, (), _chip_width(chip.words))


def _columns(story: Story, at: int, state: State | None) -> Iterator[_Column]:
    """The columns of one round; ``state`` is None when the round is past."""
    round_, depths = story.rounds[at], story.trees[at].depths
    statuses = node_statuses(round_, state)
    settled = round_.committed if state is None or state.phase in ("commit", "forget") else None
    over = state is None or state.phase == "forget"
    own = own_token(round_)
    final = round_.committed.tokens if round_.committed else ()
    for d in range(1, max(*depths, len(final), 0) + 1):
        chips = [
            _chip(story, token, status)
            for token, status, depth in zip(round_.drafted.tokens, statuses, depths, strict=True)
            if depth == d
        ]
        last = [_chip(story, final[d - 1], "accepted")] if d <= len(final) else []
        width = max(_chip_width(chip.words) for chip in (*chips, *last))
        if settled and last:
            ours = own is not None and settled.sources[d - 1] != "draft"
            status = own[1] if own and ours else "accepted"
            tie = bool(settled.near_ties) and settled.near_ties[d - 1]
            top: _Chip | None = _chip(story, final[d - 1], status, tie=tie)
            rest = [chip for chip in chips if chip.status in ("rejected", "dropped")]
        else:
            top, rest = _foremost(chips)
        below = tuple(chip for chip in rest if chip.status == "rejected" or not over)
        if top or below:
            yield _Column(round_.index, d == 1, top, below, width)


def _foremost(chips: list[_Chip]) -> tuple[_Chip | None, list[_Chip]]:
    """Who of the drafted tokens of one position stands in the text row, and who below it."""
    for wanted in ("accepted", "pending"):
        for chip in chips:
            if chip.status == wanted:
                return chip, [c for c in chips if c is not chip]
    return None, chips


def _chip(story: Story, token: int, status: Status, *, tie: bool = False) -> _Chip:
    return _Chip(visible(story.trace.token_text(token)), token, status, tie)


def _chip_width(words: str) -> int:
    return max(36, round(mono_width(shortened(words, _CELLS), 16)) + 16)


def _flow(
    columns: Iterable[_Column], width: int, *, start: tuple[int, int] = (0, 0)
) -> Iterator[tuple[_Column, int, int]]:
    """(column, line, x) for each column; a marker stays with the first column of its round.

    Args:
        start: (x, line) behind the columns before.
    """
    x, at = start
    for column in columns:
        lead = _MARKER if column.first else 0
        if x and x + lead + column.width > width:
            x, at = 0, at + 1
        yield column, at, x + lead
        x += lead + column.width + _GAP


def _rows_below(story: Story) -> int:
    """Rows under the text row: none without drafts, one for chains, up to three for trees."""
    crowds = [tree.depths.count(d) for tree in story.trees for d in set(tree.depths) if d]
    return min(3, max(crowds, default=0))


@lru_cache(maxsize=4096)
def _marker(index: int, current: bool) -> str:
    mark = line(10, 20, 10, _CHIP - 2, tone="ink" if current else "line", width=3 if current else 1)
    weight = 700 if current else 400
    return (
        text(str(index), 10, 14, size=13, anchor="middle", weight=weight)
        + mark
        + tip(f"round {index} begins")
    )


@lru_cache(maxsize=4096)
def _large(chip: _Chip, width: int) -> str:
    """A chip of the text row."""
    look, middle = LOOKS[chip.status], width / 2
    ground = box(1, 1, width - 2, _CHIP - 2, paint(chip.status) + ' stroke-width="2"', round_=7)
    shown = shortened(chip.words, _CELLS)
    words = text(shown, middle, 20, size=16, classes="lk-mono", anchor="middle")
    mark = look.glyph + (" ≈" if chip.tie else "")
    glyph = text(mark, middle, 37, size=14, anchor="middle", weight=700) if mark else ""
    return ground + words + glyph + _told(chip)


@lru_cache(maxsize=4096)
def _small(chip: _Chip, width: int) -> str:
    """A chip below the text row."""
    ground = box(1, 1, width - 2, _BELOW - 4, paint(chip.status) + ' stroke-width="1.5"', round_=5)
    shown = shortened(chip.words, max(1, int((width - 22) / mono_width("x", 13))))
    words = text(shown, width / 2 + 7, 14, size=13, classes="lk-mono", anchor="middle")
    return ground + text(LOOKS[chip.status].glyph, 5, 14, size=13, weight=700) + words + _told(chip)


def _told(chip: _Chip) -> str:
    tie = " · near tie" if chip.tie else ""
    return tip(f"{chip.words} · token {chip.token} · {LOOKS[chip.status].word}{tie}")


def _more(count: int, width: int) -> str:
    words = text(f"+{count}", width / 2, 14, size=13, classes="lk-muted", anchor="middle")
    return words + tip(f"{count} more guesses at this place")


def _legend(story: Story, width: int) -> tuple[list[Piece], int]:
    """The key to the marks, above the text, and its height."""
    entries = [(LOOKS[status].word, _swatch(status)) for status in _KEY]
    if not story.longest_tree:
        entries = [("the target's own token", _swatch("bonus"))]
    if any(r.forced for r in story.rounds):
        entries.append((LOOKS["forced"].word, _swatch("forced")))
    if any(any(r.committed.near_ties) for r in story.rounds if r.committed):
        mark = text("≈", 12, 16, size=14, anchor="middle", weight=700)
        entries.append(("near tie", mark))
    pieces: list[Piece] = []
    x = y = 0
    for words, swatch in entries:
        room = 44 + round(len(words) * 7.4)
        if x and x + room > width:
            x, y = 0, y + 26
        pieces.append(Piece(x, y, swatch + text(words, 29, 16, size=14)))
        x += room
    pieces.append(Piece(0, y + 29, line(0, 0, width, 0)))
    return pieces, y + 40


def _swatch(status: Status) -> str:
    ground = box(1, 1, 22, 20, paint(status) + ' stroke-width="2"', round_=5)
    return ground + text(LOOKS[status].glyph, 12, 16, size=14, anchor="middle", weight=700)
