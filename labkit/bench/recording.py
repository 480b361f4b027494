"""What recording costs: the events of a run, built again from their parts and timed.

Owns: this one measurement. Does not know: models.
Not counted: two clock readings a phase, and at ``full`` the likeliest tokens that are read.
"""

import time
from collections.abc import Callable
from dataclasses import fields

from labkit.events import Event, Trial
from labkit.trace import Trace


def recording_seconds(
    trace: Trace, *, repeats: int = 10, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds to build every event of ``trace`` once, the fastest of ``repeats`` tries."""
    parts = [
        (type(event), {f.name: getattr(event, f.name) for f in fields(event)})
        for event in trace.events
    ]
    best = float("inf")
    for _ in range(repeats):
        start = clock()
        for kind, values in parts:
            _build(kind, values)
        best = min(best, clock() - start)
    return best


def _build(kind: type[Event], values: dict[str, object]) -> Event:
    """One event, its trials and tuples made anew."""
    fresh: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, tuple) and value and isinstance(value[0], Trial):
            fresh[name] = tuple(Trial(t.node, t.p, t.q, t.u, t.accepted) for t in value)
        else:
            fresh[name] = (*value,) if isinstance(value, tuple) else value
    return kind(**fresh)  # type: ignore[arg-type]
