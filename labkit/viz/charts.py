"""Charts of quantities: acceptance, confidence, speed-up, forward time, laws.

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
from labkit.metrics import Acceptance, AtDepth, Calibrated
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


def acceptance_by_depth(runs: Mapping[str, Sequence[AtDepth]]) -> Chart:
    """Share of drafts that were accepted at each depth, of those that came so far.

    Args:
        runs: counts by name, see `labkit.metrics.acceptance_by_depth`.
    """
    _check_some("runs", runs)
    deepest = max((n.depth for rows in runs.values() for n in rows), default=0)
    known = {name: [n for n in rows if n.reached] for name, rows in runs.items()}
    bars = tuple(
        Series(
            name,
            tuple(n.depth - 1 for n in rows),
            tuple(n.accepted / n.reached for n in rows),
            tuple(rate(n.rate) for n in rows),
        )
        for name, rows in known.items()
        if rows
    )
    plot = Plot(
        title="Acceptance by depth, where the path came so far",
        x_title="depth in the draft",
        y_title="accepted / reached",
        top=1.0,
        categories=tuple(str(d + 1) for d in range(deepest)),
        bars=bars,
        empty="Nothing was drafted: acceptance n/a.",
    )
    told = [
        f"{name}: " + (", ".join(f"depth {n.depth} {rate(n.rate)}" for n in rows) or "n/a")
        for name, rows in known.items()
    ]
    cells = {name: {n.depth: n for n in rows} for name, rows in known.items()}
    rows = tuple(
        (name, *(_share(found.get(d + 1)) for d in range(deepest))) for name, found in cells.items()
    )
    header = ("run", *(f"depth {d + 1}" for d in range(deepest)))
    return Chart(plot, "; ".join(told) + ".", header, rows)


def _share(n: AtDepth | None) -> str:
    return f"{rate(n.rate)} ({n.accepted} of {n.reached})" if n else "n/a"


def calibration(runs: Mapping[str, Sequence[Calibrated]]) -> Chart:
    """What a head expects of its tokens against what was accepted of them.

    Args:
        runs: bins by name, see `labkit.metrics.calibration`; at most three are told apart by the
            shape of their points.
    """
    _check_some("runs", runs)
    points = tuple(
        Series(
            name,
            tuple(b.predicted / b.count for b in bins),
            tuple(b.accepted / b.count for b in bins),
            tuple(_bin_words(b) for b in bins),
        )
        for name, bins in runs.items()
        if bins
    )
    plot = Plot(
        title="Confidence and acceptance",
        x_title="the head's own probability of a drafted token",
        y_title="share that was accepted",
        top=1.0,
        curves=(Series("as sure as it should be", (0.0, 1.0), (0.0, 1.0)),) if points else (),
        points=points,
        empty="No confidence was recorded.",
    )
    rows = [
        (name, f"{b.low:.2f}–{b.high:.2f}", str(b.count), rate(b.predicted / b.count),
         rate(b.accepted / b.count))
        for name, bins in runs.items() for b in bins
    ]  # fmt: skip
    header = ("run", "confidence", "tokens", "expected", "accepted")
    return Chart(plot, " ".join(_off(*run) for run in runs.items()), header, tuple(rows))


def _bin_words(b: Calibrated) -> str:
    shares = rate(b.predicted / b.count), rate(b.accepted / b.count)
    return f"expected {shares[0]}, accepted {shares[1]} of {b.count}"


def _off(name: str, bins: Sequence[Calibrated]) -> str:
    """How far a run's confidence is off: over all tokens, and on average over its bins (the
    expected calibration error, weighted by tokens)."""
    count = sum(b.count for b in bins)
    if not count:
        return f"{name}: no confidence was recorded."
    expected, accepted = sum(b.predicted for b in bins), sum(b.accepted for b in bins)
    error = sum(abs(b.predicted - b.accepted) for b in bins) / count
    lean = "more sure than right" if expected > accepted else "less sure than right"
    lean = "as sure as right" if rate(expected / count) == rate(accepted / count) else lean
    return (
        f"{name}: {count} tokens, expected {rate(expected / count)}, accepted "
        f"{rate(accepted / count)} ({lean}); mean distance {rate(error)}."
    )


def by_size(
    runs: Mapping[str, Mapping[int, float]],
    *,
    quantity: str,
    along: str = "nodes in the draft",
    each: str = "{} nodes",
) -> Chart:
    """One measured quantity against the size of the draft.

    Args:
        runs: by name, the value at each size.
        quantity: what it is, for instance "accepted per round" or "speed over plain decoding".
        along, each: what a size counts, and what one of them is called.
    """
    _check_some("runs", runs)
    counts = sorted({n for values in runs.values() for n in values})
    bars = tuple(
        Series(
            name,
            tuple(counts.index(n) for n in sorted(values)),
            tuple(values[n] for n in sorted(values)),
            tuple(f"{values[n]:.2f}" for n in sorted(values)),
        )
        for name, values in runs.items()
        if values
    )
    plot = Plot(
        title=f"{quantity[:1].upper()}{quantity[1:]}, by {along}",
        x_title=along,
        y_title=quantity,
        top=rounded_up(max((v for values in runs.values() for v in values.values()), default=1.0)),
        categories=tuple(map(str, counts)),
        bars=bars,
    )
    best = {name: max(v, key=lambda n: (v[n], -n)) for name, v in runs.items() if v}
    told = [f"{name}: most at {each.format(n)}, {runs[name][n]:.2f}" for name, n in best.items()]
    rows = tuple(
        (name, *(f"{v[n]:.2f}" if n in v else "n/a" for n in counts)) for name, v in runs.items()
    )
    sentence = f"{quantity}: {'; '.join(told) or 'nothing was measured'}."
    return Chart(plot, sentence, ("run", *map(each.format, counts)), rows)


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
        top=rounded_up(max(times)),
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
        top=rounded_up(max((p for law in laws.values() for p in law), default=1.0)),
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


def rounded_up(value: float) -> float:
    """The next number that reads well on an axis."""
    step = 1.0
    while step > value:
        step /= 10
    while step * 10 < value:
        step *= 10
    return next(step * m for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * m >= value)
