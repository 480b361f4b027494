"""A rehearsal ends where its text does, whatever ended it, and takes no text that was not greedy.

The truth is a run that is recorded with the other drafter from the beginning. The draft model is
the target itself or a distortion of it, so that drafts go on behind the end.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers import distorted, prompt_of, tiny
from live_doubles import toy_lab

from labkit.drafters.draft_model import DraftModel
from labkit.drafters.ngram import NGram
from labkit.drafters.scripted import guessing
from labkit.errors import BadInput
from labkit.events import Finished
from labkit.lab import live
from labkit.lab.rehearse import rehearse
from labkit.lab.session import Lab
from labkit.trace import Trace

PROMPT, MODEL, NEW = prompt_of(7), tiny(), 16
DRAFTERS: dict[str, Callable[[], Any]] = {
    "the target itself": lambda: DraftModel(MODEL, vocab_size=64),
    "a distortion": lambda: DraftModel(distorted(MODEL), vocab_size=64),
    "n-grams": NGram,
}


@pytest.fixture
def lab() -> Lab:
    return toy_lab(MODEL)


def plain(lab: Lab, **settings: Any) -> Trace:
    return lab.record(PROMPT, method="ar", **{"max_new_tokens": NEW, **settings})


def rounds(trace: Trace) -> list[Any]:
    """Drafts, and what joined the text of them."""
    return [(r.drafted.tokens, r.committed.tokens) for r in trace.rounds if r.committed]


def counts(trace: Trace) -> list[int]:
    return [r.accepted for r in trace.rounds]


def ends_of(lab: Lab) -> dict[str, dict[str, Any]]:
    text = plain(lab).tokens
    late = next(t for t in text[8:] if t not in text[:8])
    return {
        "stop string": {"stop_strings": [f"w{late}"]},
        "end of text": {"eos": late},
        "number": {},
    }


@pytest.mark.parametrize("who", DRAFTERS)
@pytest.mark.parametrize("end", ["stop string", "end of text", "number"])
def test_it_ends_as_the_real_run_does(lab: Lab, end: str, who: str) -> None:
    settings = ends_of(lab)[end]
    text = plain(lab, **settings)
    assert len(text.tokens) < NEW or end == "number"
    real = lab.record(
        PROMPT, drafter=DRAFTERS[who](), draft_length=5, max_new_tokens=NEW, **settings
    )
    again = rehearse(lab, text, drafter=DRAFTERS[who](), draft_length=5)
    assert again.tokens == text.tokens == real.tokens
    assert rounds(again) == rounds(real)
    assert counts(again) == counts(real)
    assert again.finished is not None
    assert real.finished is not None
    assert again.finished.reason == real.finished.reason
    assert again.text == real.text


@pytest.mark.parametrize("most", [1, 5, 11])
@pytest.mark.parametrize("who", DRAFTERS)
def test_an_interrupted_text_is_one_of_that_many_tokens(lab: Lab, who: str, most: int) -> None:
    whole = plain(lab)
    cut = [e for e in whole.events if not isinstance(e, Finished) and e.round <= most]
    text = replace(whole, events=tuple(cut))
    assert len(text.tokens) == most
    again = rehearse(lab, text, drafter=DRAFTERS[who](), draft_length=4)
    real = lab.record(PROMPT, drafter=DRAFTERS[who](), draft_length=4, max_new_tokens=most)
    assert again.tokens == text.tokens
    assert rounds(again) == rounds(real)


def test_nothing_is_tried_behind_the_end(lab: Lab) -> None:
    """Somebody who guesses token 0 behind the end: the target said nothing there."""
    end = ends_of(lab)["end of text"]["eos"]
    text = plain(lab, eos=end)
    known = [*PROMPT, *text.tokens]

    def guess(so_far: list[int], count: int) -> list[int]:
        return [*known[len(so_far) :], 0, 0, 0, 0, 0, 0][:count]

    again = rehearse(lab, text, drafter=guessing(guess), draft_length=6)
    last = again.rounds[-1]
    assert last.drafted.tokens[-1] == 0
    assert again.tokens == text.tokens
    assert last.verified is not None
    assert [t.node for t in last.verified.trials if last.drafted.tokens[t.node] == 0] == []
    assert len(last.verified.path) <= last.drafted.tokens.index(end) + 1


# --- a text in the making -------------------------------------------------------------------------


def bench_of(lab: Lab, **options: Any) -> live.Workbench:
    return live.open(lab, PROMPT, method="ngram", max_new_tokens=NEW, **options)


def rehearsed(lab: Lab, bench: live.Workbench) -> Trace:
    again = rehearse(lab, bench.trace, method="ngram", draft_length=3)
    assert again.tokens == bench.tokens
    return again


def test_a_text_in_the_making_is_rehearsed_as_far_as_it_goes(lab: Lab) -> None:
    bench = bench_of(lab)
    bench.run(4)
    assert rehearsed(lab, bench).finished is not None
    bench.set(max_new_tokens=len(bench.tokens) + 1)
    bench.run(2)
    bench.set(max_new_tokens=64)  # it had ended, and may go on
    rehearsed(lab, bench)


def test_ends_that_came_later_do_not_end_it_earlier(lab: Lab) -> None:
    bench = bench_of(lab)
    bench.run(6)
    bench.set(eos=bench.tokens[2])
    rehearsed(lab, bench)
    bench.set(eos=None, stop_strings=[f"w{bench.tokens[1]}"])
    rehearsed(lab, bench)


@pytest.mark.parametrize("settings", [{"temperature": 0.9}, {"repetition_penalty": 1.4}])
def test_every_round_must_have_been_greedy(lab: Lab, settings: dict[str, float]) -> None:
    bench = bench_of(lab)
    bench.step()
    before = {name: getattr(bench.settings.config, name) for name in settings}
    bench.set(**settings)
    bench.step()
    bench.set(**before)
    bench.step()
    with pytest.raises(BadInput, match="rehearsal: expected a run at temperature 0"):
        rehearse(lab, bench.trace, method="ngram", draft_length=2)


def test_what_is_set_for_the_next_round_says_nothing_of_the_text(lab: Lab) -> None:
    bench = bench_of(lab)
    bench.run(3)
    bench.set(temperature=0.9)
    rehearsed(lab, bench)


@pytest.mark.parametrize("meddle", [lambda b: b.force(9), lambda b: (b.forbid(9), b.step())])
def test_a_text_by_hand_is_refused(lab: Lab, meddle: Callable[[Any], object]) -> None:
    bench = bench_of(lab)
    bench.run(2)
    meddle(bench)
    with pytest.raises(BadInput, match="rehearsal"):
        rehearse(lab, bench.trace, method="ngram", draft_length=2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"draft_length": "x"}, "draft_length: expected a whole number"),
        ({"draft_length": -1}, "draft_length: expected 0 or more"),
        ({"method": "magic"}, "method: expected one of"),
        ({"drafter": "ngram"}, "drafter: expected a labkit.drafters.base.Drafter"),
    ],
)
def test_mistakes_are_told_before_any_work(lab: Lab, options: dict[str, Any], told: str) -> None:
    text, calls = plain(lab), []
    handle = MODEL.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(BadInput, match=told):
        rehearse(lab, text, **{"method": "ngram", "draft_length": 2, **options})
    handle.remove()
    assert calls == []


def test_what_is_no_recorded_text_is_refused(lab: Lab) -> None:
    text = plain(lab)
    for wrong in (None, "text", replace(text, header={}), replace(text, events=text.events[:2])):
        with pytest.raises(BadInput, match="rehearsal: expected a"):
            rehearse(lab, wrong, method="ngram", draft_length=2)  # type: ignore[arg-type]
    other = replace(text, events=(replace(text.started, prompt=(99,)), *text.events[1:]))
    with pytest.raises(BadInput, match="token ids from 0 to 63"):
        rehearse(lab, other, method="ngram", draft_length=2)
