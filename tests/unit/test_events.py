"""Every event survives JSON, and what is not an event is refused by name."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from labkit.errors import BadInput
from labkit.events import (
    KINDS,
    Committed,
    Drafted,
    Event,
    Finished,
    Prefilled,
    Scored,
    Started,
    Trial,
    Verified,
    from_json,
    to_json,
)

TOP = ((3, 0.5), (1, 0.25))
ONE_OF_EACH: tuple[Event, ...] = (
    Started(round=0, method="draft", prompt=(1, 2), max_new_tokens=8, draft_length=2),
    Prefilled(round=0, tokens=1, seconds=0.5, forwards=1, forward_seconds=0.25, slots_after=1),
    Drafted(
        round=1,
        sequence=3,
        tokens=(2, 3, 4),
        parents=(-1, 0, 0),
        deterministic=False,
        limit=2,
        q=(None, 0.5, 0.125),
        q_top=((), TOP, TOP),
    ),
    Scored(round=1, node_slots=(1, 2, 4), context=1, p_top=(TOP, (), TOP)),
    Verified(
        round=1,
        path=(0, 2),
        next_token=5,
        resampled=True,
        trials=(Trial(1, 0.25, 0.5, 0.75, False), Trial(2, 0.5, 0.5, 0.125, True)),
        residual_top=TOP,
    ),
    Committed(
        round=1,
        tokens=(4, 5),
        sources=("draft", "target"),
        text="é \N{GRINNING FACE}",
        kept_slots=(1, 4),
        freed_slots=(2,),
        logprobs=(-0.5, -1.25),
        near_ties=(False, True),
    ),
    Finished(round=1, reason="eos", new_tokens=2),
)


def through_json(event: Event) -> Event:
    return from_json(json.loads(json.dumps(to_json(event))))


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda e: e.kind)
def test_round_trip(event: Event) -> None:
    back = through_json(event)
    assert back == event
    assert type(back) is type(event)


def test_every_kind_is_tried() -> None:
    assert {event.kind for event in ONE_OF_EACH} == set(KINDS)


def test_floats_keep_six_digits_and_stay_put() -> None:
    once = through_json(Prefilled(round=0, tokens=1, seconds=1 / 3))
    assert once.seconds == 0.333333
    assert through_json(once) == once


def test_defaults_are_left_out() -> None:
    assert to_json(Prefilled(round=0, tokens=1)) == {"kind": "prefilled", "round": 0, "tokens": 1}


PRUNED = Drafted(
    round=1,
    tokens=(2, 7, 8, 9),
    parents=(-1, 0, 0, 2),
    deterministic=True,
    limit=3,
    q_top=((), TOP, TOP, ((4, 0.75),)),
    confidence=(1.0, 0.5, 0.25, 0.125),
    considered=(
        (2, -1, 1.0, 0), (7, 0, 0.5, 1), (8, 0, 0.25, 2), (6, 1, 0.0625, -1),
        (9, 2, 0.125, 3), (6, 3, 0.03125, -1),
    ),
)  # fmt: skip


def test_what_an_event_says_twice_is_written_once() -> None:
    written = to_json(PRUNED)
    assert written["q_top"] == [[], [3, 0.5, 1, 0.25], 1, [4, 0.75]]
    assert written["considered"] == [0, 1, 2, [6, 1, 0.0625], 3, [6, 3, 0.03125]]
    assert through_json(PRUNED) == PRUNED
    assert from_json(dict(reversed(written.items()))) == PRUNED  # in any order of the fields


def test_pruned_siblings_share_their_parent() -> None:
    more = ((5, 3, 0.03, -1), (6, 3, 0.02, -1), (6, 2, 0.01, -1), (5, 9, 0.005, -1))
    event = replace(PRUNED, considered=(*PRUNED.considered[:5], *more))
    written = to_json(event)["considered"][5:]
    assert written == [[5, 3, 0.03, 6, 0.02], [6, 2, 0.01], [5, 9, 0.005]]
    assert through_json(event) == event


def test_pairs_in_lists_of_their_own_are_read_too() -> None:
    """The form of the first recordings."""
    old = to_json(PRUNED) | {"q_top": [[], [[3, 0.5], [1, 0.25]], 1, [[4, 0.75]]]}
    assert from_json(old) == PRUNED


@pytest.mark.parametrize(
    "change", [{"confidence": ()}, {"confidence": (1.0, 0.5, 0.5, 0.125)}, {"tokens": (2, 7, 7, 9)}]
)
def test_candidates_that_are_not_their_nodes_are_written_whole(change: dict[str, Any]) -> None:
    event = replace(PRUNED, **change)
    assert through_json(event) == event


def test_what_is_looked_at_keeps_four_digits_and_what_is_judged_six() -> None:
    event = through_json(replace(PRUNED, q=(None, 1 / 3, 1.0, 1.0), q_top=((), ((3, 1 / 3),))))
    assert isinstance(event, Drafted)
    assert (event.q[1], event.q_top[1]) == (0.333333, ((3, 0.3333),))
    assert through_json(event) == event


DRAFTED = to_json(PRUNED)
VERIFIED = {"kind": "verified", "round": 1, "path": [0], "next_token": 3, "resampled": False}


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"kind": "dreamt", "round": 0}, "'dreamt'"),
        ({"round": 0}, "None"),
        ({"kind": "finished", "round": 1, "reason": "eos"}, "finished"),
        ({"kind": "prefilled", "round": 0, "tokens": 1, "colour": "red"}, "colour"),
        ({"kind": ["prefilled"]}, "event kind"),
        ({"kind": "prefilled", "round": 0, "tokens": "1"}, "got tokens: '1'"),
        ({"kind": "prefilled", "round": True, "tokens": 1}, "got round: True"),
        ({"kind": "prefilled", "round": 0, "tokens": 1, "seconds": None}, "got seconds: None"),
        ({"kind": "prefilled", "round": 0, "tokens": 1, "seconds": math.inf}, "got seconds: inf"),
        ({"kind": "prefilled", "round": 0, "tokens": 1, "seconds": math.nan}, "got seconds: nan"),
        ({"kind": "prefilled", "round": 0, "tokens": 1, "seconds": 10**400}, "got seconds: 1"),
        ({"kind": "committed", "round": 1, "tokens": [1], "sources": "draft"}, "got sources"),
        ({"kind": "committed", "round": 1, "tokens": 7, "sources": ["draft"]}, "got tokens: 7"),
        (VERIFIED | {"trials": [[1, 0.5, 0.5, 0.1]]}, "got trials"),
        (VERIFIED | {"trials": [[1, 0.5, 0.5, 0.1, "yes"]]}, "got trials"),
        (VERIFIED | {"residual_top": [[1]]}, "got residual_top"),
        (DRAFTED | {"q_top": [[], 1]}, "got q_top: [[], 1]"),  # no earlier node
        (DRAFTED | {"q_top": [[], -1]}, "got q_top: [[], -1]"),
        (DRAFTED | {"considered": [0, 9]}, "got considered: [0, 9]"),
        (DRAFTED | {"considered": [0, 3]}, "got considered: [0, 3]"),  # its parent is not there
        (DRAFTED | {"considered": [0, [6, 1]]}, "got considered"),
        (DRAFTED | {"considered": [0, [6, 0, 0.5, 7, "x"]]}, "got considered"),
        (DRAFTED | {"considered": [0, [6]]}, "got considered"),
        (DRAFTED | {"q_top": [[], [3, 0.5, 1]]}, "got q_top"),
        (DRAFTED | {"q_top": [[], [0.5, 3]]}, "got q_top"),
        (DRAFTED | {"q_top": [[], [3, "0.5"]]}, "got q_top"),
        (DRAFTED | {"considered": 7, "parents": "x"}, "got parents: 'x'"),
    ],
)
def test_what_is_no_event_is_refused_by_name(record: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput) as caught:
        from_json(record)
    assert named in str(caught.value)


def test_numbers_as_a_browser_writes_them_are_read() -> None:
    """JavaScript knows one kind of number and writes 1.0 as 1."""
    event = from_json(VERIFIED | {"seconds": 2, "trials": [[1, 1, 1, 0, True]]})
    assert (event.seconds, type(event.seconds)) == (2.0, float)


@pytest.mark.parametrize(
    ("p", "q", "threshold"), [(0.3, 0.6, 0.5), (0.6, 0.3, 1.0), (0.3, 1.0, 0.3), (0.3, 0.0, 0.0)]
)
def test_threshold_is_the_accept_probability(p: float, q: float, threshold: float) -> None:
    assert Trial(1, p, q, 0.5, True).threshold == threshold
