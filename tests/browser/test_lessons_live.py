"""Every lesson in a real JupyterLab and Chromium: run from top to bottom, stepped through."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import desks
import figures
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, Page, expect
from servers import Server, serve

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
CHECKED = "nbval-check-output"
STEPPED = re.compile(r"\bStepper\(")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, home = tmp_path_factory.mktemp("desk"), tmp_path_factory.mktemp("jupyter")
    with serve(folder, home) as running:
        yield running


def code(notebook: nbformat.NotebookNode) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: Any) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def shortcomings(stored: nbformat.NotebookNode, saved: nbformat.NotebookNode) -> Iterator[str]:
    """What is not as it should be after a run, cell by cell."""
    for number, (before, now) in enumerate(zip(code(stored), code(saved), strict=True), 1):
        told = figures.changes(before, now.outputs)
        if now.execution_count != number:
            told.append(f"run as number {now.execution_count}")
        for output in now.outputs:
            if output.output_type == "error":
                told.append(f"{output.ename}: {output.evalue}")
            if output.get("name") == "stderr":
                told.append(f"standard error: {output.text}")
        if CHECKED in before.metadata.get("tags", ()) and printed(now) != printed(before):
            told.append(f"printed {printed(now)!r}, stored {printed(before)!r}")
        yield from (f"cell {number}: {what}" for what in told)


def check_page(page: Page, stored: nbformat.NotebookNode, *, own: Sequence[str] = ()) -> None:
    """Widgets are alive, and the console complains of nothing but what is the desk's ``own``."""
    sources = [cell.source for cell in code(stored)]
    asked = sum(len(re.findall(r"^ask\(", source, re.MULTILINE)) for source in sources)
    expect(page.locator(".jp-Notebook .labkit-quiz")).to_have_count(asked)
    said = page.locator(".jp-Notebook").inner_text()
    assert not desks.WIDGET_FAILS.search(said)
    complaints = page.complaints  # type: ignore[attr-defined]
    assert [said for said in complaints if said not in own] == []


def steppers(page: Page) -> list[Any]:
    return page.locator(".jp-Notebook .labkit-stepper").all()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem[:2])
def test_a_lesson_in_jupyterlab(browser: Browser, server: Server, lesson: Path) -> None:
    stored = nbformat.read(lesson, as_version=4)
    copy = desks.blank(lesson, server.folder)
    page = desks.open_notebook(browser, server.lab(copy.name))
    desks.run_all(page)
    found = list(shortcomings(stored, desks.save(page, copy)))
    assert found == []
    shown = steppers(page)
    assert bool(shown) == any(STEPPED.search(cell.source) for cell in code(stored))
    for stepper in shown:
        desks.drive(page, stepper)
    check_page(page, stored)
    page.context.close()


def own_complaints(browser: Browser, server: Server, folder: Path) -> list[str]:
    """What Notebook 7 complains of with nothing but a sum in it."""
    path = folder / "sum.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 + 1")]), path)
    page = desks.open_notebook(browser, server.notebook(f"{folder.name}/{path.name}"))
    desks.run_all(page)
    found: list[str] = page.complaints  # type: ignore[attr-defined]
    page.context.close()
    return found


@pytest.mark.timeout(1200)
def test_the_first_lesson_in_notebook_7(browser: Browser, server: Server) -> None:
    stored = nbformat.read(LESSONS[0], as_version=4)
    apart = server.folder / "seven"  # under the other test's name its kernel would go on
    apart.mkdir()
    own = own_complaints(browser, server, apart)
    copy = desks.blank(LESSONS[0], apart)
    page = desks.open_notebook(browser, server.notebook(f"{apart.name}/{copy.name}"))
    desks.run_all(page)
    assert list(shortcomings(stored, desks.save(page, copy))) == []
    desks.drive(page, steppers(page)[0])
    check_page(page, stored, own=own)
    page.context.close()
