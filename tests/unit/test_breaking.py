"""Break it: each fault breaks what its record says, leaves the rest, and the named check shows it.

What is right comes from transformers' own forward without a cache, and from laws enumerated by
hand-written rules; that the checks can be silent is shown by the healthy run beside each fault.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from helpers import branching, distorted, greedy_reference, prompt_of, tiny
from live_doubles import toy_lab
from test_broken import Words

from labkit import toy
from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.errors import BadInput
from labkit.events import Finished
from labkit.heads.eagle import head_config, random_head
from labkit.lab import breaking, broken, faults
from labkit.lab.breaking import BREAKS, CHECKS
from labkit.lab.breaking_panel import BreakIt
from labkit.lab.catching import counting
from labkit.lab.load import LoadedModel
from labkit.lab.session import Lab
from labkit.metrics import acceptance
from labkit.streaming import TextStream
from labkit.target import Target
from labkit.trace import Trace
from labkit.tree import DraftTree
from labkit.viz import Stepper
from labkit.viz.turnover import close_whole

NEW = 16
PROMPT = prompt_of(17)
CPU = torch.device("cpu")


def model() -> Any:
    return tiny(seed=3)


@lru_cache
def deep_model() -> Any:
    """EAGLE-3 reads three depths."""
    return toy.tiny(layers=8)


def reference(count: int = NEW) -> tuple[int, ...]:
    return greedy_reference(model(), PROMPT, count)


def make_lab(which: Any) -> Lab:
    return Lab(LoadedModel(which, Words(), "tiny", torch.float32, CPU, "plain"))


@pytest.fixture(scope="module")
def lab() -> Lab:
    return make_lab(model())


def drafter(key: str) -> Drafter:
    if key == "no_tree_mask":
        return branching(reference(NEW + 8), start=len(PROMPT))
    return DraftModel(distorted(model()), vocab_size=64)


def shown(lab: Lab, key: str) -> breaking.Breakage:
    if BREAKS[key].head:
        deep = make_lab(deep_model())
        head = random_head(head_config(deep.model, 3), deep.model, seed=1)
        return breaking.show(deep, key, PROMPT, head=head, max_new_tokens=NEW)
    return breaking.show(lab, key, PROMPT, drafter=drafter(key), max_new_tokens=NEW)


@pytest.fixture(scope="module")
def results(lab: Lab) -> dict[str, breaking.Breakage]:
    return {key: shown(lab, key) for key in BREAKS}


@pytest.mark.parametrize("key", BREAKS)
def test_the_named_checks_catch_it_and_no_others(
    key: str, results: dict[str, breaking.Breakage]
) -> None:
    assert set(results[key].caught_by) == set(BREAKS[key].caught_by)


@pytest.mark.parametrize("key", BREAKS)
def test_no_check_catches_the_healthy_run(key: str, results: dict[str, breaking.Breakage]) -> None:
    assert results[key].healthy.caught == ()


@pytest.mark.parametrize("key", [key for key, fault in BREAKS.items() if not fault.drawn])
def test_the_text_breaks_where_the_record_says_so(
    key: str, results: dict[str, breaking.Breakage]
) -> None:
    result = results[key]
    right = greedy_reference(deep_model() if BREAKS[key].head else model(), PROMPT, NEW)
    if key != "late_stop":
        assert result.healthy.trace.tokens == right
        assert (result.broken.trace.tokens == right) == ("text" not in BREAKS[key].breaks)
        return
    # the same tokens, and more of them: all up to and past the end
    ended = result.healthy.trace.tokens
    assert ended == right[: len(ended)]
    assert ended[-1] not in ended[:-1]
    assert result.broken.trace.tokens == right[: len(result.broken.trace.tokens)]
    assert len(result.broken.trace.tokens) > len(ended)


@pytest.mark.parametrize("key", BREAKS)
def test_the_law_breaks_where_the_record_says_so(
    key: str, results: dict[str, breaking.Breakage]
) -> None:
    result = results[key]
    assert result.healthy.evidence.law_gap < 1e-4
    assert (result.broken.evidence.law_gap > 1e-2) == ("law" in BREAKS[key].breaks)


def test_acceptance_stays_where_the_record_says_nothing(
    results: dict[str, breaking.Breakage],
) -> None:
    """A reset costs work alone; resampling from p leaves every accept test as it is."""
    reset = results["reset"]
    assert reset.broken.tokens_per_round == reset.healthy.tokens_per_round
    for trial in trials(results["from_p"].broken.trace):
        assert trial.accepted == (trial.u < min(1.0, trial.p / trial.q))
    swapped = trials(results["swapped"].broken.trace)
    assert any(t.accepted != (t.u < min(1.0, t.p / t.q)) for t in swapped)


def trials(trace: Trace) -> list[Any]:
    return [t for r in trace.rounds if r.verified for t in r.verified.trials]


@pytest.mark.parametrize("key", ["no_rollback", "no_tree_mask"])
def test_a_wrong_cache_shows_in_acceptance(key: str, results: dict[str, breaking.Breakage]) -> None:
    """Not always as a loss: a text that has gone astray may be easy to guess."""
    assert results[key].broken.tokens_per_round != results[key].healthy.tokens_per_round


def test_work_is_counted_from_outside(results: dict[str, breaking.Breakage]) -> None:
    """The prompt but its last token, each round's nodes, and after each round the text so far."""
    broken_trace = results["reset"].broken.trace
    nodes = sum(len(r.drafted.tokens) for r in broken_trace.rounds)
    again = sum(r.committed.slots_after for r in broken_trace.rounds if r.committed)
    assert results["reset"].broken.evidence.read == len(PROMPT) - 1 + nodes + again
    assert results["reset"].healthy.evidence.read == len(PROMPT) - 1 + nodes


def test_states_are_those_of_transformers(results: dict[str, breaking.Breakage]) -> None:
    result = results["wrong_layer"]
    assert result.healthy.evidence.states == 0.0
    assert result.broken.evidence.states is not None
    assert result.broken.evidence.states > 0.01
    assert results["reset"].healthy.evidence.states is None


def test_a_small_loss_is_counted_on_more_text_than_one_run() -> None:
    """Both heads on the same texts: the counts are those of two runs of each, written for real."""
    deep = make_lab(deep_model())
    head = random_head(head_config(deep.model, 3), deep.model, seed=1)
    prompts = [PROMPT, prompt_of(11)]
    texts = [deep.record(ids, method="ar", max_new_tokens=NEW) for ids in prompts]
    result = breaking.show(
        deep, "wrong_layer", PROMPT, head=head, texts=texts, max_new_tokens=NEW, draft_length=3
    )
    more = result.more
    assert more is not None
    assert more.tokens == sum(len(text.tokens) for text in texts)
    for key, counts in (("healthy", more.healthy), ("layers_early", more.broken)):
        who = faults.drafter(deep, key, head=head)
        real = [
            deep.record(ids, drafter=who, draft_length=3, max_new_tokens=NEW) for ids in prompts
        ]
        assert counts == acceptance(*real)
    assert more.told in result.sentence
    assert any(row[0] == f"{more.tokens} tokens of recorded text" for row in result.table.rows)


def test_where_no_text_is_known_the_run_stands_alone(
    results: dict[str, breaking.Breakage],
) -> None:
    """The gallery has no text of a tiny model, and other faults ask for none."""
    assert [key for key, result in results.items() if result.more] == []


def test_a_chain_is_never_hurt_by_a_missing_tree_mask(lab: Lab) -> None:
    result = breaking.show(
        lab, "no_tree_mask", PROMPT, drafter=drafter("reset"), max_new_tokens=NEW
    )
    assert result.caught_by == ()
    assert result.parted is None
    assert repr(result).endswith("No check noticed on this prompt.")


def test_slots_look_perfect_while_positions_are_stale(
    results: dict[str, breaking.Breakage],
) -> None:
    found = {f.check: f.caught for f in results["stale_positions"].broken.findings}
    assert found["slots"] is False
    assert found["nodes"] is True


def test_stale_positions_by_hand() -> None:
    """Two nodes rejected: the pending token of the next round stands two further on."""
    target = broken.fresh(broken.StalePositions, Target(model()))
    target.prefill((1, 2, 3))
    with target.speculation():
        target.score(DraftTree.chain((3, 4, 5)))
        target.commit((0,))
    _, positions, _ = target._padded(DraftTree.chain((6, 7)))
    assert positions == [3 + 2, 4 + 2]
    assert Target(model())._padded(DraftTree.chain((6, 7)))[1] == [0, 1]
    target.prefill((1, 2))
    assert target._padded(DraftTree.chain((2,)))[1] == [1]


def test_a_missing_tree_mask_by_hand() -> None:
    tree = DraftTree((1, 2, 3, 4), (-1, 0, 0, 1))
    rows = broken.fresh(broken.NoTreeMask, Target(model()))._padded(tree)[2].int().tolist()
    assert rows == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    right = Target(model())._padded(tree)[2].int().tolist()
    assert right == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]


def late(lab: Lab, *, stop: str = "", eos: tuple[int, ...] = ()) -> Trace:
    """A self-draft of four tokens per round, stopped only at the end of a round."""
    config = DecodeConfig(max_new_tokens=NEW, draft_length=4)
    itself = DraftModel(lab.model, vocab_size=64)
    events = speculate(Target(lab.model), itself, PROMPT, config=config, text=TextStream(lab.text))
    return Trace.record(broken.stops_late(events, eos=eos, stop_strings=[stop] if stop else []))


def test_a_late_stop_test_by_hand(lab: Lab) -> None:
    """Rounds of five tokens: a stop string in the third leaves two too many; an end token there
    is passed over altogether, and one in the fifth place ends the text."""
    text = reference()
    assert len(set(text[:5])) == 5
    stopped = late(lab, stop=f" w{text[2]}")
    assert stopped.tokens == text[:5]
    assert stopped.finished == replace(
        stopped.finished or Finished(round=0, reason="", new_tokens=0),
        reason="stop_string", new_tokens=5, round=1,
    )  # fmt: skip
    passed_over = next(t for i, t in enumerate(text) if i % 5 == 2 and t not in text[4::5])
    assert late(lab, eos=(passed_over,)).tokens == text
    assert late(lab, eos=(text[4],)).tokens == text[:5]


def test_a_run_that_is_stopped_late_is_closed(lab: Lab) -> None:
    target = Target(lab.model)
    itself = DraftModel(lab.model, vocab_size=64)
    config = DecodeConfig(max_new_tokens=NEW, draft_length=4)
    events = speculate(target, itself, PROMPT, config=config)
    run = broken.stops_late(events, eos=(reference()[4],))
    list(run)
    assert next(events, None) is None
    assert target.slots_used == target.length


def test_a_broken_run_leaves_the_lab_as_it_was(lab: Lab) -> None:
    """A suspended run of the lab goes on as if nothing had been, and so does the next one."""
    suspended = lab.events(PROMPT, method="ngram", max_new_tokens=NEW)
    head = [next(suspended) for _ in range(6)]
    slots, hooks = lab.target.committed_slots, len(lab.model._forward_pre_hooks)
    for key in ("no_rollback", "stale_positions", "late_stop"):
        shown(lab, key)
    assert lab.target.committed_slots == slots
    assert len(lab.model._forward_pre_hooks) == hooks
    assert Trace.record([*head, *suspended]).tokens == reference()
    assert lab.record(PROMPT, method="ngram", max_new_tokens=NEW).tokens == reference()


def test_counting_ends_with_its_scope(lab: Lab) -> None:
    target = Target(lab.model)
    with contextlib.suppress(KeyboardInterrupt), counting(lab.model) as widths:
        target.prefill((1, 2, 3))
        raise KeyboardInterrupt
    target.prefill((1, 2, 3))
    assert widths == [2]


def test_every_record_is_complete() -> None:
    assert len(BREAKS) == 8
    for key, fault in BREAKS.items():
        assert fault.key == key
        assert fault.breaks
        assert set(fault.caught_by) <= set(CHECKS)
        assert "#" in fault.source
        assert fault.title in repr(fault)
    table = breaking.catalogue()
    assert [row[0] for row in table.rows] == [f"`{key}`" for key in BREAKS]
    assert all(check.asks.endswith((".", "?")) for check in CHECKS.values())


def test_what_is_told_of_both_runs(results: dict[str, breaking.Breakage]) -> None:
    result = results["no_rollback"]
    bundle = result._repr_mimebundle_()
    assert bundle["text/plain"] == repr(result)
    assert "seconds" not in repr(result)  # the same on every machine
    assert "✗" in bundle["text/html"]
    assert bundle["text/html"].count("the first difference") == 1
    assert "the first difference" not in results["reset"].html
    assert "the first difference" not in results["from_p"].html  # drawn: proves nothing
    end = "goes on for"
    assert end in repr(results["late_stop"])
    assert "".join(result.healthy.pieces) == Words().decode(reference())
    assert Stepper(result.broken.trace).steps > 10


def test_unknown_faults_are_refused(lab: Lab) -> None:
    with pytest.raises(BadInput, match="no_rollback"):
        breaking.show(lab, "gremlins", PROMPT)
    with pytest.raises(BadInput, match="max_new_tokens"):
        breaking.show(lab, "reset", PROMPT, drafter=drafter("reset"), max_new_tokens=0)


# --- the switches


@pytest.fixture
def panel(results: dict[str, breaking.Breakage]) -> Iterator[BreakIt]:
    def run(_lab: Any, key: str, prompt: str, **_: Any) -> breaking.Breakage:
        if not prompt.strip():
            raise BadInput("prompt", expected="some text", got="''", next_step="type a prompt")
        asked.append((key, prompt))
        return results[key]

    asked: list[tuple[str, str]] = []
    made = BreakIt(None, "one two", run=run)  # type: ignore[arg-type]
    made.asked, made.run_fault = asked, run  # type: ignore[attr-defined]
    yield made
    made.widget.close()


def parts(panel: BreakIt) -> dict[str, Any]:
    found: dict[str, Any] = {}
    todo = [panel.widget]
    while todo:
        one = todo.pop()
        found[getattr(one, "description", "") or type(one).__name__] = one
        todo += getattr(one, "children", ())
    return found


def test_one_switch_at_a_time_and_nothing_runs_by_itself(panel: BreakIt) -> None:
    switches = parts(panel)["RadioButtons"]
    assert [value for _, value in switches.options] == list(BREAKS)
    for key in BREAKS:
        switches.value = key
    assert panel.asked == []  # type: ignore[attr-defined]
    assert panel.result is None


def test_a_press_runs_what_is_switched_on(panel: BreakIt) -> None:
    controls = parts(panel)
    controls["RadioButtons"].value = "reset"
    controls["Prompt"].value = "three four five"
    controls["Run it broken, and healthy"].click()
    assert panel.asked == [("reset", "three four five")]  # type: ignore[attr-defined]
    assert panel.result is not None
    assert panel.result.fault.key == "reset"
    told = [c.value for c in panel.widget.children if type(c).__name__ == "HTML"]
    assert any("positions computed" in value for value in told)
    assert not any(c.disabled for c in controls.values() if hasattr(c, "disabled"))


def test_errors_are_told_and_the_controls_come_back(panel: BreakIt) -> None:
    controls = parts(panel)
    controls["Prompt"].value = " "
    controls["Run it broken, and healthy"].click()
    assert panel.result is None
    told = [c.value for c in panel.widget.children if type(c).__name__ == "HTML"]
    assert any("expected some text" in value for value in told)
    assert not controls["Run it broken, and healthy"].disabled


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("by nothing"), "did not work (ZeroDivisionError: by nothing)"),
        (
            torch.OutOfMemoryError("no room"),
            "no room). Nothing of what was under way was kept. Choose another",
        ),
        (KeyboardInterrupt(), "Interrupted."),
    ],
)
def test_errors_that_nobody_foresaw_are_told_too(error: BaseException, words: str) -> None:
    def run(*_: Any, **__: Any) -> breaking.Breakage:
        raise error

    panel = BreakIt(None, "one two", run=run)  # type: ignore[arg-type]
    controls = parts(panel)
    controls["Run it broken, and healthy"].click()
    told = [c.value for c in panel.widget.children if type(c).__name__ == "HTML"]
    assert any(words in value for value in told)
    assert not any("Running the prompt" in value for value in told)
    assert not controls["Run it broken, and healthy"].disabled
    panel.widget.close()


def test_either_run_can_be_stepped_through_one_at_a_time(panel: BreakIt) -> None:
    panel.widget  # noqa: B018
    result = panel.run("no_rollback")
    for name, ran in (("healthy", result.healthy), ("broken", result.broken)):
        parts(panel)[f"Step through the {name} run"].click()
        steppers = [c for c in panel.widget.children if hasattr(c, "trace")]
        assert [s.trace for s in steppers] == [ran.trace]


def test_a_few_switches_where_a_lesson_is_about_them(panel: BreakIt) -> None:
    """What was run before the panel is shown is on it, with its switch."""
    few = BreakIt(None, only=("swapped", "from_p"), run=panel.run_fault)  # type: ignore
    few.run("from_p")
    controls = parts(few)
    assert [value for _, value in controls["RadioButtons"].options] == ["swapped", "from_p"]
    assert controls["RadioButtons"].value == "from_p"
    assert any("Resample from p" in c.value for c in few.widget.children if hasattr(c, "value"))
    assert not controls["Step through the broken run"].disabled
    few.widget.close()
    listed = BreakIt(None, only=("swapped", "from_p"))  # type: ignore[arg-type]
    assert repr(listed) == "Break it. 2 faults, each with the checks that show it."
    assert "Stale positions" not in listed.html
    with pytest.raises(BadInput, match="gremlins"):
        BreakIt(None, only=("gremlins",))  # type: ignore[arg-type]


def test_the_page_without_a_kernel(panel: BreakIt) -> None:
    bundle = panel._repr_mimebundle_()
    assert "Run this cell" in bundle["text/html"]
    assert repr(panel) == "Break it. 8 faults, each with the checks that show it."
    panel.run("reset")
    assert "Reset instead of rollback" in repr(panel)
    assert "positions computed" in panel.html


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"heat": 1}, "option: expected one of max_new_tokens, .* got 'heat'"),
        ({"max_new_tokens": "x"}, "max_new_tokens: expected a whole number"),
        ({"draft_length": 1.5}, "draft_length: expected a whole number"),
        ({"drafter": "ngram"}, "drafter: expected a labkit.drafters.base.Drafter"),
        ({"head": "eagle3"}, "head: expected an EagleHead"),
        ({"texts": 3}, "texts: expected a list"),
        ({"texts": ["one two"]}, "rehearsal: expected a recorded run"),
        ({"only": "swapped"}, "keys: expected a list of keys"),
        ({"prompt": None}, "prompt: expected text"),
        ({"prompt": [1, 2]}, "prompt: expected text"),
    ],
)
def test_what_cannot_be_run_is_told_when_the_switches_are_made(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        BreakIt(None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"key": ["swapped"]}, "fault: expected one of"),
        ({"key": None}, "fault: expected one of"),
        ({"prompt": None}, "prompt: expected"),
        ({"prompt": [1.5]}, "prompt: expected"),
        ({"draft_length": "x"}, "draft_length: expected a whole number"),
        ({"seed": None}, "seed: expected a whole number"),
        ({"drafter": "ngram"}, "drafter: expected"),
        ({"head": 3}, "head: expected"),
        ({"texts": ["x"]}, "rehearsal: expected a recorded run"),
    ],
)
def test_what_cannot_be_run_is_told_before_any_forward(options: dict[str, Any], told: str) -> None:
    model = tiny()
    lab = toy_lab(model)
    calls: list[int] = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    given: dict[str, Any] = {"key": "no_rollback", "prompt": [1, 2, 3], **options}
    with pytest.raises(BadInput, match=told):
        breaking.show(lab, given.pop("key"), given.pop("prompt"), **given)
    handle.remove()
    assert calls == []


def test_switches_that_were_closed_are_made_anew(panel: BreakIt) -> None:
    first = panel.widget
    panel.run("swapped")
    close_whole(first)
    assert panel.widget is not first
    assert "Caught by" in panel._said.value
    assert panel._repr_mimebundle_()["application/vnd.jupyter.widget-view+json"]["model_id"]
