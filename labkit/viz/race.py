"""A race between ways of decoding: who wrote how much by when, as a picture and a sentence.

Owns: the record of a race, its numbers, its words and its drawing. Does not know: models, clocks;
it draws seconds that were measured elsewhere.
Invariants: the first lane is plain decoding, which the others are measured by; all lanes share one
time axis; a lane that lost says "slower here".
"""

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.viz.charts import rounded_up
from labkit.viz.picture import Picture, stands_still
from labkit.viz.sentences import counted, duration
from labkit.viz.svg import Piece, Scene, box, line, number, text, tip

COLOURS = ("#767680", "#0072B2", "#D55E00")
"""Of the lanes, in order; each has a name beside it, so that colour is never the only sign."""
_TALL, _ROW, _TOP, _LEFT, _RIGHT = 34, 82, 60, 16, 44


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of a lane. seconds, tokens: of the lane so far; text: what the round added."""

    seconds: float
    tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One way of decoding. name: what it is called; done: has it crossed the finish line?"""

    name: str
    turns: tuple[Turn, ...] = ()
    done: bool = False

    @property
    def seconds(self) -> float:
        return self.turns[-1].seconds if self.turns else 0.0

    @property
    def tokens(self) -> int:
        return self.turns[-1].tokens if self.turns else 0

    @property
    def text(self) -> str:
        return "".join(turn.text for turn in self.turns)

    @property
    def pace(self) -> float | None:
        """Tokens per second; None before the first round."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def per_round(self) -> float | None:
        """Mean accepted length: new tokens per round, the target's own counted."""
        return self.tokens / len(self.turns) if self.turns else None


@dataclass(frozen=True, slots=True)
class RaceRecord:
    """A whole race. lanes: plain decoding first; goal: new tokens up to the finish line.

    greedy: then all lanes write one text, near ties apart. phase: ready, preparing, running,
    finished or stopped; why: what stopped it, where it was not the reader.
    """

    lanes: tuple[Lane, ...]
    goal: int
    greedy: bool = True
    phase: str = "ready"
    why: str = ""

    def speed(self, lane: Lane) -> float | None:
        """Tokens per second over those of plain decoding; None while either has none."""
        plain = self.lanes[0].pace
        return lane.pace / plain if lane.pace and plain else None

    @property
    def same_text(self) -> bool:
        """Is each lane's text the beginning of the longest one?"""
        texts = [lane.text for lane in self.lanes]
        longest = max(texts, key=len)
        return all(longest.startswith(one) for one in texts)

    @property
    def sentence(self) -> str:
        """How it ended, or how it stands."""
        if self.phase != "stopped" and not any(lane.turns for lane in self.lanes):
            names = ", ".join(lane.name for lane in self.lanes)
            return f"A race to {counted(self.goal, 'token')}: {names}. Not started."
        told = "; ".join(self._told(lane) for lane in self.lanes[1:])
        if self.phase != "finished":
            where = ", ".join(f"{lane.name} {lane.tokens}" for lane in self.lanes)
            word = "Stopped" if self.phase == "stopped" else "Under way"
            why = f": {self.why.rstrip('.')}" if self.why else ""
            return f"{word} before the finish{why} (tokens so far: {where})."
        return f"{told}. {self._texts()}"

    def _told(self, lane: Lane) -> str:
        speed = self.speed(lane)
        if speed is None:
            return f"{lane.name} wrote nothing"
        if round(speed, 2) == 1:
            return f"{lane.name} was no faster and no slower than {self.lanes[0].name}"
        if speed > 1:
            return f"{lane.name} was {speed:.2f} × as fast as {self.lanes[0].name} here"
        return f"{lane.name} was slower here: {speed:.2f} × the speed of {self.lanes[0].name}"

    def _texts(self) -> str:
        if not self.greedy:
            return "Each lane drew its own text from the same law."
        if self.same_text:
            return "All wrote the same text."
        return "Their texts part: at a near tie, or by a fault; compare them."

    @property
    def picture(self) -> Picture:
        """The lanes on one time axis."""
        svg = race_scene(self).svg(title="The race", description=self.sentence)
        return Picture(svg, self.sentence)

    @property
    def table(self) -> str:
        """The numbers as an HTML table."""
        head = ("", "tokens", "seconds", "tokens per second", "tokens per round", "speed")
        body = "".join(
            f'<tr><th scope="row">{html.escape(lane.name)}</th>'
            + "".join(f"<td>{value}</td>" for value in _values(self, lane))
            + "</tr>"
            for lane in self.lanes
        )
        cells = "".join(f'<th scope="col">{name}</th>' for name in head)
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = self.picture._repr_mimebundle_()
        more = f"<details><summary>The numbers as a table</summary>{self.table}</details>"
        return {**bundle, "text/html": bundle["text/html"] + more}

    def __repr__(self) -> str:
        return self.sentence


class StillRace:
    """`labkit.viz.race_view.RaceView` where no widget can be shown: how the race stands.

    Args: as for `RaceView`; missing: the pip package without which there is no widget.
    """

    def __init__(self, record: RaceRecord, *, missing: str = "anywidget", **_: Any) -> None:
        self.record, self.missing = record, missing

    @property
    def is_open(self) -> bool:
        """A picture is never closed."""
        return True

    def show(self, record: RaceRecord) -> None:
        """Show how the race stands, or how it ended, when it is displayed next."""
        self.record = record

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = self.record._repr_mimebundle_()
        note = html.escape(f"{stands_still(self.missing)} race.run() races without it.")
        return {**bundle, "text/html": f"{bundle['text/html']}<p><em>{note}</em></p>"}

    def __repr__(self) -> str:
        return self.record.sentence


def _values(record: RaceRecord, lane: Lane) -> Iterator[str]:
    numbers = (lane.pace, lane.per_round, record.speed(lane))
    yield str(lane.tokens)
    yield f"{lane.seconds:.2f}"
    yield from (
        "n/a" if n is None else f"{n:.{d}f}" for n, d in zip(numbers, (1, 2, 2), strict=True)
    )


def race_scene(record: RaceRecord, *, width: int = 960) -> Scene:
    """Lanes of blocks, one for each round, on one time axis; a flag where a lane finished."""
    lanes, longest = record.lanes, max((lane.seconds for lane in record.lanes), default=0.0)
    head = text(f"The race to {counted(record.goal, 'token')}", 0, 24, size=20, weight=700)
    pieces = [Piece(_LEFT, 0, head)]
    if not longest:
        return Scene(width, 72, (*pieces, Piece(_LEFT, 0, text("Not started.", 0, 54, size=16))))
    across = width - _LEFT - _RIGHT
    scale = across / longest
    foot = _TOP + _ROW * len(lanes)
    if lanes[0].done:
        pieces += _par(lanes[0], lanes[0].seconds * scale, foot, across)
    for i, lane in enumerate(lanes):
        pieces += _lane(record, lane, i, scale)
    pieces += _axis(longest, scale, foot)
    told = "One block is one round, of stronger colour with more tokens in it. Each lane's own "
    told += "seconds, the prompt not counted."
    pieces.append(Piece(_LEFT, foot + 50, text(told, 0, 0, size=14, classes="lk-muted")))
    return Scene(width, foot + 64, tuple(pieces))


def _par(lane: Lane, x: float, foot: int, across: float) -> Iterator[Piece]:
    """The time of plain decoding, through all lanes; not through their words."""
    spans = [(_TOP - 8, _TOP), *((y + 25, y + _ROW) for y in range(_TOP, foot, _ROW))]
    dash = '<path stroke-dasharray="6 4" '
    rule = "".join(
        line(0, top, 0, low, tone="ink", width=1.5).replace("<path ", dash) for top, low in spans
    )
    side = "end" if x > across / 2 else "start"
    words = text(
        f"{lane.name} is done", -6 if side == "end" else 6, _TOP - 14, size=14, anchor=side
    )
    yield Piece(_LEFT + x, 0, rule + words)


def _lane(record: RaceRecord, lane: Lane, i: int, scale: float) -> Iterator[Piece]:
    y = _TOP + i * _ROW
    yield Piece(_LEFT, y, text(lane.name, 0, 18, size=18, weight=700) + _result(record, lane, i))
    yield Piece(_LEFT, y + 28, _blocks(lane, COLOURS[i % len(COLOURS)], scale))
    if lane.done:
        yield Piece(_LEFT + lane.seconds * scale + 5, y + 26, _flag())


def _result(record: RaceRecord, lane: Lane, i: int) -> str:
    words = f"{duration(lane.seconds)}, {lane.pace or 0:.1f} tokens/s, "
    words += f"{lane.per_round or 0:.2f} tokens per round"
    told = text(words, 190, 18, size=16)
    speed = record.speed(lane)
    if i == 0 or speed is None:
        return told
    sign = "✓" if round(speed, 2) > 1 else "✗" if round(speed, 2) < 1 else "="
    verdict = {"✓": f"{speed:.2f} × as fast", "✗": f"slower here: {speed:.2f} ×", "=": "no gain"}
    return told + text(f"{sign} {verdict[sign]}", 590, 18, size=18, weight=700)


def _blocks(lane: Lane, colour: str, scale: float) -> str:
    """Blocks of equal weight are one path: few elements, however long the race."""
    start, tokens = 0.0, 0
    paths: dict[int, str] = {}
    for turn in lane.turns:
        across = max(0.6, (turn.seconds - start) * scale - 0.8)
        block = f"M{number(start * scale)} 0h{number(across)}v{_TALL}h-{number(across)}z"
        added = turn.tokens - tokens
        paths[added] = paths.get(added, "") + block
        start, tokens = turn.seconds, turn.tokens
    told = {added: tip(f"{lane.name}: rounds of {counted(added, 'token')}") for added in paths}
    return "".join(
        f'<path fill="{colour}" fill-opacity="{_weight(added)}" d="{path}">{told[added]}</path>'
        for added, path in sorted(paths.items())
    )


def _weight(tokens: int) -> str:
    """How strong a block is: from 0.5 for one token to 1 for five or more."""
    return f"{min(1.0, 0.375 + 0.125 * tokens):.2f}"


def _flag() -> str:
    """A chequered flag on a pole."""
    squares = "".join(
        box(2 + 7 * c, 7 * r, 7, 7, 'class="lk-inkfill" fill="#17171b"')
        for r in range(3)
        for c in range(3)
        if (r + c) % 2 == 0
    )
    frame = '<path class="lk-inkline" fill="none" stroke="#17171b" d="M2 0h21v21h-21z"/>'
    return line(1, 0, 1, _TALL + 4, tone="ink", width=2) + frame + squares


def _axis(longest: float, scale: float, y: float) -> Iterator[Piece]:
    step, value = rounded_up(longest / 5), 0.0
    marks = line(0, 0, longest * scale, 0)
    while value <= longest * 1.0001:
        x = value * scale
        words = duration(value) if value else "0"
        marks += line(x, 0, x, 6) + text(words, x, 23, size=14, anchor="middle" if x else "start")
        value += step
    yield Piece(_LEFT, y, marks)
