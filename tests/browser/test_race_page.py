"""The race in a real browser: lanes that grow, the buttons, the replay, cleaning up."""

from collections.abc import Iterator
from typing import Any

import pytest
from axe import grave_violations
from harness import open_widget
from playwright.sync_api import Browser, Page, expect

from labkit.viz.race import Lane, RaceRecord, Turn
from labkit.viz.race_view import RaceView

WIDE = {"viewport": {"width": 1280, "height": 800}}
SENDING = """
window.sent = [];
const plainModel = window.makeModel;
window.makeModel = (state) => Object.assign(plainModel(state), { send: (m) => sent.push(m) });
"""
TRAITS = ("course", "lanes", "phase", "sentence", "still")


def record(phase: str = "finished", rounds: int = 4) -> RaceRecord:
    """Plain decoding 0.1 s a token; draft 2 tokens in 0.15 s; ngram 1 token in 0.125 s."""
    lanes = []
    for name, tokens, seconds in (
        ("plain decoding", 1, 0.1),
        ("draft", 2, 0.15),
        ("ngram", 1, 0.125),
    ):
        count = min(rounds, 4 // tokens)
        turns = tuple(Turn(seconds * i, tokens * i, " w" * tokens) for i in range(1, count + 1))
        lanes.append(Lane(name, turns, tokens * count == 4))
    return RaceRecord(tuple(lanes), 4, True, phase)


def state(one: RaceRecord) -> dict[str, Any]:
    view = RaceView(one, note="How the time is counted.")
    told = {name: getattr(view, name) for name in TRAITS}
    view.close()
    return told


def open_race(browser: Browser, one: RaceRecord, **context: Any) -> Page:
    return open_widget(browser, "race", state(one), model=SENDING, **context)


def become(page: Page, one: RaceRecord) -> None:
    """What happens when Python sends a newer record."""
    for name, value in state(one).items():
        if name != "course":
            page.evaluate("([name, value]) => model.set(name, value)", [name, value])


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = open_race(browser, record("ready", rounds=0), **WIDE)
    yield opened
    assert opened.complaints == []  # type: ignore[attr-defined]
    opened.context.close()


def tokens(page: Page) -> list[str | None]:
    return [bar.get_attribute("aria-valuenow") for bar in page.get_by_role("progressbar").all()]


def test_a_race_from_start_to_finish(page: Page) -> None:
    assert tokens(page) == ["0", "0", "0"]
    page.get_by_role("button", name="Start").click()
    assert page.evaluate("sent") == [{"kind": "start"}]
    become(page, record("running", rounds=1))
    assert tokens(page) == ["1", "2", "1"]
    expect(page.locator(".lr-time")).to_have_text("0.10 s")
    page.get_by_role("button", name="Stop").click()
    assert page.evaluate("sent").pop() == {"kind": "stop"}
    become(page, record("running", rounds=2))
    assert tokens(page) == ["2", "4", "2"]
    # only the lane that has crossed the line has a place
    assert [r.text_content() for r in page.locator(".lr-result").all()] == ["", "1st", ""]
    become(page, record())
    results = [r.text_content() for r in page.locator(".lr-result").all()]
    assert results == ["2nd", "1st · 1.33 × as fast", "3rd · slower here: 0.80 ×"]
    expect(page.locator(".lr-sentence")).to_have_text(record().sentence)
    assert page.locator(".lr-still svg").count() == 1
    become(page, record("preparing", rounds=0))  # again
    assert tokens(page) == ["0", "0", "0"]
    assert page.locator(".lr-still svg").count() == 0


def test_every_lane_is_told_without_colour(page: Page) -> None:
    become(page, record())
    for name in ("plain decoding", "draft", "ngram"):
        assert page.get_by_role("progressbar", name=f"{name}: tokens").count() == 1
    assert page.locator(".lr-blocks").nth(1).locator("i").count() == 2  # a block for each round
    widths = page.evaluate(
        "[...document.querySelectorAll('.lr-blocks i')].map((block) => block.style.width)"
    )
    assert widths == ["25%"] * 4 + ["50%"] * 2 + ["25%"] * 4


def test_the_replay_ends_where_the_race_did(page: Page) -> None:
    expect(page.get_by_role("button", name="Replay")).to_be_hidden()
    become(page, record())
    page.get_by_role("button", name="Replay").click()
    page.wait_for_function("!('replay' in document.querySelector('.labkit-race').dataset)")
    assert tokens(page) == ["4", "4", "4"]
    expect(page.locator(".lr-time")).to_have_text("0.50 s")


def test_what_is_seen_at_a_moment_of_the_replay(page: Page) -> None:
    seen = "(at) => model.get('lanes').map(({ turns }) => stepper.until(turns, at).length)"
    become(page, record())
    assert page.evaluate(seen, 0.05) == [0, 0, 0]
    assert page.evaluate(seen, 0.2) == [2, 1, 1]
    assert page.evaluate(seen, 9) == [4, 2, 4]
    order = "(at) => stepper.order(model.get('lanes'), at)"
    assert page.evaluate(order, 0.35) == [1]
    assert page.evaluate(order, 9) == [1, 0, 2]


def test_nothing_stays_after_closing(page: Page) -> None:
    become(page, record())
    page.get_by_role("button", name="Replay").click()
    page.evaluate("close()")
    assert page.evaluate("model.listening()") == 0
    assert page.locator(".labkit-race").count() == 0


def test_a_room_sees_the_whole_race(browser: Browser) -> None:
    page = open_race(browser, record("running", rounds=1), viewport={"width": 1920, "height": 1080})
    page.get_by_role("button", name="Larger").click()
    expect(page.locator(".lr-lane").first).to_be_visible()
    become(page, record())
    expect(page.locator(".lr-lane").first).to_be_hidden()
    foot = "document.querySelector('.labkit-race').getBoundingClientRect().bottom"
    assert page.evaluate(foot) <= 1080
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_is_found_in_a_race(browser: Browser, scheme: Any) -> None:
    for size in (WIDE["viewport"], {"width": 390, "height": 800}):
        page = open_race(browser, record(), viewport=size, color_scheme=scheme)
        assert grave_violations(page, ".labkit-race") == []
        page.context.close()


def test_it_fits_a_phone_and_moves_less_when_asked(browser: Browser) -> None:
    phone = {"viewport": {"width": 390, "height": 800}, "reduced_motion": "reduce"}
    page = open_race(browser, record(), **phone)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    moving = "getComputedStyle(document.querySelector('.lr-blocks i')).animationName"
    assert page.evaluate(moving) == "none"
    page.context.close()
    page = open_race(browser, record(), **WIDE)
    assert page.evaluate(moving) == "lr-in"
    page.context.close()
