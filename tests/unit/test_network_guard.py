"""The guard that every test and lesson runs under: it lets nothing out and forgets no attempt."""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import network_guard
import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = "203.0.113.7"  # an address for documentation (RFC 5737)


def test_no_test_reaches_another_machine(attempts: list[str]) -> None:
    with socket.socket() as mine:
        for connect in (mine.connect, mine.connect_ex):
            with pytest.raises(network_guard.NetworkUsed, match=ELSEWHERE):
                connect((ELSEWHERE, 80))
    with pytest.raises(network_guard.NetworkUsed, match=r"example\.invalid"):
        socket.getaddrinfo("example.invalid", 443)
    assert attempts == [ELSEWHERE, ELSEWHERE, "example.invalid"]
    attempts.clear()


def test_a_swallowed_error_is_an_attempt_too(attempts: list[str]) -> None:
    with contextlib.suppress(Exception):
        socket.create_connection(("example.invalid", 80), timeout=1)
    assert attempts == ["example.invalid"]
    attempts.clear()


def test_this_machine_may_be_asked(attempts: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, server.getsockname()[1]), timeout=5).close()
    assert attempts == []


def test_what_is_started_from_a_lesson_is_guarded_too(tmp_path: Path) -> None:
    """As the kernels of the lessons are: the error is swallowed, the attempt is on record."""
    log = tmp_path / "attempts"
    swallows = (
        "import socket\ntry:\n    socket.create_connection(('example.invalid', 443))\n"
        "except BaseException as error:\n    print(type(error).__name__)"
    )
    for script, told, noted in ((swallows, "NetworkUsed\n", True), ("print(1)", "1\n", False)):
        log.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | network_guard.environment(log),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == told
        assert log.exists() == noted
    assert not noted


def lessons_conftest() -> Any:
    path = ROOT / "notebooks" / "conftest.py"
    spec = importlib.util.spec_from_file_location("lessons_conftest", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_cell_that_asked_is_blamed_even_if_it_fails(tmp_path: Path) -> None:
    """And the cell after it is not."""
    conftest, log = lessons_conftest(), tmp_path / "attempts"
    item = SimpleNamespace(config=SimpleNamespace(stash={conftest.ATTEMPTS: log}))

    def cell(*, asks: bool, error: str = "") -> None:
        call = conftest.pytest_runtest_call(item)
        next(call)
        if asks:
            log.write_text("example.invalid\n", encoding="utf-8")
        with contextlib.suppress(StopIteration):
            call.throw(ValueError(error)) if error else call.send(None)

    with pytest.raises(
        network_guard.NetworkUsed, match=r"'example\.invalid'\], and failed: no key"
    ):
        cell(asks=True, error="no key")
    cell(asks=False)
    with pytest.raises(ValueError, match="no key"):
        cell(asks=False, error="no key")
    with pytest.raises(network_guard.NetworkUsed, match=r"'example\.invalid'\]$"):
        cell(asks=True)
