"""The race: plain decoding and other ways side by side, round by round, each on its own clock.

Owns: whose turn it is, the clocks, start, stop and cleaning up. Does not know: drawing.
Invariants: one lane works at a time, and a lane's clock runs only while it works, so no lane pays
for another; the lane that is behind in time goes next, so at any moment all lanes have run for
about as long; every lane has a target and a drafter of its own; however a race ends, no lane keeps
slots or a run under way.

    race = Race(lab, "Why is the sky blue?", methods=("draft", "ngram"), max_new_tokens=64)
    race            # in a notebook: the lanes, and a Start button
    race.run()      # or here and now, in this cell; returns the record, a picture and a sentence
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.config import AVAILABLE, DecodeConfig, check_method
from labkit.decode import speculate
from labkit.drafters.base import Drafter, check_drafter
from labkit.drafters.nothing import Nothing
from labkit.errors import LabError, one_of, require
from labkit.events import AnyEvent, Committed, Finished, Prefilled
from labkit.ids import numbered
from labkit.lab.memory import step_safely
from labkit.lab.session import DRAFT_LENGTH, Lab
from labkit.streaming import TextStream
from labkit.target import Target
from labkit.viz.loading import race_view_class
from labkit.viz.race import Lane, RaceRecord, Turn

PLAIN = "plain decoding"
NOTE = (
    "How the time is counted: the lanes take turns on one machine, a round at a time, and a lane's "
    "clock runs only while it works. So while it runs you watch in slow motion; the replay is at "
    "true speed. Reading the prompt is not counted, nor are {warm} rounds of warming up."
)
_PAUSE = 1 / 15  # seconds between two messages to the page


@dataclass(slots=True)
class _Runner:
    """A lane while it runs."""

    name: str
    drafter: Drafter
    config: DecodeConfig
    events: Iterator[AnyEvent] | None = None
    turns: list[Turn] = field(default_factory=list)
    seconds: float = 0.0
    done: bool = False

    @property
    def lane(self) -> Lane:
        return Lane(self.name, tuple(self.turns), self.done)

    def close(self) -> None:
        """End its run where it stands; target and drafter forget what was speculative."""
        if self.events is not None:
            self.events.close()  # type: ignore[attr-defined]
            self.drafter.reset()
        self.events = None


class Race:
    """A race of plain decoding and one or two other methods. Display it, or `run` it.

    A race that is under way ends when a newer one is made on the same lab, or when the lab decodes
    plainly: re-running a cell leaves nothing running.

    Args:
        methods: one or two, other than "ar".
        drafters: by method, in place of the lab's own kind; not ones that a run is using.
        warm_up: rounds of each lane that are run first and not counted.
        clock: of the lanes, in seconds; by default one that waits for the device.
        now: the clock by which the page is told how it stands, some 15 times a second.
        settings: fields of `DecodeConfig`; without a draft length each method has its own default.

    Raises:
        BadInput: before any work: no method or more than two, one twice, or what `Lab.new_drafter`
        refuses; a prompt, setting or drafter that cannot be used.
    """

    def __init__(
        self,
        lab: Lab,
        prompt: str | Sequence[int],
        methods: Sequence[str] = ("draft", "ngram"),
        *,
        drafters: Mapping[str, Drafter] | None = None,
        warm_up: int = 2,
        clock: Callable[[], float] | None = None,
        now: Callable[[], float] = time.monotonic,
        chat: bool = True,
        **settings: Any,
    ) -> None:
        self._lab, self._clock, self._now = lab, clock or lab.clock, now
        self._ids = lab.ids(prompt, chat=chat)
        self._methods = _methods(methods)
        given = _drafters(drafters, self._methods)
        help_ = "leave it at 2, or 0 for none"
        self._warm_up = numbered(warm_up, first=0, name="warm_up", next_step=help_)
        self._settings = {"max_new_tokens": 64, "detail": "timing", **settings}
        self._configs = {m: self._config(DRAFT_LENGTH.get(m, 4)) for m in self._methods}
        self._configs[PLAIN] = lab.config(**{**self._settings, "draft_length": 0})
        for method in self._methods:
            if method not in given:
                check_method(method, available=AVAILABLE)
        self._makers = {m: given.get(m) or lab.new_drafter(m) for m in self._methods}
        self._runners: list[_Runner] = self._line_up()
        self._phase, self._why = "ready", ""
        self._steps: Iterator[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._view: Any = None
        self._told_at = float("-inf")
        self._take_over()

    def _take_over(self) -> None:
        """Whoever ran a race on this lab notices, and stops. The lab's plain drafter, which no
        lane uses, is the baton."""
        self._baton = self._lab.drafter("ar")
        self._baton.run += 1
        self._mine = self._baton.run

    def _line_up(self) -> list[_Runner]:
        drafters: dict[str, Drafter] = {PLAIN: Nothing(), **self._makers}
        return [_Runner(name, one, self._configs[name]) for name, one in drafters.items()]

    def _config(self, draft_length: int) -> DecodeConfig:
        return self._lab.config(**{"draft_length": draft_length, **self._settings})

    @property
    def record(self) -> RaceRecord:
        """How it stands."""
        config = self._configs[PLAIN]
        return RaceRecord(
            lanes=tuple(runner.lane for runner in self._runners),
            goal=config.max_new_tokens,
            greedy=config.temperature == 0,
            phase=self._phase,
            why=self._why,
        )

    @property
    def running(self) -> bool:
        """Is it under way?"""
        return self._steps is not None

    # --- going

    def run(self) -> RaceRecord:
        """Run it to the end, here and now. An interrupt stops it and is passed on."""
        try:
            for _ in self._begin():
                self._tell()
        finally:
            self.stop()
        return self.record

    def start(self) -> "asyncio.Task[None] | None":
        """Run it beside the notebook, a turn at a time; other cells run between turns. Without an
        event loop, run it here and now and return None."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.run()
            return None
        if not self.running:
            self._task = loop.create_task(self._go(self._begin()))
        return self._task

    async def _go(self, steps: Iterator[None]) -> None:
        try:
            for _ in steps:
                self._tell()
                await asyncio.sleep(0.001)  # lets the page's messages in
        except KeyboardInterrupt:
            self._why = "interrupted"
        except LabError as error:
            self._why = str(error)
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"
            raise
        finally:
            if self._steps is steps:  # it may have been stopped, and begun again
                self.stop()

    def stop(self) -> None:
        """End it where it stands; harmless when it is not running. Every lane forgets."""
        steps, self._steps = self._steps, None
        if steps is None:
            return
        steps.close()  # type: ignore[attr-defined]
        if self._phase != "finished":  # one that never took its first step too
            self._phase = "stopped"
        self._told_at = float("-inf")
        self._tell()

    def _begin(self) -> Iterator[None]:
        self.stop()
        self._take_over()
        self._runners, self._phase, self._why = self._line_up(), "preparing", ""
        self._steps = step_safely(self._turns(), "the race")
        return self._steps

    def _turns(self) -> Iterator[None]:
        """The race, a turn at a time."""
        finished = False
        try:
            yield
            for runner in self._runners:
                self._prepare(runner)
                yield
            self._phase = "running"
            while waiting := [r for r in self._runners if not r.done]:
                if self._baton.run != self._mine:
                    self._why = "another run began on this lab"
                    return
                self._turn(min(waiting, key=lambda r: r.seconds))
                yield
            finished = True
        finally:
            self._phase = "finished" if finished else "stopped"
            for runner in self._runners:
                runner.close()

    def _prepare(self, runner: _Runner) -> None:
        """Warm up, then read the prompt; neither is counted."""
        target = Target(self._lab.model, needs=runner.drafter.needs, width=self._lab.width)
        rounds = 0
        runner.events = self._events(runner, target)
        for event in runner.events:
            rounds += isinstance(event, Committed)
            if rounds >= self._warm_up:
                break
        runner.close()
        runner.events = self._events(runner, target)
        for event in runner.events:
            if isinstance(event, Prefilled):
                return

    def _events(self, runner: _Runner, target: Target) -> Iterator[AnyEvent]:
        return speculate(
            target,
            runner.drafter,
            self._ids,
            config=runner.config,
            text=TextStream(self._lab.text, stop_strings=runner.config.stop_strings),
            clock=time.perf_counter,
        )

    def _turn(self, runner: _Runner) -> None:
        """One round of one lane, on its own clock."""
        assert runner.events is not None
        begun = self._clock()
        for event in runner.events:
            if isinstance(event, Finished):
                break
            if isinstance(event, Committed):
                runner.seconds += self._clock() - begun
                made = (runner.turns[-1].tokens if runner.turns else 0) + len(event.tokens)
                runner.turns.append(Turn(runner.seconds, made, event.text))
                if not self._is_over(made, event.tokens[-1]):
                    return
        runner.done = True

    def _is_over(self, made: int, last: int) -> bool:
        """Will nothing come but the end? Then the lane crosses the line in this turn."""
        config = self._configs[PLAIN]
        return made >= config.max_new_tokens or last in config.eos_ids

    # --- showing

    def _tell(self) -> None:
        """Tell the page how it stands; not more often than it can draw, but for the end."""
        if self._view is None or not self._view.is_open:
            return
        now = self._now()
        if now - self._told_at >= _PAUSE or not self.running:
            self._told_at = now
            self._view.show(self.record)

    def _wish(self, asked: str) -> None:
        if asked == "stop":
            self.stop()
        else:
            self.start()

    @property
    def view(self) -> Any:
        """The widget; made once, and anew where it has been closed. A picture where anywidget is
        missing."""
        if self._view is None or not self._view.is_open:
            note = NOTE.format(warm=self._warm_up)
            self._view = race_view_class()(self.record, note=note, wish=self._wish)
        return self._view

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return self.view._repr_mimebundle_(**kwargs)

    def __repr__(self) -> str:
        return self.record.sentence


def _methods(methods: Sequence[str]) -> tuple[str, ...]:
    """BadInput: not one or two names, each once."""
    given: object = methods
    listed = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    names = all(isinstance(method, str) for method in listed)
    some = 1 <= len(listed) <= 2 and names and len({*listed, "ar", PLAIN}) == len(listed) + 2
    expected = "a list of one or two, each once, plain decoding apart"
    require(some, "methods", expected, given)
    return listed


def _drafters(drafters: Mapping[str, Drafter] | None, methods: Sequence[str]) -> dict[str, Drafter]:
    """BadInput: something else than drafters, or one whose method does not race."""
    given: object = drafters
    is_map = given is None or isinstance(given, Mapping)
    require(is_map, "drafters", "a dictionary from method to drafter", given)
    for method, drafter in (drafters or {}).items():
        one_of(methods, method, name="drafters", next_step="name it among the methods, or leave it")
        check_drafter(drafter, name=f"drafters[{method!r}]")
    made = list((drafters or {}).values())
    shared = [type(one).__name__ for one in made if sum(one is other for other in made) > 1]
    require(not shared, "drafters", "a drafter of its own for each lane", shared)
    return dict(drafters or {})
