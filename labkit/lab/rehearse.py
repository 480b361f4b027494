"""Try a drafter on a text that the target has written already.

Owns: a target that knows its text by heart. Does not know: drafters.
Invariants: a rehearsal has the rounds of the real run, draft by draft and verdict by verdict, and
ends where the text does, whatever ended it; the target itself reads the text once, in one go,
whatever is proposed and however often.

At temperature 0 the text is the same whoever drafts, so it need not be written again for every
drafter. The engine's own loop runs; only the target's forwards are looked up.

    text        ... t  a  b  c          known
    drafted         t  a  b  x
    looked up       a  b  c  ?          what the target would say behind t, a, b; x is off the text

A text that was cut short (the run was interrupted, or is not over) is rehearsed as one of that many
tokens. Guesses that go on behind the last token of a text cannot be judged: of the round's verdict,
what joined the text is the real run's, and the tests behind it are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from reprlib import repr as short
from typing import Any, cast

import torch
from torch import Tensor

from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.draft import Draft
from labkit.drafters.base import Drafter, check_drafter
from labkit.errors import BadInput
from labkit.lab.memory import safely
from labkit.lab.session import Lab
from labkit.sampling import Rng
from labkit.streaming import TextStream
from labkit.target import Scores, Target
from labkit.trace import Trace
from labkit.tree import DraftTree
from labkit.verify import Verdict, verify


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
        trace: a run of this session's target at temperature 0, by whatever drafter; of a text in
            the making (`labkit.lab.live`), every round of it.
        drafter: use this one instead of the method's.

    Raises:
        BadInput: before any work: a text that was drawn, in whatever round, or written under
        processors or by hand; one without a token; another model's ids; impossible settings.
        OutOfMemory: it does not fit; the session then begins with empty caches.
    """
    check_text(trace)
    lab.ids((*trace.prompt, *trace.tokens[:-1]))
    settings = _settings(lab, trace, draft_length)
    config = lab.config(**settings)
    who = lab.drafter(method) if drafter is None else check_drafter(drafter)

    def work() -> Trace:
        text = (*trace.prompt, *trace.tokens)
        by_heart = _ByHeart(lab.target_for(who), text, lab.states(text, drafter=who))
        events = speculate(
            cast(Target, by_heart),
            who,
            trace.prompt,
            config=config,
            text=TextStream(lab.text, stop_strings=config.stop_strings),
            rule=by_heart.rule,
        )
        made = lab.trace(events, trace.header["prompt"], drafter=who, **settings)
        return replace(made, header={**made.header, "rehearsed": True})

    return safely(work, "this rehearsal", let_go=lambda: lab.let_go(who))


def _settings(lab: Lab, trace: Trace, draft_length: object) -> dict[str, Any]:
    """Those of the run that is rehearsed, with the ends that it found. One that they do not end
    (it was interrupted, or they were changed on the way) ends with its text."""
    told, made = trace.header["settings"], len(trace.tokens)
    ends = {"eos": told["eos"] or None, "stop_strings": told["stop_strings"]}
    over = _ended_after(lab, trace.tokens, lab.config(**ends))
    if over is not None and over < made:
        ends = {"eos": None, "stop_strings": ()}
    full = trace.finished is not None and trace.finished.reason == "context_limit"
    most = max(trace.started.max_new_tokens, made) if over == made or full else made
    return {"draft_length": draft_length, "max_new_tokens": most, **ends}


def _ended_after(lab: Lab, tokens: Sequence[int], config: DecodeConfig) -> int | None:
    """How many of ``tokens`` there are up to the first end of ``config``; None: it never comes."""
    text = TextStream(lab.text, stop_strings=config.stop_strings)
    for count, token in enumerate(tokens, start=1):
        if token in config.eos_ids or (config.stop_strings and text.push(token).stopped):
            return count
    return None


def check_text(trace: Trace) -> None:
    """BadInput: the text is not what the target itself says, token by token, as far as is told."""
    given: object = trace
    if not isinstance(given, Trace) or "settings" not in given.header:
        raise BadInput(
            "rehearsal",
            expected="a recorded run with its settings in the header (labkit.trace.Trace)",
            got="a header without them" if isinstance(given, Trace) else short(given),
            next_step="record the run with lab.record",
        )
    header = given.header
    all_of_it = header["settings"]
    rounds = header.get("live") or [all_of_it]  # what is set now says nothing of earlier rounds
    heats = sorted({told["temperature"] for told in rounds})
    penalty = all_of_it["repetition_penalty"]
    penalties = sorted({told.get("repetition_penalty", penalty) for told in rounds})
    forced = trace.sources.count("forced")
    if heats != [0] or penalties != [1] or header["processors"] or forced or not trace.tokens:
        raise BadInput(
            "rehearsal",
            expected="a run at temperature 0 without processors, with no token written by hand",
            got=f"temperature {_listed(heats)}, repetition penalty {_listed(penalties)}, "
            f"processors {header['processors']}, {len(trace.tokens)} tokens, {forced} by hand",
            next_step="record the text again without them",
        )


def _listed(numbers: Sequence[float]) -> str:
    return " and ".join(f"{number:g}" for number in numbers)


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
        """Certain of the known next token on the text; anything off it and behind its end, for
        nobody asks there: see `rule`."""
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

    def rule(self, draft: Draft, p: Tensor, rng: Rng) -> Verdict:
        """`verify`, but that nothing is tried behind the last token of the text. What is "the
        target's next token" there is no word of the target's, and never joins the text."""
        tree, last = draft.tree, len(self._text) - 1 - self.length  # its depth, if it is drafted
        kept = [node for node, depth in enumerate(tree.depths) if depth <= last]
        left = Draft(tree.up_to_depth(last), tuple(draft.q[node] for node in kept))
        verdict = verify(left, p[kept], rng)
        trials = tuple(replace(trial, node=kept[trial.node]) for trial in verdict.trials)
        return replace(verdict, path=tuple(kept[node] for node in verdict.path), trials=trials)

    def commit(self, path: Sequence[int]) -> tuple[int, ...]:
        kept = tuple(self._nodes[node] for node in path)
        self._nodes = ()
        self.length += len(kept)
        return kept
