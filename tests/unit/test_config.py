"""A setting that cannot be used is refused by its name; the same end ids in any spelling agree."""

from typing import Any

import pytest
import torch

from labkit.config import METHODS, DecodeConfig, check_method
from labkit.errors import BadInput


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 2.5),
        ("draft_length", -1),
        ("draft_length", 1.5),
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_k", 0.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.0),
        ("repetition_penalty", 0.0),
        ("seed", "today"),
        ("detail", "everything"),
        ("top", 0),
        ("eos", -1),
        ("eos", [2, -9]),
        ("eos", "</s>"),
        ("eos", True),
        ("draft_length", True),
        ("temperature", "hot"),
        ("stop_strings", "one text instead of a list"),
        ("stop_strings", ("fine", "")),
        ("stop_strings", ("fine", 3)),
        ("seed", 2**63),
        ("repetition_penalty", float("inf")),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        DecodeConfig(**{name: value})
    assert caught.value.what == name
    assert repr(value) == caught.value.got


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="beam_size"):
        DecodeConfig(beam_size=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "eos",
    [[2, 9], (9, 2), {2, 9}, torch.tensor([2, 9]), iter([2, 9])],
    ids=lambda e: type(e).__name__,
)
def test_several_eos_in_any_spelling(eos: Any) -> None:
    config = DecodeConfig(eos=eos)
    assert config.eos_ids == {2, 9}
    assert config.eos_ids == {2, 9}  # reading it twice changes nothing


@pytest.mark.parametrize("eos", [2, [2], torch.tensor(2), torch.tensor([2])], ids=str)
def test_one_eos_in_any_spelling(eos: Any) -> None:
    assert DecodeConfig(eos=eos).eos_ids == {2}
    assert DecodeConfig(eos=None).eos_ids == frozenset()


def test_config_never_changes() -> None:
    with pytest.raises(AttributeError):
        DecodeConfig().seed = 1  # type: ignore[misc]


def test_unknown_method_lists_the_known_ones() -> None:
    assert check_method("ar") == "ar"
    with pytest.raises(BadInput) as caught:
        check_method("magic")
    assert all(method in str(caught.value) for method in METHODS)
