"""Charts: the numbers named as published work names them, nothing made up, nothing uploaded."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import viz_traces

from labkit import cost, metrics
from labkit.errors import BadInput
from labkit.metrics import Acceptance
from labkit.viz import charts
from labkit.viz.charts import Chart, Measured
from labkit.viz.figures import CONFIG, plotly_bundle

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart: Chart) -> ET.Element:
    return ET.fromstring(chart.picture.svg)


def tips(chart: Chart) -> list[str]:
    root = drawn(chart)
    return [t.text or "" for g in root.iter(f"{SVG}g") for t in g.findall(f"{SVG}title")]


def examples() -> dict[str, Chart]:
    chain, tree, none = viz_traces.chain(), viz_traces.tree(), viz_traces.nothing_drafted()
    runs = {"draft": metrics.acceptance(chain), "tree": metrics.acceptance(tree)}
    measured = [Measured("draft", 0.6, 1.3), Measured("none", None, 1.1)]
    laws = {"target": (0.5, 0.5), "broken": (0.75, 0.25)}
    return {
        "acceptance": charts.acceptance_by_position(runs),
        "nothing": charts.acceptance_by_position({"ngram": metrics.acceptance(none)}),
        "speed": charts.speedup_curve((1, 4), cost_ratio=0.1, measured=measured),
        "forward": charts.forward_time({1: 37.0, 8: 45.0, 16: 52.0}),
        "law": charts.law_comparison(laws, tokens=(" a", "\n")),
    }


@pytest.mark.parametrize("name", examples())
def test_every_chart_has_a_twin_a_sentence_a_table_and_a_figure(name: str) -> None:
    chart = examples()[name]
    assert drawn(chart).findtext(f"{SVG}title") == chart.plot.title
    assert drawn(chart).findtext(f"{SVG}desc") == chart.sentence == repr(chart)
    rows = ET.fromstring(chart.table).findall("./tbody/tr")
    assert {len(row) for row in rows} == {len(chart.header)}
    assert type(chart.figure).__name__ == "Figure"


@pytest.mark.parametrize("name", examples())
def test_charts_are_deterministic(name: str) -> None:
    one, other = examples()[name], examples()[name]
    assert one == other
    assert one.picture == other.picture
    assert plotly_bundle(one.plot) == plotly_bundle(other.plot)
    assert "uid" not in json.dumps(plotly_bundle(one.plot))


def test_lengths_with_and_without_the_targets_own_token_are_both_named() -> None:
    """Five rounds that accept one token each: 1.0 accepted, 2.0 committed per round."""
    numbers = Acceptance.from_histogram([0, 5, 0], draft_length=2)
    chart = charts.acceptance_by_position({"draft": numbers})
    assert (
        "accepted per round 1.00, committed per round 2.00 (mean accepted length)" in chart.sentence
    )
    cells = dict(zip(chart.header, chart.rows[0], strict=True))
    assert (cells["accepted per round"], cells["committed per round"]) == ("1.00", "2.00")


def test_another_histogram_gives_other_lengths() -> None:
    numbers = Acceptance.from_histogram([0, 0, 5], draft_length=2)
    assert "accepted per round 2.00, committed per round 3.00" in repr(
        charts.acceptance_by_position({"draft": numbers})
    )


def test_published_counts() -> None:
    """Histogram [39, 1, 0, 3] with three drafted per round."""
    chart = charts.acceptance_by_position(
        {"run": Acceptance.from_histogram([39, 1, 0, 3], draft_length=3)}
    )
    assert chart.plot.bars[0].y == pytest.approx((4 / 43, 3 / 43, 3 / 43))
    assert "accepted / drafted 0.08" in chart.sentence
    assert "committed per round 1.23" in chart.sentence


def test_nothing_drafted_reads_na_and_renders() -> None:
    chart = examples()["nothing"]
    assert chart.sentence == (
        "ngram: drafted per round 0.00, accepted / drafted n/a, accepted per round 0.00, "
        "committed per round 1.00 (mean accepted length)."
    )
    assert "Nothing was drafted: acceptance n/a." in chart.picture.svg
    assert not chart.figure.data


def test_the_rate_never_stands_without_the_volume() -> None:
    """A drafter that keeps only what it is sure of: every token accepted, and no speed-up."""
    shy = Acceptance(histogram=(95, 5), drafted=5, committed=105)
    chart = charts.acceptance_by_position({"threshold": shy})
    assert "drafted per round 0.05, accepted / drafted 1.00" in chart.sentence
    none = charts.speedup_curve((4,), cost_ratio=0.1, measured=[Measured("threshold", None, 1.2)])
    assert "no speed-up claimed" in none.sentence
    assert "1.20" not in none.sentence
    assert not none.plot.points


def test_speed_up_is_the_cost_model() -> None:
    chart = charts.speedup_curve((4,), cost_ratio=0.3, measured=[Measured("draft", 0.3, 0.65)])
    curve = chart.plot.curves[0]
    at = curve.x.index(0.3)
    assert curve.y[at] == pytest.approx(cost.speedup(alpha=0.3, draft_length=4, cost_ratio=0.3))
    assert "measured draft: 0.65× (slower) at acceptance 0.30" in chart.sentence
    assert "slower than plain decoding" in chart.picture.svg
    assert "draft: 0.65× (slower)" in tips(chart)


def test_a_wider_forward_can_cost_more() -> None:
    free = charts.speedup_curve((4,), cost_ratio=0.1)
    dear = charts.speedup_curve((4,), cost_ratio=0.1, verify_ratios={4: 2.0})
    assert dear.plot.curves[0].y[-1] < free.plot.curves[0].y[-1]


def test_forward_times_are_compared_with_one_token() -> None:
    chart = examples()["forward"]
    assert chart.rows == (
        ("1", "37.0", "1.00", "37.0"), ("8", "45.0", "1.22", "5.6"), ("16", "52.0", "1.41", "3.2"),
    )  # fmt: skip
    assert "forward, 16: 52.0 ms, 1.41×" in tips(chart)


def test_bars_are_to_scale() -> None:
    bars = [float(r.get("height") or 0) for r in drawn(examples()["forward"]).iter(f"{SVG}rect")][
        1:
    ]
    assert bars[0] / bars[2] == pytest.approx(37 / 52, rel=0.01)


def test_laws_are_compared_by_total_variation() -> None:
    chart = examples()["law"]
    assert chart.sentence == "Distance from target (total variation): broken 0.250."
    assert chart.header == ("law", "␣a", "⏎", "distance")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: charts.acceptance_by_position({}),
        lambda: charts.forward_time({}),
        lambda: charts.law_comparison({}, tokens=()),
        lambda: charts.law_comparison({"target": (1.0,)}, tokens=("a", "b")),
    ],
)
def test_impossible_charts_are_refused(ask: Any) -> None:
    with pytest.raises(BadInput):
        ask()


def test_no_button_uploads_the_data() -> None:
    bundle = plotly_bundle(examples()["forward"].plot)["application/vnd.plotly.v1+json"]
    assert bundle["config"] == CONFIG
    assert CONFIG == {"displayModeBar": False, "displaylogo": False, "showSendToCloud": False}


def test_a_notebook_gets_chart_caption_and_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    examples()["forward"]._ipython_display_()
    chart, below = shown
    assert set(chart) == {
        "application/vnd.plotly.v1+json", "text/html", "image/svg+xml", "text/plain",
    }  # fmt: skip
    assert "<svg" in chart["text/html"]
    assert "<table>" in below["text/html"]
    assert "<caption" not in below["text/html"]


def test_charts_work_without_plotly() -> None:
    script = (
        "import sys; sys.modules['plotly'] = None\n"
        "from labkit.viz import charts\n"
        "from labkit.viz.figures import plotly_bundle\n"
        "chart = charts.forward_time({1: 37.0, 8: 45.0})\n"
        "print(plotly_bundle(chart.plot), '<svg' in chart.picture.svg)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "{} True\n"
