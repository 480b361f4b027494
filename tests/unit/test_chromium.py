"""How `make browser` finds its browser, and what it does where there is none."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "browser" / "chromium.py"


@pytest.fixture
def chromium(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, on a machine whose only programs are those that a test puts into tmp_path."""
    spec = importlib.util.spec_from_file_location("chromium", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(module, "USUAL", module.USUAL[:4])  # none of a Mac's own places
    monkeypatch.setattr(module, "_own_of_playwright", lambda: None)
    return module


def program(path: Path, *, does: str = "exit 0") -> Path:
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return path


def test_a_browser_that_does_not_start_is_passed_over(chromium: ModuleType, tmp_path: Path) -> None:
    program(tmp_path / "chromium-browser", does="exit 1")
    assert chromium.find() is None
    chrome = program(tmp_path / "google-chrome")
    assert chromium.find() == str(chrome)


def test_the_one_that_is_named_is_the_one(
    chromium: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(tmp_path / "chromium")
    mine = program(tmp_path / "mine")
    monkeypatch.setenv("CHROMIUM", str(mine))
    assert chromium.find() == str(mine)
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "not there"))
    assert chromium.provide() is None  # nor is another one taken, or installed


def apt_get(folder: Path) -> None:
    """An apt-get that notes what it was asked, and installs a chromium that starts."""
    program(
        folder / "apt-get",
        does=f'echo "$1" >> {folder}/asked\n[ "$1" = install ] || exit 0\n'
        f"printf '#!/bin/sh\\n' > {folder}/chromium; /bin/chmod +x {folder}/chromium",
    )


def test_root_gets_one_by_apt_get(
    chromium: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    apt_get(tmp_path)
    assert chromium.main() == 0
    assert f"Chromium: {tmp_path / 'chromium'}" in capsys.readouterr().out
    assert (tmp_path / "asked").read_text().split() == ["update", "install"]
    assert chromium.main() == 0
    assert (tmp_path / "asked").read_text().split() == ["update", "install"]  # found, not asked for


def test_others_are_told_what_to_do(
    chromium: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    apt_get(tmp_path)
    assert chromium.main() == 2
    told = capsys.readouterr().err
    for part in ("expected one of chromium,", "got none that starts", "Next: install Chromium"):
        assert part in told
    assert not (tmp_path / "asked").exists()
