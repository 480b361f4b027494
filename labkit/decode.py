"""The decode loop: draft, score, verify, commit, until it stops.

Owns: the order of a round, budgets and stop conditions, and what each event says.
Does not know: recorders, metrics, pictures; what kind of drafter it runs.
Invariants: `speculate` and `autoregress` draw from the same law; the text never exceeds
``max_new_tokens`` nor the context limit; closing the generator or an interrupt leaves target and
drafter as at the last commit.

    committed  ... t            t is pending: in the text, not yet in the cache
    draft          t -> a -> b -> c
    score          p_t  p_a  p_b  p_c        one forward, four distributions
    verify              a ok b ok c no       -> path (t, a, b), then x from the residual
    commit     ... t  a  b  x                cache: ... t a b;  pending: x;  c forgotten
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.config import DecodeConfig
from labkit.devices import is_gpu
from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.drafters.nothing import Nothing
from labkit.errors import BadInput, LabError
from labkit.events import (
    AnyEvent,
    Committed,
    Drafted,
    Finished,
    Likeliest,
    Prefilled,
    Scored,
    Started,
    Verified,
)
from labkit.sampling import Processor, Rng, TorchRng, Warp
from labkit.streaming import TextStream
from labkit.target import Scores, Target
from labkit.tree import DraftTree
from labkit.verify import Verdict, verify

Clock = Callable[[], float]
Rule = Callable[[Draft, Tensor, Rng], Verdict]
"""Called like `labkit.verify.verify`."""


def autoregress(
    target: Target,
    tokens: Sequence[int],
    *,
    config: DecodeConfig,
    processors: Sequence[Processor] = (),
    text: TextStream | None = None,
    rng: Rng | None = None,
    clock: Clock = time.perf_counter,
) -> Iterator[AnyEvent]:
    """Plain decoding: speculation with a drafter that never drafts. See `speculate`."""
    return speculate(
        target,
        Nothing(),
        tokens,
        config=config,
        processors=processors,
        text=text,
        rng=rng,
        clock=clock,
    )


def speculate(
    target: Target,
    drafter: Drafter,
    tokens: Sequence[int],
    *,
    config: DecodeConfig,
    processors: Sequence[Processor] = (),
    text: TextStream | None = None,
    rng: Rng | None = None,
    clock: Clock = time.perf_counter,
    rule: Rule | None = None,
) -> Iterator[AnyEvent]:
    """Decode ``tokens`` speculatively, one event at a time; ``next`` is a single-step debugger.

    Args:
        tokens: the prompt's ids.
        config: what to decode and how much to record.
        processors: transformers logits processors, applied at every drafted position with the
            text up to that position.
        text: turns tokens into text and finds stop strings; without it events carry ids alone.
        rng: source of every draw; by default seeded with ``config.seed``.
        clock: seconds; on a device that works asynchronously, one that waits for it.
        rule: another accept rule than `verify`, to show what a wrong one does.

    Returns:
        the events of `labkit.events`, in order.

    Raises:
        BadInput: before any work: an impossible prompt, stop strings that ``text`` does not look
            for, a ``text`` that was used before, a need that the target does not deliver.
    """
    tokens = target.check_tokens(tokens)
    _check_text(text, tuple(config.stop_strings))
    lacking = [name for name in drafter.needs if name not in target.needs]
    if lacking:
        raise BadInput(
            f"target for drafter {drafter.name!r}",
            expected="needs=" + repr(drafter.needs),
            got=repr(target.needs),
            next_step="build the target with the activations that the drafter needs",
        )
    warp = Warp.from_config(config, processors=processors)
    rng = rng or TorchRng(config.seed, ahead=is_gpu(target.device))
    return Run(target, drafter, tokens, config, warp, rng, text, clock, rule).events()


def _check_text(text: TextStream | None, stop_strings: tuple[str, ...]) -> None:
    looked_for = text.stop_strings if text else ()
    if looked_for != stop_strings:
        raise BadInput(
            "stop_strings",
            expected=f"a text stream that looks for {list(stop_strings)}",
            got=f"one that looks for {list(looked_for)}" if text else "none",
            next_step="pass text=TextStream(decode, stop_strings=config.stop_strings)",
        )
    if text and not text.is_fresh:
        raise BadInput(
            "text",
            expected="a new text stream for each run",
            got="one that has seen tokens already",
            next_step="make a TextStream for this run",
        )


@dataclass(slots=True)
class Run:
    """One decoding run: the committed text and where it may end.

    Most callers want `speculate`. Whoever steps in between a draft and its verdict takes the
    same round in two halves, `draft` and `judge`; target and drafter must then hold ``tokens``.

    tokens: prompt and new tokens; prompt_length: how many of them are the prompt. round: number
    of the last round. reason: why the run ended, None while it goes on.
    """

    target: Target
    drafter: Drafter
    tokens: list[int]
    config: DecodeConfig
    warp: Warp
    rng: Rng
    text: TextStream | None
    clock: Clock
    rule: Rule | None = None
    prompt_length: int = 0
    round: int = 0
    reason: str | None = None

    def events(self) -> Iterator[AnyEvent]:
        """The run, phase by phase. Target and drafter must not be used for another meanwhile."""
        self.prompt_length = len(self.tokens)
        yield Started(
            round=0,
            method=self.drafter.name,
            prompt=tuple(self.tokens),
            max_new_tokens=self.config.max_new_tokens,
            draft_length=self.config.draft_length,
        )
        prefilled, mine = self.prefill(), (self.target.run, self.drafter.run)
        try:
            yield prefilled
            self._check_owner(*mine)
            while self.reason is None:
                for event in self._round():
                    yield event
                    self._check_owner(*mine)
        finally:
            if self.drafter.run == mine[1]:
                self.drafter.forget()
        yield Finished(
            round=self.round,
            reason=self.reason,
            new_tokens=len(self.tokens) - self.prompt_length,
            slots_before=self.target.slots_used,
            slots_after=self.target.slots_used,
        )

    def prefill(self) -> Prefilled:
        """Target and drafter begin again with ``tokens``."""
        start, forwards = self.clock(), self.target.forwards
        inside = self.target.forward_seconds
        self.drafter.run += 1
        hidden = self.target.prefill(self.tokens)
        self.drafter.reset()
        self.drafter.observe(Commit(tuple(self.tokens), hidden))
        return Prefilled(
            round=0,
            tokens=self.target.length,
            recurrent_layers=self.target.recurrent_layers,
            seconds=self.clock() - start,
            forwards=self.target.forwards - forwards,
            forward_seconds=self.target.forward_seconds - inside,
            slots_after=self.target.slots_used,
        )

    def _round(self) -> Iterator[AnyEvent]:
        draft, drafted = self.draft()
        yield drafted
        yield from self.judge(draft)

    def draft(self) -> tuple[Draft, Drafted]:
        """The first half of the next round: what the drafter proposes."""
        start = self.clock()
        draft = self.drafter.propose(self.tokens, self.rng, depth=self.depth_limit, warp=self.warp)
        return draft, self.take(draft, seconds=self.clock() - start)

    def take(self, draft: Draft, *, seconds: float = 0.0) -> Drafted:
        """The same with a draft that somebody made in ``seconds``: what is told of it.

        Raises:
            BadInput: it does not belong to this text, or is too deep for it.
        """
        self._check_draft(draft.tree)
        self.round += 1
        return self._drafted(draft, seconds=seconds)

    def judge(self, draft: Draft) -> Iterator[AnyEvent]:
        """The second half: score, verify, commit. Any draft will do that `take` lets by;
        left before its commit, nothing has happened."""
        with self.target.speculation():
            scores, scored = self._score(draft.tree)
            yield scored
            verdict, verified = self._verify(draft, scores)
            yield verified
            committed = self._commit(draft.tree, scores, verdict)
        yield committed

    def _drafted(self, draft: Draft, *, seconds: float) -> Drafted:
        slots = self.target.slots_used
        most = max(self.config.top, 8 * self.config.top - len(draft.tree))
        full = self.config.detail == "full"
        considered, unlisted = _considered(draft, most) if full else ((), 0)
        return Drafted(
            round=self.round,
            tokens=draft.tree.tokens,
            parents=draft.tree.parents,
            deterministic=draft.is_deterministic,
            limit=self.depth_limit,
            q=_drawn_mass(draft) if self.config.detail == "full" else (),
            q_top=self._q_top(draft),
            confidence=draft.confidence if self.config.detail != "timing" else (),
            stopped=draft.stopped,
            considered=considered,
            unlisted=unlisted,
            seconds=seconds,
            forwards=draft.forwards,
            forward_seconds=draft.forward_seconds,
            slots_before=slots,
            slots_after=slots,
        )

    def _score(self, tree: DraftTree) -> tuple[Scores, Scored]:
        start, before = self.clock(), self.target.slots_used
        inside = self.target.forward_seconds
        scores = self.target.score(tree)
        seconds = self.clock() - start
        return scores, Scored(
            round=self.round,
            node_slots=scores.slots,
            context=self.target.length,
            p_top=self._p_top(scores, tree),
            seconds=seconds,
            forwards=1,
            forward_seconds=self.target.forward_seconds - inside,
            slots_before=before,
            slots_after=self.target.slots_used,
        )

    def _verify(self, draft: Draft, scores: Scores) -> tuple[Verdict, Verified]:
        start = self.clock()
        prefixes = self._prefixes(draft.tree)
        try:
            p = self.warp(scores.logits, prefixes)
            verdict = (self.rule or verify)(draft, p, self.rng)
        except BadInput:
            self.warp.blame(scores.logits, prefixes)  # says more where a processor is at fault
            raise
        seconds = self.clock() - start
        slots = self.target.slots_used
        detail = self.config.detail
        return verdict, Verified(
            round=self.round,
            path=verdict.path,
            next_token=verdict.next_token,
            resampled=verdict.resampled,
            trials=verdict.trials if detail != "timing" else (),
            residual_top=likeliest(verdict.last[None], self.config.top)[0]
            if detail == "full"
            else (),
            seconds=seconds,
            slots_before=slots,
            slots_after=slots,
        )

    def _commit(self, tree: DraftTree, scores: Scores, verdict: Verdict) -> Committed:
        start, before = self.clock(), self.target.slots_used
        inside, replayed = self.target.forward_seconds, self.target.replayed
        new = [*(tree.tokens[node] for node in verdict.path[1:]), verdict.next_token]
        sources = ["draft"] * (len(new) - 1) + ["target"]
        count, text = self._stop(new)
        kept_nodes = verdict.path[:count]  # the last new token is pending: it needs no slot yet
        kept = self.target.commit(kept_nodes)
        self.tokens.extend(new[:count])
        hidden = {name: h[list(kept_nodes)] for name, h in scores.hidden.items()}
        self.drafter.observe(Commit(tuple(new[:count]), hidden))
        seconds = self.clock() - start
        full = self.config.detail == "full"
        return Committed(
            round=self.round,
            tokens=tuple(new[:count]),
            sources=tuple(sources[:count]),
            text=text,
            kept_slots=kept,
            freed_slots=tuple(s for s in scores.slots if s not in kept),
            logprobs=_logprobs(scores.logits[list(kept_nodes)], new[:count]) if full else (),
            near_ties=near_ties(scores.logits[list(kept_nodes)]) if full else (),
            replayed=self.target.replayed - replayed,
            seconds=seconds,
            forward_seconds=self.target.forward_seconds - inside,
            slots_before=before,
            slots_after=self.target.slots_used,
        )

    def _stop(self, new: Sequence[int]) -> tuple[int, str]:
        """How many of the new tokens stay, and their text. Sets the reason when the run ends."""
        text = ""
        count = 0
        for token in new:
            count += 1
            piece = self.text.push(token) if self.text else None
            text += piece.text if piece else ""
            if token in self.config.eos_ids:
                self.reason = "eos"
            elif piece and piece.stopped:
                self.reason = "stop_string"
            if self.reason:
                break
        made = len(self.tokens) + count - self.prompt_length
        if self.reason is None and made == self._budget():
            self.reason = (
                "max_new_tokens" if made == self.config.max_new_tokens else "context_limit"
            )
        if self.reason and self.reason != "stop_string" and self.text:
            rest = self.text.flush()
            text += rest.text
            self.reason = "stop_string" if rest.stopped else self.reason
        return count, text

    def _budget(self) -> int:
        """Most new tokens this run may make."""
        limit = self.target.context_limit
        room = limit - self.prompt_length if limit is not None else self.config.max_new_tokens
        return min(self.config.max_new_tokens, room)

    @property
    def depth_limit(self) -> int:
        """How deep the next draft may be: room for the target's own token is always left, and
        the drafter never reads past its own context."""
        left = self._budget() - (len(self.tokens) - self.prompt_length)
        depth = min(self.config.draft_length, left - 1)
        if self.drafter.context_limit is not None:
            depth = min(depth, self.drafter.context_limit - len(self.tokens) + 1)
        return max(0, depth)

    def _check_draft(self, tree: DraftTree) -> None:
        """BadInput for a draft that does not belong to this text, or is too deep for it."""
        limit = self.depth_limit
        wrong = (
            f"root {tree.tokens[0]}"
            if tree.tokens[0] != self.tokens[-1]
            else f"depth {tree.depth}"
            if tree.depth > limit
            else f"token {max(tree.tokens)}"
            if max(tree.tokens) >= self.target.vocab_size
            else None
        )
        if wrong:
            raise BadInput(
                f"draft of {self.drafter.name!r}",
                expected=f"root {self.tokens[-1]}, depth at most {limit}, "
                f"tokens below {self.target.vocab_size}",
                got=wrong,
                next_step="mend the drafter",
            )

    def _check_owner(self, target_run: int, drafter_run: int) -> None:
        taken = (
            "target"
            if self.target.run != target_run
            else "drafter"
            if self.drafter.run != drafter_run
            else None
        )
        if taken:
            raise LabError(
                "this run",
                expected="target and drafter for itself until it is finished or closed",
                got=f"another run that started on the same {taken}",
                next_step=f"start this run again, or give each run a {taken} of its own",
            )

    def _prefixes(self, tree: DraftTree) -> list[list[int]] | None:
        """The text up to and including each node; None when no processor asks for it."""
        if not self.warp.needs_prefix:
            return None
        paths = (tree.path(node)[1:] for node in range(len(tree)))
        return [[*self.tokens, *(tree.tokens[i] for i in path)] for path in paths]

    def _p_top(self, scores: Scores, tree: DraftTree) -> tuple[Likeliest, ...]:
        if self.config.detail != "full":
            return ()
        if self.config.temperature == 0:
            return likeliest(torch.softmax(scores.logits.float(), -1), self._top(tree))
        return likeliest(self.warp(scores.logits, self._prefixes(tree)), self._top(tree))

    def _top(self, tree: DraftTree) -> int:
        """Likeliest tokens to keep per node: what eight nodes may have, larger trees share."""
        return max(1, min(self.config.top, 8 * self.config.top // len(tree)))

    def _q_top(self, draft: Draft) -> tuple[Likeliest, ...]:
        if self.config.detail != "full" or len(draft.tree) == 1:
            return ()
        rows: list[Likeliest] = [()]
        logits = draft.logits or (None,) * len(draft.tree)
        for q, raw in zip(draft.q[1:], logits[1:], strict=True):
            shown = q if q is not None else None if raw is None else torch.softmax(raw.float(), -1)
            top = self._top(draft.tree)
            rows.append(() if shown is None else likeliest(shown[None], top)[0])
        return tuple(rows)


def likeliest(p: Tensor, top: int) -> tuple[Likeliest, ...]:
    """The ``top`` likeliest tokens of each row of p [n, V], without those of no mass."""
    values, ids = p.topk(min(top, p.shape[-1]), -1)
    return tuple(
        tuple((i, v) for i, v in zip(row, mass, strict=True) if v > 0)
        for row, mass in zip(ids.tolist(), values.tolist(), strict=True)
    )


def near_ties(logits: Tensor) -> tuple[bool, ...]:
    """For each row of [n, V]: do the two best lie within two steps of the logits' own dtype?"""
    best = logits.topk(2, -1).values.double()
    return tuple((best[:, 0] - best[:, 1] <= 2 * step_of(logits)).tolist())


def step_of(logits: Tensor) -> Tensor:
    """[n] float64: the distance between neighbouring numbers of the dtype of ``logits`` [n, V] at
    the best one of each row; in bfloat16, 0.125 for logits from 16 to 32."""
    size = logits.amax(-1).double().abs().clamp(min=1e-30)
    return 2.0 ** size.log2().floor() * torch.finfo(logits.dtype).eps


def _logprobs(logits: Tensor, tokens: Sequence[int]) -> tuple[float, ...]:
    """log softmax(logits [m, V]) at one token per row; the lowest number for what is impossible
    (a processor can still choose it), since JSON has no infinity."""
    ids = torch.tensor(list(tokens), device=logits.device)[:, None]
    told = torch.log_softmax(logits.float(), -1).gather(-1, ids)[:, 0]
    return tuple(told.clamp_(min=torch.finfo(told.dtype).min).tolist())


def _considered(draft: Draft, most: int) -> tuple[tuple[tuple[int, int, float, int], ...], int]:
    """Candidates, of the pruned ones only the ``most`` likeliest; how many are left out. Nobody is
    likelier than its parent and parents come first, so a candidate's parent is always listed."""
    found = draft.considered
    if found is None:
        return (), 0
    node = {number: i for i, number in enumerate(found.kept)}
    pruned = [i for i in range(len(found.tokens)) if i not in node]
    best = sorted(pruned, key=lambda i: (-found.confidence[i], i))[:most]
    listed = sorted({*node, *best})
    row = {number: i for i, number in enumerate(listed)} | {-1: -1}
    return tuple(
        (found.tokens[i], row[found.parents[i]], found.confidence[i], node.get(i, -1))
        for i in listed
    ), len(pruned) - len(best)


def _drawn_mass(draft: Draft) -> tuple[float | None, ...]:
    """The probability with which each node's token was proposed; 1 for a deterministic one."""
    pairs = zip(draft.tree.tokens[1:], draft.q[1:], strict=True)
    return (None, *(1.0 if q is None else float(q[token]) for token, q in pairs))
