"""The near-tie rule on logits made by hand."""

from typing import Any

import pytest
import torch

from labkit.lab.compare import Difference, first_difference
from labkit.target import Target
from labkit.toy import TableModel


def model(dtype: torch.dtype, second: float) -> Target:
    """After any token: logit 20 for id 4, ``second`` for id 7, 10 for id 5, else 0."""
    table = TableModel(torch.full((10, 10), 0.1))
    logits = torch.zeros(10, 10)
    logits[:, 4], logits[:, 7], logits[:, 5] = 20.0, second, 10.0
    table.table.weight.data = logits.to(dtype)
    return Target(table)


def compare(left: Any, right: Any, *, second: float = 19.75, dtype: Any = torch.bfloat16) -> Any:
    return first_difference(model(dtype, second), (1, 2), left, right)


def test_equal_texts_have_no_difference() -> None:
    assert compare((4, 4), (4, 4)) is None
    assert compare((), ()) is None


def test_two_steps_apart_is_a_near_tie() -> None:
    found = compare((4, 4, 4), (4, 7, 4))
    assert found == Difference(index=1, left=4, right=7, gap=0.25, step=0.125)
    assert found.verdict == "near tie"
    assert "near tie at new token 1" in str(found)


@pytest.mark.parametrize(
    ("second", "dtype"),
    [(19.5, torch.bfloat16), (19.75, torch.float16), (19.75, torch.float32)],
    ids=["four steps", "two steps of another dtype", "exact dtype"],
)
def test_more_is_a_fault(second: float, dtype: torch.dtype) -> None:
    found = compare((4,), (7,), second=second, dtype=dtype)
    assert found.verdict == "fault"


def test_two_bad_tokens_are_a_fault_although_they_are_close() -> None:
    """Ids 0 and 1 are equally unlikely: neither could have been chosen."""
    assert compare((0,), (1,)).verdict == "fault"


def test_a_text_that_ends_early_is_a_fault() -> None:
    found = compare((4, 4), (4,))
    assert (found.index, found.left, found.right, found.verdict) == (1, 4, None, "fault")


def test_the_side_does_not_matter() -> None:
    left, right = compare((4,), (7,)), compare((7,), (4,))
    assert (left.gap, left.verdict) == (right.gap, right.verdict)
