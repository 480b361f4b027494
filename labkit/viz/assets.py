"""The script and the style sheet of each widget, joined with what all widgets share.

Owns: the joining, and the names of the colours that controls have. Does not know: what is shown.
Invariants: anywidget takes one script and one sheet per widget, and neither may ask a server for
another; so what is shared is a file of its own (static/shared.js, static/shared.css) and stands in
front of each widget's own; a script names what it takes from there in its import line, which the
joining drops.
"""

import re
from functools import cache
from pathlib import Path

from labkit.viz.theme import LOOKS, SANS, style_sheet

_STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./shared\.js";\n', re.MULTILINE)


def script(name: str) -> str:
    """The module ``name``.js, whole."""
    return _read("shared.js") + "\n" + _IMPORT.sub("", _read(f"{name}.js"))


def sheet(name: str) -> str:
    """The rules of ``name``.css, after those of the pictures and of all widgets."""
    return "\n".join((style_sheet(), _named(), _read("shared.css"), _read(f"{name}.css")))


@cache
def desk() -> str:
    """A style element for boxes of plain ipywidgets, whose class is labkit-desk."""
    return f"<style>{_named()}{_read('desk.css')}</style>"


def _named() -> str:
    """The colours and letters of controls, as variables."""
    named = {
        "accent": LOOKS["bonus"].colour,
        "mark": LOOKS["resampled"].colour,
        "sans": SANS,
    }
    variables = ";".join(f"--lk-{key}:{value}" for key, value in named.items())
    return f".labkit-widget,.labkit-desk{{{variables}}}"


def _read(file: str) -> str:
    return (_STATIC / file).read_text(encoding="utf-8")
