"""What happened, in small frozen records without tensors.

Owns: the event types, their JSON form and its schema version.
Does not know: who records them or draws them; models, torch.
Invariants: fields are numbers, strings, booleans, None and (nested) tuples of these;
``from_json(to_json(e)) == e``; events of a run come in the order
Started, Prefilled, (Drafted, Scored, Verified, Committed) for each round, Finished.

Words. A *round* drafts, scores, verifies and commits once. *Accepted*: drafted tokens that stay.
*Resampled*: the target's own token after a rejection. *Bonus*: the target's own token when the
path ended without a rejection. *Slots*: rows of the target's KV table that are in use.
"""

import itertools
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields
from reprlib import repr as short
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from labkit.errors import BadInput

SCHEMA_VERSION = 1
Likeliest = tuple[tuple[int, float], ...]
"""The likeliest tokens of one distribution: (token id, probability), descending."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One accept test: node, p and q of its token, the uniform draw u, and the outcome.

    ``threshold`` is min(1, p/q); the token is accepted when ``u < threshold``. Under a
    deterministic draft q is 1. After a rejected sibling, p is the residual's value.
    """

    node: int
    p: float
    q: float
    u: float
    accepted: bool

    @property
    def threshold(self) -> float:
        return min(1.0, self.p / self.q) if self.q > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Fields that every event has.

    round: 0 before the first round, then 1, 2, ...; sequence: row of the batch;
    seconds: time that this phase took; forwards: model forwards in this phase;
    forward_seconds: the part of ``seconds`` inside them;
    slots_before, slots_after: target slots in use around it.
    """

    kind: ClassVar[str]
    round: int
    sequence: int = 0
    seconds: float = 0.0
    forwards: int = 0
    forward_seconds: float = 0.0
    slots_before: int = 0
    slots_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """A run begins. ``prompt``: token ids; ``method``: name of the drafter ("ar" for none)."""

    kind: ClassVar[str] = "started"
    method: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    draft_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled(Event):
    """The prompt, but for its last (pending) token, is in the cache. ``tokens``: how many.

    ``recurrent_layers``: layers of the target that carry a state and have no slots.
    """

    kind: ClassVar[str] = "prefilled"
    tokens: int
    recurrent_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted(Event):
    """The drafter proposed a tree; node 0 is the pending token.

    ``deterministic``: the draft is judged as one-hot (q = 1), else q was really drawn from.
    ``limit``: the depth that was allowed in this round (K, less near the end).
    ``q`` (full): per node the probability with which its token was drawn, None for the root.
    ``q_top`` (full): per node the likeliest tokens of the distribution that the token came from
    (of the drafter's plain softmax when it is deterministic).
    ``confidence`` (summary): per node the cumulative probability that the drafter gives it, when
    it says so. ``stopped``: "confidence" or "cost" when the draft was cut short by either.
    ``considered`` (full): the candidates of a tree that was pruned, as (token, parent candidate,
    confidence, node it became or -1); candidate 0 is the root. ``unlisted``: how many of those that
    were pruned, the least likely, do not stand there.
    """

    kind: ClassVar[str] = "drafted"
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    deterministic: bool
    limit: int
    q: tuple[float | None, ...] = ()
    q_top: tuple[Likeliest, ...] = ()
    confidence: tuple[float, ...] = ()
    stopped: str = ""
    considered: tuple[tuple[int, int, float, int], ...] = ()
    unlisted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored(Event):
    """The target scored every node in one forward.

    ``node_slots``: the slot that each node was written to. ``context``: committed tokens in the
    cache that all nodes see. ``p_top`` (full): per node the likeliest next tokens after it, under
    the law in force (under the plain softmax when the temperature is 0).
    """

    kind: ClassVar[str] = "scored"
    node_slots: tuple[int, ...]
    context: int
    p_top: tuple[Likeliest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(Event):
    """The accept tests of the round, in order (empty at ``timing``).

    ``path``: accepted nodes from the root on (node 0 first). ``next_token``: the target's own
    token. ``resampled``: True after a rejection (residual), False for a bonus token.
    ``residual_top`` (full): the likeliest tokens of the distribution that ``next_token`` came from.
    """

    kind: ClassVar[str] = "verified"
    path: tuple[int, ...]
    next_token: int
    resampled: bool
    trials: tuple[Trial, ...] = ()
    residual_top: Likeliest = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """Tokens that joined the text.

    ``sources``: "draft", "target" or "forced" (a person wrote it) for each token. ``text``: the new
    characters, never half of one. ``kept_slots``/``freed_slots``: slots of this round's nodes that
    stay or are forgotten.
    ``logprobs`` (full): log-probability of each token under the target's plain softmax.
    ``near_ties`` (full): True where the two best logits lie within two steps of the model's dtype.
    ``replayed``: tokens that the target's recurrent layers had to read again, from the state before
    the round, because the draft was not accepted whole; ``forward_seconds`` is the time it took.
    """

    kind: ClassVar[str] = "committed"
    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    text: str = ""
    kept_slots: tuple[int, ...] = ()
    freed_slots: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    near_ties: tuple[bool, ...] = ()
    replayed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The run is over. ``reason``: eos, stop_string, max_new_tokens or context_limit."""

    kind: ClassVar[str] = "finished"
    reason: str
    new_tokens: int


AnyEvent = Started | Prefilled | Drafted | Scored | Verified | Committed | Finished
_PER_NODE = ("q_top", "p_top")
_FOUR_DIGITS = (*_PER_NODE, "residual_top", "confidence", "considered")
_LAST = ("considered",)  # read when the tree that it refers to is known
KINDS: dict[str, type[Event]] = {cls.kind: cls for cls in get_args(AnyEvent)}
_HINTS = {cls: get_type_hints(cls) for cls in (*KINDS.values(), Trial)}


def to_json(event: Event) -> dict[str, Any]:
    """A JSON-able dict; fields that hold their default are left out.

    Floats keep 6 digits, those of likeliest tokens and of confidence 4. What a record says twice
    is written once, or the trace of a tree would not stay small: likeliest tokens are one flat list
    for each node, or the number of an earlier node with the same; a candidate that was kept is its
    node's number, and pruned ones go without their -1, those of one parent in one list:
    token, parent, confidence, token, confidence, ...
    """
    out: dict[str, Any] = {"kind": event.kind}
    for field in fields(event):
        name, value = field.name, getattr(event, field.name)
        if value != field.default:
            digits = 4 if name in _FOUR_DIGITS else 6
            out[name] = _plain(_once(name, value, event), digits)
    return out


def from_json(record: dict[str, Any]) -> Event:
    """Rebuild the event that `to_json` wrote (floats to 6 digits).

    Raises:
        BadInput: unknown kind, or missing, unknown or wrongly typed fields, by name.
    """
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadInput(
            "event kind",
            expected="one of " + ", ".join(KINDS),
            got=repr(kind),
            next_step=f"open a trace written with schema {SCHEMA_VERSION}",
        )
    cls = KINDS[kind]
    hints = _HINTS[cls]
    values: dict[str, Any] = {}
    try:
        for name, value in sorted(record.items(), key=lambda item: item[0] in _LAST):
            if name != "kind":
                values[name] = _typed(hints[name], _again(name, value, values))
        return cls(**values)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        # the values were put in one by one: the first that is missing is the wrong one
        order = sorted(record, key=lambda name: name in _LAST)
        wrong = [name for name in order if name not in (*values, "kind")][:1]
        raise BadInput(
            f"event {kind!r}",
            expected="the fields of " + cls.__name__ + ", each of its type",
            got=f"{wrong[0]}: {short(record[wrong[0]])}" if wrong else f"{error}",
            next_step="write the trace again with this version",
        ) from error


def _plain(value: Any, digits: int) -> Any:
    if isinstance(value, Trial):
        numbers = (_short(v, digits) for v in (value.p, value.q, value.u))
        return [value.node, *numbers, value.accepted]
    if isinstance(value, tuple):
        return [_plain(v, digits) for v in value]
    return _short(value, digits) if isinstance(value, float) else value


def _short(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _once(name: str, value: Any, event: Any) -> Any:
    """``value`` without what the event says already; see `to_json`."""
    if name in _PER_NODE:
        firsts = [value.index(row) for row in value]
        return tuple(
            tuple(itertools.chain(*row)) if first == i or not row else first
            for i, (row, first) in enumerate(zip(value, firsts, strict=True))
        )
    if name == "considered" and len(event.confidence) == len(event.tokens):
        kept = _kept_rows(value, event.tokens, event.parents, event.confidence)
        return tuple(_grouped(value, kept))
    return value


def _grouped(rows: Any, kept: dict[int, tuple[int, int, float, int]]) -> Iterator[Any]:
    """Candidates, those of one parent that were pruned side by side in one."""
    pruned: list[Any] = []
    for row in rows:
        alike = row[3] == -1
        if pruned and (not alike or row[1] != pruned[1]):
            yield tuple(pruned)
            pruned = []
        if alike:
            pruned += (row[0], row[2]) if pruned else row[:3]
        else:
            yield row[3] if kept.get(row[3]) == row else row
    if pruned:
        yield tuple(pruned)


def _apart(rows: list[Any]) -> Iterator[Any]:
    """What `_grouped` put together, taken apart again."""
    for row in rows:
        if type(row) is list and len(row) % 2:
            yield [*row[:3], -1]
            yield from ([token, row[1], sure, -1] for token, sure in _pairs(row[3:]))
        else:
            yield row


def _pairs(flat: list[Any]) -> Iterator[Any]:
    return zip(flat[::2], flat[1::2], strict=True)


def _again(name: str, value: Any, known: dict[str, Any]) -> Any:
    """What `_once` left out, put back. ``known``: the fields read so far."""
    if name in _PER_NODE and isinstance(value, list):
        rows = [value[row] if type(row) is int and 0 <= row < i else row
                for i, row in enumerate(value)]  # fmt: skip
        # pairs in lists of their own: how the first version wrote them
        return [list(_pairs(row)) if row and type(row[0]) is int else row for row in rows]
    if name == "considered" and isinstance(value, list):
        rows = list(_apart(value))
        numbers = [row if type(row) is int else (*row, -1)[3] for row in rows]
        kept = _kept_rows(
            [(0, 0, 0.0, number) for number in numbers],
            known["tokens"], known["parents"], known.get("confidence", ()),
        )  # fmt: skip
        return [kept[row] if type(row) is int else row for row in rows]
    return value


def _kept_rows(
    rows: Any, tokens: tuple[int, ...], parents: tuple[int, ...], confidence: tuple[float, ...]
) -> dict[int, tuple[int, int, float, int]]:
    """For each node among ``rows``, the candidate that the tree says it is."""
    number = {row[3]: i for i, row in enumerate(rows)} | {-1: -1}
    return {
        node: (tokens[node], number[parents[node]], confidence[node], node)
        for node in number
        if 0 <= node < min(len(tokens), len(confidence)) and parents[node] in number
    }


def _typed(hint: Any, value: Any) -> Any:
    """``value`` from JSON as the type ``hint`` says: lists become tuples, trials become Trial."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return None if value is None else _typed(args[0], value)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise TypeError(value)
        inner = args[:1] * len(value) if args[-1] is Ellipsis else args
        return tuple(_typed(h, v) for h, v in zip(inner, value, strict=True))
    if hint is Trial:
        kinds = _HINTS[Trial].values()
        return Trial(*(_typed(kind, v) for kind, v in zip(kinds, value, strict=True)))
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 2**63 else math.inf  # JavaScript writes 1.0 as 1
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        raise TypeError(value)
    return value
