"""What a session is given wrongly is named before any work, and the session goes on as before."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import prompt_of, tiny
from live_doubles import toy_lab

from labkit.config import check_confidence
from labkit.drafters.nothing import Nothing
from labkit.drafters.shapes import Chain
from labkit.errors import BadInput, one_of
from labkit.ids import flat_ids, numbered
from labkit.lab.session import Lab
from labkit.target import Target

PROMPT, MODEL = prompt_of(7), tiny()
LAB = toy_lab(MODEL)


def record(**options: Any) -> Any:
    given: dict[str, Any] = {"prompt": PROMPT, "method": "ngram", "max_new_tokens": 4, **options}
    return LAB.record(given.pop("prompt"), **given)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a setting that there is not": (
        lambda: record(heat=1),
        r"setting: expected one of max_new_tokens, .*, got 'heat'",
    ),
    "of config": (lambda: LAB.config(heat=1), "setting: expected one of"),
    "length": (lambda: record(draft_length="x"), "draft_length: expected a whole number"),
    "temperature": (lambda: record(temperature=True), "temperature: expected a number"),
    "stops": (lambda: record(stop_strings=5), "stop_strings: expected a list of texts"),
    "method": (lambda: record(method=None), "method: expected one of"),
    "methods": (lambda: record(method=["ngram"]), "method: expected one of"),
    "drafter": (lambda: record(drafter="ngram"), "drafter: expected a labkit.drafters.base.Draf"),
    "class": (lambda: record(drafter=Nothing), "drafter: expected a labkit.drafters.base.Drafter"),
    "processors": (lambda: record(processors=3), "processors: expected a list of functions"),
    "no prompt": (lambda: record(prompt=None), "prompt: expected one flat list"),
    "number": (lambda: record(prompt=5), "prompt: expected one flat list"),
    "fractions": (lambda: record(prompt=[1.0]), "prompt: expected one flat list"),
    "blank": (lambda: record(prompt=" "), "prompt: expected some text"),
    "tokens of no text": (lambda: LAB.tokens(None), "prompt: expected some text"),  # type: ignore[arg-type]
    "text of no ids": (lambda: LAB.text("w5"), "token ids: expected whole numbers"),  # type: ignore[arg-type]
    "text of a number": (lambda: LAB.text(5), "token ids: expected whole numbers"),  # type: ignore[arg-type]
    "token": (lambda: LAB.token_text(1.5), "token ids: expected whole numbers"),  # type: ignore[arg-type]
    "states": (
        lambda: LAB.states(None, drafter=Nothing()),  # type: ignore[arg-type]
        "token ids: expected whole numbers",
    ),
    "a shape by name": (lambda: LAB.new_drafter("ngram", shape="chain"), "shape: expected Chain"),  # type: ignore[arg-type]
    "a shape's class": (lambda: LAB.new_drafter("eagle3", shape=Chain), "shape: expected Chain"),  # type: ignore[arg-type]
    "a session's shape": (lambda: Lab(LAB.loaded, shape="tree"), "shape: expected Chain"),  # type: ignore[arg-type]
    "confidence": (lambda: Lab(LAB.loaded, confidence="x"), r"confidence: expected a number in"),  # type: ignore[arg-type]
    "width": (lambda: Lab(LAB.loaded, width="x"), "width: expected a whole number, 1 or more"),  # type: ignore[arg-type]
    "no width": (lambda: Target(MODEL, width=0), "width: expected a whole number, 1 or more"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_before_any_work(name: str) -> None:
    before, calls = record(), []
    handle = MODEL.register_forward_hook(lambda *_: calls.append(1))
    mistake, told = MISTAKES[name]
    with pytest.raises(BadInput, match=told):
        mistake()
    handle.remove()
    assert calls == []
    assert record().tokens == before.tokens


@pytest.mark.parametrize("value", [0, 4, "1", 1.0, True, None, [1], object()])
def test_a_number_in_bounds(value: Any) -> None:
    with pytest.raises(BadInput, match="place: expected a number from 1 to 3, got"):
        numbered(value, first=1, last=3, name="place", next_step="choose another")
    assert numbered(10**30, first=1, name="place", next_step="") == 10**30
    assert numbered(3, first=1, last=3, name="place", next_step="") == 3


def test_ids_in_a_list() -> None:
    given: dict[str, Any] = {"name": "ids", "expected": "numbers", "next_step": "look again"}
    assert flat_ids(iter([1, 2]), **given) == (1, 2)
    with pytest.raises(BadInput, match=r"ids: expected numbers, got 'a' \(str\) as entry 1"):
        flat_ids([1, "a"], **given)


@pytest.mark.parametrize("given", [None, 1, ["a"], {}, "c"])
def test_one_of_a_dictionary_is_asked_for_by_text(given: Any) -> None:
    with pytest.raises(BadInput, match="key: expected one of a, b, got"):
        one_of({"a": 1, "b": 2}, given, name="key", next_step="choose one")


def test_a_confidence_is_a_number() -> None:
    assert check_confidence(0.5) == 0.5
    for wrong in ("x", None, [0.5]):
        with pytest.raises(BadInput, match="confidence: expected a number"):
            check_confidence(wrong)  # type: ignore[arg-type]
