"""An action on a workbench is done as a whole or not at all, and views that are open follow it.

Interrupts are raised from Python's own trace function, at every call and at many lines of a round,
where a person's could come.
"""

import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers import distorted, prompt_of, tiny
from live_doubles import toy_lab

from labkit.drafters.draft_model import DraftModel
from labkit.drafters.shapes import Chain
from labkit.errors import BadInput, LabError, OutOfMemory
from labkit.lab import contest, live
from labkit.lab.live import Workbench
from labkit.lab.standing import Watchers
from labkit.sampling import Rng, TorchRng
from labkit.viz.turnover import close_whole

PROMPT, MODEL, NEW = prompt_of(7), tiny(), 14
DRAFT = distorted(MODEL)


def opened(**options: Any) -> Workbench:
    """Sampled: every round draws guesses, accept tests and a token."""
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_new_tokens": NEW}
    settings |= {"draft_length": 3, "drafter": DraftModel(DRAFT, vocab_size=64)}
    return live.open(toy_lab(MODEL), PROMPT, **(settings | options))


def to_the_end(bench: Workbench) -> tuple[int, ...]:
    if not bench.ended:
        bench.run(NEW)
    return bench.tokens


# --- interrupts -----------------------------------------------------------------------------------


class Interrupt:
    """Raises KeyboardInterrupt at moment ``number`` of a piece of work. Moments are the calls of
    functions of labkit, or the lines of some of its modules."""

    def __init__(self, number: int, *, lines: bool = False) -> None:
        self.left, self._lines = number, lines

    def __call__(self, work: Callable[[], object]) -> bool:
        """Did it come?"""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if "labkit" not in name:
            return None
        if not self._lines:
            self._count()
            return None
        own = ("live.py", "standing.py", "desk.py", "courses.py", "decode.py", "growth.py")
        return self._line if name.endswith(own) else None

    def _line(self, frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            self._count()
        return self._line

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt


def moments(
    prepare: Callable[[Workbench], Any], act: Callable[[Workbench], Any], **how: Any
) -> int:
    """How many there are in an action."""
    bench, far = opened(), Interrupt(10**9, **how)
    prepare(bench)
    far(lambda: act(bench))
    return 10**9 - far.left


def at_start(bench: Workbench) -> None:
    pass


def in_the_middle(bench: Workbench) -> None:
    bench.run(2)


def with_a_draft(bench: Workbench) -> None:
    bench.step()
    bench.draft()


ACTIONS: dict[str, tuple[Callable[[Workbench], Any], Callable[[Workbench], Any]]] = {
    "first round": (at_start, lambda bench: bench.step()),
    "later round": (in_the_middle, lambda bench: bench.step()),
    "draft": (in_the_middle, lambda bench: bench.draft()),
    "verdict": (with_a_draft, lambda bench: bench.verify()),
    "several rounds": (in_the_middle, lambda bench: bench.run(2)),
}


@pytest.mark.parametrize("lines", [False, True], ids=["calls", "lines"])
@pytest.mark.parametrize("name", ACTIONS)
def test_an_interrupted_text_is_the_text_that_was_not(name: str, lines: bool) -> None:
    """Exactly, though every token of it is drawn."""
    prepare, act = ACTIONS[name]
    stayed = opened()
    prepare(stayed)
    act(stayed)
    expected = to_the_end(stayed)
    count = moments(prepare, act, lines=lines)
    assert count > 20
    came = 0
    for number in range(1, count, max(1, count // 15)):
        bench = opened()
        prepare(bench)
        before = bench.at, bench.tokens, bench.pending
        came += Interrupt(number, lines=lines)(lambda bench=bench: act(bench))
        if (bench.at, bench.tokens, bench.pending) == before:
            act(bench)
        assert to_the_end(bench) == expected, f"moment {number} of {count}"
    assert came >= 10


def test_draws_that_moved_on_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: an rng that is not put back."""
    monkeypatch.setattr(TorchRng, "mark", lambda _: lambda: None)
    with pytest.raises(AssertionError):
        test_an_interrupted_text_is_the_text_that_was_not("later round", lines=False)


def test_a_phrase_that_is_forced_stands_whole_or_not_at_all() -> None:
    for number in (1, 2, 3):
        bench, calls = opened(), [0]
        bench.run(1)
        before, expected = repr(bench), to_the_end_without(bench)

        def stop(*_: Any, calls: list[int] = calls, number: int = number) -> None:
            calls[0] += 1
            if calls[0] == number:
                raise KeyboardInterrupt

        handle = MODEL.register_forward_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            bench.force([5, 6, 7])
        handle.remove()
        assert repr(bench) == before
        assert to_the_end(bench) == expected


def to_the_end_without(bench: Workbench) -> tuple[int, ...]:
    stayed = opened()
    stayed.run(bench.at)
    return to_the_end(stayed)


def test_rounds_of_a_run_that_were_over_stay() -> None:
    bench, stayed, calls = opened(), opened(), [0]

    def stop(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == 4:  # the prompt, and three rounds
            raise KeyboardInterrupt

    handle = MODEL.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        bench.run(6)
    handle.remove()
    assert bench.at == 2
    assert to_the_end(bench) == to_the_end(stayed)


def out_of_memory(bench: Workbench) -> None:
    """A round that has no room."""

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    handle = MODEL.register_forward_hook(full)
    with pytest.raises(OutOfMemory):
        bench.step()
    handle.remove()


def test_a_round_that_did_not_fit_takes_its_draws_back() -> None:
    bench, stayed = opened(), opened()
    bench.run(2)
    out_of_memory(bench)
    assert to_the_end(bench) == to_the_end(stayed)


def test_an_interrupted_trial_takes_its_draws_back() -> None:
    bench, rng = opened(), TorchRng(3)
    bench.run(1)
    expected = TorchRng(3).flip(0.5)
    handle = MODEL.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.trial("ngram", rng=rng)
    handle.remove()
    assert rng.flip(0.5) == expected


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_turn_of_the_contest_is_whole_too(number: int) -> None:
    """Rivals have drafted at the place, or nobody has."""

    def played() -> contest.Contest:
        lab = toy_lab(MODEL)
        game = contest.open(lab, PROMPT, against=("ngram",), temperature=1.0, max_new_tokens=NEW)
        game.guess("w5 w6")
        return game

    game, stayed, calls = played(), played(), [0]

    def stop(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == number:
            raise KeyboardInterrupt

    handle = MODEL.register_forward_hook(stop)
    try:
        game.guess("w1 w2 w3")
    except KeyboardInterrupt:
        assert len(game.turns) == 1
        assert game.bench.settings == stayed.bench.settings
    else:
        assert number == 3, "one forward for the rival, one for you"
    finally:
        handle.remove()
    while len(game.turns) < 2:
        game.guess("w1 w2 w3")
    stayed.guess("w1 w2 w3")
    for one in (game, stayed):
        one.guess("")
    assert game.text == stayed.text
    assert game.figures == stayed.figures


# --- mistakes -------------------------------------------------------------------------------------

NOT_INDEXES: list[Any] = ["1", 0.5, 1.5, True, None, [1], float("nan"), 10**30, -1]
NOT_TOKENS: list[Any] = [1.5, True, None, ["a"], [1, None], [[1]], ..., -1, 64, b"12"]
MISTAKES: dict[str, Callable[[Workbench], object]] = {
    **{f"rewind({i!r})": lambda b, i=i: b.rewind(i) for i in NOT_INDEXES},
    **{f"run({i!r})": lambda b, i=i: b.run(i) for i in ["1", 1.5, True, None, [1], 0, -1]},
    **{f"cut({i!r})": lambda b, i=i: b.cut(i) for i in [*NOT_INDEXES, 0]},
    **{f"replace({i!r}, 5)": lambda b, i=i: b.replace(i, 5) for i in [*NOT_INDEXES, 0]},
    **{f"add(5, after={i!r})": lambda b, i=i: b.add(5, after=i) for i in NOT_INDEXES if i},
    **{f"replace(1, {t!r})": lambda b, t=t: b.replace(1, t) for t in NOT_TOKENS},
    **{f"add({t!r})": lambda b, t=t: b.add(t) for t in NOT_TOKENS},
    **{f"force({t!r})": lambda b, t=t: b.force(t) for t in NOT_TOKENS},
    **{f"forbid({t!r})": lambda b, t=t: b.forbid(t) for t in NOT_TOKENS},
    **{f"allow({t!r})": lambda b, t=t: b.allow(t) for t in NOT_TOKENS if t is not None},
    **{f"switch({n!r})": lambda b, n=n: b.switch(n) for n in [None, 1, ["main"], "x"]},
    **{f"compare({n!r})": lambda b, n=n: b.compare("main", n) for n in [None, 1, ["main"], "x"]},
    **{f"branch({n!r})": lambda b, n=n: b.branch(n) for n in [1, ["x"], True, "main"]},
    **{f"trace_of({n!r})": lambda b, n=n: b.trace_of(n) for n in [None, ["main"]]},
    **{
        f"set({name}={value!r})": lambda b, name=name, value=value: b.set(**{name: value})
        for name, values in {
            "temperature": ["1", None, True, [1.0], float("nan"), float("inf"), -1],
            "draft_length": ["x", 1.5, None, True, -1],
            "max_new_tokens": ["x", 1.5, None, 0],
            "top_p": ["x", None, 0, 2],
            "seed": ["x", 1.5, None],
            "stop_strings": ["abc", 5, [""], [1], ...],
            "eos": ["x", 1.5, [-1], [[1]]],
            "method": [None, 1, ["ngram"], "magic"],
            "shape": ["chain", 3, [Chain()], Chain],
            "heat": [1],
        }.items()
        for value in values
    },
    "trial(rng=None)": lambda b: b.trial("ngram", rng=None),  # type: ignore[arg-type]
    "trial(None)": lambda b: b.trial(None, rng=TorchRng(0)),  # type: ignore[arg-type]
    "trial(length)": lambda b: b.trial("ngram", draft_length="x", rng=TorchRng(0)),  # type: ignore[arg-type]
}


def state_of(bench: Workbench) -> list[Any]:
    return [repr(bench), bench.settings, bench.pending, bench.branches, bench.at, bench.here]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_before_any_work(
    name: str, bench_with_a_draft: Callable[[], Workbench]
) -> None:
    bench = bench_with_a_draft()
    before, calls = state_of(bench), []
    handle = MODEL.register_forward_hook(lambda *_: calls.append(1))
    try:
        with pytest.raises(LabError) as told:
            MISTAKES[name](bench)
    finally:
        handle.remove()
    assert isinstance(told.value, BadInput)
    assert calls == []
    assert state_of(bench) == before


@pytest.fixture(scope="module")
def bench_with_a_draft() -> Any:
    """One bench for all mistakes, each of which leaves it as it was; at the end it goes on as one
    that nobody bothered."""
    bench, stayed = opened(), opened()
    for one in (bench, stayed):
        with_a_draft(one)
    yield lambda: bench
    assert to_the_end(bench) == to_the_end(stayed)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"drafter": "ngram"}, "drafter: expected a labkit.drafters.base.Drafter"),
        ({"rng": 3}, "rng: expected a labkit.sampling.Rng"),
        ({"drafter": None, "method": None}, "method: expected"),
        ({"drafter": None, "method": ["ngram"]}, "method: expected"),
        ({"drafter": None, "method": "ngram", "shape": "chain"}, "shape: expected"),
        ({"heat": 1}, "setting: expected one of max_new_tokens"),
        ({"draft_length": "x"}, "draft_length: expected a whole number"),
    ],
)
def test_a_bench_that_cannot_be_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        opened(**options)


@pytest.mark.parametrize("prompt", [None, 5, 1.5, [], ["a"], [1.5], [True], [[1]], "  ", [64]])
def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    lab = toy_lab(MODEL)
    for use in (partial(live.open, lab, method="ngram"), partial(contest.open, lab), lab.record):
        with pytest.raises(BadInput, match="prompt: expected"):
            use(prompt)


def test_an_iterator_is_as_good_as_a_list() -> None:
    lab = toy_lab(MODEL)
    bench = live.open(lab, iter(PROMPT), method="ngram", max_new_tokens=4)  # type: ignore[arg-type]
    game = contest.open(lab, iter(PROMPT), against=(), max_new_tokens=4)  # type: ignore[arg-type]
    trace = lab.record(iter(PROMPT), method="ngram", max_new_tokens=4)  # type: ignore[arg-type]
    assert bench.prompt == game.bench.prompt == trace.prompt == tuple(PROMPT)
    assert game.question == lab.text(PROMPT)
    assert bench.force(iter([5, 6])).rows == ()  # type: ignore[arg-type]
    assert bench.tokens == (5, 6)


@pytest.mark.parametrize("typed", [None, 5, ["w5"]])
def test_a_guess_is_text(typed: Any) -> None:
    game = contest.open(toy_lab(MODEL), PROMPT, against=())
    with pytest.raises(BadInput, match="typed words: expected text"):
        game.guess(typed)
    assert game.turns == ()


@pytest.mark.parametrize("against", [None, "ngram", ["magic"], [None], 3])
def test_rivals_are_methods(against: Any) -> None:
    with pytest.raises(BadInput, match=r"against|method"):
        contest.open(toy_lab(MODEL), PROMPT, against=against)


@pytest.mark.parametrize("heat", [1e-39, 1e-46, 5e-324])
def test_the_coldest_temperature_decodes(heat: float) -> None:
    bench, cold = opened(temperature=heat), opened(temperature=0.0)
    assert to_the_end(bench) == to_the_end(cold)


# --- what a drafter of one's own holds ------------------------------------------------------------


class Hooked(DraftModel):
    """Keeps a hook on its model, and a cache, until it is let go."""

    def __init__(self) -> None:
        super().__init__(DRAFT, vocab_size=64)
        self.handle = DRAFT.register_forward_hook(lambda *_: None)

    def let_go(self) -> None:
        super().let_go()
        self.handle.remove()


def test_memory_that_runs_out_lets_a_drafter_of_one_s_own_go() -> None:
    before = len(DRAFT._forward_hooks)
    own = Hooked()
    bench, cache = opened(drafter=own), weakref.ref(own._lm._cache)
    bench.run(2)
    assert own.length > 0
    assert len(DRAFT._forward_hooks) == before + 1
    out_of_memory(bench)
    assert len(DRAFT._forward_hooks) == before
    assert cache() is None
    assert to_the_end(bench) == to_the_end(opened())


# --- views ----------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[Workbench], object]] = {
    "step": lambda b: b.step(),
    "run": lambda b: b.run(3),
    "draft": lambda b: b.draft(),
    "force": lambda b: b.force(9),
    "rewind": lambda b: b.rewind(1),
    "branch": lambda b: b.branch("mine"),
    "set": lambda b: b.set(temperature=0.25),
    "forbid": lambda b: b.forbid(9),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_box_of_an_earlier_cell_follows(name: str) -> None:
    bench = opened()
    bench.run(2)
    stored = bench._repr_mimebundle_()["text/html"]
    face, times = bench._face, []
    bench.standing.watchers.join(lambda: times.append(1))
    shown = face.where.value
    CHANGES[name](bench)
    assert face.where.value != shown
    assert repr(bench)[:40].replace("'", "") in face.where.value.replace("'", "")
    assert (face.round.value, face.heat.value) == (bench.at, bench.settings.config.temperature)
    assert face.branch.value == bench.here
    assert len(times) == 1, "a change is told of once, however many rounds it has"
    assert "<svg" in stored


def test_a_picture_that_cannot_be_drawn_spoils_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = opened()
    face = bench.widget and bench._face
    monkeypatch.setattr("labkit.lab.sights.ribbon", lambda *_, **__: 1 / 0)
    bench.step()
    assert bench.at == 1
    assert "cannot be drawn (ZeroDivisionError" in face.panel.message.value


def test_a_click_draws_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, drawn = opened(), []
    face = bench.widget and bench._face
    original = face._fill
    monkeypatch.setattr(face, "_fill", lambda: (drawn.append(1), original()))
    face.panel.act(lambda: bench.run(5))
    assert drawn == [1]


def test_a_closed_box_is_drawn_no_more_and_a_new_one_takes_its_place() -> None:
    bench = opened()
    before = len(bench.standing.watchers)
    first, face = bench.widget, bench._face
    assert bench.widget is first
    assert len(bench.standing.watchers) == before + 1
    close_whole(first)
    assert len(bench.standing.watchers) == before
    shown = face.where.value
    bench.step()
    assert face.where.value == shown
    assert bench.widget is not first
    assert len(bench.standing.watchers) == before + 1


def test_a_contest_of_an_earlier_cell_follows() -> None:
    game = contest.open(toy_lab(MODEL), PROMPT, against=(), max_new_tokens=8)
    face = game.widget and game._face
    game.guess("w5")
    assert "guess" in face.said.value
    shown = face.so_far.value
    game.guess("")
    assert face.so_far.value != shown
    close_whole(face.box)
    assert len(game.bench.standing.watchers) == 0


def test_watchers_join_and_leave() -> None:
    watchers, told = Watchers(), []

    def call() -> None:
        told.append(1)
        watchers.leave(call)

    watchers.join(call)
    watchers.leave(lambda: None)
    watchers.tell()
    watchers.tell()
    assert told == [1]


# --- words ----------------------------------------------------------------------------------------


def test_before_the_first_round_nothing_is_counted() -> None:
    bench = opened()
    assert repr(bench).startswith("Branch main: nothing decoded yet. The text follows")
    bench.run(2)
    assert "after round 2 of 2" in repr(bench)
    bench.rewind(0)
    assert repr(bench).startswith("Branch main, back at the prompt: 2 rounds still ahead. The text")
    for text in (repr(opened()), repr(bench)):
        assert "round 0" not in text


# --- draws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
def test_draws_come_again_from_a_mark(ahead: bool) -> None:
    rng, law = TorchRng(4, ahead=ahead), torch.full((2, 50), 0.02)

    def some(rng: Rng) -> list[Any]:
        drawn = rng.pick_ahead(lambda: law)
        own = rng.pick(law[0]) if drawn is None else drawn[0]
        return [int(own), rng.flip(0.5), int(rng.pick(law[1]))]

    some(rng)
    back = rng.mark()
    first, second = some(rng), some(rng)
    back()
    assert [some(rng), some(rng)] == [first, second]
    assert first != second
    rng.pick_ahead(lambda: law)  # one is held for the pick that follows
    back = rng.mark()
    held = int(rng.pick(law[0]))
    back()
    assert int(rng.pick(law[0])) == held
