"""Running out of memory: told in words, and what filled it let go.

Owns: that error, and that nothing holds on to the caches afterwards. Does not know: what they are.
Invariants: the error that a reader sees is raised outside of the one whose traceback pins the
caches, so they are gone when the cell is; any other error passes unchanged.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from labkit.errors import OutOfMemory

T = TypeVar("T")

_EXPECTED = "memory for the draft and the caches"
ADVICE = "choose a smaller draft (K or tree), a shorter text or a smaller model"


def safely(
    work: Callable[[], T],
    what: str,
    *,
    let_go: Callable[[], object],
    expected: str = _EXPECTED,
    advice: str = ADVICE,
) -> T:
    """``work()``; where memory runs out, `OutOfMemory` after ``let_go()``.

    Args:
        what: name of the work.
        expected, advice: what is needed and what helps, where the work is no drafting.
    """
    try:
        return work()
    except torch.OutOfMemoryError as error:
        told = _first_line(error)
    let_go()
    raise OutOfMemory(what, expected=expected, got=told, next_step=advice)


def step_safely(
    steps: Iterator[T], what: str, *, let_go: Callable[[], object] = lambda: None
) -> Iterator[T]:
    """``steps``, one at a time, likewise."""
    try:
        yield from steps
        return
    except torch.OutOfMemoryError as error:
        told = _first_line(error)
    let_go()
    raise OutOfMemory(what, expected=_EXPECTED, got=told, next_step=ADVICE)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
