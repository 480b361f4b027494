"""Where the time went: drafting and verifying to scale, beside plain decoding of the same tokens.

Owns: the lanes, the playhead, the race so far. Does not know: clocks; it draws recorded seconds.
Invariants: one scale for all lanes; when speculation loses, the words say "slower here".
"""

import math
from collections.abc import Iterator

from labkit.trace_check import SHORTEST
from labkit.viz.sentences import counted, duration
from labkit.viz.states import State, Story
from labkit.viz.svg import Piece, Scene, box, line, number, text, tip
from labkit.viz.theme import DRAFT, TARGET, TONES

_LABEL = 112
_LANE = 20
_PLAIN = "#999999"
_TOLD = {
    "draft": "drafting",
    "score": "one forward of the target",
    "rest": "accept tests and bookkeeping",
}


def timeline_scene(
    story: Story, state: State, *, width: int, ar_seconds: float | None = None
) -> Scene:
    """Lanes for the draft and the target, and one for plain decoding when its pace is known.

    Args:
        ar_seconds: seconds per token of plain decoding.
    """
    return Timeline(story, width=width, ar_seconds=ar_seconds).scene(state)


class Timeline:
    """The lanes of one story on a page of ``width``; they are the same at every state."""

    def __init__(self, story: Story, *, width: int, ar_seconds: float | None = None) -> None:
        self.story, self.width, self.ar_seconds = story, width, ar_seconds
        spent = sum(span.seconds for span in story.spans)
        plain = ar_seconds * len(story.trace.tokens) if ar_seconds else 0.0
        self.longest = max(spent, plain)
        self.longest = self.longest if SHORTEST <= self.longest < math.inf else 0.0
        self.scale = (width - _LABEL - 4) / self.longest if self.longest else 0.0
        lanes = [*_lanes(story, self.scale)]
        if ar_seconds:
            lanes.append(("autoregressive", _plain_blocks(story, ar_seconds, self.scale)))
        self.foot = len(lanes) * (_LANE + 8)
        self.lanes: list[Piece] = []
        for i, (name, markup) in enumerate(lanes):
            self.lanes.append(Piece(0, i * (_LANE + 8), text(name, 0, 15, size=14)))
            self.lanes.append(Piece(_LABEL, i * (_LANE + 8), markup))

    def scene(self, state: State) -> Scene:
        """The lanes, how far we are, and what that says."""
        if not self.longest:
            none = text("No times were recorded.", 0, 16, size=14)
            return Scene(self.width, 24, (Piece(0, 0, none),))
        now, pieces = _now(self.story, state), list(self.lanes)
        pieces += _playhead(now * self.scale, self.longest * self.scale, self.foot)
        pieces += _axis(self.longest, self.scale, self.foot)
        words = _race(self.story, state, now, self.ar_seconds)
        pieces += [
            Piece(0, self.foot + 26 + 19 * i, text(w, 0, 15, size=14))
            for i, w in enumerate(_wrapped(words, self.width))
        ]
        tall = self.foot + 26 + 19 * (2 if self.width > 560 else 3)
        return Scene(self.width, tall, tuple(pieces))


def _lanes(story: Story, scale: float) -> Iterator[tuple[str, str]]:
    colours = {"draft": DRAFT, "score": TARGET, "rest": _PLAIN}
    rows = [("draft", ("draft",))] if story.longest_tree else []
    for name, lanes in (*rows, ("target", ("score", "rest"))):
        markup = box(0, 0, 1, _LANE, 'fill="none"')
        for lane in lanes:
            blocks = [
                (s, f"round {story.rounds[i // 3].index}: {_TOLD[lane]}, {duration(s.seconds)}")
                for i, s in enumerate(story.spans)
                if s.lane == lane and s.seconds
            ]
            tall = _LANE if lane != "rest" else _LANE // 2
            drawn = "".join(
                f'<path d="M{number(s.start * scale)} {_LANE - tall}h{_across(s.seconds * scale)}v'
                f'{tall}h-{_across(s.seconds * scale)}z">{tip(told)}</path>'
                for s, told in blocks
            )
            markup += f'<g fill="{colours[lane]}">{drawn}</g>' if drawn else ""
        yield name, markup


def _across(pixels: float) -> str:
    """The width of a block: a hair less than to scale, so that neighbours stay apart."""
    return number(max(0.5, pixels - 0.6))


def _plain_blocks(story: Story, ar_seconds: float, scale: float) -> str:
    step = ar_seconds * scale
    path = "".join(
        f"M{number(i * step)} 0h{_across(step)}v{_LANE}h-{_across(step)}z"
        for i in range(len(story.trace.tokens))
    )
    told = tip(f"plain decoding: {duration(ar_seconds)} per token")
    return f'<path fill="{_PLAIN}" d="{path}">{told}</path>'


def _now(story: Story, state: State) -> float:
    """Seconds of decoding behind us at ``state``."""
    if state.phase == "start":
        return 0.0
    done = {"draft": 1, "score": 2, "verify": 2}.get(state.phase, 3)
    return sum(s.seconds for s in story.spans[: 3 * state.at + done])


def _playhead(x: float, end: float, foot: int) -> Iterator[Piece]:
    """What is still to come is veiled."""
    veil = f'class="lk-paper" fill="{TONES["paper"][0]}" fill-opacity="0.72"'
    if end - x > 0.05:
        yield Piece(_LABEL + float(number(x)), 0, box(0, -2, end - x + 2, foot - 4, veil))
    yield Piece(_LABEL + float(number(x)), 0, line(0, -4, 0, foot - 4, tone="ink", width=2))


def _axis(longest: float, scale: float, y: int) -> Iterator[Piece]:
    step = _nice(longest / (4 if longest * scale > 360 else 2))
    ticks = line(0, 0, longest * scale, 0)
    for value in (i * step for i in range(int(longest / step * 1.0001) + 1)):
        x = value * scale
        anchor = "end" if x > longest * scale - 24 else "middle" if value else "start"
        ticks += line(x, -3, x, 4) + text(
            duration(value) if value else "0", x, 18, size=13, classes="lk-muted", anchor=anchor
        )
    yield Piece(_LABEL, y, ticks)


def _nice(raw: float) -> float:
    """1, 2 or 5 times a power of ten, at least ``raw``."""
    raw = max(raw, SHORTEST)
    power = 10.0 ** (math.ceil(math.log10(raw)) - 1)
    return next((power * m for m in (1, 2, 5) if power * m >= raw), power * 10)


def _race(story: Story, state: State, now: float, ar_seconds: float | None) -> str:
    """How far both are at this moment; at the end, who was faster."""
    over = state.phase == "finish" or state.index == story.states[-1].index
    committed = state.phase in ("commit", "forget", "finish")
    made = story.before[state.at + 1] if committed else story.before[max(0, state.at)]
    if ar_seconds is None:
        return f"After {duration(now)}: {counted(made, 'token')}. Plain decoding was not measured."
    if not over or not made or not now:
        plain = min(int(now / ar_seconds + 1e-9), len(story.trace.tokens))
        return f"After {duration(now)}: {counted(made, 'token')} here, {plain} by plain decoding."
    ratio = ar_seconds * made / now
    how = "Faster" if round(ratio, 2) > 1 else "Slower" if round(ratio, 2) < 1 else "No gain"
    return (
        f"{how} here, {ratio:.2f}×: {counted(made, 'token')} in {duration(now)}; plain decoding "
        f"takes {duration(ar_seconds * made)}, {duration(ar_seconds)} per token."
    )


def _wrapped(words: str, width: int) -> list[str]:
    """``words`` in lines of about ``width`` pixels."""
    room, lines = int(width / 7.1), [""]
    for word in words.split(" "):
        if len(lines[-1]) + len(word) + 1 > room:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
