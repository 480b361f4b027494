"""What the tests of the lessons compare besides text: the figures, with those stored.

Invariants: every figure of a lesson has to come out byte by byte as it is stored, unless its cell
is tagged ``nbval-ignore-output``. So each test run is the second of two runs.
"""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import figures


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Compare the figures of a cell that nbval has just run."""
    result = yield
    outputs = getattr(item, "test_outputs", None)
    if outputs is not None:
        told = figures.changes(item.cell, outputs)  # type: ignore[attr-defined]
        assert not told, "; ".join(told)
    return result
