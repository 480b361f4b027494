"""One row of numbers for one or more runs: what ``generate --json`` and ``bench`` print.

Owns: which numbers, and their names. Does not know: how they are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.metrics import acceptance, cost
from labkit.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Pooled over runs.

    prompt_tokens, tokens: ids in and out. seconds: wall time from the first event to the last,
    prefill included. tokens_per_second: tokens / seconds. mean_accepted_length: committed tokens /
    rounds, the target's own token counted. acceptance_by_position[i]: share of rounds that
    accepted more than i drafted tokens. outside_forwards: share of decoding time outside the
    models' forwards; None where it was not recorded.
    """

    method: str
    prompts: int
    prompt_tokens: int
    tokens: int
    rounds: int | None
    drafted: int | None
    accepted: int | None
    mean_accepted_length: float | None
    acceptance_by_position: tuple[float, ...]
    target_forwards: int | None
    draft_forwards: int | None
    seconds: float
    tokens_per_second: float
    outside_forwards: float | None = None


def row(traces: Sequence[Trace], *, seconds: float) -> Row:
    """The numbers of ``traces``, which took ``seconds`` of wall time together."""
    counts, spent = acceptance(*traces), cost(*traces)
    tokens = sum(len(trace.tokens) for trace in traces)
    return Row(
        method=traces[0].started.method,
        prompts=len(traces),
        prompt_tokens=sum(len(trace.prompt) for trace in traces),
        tokens=tokens,
        rounds=counts.rounds,
        drafted=counts.drafted,
        accepted=counts.accepted,
        mean_accepted_length=counts.mean_accepted_length,
        acceptance_by_position=counts.by_position,
        target_forwards=spent.target_forwards,
        draft_forwards=spent.draft_forwards,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        outside_forwards=spent.outside_forwards,
    )
