"""The what-if in a real browser: its formula is Python's, its sliders work, its curve waits."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe import grave_violations
from fakes_machine import MACHINE
from harness import PATIENCE, open_widget
from playwright.sync_api import Browser, Page, expect

from labkit import viz
from labkit.machine import MOST
from labkit.viz.desk import RATIOS
from labkit.viz.whatif import picture, sentence
from labkit.whatif import BATCHES, FREE, MEASURED, Answer, Setting

GRID = [
    Setting(drafting, alpha, n, c, batch, verify)
    for drafting, alpha, n, c, batch, verify in itertools.product(
        ("chance", "eagle3", "draft"), (0.0, 0.125, 0.5, 0.62, 0.9, 1.0), (0, 1, 3, MOST),
        (RATIOS[0], 0.125, RATIOS[-1]), (BATCHES[0], BATCHES[3], BATCHES[-1]), (MEASURED, FREE),
    )
]  # fmt: skip
COMPARE = """([facts, states]) => states.map((state) => ({
  told: whatif.sentence(facts, state),
  speeds: whatif.drawing(facts, state).curves.now,
  top: whatif.drawing(facts, state).top,
  points: whatif.drawing(facts, state).points,
}))"""


def open_page(browser: Browser, widget: Any, **context: Any) -> Page:
    state = {"facts": widget.facts, "answered": widget.answered, **widget._settings}
    context = {"viewport": {"width": 1000, "height": 900}} | context
    page = open_widget(browser, "whatif", state, **context)
    page.evaluate("() => { window.whatif = window.stepper; }")
    return page


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = open_page(browser, viz.WhatIf(MACHINE))
    yield opened
    assert opened.complaints == []  # type: ignore[attr-defined]
    opened.context.close()


def test_the_browser_computes_what_python_computes(page: Page) -> None:
    facts = json.loads(viz.WhatIf(MACHINE).facts)
    found = page.evaluate(COMPARE, [facts, [vars(setting) for setting in GRID]])
    for setting, seen in zip(GRID, found, strict=True):
        answer = Answer(setting, MACHINE)
        assert seen["speeds"] == pytest.approx(answer.speeds, rel=1e-12), setting
        assert seen["points"]["best"][0] == answer.best, setting
        assert seen["told"] == sentence(answer)


def test_another_formula_would_be_found(page: Page) -> None:
    """Negative control: a forward that is one token wider."""
    facts = json.loads(viz.WhatIf(MACHINE).facts)
    wrong = {**vars(Setting(batch=8)), "batch": 16}
    seen = page.evaluate(COMPARE, [facts, [wrong]])[0]
    answer = Answer(Setting(batch=8), MACHINE)
    assert seen["speeds"] != pytest.approx(answer.speeds, rel=1e-3)
    assert seen["told"] != sentence(answer)


SHAPES = """() => Object.fromEntries([...document.querySelectorAll("svg [data-key]")]
  .filter((shape) => shape.getAttribute("visibility") !== "hidden")
  .map((shape) => [shape.dataset.key, shape.tagName === "path" ? shape.getAttribute("d")
    : shape.parentElement.getAttribute("transform")]))"""


@pytest.mark.parametrize(
    "change", [{}, {"batch": 16}, {"draft_length": 9}, {"alpha": 1.0, "verify": FREE}]
)
def test_the_live_chart_is_the_static_one(page: Page, change: dict[str, Any]) -> None:
    for name, value in change.items():
        page.evaluate("([name, value]) => model.set(name, value)", [name, value])
    live = page.evaluate(SHAPES)
    board = page.evaluate(
        "() => Math.round(document.querySelector('.labkit-whatif-stage svg').viewBox.baseVal.width)"
    )
    still = picture(Answer(Setting(**change), MACHINE), board={976: 0, 600: 1, 372: 2}[board])
    page.evaluate("(svg) => { document.getElementById('place').innerHTML = svg; }", still.svg)
    drawn = page.evaluate(SHAPES)
    assert set(drawn) == set(live)
    for key, shape in drawn.items():
        assert numbers(live[key]) == pytest.approx(numbers(shape), abs=0.11), key


def numbers(markup: str) -> list[float]:
    plain = "".join(c if c in "0123456789.-" else " " for c in markup)
    return [float(part) for part in plain.split()]


def test_sliders_are_reached_by_the_keyboard_and_save_what_they_say(page: Page) -> None:
    slider = page.get_by_role("slider", name="Drafted tokens per round")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("model.get('draft_length')") == 5
    assert page.evaluate("model.saves") == 1
    expect(page.locator(".labkit-whatif-sentence")).to_have_text(
        sentence(Answer(Setting(draft_length=5), MACHINE))
    )
    page.get_by_label("Batch").focus()
    page.keyboard.press("End")
    assert page.evaluate("model.get('batch')") == BATCHES[-1]
    page.get_by_role("button", name="Back to the start").click()
    assert page.evaluate("model.get('batch')") == 1
    assert page.evaluate("model.get('draft_length')") == 4


def test_a_measured_way_brings_its_own_cost(page: Page) -> None:
    page.get_by_label("Acceptance", exact=True).select_option("eagle3")
    assert page.evaluate("model.get('cost_ratio')") == MACHINE.way("eagle3").cost_ratio
    expect(page.get_by_role("slider", name="Chance of acceptance")).to_be_disabled()


def test_the_curve_waits_for_the_prediction(browser: Browser) -> None:
    widget = viz.WhatIf(MACHINE, ask=viz.Change("draft_length", 2, 8))
    page = open_page(browser, widget)
    stage = page.locator(".labkit-whatif-stage")
    expect(stage).to_be_hidden()
    asked = widget._desk.ask
    page.get_by_role("button", name="It falls").click()
    expect(stage).to_be_visible()
    expect(page.locator(".labkit-whatif-reply")).to_have_text(asked.reply("falls"))
    assert page.evaluate("[model.get('answered'), model.get('draft_length')]") == ["falls", 8]
    assert page.complaints == []  # type: ignore[attr-defined]
    page.context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_scrolls_sideways(browser: Browser, width: int) -> None:
    page = open_page(browser, viz.WhatIf(MACHINE), viewport={"width": width, "height": 800})
    across = page.evaluate("document.documentElement.scrollWidth")
    assert across == width
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_is_found_in_a_what_if(browser: Browser, scheme: Any) -> None:
    widget = viz.WhatIf(MACHINE, ask=viz.Change("draft_length", 2, 8))
    page = open_page(browser, widget, color_scheme=scheme)
    assert grave_violations(page, ".labkit-whatif") == []
    page.get_by_role("button", name="It falls").click()
    assert grave_violations(page, ".labkit-whatif") == []
    page.context.close()


def test_labels_keep_their_lines_while_a_slider_moves(browser: Browser) -> None:
    page = open_page(browser, viz.WhatIf(MACHINE), viewport={"width": 1280, "height": 900})
    tall = "document.querySelector('.labkit-whatif-controls').clientHeight"
    before = page.evaluate(tall)
    page.get_by_label("Batch").focus()
    page.keyboard.press("End")
    assert page.evaluate("model.get('batch')") == BATCHES[-1]
    assert page.evaluate(tall) == before
    page.context.close()


def test_the_page_of_its_own_needs_nothing_else(browser: Browser, tmp_path: Path) -> None:
    path = viz.WhatIf(MACHINE).save_page(tmp_path / "whatif.html")
    page = browser.new_context(offline=True).new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(path.as_uri())
    page.get_by_label("Batch").focus()
    page.keyboard.press("End")
    expect(page.locator(".labkit-whatif-sentence")).to_have_text(
        sentence(Answer(Setting(batch=BATCHES[-1]), MACHINE))
    )
    page.context.close()


def test_nothing_is_left_behind(page: Page) -> None:
    assert page.evaluate("model.listening()") > 0
    page.evaluate("close()")
    assert page.evaluate("model.listening()") == 0
    assert page.locator("#place").inner_html() == ""
