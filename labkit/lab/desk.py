"""Where single rounds are played: a model's targets and drafters, brought to any text.

Owns: targets, drafters and caches of one workbench, and calling the engine's round.
Does not know: branches, what was seen or edited and why.
Invariants: nothing is shared with another desk or with runs of the session but the weights; a
round that fails, or is interrupted, leaves nothing behind; after running out of memory the caches
are gone.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from labkit.decode import Run
from labkit.draft import Draft
from labkit.drafters.base import Drafter
from labkit.drafters.shapes import Shape
from labkit.events import Drafted, Prefilled
from labkit.lab.courses import How, Seat, Step, tokens_of
from labkit.lab.memory import ADVICE, safely
from labkit.lab.session import Lab
from labkit.lab.settings import Settings
from labkit.sampling import Rng, Warp
from labkit.streaming import TextStream
from labkit.target import Target
from labkit.trace import Round
from labkit.tree import DraftTree

T = TypeVar("T")


class Desk:
    """The engine's rounds on the text ``prompt`` + steps.

    Args:
        prompt: token ids.
        own: a drafter that is used for the method of its name.
    """

    def __init__(self, lab: Lab, prompt: Sequence[int], *, own: Drafter | None = None) -> None:
        self.lab, self.prompt = lab, tuple(prompt)
        self.prefilled: Prefilled | None = None
        self._own = own
        self._drafters: dict[tuple[str, Shape | None], Drafter] = {}
        self._seats: dict[tuple[str, ...], Seat] = {}

    def drafter(self, settings: Settings) -> Drafter:
        """Who drafts under ``settings``; with caches of its own, made once.

        Raises:
            BadInput: an unknown method, or a shape it does not draft in. ModelUnavailable.
        """
        if self._own and settings.method == self._own.name and settings.shape is None:
            return self._own
        key = (settings.method, settings.shape)
        if key not in self._drafters:
            self._drafters[key] = self.lab.new_drafter(settings.method, shape=settings.shape)
        return self._drafters[key]

    def draft(self, settings: Settings, steps: Sequence[Step], rng: Rng) -> tuple[Draft, Drafted]:
        """What the drafter proposes next."""
        return self._safely(lambda: self._proposed(settings, steps, rng)[2:])

    def drafted(self, settings: Settings, steps: Sequence[Step], draft: Draft, rng: Rng) -> Drafted:
        """What is told of a draft that was made by hand. No cache is brought anywhere for it.

        Raises:
            BadInput: it is too deep for what is left of the text.
        """
        run = self._run(self._deep_enough(settings, draft), steps, rng)
        held = len(run.tokens) - 1  # the pending token has no slot yet
        return replace(run.take(draft), slots_before=held, slots_after=held)

    def judge(
        self,
        settings: Settings,
        steps: Sequence[Step],
        draft: Draft,
        rng: Rng,
        *,
        how: How,
        by: str,
        seconds: float = 0.0,
    ) -> Step:
        """Score, verify and commit ``draft``.

        Args:
            seconds: how long it took to make it.
        """
        return self._safely(
            lambda: self._judge(settings, steps, draft, rng, how=how, by=by, seconds=seconds)
        )

    def force(self, settings: Settings, steps: Sequence[Step], token: int, rng: Rng) -> Step:
        """A round without a draft and with one token possible. At temperature 0, so that what is
        recorded of p is what the target itself would have said."""
        alone = replace(settings.config, temperature=0.0, repetition_penalty=1.0)
        forced = replace(settings, config=alone, only=token)
        root = Draft.deterministic(DraftTree.chain((*self.prompt, *tokens_of(steps))[-1:]))
        return self.judge(forced, steps, root, rng, how="forced", by="you")

    def trial(self, settings: Settings, steps: Sequence[Step], rng: Rng) -> Round:
        """A whole round that is taken back."""

        def work() -> Round:
            seat, run, draft, drafted = self._proposed(settings, steps, rng)
            return Round(len(steps) + 1, drafted, *seat.judge(run, draft))

        return self._safely(work)

    def _proposed(
        self, settings: Settings, steps: Sequence[Step], rng: Rng
    ) -> tuple[Seat, Run, Draft, Drafted]:
        seat, run = self._ready(settings, steps, rng)
        run.drafter.forget()  # what it guessed for a draft that nobody had judged
        return seat, run, *run.draft()

    def _judge(
        self,
        settings: Settings,
        steps: Sequence[Step],
        draft: Draft,
        rng: Rng,
        *,
        how: How,
        by: str,
        seconds: float,
    ) -> Step:
        settings = self._deep_enough(settings, draft)
        seat, run = self._ready(settings, steps, rng)
        drafted = run.take(draft, seconds=seconds)
        scored, verified, committed = seat.judge(run, draft)
        if how == "forced":
            committed = replace(committed, sources=("forced",))
        step = Step(
            drafted,
            scored,
            verified,
            committed,
            how=how,
            by=by,
            config=settings.config,
            forbidden=settings.forbidden,
            reason=run.reason,
        )
        seat.keep(step)
        return step

    def _deep_enough(self, settings: Settings, draft: Draft) -> Settings:
        """A person may go deeper than K."""
        length = max(settings.config.draft_length, draft.tree.depth)
        return replace(settings, config=replace(settings.config, draft_length=length))

    def _ready(self, settings: Settings, steps: Sequence[Step], rng: Rng) -> tuple[Seat, Run]:
        """The seat with ``steps`` in its caches, and the run that goes on from there."""
        drafter = self.drafter(settings)
        seat = self._seat(drafter)
        read = seat.bring(steps, drafter, self._run(settings, (), rng))
        self.prefilled = self.prefilled or read
        return seat, self._run(settings, steps, rng)

    def _seat(self, drafter: Drafter) -> Seat:
        if drafter.needs not in self._seats:
            lab = self.lab
            target = Target(lab.model, needs=drafter.needs, width=lab.width, clock=lab.clock)
            self._seats[drafter.needs] = Seat(target, self.prompt)
        return self._seats[drafter.needs]

    def _run(self, settings: Settings, steps: Sequence[Step], rng: Rng) -> Run:
        config, new = settings.config, tokens_of(steps)
        drafter = self.drafter(settings)
        text = TextStream(self.lab.text, stop_strings=config.stop_strings)
        for token in new:
            text.push(token)
        return Run(
            self._seat(drafter).target,
            drafter,
            [*self.prompt, *new],
            config,
            Warp.from_config(config, processors=settings.processors),
            rng,
            text,
            self.lab.clock,
            prompt_length=len(self.prompt),
            round=len(steps),
        )

    def _safely(self, work: Callable[[], T]) -> T:
        advice = f"{ADVICE}; the text so far is kept and is read again in the next round"
        return safely(work, "this round", let_go=self._let_go, advice=advice)

    def _let_go(self) -> None:
        self._seats.clear()
        self._drafters.clear()
        if self._own:
            self._own.let_go()
