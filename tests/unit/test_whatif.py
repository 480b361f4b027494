"""The speed-up model, its question, its picture; values by hand or from the published formula."""

import builtins
import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import viz_traces
from fakes_machine import MACHINE

from labkit import viz
from labkit.cost import along, expected_by_depth, expected_tokens
from labkit.errors import BadInput
from labkit.machine import MOST, Drafting, Machine, Ran, machine_of
from labkit.metrics import tokens_by_nodes
from labkit.viz.desk import Desk, StillWhatIf
from labkit.viz.predict import CHOICES, Change, Prediction
from labkit.viz.whatif import BOARDS, picture, sentence, top_of
from labkit.whatif import BATCHES, FREE, Answer, Setting


def at(machine: Machine = MACHINE, **setting: Any) -> Answer:
    return Answer(Setting(**setting), machine)


# A public question, why speculation is slower than plain decoding or than the paper, answered by
# the formula of Leviathan et al. 2023, theorem 3.8.
@pytest.mark.parametrize(
    ("alpha", "n", "c", "speed", "word"),
    [(0.8, 4, 0.1, "2.40", "faster"), (0.3, 4, 0.3, "0.65", "slower")],
)
def test_the_published_calculator(alpha: float, n: int, c: float, speed: str, word: str) -> None:
    answer = at(Machine(), alpha=alpha, draft_length=n, cost_ratio=c, verify=FREE)
    assert f"{answer.speed(n):.2f}" == speed
    assert f"{speed}× ({word})" in sentence(answer)


def test_verifying_costs_what_the_batch_s_forward_costs() -> None:
    """By hand: 8 sequences, 3 drafted: one forward of 32 tokens (0.08 s) over one of 8 (0.05 s)."""
    answer = at(batch=8, draft_length=3, alpha=0.5, cost_ratio=0.2)
    assert answer.check(3) == pytest.approx(0.08 / 0.05)
    assert answer.speed(3) == pytest.approx((1 + 0.5 + 0.25 + 0.125) / (0.6 + 1.6))


def test_where_speculation_stops_paying() -> None:
    """Level up to 8 tokens and as steep as the work beyond 32: alone it pays, in a crowd not."""
    alone = at(alpha=0.6)
    assert max(alone.speeds) > 1
    assert at(alpha=0.6, batch=64).best == 0
    last = alone.pays_to
    assert last in BATCHES[:-1]
    assert max(at(alpha=0.6, batch=last).speeds) > 1
    assert max(at(alpha=0.6, batch=2 * last).speeds) <= 1
    assert f"pays up to batch {last}" in sentence(alone)
    assert "pays at no batch" in sentence(at(alpha=0.05))
    assert "No number of drafted tokens pays here" in sentence(at(alpha=0.05))
    level = Machine(forward=((1, 0.1), (2, 0.1)))
    assert f"pays at every batch up to {BATCHES[-1]}" in sentence(at(level))


def test_a_forward_that_was_not_measured_is_told() -> None:
    assert "No forward of 320 tokens was measured" in sentence(at(batch=64, draft_length=4))
    assert "No forward" not in sentence(at(batch=16, draft_length=7))  # 128, the widest
    assert "No forward" not in sentence(at(batch=64, draft_length=4, verify=FREE))


def test_between_and_beyond_measured_points() -> None:
    points = ((1, 1.0), (3, 2.0), (4, 6.0))
    assert [along(points, x) for x in (0, 1, 2, 3, 3.5, 4, 6)] == [1, 1, 1.5, 2, 4, 6, 14]
    assert along(((1, 5.0),), 9) == 5


def test_acceptance_by_depth_is_the_formula_when_depths_are_alike() -> None:
    for n in range(9):
        assert expected_by_depth([0.7], draft_length=n) == pytest.approx(
            expected_tokens(alpha=0.7, draft_length=n)
        )
    assert expected_by_depth([0.5, 0.2], draft_length=3) == pytest.approx(1 + 0.5 + 0.1 + 0.02)


def test_smaller_trees_are_read_off_larger_ones() -> None:
    """Against a count by hand: the surest n nodes of each round, and the path as far as it stays
    among them."""
    trace = viz_traces.dynamic()
    found = tokens_by_nodes(trace, most=12)
    for count, (tokens, depth) in enumerate(found):
        by_hand, deep, rounds = 0, 0, 0
        for r in trace.rounds:
            if not r.verified:
                continue
            rounds += 1
            sure = r.drafted.confidence
            kept = sorted(range(1, len(sure)), key=lambda i, sure=sure: (-sure[i], i))[:count]
            tokens_here = 1
            for following in r.verified.path[1:]:
                if following not in kept:
                    break
                tokens_here += 1
            by_hand += tokens_here
            walks = []
            for leaf in kept:
                steps = 0
                while leaf:
                    leaf, steps = r.drafted.parents[leaf], steps + 1
                walks.append(steps)
            deep += max(walks, default=0)
        assert tokens == pytest.approx(by_hand / rounds)
        assert depth == pytest.approx(deep / rounds)
    assert found[0] == (1.0, 0.0)
    assert tokens_by_nodes(viz_traces.plain(), most=3) == ()


def test_a_machine_is_read_from_recorded_runs() -> None:
    plain, run = viz_traces.plain(), viz_traces.chain()
    machine = machine_of({"draft": [run]}, plain=[plain], forward={2: 0.3, 1: 0.2}, about="toy")
    seconds = {
        name: sum(e.seconds for e in t.events if e.kind in _DECODING) / len(t.tokens)
        for name, t in (("plain", plain), ("run", run))
    }
    drafted = [e for e in run.events if e.kind == "drafted"]
    forwards = sum(e.forwards for e in drafted)
    way, point = machine.drafting[0], machine.ran[0]
    assert point.speedup == pytest.approx(seconds["plain"] / seconds["run"])
    assert way.cost_ratio == pytest.approx(
        sum(e.seconds for e in drafted) / (forwards or 12) / seconds["plain"]
    )
    assert way.tokens[0] == 1
    assert list(way.steps) == list(range(MOST + 1))
    assert machine.forward == ((1, 0.2), (2, 0.3))
    tree = machine_of({"t": [viz_traces.dynamic()]}, plain=[plain]).drafting[0]
    assert tree.tree
    assert list(tree.tokens) == sorted(tree.tokens)


_DECODING = ("drafted", "scored", "verified", "committed")


def test_a_machine_is_kept_in_a_file(tmp_path: Path) -> None:
    path = MACHINE.save(tmp_path / "machine.json")
    assert Machine.load(path) == MACHINE
    for bad in ("[]", "{}", '{"machine": 2}', '{"machine": 1, "about": "x", "forward": [[2, 1]],'
                '"drafting": [], "ran": []}'):  # fmt: skip
        path.write_text(bad)
        with pytest.raises(BadInput, match="measure the machine again"):
            Machine.load(path)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"draft_length": MOST + 1}, "draft_length"),
        ({"cost_ratio": -1}, "cost_ratio"),
        ({"batch": 3}, "batch"),
        ({"verify": "maybe"}, "verify"),
        ({"drafting": "eagle9"}, "drafting"),
    ],
)
def test_impossible_settings_are_refused_by_name(setting: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        at(**setting)
    with pytest.raises(BadInput, match=named):
        viz.WhatIf(MACHINE, **setting)
    with pytest.raises(BadInput, match=named):
        setattr(viz.WhatIf(MACHINE), *next(iter(setting.items())))


def test_impossible_machines_are_refused() -> None:
    with pytest.raises(BadInput, match="measure the machine"):
        at(Machine())
    for forward in (((2, 0.1),), ((1, 0.1), (1, 0.2)), ((1, 0.0),)):
        with pytest.raises(BadInput, match="forward"):
            Machine(forward=forward)
    with pytest.raises(BadInput, match="17 tokens and steps"):
        Drafting("x", (1.0,), (0.0,), 0.1)
    with pytest.raises(BadInput, match="slider"):
        Change("temperature", 0, 1)


SETTINGS = [
    {}, {"draft_length": 0}, {"alpha": 0.9, "batch": 64}, {"drafting": "eagle3", "batch": 4},
    {"verify": FREE, "alpha": 1.0, "cost_ratio": 0.0, "draft_length": MOST},
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("board", range(len(BOARDS)))
def test_every_picture_is_well_formed_and_the_same_twice(
    setting: dict[str, Any], board: int
) -> None:
    answer = at(**setting)
    drawn = picture(answer, board=board)
    ElementTree.fromstring(drawn.svg)
    assert drawn.svg == picture(at(**setting), board=board).svg
    assert drawn.sentence == sentence(answer)
    assert "nan" not in drawn.svg
    assert max(answer.speeds) <= top_of(answer)


def test_measured_runs_stand_where_they_were_measured_and_only_alone() -> None:
    alone, crowd = (picture(at(batch=batch)).svg for batch in (1, 8))
    for run in MACHINE.ran:
        told = f"<title>measured: {run.name}: {run.drafted} drafted"
        assert told in alone
        assert told not in crowd


def test_what_is_right_follows_from_the_machine() -> None:
    """2 → 8 drafted: with costly drafts it falls, with free ones it rises, with none it stays."""
    change = Change("draft_length", 2, 8)
    cases = {
        "falls": at(alpha=0.6, cost_ratio=0.3),
        "rises": at(Machine(), alpha=0.95, cost_ratio=0.0, verify=FREE),
        "same": at(Machine(), alpha=0.0, cost_ratio=0.0, verify=FREE),
    }
    for right, answer in cases.items():
        asked = Prediction(change, answer)
        assert asked.right == right
        for key in CHOICES:
            assert asked.reply(key).startswith("✓" if key == right else "✗")
        low, high = asked.ends
        assert f"from {low.speed(2):.2f}× to {high.speed(8):.2f}×" in asked.reply(right)


def test_the_answer_stays_folded_until_it_is_given() -> None:
    asked = viz.WhatIf(MACHINE, ask=Change("batch", 1, 32))
    words, page = repr(asked), bundle(asked)["text/html"]
    right = asked._desk.ask.right
    folded = page[page.index("<details>") :]
    assert "Predict first" in words
    assert "✓" not in words
    assert "✓" not in page.replace(folded, "")
    assert "<svg" in folded
    asked.answered = right
    assert "✓ Right" in repr(asked)
    assert "<details>" not in bundle(asked)["text/html"]
    with pytest.raises(Exception, match="answered"):
        asked.answered = "perhaps"


def bundle(shown: Any) -> dict[str, Any]:
    made = shown._repr_mimebundle_()
    data: dict[str, Any] = made[0] if isinstance(made, tuple) else made
    return data


def test_a_saved_cell_shows_the_picture_without_a_kernel() -> None:
    shown = viz.WhatIf(MACHINE, batch=8)
    data = bundle(shown)
    assert data["text/plain"] == sentence(at(batch=8))
    assert "<svg" in data["text/html"]
    assert "<script" not in data["text/html"]
    assert "Run this cell" in data["text/html"]
    shown.batch = 16
    assert bundle(shown)["text/plain"] == sentence(at(batch=16))
    assert shown.picture == picture(at(batch=16))


def test_without_anywidget_a_picture_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "anywidget":
            raise ModuleNotFoundError("No module named 'anywidget'", name="anywidget")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "labkit.viz.sliders", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    still = viz.WhatIf(MACHINE, batch=4)
    assert isinstance(still, StillWhatIf)
    assert "pip install anywidget" in bundle(still)["text/html"]
    still.setting = Setting(batch=8)
    assert repr(still) == sentence(at(batch=8))


def test_the_page_works_alone(tmp_path: Path) -> None:
    page = viz.WhatIf(MACHINE, ask=Change("batch", 1, 8)).save_page(tmp_path / "w.html").read_text()
    assert not re.search(r"""(src|href)=|https?://(?!www\.w3\.org)""", page)
    assert page.count("</script>") == 1
    assert "<noscript>" in page


def test_what_the_browser_is_sent_is_plain_and_small() -> None:
    facts = Desk.of(MACHINE, None, {}).facts()
    assert len(facts.encode()) < 250_000
    assert json.loads(facts)["forward"] == [list(point) for point in MACHINE.forward]
    assert json.loads(Desk.of(None, None, {}).facts())["forward"] == []


def test_a_machine_s_numbers_are_its_own() -> None:
    with pytest.raises(BadInput, match="eagle3, draft"):
        MACHINE.way("mtp")
    assert Ran("x", 3, 1.0) not in MACHINE.ran
