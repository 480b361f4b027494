"""What values read from a JSON file may be: kind and range of each key, declared as a table.

Owns: the kinds, and finding the first value that is not of its kind.
Does not know: files, what the keys mean, which error is raised for them.
Invariants: nothing is converted; a truth value is no number; null is the same as no key at all;
any value can be judged, however large or nested.

    TABLE = {"width": whole_from(1, 4096), "rope": keys({"factor": number(above=0)})}
    first_wrong({"width": 8, "rope": {"factor": "x"}}, TABLE)
    -> Wrong("rope.factor", "a number above 0", "'x'")
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any, NamedTuple


class Wrong(NamedTuple):
    """A value that is not of its kind: its key with the keys around it, and both in words."""

    key: str
    expected: str
    got: str


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of value.

    Attributes:
        expected: in words, as in "expected ...".
        holds: is this value one?
        keys: of an object: the kinds of its own keys. required: those that must be there.
        closed: of an object: no other key may be there.
        each: of a list: the kind of its entries.
    """

    expected: str
    holds: Callable[[Any], bool]
    keys: Mapping[str, "Kind"] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    closed: bool = False
    each: "Kind | None" = None

    def wrong(self, value: Any, name: str = "") -> Wrong | None:
        """What is not as it should be, in ``value`` or inside it; None: nothing."""
        if not self.holds(value):
            return Wrong(name, self.expected, short(value))
        if self.each is not None:
            found = (self.each.wrong(entry, f"{name}[{i}]") for i, entry in enumerate(value))
            return next(filter(None, found), None)
        return self._wrong_inside(value, name) if self.keys else None

    def _wrong_inside(self, value: Mapping[str, Any], name: str) -> Wrong | None:
        around = f"{name}." if name else ""
        for key in sorted(value.keys() - self.keys.keys()) if self.closed else ():
            return Wrong(around + key, "no such key", short(value[key]))
        for key, kind in self.keys.items():
            if (entry := value.get(key)) is None:
                if key in self.required:
                    return Wrong(around + key, kind.expected, "none")
            elif found := kind.wrong(entry, around + key):
                return found
        return None


def first_wrong(values: Mapping[str, Any], table: Mapping[str, Kind]) -> Wrong | None:
    """The first of ``values`` that is not what the table says of its key; keys that the table
    does not have are anything."""
    return keys(table).wrong(values)


def whole_from(least: int, most: int | None = None, *, even: bool = False) -> Kind:
    """Whole numbers of a range, both ends included."""
    upto = f" to {most}" if most is not None else " on"
    return Kind(
        expected=f"{'an even' if even else 'a whole'} number from {least}{upto}",
        holds=lambda value: (
            type(value) is int
            and least <= value
            and (most is None or value <= most)
            and not (even and value % 2)
        ),
    )


def number(*, above: float | None = None, least: float | None = None, most: float | None = None
           ) -> Kind:  # fmt: skip
    """Finite numbers of a range."""
    told = (("above", above), ("from", least), ("up to", most))
    words = [f"{word} {end:g}" for word, end in told if end is not None]
    return Kind(
        expected=" ".join(["a finite number", *words]),
        # comparisons hold for whole numbers of any size, where conversions overflow
        holds=lambda value: (
            type(value) in (int, float)
            and float("-inf") < value < float("inf")
            and (above is None or value > above)
            and (least is None or value >= least)
            and (most is None or value <= most)
        ),
    )


def one_of(known: Collection[str]) -> Kind:
    """One of these words."""
    return Kind(
        expected="one of " + ", ".join(sorted(known)),
        holds=lambda value: isinstance(value, str) and value in known,
    )


def keys(
    table: Mapping[str, Kind], *, required: tuple[str, ...] = (), closed: bool = False
) -> Kind:
    """An object whose keys are of these kinds."""
    return Kind(
        expected="an object",
        holds=lambda value: isinstance(value, dict),
        keys=table,
        required=required,
        closed=closed,
    )


def list_of(kind: Kind) -> Kind:
    """A list of values of one kind."""
    return Kind(expected="a list", holds=lambda value: isinstance(value, list), each=kind)


TRUTH = Kind(expected="true or false", holds=lambda value: isinstance(value, bool))
TEXT = Kind(expected="text", holds=lambda value: isinstance(value, str))
OBJECT = keys({})
