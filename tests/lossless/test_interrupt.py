"""Leaving a run anywhere leaves target and drafter fit for the next run.

Closing the generator after any event, an interrupt inside any forward, an error in any callback, an
interrupt at any line of the engine: afterwards the next run equals one on fresh objects.
"""

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from helpers import SumModel, prompt_of, run

import labkit.cache
import labkit.decode
import labkit.drafters.draft_model
import labkit.target
from labkit.cache import SlotTable
from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.draft_model import DraftModel
from labkit.streaming import TextStream
from labkit.target import Target

PROMPT, NEXT_PROMPT = prompt_of(5, vocab_size=31), prompt_of(7, vocab_size=31, seed=8)
TARGET_MODEL, DRAFT_MODEL = SumModel(), SumModel(slips=True)
COUNT = 6
SETTINGS: dict[str, Any] = {"max_new_tokens": COUNT, "draft_length": 3}


def pair() -> tuple[Target, DraftModel]:
    return Target(TARGET_MODEL), DraftModel(DRAFT_MODEL, vocab_size=31)


def check_as_at_last_commit(target: Target, drafter: DraftModel, text: tuple[int, ...]) -> None:
    """Caches hold committed tokens only, and no slot is left over. ``text``: prompt and output."""
    assert target.slots_used == target.length <= len(text) - 1
    assert drafter.length <= len(text) - 1
    assert drafter._cached == list(text[: drafter.length])
    target._cache.table.check()


FRESH = run(*pair(), NEXT_PROMPT, **SETTINGS)


def check_next_run(target: Target, drafter: DraftModel) -> None:
    trace = run(target, drafter, NEXT_PROMPT, **SETTINGS)
    assert trace.tokens == TARGET_MODEL.continued(NEXT_PROMPT, COUNT)
    assert [r.drafted.tokens for r in trace.rounds] == [r.drafted.tokens for r in FRESH.rounds]
    check_as_at_last_commit(target, drafter, (*NEXT_PROMPT, *trace.tokens))


def events_of(target: Target, drafter: DraftModel, **options: Any) -> Iterator[Any]:
    return speculate(target, drafter, PROMPT, config=DecodeConfig(**SETTINGS), **options)


WHOLE = list(events_of(*pair()))
TEXT = (*PROMPT, *(t for event in WHOLE if event.kind == "committed" for t in event.tokens))


@pytest.mark.parametrize("count", range(len(WHOLE)))
def test_closing_after_any_event(count: int) -> None:
    target, drafter = pair()
    events = events_of(target, drafter)
    seen = list(itertools.islice(events, count))
    events.close()
    committed = sum(len(e.tokens) for e in seen if e.kind == "committed")
    if count >= 2:  # the prompt is in
        assert target.length == len(PROMPT) - 1 + committed
        check_as_at_last_commit(target, drafter, TEXT[: len(PROMPT) + committed])
    check_next_run(target, drafter)


def to_the_end(events: Iterator[Any]) -> None:
    for _ in events:
        pass


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("model", [TARGET_MODEL, DRAFT_MODEL], ids=["target", "draft"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_interrupt_inside_a_forward(model: Any, number: int, where: str) -> None:
    target, drafter = pair()
    calls = itertools.count(1)

    def interrupt(*_: Any, **__: Any) -> None:
        if next(calls) == number:
            raise KeyboardInterrupt

    place = model.register_forward_pre_hook if where == "before" else model.register_forward_hook
    handle = place(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            to_the_end(events_of(target, drafter))
    finally:
        handle.remove()
    check_as_at_last_commit(target, drafter, TEXT)
    check_next_run(target, drafter)


def raises_at(number: int) -> Callable[..., Any]:
    calls = itertools.count(1)

    def call(*arguments: Any) -> Any:
        if next(calls) == number:
            raise RuntimeError("callback")
        return arguments[-1]

    return call


@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.parametrize("kind", ["processor", "text"])
def test_an_error_in_a_callback(kind: str, number: int) -> None:
    target, drafter = pair()
    bad = raises_at(number)
    options: dict[str, Any] = {
        "processor": {"processors": [bad]},
        "text": {"text": TextStream(lambda ids: bad("x" * len(ids)))},
    }[kind]
    with pytest.raises(RuntimeError, match="callback"):
        to_the_end(events_of(target, drafter, **options))
    check_as_at_last_commit(target, drafter, TEXT)
    check_next_run(target, drafter)


# At any line.

ENGINE = {
    str(Path(module.__file__ or ""))
    for module in (
        labkit.cache,
        labkit.target,
        labkit.decode,
        labkit.drafters.draft_model,
        sys.modules[__name__],
    )
}
Line = tuple[str, int]


def traced(work: Callable[[], Any], at: int | None = None) -> list[Line]:
    """Run ``work``; the engine's lines in the order in which they ran. A KeyboardInterrupt comes
    before line number ``at``, as a signal's would."""
    lines: list[Line] = []

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in ENGINE:
            return None
        if event == "line":
            lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(lines) - 1 == at:
                raise KeyboardInterrupt
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return lines


def first_and_last(lines: list[Line]) -> list[int]:
    """For every distinct line, when it ran first and when last; slot changes every time."""
    first = {line: at for at, line in reversed(list(enumerate(lines)))}
    last = {line: at for at, line in enumerate(lines)}
    source, start = inspect.getsourcelines(SlotTable.keep)
    keeping = {(labkit.cache.__file__, start + i) for i in range(len(source))}
    slots = [at for at, line in enumerate(lines) if line in keeping or line[0] == __file__]
    return sorted({*first.values(), *last.values(), *slots})


def whole_run(target: Target, drafter: DraftModel) -> Callable[[], None]:
    return lambda: to_the_end(events_of(target, drafter))


def wrong_after_interrupts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """The lines at which an interrupt spoils the next run."""
    monkeypatch.setattr("labkit.cache._START", 8)  # the table has to grow, too
    lines = traced(whole_run(*pair()))
    for at in first_and_last(lines):
        target, drafter = pair()
        assert traced(whole_run(target, drafter), at) == lines[: at + 1]
        try:
            check_next_run(target, drafter)
        except (AssertionError, IndexError, RuntimeError):
            yield lines[at]


def test_interrupt_at_any_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(wrong_after_interrupts(monkeypatch)) == []


class StepByStep(SlotTable):
    """Frees slots one at a time: an interrupt in between leaves some free and taken at once."""

    def keep(self, slots: Any) -> None:
        for slot in self.speculative:
            if slot not in slots:
                self._free.append(slot)
        self.committed.extend(slots)
        self.speculative = []


def test_interrupts_would_show_in_a_table_that_changes_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control."""
    monkeypatch.setattr("labkit.cache.SlotTable", StepByStep)
    assert any(wrong_after_interrupts(monkeypatch))
