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


def test_each_step_leaves_what_drawing_it_afresh_would(browser: Browser) -> None:
    """Only what changed is replaced, on the way there and back, by single steps and by leaps."""
    page = open_stepper(browser, viz.Stepper(viz_traces.tree()), **DESKTOP)
    page.evaluate(
        "async () => { window.film = stepper.develop(await stepper.unpack(model.get('film'))); }"
    )
    wrong = page.evaluate(
        "() => { const last = film.sentences.length - 1, wrong = [];"
        "const clean = (svg) => { const copy = svg.cloneNode(true);"
        "  copy.querySelectorAll('[data-panel]').forEach((g) => g.replaceWith(...g.childNodes));"
        "  copy.lastElementChild.remove(); copy.removeAttribute('data-board');"
        "  copy.removeAttribute('style'); return copy.innerHTML; };"
        "const fresh = (i) => { const box = document.createElement('div');"
        "  box.innerHTML = stepper.compose(film, 0, i); return box.firstChild.innerHTML; };"
        "const tour = [...Array(last + 1).keys()]; tour.push(...[...tour].reverse());"
        "for (let i = 0; i < 40; i++) tour.push((i * 7) % (last + 1));"
        "for (const i of tour) { model.set('step', i);"
        "  if (clean(document.querySelector('.labkit-stage svg')) !== fresh(i)) wrong.push(i); }"
        "return wrong; }"
    )
    assert wrong == []
    page.context.close()


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


def smallest_text(page: Page) -> float:
    """Height in pixels of the smallest letters of the picture."""
    return float(page.evaluate(
        "() => { const svg = document.querySelector('.labkit-stage svg');"
        "const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;"
        "const texts = [...svg.querySelectorAll('g text')];"
        "return Math.min(...texts.map((t) => t.getAttribute('font-size') * scale)); }"
    ))  # fmt: skip


def shown_panels(page: Page) -> list[str]:
    return list(page.evaluate(
        "[...document.querySelectorAll('.labkit-stage [data-panel]')]"
        ".filter((g) => g.firstChild?.firstChild).map((g) => g.dataset.panel)"
    ))  # fmt: skip


@pytest.mark.parametrize("how", ["key", "button"])
def test_a_room_sees_large_what_the_step_is_about(browser: Browser, how: str) -> None:
    stepper = viz.Stepper(viz_traces.chain(), step=5)
    page = open_stepper(browser, stepper, viewport={"width": 1920, "height": 1080})
    before = smallest_text(page)
    page.locator(".labkit-stepper").focus()
    toggle = page.get_by_role("button", name="Projector")
    page.keyboard.press("p") if how == "key" else toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "true")
    page.wait_for_function("document.fullscreenElement !== null")
    assert smallest_text(page) > 1.3 * before
    for at, wanted in ((1, "inspector"), (2, "slots"), (5, "inspector"), (7, "slots"),
                       (28, "timeline")):  # fmt: skip
        page.evaluate("at => model.set('step', at)", at)
        assert shown_panels(page) == ["ribbon", wanted], at
        foot = "document.querySelector('.labkit-stage svg').getBoundingClientRect().bottom"
        assert page.evaluate(foot) <= 1080
    page.keyboard.press("p")
    page.wait_for_function("document.fullscreenElement === null")
    expect(toggle).to_have_attribute("aria-pressed", "false")
    assert len(shown_panels(page)) == 5
    page.context.close()


def test_where_full_screen_is_refused_the_room_view_stays_in_its_place(page: Page) -> None:
    page.evaluate(
        "() => { Element.prototype.requestFullscreen = () => Promise.reject(new Error('no')); }"
    )
    page.get_by_role("button", name="Projector").click()
    expect(page.locator(".labkit-projector")).to_have_count(1)
    assert len(shown_panels(page)) == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 1000


def test_leaving_full_screen_leaves_the_room_view(page: Page) -> None:
    page.get_by_role("button", name="Projector").click()
    page.wait_for_function("document.fullscreenElement !== null")
    page.evaluate("document.exitFullscreen()")
    expect(page.locator(".labkit-projector")).to_have_count(0)


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


def detail(page: Page) -> str:
    return str(page.locator(".labkit-detail").text_content())


HINT = re.compile("^Point at anything in the pictures")


def test_pointing_at_a_node_lights_up_its_path_and_its_row(tree: Page) -> None:
    tree.locator('[data-node="8"]').hover()
    assert (sorted(lit(tree, "node")), lit(tree, "row")) == (["0", "1", "4", "8"], ["8"])
    assert sorted(lit(tree, "edge")) == ["1", "4", "8"]
    assert re.match(r"^node 8 · ␣fox · below node 4 · .* confidence 0\.20", detail(tree))
    top = "document.querySelector('.labkit-stage').offsetTop"
    told = tree.evaluate(top)
    tree.locator('[data-row="2"]').hover()  # and from the mask back to the tree
    assert (sorted(lit(tree, "node")), lit(tree, "row")) == (["0", "2"], ["2"])
    tree.locator(".labkit-sentence").hover()
    assert lit(tree, "node") == []
    expect(tree.locator(".labkit-detail")).to_have_text(HINT)
    assert tree.evaluate(top) == told  # nothing moves under the pointer


def test_keys_walk_the_tree_while_arrows_still_step(tree: Page) -> None:
    tree.locator(".labkit-stepper").focus()
    tree.keyboard.press("ArrowDown")  # without T the page scrolls
    expect(tree.locator(".labkit-detail")).to_have_text(HINT)
    for key, node in (("t", "0"), ("ArrowDown", "1"), ("ArrowDown", "4"), ("ArrowUp", "1")):
        tree.keyboard.press(key)
        assert detail(tree).startswith(f"node {node} · "), key
    assert lit(tree, "row") == ["1"]
    tree.keyboard.press("ArrowRight")
    assert step(tree) == 5
    assert detail(tree).startswith("node 1 · ␣quick · below node 0")  # drawn anew
    assert tree.locator(".lk-cursor").count() == 1
    tree.keyboard.press("Escape")
    assert lit(tree, "node") == []
    assert tree.locator(".lk-cursor").count() == 0
    tree.keyboard.press("ArrowDown")
    expect(tree.locator(".labkit-detail")).to_have_text(HINT)


FIRST_VALUES = {
    "r": r"^The · token 10 · prompt$",
    "a": r"^␣mat · token 15$",
    "k": r"^slot 0 · The · position 0 · committed$",
    "c": r"^round 1: drafting, 8\.0 ms$",
    "s": r"^rounds: 0\. One forward of the target each\.$",
}


@pytest.mark.parametrize("key", FIRST_VALUES)
def test_every_panel_has_a_key_and_its_numbers_are_told(page: Page, key: str) -> None:
    page.evaluate("model.set('step', 5)")
    page.locator(".labkit-stepper").focus()
    page.keyboard.press(key)
    assert re.match(FIRST_VALUES[key], detail(page))
    assert f" {key.upper()} " in (page.locator(".labkit-keys").text_content() or "")
    seen = [detail(page)]
    while len(seen) < 300:
        page.keyboard.press("ArrowDown")
        if detail(page) == seen[-1]:
            break
        seen.append(detail(page))
    names = {"r": "ribbon", "a": "inspector", "k": "slots", "c": "timeline", "s": "totals"}
    titles = page.locator(f'[data-panel="{names[key]}"] title').all_text_contents()
    assert seen == [t for i, t in enumerate(titles) if i == 0 or t != titles[i - 1]]


@pytest.mark.parametrize("width", [390, 1280])
def test_what_the_keys_point_at_is_never_under_the_head(browser: Browser, width: int) -> None:
    """The head stays at the top while the page scrolls, also when one walks up again."""
    stepper = viz.Stepper(viz_traces.dynamic(), compare=0.04, step=4)
    page = open_stepper(browser, stepper, viewport={"width": width, "height": 800})
    page.locator(".labkit-stepper").focus()
    places = (
        "['.labkit-head', '.lk-cursor'].map((place) => {"
        "const box = document.querySelector(place).getBoundingClientRect();"
        "return [box.top, box.bottom]; })"
    )
    for key in "stkrm":
        page.keyboard.press(key)
        (_, foot), (top, bottom) = page.evaluate(places)
        assert foot <= top + 0.5, key
        assert bottom <= 800.5, key
    page.context.close()


def test_the_accept_test_is_told_number_by_number(page: Page) -> None:
    page.evaluate("model.set('step', 5)")
    told = page.locator('[data-panel="inspector"] title').all_text_contents()
    for wanted in (
        "␣and: p 0.17, by the target", "␣and: q 0.34, by the drafter",
        "threshold min(1, p/q) = min(1, 0.17 / 0.34) = 0.50",
        "u = 0.52, not below the threshold 0.50: rejected",
    ):  # fmt: skip
        assert wanted in told
    page.locator('[data-part="u"]').last.hover()
    assert detail(page).startswith("u = 0.52, not below")
    page.evaluate("model.set('step', 6)")
    told = page.locator('[data-panel="inspector"] title').all_text_contents()
    assert "␣sat: p 0.24, q 0.29, residual 0.18" in told
    assert page.locator('[data-part="residual"]').count() == 4


def test_whatever_shows_a_number_can_be_pointed_at(tree: Page) -> None:
    """The shape under the middle of every number has a sentence."""
    silent = (
        "() => { const stage = document.querySelector('.labkit-stage'); const out = [];"
        "for (const text of stage.querySelectorAll('[data-panel] text')) {"
        "  if (!/^[0-9.]+$|^[pq] /.test(text.textContent)) continue;"
        "  text.scrollIntoView({ block: 'center' });"
        "  const b = text.getBoundingClientRect();"
        "  let hit = document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2);"
        "  while (hit && hit.tagName !== 'svg' &&"
        "    ![...hit.children].some((c) => c.tagName === 'title')) hit = hit.parentElement;"
        "  if (!hit || hit.tagName === 'svg') out.push(text.textContent); }"
        "return out; }"
    )
    axes = {"0", "0.5", "1", "0.42", "p target", "q draft"}  # scales and keys, no results
    assert [t for t in tree.evaluate(silent) if t not in axes and not t.isdigit()] == []


def test_keys_of_panels_that_are_not_there_are_left_alone(page: Page) -> None:
    page.evaluate("() => { window.heard = []; document.addEventListener('keydown',"
                  "(e) => heard.push(e.key)); }")  # fmt: skip
    page.locator(".labkit-stepper").focus()
    for key in ("t", "m", "u", "n", "r"):
        page.keyboard.press(key)
    assert page.evaluate("heard") == ["t", "m", "u", "n"]  # no tree, no mask, nothing to tell
    assert page.locator("[data-node]").count() == 0


LARGE = {"depth": 8, "nodes": 59}


@pytest.mark.parametrize("width", [1280, 390])
def test_large_trees_are_folded_until_asked(browser: Browser, width: int) -> None:
    stepper = viz.Stepper(viz_traces.dynamic(1, **LARGE), step=4)
    page = open_stepper(browser, stepper, viewport={"width": width, "height": 740})
    assert page.locator("[data-node]").count() == 16
    folded = page.locator("text", has_text=re.compile(r"^\+\d+ nodes?$")).all_text_contents()
    assert 16 + sum(int(t.split()[0]) for t in folded) == 60
    page.locator(".labkit-stepper").focus()
    page.keyboard.press("u")
    assert page.locator("[data-node]").count() == 60
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Fold tree").click()
    assert page.locator("[data-node]").count() == 16
    assert "+" in viz.still(stepper.trace, step=4).svg  # the static picture is folded too
    page.context.close()


NOTES = (
    viz.Note("A guess is cheap.", "ribbon", phase="draft"),
    viz.Note("The dot is the draw.", "u", phase="verify"),
    viz.Note("What p has over q.", "residual", phase="commit"),
    viz.Note("Nothing is copied.", "slots", step=7),
    viz.Note("Counted so far.", "totals"),
)


@pytest.fixture
def told(browser: Browser) -> Iterator[Page]:
    opened = open_stepper(browser, viz.Stepper(viz_traces.chain(), notes=NOTES), **DESKTOP)
    yield opened
    assert opened.complaints == []  # type: ignore[attr-defined]
    opened.context.close()


def spoken(page: Page) -> tuple[str, str]:
    """(sign of the frame, words of the current passage)."""
    words = page.locator('[aria-current="step"]').all_text_contents()
    return page.locator(".lk-spoken text").text_content() or "", "".join(words)


def is_around(page: Page, shape: str) -> bool:
    return bool(page.evaluate(
        "(shape) => { const a = document.querySelector('.lk-spoken rect').getBoundingClientRect();"
        "const b = [...document.querySelectorAll(shape)].at(-1).getBoundingClientRect();"
        "return a.left <= b.left && a.top <= b.top && a.right >= b.right && a.bottom >= b.bottom"
        "  && a.width < b.width + 20 && a.height < b.height + 20; }", shape
    ))  # fmt: skip


def test_the_passage_follows_the_step_and_frames_its_part(told: Page) -> None:
    for at, sign, words, shape in (
        (0, "5", "Counted so far.", '[data-panel="totals"]'),
        (1, "1", "A guess is cheap.", '[data-panel="ribbon"]'),
        (4, "2", "The dot is the draw.", '[data-part="u"]'),
        (7, "4", "Nothing is copied.", '[data-panel="slots"]'),
        (2, "5", "Counted so far.", '[data-panel="totals"]'),
    ):
        told.evaluate("at => model.set('step', at)", at)
        found = spoken(told)
        assert found[0] == sign
        assert words in found[1]
        assert is_around(told, shape), at
    told.evaluate("model.set('step', 6)")
    assert spoken(told)[0] == "3"
    assert not is_around(told, '[data-panel="slots"]')  # another part: the check can fail


def test_pointing_at_a_passage_frames_its_part_and_pressing_it_goes_there(told: Page) -> None:
    told.evaluate("model.set('step', 3)")
    passage = told.get_by_role("button", name="Counted so far.")
    passage.hover()
    assert is_around(told, '[data-panel="totals"]')
    assert step(told) == 3
    told.get_by_role("button", name="Nothing is copied.").click()
    assert step(told) == 7
    told.get_by_role("button", name="A guess is cheap.").focus()  # by keys
    assert spoken(told)[0] == "1"
    told.keyboard.press("n")
    assert (spoken(told)[0], step(told)) == ("2", 10)  # the next test after step 7
    told.keyboard.press("n")
    assert (spoken(told)[0], step(told)) == ("3", 18)  # nothing was resampled in round 2


def test_links_of_the_page_point_too(told: Page) -> None:
    told.evaluate(
        "document.body.insertAdjacentHTML('afterbegin',"
        '\'<p>See <a href="#labkit-slots">the slots</a>, <a href="#other">this</a>.</p>\')'
    )
    told.get_by_role("link", name="the slots").focus()
    assert spoken(told) == ("☞", "")
    assert is_around(told, '[data-panel="slots"]')
    told.get_by_role("link", name="this").focus()
    assert spoken(told)[0] == "5"


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
