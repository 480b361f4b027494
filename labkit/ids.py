"""Whole numbers and token ids as people pass them: Python's own, numpy's, torch's.

Owns: what counts as a whole number. Does not know: vocabularies, ranges.
Invariants: what comes back is Python's plain ``int``, which a trace can hold. A truth value is no
number, and an array is not one either, even with a single entry.
"""

import operator
from collections.abc import Iterable
from reprlib import repr as short
from typing import Any

from labkit.errors import BadInput


def whole(value: object) -> int | None:
    """``value`` as a plain int; None for a truth value, a fraction, text or an array."""
    if type(value) is int:
        return value
    truth = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
    if truth or getattr(value, "shape", None):  # torch would take [5] for 5, and True for 1
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def numbered(
    value: object, *, first: int, last: int | None = None, name: str, next_step: str
) -> int:
    """``value`` as a plain int.

    Raises:
        BadInput: it is no whole number from ``first`` to ``last`` (None: or more); under ``name``.
    """
    number = whole(value)
    if number is None or number < first or (last is not None and number > last):
        least = f"a whole number, {first} or more"
        expected = least if last is None else f"a number from {first} to {last}"
        raise BadInput(name, expected=expected, got=short(value), next_step=next_step)
    return number


def whole_numbers(values: Iterable[object]) -> tuple[int, ...]:
    """All of ``values`` as plain ints.

    Raises:
        TypeError: text, nothing to go through, or the first that is not a whole number and where.
    """
    if isinstance(values, str | bytes):  # bytes would pass for numbers
        raise TypeError(f"{short(values)} ({type(values).__name__})")
    found = []
    for place, value in enumerate(values):
        if (number := whole(value)) is None:
            raise TypeError(f"{short(value)} ({type(value).__name__}) as entry {place}")
        found.append(number)
    return tuple(found)


def flat_ids(values: object, *, name: str, expected: str, next_step: str) -> tuple[int, ...]:
    """All of ``values`` as plain ints.

    Raises:
        BadInput: where `whole_numbers` raises a TypeError; under ``name``.
    """
    try:
        return whole_numbers(values)  # type: ignore[arg-type]
    except TypeError as error:
        raise BadInput(name, expected=expected, got=str(error), next_step=next_step) from error


def token_ids(*given: int | Iterable[int] | None) -> tuple[int, ...]:
    """The ids in ``given``, each of which is an id, several, or None: ascending, each once.

    Raises:
        TypeError: as `whole_numbers`.
    """
    found: set[int] = set()
    for ids in given:
        if ids is not None:
            found.update(whole_numbers([ids] if whole(ids) is not None else ids))  # type: ignore
    return tuple(sorted(found))


def end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a text, by a transformers model's generation settings and its tokenizer."""
    return token_ids(model.generation_config.eos_token_id, tokenizer.eos_token_id)
