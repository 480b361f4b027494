"""Charts as SVG: the twin of every plotly chart, for pages that run no script.

Owns: axes, bars, curves, points. Does not know: what is charted, plotly.
Invariants: series differ by dashes, borders or place and not by colour alone; every bar and point
tells its value when the pointer rests on it; an empty chart says so in words.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.viz.svg import Piece, Scene, box, line, number, text, tip
from labkit.viz.theme import TONES

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
DASHES = ("", "8 4", "2 3", "10 3 2 3", "4 4", "1 3")
_LEFT, _TOP, _FOOT, _HEIGHT = 64, 62, 56, 350


@dataclass(frozen=True, slots=True)
class Series:
    """A named row of values. x: numbers of a curve, or places 0, 1, ... of categories.

    key: where a page redraws a curve or point itself, the name by which it finds the shape.
    look: which of the shapes a point has; None: that of its rank.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    labels: tuple[str, ...] = ()
    key: str = ""
    look: int | None = None

    @property
    def mark(self) -> str:
        """The attribute that carries the key."""
        return f' data-key="{self.key}"' if self.key else ""


@dataclass(frozen=True, slots=True)
class Area:
    """Where curves stand on a scene: its left and upper edge, its width and its height."""

    left: float
    top: float
    across: float
    up: float


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn. bars stand at ``categories``; curves and points share a numeric x axis.

    top: upper end of the y axis; mark: y of a line worth a name, with that name.
    ticks: numbers on the x axis of curves, ascending; the axis goes from the first to the last.
    tick_names: what stands at them instead. heights: what stands at the five lines of the y axis.
    """

    title: str
    x_title: str
    y_title: str
    top: float
    categories: tuple[str, ...] = ()
    bars: tuple[Series, ...] = ()
    curves: tuple[Series, ...] = ()
    points: tuple[Series, ...] = ()
    mark: tuple[float, str] | None = None
    empty: str = field(default="Nothing was measured.")
    ticks: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    tick_names: tuple[str, ...] = ()
    heights: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[Series, ...]:
        """All series, in the order of the legend."""
        return self.bars + self.curves + self.points


def plot_scene(plot: Plot, *, width: int = 720) -> Scene:
    """The chart on ``width`` pixels."""
    area = plot_area(plot, width=width)
    across, up, top = area.across, int(area.up), area.top
    pieces = [Piece(0, 0, text(plot.title, 8, 22, size=16, weight=700))]
    if not any(series.y for series in plot.series):
        pieces.append(Piece(0, 0, text(plot.empty, 8, 54, size=14)))
        return Scene(width, 80, tuple(pieces))
    pieces += [Piece(p.x + 8, p.y + 34, p.markup) for p in _legend(plot, width - 16)]
    inside = [*_y_axis(plot, across, up)]
    if plot.bars:
        inside += [*_category_axis(plot, across, up), *_bars(plot, across, up)]
    else:
        inside += [*_number_axis(plot, across, up), *_curves(plot, across, up)]
    pieces += [Piece(p.x + _LEFT, p.y + top, p.markup) for p in inside]
    pieces.append(Piece(_LEFT + across / 2, top + up + 46, _centred(plot.x_title)))
    return Scene(width, int(top) + up + _FOOT, tuple(pieces))


def plot_area(plot: Plot, *, width: int = 720) -> Area:
    """Where `plot_scene` puts the curves of ``plot``."""
    legend = list(_legend(plot, width - 16))
    top = _TOP + (legend[-1].y + 26 if legend else 0)
    return Area(_LEFT, top, width - _LEFT - 16, _HEIGHT - _TOP - _FOOT)


def _centred(words: str) -> str:
    return text(words, 0, 0, size=14, anchor="middle")


def _y_axis(plot: Plot, across: float, up: float) -> Iterator[Piece]:
    yield Piece(-_LEFT + 8, -12, text(plot.y_title, 0, 0, size=13, classes="lk-muted"))
    for i in range(5):
        y = up - i * up / 4
        yield Piece(0, y, line(0, 0, across, 0))
        value = plot.heights[i] if plot.heights else f"{plot.top * i / 4:.3g}"
        # clear of a point that stands on the axis
        yield Piece(-13, y + 5, text(value, 0, 0, size=13, classes="lk-muted", anchor="end"))
    if plot.mark:
        y = up - up * plot.mark[0] / plot.top
        yield Piece(0, y, line(0, 0, across, 0, tone="ink", width=1.5))
        yield Piece(across - 4, y + 16, text(plot.mark[1], 0, 0, size=13, anchor="end"))


def _category_axis(plot: Plot, across: float, up: float) -> Iterator[Piece]:
    step = across / len(plot.categories)
    for i, name in enumerate(plot.categories):
        yield Piece((i + 0.5) * step, up + 20, text(name, 0, 0, size=13, anchor="middle"))


def _bars(plot: Plot, across: float, up: float) -> Iterator[Piece]:
    step = across / len(plot.categories)
    room = min(step * 0.8 / len(plot.bars), 64)
    for rank, series in enumerate(plot.bars):
        for i, (place, value) in enumerate(zip(series.x, series.y, strict=True)):
            x = (place + 0.5) * step + (rank - len(plot.bars) / 2) * room
            tall = up * min(value, plot.top) / plot.top
            words = series.labels[i] if series.labels else f"{value:.3g}"
            told = tip(f"{series.name}, {plot.categories[int(place)]}: {words}")
            bar = box(x + 2, up - tall, room - 4, max(tall, 1), _bar_paint(rank))
            yield Piece(0, 0, f"<g>{bar}{told}</g>")
            if (room if len(plot.bars) > 1 else step) >= 6.6 * len(words):
                label = text(words, 0, 0, size=12, anchor="middle")
                yield Piece(x + room / 2, up - tall - 5, label)


def _bar_paint(rank: int) -> str:
    """The first series is solid, later ones are light with borders of their own."""
    colour = COLOURS[rank % len(COLOURS)]
    dash = DASHES[rank % len(DASHES)]
    style = f'fill-opacity="{1 if rank == 0 else 0.35}" stroke="{colour}" stroke-width="2"'
    return f'fill="{colour}" {style}' + (f' stroke-dasharray="{dash}"' if dash else "")


def _number_axis(plot: Plot, across: float, up: float) -> Iterator[Piece]:
    names = plot.tick_names or tuple(map(short_number, plot.ticks))
    for x, words in zip(plot.ticks, names, strict=True):
        where = across * _part(plot, x)
        yield Piece(where, up + 20, text(words, 0, 0, size=13, anchor="middle"))


def _part(plot: Plot, x: float) -> float:
    """Place on the x axis, from 0 to 1."""
    first, last = plot.ticks[0], plot.ticks[-1]
    return (x - first) / (last - first)


def short_number(x: float) -> str:
    """For an axis: 0.25, 12, 400k, 1.5M."""
    if abs(x) >= 1e6:
        return f"{x / 1e6:.3g}M"
    if abs(x) >= 1e4 or (abs(x) >= 1e3 and x % 100 == 0):
        return f"{x / 1e3:.3g}k"
    return f"{x:,.0f}" if x == int(x) else f"{x:.3g}"


def _curves(plot: Plot, across: float, up: float) -> Iterator[Piece]:
    for rank, curve in enumerate(plot.curves):
        spots = [
            f"{number(_part(plot, x) * across)} {number(up - up * min(y, plot.top) / plot.top)}"
            for x, y in zip(curve.x, curve.y, strict=True)
        ]
        drawn = f'd="M{"L".join(spots)}" {_curve_paint(rank)}{curve.mark}'
        yield Piece(0, 0, f"<path {drawn}>{tip(curve.name)}</path>")
    for rank, series in enumerate(plot.points):
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            at = Piece(
                _part(plot, x) * across, up - up * min(y, plot.top) / plot.top, _point(series, rank)
            )
            words = series.labels[i] if series.labels else f"{y:.3g}"
            told = tip(f"{series.name}: {words}")
            yield Piece(at.x, at.y, f"<g{series.mark}>{at.markup}{told}</g>")


def _curve_paint(rank: int) -> str:
    dash = DASHES[rank % len(DASHES)]
    drawn = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{COLOURS[rank % len(COLOURS)]}" stroke-width="2.5"{drawn}'


_SHAPES = (
    "M0 -8L8 0L0 8L-8 0z",
    "M-6 -6H6V6H-6z",
    "M0 -8L8 7H-8z",
    "M0 8L8 -7H-8z",
    "M-2.5 -8H2.5V-2.5H8V2.5H2.5V8H-2.5V2.5H-8V-2.5H-2.5z",
    "M-3.5 -8H3.5L8 -3.5V3.5L3.5 8H-3.5L-8 3.5V-3.5z",
)


def _point(series: Series, rank: int) -> str:
    """A diamond, a square, a triangle, ...: one shape for each measured series."""
    rank = rank if series.look is None else series.look
    shape = _SHAPES[rank % len(_SHAPES)]
    return (
        f'<path class="lk-inkline" d="{shape}" fill="{COLOURS[(rank + 5) % len(COLOURS)]}" '
        f'stroke="{TONES["ink"][0]}" stroke-width="2"/>'
    )


def _legend(plot: Plot, width: float) -> Iterator[Piece]:
    if len(plot.series) < 2 and not plot.points:
        return
    x = y = 0.0
    for i, series in enumerate(plot.series):
        room = 58 + 7.4 * len(series.name)
        if x and x + room > width:
            x, y = 0.0, y + 24
        yield Piece(x, y, _swatch(plot, i) + text(series.name, 36, 14, size=14))
        x += room


def _swatch(plot: Plot, i: int) -> str:
    if i < len(plot.bars):
        return box(4, 3, 24, 12, _bar_paint(i))
    i -= len(plot.bars)
    if i < len(plot.curves):
        return f'<path d="M0 9H30" {_curve_paint(i)}/>'
    i -= len(plot.curves)
    return f'<g transform="translate(15 9)">{_point(plot.points[i], i)}</g>'
