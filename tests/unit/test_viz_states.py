"""The states of a run: their order, the status of every token, the slot table.

The slot table is replayed from single events; what it is held against are the counts that the
engine recorded independently (``slots_before``, ``slots_after``).
"""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import viz_traces
from viz_traces import Script

from labkit import viz
from labkit.errors import BadInput
from labkit.events import Committed, Started, from_json
from labkit.trace import Trace
from labkit.viz.states import State, Story, node_statuses, own_token

RECORDED = sorted((Path(__file__).parents[1] / "goldens" / "traces").glob("*.jsonl"))


def phases(trace: Trace) -> list[str]:
    return [state.phase for state in Story.of(trace).states]


def used(story: Story, state: State) -> int:
    return sum(slot.use not in ("free", "forgotten") for slot in story.slots(state))


def recorded(story: Story, state: State) -> int:
    round_ = story.rounds[state.at]
    event = {
        "draft": round_.drafted,
        "score": round_.scored,
        "verify": round_.verified,
        "commit": round_.verified,  # before the forgetting
        "forget": round_.committed,
    }[state.phase]
    assert event
    return event.slots_after


def miscounted(trace: Trace) -> list[State]:
    """States whose slot table holds another number of slots than the engine recorded."""
    story = Story.of(trace)
    moments = [s for s in story.states if s.phase not in ("start", "finish")]
    return [s for s in moments if used(story, s) != recorded(story, s)]


def test_a_round_is_told_trial_by_trial() -> None:
    assert phases(viz_traces.corrected()) == [
        "start", "draft", "score", "verify", "verify", "verify", "commit", "forget", "finish",
    ]  # fmt: skip


def test_phases_that_did_nothing_are_left_out() -> None:
    assert phases(viz_traces.plain(2)) == ["start", "score", "commit", "score", "commit", "finish"]
    assert "draft" not in phases(viz_traces.nothing_drafted())


@pytest.mark.parametrize(
    ("after", "last"), [("drafted", "draft"), ("scored", "score"), ("verified", "verify")]
)
def test_a_recording_that_was_cut_short_ends_where_it_ends(after: str, last: str) -> None:
    assert phases(viz_traces.cut_short(after))[-1] == last


def test_a_trace_without_a_beginning_is_refused() -> None:
    with pytest.raises(BadInput, match="started"):
        Story.of(Trace(()))


def test_provenance_two_accepted_then_a_correction() -> None:
    trace = viz_traces.corrected()
    story = Story.of(trace)
    round_ = story.rounds[0]
    assert trace.sources == ("draft", "draft", "target")
    assert node_statuses(round_, None) == ("prompt", "accepted", "accepted", "rejected")
    own = own_token(round_)
    assert own
    assert (trace.token_text(own[0]), own[1]) == (" small", "resampled")


def test_statuses_grow_with_the_tests() -> None:
    story = Story.of(viz_traces.corrected())
    seen = [node_statuses(story.rounds[0], s)[1:] for s in story.states if s.phase == "verify"]
    assert seen == [
        ("accepted", "pending", "pending"),
        ("accepted", "accepted", "pending"),
        ("accepted", "accepted", "rejected"),
    ]


def test_what_a_rejection_cuts_off_is_dropped_at_once() -> None:
    story = Story.of(Script().round([" a", " b", " c"], accept=0).end())
    first = next(s for s in story.states if s.phase == "verify")
    assert node_statuses(story.rounds[0], first)[1:] == ("rejected", "dropped", "dropped")


def test_a_bonus_token_is_not_resampled() -> None:
    story = Story.of(Script().round([" a"], accept=1, own=" b").end())
    own = own_token(story.rounds[0])
    assert own
    assert own[1] == "bonus"


def test_a_stop_inside_the_block_leaves_no_own_token() -> None:
    story = Story.of(viz_traces.stopped_inside())
    assert own_token(story.rounds[0]) is None
    assert node_statuses(story.rounds[0], None)[1:] == ("accepted", "accepted")


def test_what_is_accepted_behind_a_stop_is_not_called_accepted() -> None:
    trace = Script().round([" a", " b", " c"], accept=3, own=None).end(None)
    events = tuple(
        replace(e, tokens=e.tokens[:2], sources=e.sources[:2], text=" a b",
                kept_slots=e.kept_slots[:2], freed_slots=(*e.freed_slots, *e.kept_slots[2:]),
                slots_after=e.slots_after - 1)
        if isinstance(e, Committed) else e
        for e in trace.events
    )  # fmt: skip
    story = Story.of(replace(trace, events=events))
    assert node_statuses(story.rounds[0], None)[1:] == ("accepted", "accepted", "dropped")


@pytest.mark.parametrize("make", viz_traces.EVERY.values(), ids=viz_traces.EVERY)
def test_verdicts_are_the_same_with_and_without_recorded_trials(make: object) -> None:
    """At detail "timing" the statuses come from the path alone."""
    trace = make()  # type: ignore[operator]
    events = tuple(replace(e, trials=()) if hasattr(e, "trials") else e for e in trace.events)
    bare = Story.of(replace(trace, events=events))
    for full, short in zip(Story.of(trace).rounds, bare.rounds, strict=True):
        if full.committed:
            assert node_statuses(full, None) == node_statuses(short, None)


@pytest.mark.parametrize("make", viz_traces.EVERY.values(), ids=viz_traces.EVERY)
def test_the_slot_table_agrees_with_the_recorded_counts(make: object) -> None:
    assert miscounted(make()) == []  # type: ignore[operator]


def by_the_engine(path: Path) -> Trace:
    """Events that the engine itself wrote, for tiny models."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return Trace(tuple(from_json(json.loads(line)) for line in lines))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_slot_table_agrees_with_the_engine(path: Path) -> None:
    """Chains and trees, greedy and drawn, every stop reason, every detail."""
    trace = by_the_engine(path)
    assert miscounted(trace) == []
    story = Story.of(trace)
    seats = {s.position: s.token for s in story.slots(story.states[-1]) if s.use == "committed"}
    assert seats == dict(enumerate((*trace.prompt, *trace.tokens)[:-1]))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_runs_of_the_engine_can_be_drawn(path: Path) -> None:
    trace = by_the_engine(path)
    for step in range(len(Story.of(trace).states)):
        ET.fromstring(viz.still(trace, step=step).svg)
    for number in range(1, len(trace.rounds) + 1):
        ET.fromstring(viz.kv_slots(trace, round=number).svg)
        ET.fromstring(viz.ribbon(trace, round=number).svg)


def test_a_wrong_slot_table_is_noticed() -> None:
    trace = viz_traces.chain()
    for broken in (
        {"freed_slots": (), "kept_slots": ()},
        {"kept_slots": (0, 1, 2, 3, 4, 5, 6, 7, 8)},
    ):
        events = tuple(
            replace(e, **broken) if isinstance(e, Committed) else e for e in trace.events
        )
        with pytest.raises(BadInput, match="round 1, committed, kept_slots"):
            miscounted(replace(trace, events=events))


def test_rollback_is_forgetting_and_slots_are_reused() -> None:
    trace = viz_traces.chain()
    story = Story.of(trace)
    first, second = story.last_of_round(1), story.last_of_round(2)
    forgotten = [i for i, slot in enumerate(story.slots(first)) if slot.use == "forgotten"]
    round_ = story.rounds[0]
    assert round_.committed
    assert tuple(forgotten) == round_.committed.freed_slots == (7, 8)
    again = [story.slots(second)[i] for i in forgotten]
    assert [slot.tenants for slot in again] == [2, 2]
    assert [slot.use for slot in again] == ["kept", "kept"]


def test_every_committed_token_but_the_last_has_a_slot_at_its_position() -> None:
    for make in viz_traces.EVERY.values():
        trace = make()
        story = Story.of(trace)
        if not trace.finished:
            continue
        text = (*trace.prompt, *trace.tokens)
        seats = {s.position: s.token for s in story.slots(story.states[-1]) if s.use == "committed"}
        assert seats == dict(enumerate(text[:-1]))


def test_whole_rounds_are_a_selection_of_the_states() -> None:
    story = Story.of(viz_traces.chain())
    assert story.round_ends[0] == 0
    assert story.round_ends[-1] == len(story.states) - 1
    assert [story.states[i].at for i in story.round_ends] == [-1, 0, 1, 2, 3, 3]


def test_totals_follow_the_rounds() -> None:
    story = Story.of(viz_traces.chain())
    assert [n.accepted for n in story.totals] == [0, 2, 6, 6, 9]
    assert [n.rounds for n in story.totals] == [0, 1, 2, 3, 4]


def test_a_prompt_of_one_token_has_an_empty_cache() -> None:
    story = Story.of(Script(prompt=["Hi"]).round([" a"], accept=1).end())
    assert isinstance(story.trace.events[0], Started)
    assert used(story, story.states[0]) == 0
