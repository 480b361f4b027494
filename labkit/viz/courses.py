"""How one quantity goes on along another: over training, over the steps of a chain.

Owns: what is drawn, its sentence and its table. Does not know: what was measured.
Invariants: as of `labkit.viz.charts`; a value that does not exist is left out of its curve.
"""

from collections.abc import Mapping, Sequence

from labkit.errors import require
from labkit.viz.charts import Chart, rounded_up
from labkit.viz.plots import Plot, Series, short_number

Course = Mapping[float, float | None]
"""Values by place, the places ascending; None where none could be measured."""


def course(
    runs: Mapping[str, Course], *, quantity: str, along: str, mark: tuple[float, str] | None = None
) -> Chart:
    """One curve for each run.

    Args:
        runs: by name, the value at each place.
        quantity, along: what the values and the places are, with their units.
        mark: height and name of a line worth showing: a goal, or what there is without trying.
    """
    require(len(runs) > 0, "runs", "at least one", 0)
    known = {
        name: {x: y for x, y in values.items() if y is not None} for name, values in runs.items()
    }
    curves = tuple(
        Series(
            name,
            tuple(values),
            tuple(values.values()),
            tuple(f"{y:.3g} at {short_number(x)}" for x, y in values.items()),
        )
        for name, values in known.items()
        if values
    )
    places = sorted({x for values in runs.values() for x in values})
    highest = max([y for series in curves for y in series.y] + ([mark[0]] if mark else []) or [1.0])
    plot = Plot(
        title=f"{quantity[:1].upper()}{quantity[1:]}, along {along}",
        x_title=along,
        y_title=quantity,
        top=rounded_up(highest),
        curves=curves,
        mark=mark,
        ticks=_ticks(places),
    )
    rows = tuple(
        (name, *(f"{values[x]:.3g}" if x in values else "n/a" for x in places))
        for name, values in known.items()
    )
    told = [_told(series) for series in curves]
    sentence = f"{quantity}: {'; '.join(told) or 'nothing was measured'}."
    return Chart(plot, sentence, ("run", *(f"{along} {short_number(x)}" for x in places)), rows)


def _ticks(places: Sequence[float]) -> tuple[float, ...]:
    """Every place when they are few whole numbers, else steps from 0 to beyond the last."""
    if 2 <= len(places) <= 12 and all(x == int(x) and x <= 99 for x in places):
        return tuple(places)
    last = rounded_up(max(places, default=1.0))
    return tuple(last * i / 5 for i in range(6))


def _told(series: Series) -> str:
    ends = [f"{y:.3g} at {short_number(x)}" for x, y in zip(series.x, series.y, strict=True)]
    if len(ends) == 1:
        return f"{series.name} {ends[0]}"
    return f"{series.name} from {ends[0]} to {ends[-1]}"
