"""What `make notebooks` stores, and what the Makefile says when it cannot begin."""

import importlib.util
import subprocess
import types
from pathlib import Path

import nbformat
import pytest
from nbconvert.preprocessors import CellExecutionError

from labkit.lab.setup import colab_badge, setup_cell

ROOT = Path(__file__).parents[2]
LESSON = """\
# %% [markdown]
# # A lesson
# {{badge}}

# %% tags=["setup", "nbval-ignore-output"]
import labkit

# %% tags=["nbval-check-output"]
print(1 + 1)
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("build", ROOT / "notebooks" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path / "notebooks")
    (tmp_path / "notebooks" / "src" / "fr").mkdir(parents=True)
    return module


def test_the_address_comes_from_one_place_in_both_languages(build: types.ModuleType) -> None:
    for lang, folder in (("en", ""), ("fr", "fr/")):
        source = build.HERE / "src" / folder / "03_x.py"
        source.write_text(LESSON)
        path = build.build(source, run=False)
        assert path == build.HERE / folder / "03_x.ipynb"
        notebook = nbformat.read(path, as_version=4)
        assert colab_badge(f"notebooks/{folder}03_x.ipynb") in notebook.cells[0].source
        assert notebook.cells[1].source == setup_cell(lang)
        assert notebook.cells[2].source == "print(1 + 1)"
        assert notebook.cells[2].metadata == {"tags": ["nbval-check-output"]}


def test_the_same_source_gives_the_same_bytes(build: types.ModuleType) -> None:
    source = build.HERE / "src" / "03_x.py"
    source.write_text(LESSON)
    first = build.build(source, run=False).read_bytes()
    assert build.build(source, run=False).read_bytes() == first
    assert b'"id": "03_x-01"' in first


def test_tidy_keeps_outputs_and_drops_what_belongs_to_one_run(build: types.ModuleType) -> None:
    notebook = nbformat.v4.new_notebook(metadata={"widgets": {"state": 1}})
    output = nbformat.v4.new_output("stream", text="2\n")
    cell = nbformat.v4.new_code_cell("print(2)", outputs=[output], execution_count=1)
    cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01"}
    notebook.cells.append(cell)
    build.tidy(notebook, "03_x")
    assert "widgets" not in notebook.metadata
    assert cell.metadata == {}
    assert (cell.outputs, cell.execution_count) == ([output], 1)


def test_a_lesson_that_fails_leaves_the_stored_notebook_alone(build: types.ModuleType) -> None:
    source = build.HERE / "src" / "03_x.py"
    source.write_text(LESSON)
    path = build.build(source, run=True)
    stored = path.read_bytes()
    assert nbformat.read(path, as_version=4).cells[2].outputs[0].text == "2\n"
    source.write_text(LESSON + "\n# %%\n1 / 0\n")
    with pytest.raises(CellExecutionError):
        build.build(source, run=True)
    assert path.read_bytes() == stored
    assert sorted(p.name for p in build.HERE.iterdir()) == ["03_x.ipynb", "src"]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("version_exit", "venv_exit", "told"),
    [(1, 0, "expected 3.11 or newer, got Python 3.9.1"), (0, 1, "install the venv module")],
)
def test_make_says_what_is_missing(
    tmp_path: Path, version_exit: int, venv_exit: int, told: str
) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$1" in --version) echo Python 3.9.1;; -c) exit {version_exit};; '
        f"-m) exit {venv_exit};; esac\n"
    )
    python.chmod(0o755)
    stamp = tmp_path / "env" / ".created"
    done = make(str(stamp), f"VENV={tmp_path / 'env'}", f"PYTHON={python}")
    assert done.returncode == 2
    assert told in done.stderr
    assert "Next: " in done.stderr
    assert not stamp.exists()


def test_settings_reach_the_commands() -> None:
    lab = make("-n", "lab", "ENV=active", "PORT=9999", "IP=0.0.0.0", "HEADLESS=1").stdout
    for part in ("labkit pull", "--port=9999", "--ip=0.0.0.0", "--no-browser", "00_start_here"):
        assert part in lab
    assert "pip install" not in lab
    plain = make("-n", "lab", "ENV=active").stdout
    assert "--ip=localhost" in plain
    assert "--no-browser" not in plain
    fresh = make("-n", "lab", "VENV=none", "CONSTRAINTS=", "PIP_ARGS=--pre").stdout
    assert "pip install" in fresh
    assert "--pre" in fresh
    assert "-c constraints.txt" not in fresh


def test_no_lessons_is_no_success() -> None:
    done = make("lessons", "ENV=active", "NOTEBOOKS=")
    assert done.returncode == 2
    assert "Lessons: expected notebooks/NN_name.ipynb, got none. Next: " in done.stderr
    assert make("lessons", "ENV=active").returncode == 0
    # Before the tests, not after them.
    steps = make("-n", "test", "ENV=active", "NOTEBOOKS=").stdout
    assert steps.index("got none") < steps.index("labkit pull") < steps.index("pytest")


def runs_of_pytest(*settings: str) -> list[str]:
    """The two lines of `make test` that run the tests and the lessons."""
    steps = make("-n", "test", "ENV=active", *settings).stdout.replace("\\\n", "").splitlines()
    tests, lessons = (line for line in steps if "pytest" in line)
    assert "--nbval-lax" in lessons
    return [tests, lessons]


def test_slow_cells_and_kernels_have_time() -> None:
    """More than nbval's own 60 s for the start of a kernel, which a busy machine may need, and less
    than its 2000 s for a cell that hangs; both can be set."""
    _, lessons = runs_of_pytest()
    assert "--nbval-cell-timeout=180 --nbval-kernel-startup-timeout=120 " in lessons
    _, slow = runs_of_pytest("CELL_TIMEOUT=900", "KERNEL_TIMEOUT=600")
    assert "--nbval-cell-timeout=900 --nbval-kernel-startup-timeout=600 " in slow


def test_nothing_is_fetched_once_the_model_is_here() -> None:
    runs = runs_of_pytest()
    browser = [s for s in make("-n", "browser", "ENV=active").stdout.splitlines() if "pytest" in s]
    for line in (*runs, *browser):
        assert line.startswith("HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 ")
        assert " python -m pytest -n 2 " in line


def test_the_browser_tests_get_their_own_packages() -> None:
    steps = make("-n", "browser", "VENV=none").stdout
    assert "-e '.[lab,test,dev,browser]'" in steps
    assert steps.index("chromium.py") < steps.index("pytest")
    assert "browser]" not in make("-n", "test", "VENV=none").stdout
