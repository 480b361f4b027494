"""Every lesson keeps the house rules, its stored notebook is its source, and its solution is right.

That the cells run, and print what is stored, is nbval's part (`make test`).
"""

import ast
import contextlib
import importlib.util
import io
import json
import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from test_layers import MACHINE_PATHS
from viz_traces import chain

from labkit.lab import checks
from labkit.lab.wording import words

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks" / "src").glob("[0-9]*.py"))
STEMS = [path.stem for path in SOURCES]
CHECKED = "nbval-check-output"
CHANGES = re.compile(r"\r|%\||it/s|\b\d+(\.\d+)? ?(ms|s|seconds?)\b")  # progress bars and times
VIEW = "application/vnd.jupyter.widget-view+json"


def load_build():
    spec = importlib.util.spec_from_file_location("build", ROOT / "notebooks" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source(stem):
    return jupytext.read(ROOT / "notebooks" / "src" / f"{stem}.py", fmt="py:percent")


def stored(stem):
    return nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)


def tags(cell):
    return cell.metadata.get("tags", [])


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def prose(notebook):
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def test_there_are_lessons():
    assert len(STEMS) >= 5


@pytest.mark.parametrize("stem", STEMS)
class TestSource:
    def test_begins_with_title_promise_badge_and_time_then_the_set_up_cell(self, stem):
        first, second = source(stem).cells[:2]
        title, promise, badges = (line for line in first.source.splitlines() if line)
        assert title.startswith(f"# {stem[:2]} · ")
        assert re.fullmatch(r"\*\*[^*]+\.\*\*", promise)
        assert "{{badge}}" in badges
        assert re.search(r"⏱ \d+ minutes", badges)
        assert tags(second) == ["setup", "nbval-ignore-output"]

    def test_has_few_short_cells(self, stem):
        cells = code(source(stem))
        assert len(cells) <= 25
        longest = max(cells, key=lambda cell: len(cell.source.splitlines()))
        assert len(longest.source.splitlines()) <= 15, longest.source

    def test_asks_before_it_tells_and_checks_an_exercise(self, stem):
        text = "\n".join(cell.source for cell in code(source(stem)))
        asked = re.findall(r'ask\("([^"]+)"', text)
        assert asked
        assert all(name.startswith(stem[:2]) for name in asked)
        assert len(re.findall(r"^checks\.\w+\(", text, re.MULTILINE)) >= 1
        assert "## Exercise" in prose(source(stem))

    def test_folds_hint_and_solution_and_ends_with_summary_and_next(self, stem):
        text = prose(source(stem))
        assert "<details><summary>Hint</summary>\n\n" in text
        assert "<details><summary>Solution</summary>\n\n" in text
        assert text.count("<details>") == text.count("</details>")
        assert text.index("## Exercise") < text.index("## Summary") < text.index("## What's next")

    def test_some_output_is_checked_and_no_checked_cell_tells_the_time(self, stem):
        cells = [cell for cell in code(source(stem)) if CHECKED in tags(cell)]
        assert cells
        for cell in cells:
            assert not re.search(r"seconds|_ms\b|forward_time|clock", cell.source), cell.source

    def test_links_lead_somewhere(self, stem):
        for link in re.findall(r"\]\(([^)#]+)\)", prose(source(stem))):
            if link.endswith(".ipynb"):
                assert (ROOT / "notebooks" / "src" / link).with_suffix(".py").is_file(), link
            else:
                assert link.startswith("https://"), link

    def test_images_have_words(self, stem):
        assert not re.search(r"!\[\s*\]|<img(?![^>]*\balt=\"[^\"]+\")", prose(source(stem)))


@pytest.mark.parametrize("stem", STEMS)
class TestStored:
    def test_is_the_source(self, stem):
        build, notebook = load_build(), source(stem)
        build.fill_in(notebook, ROOT / "notebooks" / f"{stem}.ipynb")
        ours = [(cell.cell_type, cell.source) for cell in notebook.cells]
        assert [(cell.cell_type, cell.source) for cell in stored(stem).cells] == ours

    def test_was_run_from_top_to_bottom_without_an_error(self, stem):
        cells = code(stored(stem))
        assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
        kinds = [output.output_type for cell in cells for output in cell.outputs]
        assert "error" not in kinds

    def test_is_small_and_private(self, stem):
        path = ROOT / "notebooks" / f"{stem}.ipynb"
        text = path.read_text(encoding="utf-8")
        assert path.stat().st_size < 500_000
        assert "widgets" not in json.loads(text)["metadata"]
        for word in (*MACHINE_PATHS, "/tmp/", "site-packages", "Collecting "):
            assert word not in text

    def test_every_widget_has_a_picture_or_page_and_no_dead_view(self, stem):
        outputs = [o for cell in code(stored(stem)) for o in cell.outputs if "data" in o]
        assert outputs
        for output in outputs:
            assert VIEW not in output.data
            assert "text/plain" in output.data
            assert re.search(r"<svg|<div|<p>|<table", "".join(output.data.get("text/html", "")))

    def test_standard_error_is_empty_and_checked_cells_print_text_alone(self, stem):
        for cell in code(stored(stem)):
            for output in cell.outputs:
                assert output.get("name") != "stderr"
                if CHECKED in tags(cell):
                    assert output.output_type == "stream"
                    assert not CHANGES.search(output.text), cell.source


def test_what_differs_from_run_to_run_would_be_noticed():
    for told in ("  3%|#   | 3/90", "90/90 [00:01, 55.1it/s]", "half\rdone", "0.8 s", "37 ms each"):
        assert CHANGES.search(told), told
    for told in ("4 drafted, 2 accepted", "KV 4 slots", "0.65× (slower)", "3 steps"):
        assert not CHANGES.search(told), told


CHECK = re.compile(r"^checks\.\w+\(.*\)$", re.MULTILINE)


def own_cells(stem):
    return [cell.source for cell in code(source(stem)) if "setup" not in tags(cell)]


def solutions(stem):
    """The code of a lesson's solutions."""
    parts = prose(source(stem)).split("<details><summary>Solution</summary>")[1:]
    folded = (part.split("</details>")[0] for part in parts)
    return [b for part in folded for b in re.findall(r"```python\n(.*?)```", part, re.DOTALL)]


def solved(stem):
    """The names that a lesson's solutions define."""
    names = {"checks": checks, "trace": chain()}
    for block in solutions(stem):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, stem, "exec"), names)
    return names


def calls(stem):
    """The checks of a lesson, as it calls them."""
    return [call for cell in code(source(stem)) for call in CHECK.findall(cell.source)]


def judged(stem, names):
    """What each check of a lesson says of ``names``."""
    for call in calls(stem):
        exec(compile(f"said = {call}", stem, "exec"), names)
        yield names["said"]


def named(node):
    """The names that stand somewhere in ``node``."""
    return {part.id for part in ast.walk(node) if type(part) is ast.Name}


def standing(stem, cells):
    """What is there to check after these cells: of all their statements those are run that define
    what the lesson's checks are given, or what these definitions need."""
    names = {"checks": checks, "trace": chain()}
    used = {name for call in calls(stem) for name in named(ast.parse(call))}
    wanted, kept = used - names.keys(), []
    for statement in reversed(ast.parse("\n".join(cells)).body):
        match statement:
            case ast.Assign() if wanted & {
                n for target in statement.targets for n in named(target)
            }:
                wanted |= named(statement.value) - names.keys()
            case ast.FunctionDef() if statement.name in wanted:
                pass
            case ast.Import() | ast.ImportFrom():
                pass
            case _:
                continue
        kept.insert(0, statement)
    exec(compile(ast.Module(kept, []), stem, "exec"), names)
    assert used <= names.keys()
    return names


@pytest.mark.parametrize("stem", STEMS)
def test_the_solution_of_every_exercise_passes_its_check(stem):
    results = list(judged(stem, solved(stem)))
    assert results
    assert [result.exercise for result in results if result.passed is not True] == []


@pytest.mark.parametrize("stem", STEMS)
def test_what_stands_in_the_lesson_before_it_is_solved_does_not(stem):
    """Every check has something to say of what the lesson's own cells define."""
    results = list(judged(stem, standing(stem, own_cells(stem))))
    assert results
    assert [result.exercise for result in results if result.passed] == []


@pytest.mark.parametrize("stem", STEMS)
def test_a_solution_left_in_a_lesson_would_be_noticed(stem):
    """Negative control of the test above."""
    left = standing(stem, [*own_cells(stem), *solutions(stem)])
    assert all(result.passed for result in judged(stem, left))


def test_every_question_is_asked_somewhere():
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert set(re.findall(r'ask\("([^"]+)"', text)) == set(words("en")["questions"])
