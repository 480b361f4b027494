"""Memory that runs out in the middle of a run (a traceback that holds the tensors).

The error says what helps, the caches are gone although the error is kept, and the next run is as
if nothing had been.
"""

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import distorted, greedy_reference, prompt_of, tiny
from live_doubles import toy_lab

from labkit.decode import speculate
from labkit.drafters.draft_model import DraftModel
from labkit.errors import LabError, OutOfMemory
from labkit.lab import breaking
from labkit.lab.load import _place
from labkit.lab.memory import safely
from labkit.lab.race import Race
from labkit.lab.rehearse import rehearse
from labkit.lab.session import Lab

PROMPT, MODEL = prompt_of(7), tiny()
DRAFT = distorted(MODEL)  # before any hook, which a copy would have too
NEW = 12


@contextmanager
def full_at(number: int, *, words: str = "no room") -> Iterator[None]:
    """The target's forward of that number finds no memory, nor does any later one."""
    calls = itertools.count(1)

    def hook(*_: Any) -> None:
        if next(calls) >= number:
            raise torch.OutOfMemoryError(words)

    handle = MODEL.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def drafting() -> DraftModel:
    return DraftModel(DRAFT, vocab_size=64)


def record(lab: Lab) -> Any:
    return lab.record(PROMPT, drafter=drafting(), max_new_tokens=NEW)


def stepped(lab: Lab) -> Any:
    return lab.trace(lab.events(PROMPT, drafter=drafting(), max_new_tokens=NEW), PROMPT)


@pytest.mark.parametrize("words", ["no room", ""])
@pytest.mark.parametrize("run", [record, stepped])
def test_a_run_that_does_not_fit_lets_its_caches_go(run: Callable[[Lab], Any], words: str) -> None:
    lab = toy_lab(MODEL)
    cache = weakref.ref(lab.target._cache)
    with full_at(4, words=words), pytest.raises(OutOfMemory, match=r"smaller draft \(K") as told:
        run(lab)  # the prompt, then round 3
    assert (words or "OutOfMemoryError") in str(told.value)
    assert told.value.__context__ is None
    gc.collect()
    assert told.value.__traceback__ is not None  # as a notebook keeps it
    assert cache() is None
    assert run(lab).tokens == greedy_reference(MODEL, PROMPT, NEW)


def test_caches_that_a_traceback_holds_would_be_noticed() -> None:
    """Negative control: the engine's own error, kept as a notebook keeps the last one."""
    lab = toy_lab(MODEL)
    cache = weakref.ref(lab.target._cache)
    events = speculate(lab.target, drafting(), PROMPT, config=lab.config(max_new_tokens=NEW))
    with full_at(4), pytest.raises(torch.OutOfMemoryError) as told:
        lab.trace(events, PROMPT)
    del lab, events
    gc.collect()
    assert told.value.__traceback__ is not None
    assert cache() is not None


def test_a_drafter_that_was_handed_over_lets_its_caches_go_too() -> None:
    lab, kept = toy_lab(MODEL), drafting()
    cache = weakref.ref(kept._lm._cache)
    for number in (1, 4):  # at the prompt, and in a round
        with full_at(number), pytest.raises(OutOfMemory):
            lab.record(PROMPT, drafter=kept, max_new_tokens=NEW)
        gc.collect()
        assert cache() is None
        assert kept.length == 0
        again = lab.record(PROMPT, drafter=kept, max_new_tokens=NEW)
        assert again.tokens == greedy_reference(MODEL, PROMPT, NEW)
        assert kept.length > 0, "nothing was cached, nothing was tested"
        cache = weakref.ref(kept._lm._cache)


def test_a_race_still_sees_a_newer_one_after_a_run_that_did_not_fit() -> None:
    lab = toy_lab(MODEL)
    drafters = {method: lab.drafter(method) for method in ("ar", "ngram")}
    first = Race(lab, PROMPT, ("ngram",), max_new_tokens=NEW)
    steps = first._begin()
    next(steps)
    with full_at(4), pytest.raises(OutOfMemory):
        record(lab)
    assert lab.drafter("ar") is drafters["ar"]
    assert lab.drafter("ngram") is not drafters["ngram"]
    assert Race(lab, PROMPT, ("ngram",), max_new_tokens=NEW).run().phase == "finished"
    for _ in steps:
        pass
    assert (first.record.phase, first.record.why) == ("stopped", "another run began on this lab")


def test_a_rehearsal_that_does_not_fit_lets_its_caches_go() -> None:
    lab, kept = toy_lab(MODEL), drafting()
    text = lab.record(PROMPT, method="ar", max_new_tokens=NEW)
    lab.record(PROMPT, drafter=kept, max_new_tokens=NEW)
    caches = [weakref.ref(lab.target._cache), weakref.ref(kept._lm._cache)]
    with full_at(1), pytest.raises(OutOfMemory, match="this rehearsal") as told:
        rehearse(lab, text, drafter=kept, draft_length=2)
    gc.collect()
    assert told.value.__traceback__ is not None
    assert [cache() for cache in caches] == [None, None]
    again = rehearse(lab, text, drafter=kept, draft_length=2)
    assert again.tokens == text.tokens


def test_a_broken_run_that_does_not_fit_says_so() -> None:
    with full_at(18), pytest.raises(OutOfMemory, match="this run"):  # 13 are of plain decoding
        breaking.show(toy_lab(MODEL), "no_rollback", PROMPT, drafter=drafting(), max_new_tokens=NEW)


def test_a_race_that_does_not_fit_says_so_and_holds_nothing() -> None:
    seen: list[Any] = []
    race = Race(toy_lab(MODEL), PROMPT, ("ngram",), max_new_tokens=NEW)
    handle = MODEL.register_forward_hook(
        lambda *_: seen.extend(
            weakref.ref(runner.events.gi_frame.f_locals["self"].target._cache)
            for runner in race._runners
            if runner.events
        )
    )
    with full_at(9), pytest.raises(OutOfMemory, match="the race") as told:
        race.run()
    handle.remove()
    gc.collect()
    assert told.value.__traceback__ is not None
    assert len(seen) > 8
    assert all(cache() is None for cache in seen)
    assert race.record.phase == "stopped"
    assert race.run().phase == "finished"


def test_other_errors_pass_unchanged_and_let_nothing_go() -> None:
    let_go: list[int] = []
    for error in (KeyboardInterrupt, LabError, ZeroDivisionError):

        def work(error: type[BaseException] = error) -> None:
            raise error.__new__(error)

        with pytest.raises(error):
            safely(work, "work", let_go=lambda: let_go.append(1))
    assert safely(lambda: 3, "work", let_go=lambda: let_go.append(1)) == 3
    assert let_go == []


@pytest.mark.parametrize("words", ["no room", ""])
def test_a_model_that_does_not_fit_holds_no_weights(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, whole = torch.nn.Linear(4, 4), torch.nn.Linear.to

    def to(self: Any, place: Any) -> Any:
        if place == torch.device("cpu"):
            raise torch.OutOfMemoryError(words)
        return whole(self, place)

    monkeypatch.setattr(torch.nn.Linear, "to", to)
    with pytest.raises(OutOfMemory, match="room for its weights") as told:
        _place(model, torch.device("cpu"))
    assert told.value.__context__ is None
    assert (words or "OutOfMemoryError") in str(told.value)
    assert all(weight.is_meta for weight in model.parameters())
