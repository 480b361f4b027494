"""The stepper in a real browser: what is drawn, keys, buttons, scrubber, clock, cleaning up."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import viz_traces
from harness import open_stepper
from playwright.sync_api import Browser, Page, expect

from labkit import viz
from labkit.viz.board import WIDTHS

DESKTOP = {"viewport": {"width": 1000, "height": 800}}


def step(page: Page) -> int:
    return int(page.evaluate("model.get('step')"))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = open_stepper(browser, viz.Stepper(viz_traces.chain()), **DESKTOP)
    yield opened
    assert opened.complaints == []  # type: ignore[attr-defined]
    opened.context.close()


@pytest.mark.parametrize("name", ["chain", "tree", "dynamic", "odd_tokens", "plain", "cut_short"])
def test_the_live_picture_is_the_static_one(browser: Browser, name: str) -> None:
    trace = viz_traces.EVERY[name]()
    page = open_stepper(browser, viz.Stepper(trace, compare=0.04), **DESKTOP)
    page.evaluate(
        "async () => { window.film = stepper.develop(await stepper.unpack(model.get('film'))); }"
    )
    last = page.evaluate("film.sentences.length")
    for i, width in enumerate(WIDTHS):
        for at in (*range(0, last, 5), last - 1):
            drawn = page.evaluate("([i, at]) => stepper.compose(film, i, at)", [i, at])
            assert drawn == viz.still(trace, step=at, ar=0.04, width=width).svg
    page.context.close()


def test_another_step_is_another_picture(page: Page) -> None:
    page.evaluate(
        "async () => { window.film = stepper.develop(await stepper.unpack(model.get('film'))); }"
    )
    assert page.evaluate("stepper.compose(film, 0, 3)") != viz.still(viz_traces.chain(), step=4).svg


def shown(page: Page) -> str:
    return str(page.evaluate("document.querySelector('.labkit-stage svg').textContent"))


def test_what_is_on_the_page_follows_the_step(page: Page) -> None:
    """Panels are replaced one by one; the result equals drawing the step afresh."""
    for at in (5, 12, 0):
        page.evaluate("at => model.set('step', at)", at)
        fresh = open_stepper(
            page.context.browser, viz.Stepper(viz_traces.chain(), step=at), **DESKTOP
        )
        assert shown(page) == shown(fresh)
        fresh.context.close()


def test_keys_step_through_the_run(page: Page) -> None:
    page.locator(".labkit-stepper").focus()
    for key, wanted in (
        ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 28), ("ArrowRight", 28),
        ("Home", 0), ("ArrowLeft", 0),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert step(page) == wanted, key


def test_keys_belong_to_the_focused_stepper_only(page: Page) -> None:
    """The notebook listens on the document, before anything inside it."""
    page.evaluate(
        "() => { window.heard = [];"
        "document.addEventListener('keydown', (e) => heard.push(e.key), true); }"
    )
    page.locator("#elsewhere").focus()
    page.keyboard.press("ArrowRight")
    assert step(page) == 0
    page.locator(".labkit-stepper").focus()
    for key in ("ArrowRight", "j", "Control+s", "Shift+Enter", "Home", " "):
        page.keyboard.press(key)
    heard = [k for k in page.evaluate("heard") if k not in ("Control", "Shift")]
    assert heard == ["ArrowRight", "j", "s", "Enter"]  # the first one was pressed elsewhere


def test_buttons_have_words_and_work(page: Page) -> None:
    for name, wanted in (("Next", 1), ("Next", 2), ("Back", 1), ("Last", 28), ("First", 0)):
        page.get_by_role("button", name=name).click()
        assert step(page) == wanted


def test_space_on_a_button_presses_that_button_once(page: Page) -> None:
    page.get_by_role("button", name="Next").focus()
    page.keyboard.press(" ")
    assert step(page) == 1
    assert page.get_by_role("button", name="Play").count() == 1


def test_whole_rounds(page: Page) -> None:
    page.get_by_role("button", name="Whole rounds").click()
    seen = []
    for _ in range(5):
        page.get_by_role("button", name="Next").click()
        seen.append(step(page))
    assert seen == list(viz_ends())[1:]
    sentence = page.locator(".labkit-sentence")
    page.get_by_role("button", name="Back").click()
    expect(sentence).to_have_text(re.compile(r"^Round 4 of 4: 4 drafted, 3 accepted"))
    assert page.evaluate("model.get('grain')") == "round"


def viz_ends() -> tuple[int, ...]:
    from labkit.viz.states import Story

    return Story.of(viz_traces.chain()).round_ends


def test_the_scrubber_goes_where_it_is_dragged(page: Page) -> None:
    slider = page.get_by_role("slider", name="Step")
    slider.evaluate(
        "(node) => { for (let v = 1; v <= 20; v++) {"
        "node.value = v; node.dispatchEvent(new Event('input')); } }"
    )
    assert step(page) == 20
    expect(slider).to_have_attribute("aria-valuetext", "Round 4 of 4, draft")


def test_no_change_is_left_unsaved(page: Page) -> None:
    """A kernel echoes what it was told last; a newer value that was not yet saved would be lost."""
    saved = (
        "() => { const seen = []; const save = model.save_changes.bind(model);"
        "model.save_changes = () => { seen.push(model.get('step')); save(); };"
        "const all = [...document.querySelectorAll('button')];"
        "for (const name of ['Next', 'Next', 'Last', 'Back'])"
        "  all.find((node) => node.textContent.includes(name)).click();"
        "return [seen, model.get('step')]; }"
    )
    assert page.evaluate(saved) == [[1, 2, 28, 27], 27]


def test_playing_stops_at_the_end_and_on_request(page: Page) -> None:
    page.clock.install(time=0)
    page.clock.pause_at(1)
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(3400)
    assert step(page) == 3
    expect(page.locator(".labkit-sentence")).to_have_attribute("aria-live", "off")
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    assert step(page) == 3
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(60_000)
    assert step(page) == 28
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    expect(page.locator(".labkit-sentence")).to_have_attribute("aria-live", "polite")


def test_playing_stops_out_of_sight(page: Page) -> None:
    page.get_by_role("button", name="Play").click()
    page.evaluate("place.style.marginTop = '5000px'")
    expect(page.locator(".labkit-button", has_text="Play")).to_have_count(1)


def test_playing_stops_when_the_cell_is_gone(page: Page) -> None:
    page.clock.install()
    page.get_by_role("button", name="Play").click()
    page.evaluate("place.remove()")
    page.clock.run_for(10_000)
    assert step(page) == 0


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_nothing_moves_by_itself(browser: Browser, motion: Any) -> None:
    stepper = viz.Stepper(viz_traces.chain())
    page = open_stepper(browser, stepper, **DESKTOP, reduced_motion=motion)
    forgotten = "() => { model.set('step', 7); return document.getAnimations().length; }"
    moving = page.evaluate(forgotten)
    assert (moving > 0) == (motion == "no-preference")
    page.clock.install()
    page.clock.run_for(20_000)
    assert step(page) == 7
    page.context.close()


def test_a_screen_reader_is_told(page: Page) -> None:
    page.locator(".labkit-stepper").focus()
    page.keyboard.press("ArrowRight")
    sentence = page.locator(".labkit-sentence")
    expect(sentence).to_have_attribute("aria-live", "polite")
    expect(sentence).to_have_text(
        "Round 1 of 4, draft: the drafter proposes 4 tokens: ' mat', ',', ' and', ' then'."
    )
    picture = page.get_by_role("img", name="Speculative decoding, step by step")
    assert picture.locator("> desc").text_content() == sentence.text_content()
    expect(page.get_by_role("group", name="Speculative decoding, step by step")).to_be_visible()


def test_closing_leaves_nothing_behind(page: Page) -> None:
    page.evaluate(
        "async () => { close(); for (let i = 0; i < 3; i++) {"
        "window.close = await stepper.default.render({ model, el: place }); close(); } }"
    )
    assert page.evaluate("model.listening()") == 0
    assert page.evaluate("place.childElementCount") == 0
    page.keyboard.press("ArrowRight")
    assert step(page) == 0


def test_views_that_stay_open_would_be_noticed(page: Page) -> None:
    page.evaluate("async () => { await stepper.default.render({ model, el: place }); }")
    assert page.evaluate("model.listening()") == 4
    assert page.evaluate("place.childElementCount") == 2
    page.evaluate("model.set('step', 7)")
    texts = page.locator(".labkit-count").all_text_contents()
    assert texts == ["7 / 28", "7 / 28"]  # two views of one model agree


@pytest.mark.parametrize(
    ("width", "board"), [(1280, "960"), (700, "640"), (390, "390"), (320, "390")]
)
def test_the_board_suits_the_page(browser: Browser, width: int, board: str) -> None:
    page = open_stepper(
        browser, viz.Stepper(viz_traces.long_run(24)), viewport={"width": width, "height": 800}
    )
    assert page.locator(".labkit-stage svg").get_attribute("data-board") == board
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width == 390:
        small = page.evaluate(
            "() => { const svg = document.querySelector('.labkit-stage svg');"
            "const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;"
            "const texts = [...svg.querySelectorAll('text')];"
            "return Math.min(...texts.map((t) => t.getAttribute('font-size') * scale)); }"
        )
        assert small >= 11
    page.context.close()


def test_larger_is_larger(page: Page) -> None:
    scale = (
        "() => { const svg = document.querySelector('.labkit-stage svg');"
        "return svg.getBoundingClientRect().width / svg.viewBox.baseVal.width; }"
    )
    before = page.evaluate(scale)
    page.get_by_role("button", name="Larger").click()
    assert page.evaluate(scale) > 1.3 * before
    expect(page.get_by_role("button", name="Larger")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize(("page_says", "ground"), [
    ("document.body.dataset.jpThemeLight = 'false'", "rgb(22, 22, 26)"),
    ("document.body.dataset.jpThemeLight = 'true'", "rgb(255, 255, 255)"),
    ("document.documentElement.setAttribute('theme', 'dark')", "rgb(22, 22, 26)"),
])  # fmt: skip
@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_notebooks_theme_wins_over_the_systems(
    browser: Browser, page_says: str, ground: str, system: Any
) -> None:
    stepper = viz.Stepper(viz_traces.corrected())
    page = open_stepper(browser, stepper, **DESKTOP, color_scheme=system)
    page.evaluate(page_says)
    fill = "getComputedStyle(document.querySelector('.labkit-stage svg > rect')).fill"
    assert page.evaluate(fill) == ground
    page.context.close()


def test_an_old_browser_is_told_what_works(browser: Browser) -> None:
    page = open_stepper(browser, viz.Stepper(viz_traces.corrected()), **DESKTOP)
    page.evaluate(
        "async () => { close(); delete globalThis.DecompressionStream;"
        "await stepper.default.render({ model, el: place }); }"
    )
    expect(page.locator("#place")).to_contain_text("display(stepper.picture)")
    page.context.close()


@pytest.fixture
def tree(browser: Browser) -> Iterator[Page]:
    stepper = viz.Stepper(viz_traces.dynamic(), compare=0.04)
    opened = open_stepper(browser, stepper, **DESKTOP)
    opened.evaluate("model.set('step', 4)")
    yield opened
    assert opened.complaints == []  # type: ignore[attr-defined]
    opened.context.close()


def lit(page: Page, kind: str) -> list[str]:
    found = page.locator(f".lk-lit[data-{kind}]")
    return found.evaluate_all(f"nodes => nodes.map((node) => node.dataset.{kind})")


def test_pointing_at_a_node_lights_up_its_path_and_its_row(tree: Page) -> None:
    tree.locator('[data-node="8"]').hover()
    assert (sorted(lit(tree, "node")), lit(tree, "row")) == (["0", "1", "4", "8"], ["8"])
    assert sorted(lit(tree, "edge")) == ["1", "4", "8"]
    detail = tree.locator(".labkit-detail")
    expect(detail).to_have_text(re.compile(r"^node 8 · ␣fox · below node 4 · .* confidence 0\.20"))
    top = "document.querySelector('.labkit-stage').offsetTop"
    told = tree.evaluate(top)
    tree.locator('[data-row="2"]').hover()  # and from the mask back to the tree
    assert (sorted(lit(tree, "node")), lit(tree, "row")) == (["0", "2"], ["2"])
    tree.locator(".labkit-sentence").hover()
    assert lit(tree, "node") == []
    expect(detail).to_have_text("Point at a node to see its numbers and its path.")
    assert tree.evaluate(top) == told  # nothing moves under the pointer


def test_keys_walk_the_tree_while_arrows_still_step(tree: Page) -> None:
    focused = "document.activeElement.dataset.node"
    tree.locator(".labkit-stepper").focus()
    tree.keyboard.press("ArrowDown")  # without T the page scrolls
    assert tree.evaluate(focused) is None
    for key, node in (("t", "0"), ("ArrowDown", "1"), ("ArrowDown", "4"), ("ArrowUp", "1")):
        tree.keyboard.press(key)
        assert tree.evaluate(focused) == node, key
    assert lit(tree, "row") == ["1"]
    name = tree.evaluate("document.activeElement.getAttribute('aria-label')")
    assert name.startswith("node 1 · ␣quick · below node 0")
    tree.keyboard.press("ArrowRight")
    assert step(tree) == 5
    assert tree.evaluate(focused) == "1"  # drawn anew, and still where the reader was
    tree.keyboard.press("Escape")
    assert tree.evaluate("document.activeElement.className").startswith("labkit labkit-stepper")
    assert lit(tree, "node") == []


def test_without_trees_there_is_nothing_to_walk(page: Page) -> None:
    page.locator(".labkit-stepper").focus()
    page.keyboard.press("t")
    assert page.locator(".labkit-detail").count() == 0
    assert page.locator("[data-node]").count() == 0


@pytest.mark.parametrize("width", [360, 390])
def test_trees_fit_on_a_phone(browser: Browser, width: int) -> None:
    stepper = viz.Stepper(viz_traces.dynamic(), step=4)
    page = open_stepper(browser, stepper, viewport={"width": width, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = (
        "() => { const svg = document.querySelector('.labkit-stage svg').getBoundingClientRect();"
        "return [...document.querySelectorAll('[data-node], [data-row]')].filter((node) =>"
        "node.getBoundingClientRect().right > svg.right + 1).length; }"
    )
    assert page.evaluate(outside) == 0
    page.context.close()
