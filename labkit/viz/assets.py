"""The script and the style sheet of each widget, joined with what all widgets share.

Owns: the joining, and the names of the colours that controls have. Does not know: what is shown.
Invariants: anywidget takes one script and one sheet per widget, and neither may ask a server for
another; so what is shared is a file of its own (static/shared.js, static/shared.css) and stands in
front of each widget's own; a script names what it takes from there in its import line, which the
joining drops.
"""

import re
from pathlib import Path

from labkit.viz.theme import LOOKS, MONO, SANS, style_sheet

_STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./shared\.js";\n', re.MULTILINE)


def script(name: str) -> str:
    """The module ``name``.js, whole."""
    return _read("shared.js") + "\n" + _IMPORT.sub("", _read(f"{name}.js"))


def sheet(name: str) -> str:
    """The rules of ``name``.css, after those of the pictures and of all widgets."""
    named = {
        "accent": LOOKS["bonus"].colour,
        "mark": LOOKS["resampled"].colour,
        "sans": SANS,
        "mono": MONO,
    }
    variables = ";".join(f"--lk-{key}:{value}" for key, value in named.items())
    rules = (style_sheet(), f".labkit-widget{{{variables}}}")
    return "\n".join((*rules, _read("shared.css"), _read(f"{name}.css")))


def _read(file: str) -> str:
    return (_STATIC / file).read_text(encoding="utf-8")
