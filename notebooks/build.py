"""Build the lessons: notebooks/src/NN_name.py (py:percent) -> notebooks/NN_name.ipynb, executed.

Owns: what a stored notebook contains: outputs and counts, no widget state, no timings, stable
cell ids and the same bytes for the same outputs.
Does not know: what the lessons say.
Invariants: a lesson that fails leaves the notebook that was there as it was; sources hold no public
address: a code cell tagged ``setup`` becomes the set-up cell, and ``{{badge}}`` in a Markdown cell
the link that opens the lesson on Colab.

    python notebooks/build.py [--no-execute] [NAME ...]

NAME is the beginning of a lesson's name, such as 03; without one, every lesson is built.
"""

import argparse
import base64
import os
import re
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbconvert.preprocessors import ExecutePreprocessor
from nbformat import NotebookNode

from labkit.lab.setup import colab_badge, setup_cell

HERE = Path(__file__).resolve().parent
CELL_TIMEOUT = 600  # seconds
READABLE = 640  # pixels; on a narrower page a stored picture is scrolled rather than shrunk
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def sources(names: list[str]) -> list[Path]:
    """Lesson sources, English first, whose file name starts with one of ``names``."""
    found = [*sorted((HERE / "src").glob("*.py")), *sorted((HERE / "src" / "fr").glob("*.py"))]
    return [path for path in found if not names or path.name.startswith(tuple(names))]


def target(source: Path) -> Path:
    """Where a source's notebook is stored: src/fr/x.py -> fr/x.ipynb."""
    return HERE / source.relative_to(HERE / "src").with_suffix(".ipynb")


def fill_in(notebook: NotebookNode, path: Path) -> None:
    """Put the set-up cell and the Colab link in their places."""
    lang = path.parent.name if path.parent != HERE else "en"
    badge = colab_badge(path.relative_to(HERE.parent).as_posix())
    for cell in notebook.cells:
        if cell.cell_type == "code" and "setup" in cell.metadata.get("tags", []):
            cell.source = setup_cell(lang)
        elif cell.cell_type == "markdown":
            cell.source = cell.source.replace("{{badge}}", badge)


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run every cell in a fresh kernel whose working directory is the notebook's own folder."""
    folder.mkdir(parents=True, exist_ok=True)
    runner = ExecutePreprocessor(
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,  # lines that came late belong to the same output
    )
    runner.preprocess(notebook, {"metadata": {"path": str(folder)}})


def tidy(notebook: NotebookNode, stem: str) -> None:
    """Drop what differs from run to run or belongs to one machine; keep outputs and counts."""
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    for index, cell in enumerate(notebook.cells):
        cell.id = f"{stem[:40]}-{index:02d}"
        kept = {key: cell.metadata[key] for key in ("tags", "nbgrader") if key in cell.metadata}
        cell.metadata = NotebookNode(kept)
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", {}):
                # without its state a view shows an error where the static picture could stand
                output.data.pop(WIDGET_VIEW, None)
                output.data["text/html"] = as_images("".join(output.data["text/html"]))
    notebook.nbformat, notebook.nbformat_minor = 4, 5


def as_images(page: str) -> str:
    """Drawings inside a page as images with their description as alternative text.

    A reader's JupyterLab cleans the pages of notebooks that it does not trust yet. It takes a
    drawing apart and leaves a heap of its labels; of an image it leaves the description.
    """

    def image(drawing: re.Match[str]) -> str:
        svg = drawing.group()
        said = re.search(r"<desc>(.*?)</desc>", svg, re.DOTALL)
        across = re.search(r'width="(\d+)"', svg)
        words = said.group(1).replace('"', "&quot;") if said else ""
        least = min(int(across.group(1)), READABLE) if across else READABLE
        data = base64.b64encode(svg.encode()).decode()
        return (
            f'<div style="overflow-x:auto"><img alt="{words}" '
            f'style="max-width:100%;min-width:{least}px;height:auto" '
            f'src="data:image/svg+xml;base64,{data}"></div>'
        )

    return re.sub(r"<svg\b.*?</svg>", image, page, flags=re.DOTALL)


def build(source: Path, *, run: bool) -> Path:
    """Build one lesson and return the notebook's path; nothing is written when a cell fails."""
    notebook = jupytext.read(source, fmt="py:percent")
    path = target(source)
    fill_in(notebook, path)
    if run:
        execute(notebook, path.parent)
    tidy(notebook, source.stem)
    nbformat.validate(notebook)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def main() -> int:
    """Command line; 0 when every lesson was built."""
    parser = argparse.ArgumentParser(description="Build the lessons from notebooks/src.")
    parser.add_argument("names", nargs="*", help="beginnings of lesson names; default: all")
    parser.add_argument("--no-execute", action="store_true", help="write without outputs")
    options = parser.parse_args()
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    chosen = sources(options.names)
    if not chosen:
        print(f"lesson: expected a source in {HERE / 'src'}, got none named {options.names}.")
        return 2
    for source in chosen:
        start = time.perf_counter()
        path = build(source, run=not options.no_execute)
        seconds = time.perf_counter() - start
        print(f"{path.relative_to(HERE.parent)}: {path.stat().st_size} bytes, {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
