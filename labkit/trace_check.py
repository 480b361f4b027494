"""Do the events of a recorded run belong together? One walk over them says so.

Owns: what a run can look like, what may stand beside its events, and the words for one that looks
otherwise. Does not know: files, drawing.
Invariants: every view can draw what passes, and needs no guard of its own; a run that was cut short
anywhere passes, and a long one can be read and counted even where it is too long to draw; time and
memory are proportional to the events.

    started  prefilled  (drafted  scored  verified  committed)*  finished

    pending   the last token of the text: the root of the next draft
    cached    tokens with a slot, all but the pending one; held: their slots

A cache that is wrong on purpose is a run too: one that never forgets keeps every slot of a round.
"""

import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any

from labkit.errors import BadInput
from labkit.events import (
    Committed,
    Drafted,
    Event,
    Finished,
    Likeliest,
    Prefilled,
    Scored,
    Started,
    Verified,
)
from labkit.tree import DraftTree

MOST_NODES = 1024  # of one draft: its attention mask is drawn whole
MOST_STEPS = 20_000  # moments of a run, each of which is drawn
MOST_TOKENS = 2**18  # of the prompt
MOST_LISTED = 2**19  # entries of all lists of likeliest tokens
MOST_CELLS = 2**26  # rounds times slots: every round has its table
MOST_NAMES = 300_000  # texts of tokens; the largest vocabularies have 262,144
LONGEST_NAME = 1000  # characters of one token
LARGEST_HEADER = 4_000_000  # characters
_FREE = 4096  # slots that a table may have beyond one for every token that was ever read
_LARGEST = 2**31  # of a token id or a count
SHORTEST, LONGEST = 1e-12, 1e6  # seconds: what no clock can tell from 0; eleven days
_ABOVE = 1e-3  # what rounding may add to a probability or a logarithm
_TOTAL = 0.01  # and to the total of several
_STOPPED = ("", "confidence", "cost")
_FOLLOWS: dict[str, tuple[str, ...]] = {
    "": ("started",),
    "started": ("prefilled",),
    "prefilled": ("drafted", "finished"),
    "drafted": ("scored",),
    "scored": ("verified",),
    "verified": ("committed",),
    "committed": ("drafted", "finished"),
    "finished": (),
}


def check(events: Iterable[Event], *, name: str = "trace", drawn: bool = False) -> None:
    """Walk over ``events``, in their order; ``name`` is how an error calls the run.

    Args:
        drawn: refuse what would take minutes to draw, too.

    Raises:
        BadInput: naming the round, the event and the field that does not fit the ones before.
    """
    walk, before = _Walk(), ""
    for event in events:
        walk.where = f"{name}, round {event.round}, {event.kind}"
        wanted = " or ".join(_FOLLOWS[before]) or "no event"
        walk.must(event.kind in _FOLLOWS[before], wanted, f"after {before or 'nothing'}")
        walk.common(event)
        walk.by_kind(event)
        if drawn:
            walk.enough()
        before = event.kind
    if not before:
        walk.where = name
        walk.must(False, "a started event", "no event at all")


def parts(
    record: dict[str, Any], *, name: str = "trace"
) -> tuple[list[Any], dict[str, Any], dict[int, str]]:
    """The events, still as JSON, the header and the vocabulary of a trace's record.

    Raises:
        BadInput: naming the part that cannot be one.
    """
    events, header = record.get("events"), record.get("header", {})
    names = record.get("vocabulary", {})
    if type(events) is not list:
        raise _no_trace(name, f"events: {short(events)}")
    wrong = [event for event in events if type(event) is not dict]
    if wrong:
        raise _no_trace(name, f"an event {short(wrong[0])}")
    _check_header(header, name)
    if type(names) is not dict:
        raise _no_trace(name, f"vocabulary: {short(names)}")
    if len(names) > MOST_NAMES:
        raise _no_trace(name, f"a vocabulary of {len(names)} tokens, above {MOST_NAMES}")
    for token, words in names.items():
        right = re.fullmatch("[0-9]{1,10}", token) and type(words) is str
        if not right or len(words) > LONGEST_NAME:
            told = f", of {len(words)} characters, above {LONGEST_NAME}" if right else ""
            raise _no_trace(name, f"vocabulary, {short(token)}: {short(words)}{told}")
    return events, dict(header), {int(token): words for token, words in names.items()}


def _check_header(header: Any, name: str) -> None:
    """An object of facts, which goes into files again."""
    try:
        size = len(json.dumps(header, allow_nan=False))
    except (ValueError, RecursionError):
        raise _no_trace(
            name, "a header with numbers without end, or with lists in lists in lists"
        ) from None
    settings = header.get("settings", {}) if type(header) is dict else None
    if type(settings) is not dict:
        raise _no_trace(name, f"header: {short(header)}")
    if size > LARGEST_HEADER:
        raise _no_trace(name, f"a header of {size} characters, above {LARGEST_HEADER}")
    heat = settings.get("temperature", 0.0)
    if isinstance(heat, bool) or not isinstance(heat, int | float) or not 0 <= heat < math.inf:
        raise _no_trace(name, f"temperature {short(heat)} among the settings of the header")


def _no_trace(name: str, got: str) -> BadInput:
    return BadInput(
        name,
        expected="a list of events, a header of facts and a vocabulary, the text of each token id",
        got=got,
        next_step="open a file written by Trace.save",
    )


@dataclass(slots=True)
class _Walk:
    """What is known of the run so far. length: of the text, prompt and new tokens; read: rows that
    the target ever read; used: slots while a draft is judged, those of rows that only fill up a
    forward of fixed width included; steps: moments to draw; listed: likeliest tokens told; tree,
    seats, verified: of the round under way."""

    where: str = ""
    sequence: int = 0
    round: int = 0
    length: int = 0
    prompt: int = 0
    pending: int = -1
    cached: int = 0
    used: int = 0
    read: int = 0
    steps: int = 0
    listed: int = 0
    held: set[int] = field(default_factory=set)
    tree: DraftTree = field(default_factory=lambda: DraftTree((0,), (-1,)))
    seats: tuple[int, ...] = ()
    verified: Verified | None = None

    def must(self, holds: bool, expected: str, got: object, *, name: str = "") -> None:
        """Refuse the event unless ``holds``; ``name``: the field that is wrong."""
        if not holds:
            raise BadInput(
                self.where + (f", {name}" if name else ""),
                expected=expected,
                got=got if isinstance(got, str) else short(got),
                next_step="get the file once more from where it was recorded, or record the run "
                "again",
            )

    def among(self, name: str, value: int, low: int, high: int = _LARGEST) -> None:
        """``low <= value <= high``, or the field is refused."""
        if not low <= value <= high:
            self.must(False, f"a number from {low} to {high}", value, name=name)

    def same(self, name: str, value: Any, wanted: Any) -> None:
        """Equal, or the field is refused."""
        if value != wanted:
            self.must(False, short(wanted), value, name=name)

    def one_each(self, name: str, values: Sequence[Any], count: int) -> None:
        """Nothing recorded, or one entry for each of ``count``."""
        right = len(values) in (0, count)
        self.must(right, f"{count} entries or none", f"{len(values)}", name=name)

    def chances(self, name: str, values: Iterable[float]) -> None:
        """Probabilities."""
        wrong = [value for value in values if not 0 <= value <= 1 + _ABOVE]
        self.must(not wrong, "probabilities from 0 to 1", wrong, name=name)

    def ids(self, name: str, values: Iterable[int]) -> None:
        """Token ids."""
        wrong = [value for value in values if not 0 <= value <= _LARGEST]
        self.must(not wrong, f"token ids from 0 to {_LARGEST}", wrong, name=name)

    def tops(self, name: str, rows: Iterable[Likeliest]) -> None:
        """Likeliest tokens of some distributions."""
        for row in rows:
            masses = [mass for _, mass in row]
            self.listed += len(row)
            self.ids(name, (token for token, _ in row))
            self.chances(name, masses)
            told = len({token for token, _ in row}) == len(row) and sum(masses) <= 1 + _TOTAL
            falls = all(b <= a for a, b in itertools.pairwise(masses))
            self.must(told and falls, "tokens once each, likeliest first", row, name=name)

    def label(self, name: str, words: str) -> None:
        """A short text that stands in a sentence."""
        right = 0 < len(words) <= 100 and words.isprintable()
        self.must(right, "1 to 100 printable characters", words, name=name)

    # --- what every event has

    def common(self, event: Event) -> None:
        """Numbers that all kinds share."""
        first = event.kind == "started"
        self.sequence = event.sequence if first else self.sequence
        self.among("sequence", event.sequence, 0)
        self.must(event.sequence == self.sequence, "one sequence", event.sequence, name="sequence")
        self.round += event.kind == "drafted"
        self.same("round", event.round, self.round)
        for name, time in (("seconds", event.seconds), ("forward_seconds", event.forward_seconds)):
            right = time == 0 or SHORTEST <= time <= LONGEST
            self.must(right, f"0, or from {SHORTEST:g} to {LONGEST:g}", time, name=name)
        self.among("forwards", event.forwards, 0)

    def slots(self, event: Event, before: int, after: int) -> None:
        """How many slots are in use around an event."""
        self.same("slots_before", event.slots_before, before)
        self.same("slots_after", event.slots_after, after)

    def by_kind(self, event: Event) -> None:
        match event:
            case Started():
                self.started(event)
            case Prefilled():
                self.prefilled(event)
            case Drafted():
                self.drafted(event)
            case Scored():
                self.scored(event)
            case Verified():
                self.judged(event)
            case Committed():
                self.committed(event)
            case Finished():
                self.finished(event)

    # --- one method for each kind

    def started(self, event: Started) -> None:
        count = len(event.prompt)
        self.must(0 < count <= MOST_TOKENS, f"1 to {MOST_TOKENS} tokens", f"{count}", name="prompt")
        self.ids("prompt", event.prompt)
        self.label("method", event.method)
        self.among("max_new_tokens", event.max_new_tokens, 0)
        self.among("draft_length", event.draft_length, 0)
        self.length = self.prompt = len(event.prompt)
        self.pending = event.prompt[-1]

    def prefilled(self, event: Prefilled) -> None:
        self.same("tokens", event.tokens, self.prompt - 1)
        self.among("recurrent_layers", event.recurrent_layers, 0, 10_000)
        self.cached = self.read = event.tokens
        self.held = set(range(self.cached))
        self.slots(event, 0, self.cached)

    def drafted(self, event: Drafted) -> None:
        count = len(event.tokens)
        self.must(count <= MOST_NODES, f"at most {MOST_NODES} nodes", f"{count}", name="tokens")
        self.ids("tokens", event.tokens)
        try:
            self.tree = DraftTree(event.tokens, event.parents)
        except BadInput as error:
            self.must(False, error.expected, error.got, name=error.what)
        self.same("tokens, the root", event.tokens[0], self.pending)
        self.among("limit", event.limit, 0)
        self.must(event.stopped in _STOPPED, f"one of {_STOPPED}", event.stopped, name="stopped")
        for name in ("q", "q_top", "confidence"):
            self.one_each(name, getattr(event, name), count)
        self.chances("q", (q for q in event.q if q is not None))
        self.tops("q_top", event.q_top)
        self.chances("confidence", event.confidence)
        self.considered(event)
        self.slots(event, self.cached, self.cached)
        self.read += count
        self.steps += 2 if count == 1 else 4

    def considered(self, event: Drafted) -> None:
        """Candidates: parents first, each node of the draft once and below its own parent."""
        rows, most = event.considered, 8 * MOST_NODES
        self.among("unlisted", event.unlisted, 0)
        self.must(len(rows) <= most, f"at most {most} rows", f"{len(rows)}", name="considered")
        self.ids("considered", (token for token, *_ in rows))
        self.chances("considered", (sure for _, _, sure, _ in rows))
        seen: set[int] = set()
        for i, (token, parent, _, node) in enumerate(rows):
            name = f"considered[{i}]"
            self.must(
                parent == -1 if i == 0 else 0 <= parent < i,
                "-1 as its parent" if i == 0 else f"a parent from 0 to {i - 1}",
                parent,
                name=name,
            )
            self.among(name, node, -1 if i else 0, len(self.tree) - 1 if i else 0)
            if node >= 0:
                ours = (self.tree.tokens[node], self.tree.parents[node])
                above = rows[parent][3] if i else -1
                fits = node not in seen and (token, above) == ours
                self.must(fits, f"node {node} once, as in the draft", rows[i], name=name)
                seen.add(node)

    def scored(self, event: Scored) -> None:
        seats, count = event.node_slots, len(self.tree)
        self.must(len(seats) == count, f"{count} slots", f"{len(seats)}", name="node_slots")
        self.same("context", event.context, self.cached)
        for seat in seats:
            self.among("node_slots", seat, 0, self.read + _FREE)
        free = len({*seats}) == count and self.held.isdisjoint(seats)
        self.must(free, "a free slot for each node", seats, name="node_slots")
        self.one_each("p_top", event.p_top, count)
        self.tops("p_top", event.p_top)
        self.used = max(event.slots_after, self.cached + count)
        self.among("slots_after", self.used, 0, self.cached + count + _FREE)
        self.slots(event, self.cached, self.used)
        self.read += self.used - self.cached - count
        self.seats = seats

    def judged(self, event: Verified) -> None:
        path, parents = event.path, self.tree.parents
        self.must(path[:1] == (0,), "a path from node 0 on", path, name="path")
        for above, node in itertools.pairwise(path):
            self.among("path", node, 1, len(parents) - 1)
            self.must(parents[node] == above, f"a child of node {above}", node, name="path")
        self.ids("next_token", (event.next_token,))
        self.tops("residual_top", (event.residual_top,))
        if event.trials:
            self.trials(event)
        self.slots(event, self.used, self.used)
        self.verified = event
        self.steps += len(event.trials)

    def trials(self, event: Verified) -> None:
        """Accept tests: children of the last accepted node, until none is left."""
        at, tried = 0, set()
        for i, trial in enumerate(event.trials):
            name = f"trials[{i}]"
            self.among(name, trial.node, 1, len(self.tree) - 1)
            self.chances(name, (trial.p, trial.q, trial.u))
            ours = self.tree.parents[trial.node] == event.path[at] and trial.node not in tried
            self.must(ours, f"a test below node {event.path[at]}", trial.node, name=name)
            tried.add(trial.node)
            if trial.accepted:
                on = event.path[at + 1 : at + 2] == (trial.node,)
                self.must(on, f"the path {event.path}", f"node {trial.node} accepted", name=name)
                at += 1
        self.same("trials, accepted", at, len(event.path) - 1)
        self.same("resampled", event.resampled, not event.trials[-1].accepted)

    def committed(self, event: Committed) -> None:
        assert self.verified
        path, count = self.verified.path, len(event.tokens)
        chosen = (*(self.tree.tokens[node] for node in path[1:]), self.verified.next_token)
        self.must(0 < count <= len(chosen), f"1 to {len(chosen)}", f"{count}", name="tokens")
        self.same("tokens", event.tokens, chosen[:count])
        sources = (("draft",) * (len(path) - 1) + ("target",))[:count]
        forced = event.sources == ("forced",) and len(self.tree) == 1
        self.must(forced or event.sources == sources, short(sources), event.sources, name="sources")
        for name in ("logprobs", "near_ties"):
            self.one_each(name, getattr(event, name), count)
        for value in event.logprobs:
            self.must(value <= _ABOVE, "logarithms of at most 0", value, name="logprobs")
        self.among("replayed", event.replayed, 0)
        self.rollback(event, tuple(self.seats[node] for node in path[:count]))
        self.length += count
        self.pending = event.tokens[-1]

    def rollback(self, event: Committed, ours: tuple[int, ...]) -> None:
        """The slots of the accepted path stay, the others are free again."""
        kept = event.kept_slots
        self.must(kept in (ours, self.seats), short(ours), kept, name="kept_slots")
        rest = {*self.seats} - {*kept}
        right = len(event.freed_slots) == len(rest) and rest == {*event.freed_slots}
        self.must(right, short(tuple(sorted(rest))), event.freed_slots, name="freed_slots")
        self.cached += len(kept)
        self.held |= {*kept}
        self.slots(event, self.used, self.cached)

    def finished(self, event: Finished) -> None:
        self.label("reason", event.reason)
        self.same("new_tokens", event.new_tokens, self.length - self.prompt)
        self.slots(event, self.cached, self.cached)

    def enough(self) -> None:
        """Refuse what would take minutes to draw."""
        for count, most, what in (
            (self.steps, MOST_STEPS, "steps in the run"),
            (self.round * self.read, MOST_CELLS, "slots, all rounds together"),
            (self.listed, MOST_LISTED, "likeliest tokens in the run"),
        ):
            self.must(count <= most, f"at most {most} {what}", "more")
