"""What counts as a whole number and as ids, for Python, numpy and torch."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from labkit.ids import end_ids, token_ids, whole


@pytest.mark.parametrize("value", [7, np.int64(7), np.array(7), torch.tensor(7)], ids=repr)
def test_whole_numbers_of_any_library_become_plain_ints(value: Any) -> None:
    assert whole(value) == 7
    assert type(whole(value)) is int


@pytest.mark.parametrize(
    "value",
    [True, np.True_, torch.tensor(True), 7.0, np.float64(7), torch.tensor(7.0), "7", None,
     [7], np.array([7]), torch.tensor([7])],
    ids=repr,
)  # fmt: skip
def test_what_is_no_whole_number(value: Any) -> None:
    """operator.index would take the truth values, and torch's array of one."""
    assert whole(value) is None


def test_ids_are_gathered_from_every_naming() -> None:
    assert token_ids(None) == ()
    assert token_ids(9, None, [2, 9], torch.tensor([4])) == (2, 4, 9)
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[9, 2]))
    assert end_ids(model, SimpleNamespace(eos_token_id=3)) == (2, 3, 9)
    assert end_ids(model, SimpleNamespace(eos_token_id=None)) == (2, 9)
    for wrong in ("</s>", True, [[2]]):
        with pytest.raises(TypeError):
            token_ids(wrong)
