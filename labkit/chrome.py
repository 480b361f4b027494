"""A run as a Chrome trace, for ui.perfetto.dev and chrome://tracing.

Owns: which phase stands in which lane, and the numbers beside it.
Does not know: files, drawing.
Invariants: slices of one sequence lie end to end in the order of its events, and their lengths sum
to the seconds of those events; nothing but plain JSON.

The format: "Trace Event Format", Google, the JSON object form. Complete events (ph X) need name,
cat, ph, ts, dur, pid and tid; metadata (M) name the lanes; counters (C) draw a curve. Times are
microseconds. One process for each sequence, one thread for each lane.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from labkit.events import Committed, Drafted, Event, Prefilled, Scored, Verified

LANES = ("draft", "target", "verify")
_LANE = {"prefilled": 1, "drafted": 0, "scored": 1, "verified": 2, "committed": 2}


def chrome(
    events: Iterable[Event],
    *,
    header: Mapping[str, Any],
    token_text: Callable[[int], str],
) -> dict[str, Any]:
    """The whole file as one JSON-able object."""
    slices: list[dict[str, Any]] = []
    ends: dict[int, float] = {}
    for event in events:
        if event.kind not in _LANE:
            continue
        if event.sequence not in ends:
            slices += _names(event.sequence, header)
        start = ends.get(event.sequence, 0.0)
        ends[event.sequence] = start + event.seconds * 1e6
        slices += _slices(event, start, ends[event.sequence], token_text)
    return {
        "traceEvents": slices,
        "displayTimeUnit": "ms",
        "otherData": {name: str(fact) for name, fact in header.items()},
    }


def _names(sequence: int, header: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    model = header.get("model") or "target"
    yield _named(sequence, 0, "process_name", {"name": f"sequence {sequence}: {model}"})
    for place, lane in enumerate(LANES):
        yield _named(sequence, place + 1, "thread_name", {"name": lane})
        yield _named(sequence, place + 1, "thread_sort_index", {"sort_index": place})


def _named(sequence: int, lane: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "cat": "__metadata", "ph": "M", "ts": 0,
            "pid": sequence + 1, "tid": lane, "args": args}  # fmt: skip


def _slices(
    event: Event, start: float, end: float, token_text: Callable[[int], str]
) -> Iterator[dict[str, Any]]:
    """The slice of one phase, and the slots that are in use after it."""
    place = {"pid": event.sequence + 1, "cat": "labkit"}
    # lengths are differences of rounded ends, so that rounding leaves neither gap nor overlap
    begins, ends = round(start, 3), round(end, 3)
    common = {
        "round": event.round,
        "forwards": event.forwards,
        "forward_seconds": event.forward_seconds,
        "slots_before": event.slots_before,
        "slots_after": event.slots_after,
    }
    yield {
        "name": event.kind,
        "ph": "X",
        "ts": begins,
        "dur": round(ends - begins, 3),
        "tid": _LANE[event.kind] + 1,
        "args": common | _numbers(event, token_text),
        **place,
    }
    slots = {"in use": event.slots_after}
    if event.kind in ("prefilled", "scored", "committed"):
        yield {"name": "KV slots", "ph": "C", "ts": ends, "tid": 0, "args": slots, **place}


def _numbers(event: Event, token_text: Callable[[int], str]) -> dict[str, Any]:
    """What a reader of the slice wants to know, by kind."""
    match event:
        case Prefilled():
            return {"tokens": event.tokens}
        case Drafted():
            words = [token_text(token) for token in event.tokens[1:]]
            return {"drafted": words, "parents": [*event.parents[1:]], "limit": event.limit}
        case Scored():
            return {"nodes": len(event.node_slots), "context": event.context}
        case Verified():
            tests = [
                {"node": t.node, "p": t.p, "q": t.q, "u": t.u, "accepted": t.accepted}
                for t in event.trials
            ]
            own = {"next_token": token_text(event.next_token), "resampled": event.resampled}
            return {"accepted": len(event.path) - 1, "tests": tests, **own}
        case Committed():
            return {"text": event.text, "tokens": len(event.tokens), "sources": [*event.sources],
                    "freed_slots": [*event.freed_slots]}  # fmt: skip
        case _:
            return {}
