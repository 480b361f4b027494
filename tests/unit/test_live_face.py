"""The workbench's buttons, without a browser: each does what it says, once, or complains."""

import gc
import re
import weakref
from typing import Any

import pytest
import torch
from helpers import distorted, prompt_of, tiny
from live_doubles import toy_lab

from labkit.drafters.draft_model import DraftModel
from labkit.lab import live
from labkit.lab.live import Workbench
from labkit.lab.live_face import Face

PROMPT = prompt_of(7)
MODEL = tiny()


def opened(**options: Any) -> Workbench:
    drafter = DraftModel(distorted(MODEL), vocab_size=64)
    return live.open(toy_lab(MODEL), PROMPT, drafter=drafter, max_new_tokens=24, **options)


def face_of(bench: Workbench) -> Face:
    assert bench.widget is bench._face.box
    return bench._face


def all_of(widget: Any) -> list[Any]:
    return [widget, *(w for child in getattr(widget, "children", ()) for w in all_of(child))]


def press(bench: Workbench, words: str) -> str:
    """Click the button; what the message line says afterwards."""
    buttons = [w for w in all_of(bench.widget) if getattr(w, "description", "") == words]
    (button,) = [b for b in buttons if hasattr(b, "click")]
    button.click()
    return str(face_of(bench).panel.message.value)


def test_drafting_editing_and_judging_by_clicking() -> None:
    bench = opened()
    face = face_of(bench)
    press(bench, "Draft")
    assert bench.pending is not None
    assert "has not judged this draft" in face.table.value
    assert [value for _, value in face.node.options] == [0, 1, 2, 3, 4]
    face.node.value = 2
    face.guess.value = "w5"
    press(bench, "Replace")
    assert bench.pending.draft.tree.tokens[2] == 5
    face.node.value = 3
    press(bench, "Cut from here")
    assert len(bench.pending.draft.tree) == 3
    press(bench, "Verify")
    assert bench.at == 1
    assert "guesses stay" in face.table.value
    assert bench.steps[0].how == "edited"
    assert face.round.max == 1


def test_forcing_forbidding_rewinding_comparing_by_clicking() -> None:
    bench = opened()
    face = face_of(bench)
    press(bench, "5 rounds")
    assert bench.at == 5
    face.round.value = 2
    assert bench.at == 5  # the field alone goes nowhere
    press(bench, "Rewind to it")
    assert bench.at == 2
    face.word.value = "w9"
    press(bench, "Force it")
    assert bench.here == "branch 2"
    assert "⚑" in face.picture.value
    assert "without" in press(bench, "Forbid it")
    assert bench.settings.forbidden == (9,)
    press(bench, "Allow all again")
    assert list(face.other.options) == ["main", "branch 2"]
    face.other.value = "main"
    press(bench, "Compare")
    assert "perplexity" in face.table.value
    face.branch.value = "main"
    press(bench, "Switch to it")
    assert (bench.here, bench.at) == ("main", 5)


def test_mistakes_become_sentences_and_controls_come_back() -> None:
    bench = opened()
    face = face_of(bench)
    said = press(bench, "Verify")
    assert "✗" in said
    assert "expected one that waits for its verdict, got none. Next:" in said
    face.method.value = "eagle3"  # no such head for this target
    assert "eagle3 head for this target" in face.panel.message.value
    assert face.method.value == "draft"
    assert not any(getattr(w, "disabled", False) for w in all_of(bench.widget))
    handle = MODEL.register_forward_hook(lambda *_: 1 / 0)
    said = press(bench, "Whole round")
    handle.remove()
    assert "ZeroDivisionError" in said
    assert "Traceback" not in said
    assert "⭐" not in said
    press(bench, "Whole round")
    assert bench.at == 1


def test_a_fake_out_of_memory_by_clicking() -> None:
    bench = opened()
    press(bench, "5 rounds")
    cache = weakref.ref(bench._desk._seats[()].target._cache)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    handle = MODEL.register_forward_hook(full)
    said = press(bench, "Whole round")
    handle.remove()
    assert "choose a smaller draft" in said
    gc.collect()
    assert cache() is None
    press(bench, "Whole round")
    assert bench.at == 6


def test_an_interrupt_by_clicking() -> None:
    bench = opened()

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = MODEL.register_forward_hook(stop)
    assert "Interrupted" in press(bench, "Whole round")
    handle.remove()
    assert bench.at == 0


def test_showing_a_cell_again_does_not_pile_up_handlers() -> None:
    bench = opened()
    for _ in range(3):
        bench._repr_mimebundle_()
    press(bench, "Whole round")
    assert bench.at == 1
    changes = []
    original = bench.set
    bench.set = lambda **c: (changes.append(c), original(**c))[1]  # type: ignore[method-assign]
    face_of(bench).heat.value = 0.5
    assert changes == [{"temperature": 0.5}]


def test_changing_a_field_decodes_nothing() -> None:
    bench = opened()
    press(bench, "Whole round")
    calls = []
    handle = MODEL.register_forward_hook(lambda *_: calls.append(1))
    for tenth in range(1, 21):
        face_of(bench).heat.value = tenth / 10
    for length in range(1, 12):
        face_of(bench).length.value = length
    assert calls == []
    press(bench, "Whole round")
    handle.remove()
    assert len(calls) == 1
    assert bench.settings.config.temperature == 2.0
    assert not face_of(bench).heat.continuous_update


def test_a_field_that_decodes_would_be_noticed() -> None:
    """Negative control of the test above."""
    bench = opened()
    calls: list[int] = []
    handle = MODEL.register_forward_hook(lambda *_: calls.append(1))
    face_of(bench).heat.observe(lambda _: bench.step(), "value")
    for tenth in range(1, 6):
        face_of(bench).heat.value = tenth / 10
    handle.remove()
    assert len(calls) >= 5


def test_a_second_click_while_at_work_is_ignored() -> None:
    """And every control is disabled meanwhile."""
    bench = opened()
    face = face_of(bench)
    seen = []

    def meddle(*_: Any) -> None:
        seen.append([w.disabled for w in face.panel._controls])
        face.panel.act(bench.step)

    handle = MODEL.register_forward_hook(meddle)
    press(bench, "Whole round")
    handle.remove()
    assert bench.at == 1
    assert all(all(states) for states in seen)


@pytest.mark.parametrize("heat", [0.04, 0.25])
def test_a_temperature_is_taken_as_it_was_typed(heat: float) -> None:
    """Rounded to steps of the field's arrows 0.04 would be greedy decoding, another law."""
    bench = opened()
    face_of(bench).heat.value = heat
    assert bench.settings.config.temperature == face_of(bench).heat.value == heat


def test_fields_show_what_is_in_force_beyond_their_usual_bounds() -> None:
    bench = opened(draft_length=16, temperature=3.0)
    face = face_of(bench)
    assert (face.length.value, face.heat.value) == (16, 3.0)
    face.heat.value = 0.25
    assert bench.settings.config.draft_length == face.length.value == 16
    bench.set(draft_length=20, temperature=2.5)
    face.redraw()
    assert (face.length.value, face.heat.value) == (20, 2.5)
    assert bench.settings.config.draft_length == 20


@pytest.mark.parametrize("rounds", [0, 2])
def test_what_a_page_without_a_kernel_shows(rounds: int) -> None:
    bench = opened()
    if rounds:
        bench.run(rounds)
        bench.draft()
    shown = bench._repr_mimebundle_()
    assert "<svg" in shown["text/html"]
    assert "Run this cell to work with it" in shown["text/html"]
    assert "cut short" not in re.sub("<svg.*?</svg>", "", shown["text/html"], flags=re.DOTALL)
    assert shown["text/plain"] == repr(bench)
    assert shown["application/vnd.jupyter.widget-view+json"]["model_id"]


def test_the_slots_are_in_view_where_they_were_asked_for() -> None:
    """After going back they are those of the earlier round, and the new branch takes them again."""
    bench = opened(slots=True)
    face = face_of(bench)
    bench.run(3)
    then = list(bench._desk._seats[()].target.committed_slots)
    bench.rewind(1)
    face.redraw()
    assert "KV slots" in face.picture.value
    assert "KV slots" not in face_of(opened()).picture.value
    bench.run(2)
    assert list(bench._desk._seats[()].target.committed_slots) == then
    assert len(bench.pictures()) == 2


def test_only_widgets_that_every_front_end_has() -> None:
    plain = {"VBox", "HBox", "HTML", "Button", "Text", "Dropdown"}
    plain |= {"BoundedIntText", "BoundedFloatText"}
    assert {type(w).__name__ for w in all_of(opened().widget)} <= plain
