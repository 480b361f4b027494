"""Charts of quantities: acceptance, speed-up, forward time, laws.

Owns: what is charted, its sentence and its table.
Does not know: models; it charts numbers that were measured elsewhere.
Invariants: a value that does not exist reads n/a and is not drawn.

plotly figures are silent for screen readers and vanish from converted notebooks, so each chart has
an SVG twin, a sentence and a table.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.cost import speedup, verdict
from labkit.errors import BadInput
from labkit.metrics import Acceptance
from labkit.viz.figures import plotly_bundle, plotly_figure
from labkit.viz.picture import Picture
from labkit.viz.plots import Plot, Series, plot_scene
from labkit.viz.sentences import rate
from labkit.viz.svg import visible


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart in four forms. header, rows: the table behind it."""

    plot: Plot
    sentence: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def picture(self) -> Picture:
        """The SVG twin with the sentence."""
        svg = plot_scene(self.plot).svg(title=self.plot.title, description=self.sentence)
        return Picture(svg, self.sentence)

    @property
    def table(self) -> str:
        """The numbers as an HTML table."""
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.header)
        body = "".join(
            f'<tr><th scope="row">{html.escape(row[0])}</th>'
            + "".join(f"<td>{html.escape(value)}</td>" for value in row[1:])
            + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    @property
    def figure(self) -> Any:
        """The plotly figure, a plain ``go.Figure``; needs plotly."""
        return plotly_figure(self.plot)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        picture, words = self.picture, repr(self)
        chart: dict[str, Any] = {
            "text/html": picture.drawing,
            "image/svg+xml": picture.svg,
            "text/plain": words,
        }
        below = (
            f"<p>{html.escape(self.sentence)}</p><details><summary>The numbers as a table</summary>"
            f"{self.table}</details>"
        )
        display(chart | plotly_bundle(self.plot), raw=True)
        display({"text/html": below, "text/plain": words}, raw=True)

    def __repr__(self) -> str:
        return self.sentence


def acceptance_by_position(runs: Mapping[str, Acceptance]) -> Chart:
    """Share of rounds that accepted the first, second, ... drafted token.

    Args:
        runs: counts by name, see `labkit.metrics.acceptance`.
    """
    _check_some("runs", runs)
    longest = max(len(numbers.by_position) for numbers in runs.values())
    bars = tuple(
        Series(
            name, tuple(range(len(n.by_position))), n.by_position, tuple(map(rate, n.by_position))
        )
        for name, n in runs.items()
        if n.drafted
    )
    plot = Plot(
        title="Acceptance by position",
        x_title="drafted token, counted from the pending one",
        y_title="share of rounds that accepted it",
        top=1.0,
        categories=tuple(str(i + 1) for i in range(longest)),
        bars=bars,
        empty="Nothing was drafted: acceptance n/a.",
    )
    return Chart(
        plot,
        " ".join(f"{name}: {_acceptance_words(n)}." for name, n in runs.items()),
        ("run", *(f"position {i + 1}" for i in range(longest)), *_RATES),
        tuple((name, *_positions(n, longest), *_rates(n)) for name, n in runs.items()),
    )


_RATES = (
    "drafted per round",
    "accepted / drafted",
    "accepted per round",
    "committed per round",
)


def _rates(n: Acceptance) -> tuple[str, ...]:
    values = (n.drafted_per_round, n.rate, n.accepted_per_round, n.mean_accepted_length)
    return tuple(map(rate, values))


def _positions(n: Acceptance, longest: int) -> tuple[str, ...]:
    known = n.by_position if n.drafted else ()
    return tuple(rate(known[i]) if i < len(known) else "n/a" for i in range(longest))


def _acceptance_words(n: Acceptance) -> str:
    told = ", ".join(f"{name} {value}" for name, value in zip(_RATES, _rates(n), strict=True))
    return told + " (mean accepted length)"


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of this machine. alpha: accepted / drafted, None when nothing was drafted; speedup:
    seconds of plain decoding over seconds of this run, for as many tokens."""

    name: str
    alpha: float | None
    speedup: float


def speedup_curve(
    draft_lengths: Sequence[int],
    *,
    cost_ratio: float,
    verify_ratios: Mapping[int, float] | None = None,
    measured: Sequence[Measured] = (),
) -> Chart:
    """Speed against plain decoding for every acceptance, and the runs that were measured.

    Args:
        draft_lengths: one curve for each K.
        cost_ratio: one draft step over one single-token target step.
        verify_ratios: for a K, one forward of K + 1 tokens over one of a single token; 1 where
            it is not given.
    """
    ratios = verify_ratios or {}
    alphas = tuple(i / 20 for i in range(21))
    curves = tuple(
        Series(f"K = {k}", alphas, tuple(_speed(a, k, cost_ratio, ratios) for a in alphas))
        for k in draft_lengths
    )
    drafted = tuple(m for m in measured if m.alpha is not None)
    points = tuple(
        Series(m.name, (m.alpha or 0.0,), (m.speedup,), (verdict(m.speedup),)) for m in drafted
    )
    highest = max((y for s in (*curves, *points) for y in s.y), default=2.0)
    plot = Plot(
        title=f"Speed-up by acceptance, one draft step at {cost_ratio:.2f} of a target step",
        x_title="chance that a drafted token is accepted",
        y_title="speed over plain decoding",
        top=max(2.0, float(-(-highest // 1))),
        curves=curves,
        points=points,
        mark=(1.0, "below this line: slower than plain decoding"),
    )
    shown = (0.0, 0.25, 0.5, 0.75, 1.0)
    rows = [(s.name, *(f"{s.y[s.x.index(a)]:.2f}" for a in shown), "–") for s in curves]
    rows += [(m.name, *("–" for _ in shown), _measured_words(m)) for m in measured]
    header = ("", *(f"acceptance {a:g}" for a in shown), "measured")
    return Chart(plot, _speedup_words(curves, measured), header, tuple(rows))


def _measured_words(m: Measured) -> str:
    if m.alpha is None:
        return "nothing was drafted: acceptance n/a, no speed-up claimed"
    return f"{verdict(m.speedup)} at acceptance {rate(m.alpha)}"


def _speed(alpha: float, k: int, cost_ratio: float, ratios: Mapping[int, float]) -> float:
    return speedup(
        alpha=alpha, draft_length=k, cost_ratio=cost_ratio, verify_ratio=ratios.get(k, 1.0)
    )


def _speedup_words(curves: Sequence[Series], measured: Sequence[Measured]) -> str:
    words = []
    for curve in curves:
        pays = next((x for x, y in zip(curve.x, curve.y, strict=True) if y > 1), None)
        words.append(
            f"{curve.name} never pays"
            if pays is None
            else f"{curve.name} pays from acceptance {pays:.2f} on, at most {max(curve.y):.2f}×"
        )
    told = [f"measured {m.name}: {_measured_words(m)}" for m in measured]
    return "; ".join(words + told) + "."


def forward_time(milliseconds: Mapping[int, float]) -> Chart:
    """How long one target forward takes, by the number of tokens in it.

    Args:
        milliseconds: by width; should hold width 1, which the others are compared with.
    """
    _check_some("milliseconds", milliseconds)
    widths = sorted(milliseconds)
    times = tuple(milliseconds[w] for w in widths)
    single = milliseconds[widths[0]]
    labels = tuple(f"{t:.1f} ms, {t / single:.2f}×" for t in times)
    plot = Plot(
        title="One forward of the target, by tokens in it",
        x_title="tokens in the forward",
        y_title="milliseconds",
        top=_round_up(max(times)),
        categories=tuple(map(str, widths)),
        bars=(Series("forward", tuple(range(len(widths))), times, labels),),
    )
    last = widths[-1]
    sentence = (
        f"A forward of {last} tokens takes {milliseconds[last] / single:.2f} times as long as one "
        f"of {widths[0]} ({milliseconds[last]:.1f} ms against {single:.1f} ms)."
    )
    rows = tuple(
        (str(w), f"{t:.1f}", f"{t / single:.2f}", f"{t / w:.1f}")
        for w, t in zip(widths, times, strict=True)
    )
    return Chart(plot, sentence, ("tokens", "ms", f"over {widths[0]}", "ms per token"), rows)


def law_comparison(laws: Mapping[str, Sequence[float]], *, tokens: Sequence[str]) -> Chart:
    """Laws over the same tokens side by side, and how far each is from the first.

    Args:
        laws: probabilities (or shares of samples) by name; the first one is the reference.
        tokens: what the places mean.

    Raises:
        BadInput: a law of another length than ``tokens``.
    """
    _check_some("laws", laws)
    for name, law in laws.items():
        if len(law) != len(tokens):
            raise BadInput(
                f"law {name!r}",
                expected=f"{len(tokens)} probabilities, one for each token",
                got=str(len(law)),
                next_step="give every law over the same tokens",
            )
    reference = next(iter(laws))
    far = {
        name: sum(abs(a - b) for a, b in zip(law, laws[reference], strict=True)) / 2
        for name, law in laws.items()
    }
    plot = Plot(
        title="Law of the next token",
        x_title="token",
        y_title="probability",
        top=_round_up(max((p for law in laws.values() for p in law), default=1.0)),
        categories=tuple(visible(token) for token in tokens),
        bars=tuple(
            Series(n, tuple(range(len(p))), tuple(p), tuple(map(rate, p))) for n, p in laws.items()
        ),
    )
    told = ", ".join(f"{name} {far[name]:.3f}" for name in laws if name != reference)
    sentence = f"Distance from {reference} (total variation): {told or 'nothing to compare with'}."
    rows = tuple((n, *(f"{p:.3f}" for p in law), f"{far[n]:.3f}") for n, law in laws.items())
    return Chart(plot, sentence, ("law", *map(visible, tokens), "distance"), rows)


def _check_some(name: str, given: Mapping[Any, Any]) -> None:
    if not given:
        raise BadInput(name, expected="at least one", got="none", next_step=f"give some {name}")


def _round_up(value: float) -> float:
    """The next number that reads well on an axis."""
    step = 1.0
    while step > value:
        step /= 10
    while step * 10 < value:
        step *= 10
    return next(step * m for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * m >= value)
