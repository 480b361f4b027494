"""A course of rounds, told as a recorded run.

Owns: the beginning, the end and the header of such a trace. Does not know: branches, caches.
Invariants: the rounds are the engine's own events, unchanged; a course whose settings changed on
the way says so round by round, in ``header["live"]``.
"""

from collections.abc import Sequence
from dataclasses import fields

from labkit.events import AnyEvent, Finished, Prefilled, Started
from labkit.lab.courses import Step, tokens_of
from labkit.lab.session import Lab
from labkit.lab.settings import Settings, Without
from labkit.trace import Trace


def retold(
    lab: Lab,
    prompt: tuple[int, ...],
    steps: Sequence[Step],
    *,
    settings: Settings,
    prefilled: Prefilled | None,
    asked: str,
    chat: bool,
    more: Sequence[AnyEvent] = (),
) -> Trace:
    """The trace of ``steps``.

    Args:
        settings: those of the next round.
        prefilled: what was told of the prompt; None: it has not been read yet.
        asked: the prompt as text, if it was text.
        more: events of a round that is not over.
    """
    config, first = settings.config, steps[0] if steps else None
    begin = Started(
        round=0,
        method=first.by if first else settings.method,
        prompt=prompt,
        max_new_tokens=config.max_new_tokens,
        draft_length=(first.config if first else config).draft_length,
    )
    read = prefilled or Prefilled(round=0, tokens=len(prompt) - 1, slots_after=len(prompt) - 1)
    events: list[AnyEvent] = [begin, read]
    for step in steps:
        events += [step.drafted, step.scored, step.verified, step.committed]
    events += more or _end(steps)
    told = {f.name: getattr(config, f.name) for f in fields(config)}
    made = lab.trace(events, asked, chat=chat, method="ar", **told)
    forbids = [Without.__name__] if any(step.forbidden for step in steps) else []
    header = made.header | {
        "drafter": ", ".join(dict.fromkeys(step.by for step in steps)) or settings.method,
        "processors": forbids,
        "live": [*map(_settings, steps)],
    }
    return Trace(made.events, header, made.vocabulary)


def _end(steps: Sequence[Step]) -> list[AnyEvent]:
    last = steps[-1] if steps else None
    if last is None or last.reason is None:
        return []
    used, made = last.committed.slots_after, len(tokens_of(steps))
    return [
        Finished(
            round=len(steps),
            reason=last.reason,
            new_tokens=made,
            slots_before=used,
            slots_after=used,
        )
    ]


def _settings(step: Step) -> dict[str, object]:
    """Who drafted a round, how it came about, and the law it was judged under."""
    return {
        "by": step.by,
        "how": step.how,
        "temperature": step.config.temperature,
        "repetition_penalty": step.config.repetition_penalty,
        "draft_length": step.config.draft_length,
        "forbidden": [*step.forbidden],
    }
