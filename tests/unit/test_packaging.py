"""The files that build the environment agree with each other and with what the code imports."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

# conda-forge calls two packages by another name.
CONDA_NAMES = {"torch": "pytorch", "playwright": "playwright-python"}

# Image of 2026-08-19 (googlecolab/backend-info, commit a724079).
COLAB = {
    "accelerate": "1.14.0", "anywidget": "0.9.21", "huggingface-hub": "1.27.0",
    "ipywidgets": "7.7.1", "numpy": "2.1.3", "plotly": "5.24.1", "safetensors": "0.8.0",
    "tokenizers": "0.22.2", "torch": "2.11.0", "traitlets": "5.7.1", "transformers": "5.15.0",
}  # fmt: skip

# Names of import packages where they differ from the name that pip knows.
IMPORT_NAMES = {"yaml": "pyyaml", "huggingface_hub": "huggingface-hub"}


def requirements(*extras: str) -> dict[str, Requirement]:
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def texts() -> dict[Path, str]:
    found = {}
    for path in tracked():
        try:
            found[path] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


def conda() -> dict[str, str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    lines = [line for line in environment["dependencies"] if isinstance(line, str)]
    (by_pip,) = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    lines += [line for line in by_pip if not line.startswith("-e ")]
    return dict(re.match(r"([A-Za-z0-9_.-]+)(.*)", line).groups() for line in lines)


def test_conda_and_pip_name_the_same_packages_in_the_same_ranges() -> None:
    wanted = requirements(*EXTRAS)
    listed = {canonicalize_name(name): spec for name, spec in conda().items()}
    assert listed.pop("python") == PROJECT["requires-python"]
    assert set(listed) - {"pip", "make"} == {CONDA_NAMES.get(name, name) for name in wanted}
    for name, requirement in wanted.items():
        spec = Requirement(f"x{listed[CONDA_NAMES.get(name, name)]}").specifier
        assert spec == requirement.specifier, name


def pins(name: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    exact = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(parts) == 2 for parts in exact), f"{name} pins exact versions only"
    return {canonicalize_name(name): version for name, version in exact}


def test_constraints_pin_every_requirement_inside_its_range() -> None:
    pinned = pins()
    for name, requirement in requirements(*EXTRAS).items():
        assert name in pinned, f"{name} is not pinned"
        assert requirement.specifier.contains(pinned[name]), f"{name} {pinned[name]}"


def test_the_tests_run_on_the_pinned_versions_of_what_computes() -> None:
    assert pins()["torch"] == "2.13.0"
    assert pins()["transformers"] == "5.24.0"


@pytest.mark.parametrize("name", ["transformers", "ipywidgets", "anywidget"])
def test_the_floor_is_the_lowest_version_that_is_allowed(name: str) -> None:
    """`make floor` and `make test` together show the whole range that pip may choose from."""
    lowest = Version(pins("constraints-floor.txt")[name])
    asked = [s.version for s in requirements()[name].specifier if s.operator == ">="]
    assert [lowest] == [Version(version) for version in asked]


def test_the_floor_runs_what_depends_on_transformers() -> None:
    done = subprocess.run(
        ["make", "-n", "floor"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in ("lossless/test_public_cases", "parity/test_families", "unit/test_cache"):
        assert f"tests/{name}.py" in done.stdout


@pytest.mark.parametrize("name", sorted(COLAB))
def test_colab_satisfies_the_ranges_so_that_nothing_of_its_own_is_replaced(name: str) -> None:
    assert requirements()[name].specifier.contains(COLAB[name])


def imported_packages() -> set[str]:
    found = set()
    for path in (ROOT / "labkit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"labkit"}


def test_every_imported_package_is_declared() -> None:
    declared = set(requirements())
    found = {canonicalize_name(IMPORT_NAMES.get(name, name)) for name in imported_packages()}
    assert found - {"google", "ipython"} <= declared


def test_python_and_licence() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    assert PROJECT["license"] == "Apache-2.0"
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "Version 2.0, January 2004" in licence


def test_no_file_names_a_package_registry_or_a_directory_of_this_machine() -> None:
    # Put together here, so that this file passes its own test.
    hosts = ["py" + "pi.org", "python" + "hosted.org", "download.py" + "torch.org"]
    homes = ["/ro" + "ot/", "/wo" + "rk/"]
    for path, text in texts().items():
        for word in hosts + homes:
            assert word not in text, f"{path.relative_to(ROOT)} names {word}"


def test_the_public_address_stands_in_one_place() -> None:
    from labkit.lab.setup import OWNER_AND_NAME

    holders = [
        path.relative_to(ROOT).as_posix()
        for path, text in texts().items()
        if OWNER_AND_NAME in text and path.suffix != ".ipynb"
    ]
    assert holders == ["labkit/lab/setup.py"]


def test_sizes() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 150
    weights = {".safetensors": 20_000_000}
    for path in tracked():
        limit = weights.get(path.suffix, 1_000_000)
        assert path.stat().st_size <= limit, f"{path.relative_to(ROOT)} is larger than {limit}"


def test_the_ci_script_runs_every_check() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    lines = script.read_text(encoding="utf-8").splitlines()
    assert "make check" in lines
    assert "make test" in lines
    assert lines[-1] == "make browser"


def test_the_setup_cell_installs_only_where_the_package_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from labkit.lab.setup import setup_cell

    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    for lang, word in (("en", "to be fetched"), ("fr", "sera téléchargé")):
        cell = setup_cell(lang)
        guard, install = cell.splitlines()[1:3]
        assert guard.startswith("if importlib.util.find_spec")
        assert install.strip().startswith("%pip install")
        # Without IPython the magic is not Python; here the package is installed, so it never runs.
        exec(cell.replace("%pip", "raise AssertionError #"), {})
        printed = capsys.readouterr().out
        assert word in printed
        assert printed.count("\n") == 1


def test_setup_turns_colab_widgets_on_once_and_elsewhere_looks_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import types

    import labkit

    calls: list[str] = []
    labkit.setup()
    assert "google.colab" not in sys.modules
    output = types.ModuleType("google.colab.output")
    output.enable_custom_widget_manager = lambda: calls.append("on")
    for name, module in (
        ("google", types.ModuleType("google")),
        ("google.colab", types.ModuleType("google.colab")),
        ("google.colab.output", output),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    labkit.setup()
    assert calls == ["on"]
