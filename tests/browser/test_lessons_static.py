"""Every lesson as a page without a kernel: pictures and sentences are there, no widget is."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from desks import WIDGET_FAILS
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
FIGURE = "data:image/svg+xml"
Shown = Callable[[nbformat.NotebookNode], Page]


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Shown]:
    """A notebook as nbconvert's page, without network: formulas are its own concern."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)

    def show(notebook: nbformat.NotebookNode) -> Page:
        html, _ = HTMLExporter().from_notebook_node(notebook)
        path = tmp_path / "lesson.html"
        path.write_text(html, encoding="utf-8")
        page = context.new_page()
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        return page

    yield show
    context.close()


def pages(notebook: nbformat.NotebookNode) -> list[str]:
    """What is stored as a page, of all outputs that are not plain text."""
    data = (o.get("data", {}) for c in notebook.cells for o in c.get("outputs", ()))
    return ["".join(d.get("text/html", "")) for d in data if d]


def missing(page: Page, notebook: nbformat.NotebookNode) -> Iterator[str]:
    """What a reader of the page would miss, who opens what is folded away."""
    page.evaluate("document.querySelectorAll('details').forEach((fold) => fold.open = true)")
    said = page.locator("body").inner_text()
    if found := WIDGET_FAILS.search(said):
        yield found.group()
    wanted = sum(text.count(FIGURE) for text in pages(notebook))
    images: list[Any] = page.locator(f'img[src^="{FIGURE}"]').evaluate_all(
        "async (all) => Promise.all(all.map(async (one) => {"
        "  await one.decode().catch(() => {});"
        "  return [one.naturalWidth, one.getBoundingClientRect().width, one.alt]; }))"
    )
    if len(images) != wanted:
        yield f"{len(images)} of {wanted} figures"
    for natural, width, words in images:
        if not natural or not width:
            yield f"a figure without a picture: {words}"
        if len(words.split()) < 3:
            yield f"a figure without a sentence: {words!r}"
    for text in pages(notebook):
        if not text:
            yield "an output without a page"
    asked = page.locator(".labkit-quiz-page")
    questions = re.findall(r"^ask\(", "\n".join(c.source for c in notebook.cells), re.MULTILINE)
    if asked.count() != len(questions):
        yield f"{asked.count()} of {len(questions)} questions"
    for question in asked.all():
        if "Run this cell" not in question.inner_text():
            yield "a question that does not say how to answer it"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem[:2])
def test_a_lesson_without_a_kernel(shown: Shown, lesson: Path) -> None:
    notebook = nbformat.read(lesson, as_version=4)
    assert list(missing(shown(notebook), notebook)) == []


def test_what_is_missing_would_be_noticed(shown: Shown) -> None:
    """Negative control: a broken picture, one without words, and a widget that has no page."""
    notebook = nbformat.v4.new_notebook()
    broken = f'<img alt="three words here" src="{FIGURE};base64,AAAA">'
    mute = f'<img alt="" src="{FIGURE};base64,AAAA">'
    for data in ({"text/html": broken}, {"text/html": mute}, {"text/plain": "Loading widget..."}):
        cell = nbformat.v4.new_code_cell("ask('00-text')")
        cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
        notebook.cells.append(cell)
    told = list(missing(shown(notebook), notebook))
    assert told == [
        "Loading widget",
        "a figure without a picture: three words here",
        "a figure without a picture: ",
        "a figure without a sentence: ''",
        "an output without a page",
        "0 of 3 questions",
    ]
