"""Are the figures of a lesson the same in every run?

Owns: which drawings of a cell are compared, and what is said of one that differs.
Does not know: how the cell was run: nbval and the browser tests both ask here.
Invariants: the drawings of a stored lesson and those of a fresh run are compared byte by byte; only
a cell tagged ``nbval-ignore-output``, whose figure shows seconds of this machine, is left out.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any

MEASURED = "nbval-ignore-output"
_DRAWING = re.compile(
    r'<svg\b.*?</svg>|<img\b[^>]*\bsrc="data:image/svg\+xml;base64,([^"]*)"', re.DOTALL
)


def drawings(outputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The SVG drawings in the pages of some outputs, in order, as they are or stored as images."""
    pages = ("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    return [
        base64.b64decode(found[1]).decode() if found[1] is not None else found[0]
        for page in pages
        for found in _DRAWING.finditer(page)
    ]


def changes(stored: Mapping[str, Any], outputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """One sentence for each drawing of a stored cell that a fresh run of it has not drawn again."""
    if MEASURED in stored["metadata"].get("tags", ()):
        return []
    before, now = drawings(stored["outputs"]), drawings(outputs)
    if len(before) != len(now):
        return [f"figures: expected {len(before)} as stored, got {len(now)}"]
    return [
        f"figure {number}: expected the stored drawing, got another from character {_at(old, new)}:"
        f" {old[_at(old, new) :][:80]!r} has become {new[_at(old, new) :][:80]!r}. Next: "
        f"make notebooks; if it shows measured seconds, tag its cell {MEASURED!r}"
        for number, (old, new) in enumerate(zip(before, now, strict=True), 1)
        if old != new
    ]


def _at(old: str, new: str) -> int:
    """Where two texts part."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
