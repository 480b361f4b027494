"""The race: turns, clocks, the finish line, and that nothing is left when it ends.

The clock is a counter that only models and drafters wind, so every time here is worked out by
hand: a forward of the target takes 1 second, a draft takes what the test says.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers import greedy_reference, knows, never_right, prompt_of, tiny
from test_broken import Words

from labkit.drafters.base import Drafter
from labkit.drafters.scripted import Scripted
from labkit.errors import BadInput
from labkit.lab.load import LoadedModel
from labkit.lab.race import PLAIN, Race
from labkit.lab.session import Lab
from labkit.viz.race import Lane, RaceRecord, Turn, race_scene
from labkit.viz.turnover import close_whole

PROMPT = prompt_of(9)
NEW = 12


class Clock:
    """Stands still but for what winds it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lab(clock: Clock) -> Any:
    model = tiny()
    handle = model.register_forward_pre_hook(lambda *_: setattr(clock, "seconds", clock() + 1.0))
    yield Lab(LoadedModel(model, Words(), "tiny", torch.float32, torch.device("cpu"), "plain"))
    handle.remove()


def text() -> tuple[int, ...]:
    return greedy_reference(tiny(), PROMPT, NEW + 8)


def slow(drafter: Scripted, clock: Clock, cost: float) -> Scripted:
    """Takes ``cost`` seconds for each draft."""
    script = drafter._script

    def wound(tokens: tuple[int, ...], rng: Any, depth: int) -> Any:
        clock.seconds += cost
        return script(tokens, rng, depth)

    return Scripted(wound)


def make(lab: Lab, clock: Clock, *, costs: Sequence[float] = (0.5, 0.25), **options: Any) -> Race:
    """Plain decoding, a drafter that is always right, and one that is always wrong."""
    start = len(PROMPT)
    ours: dict[str, Drafter] = {
        "draft": slow(knows(text(), start=start), clock, costs[0]),
        "ngram": slow(never_right(text(), start=start), clock, costs[1]),
    }
    settings: dict[str, Any] = {"max_new_tokens": NEW, "draft_length": 3, **options}
    return Race(lab, PROMPT, drafters=ours, clock=clock, **settings)


def test_times_worked_out_by_hand(lab: Lab, clock: Clock) -> None:
    """12 tokens. Plain: 12 forwards. Always right, 3 guesses: 3 rounds of 4 tokens, 1.5 seconds
    each. Always wrong: 12 rounds of 1.25 seconds."""
    record = make(lab, clock).run()
    assert record.phase == "finished"
    plain, right, wrong = record.lanes
    assert [t.seconds for t in plain.turns] == [float(i) for i in range(1, 13)]
    assert [(t.seconds, t.tokens) for t in right.turns] == [(1.5, 4), (3.0, 8), (4.5, 12)]
    assert (wrong.seconds, len(wrong.turns)) == (15.0, 12)
    assert (right.per_round, wrong.per_round) == (4.0, 1.0)
    assert record.speed(right) == pytest.approx(12 / 4.5)
    assert record.speed(wrong) == pytest.approx(12 / 15)
    assert record.sentence == (
        "draft was 2.67 × as fast as plain decoding here; ngram was slower here: 0.80 × the speed "
        "of plain decoding. All wrote the same text."
    )


def test_all_lanes_write_what_the_model_writes(lab: Lab, clock: Clock) -> None:
    right = Words().decode(text()[:NEW])
    assert [lane.text for lane in make(lab, clock).run().lanes] == [right] * 3


def test_no_lane_runs_ahead_of_the_others(lab: Lab, clock: Clock) -> None:
    """After any turn the lanes under way differ by at most one round, which takes 1.5 seconds at
    most; so what is seen at any moment is fair."""
    race = make(lab, clock)
    for _ in race._begin():
        lanes = [lane for lane in race.record.lanes if not lane.done and lane.turns]
        if len(lanes) > 1:
            seconds = [lane.seconds for lane in lanes]
            assert max(seconds) - min(seconds) <= 1.5
    assert race.record.phase == "finished"


def test_prompt_and_warming_up_are_not_counted(lab: Lab, clock: Clock) -> None:
    cold = make(lab, clock, warm_up=0).run()
    warm = make(lab, clock, warm_up=2).run()
    assert cold == warm
    assert clock.seconds > sum(lane.seconds for lane in (*cold.lanes, *warm.lanes))


def test_a_text_may_end_before_the_finish_line(lab: Lab, clock: Clock) -> None:
    end = text()[5]
    count = text().index(end) + 1
    record = make(lab, clock, eos=end).run()
    assert [lane.tokens for lane in record.lanes] == [count] * 3
    assert all(lane.done for lane in record.lanes)
    assert record.phase == "finished"


def targets(race: Race) -> list[Any]:
    return [r.events.gi_frame.f_locals["self"].target for r in race._runners if r.events]


def test_an_interrupt_leaves_nothing(lab: Lab, clock: Clock) -> None:
    race, seen = make(lab, clock), []
    script = race._makers["draft"]._script  # type: ignore[attr-defined]

    def interrupted(tokens: tuple[int, ...], rng: Any, depth: int) -> Any:
        if len(tokens) > len(PROMPT) + 5 and race.record.phase == "running":
            seen.extend(targets(race))
            raise KeyboardInterrupt
        return script(tokens, rng, depth)

    race._makers["draft"]._script = interrupted  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        race.run()
    assert seen
    assert all(t.slots_used == t.length for t in seen)  # nothing speculative is left
    assert race.record.phase == "stopped"
    assert not race.running
    assert all(runner.events is None for runner in race._runners)
    assert "Stopped before the finish (tokens so far: plain decoding" in repr(race)
    race._makers["draft"]._script = script  # type: ignore[attr-defined]
    assert race.run().phase == "finished"


def test_a_suspended_run_of_the_lab_is_not_disturbed(lab: Lab, clock: Clock) -> None:
    suspended = lab.events(PROMPT, method="ngram", max_new_tokens=NEW)
    for _ in range(6):
        next(suspended)
    slots = lab.target.committed_slots
    make(lab, clock).run()
    assert lab.target.committed_slots == slots
    assert sum(len(getattr(e, "text", "")) for e in suspended) > 0


# --- beside the notebook


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0.002)


def test_it_runs_beside_the_notebook_and_can_be_stopped(lab: Lab, clock: Clock) -> None:
    async def notebook() -> Race:
        race = make(lab, clock)
        task = race.start()
        assert race.start() is task  # a second press starts no second race
        await asyncio.sleep(0)
        while not race.record.lanes[0].turns:
            await turns(1)
        race.stop()
        assert task is not None
        await task
        return race

    race = asyncio.run(notebook())
    assert race.record.phase == "stopped"
    assert all(runner.events is None for runner in race._runners)
    assert 0 < race.record.lanes[0].tokens < NEW


def test_stopped_before_its_first_step(lab: Lab, clock: Clock) -> None:
    async def notebook() -> Race:
        race = make(lab, clock)
        task = race.start()
        race.stop()
        assert task is not None
        await task
        return race

    assert asyncio.run(notebook()).record.phase == "stopped"


def test_stopped_and_begun_again_at_once(lab: Lab, clock: Clock) -> None:
    """The first task wakes when the second run is under way, and leaves that alone."""

    async def notebook() -> Race:
        race = make(lab, clock)
        first = race.start()
        await turns(3)
        race.stop()
        second = race.start()
        assert first is not None
        assert second is not None
        await asyncio.gather(first, second)
        return race

    race = asyncio.run(notebook())
    assert race.record.phase == "finished"
    assert [lane.text for lane in race.record.lanes] == [Words().decode(text()[:NEW])] * 3


def test_a_newer_race_stops_the_old_one(lab: Lab, clock: Clock) -> None:
    """What happens when the cell is run again."""

    async def notebook() -> tuple[Race, Race]:
        old = make(lab, clock)
        first = old.start()
        while not old.record.lanes[0].turns:
            await turns(1)
        new = make(lab, clock)
        second = new.start()
        assert first is not None
        assert second is not None
        await asyncio.gather(first, second)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return old, new

    old, new = asyncio.run(notebook())
    assert old.record.phase == "stopped"
    assert "another run began on this lab" in repr(old)
    assert new.record.phase == "finished"
    assert [lane.text for lane in new.record.lanes] == [Words().decode(text()[:NEW])] * 3


def test_an_error_is_told_and_leaves_nothing(lab: Lab, clock: Clock) -> None:
    def useless(tokens: tuple[int, ...], rng: Any, depth: int) -> Any:
        raise BadInput("drafter", expected="a guess", got="none", next_step="mend it")

    async def notebook() -> Race:
        race = make(lab, clock)
        race._makers["draft"]._script = useless  # type: ignore[attr-defined]
        task = race.start()
        assert task is not None
        await task
        return race

    race = asyncio.run(notebook())
    assert "expected a guess" in repr(race)
    assert all(runner.events is None for runner in race._runners)


# --- what is shown


def test_the_page_is_told_in_messages_and_asks_back(lab: Lab, clock: Clock) -> None:
    now = Clock()
    race = make(lab, clock, now=now)
    view, told = race.view, []
    view.observe(lambda change: told.append(change["new"]), names="lanes")
    view._handle_custom_msg({"kind": "start"}, [])  # no event loop: here and now
    assert view.phase == "finished"
    assert view.sentence == race.record.sentence
    assert view.still.startswith("<svg")
    assert [lane["turns"][-1][:2] for lane in view.lanes] == [[12.0, 12], [4.5, 12], [15.0, 12]]
    assert len(told) == 1  # its clock stood still: lanes are sent at the end alone
    view._handle_custom_msg({"kind": "nonsense"}, [])
    view._handle_custom_msg("start", [])
    assert len(told) == 1
    view.close()


def test_every_view_stores_a_picture_and_a_sentence(lab: Lab, clock: Clock) -> None:
    race = make(lab, clock)
    data, _ = race._repr_mimebundle_()
    assert "Not started" in data["text/plain"]
    assert "<svg" in data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in data
    race.run()
    data, _ = race._repr_mimebundle_()
    assert data["text/plain"] == repr(race) == race.record.sentence
    assert "plain decoding is done" in data["text/html"]
    assert "Run this cell" in data["text/html"]
    race.view.close()


def test_a_view_that_was_closed_is_made_anew(lab: Lab, clock: Clock) -> None:
    """A cell that shows another thing closes it; the race can be shown elsewhere."""
    race = make(lab, clock)
    first = race.view
    close_whole(first)
    shown = first.phase
    race.run()
    assert first.phase == shown
    assert race.view is not first
    assert race.view.phase == "finished"
    assert "application/vnd.jupyter.widget-view+json" in race._repr_mimebundle_()[0]
    race.view.close()


def test_without_anywidget_a_picture_names_what_is_missing(
    lab: Lab, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the race runs all the same."""
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "labkit.viz.race_view", raising=False)
    race = make(lab, clock)
    assert "Not started" in race._repr_mimebundle_()["text/plain"]
    race.run()
    shown = race._repr_mimebundle_()
    assert "pip install anywidget" in shown["text/html"]
    assert "plain decoding is done" in shown["text/html"]
    assert shown["text/plain"] == repr(race) == race.record.sentence


def test_with_anywidget_nothing_is_said_to_be_missing(lab: Lab, clock: Clock) -> None:
    race = make(lab, clock)
    assert "pip install" not in race._repr_mimebundle_()[0]["text/html"]
    race.view.close()


def finished(*, speeds: Sequence[float] = (1.0, 0.5, 2.0), greedy: bool = True) -> RaceRecord:
    lanes = tuple(
        Lane(name, tuple(Turn(s * i, i, " a") for i in range(1, 5)), True)
        for name, s in zip((PLAIN, "draft", "ngram"), speeds, strict=False)
    )
    return RaceRecord(lanes, 4, greedy, "finished")


def test_the_same_record_is_the_same_picture() -> None:
    one, other = finished(), finished()
    assert one.picture.svg == other.picture.svg
    assert one.picture.svg != finished(speeds=(1.0, 0.5, 2.1)).picture.svg
    assert race_scene(one).height == race_scene(finished(speeds=(1.0, 0.5))).height + 82


def test_words_of_every_outcome() -> None:
    assert "no faster and no slower" in finished(speeds=(1.0, 1.0)).sentence
    assert "law" in finished(greedy=False).sentence
    lanes = finished().lanes
    other = Lane("ngram", (Turn(1.0, 1, " b"),), True)
    assert "part" in RaceRecord((lanes[0], other), 4, True, "finished").sentence
    nothing = RaceRecord((lanes[0], Lane("ngram")), 4, True, "finished")
    assert "ngram wrote nothing" in nothing.sentence
    assert "n/a" in nothing.table
    assert "slower here: 0.50 ×" in finished().picture.svg


def test_impossible_races_are_refused(lab: Lab) -> None:
    for methods in ((), ("draft", "ngram", "ar"), ("ngram", "ngram"), ("ar",)):
        with pytest.raises(BadInput, match="methods"):
            Race(lab, PROMPT, methods)
    with pytest.raises(BadInput, match="prompt"):
        Race(lab, [], ("ngram",))
    with pytest.raises(BadInput, match="max_new_tokens"):
        Race(lab, PROMPT, ("ngram",), max_new_tokens=0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"draft_length": "x"}, "draft_length: expected a whole number, got 'x'"),
        ({"draft_length": 1.5}, "draft_length: expected a whole number"),
        ({"heat": 1}, "setting: expected one of max_new_tokens, draft_length, .* got 'heat'"),
        ({"processors": []}, "setting: expected one of"),
        ({"stop_strings": "abc"}, "stop_strings: expected a list of texts"),
        ({"stop_strings": 5}, "stop_strings: expected a list of texts"),
        ({"temperature": "hot"}, "temperature: expected a number"),
        ({"warm_up": -1}, "warm_up: expected a whole number, 0 or more"),
        ({"warm_up": "x"}, "warm_up: expected a whole number"),
        ({"warm_up": 1.5}, "warm_up: expected a whole number"),
        ({"methods": "ngram"}, "methods: expected a list"),
        ({"methods": None}, "methods: expected a list"),
        ({"methods": [None]}, "methods: expected a list"),
        ({"methods": [["ngram"]]}, "methods: expected a list"),
        ({"methods": [PLAIN]}, "methods: expected a list"),
        ({"methods": ("ngram", "magic")}, "method: expected one of .* got 'magic'"),
        ({"drafters": {"draft": never_right((), start=0)}}, "drafters: expected one of ngram"),
        ({"drafters": {"ngram": "mine"}}, "drafters.'ngram'.: expected a labkit"),
        ({"drafters": [never_right((), start=0)]}, "drafters: expected a dictionary"),
        ({"prompt": None}, "prompt: expected"),
        ({"prompt": [1.5]}, "prompt: expected"),
    ],
)
def test_a_mistake_is_told_when_the_race_is_made(
    lab: Lab, clock: Clock, options: dict[str, Any], told: str
) -> None:
    """And a race that is under way on the same lab goes on."""
    first = make(lab, clock)
    steps = first._begin()
    next(steps)
    seconds = clock.seconds
    with pytest.raises(BadInput, match=told):
        Race(**{"lab": lab, "prompt": PROMPT, "methods": ("ngram",), **options})
    assert clock.seconds == seconds, "a forward before the refusal"
    for _ in steps:
        pass
    assert first.record.phase == "finished"


def test_a_stop_string_ends_every_lane_where_it_ends_the_text(lab: Lab, clock: Clock) -> None:
    end = text()[5]
    count = text().index(end) + 1
    record = make(lab, clock, stop_strings=[f"w{end}"]).run()
    assert record.phase == "finished"
    assert [lane.tokens for lane in record.lanes] == [count] * 3
    assert [lane.text for lane in record.lanes] == [Words().decode(text()[:count])] * 3


def test_a_prompt_is_taken_from_an_iterator(lab: Lab, clock: Clock) -> None:
    race = Race(lab, iter(PROMPT), ("ngram",), max_new_tokens=NEW)  # type: ignore[arg-type]
    assert race.run().lanes[0].text == Words().decode(text()[:NEW])
