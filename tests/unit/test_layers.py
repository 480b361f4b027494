"""Habits of the code base that a reader may rely on, held by parsing it."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "labkit"

# A module may import modules of its own level or below, without cycles. The longest matching
# prefix decides; a module that no line matches fails the test, so that each gets its place.
LEVELS = {
    "labkit": 0,
    "labkit.errors": 0,
    "labkit.ids": 0,
    "labkit.kinds": 0,
    "labkit.config": 0,
    "labkit.progress": 0,
    "labkit.whole_file": 0,
    "labkit.tree": 0,
    "labkit.devices": 0,
    "labkit.cost": 1,
    "labkit.events": 1,
    "labkit.draft": 1,
    "labkit.sampling": 1,
    "labkit.capture": 1,
    "labkit.streaming": 1,
    "labkit.kernels": 1,
    "labkit.verify": 2,
    "labkit.recurrent": 2,
    "labkit.cache": 2,
    "labkit.law": 2,
    "labkit.target": 3,
    "labkit.toy": 3,
    "labkit.heads": 3,
    "labkit.drafters": 4,
    "labkit.decode": 5,
    "labkit.batch": 5,
    "labkit.trace": 6,
    "labkit.trace_check": 6,
    "labkit.trace_file": 6,
    "labkit.chrome": 6,
    "labkit.metrics": 6,
    "labkit.machine": 6,
    "labkit.whatif": 6,
    "labkit.training": 6,
    "labkit.viz": 7,
    "labkit.lab": 8,
    "labkit.bench": 8,
    "labkit.gallery": 8,
    "labkit.cli": 9,
    "labkit.cli_decode": 9,
    "labkit.cli_options": 9,
    "labkit.cli_heads": 9,
    "labkit.cli_train": 9,
    "labkit.cli_trace": 9,
    "labkit.__main__": 9,
}
MAX_LINES = 40


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


MODULES = modules()


def parse(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def level(module: str, table: dict[str, int] = LEVELS) -> int:
    """The level of the longest prefix in the table; the bare package speaks for itself only."""
    prefix = module
    while prefix not in table or (prefix == "labkit" and module != "labkit"):
        assert "." in prefix, f"{module} has no level: give it one in {Path(__file__).name}"
        prefix = prefix.rpartition(".")[0]
    return table[prefix]


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if not for_types_only(node):
            yield node
            yield from running(node)


def imports(tree: ast.Module, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in running(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, "relative imports hide the level"
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                found.add(deeper if deeper in known else node.module)
    return {name for name in found if name.partition(".")[0] == "labkit"}


GRAPH = {name: imports(parse(name), MODULES) for name in MODULES}


def upward(graph: dict[str, set[str]]) -> list[str]:
    return [
        f"{name} (level {level(name)}) imports {other} (level {level(other)})"
        for name, others in graph.items()
        for other in others
        if level(other) > level(name)
    ]


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """One import cycle, or nothing."""
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := visit(other, [*trail, name]):
                return found
        done.add(name)
        return []

    for name in sorted(graph):
        if found := visit(name, []):
            return found
    return []


def reachable(name: str) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        for other in GRAPH.get(todo.pop(), set()) - found:
            found.add(other)
            todo.append(other)
    return found


def test_imports_point_down() -> None:
    assert upward(GRAPH) == []


def test_imports_have_no_cycle() -> None:
    assert cycle(GRAPH) == []


def test_the_checks_can_fail() -> None:
    assert upward({"labkit.tree": {"labkit.verify"}})
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    hidden = ast.parse("def f():\n    from labkit.cli import main\n")
    assert imports(hidden, MODULES) == {"labkit.cli"}
    with pytest.raises(AssertionError, match="no level"):
        level("labkit.surprise")


def test_figures_know_nothing_of_models() -> None:
    drawn = {name for name in MODULES if name.startswith("labkit.viz")}
    for name in drawn:
        used = {other for other in reachable(name) if 2 <= level(other) <= 5}
        assert not used, f"{name} reaches {used}"


def test_decoding_knows_nothing_of_its_consumers() -> None:
    consumers = ("labkit.trace", "labkit.metrics", "labkit.viz")
    used = {other for other in reachable("labkit.decode") if other.startswith(consumers)}
    assert not used


@pytest.mark.parametrize("statement", ["import labkit", "import labkit.viz", "import labkit.cli"])
def test_heavy_packages_are_not_imported(statement: str) -> None:
    look = "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    script = f"{statement}\nimport sys\n{look}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node


def docstrings(tree: ast.Module) -> set[int]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }


DEVICE = re.compile(r"(cpu|mps|xpu)(:\d+)?")


def labels(tree: ast.Module) -> set[int]:
    """Strings that name a row of a table: keys of a dictionary, the doctor's checks."""
    keys = [key for n in ast.walk(tree) if isinstance(n, ast.Dict) for key in n.keys]
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args]
    return {id(n) for n in keys} | {id(n.args[0]) for n in calls if ast.unparse(n.func) == "Check"}


# Files that say where tensors go before they are written: to the host, whatever the device.
WRITERS = {"labkit.heads.draft_checkpoint", "labkit.heads.checkpoints.load"}


def device_literals(tree: ast.Module, *, host_too: bool = True) -> list[int]:
    """Lines with a device named in a string, or with ``.cuda`` reached for."""
    prose, label = docstrings(tree), labels(tree)
    named = [
        n.lineno
        for n in strings(tree)
        if ("cuda" in n.value and id(n) not in prose)
        or (host_too and DEVICE.fullmatch(n.value) and id(n) not in label)
    ]
    reached = [
        n.lineno for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "cuda"
    ]
    return named + reached


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"labkit.devices"}))
def test_devices_are_named_in_one_file(name: str) -> None:
    assert device_literals(parse(name), host_too=name not in WRITERS) == []


def test_a_device_literal_would_be_found() -> None:
    for line in (
        "x.to('cuda:0')",
        "x.cuda()",
        "torch.cuda.synchronize()",
        "d = f'cuda:{i}'",
        "x.to('cpu')",
        "x.device.type != 'cpu'",
        "torch.zeros(3, device='mps:0')",
        "facts = {'device': 'cpu'}",
    ):
        assert device_literals(ast.parse(line)), line
    for line in (
        '"""Runs on cuda."""',
        "Check('cpu', True)",
        "{'cpu': 1}",
        "print('auto or cpu')",
        "x.cpu()",
    ):
        assert not device_literals(ast.parse(line)), line


def cache_indexing(tree: ast.Module) -> list[int]:
    """Lines that reach into a transformers cache by position or by its private lists."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            text = ast.unparse(node.value)
            if text.endswith(("past_key_values", "key_cache", "value_cache")):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"labkit.cache"}))
def test_cache_layout_is_known_to_one_file(name: str) -> None:
    assert cache_indexing(parse(name)) == []


def test_cache_indexing_would_be_found() -> None:
    for line in ("past_key_values[0][1]", "out.past_key_values[-1]", "c.key_cache[3]"):
        assert cache_indexing(ast.parse(line)), line


FORBIDDEN_CALLS = {
    "torch.load", "pickle.load", "pickle.loads", "eval", "exec", "os.system", "joblib.load",
}  # fmt: skip


def unsafe(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if (name := ast.unparse(node.func)) in FORBIDDEN_CALLS:
            found.append(name)
        for keyword in node.keywords:
            says = ast.unparse(keyword.value)
            if keyword.arg == "shell" or (keyword.arg == "trust_remote_code" and says != "False"):
                found.append(f"{keyword.arg}={says}")
    return found


@pytest.mark.parametrize("name", sorted(MODULES))
def test_nothing_runs_foreign_code(name: str) -> None:
    assert unsafe(parse(name)) == []


def test_unsafe_calls_would_be_found() -> None:
    for line in ("torch.load(p)", "f(trust_remote_code=True)", "run(c, shell=True)", "eval(s)"):
        assert unsafe(ast.parse(line)), line


def long_functions(tree: ast.Module) -> list[str]:
    """Functions with more than ``MAX_LINES`` lines of code, docstring and signature apart."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body and (body[-1].end_lineno or 0) - body[0].lineno + 1 > MAX_LINES:
                found.append(f"{node.name}, line {node.lineno}")
    return found


@pytest.mark.parametrize("name", sorted(MODULES))
def test_functions_fit_on_a_screen(name: str) -> None:
    assert long_functions(parse(name)) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_say_what_they_own(name: str) -> None:
    empty = not MODULES[name].read_text(encoding="utf-8").strip()
    assert empty or ast.get_docstring(parse(name)), f"{name} has no docstring"
    assert MODULES[name].stem not in ("utils", "helpers", "common", "misc")


NOTEBOOKS = sorted(
    path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts
)
MACHINE_PATHS = ("/ho" + "me/", "/ro" + "ot/", "/wo" + "rk/", "/Us" + "ers/", "C:\\\\Us" + "ers")


def notebook_faults(text: str) -> list[str]:
    """What must not be stored in a notebook."""
    notebook = json.loads(text)
    faults = []
    if len(text) > 1_000_000:
        faults.append("larger than 1 MB")
    if "widgets" in notebook["metadata"]:
        faults.append("stored widget state")
    faults += [f"names {path}" for path in MACHINE_PATHS if path in text]
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for index, cell in enumerate(code):
        outputs = cell["outputs"]
        if any(output["output_type"] == "error" for output in outputs):
            faults.append(f"code cell {index} failed")
        if outputs and cell["execution_count"] is None:
            faults.append(f"code cell {index} has outputs but no count")
        if len("".join(cell["source"]).splitlines()) > 15:
            faults.append(f"code cell {index} has more than 15 lines")
    if len(code) > 25:
        faults.append(f"{len(code)} code cells")
    return faults


def test_notebooks_are_clean() -> None:
    faults = {path.stem: notebook_faults(path.read_text(encoding="utf-8")) for path in NOTEBOOKS}
    assert {name: found for name, found in faults.items() if found} == {}


def test_notebook_faults_would_be_found() -> None:
    cell = {
        "cell_type": "code",
        "source": ["x\n"] * 16,
        "execution_count": None,
        "outputs": [{"output_type": "error", "traceback": ["/ho" + "me/me/x.py"]}],
    }
    bad = {"metadata": {"widgets": {}}, "cells": [cell] * 26}
    assert len(notebook_faults(json.dumps(bad))) == 1 + 1 + 26 * 3 + 1
    good = {"metadata": {}, "cells": [cell | {"source": ["x"], "outputs": []}]}
    assert notebook_faults(json.dumps(good)) == []
