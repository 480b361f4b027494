"""A recorded run: a header and a list of events, and views of it by round.

Owns: the JSON form (one object), and rounds. Does not know: models, torch, drawing; how files are
written and read (`labkit.trace_file`), which events belong together (`labkit.trace_check`).
Invariants: a trace holds no tensors; ``Trace.load(trace.save(path))`` draws the same pictures;
every view can draw what was read.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import trace_check, trace_file
from labkit.chrome import chrome
from labkit.errors import BadInput
from labkit.events import (
    SCHEMA_VERSION,
    Committed,
    Drafted,
    Event,
    Finished,
    Prefilled,
    Scored,
    Started,
    Verified,
    from_json,
    to_json,
)


@dataclass(frozen=True, slots=True)
class Round:
    """The four events of one round; a run that was cut short may lack the later ones."""

    index: int
    drafted: Drafted
    scored: Scored | None = None
    verified: Verified | None = None
    committed: Committed | None = None

    @property
    def accepted(self) -> int:
        """Drafted tokens that stayed in the text (the target's own token is not counted)."""
        return self.committed.sources.count("draft") if self.committed else 0

    @property
    def forced(self) -> bool:
        """Did a person write its token, so that nothing was drafted and nothing judged?"""
        return self.committed is not None and "forced" in self.committed.sources


@dataclass(frozen=True, slots=True)
class Trace:
    """One run.

    ``header``: free JSON facts (model, drafter, dtype, device, versions, seed).
    ``vocabulary``: the text of every token id that occurs, for drawing.
    """

    events: tuple[Event, ...]
    header: dict[str, Any] = field(default_factory=dict)
    vocabulary: dict[int, str] = field(default_factory=dict)

    @classmethod
    def record(
        cls,
        events: Iterable[Event],
        *,
        header: dict[str, Any] | None = None,
        token_text: Any = None,
    ) -> "Trace":
        """Run ``events`` to the end and keep them.

        Args:
            token_text: function from token id to text, asked once for each id that occurs.
        """
        kept = tuple(events)
        ids = sorted({i for event in kept for i in _token_ids(event)})
        names = {i: token_text(i) for i in ids} if token_text else {}
        return cls(kept, dict(header or {}), names)

    @property
    def started(self) -> Started:
        for event in self.events:
            if isinstance(event, Started):
                return event
        raise BadInput(
            "trace",
            expected="a started event",
            got=f"{len(self.events)} events without one",
            next_step="record the run from its beginning",
        )

    @property
    def prefilled(self) -> Prefilled | None:
        return next((e for e in self.events if isinstance(e, Prefilled)), None)

    @property
    def finished(self) -> Finished | None:
        return next((e for e in self.events if isinstance(e, Finished)), None)

    @property
    def rounds(self) -> tuple[Round, ...]:
        return tuple(_rounds(self.events))

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.started.prompt

    @property
    def tokens(self) -> tuple[int, ...]:
        """The new tokens, in order."""
        return tuple(t for e in self.events if isinstance(e, Committed) for t in e.tokens)

    @property
    def sources(self) -> tuple[str, ...]:
        """Who wrote each new token: "draft", "target" or, in a person's name, "forced"."""
        return tuple(s for e in self.events if isinstance(e, Committed) for s in e.sources)

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Committed))

    def token_text(self, token: int) -> str:
        """The text of a token, or its id in angle brackets when it was not recorded."""
        return self.vocabulary.get(token, f"<{token}>")

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "header": self.header,
            "vocabulary": {str(i): text for i, text in self.vocabulary.items()},
            "events": [to_json(event) for event in self.events],
        }

    @classmethod
    def from_json(cls, record: dict[str, Any], *, name: str = "trace") -> "Trace":
        """Raises BadInput when the object is not a trace of this schema version, or its events do
        not belong together; it calls the trace by ``name``."""
        trace_file.check_schema(record, name=name)
        events, header, names = trace_check.parts(record, name=name)
        return cls(tuple(map(from_json, events)), header, names).checked(name=name)

    def checked(self, *, name: str = "trace", drawn: bool = False) -> "Trace":
        """Itself, if it is a whole run or the beginning of one; see `labkit.trace_check`.

        Args:
            drawn: and short enough to be drawn.

        Raises:
            BadInput: naming the round and the event that does not fit.
        """
        trace_check.check(self.events, name=name, drawn=drawn)
        return self

    def as_saved(self) -> "Trace":
        """With numbers as a file holds them, to be drawn. Raises: see `checked`."""
        events = tuple(from_json(to_json(event)) for event in self.events)
        return Trace(events, self.header, self.vocabulary).checked(drawn=True)

    def dumps(self) -> str:
        # NaN and infinity are Python's own words, which no browser reads: ValueError
        text = json.dumps(
            self.to_json(), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        # half a character, which UTF-8 cannot hold, becomes JSON's own escape for it
        return text.encode(errors="backslashreplace").decode()

    def save(self, path: str | Path) -> Path:
        """Write the trace, gzipped when ``path`` ends in ``.gz``; see `labkit.trace_file`.

        Raises:
            BadInput: a path that is no ordinary file or that cannot be written.
        """
        return trace_file.write(path, self.dumps())

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """The trace in a ``.json`` or ``.json.gz`` file.

        Raises:
            BadInput: a file that is missing, cut off, no JSON, or of a newer version.
        """
        return cls.from_json(trace_file.read(path), name=trace_file.called(path))

    def to_chrome(self, path: str | Path) -> Path:
        """Write the run for ui.perfetto.dev or chrome://tracing; see `labkit.chrome`.

        Raises:
            BadInput: a path that cannot be written.
        """
        return trace_file.write(path, json.dumps(self.chrome(), allow_nan=False))

    def chrome(self) -> dict[str, Any]:
        """The run as a Chrome trace: one JSON-able object."""
        return chrome(self.events, header=self.header, token_text=self.token_text)


def _rounds(events: tuple[Event, ...]) -> Iterator[Round]:
    parts: dict[str, Any] = {}
    for event in (*events, None):
        if parts and (event is None or isinstance(event, Drafted | Finished)):
            yield Round(**parts)
            parts = {}
        if isinstance(event, Drafted):
            parts = {"index": event.round, "drafted": event}
        elif parts and isinstance(event, Scored | Verified | Committed):
            parts[event.kind] = event


def _token_ids(event: Event) -> Iterator[int]:
    match event:
        case Started():
            yield from event.prompt
        case Drafted():
            yield from event.tokens
            yield from (i for top in event.q_top for i, _ in top)
            yield from (candidate[0] for candidate in event.considered)
        case Scored():
            yield from (i for top in event.p_top for i, _ in top)
        case Verified():
            yield event.next_token
            yield from (i for i, _ in event.residual_top)
        case Committed():
            yield from event.tokens
