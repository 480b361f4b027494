"""What is done on a workbench can be drawn and read: drafts made by hand, wide forwards."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import distorted, prompt_of, tiny
from live_doubles import toy_lab

from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.nothing import Nothing
from labkit.errors import BadInput
from labkit.events import Drafted, Scored
from labkit.lab import live
from labkit.lab.contest import Contest
from labkit.lab.live import Workbench
from labkit.lab.race import Race
from labkit.lab.session import Lab
from labkit.trace import Trace
from labkit.viz.states import Story

PROMPT = prompt_of(7)
Action = Callable[[Workbench], object]


def drafter(model: Any) -> DraftModel:
    return DraftModel(distorted(model), vocab_size=64)


def opened(lab: Lab, **options: Any) -> Workbench:
    options = {"drafter": drafter(lab.model), "max_new_tokens": 16, "draft_length": 3} | options
    return live.open(lab, PROMPT, slots=True, **options)


def twice(bench: Workbench) -> None:
    bench.draft()
    bench.replace(1, "w9")
    bench.cut(2)
    bench.add("w4 w5")


BY_HAND: dict[str, Action] = {
    "replaced": lambda bench: (bench.draft(), bench.replace(1, "w9")),
    "cut": lambda bench: (bench.draft(), bench.cut(2)),
    "added to": lambda bench: (bench.draft(), bench.add("w9", after=1)),
    "begun": lambda bench: bench.add("w5 w6"),
    "twice": twice,
}
# chains only, for layers that cannot forget
CASES = [
    (family, made)
    for family in ("llama", "qwen3_5")
    for made in BY_HAND
    if (family, made) != ("qwen3_5", "added to")
]
PLACES: dict[str, Action] = {
    "at the prompt": lambda bench: None,
    "after rounds": lambda bench: bench.run(2),
    "rewound": lambda bench: (bench.run(3), bench.rewind(1)),
    "at the prompt again": lambda bench: (bench.run(2), bench.rewind(0)),
    "on another branch": lambda bench: (
        bench.run(3),
        bench.rewind(1),
        bench.branch("other"),
        bench.step(),
        bench.switch("main"),
    ),
    "after a forced token": lambda bench: bench.force("w8"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("family", "made"), CASES)
def test_a_draft_made_by_hand_is_told_as_the_drafter_s_own(
    family: str, made: str, place: str
) -> None:
    """Its round is the next one, and every committed token but the pending one has a slot."""
    bench = opened(toy_lab(tiny(family)))
    PLACES[place](bench)
    BY_HAND[made](bench)
    assert bench.pending is not None
    drafted = bench.pending.drafted
    held = len(PROMPT) + len(bench.tokens) - 1
    assert (drafted.round, drafted.slots_before) == (bench.at + 1, held)
    assert all(picture.svg for picture in bench.pictures())
    before = bench.at
    bench.verify()
    assert len(Story.of(bench.trace).rounds) == bench.at == before + 1


def wide(width: int = 4) -> Lab:
    made = toy_lab(tiny())
    return Lab(made.loaded, width=width)


@pytest.mark.parametrize("kind", ["nothing", "draft model"])
def test_forwards_of_fixed_width_are_recorded_drawn_and_read_again(
    kind: str, tmp_path: Path
) -> None:
    """Rows that only fill a forward up take slots while it lasts."""
    lab = wide()
    own: Drafter = Nothing() if kind == "nothing" else drafter(lab.model)
    made = lab.record(PROMPT, drafter=own, max_new_tokens=12, draft_length=2, detail="full")
    scored = [event for event in made.events if isinstance(event, Scored)]
    assert {event.slots_after - event.slots_before for event in scored} == {4}
    read = Trace.load(made.save(tmp_path / "run.json"))
    assert read.tokens == made.tokens
    assert len(Story.of(read).rounds) == len(made.rounds)
    bench = opened(lab)
    bench.run(2)
    bench.draft()
    assert bench.pictures()


def test_fewer_slots_than_nodes_are_refused() -> None:
    made = wide().record(PROMPT, drafter=Nothing(), max_new_tokens=3, detail="full")
    at = next(i for i, event in enumerate(made.events) if isinstance(event, Scored))
    wrong = list(made.events)
    wrong[at] = replace(wrong[at], slots_after=wrong[at].slots_before)
    with pytest.raises(BadInput, match="slots_after"):
        Trace(tuple(wrong), made.header, made.vocabulary).checked()


def test_a_wrong_round_would_be_noticed() -> None:
    bench = opened(toy_lab(tiny()))
    bench.add("w5")
    assert bench.pending is not None
    stale: Drafted = replace(bench.pending.drafted, round=0)
    bench.standing.pending = replace(bench.pending, drafted=stale)
    with pytest.raises(BadInput, match="round"):
        bench.pictures()


# An action is over when those who watch have been told.


def test_an_interrupt_while_views_are_drawn_takes_the_action_back() -> None:
    bench, seen = opened(toy_lab(tiny())), []

    def watcher() -> None:
        seen.append(bench.at)
        if len(seen) == 2:
            raise KeyboardInterrupt

    bench.standing.watchers.join(watcher)
    bench.step()
    with pytest.raises(KeyboardInterrupt):
        bench.step()
    assert bench.at == 1
    assert seen == [1, 2, 1]
    whole = opened(toy_lab(tiny()))
    whole.run(2)
    bench.step()
    assert bench.tokens == whole.tokens


def test_a_watcher_that_fails_spoils_nothing() -> None:
    bench, seen = opened(toy_lab(tiny())), []

    def failing() -> None:
        raise ValueError("mine")

    bench.standing.watchers.join(failing)
    bench.standing.watchers.join(lambda: seen.append(bench.at))
    with pytest.warns(UserWarning, match="a watcher failed: ValueError: mine"):
        bench.step()
    assert (bench.at, seen) == (1, [1])
    with pytest.warns(UserWarning, match="mine"), pytest.raises(BadInput, match="draft"):
        bench.verify()


def test_a_watcher_may_act_and_is_not_told_of_it() -> None:
    bench, seen = opened(toy_lab(tiny())), []

    def acting() -> None:
        seen.append(bench.at)
        bench.drop()

    bench.standing.watchers.join(acting)
    bench.draft()
    assert seen == [0]
    assert bench.pending is None


def test_a_turn_is_taken_back_with_its_round() -> None:
    game = Contest(toy_lab(tiny()), PROMPT, against=("ngram",), max_new_tokens=14)
    game.guess("w3 w4")
    calls = []

    def watcher() -> None:
        calls.append(len(game.turns))
        if len(calls) == 1:
            raise KeyboardInterrupt

    game.bench.standing.watchers.join(watcher)
    with pytest.raises(KeyboardInterrupt):
        game.guess("w1 w2")
    assert (len(game.turns), game.bench.at) == (1, 1)
    assert calls[0] == 2


def test_what_is_said_of_a_turn_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Contest(toy_lab(tiny()), PROMPT, against=("ngram",), max_new_tokens=14)

    def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Contest, "_hint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        game.guess("w3 w4")
    assert (len(game.turns), game.bench.at) == (0, 0)


def test_lanes_do_not_share_a_drafter() -> None:
    one = drafter(tiny())
    with pytest.raises(BadInput, match="of its own for each lane"):
        Race(toy_lab(tiny()), PROMPT, ("a", "b"), drafters={"a": one, "b": one})
