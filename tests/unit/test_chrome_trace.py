"""The Chrome trace of a run, held to the published Trace Event Format: required fields by phase."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import viz_traces

from labkit.events import Drafted, Prefilled, Scored
from labkit.trace import Trace

# "Trace Event Format": complete events, metadata events and counters, in that document's tables.
REQUIRED: dict[str, set[str]] = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "M": {"name", "ph", "pid", "args"},
    "C": {"name", "ph", "ts", "pid", "args"},
}
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def faults(record: dict[str, Any]) -> list[str]:
    """What a reader of the format would refuse."""
    found = []
    if not isinstance(record.get("traceEvents"), list):
        found.append("no traceEvents")
    if record.get("displayTimeUnit") not in ("ms", "ns"):
        found.append("displayTimeUnit")
    for i, event in enumerate(record.get("traceEvents", [])):
        required = REQUIRED.get(event.get("ph"), {"a known phase"})
        found += [f"{i} lacks {name}" for name in sorted(required - set(event))]
        numbers = [event[name] for name in ("ts", "dur", "pid", "tid") if name in event]
        if any(type(n) not in (int, float) or n < 0 for n in numbers):
            found.append(f"{i} has no times")
        if event.get("ph") == "M" and METADATA.get(event["name"]) not in event["args"]:
            found.append(f"{i} names nothing")
        if event.get("ph") == "C" and any(type(v) is not int for v in event["args"].values()):
            found.append(f"{i} counts nothing")
    return found


def slices(record: dict[str, Any], ph: str = "X") -> list[dict[str, Any]]:
    return [event for event in record["traceEvents"] if event["ph"] == ph]


@pytest.fixture(params=sorted(viz_traces.EVERY))
def trace(request: pytest.FixtureRequest) -> Trace:
    made: Trace = viz_traces.EVERY[request.param]()
    return made


def test_every_event_has_what_the_format_requires(trace: Trace) -> None:
    record = trace.chrome()
    assert faults(record) == []
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_durations_sum_to_the_seconds_of_the_trace_and_leave_no_gap(trace: Trace) -> None:
    found = slices(trace.chrome())
    spent = sum(event.seconds for event in trace.events)
    assert sum(s["dur"] for s in found) / 1e6 == pytest.approx(spent, abs=1e-8)
    for left, right in itertools.pairwise(found):
        assert right["ts"] == pytest.approx(left["ts"] + left["dur"], abs=1e-3)


def test_every_phase_stands_in_its_lane(trace: Trace) -> None:
    record = trace.chrome()
    names = {m["tid"]: m["args"]["name"] for m in slices(record, "M") if m["name"] == "thread_name"}
    lanes = {s["name"]: names[s["tid"]] for s in slices(record)}
    wanted = {"prefilled": "target", "drafted": "draft", "scored": "target",
              "verified": "verify", "committed": "verify"}  # fmt: skip
    assert lanes == {kind: lane for kind, lane in wanted.items() if kind in lanes}
    assert lanes


def test_the_numbers_are_those_of_the_events() -> None:
    trace = viz_traces.chain()
    by_name: dict[str, list[dict[str, Any]]] = {}
    for s in slices(trace.chrome()):
        by_name.setdefault(s["name"], []).append(s["args"])
    for i, r in enumerate(trace.rounds):
        assert r.committed
        assert r.verified
        drafted = [trace.token_text(t) for t in r.drafted.tokens[1:]]
        assert by_name["drafted"][i]["drafted"] == drafted
        tests = by_name["verified"][i]["tests"]
        assert [(t["p"], t["q"], t["u"]) for t in tests] == [
            (t.p, t.q, t.u) for t in r.verified.trials
        ]
        assert by_name["committed"][i]["text"] == r.committed.text
    assert "".join(args["text"] for args in by_name["committed"]) == trace.text
    counts = [c["args"]["in use"] for c in slices(trace.chrome(), "C")]
    assert counts[-1] == trace.rounds[-1].committed.slots_after  # type: ignore[union-attr]


def test_sequences_of_a_batch_are_processes_of_their_own() -> None:
    events = (
        Prefilled(round=0, sequence=0, seconds=0.5, tokens=3),
        Prefilled(round=0, sequence=1, seconds=0.25, tokens=2),
        Drafted(round=1, sequence=1, seconds=0.125, tokens=(1,), parents=(-1,),
                deterministic=True, limit=0),
        Scored(round=1, sequence=0, seconds=1.0, node_slots=(3,), context=3),
    )  # fmt: skip
    record = Trace(events, {"model": "toy"}).chrome()
    assert faults(record) == []
    placed = [(s["pid"], s["name"], s["ts"], s["dur"]) for s in slices(record)]
    assert placed == [
        (1, "prefilled", 0, 500_000), (2, "prefilled", 0, 250_000),
        (2, "drafted", 250_000, 125_000), (1, "scored", 500_000, 1_000_000),
    ]  # fmt: skip
    names = [m["args"]["name"] for m in slices(record, "M") if m["name"] == "process_name"]
    assert names == ["sequence 0: toy", "sequence 1: toy"]


def test_a_written_file_is_the_same_object(tmp_path: Path) -> None:
    trace = viz_traces.odd_tokens()
    path = trace.to_chrome(tmp_path / "run.chrome.json")
    assert json.loads(path.read_text(encoding="utf-8")) == trace.chrome()


def test_what_the_format_forbids_would_be_found() -> None:
    """Negative control: one fault of each kind."""
    good = viz_traces.chain().chrome()
    assert faults({"traceEvents": good["traceEvents"]}) == ["displayTimeUnit"]
    first = slices(good)[0]
    without = {name: value for name, value in first.items() if name != "dur"}
    for bad in (without, first | {"ts": -1}, first | {"ts": "0"}, first | {"ph": "Q"}):
        assert faults({"displayTimeUnit": "ms", "traceEvents": [bad]}), bad
