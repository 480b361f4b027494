"""Charts: the numbers named as published work names them, nothing made up, nothing uploaded."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import viz_traces
from viz_traces import Script

from labkit import cost, metrics
from labkit.errors import BadInput
from labkit.metrics import Acceptance
from labkit.trace import Trace
from labkit.viz import charts
from labkit.viz.budgets import budget_chart
from labkit.viz.charts import Chart, Measured
from labkit.viz.courses import course
from labkit.viz.figures import CONFIG, plotly_bundle
from labkit.viz.plots import short_number

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
        "depth": charts.acceptance_by_depth(
            {"chain": metrics.acceptance_by_depth(chain), "none": metrics.acceptance_by_depth(none)}
        ),
        "calibration": charts.calibration(
            {"eagle2": metrics.calibration(viz_traces.dynamic(20)), "none": ()}
        ),
        "nodes": charts.by_size(
            {"tree": {4: 1.5, 15: 2.25}, "chain": {4: 1.25}}, quantity="accepted per round"
        ),
        "budget": budget_chart(
            cost.Budget({1: 1.5, 7: 2.0}, {1: 0.25, 7: 0.25}, {1: 0.95, 7: 2.25})
        ),
        "speed": charts.speedup_curve((1, 4), cost_ratio=0.1, measured=measured),
        "forward": charts.forward_time({1: 37.0, 8: 45.0, 16: 52.0}),
        "law": charts.law_comparison(laws, tokens=(" a", "\n")),
        "course": course(
            {"a": {1: 0.5, 2: None, 3: 0.25}, "b": {1: 0.75}, "c": {}},
            quantity="acceptance",
            along="steps",
        ),
        "training": course(
            {"head": {0: 1.0, 640_000: 1.5, 1_280_000: 1.75}},
            quantity="tokens per round",
            along="tokens seen",
            mark=(2.0, "the goal"),
        ),
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


def test_acceptance_by_depth_counts_only_rounds_that_came_so_far() -> None:
    """Four chains of four that kept 2, 4, 0 and 3: depth 1 three of four, then three of three,
    two of three, one of two."""
    numbers = metrics.acceptance_by_depth(viz_traces.chain())
    counts = [(n.depth, n.accepted, n.reached) for n in numbers]
    assert counts == [(1, 3, 4), (2, 3, 3), (3, 2, 3), (4, 1, 2)]
    chart = charts.acceptance_by_depth({"draft": numbers})
    assert chart.sentence == "draft: depth 1 0.75, depth 2 1.00, depth 3 0.67, depth 4 0.50."
    assert chart.rows == (
        ("draft", "0.75 (3 of 4)", "1.00 (3 of 3)", "0.67 (2 of 3)", "0.50 (1 of 2)"),
    )
    assert examples()["depth"].sentence.endswith("; none: n/a.")


def test_a_leaf_that_was_reached_is_no_failure() -> None:
    """Three rounds: paths of 2, 1 and 0 nodes; in the second the path ended at a leaf."""
    numbers = metrics.acceptance_by_depth(viz_traces.tree())
    assert [(n.depth, n.accepted, n.reached) for n in numbers] == [(1, 2, 3), (2, 1, 1)]


def calibrated() -> Trace:
    """One round: the first of two siblings is rejected, the second accepted, its child rejected."""
    script = Script(full=True)
    grown = {"confidence": (1.0, 0.5, 0.25, 0.2, 0.1)}
    return script.round(
        [" a", " b", " c", " d"], parents=(0, 0, 2, 1), accept=(2,), greedy=True, grown=grown
    ).end()


def test_calibration_judges_every_child_of_the_accepted_path() -> None:
    """Nodes 1 (0.5) and 2 (0.25) below the root, node 3 (0.2 / 0.25) below node 2; node 4 hangs
    below a rejected node, of which nobody knows what the target thinks."""
    bins = metrics.calibration(calibrated(), bins=4)
    seen = [(b.low, b.high, b.count, b.accepted) for b in bins]
    assert seen == [(0.25, 0.5, 1, 1), (0.5, 0.75, 1, 0), (0.75, 1.0, 1, 0)]
    assert [b.predicted for b in bins] == pytest.approx([0.25, 0.5, 0.8])
    chart = charts.calibration({"head": bins})
    assert chart.sentence == (
        "head: 3 tokens, expected 0.52, accepted 0.33 (more sure than right); mean distance 0.68."
    )
    assert chart.rows[0] == ("head", "0.25–0.50", "1", "0.25", "1.00")
    assert "head: expected 0.25, accepted 1.00 of 1" in tips(chart)


def test_without_confidence_there_is_no_calibration() -> None:
    assert metrics.calibration(viz_traces.chain()) == ()
    chart = charts.calibration({"draft": ()})
    assert chart.sentence == "draft: no confidence was recorded."
    assert "No confidence was recorded." in chart.picture.svg


def test_quantities_by_nodes() -> None:
    chart = examples()["nodes"]
    assert chart.sentence == (
        "accepted per round: tree: most at 15 nodes, 2.25; chain: most at 4 nodes, 1.25."
    )
    assert chart.rows == (("tree", "1.50", "2.25"), ("chain", "1.25", "n/a"))
    assert "tree, 15: 2.25" in tips(chart)


def test_a_budget_tells_the_most_tokens_from_the_most_speed() -> None:
    """By hand: 1.5 / 1.2 = 1.25 and 2 / 2.5 = 0.8."""
    chart = examples()["budget"]
    assert chart.sentence == (
        "Most tokens per round: 7 nodes, 2.00 tokens for 2.50 steps. Fastest: 1 node, 1.50 tokens "
        "for 1.20 steps, 1.25× (faster)."
    )
    assert chart.rows[2] == ("speed = tokens / steps", "1.25", "0.80")


def test_a_budget_says_what_it_counts() -> None:
    """Chains have a length; only trees are told in nodes."""
    budget = cost.Budget({1: 1.5, 3: 2.0}, {1: 0.25, 3: 0.75}, {1: 0.95, 3: 1.0})
    of_chains, of_trees = budget_chart(budget, chain=True), budget_chart(budget)
    assert of_chains.plot.x_title == "length of the chain"
    assert of_chains.header == ("run", "chain of 1", "chain of 3")
    assert of_chains.sentence.startswith("Most tokens per round: a chain of 3, 2.00 tokens")
    assert "node" not in of_chains.sentence + of_chains.picture.svg
    assert of_trees.plot.x_title == "nodes in the draft"


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
        lambda: charts.acceptance_by_depth({}),
        lambda: charts.calibration({}),
        lambda: charts.by_size({}, quantity="speed"),
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


# --- courses ---


def test_a_course_lies_where_its_numbers_are() -> None:
    chart = examples()["training"]
    assert chart.plot.ticks == (0, 300_000, 600_000, 900_000, 1_200_000, 1_500_000)
    path = next(p for p in drawn(chart).iter(f"{SVG}path") if p.get("stroke-width") == "2.5")
    spots = [tuple(map(float, spot.split())) for spot in (path.get("d") or "")[1:].split("L")]
    (x0, y0), (x1, y1), (x2, y2) = spots
    assert x0 == 0
    assert (x1 / x2) == pytest.approx(0.5, abs=1e-3)
    assert x2 / (720 - 64 - 16) == pytest.approx(1.28 / 1.5, abs=1e-3)
    assert (y0 - y1) / (y1 - y2) == pytest.approx(2, abs=1e-2)  # 0.5 up, then 0.25 up
    words = [t.text for t in drawn(chart).iter(f"{SVG}text")]
    assert {"300k", "1.2M", "1.5M", "the goal"} <= set(words)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.25, "0.25"), (12, "12"), (1234, "1,234"), (6000, "6k"), (28_757, "28.8k"),
     (999_400, "999k"), (1_135_502, "1.14M"), (1_500_000, "1.5M")],
)  # fmt: skip
def test_large_numbers_are_short(value: float, words: str) -> None:
    assert short_number(value) == words


def test_a_course_says_where_it_begins_and_ends_and_leaves_out_what_is_unknown() -> None:
    chart = examples()["course"]
    assert repr(chart) == "acceptance: a from 0.5 at 1 to 0.25 at 3; b 0.75 at 1."
    assert chart.rows == (("a", "0.5", "n/a", "0.25"), ("b", "0.75", "n/a", "n/a"),
                          ("c", "n/a", "n/a", "n/a"))  # fmt: skip
    assert [series.x for series in chart.plot.curves] == [(1, 3), (1,)]
    assert chart.plot.ticks == (1, 2, 3)
    with pytest.raises(BadInput, match="runs"):
        course({}, quantity="q", along="steps")
    empty = course({"a": {}}, quantity="q", along="steps")
    assert repr(empty) == "q: nothing was measured."
    assert "Nothing was measured." in empty.picture.svg
