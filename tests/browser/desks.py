"""A notebook open in JupyterLab or Notebook 7, as a reader sees it: run it, save it, step in it.

Owns: what is clicked and read on these pages. Does not know: servers, what a lesson says.
Invariants: whatever the console complains of is kept in ``page.complaints``, except the noises that
are named here, each with its reason.
"""

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import nbformat
from harness import PATIENCE
from playwright.sync_api import Browser, Locator, Page, TimeoutError

NOISES: dict[str, str] = {}
WIDGET_FAILS = re.compile(r"Error (displaying|creating) widget|Loading widget|[Mm]odel not found")
LESSON_TAKES = 900_000  # milliseconds at most; alone on two cores it is a tenth of that
_SVG, _BADGE = "image/svg+xml", '<svg xmlns="http://www.w3.org/2000/svg"/>'
TRIES = 24  # to begin a run, 5 seconds apart
_PROMPTS = ".jp-Notebook .jp-CodeCell .jp-InputArea-prompt"
_BEGUN = f"""() => [...document.querySelectorAll("{_PROMPTS}")]
  .some((node) => /[*\\d]/.test(node.textContent))"""
_DONE = f"""() => {{
  const said = [...document.querySelectorAll("{_PROMPTS}")].map((node) => node.textContent);
  const failed = document.querySelector(
    ".jp-Notebook [data-mime-type='application/vnd.jupyter.error']");
  const waiting = said.some((text) => text.includes("*"));
  if (document.querySelector(".jp-Dialog")) return true;
  return !waiting && (failed !== null || said.every((text) => /\\d/.test(text)));
}}"""


def blank(stored: Path, folder: Path) -> Path:
    """A copy of a notebook without outputs and counts: what appears is of this run."""
    notebook = nbformat.read(stored, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    copy = folder / stored.name
    nbformat.write(notebook, copy)
    return copy


def listen(page: Page) -> Page:
    """Keep what the console complains of in ``page.complaints``."""
    complaints: list[str] = []
    page.complaints = complaints  # type: ignore[attr-defined]

    def keep(text: str) -> None:
        if not any(re.search(noise, text) for noise in NOISES):
            complaints.append(text)

    page.on("console", lambda m: keep(f"{m.text} {m.location}") if m.type == "error" else None)
    page.on("pageerror", lambda error: keep(str(error)))
    return page


def open_notebook(browser: Browser, address: str, **context: Any) -> Page:
    """The page of a notebook whose kernel is ready."""
    size = {"viewport": {"width": 1280, "height": 900}}
    page = listen(browser.new_context(**{**size, **context}).new_page())
    page.set_default_timeout(PATIENCE)
    # the one picture that lessons take from elsewhere: a test asks no network
    page.route("**/colab-badge.svg", lambda route: route.fulfill(body=_BADGE, content_type=_SVG))
    page.goto(address)
    page.locator(_PROMPTS).first.wait_for()
    ready = page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']")
    ready.first.wait_for(state="attached")
    return page


def run_all(page: Page) -> None:
    """Run every cell from the menu and wait for the last, or for one that fails."""
    for _ in range(TRIES):
        if page.evaluate(_BEGUN):
            break
        _ask_for_the_run(page)
        page.wait_for_timeout(5000)
    page.wait_for_function(_DONE, timeout=LESSON_TAKES, polling=300)
    assert page.locator(".jp-Dialog").all_inner_texts() == [], "nothing has to be asked"


def _ask_for_the_run(page: Page) -> None:
    """Once; a page that is still settling takes the click and does nothing, and where the kernel
    is not there yet it asks for one, with the lesson's own chosen."""
    for asked in page.locator(".jp-Dialog").all():
        assert "Select Kernel" in asked.inner_text()
        asked.locator("button.jp-mod-accept").click()
        return
    with contextlib.suppress(TimeoutError):  # of Playwright: such a question came in between
        page.get_by_role("menuitem", name="Run", exact=True).click(timeout=10_000)
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click(timeout=10_000)


def save(page: Page, path: Path) -> nbformat.NotebookNode:
    """Save from the keyboard, and read what then lies on the disk."""
    page.locator(".jp-Notebook .jp-Cell").first.click(position={"x": 3, "y": 3})
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")
    end = time.monotonic() + PATIENCE / 1000
    while not _has_run(path) and time.monotonic() < end:
        page.wait_for_timeout(200)
    return nbformat.read(path, as_version=4)


def _has_run(path: Path) -> bool:
    """Is the file, which may be in the middle of being written, one of a run to the end?"""
    try:
        notebook = nbformat.read(path, as_version=4)
    except nbformat.reader.NotJSONError:
        return False
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    return all(counts)


def drive(page: Page, stepper: Locator) -> None:
    """Step by keyboard, by button and by the pointer on the slider; everything has to follow."""
    slider = stepper.get_by_role("slider", name="Step")
    last = int(slider.get_attribute("max") or 0)
    cells = page.locator(".jp-Notebook .jp-Cell").count()

    def seen() -> tuple[int, str, str]:
        picture = stepper.locator(".labkit-stage svg > desc").text_content()
        return (
            int(slider.input_value()),
            stepper.locator(".labkit-sentence").inner_text(),
            picture or "",
        )

    stepper.scroll_into_view_if_needed()
    stepper.focus()
    told = {}
    for key, wanted in (
        ("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last),
    ):  # fmt: skip
        page.keyboard.press(key)
        at, sentence, picture = seen()
        assert at == wanted, key
        assert sentence
        told[at] = (sentence, picture)
    assert len(set(told.values())) == len(told), "every step has a sentence and a picture"
    for name, wanted in (("First", 0), ("Next", 1), ("Last", last), ("Back", last - 1)):
        stepper.get_by_role("button", name=name, exact=True).click()
        assert seen()[0] == wanted, name
    box = slider.bounding_box()
    assert box is not None
    slider.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    assert 0 < seen()[0] < last
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells, "keys are not the notebook's"
