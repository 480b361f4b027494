"""Try a drafter on a text that the target has written already.

Owns: a target that knows its text by heart. Does not know: drafters.
Invariants: a rehearsal has the rounds of the real run, draft by draft and verdict by verdict; the
target itself reads the text once, in one go, whatever is proposed and however often.

At temperature 0 the text is the same whoever drafts, so it need not be written again for every
drafter. The engine's own loop runs; only the target's forwards are looked up.

    text        ... t  a  b  c          known
    drafted         t  a  b  x
    looked up       a  b  c  ?          what the target would say behind t, a, b; x is off the text
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from labkit.decode import speculate
from labkit.drafters.base import Drafter
from labkit.errors import BadInput
from labkit.lab.memory import safely
from labkit.lab.session import Lab
from labkit.target import Scores, Target
from labkit.trace import Trace
from labkit.tree import DraftTree


def rehearse(
    lab: Lab,
    trace: Trace,
    *,
    draft_length: int,
    method: str = "draft",
    drafter: Drafter | None = None,
) -> Trace:
    """The run that ``trace`` would have been with another drafter.

    Counts are those of a real run. Seconds of drafting are real too; those of scoring are not,
    for nothing is scored.

    Args:
        trace: a run of this session's target at temperature 0, by whatever drafter.
        drafter: use this one instead of the method's.

    Raises:
        BadInput: a text that was drawn, or written under processors. OutOfMemory: it does not fit;
        the session then begins with empty caches.
    """
    told = trace.header["settings"]
    if told["temperature"] or told["repetition_penalty"] != 1 or trace.header["processors"]:
        raise BadInput(
            "rehearsal",
            expected="a run at temperature 0 without processors",
            got=f"temperature {told['temperature']}, repetition penalty "
            f"{told['repetition_penalty']}, processors {trace.header['processors']}",
            next_step="record the text again without them",
        )
    who = drafter or lab.drafter(method)
    return safely(
        lambda: _rehearsed(lab, trace, who, draft_length=draft_length),
        "this rehearsal",
        let_go=lambda: lab.let_go(who),
    )


def _rehearsed(lab: Lab, trace: Trace, drafter: Drafter, *, draft_length: int) -> Trace:
    settings: dict[str, Any] = {
        "draft_length": draft_length,
        "max_new_tokens": trace.started.max_new_tokens,
        "eos": trace.header["settings"]["eos"] or None,
    }
    text = (*trace.prompt, *trace.tokens)
    by_heart = _ByHeart(lab.target_for(drafter), text, lab.states(text, drafter=drafter))
    events = speculate(cast(Target, by_heart), drafter, trace.prompt, config=lab.config(**settings))
    made = lab.trace(events, trace.header["prompt"], drafter=drafter, **settings)
    return replace(made, header={**made.header, "rehearsed": True})


class _ByHeart:
    """Stands in for a target; what is not defined here is the target's own."""

    def __init__(self, target: Target, text: Sequence[int], states: Mapping[str, Tensor]) -> None:
        self._target = target
        self._text = tuple(text)
        self._states = states
        self.length = 0
        self._written = 0  # slots: each is used once, none is used again
        self._nodes: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    @property
    def slots_used(self) -> int:
        return self.length + len(self._nodes)

    def prefill(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        self.length = self._written = len(tokens) - 1
        return {name: states[: self.length] for name, states in self._states.items()}

    @contextmanager
    def speculation(self) -> Iterator["_ByHeart"]:
        try:
            yield self
        finally:
            self._nodes = ()

    def score(self, tree: DraftTree) -> Scores:
        """Certain of the known next token on the text; anything off it, for nobody asks there."""
        places = tree.positions(self.length)
        rows = torch.zeros(len(tree), self._target.vocab_size, device=self._target.device)
        on_text: list[int] = []
        for node, (token, place) in enumerate(zip(tree.tokens, places, strict=True)):
            follows = node == 0 or tree.parents[node] in on_text
            if follows and place < len(self._text) and self._text[place] == token:
                on_text.append(node)
                if place + 1 < len(self._text):
                    rows[node, self._text[place + 1]] = 1.0
        self._nodes = tuple(range(self._written, self._written + len(tree)))
        self._written += len(tree)
        read = torch.tensor(places, device=self._target.device).clamp(max=len(self._text) - 2)
        return Scores(rows, {n: states[read] for n, states in self._states.items()}, self._nodes)

    def commit(self, path: Sequence[int]) -> tuple[int, ...]:
        kept = tuple(self._nodes[node] for node in path)
        self._nodes = ()
        self.length += len(kept)
        return kept
