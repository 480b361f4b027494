"""What the tests of the lessons hold besides text: the figures are those stored, and no cell asks
another machine for anything.

Invariants: every figure of a lesson has to come out byte by byte as it is stored, unless its cell
is tagged ``nbval-ignore-output``. So each test run is the second of two runs.
"""

import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "offline"))

import figures
import network_guard

ATTEMPTS = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Kernels that are started from here refuse connections, and note them."""
    folder = tempfile.TemporaryDirectory(prefix="labkit-lessons-")
    config.add_cleanup(folder.cleanup)
    log = Path(folder.name) / "attempts"
    config.stash[ATTEMPTS] = log
    os.environ.update(network_guard.environment(log))


def taken(log: Path) -> list[str]:
    """The hosts that were asked for; from now on none is noted."""
    hosts = log.read_text(encoding="utf-8").split() if log.exists() else []
    log.unlink(missing_ok=True)
    return hosts


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Compare the figures of a cell that nbval has just run; it has asked nobody for anything."""
    failure = ""
    try:
        result = yield
    except Exception as error:
        failure = f", and failed: {error}"
        raise
    finally:  # of a cell that fails too: else the next one would be blamed
        if hosts := taken(item.config.stash[ATTEMPTS]):
            raise network_guard.NetworkUsed(f"the cell asked for {hosts}{failure}")
    outputs = getattr(item, "test_outputs", None)
    if outputs is not None:
        told = figures.changes(item.cell, outputs)  # type: ignore[attr-defined]
        assert not told, "; ".join(told)
    return result
