"""A picture that shows itself in a notebook: drawing, words, or both, whatever the page can show.

Owns: the three representations (text/html, image/svg+xml, text/plain). Does not know: traces.
Invariants: ``repr(picture)`` is the sentence; the html holds drawing and sentence and no script.
"""

import re
from dataclasses import dataclass
from typing import Any

from labkit.viz.svg import escape

_READABLE = 640  # pixels; a picture made for a wider page is not shrunk below this


@dataclass(frozen=True, slots=True)
class Picture:
    """svg: a whole SVG document. sentence: the same in words. note: a hint below, may be empty.
    passages: (what it speaks of, words) of each passage that goes with the drawing."""

    svg: str
    sentence: str
    note: str = ""
    passages: tuple[tuple[str, str], ...] = ()

    @property
    def drawing(self) -> str:
        """The drawing; a narrow page scrolls it before it gets too small to read."""
        across = re.search(r'width="(\d+)"', self.svg)
        least = min(int(across.group(1)), _READABLE) if across else _READABLE
        return (
            f'<div style="overflow-x:auto"><div style="min-width:{least}px">{self.svg}</div></div>'
        )

    @property
    def html(self) -> str:
        """The drawing with the sentence as its caption."""
        told = "".join(
            f"<li><strong>{escape(place[:1].upper() + place[1:])}.</strong> {escape(words)}</li>"
            for place, words in self.passages
        )
        told = f'<ol style="max-width:60em">{told}</ol>' if told else ""
        note = f"<br><em>{escape(self.note)}</em>" if self.note else ""
        return (
            f'<figure style="margin:0">{self.drawing}<figcaption style="font-size:1rem;'
            f'line-height:1.5;max-width:60em">{escape(self.sentence)}{note}{told}</figcaption></figure>'
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "image/svg+xml": self.svg, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return self.sentence


def stands_still(missing: str) -> str:
    """What is said below a picture in a widget's place. missing: the pip package it needs."""
    return (
        f"This picture stands still because the package {missing!r} is not installed. "
        f"Next: pip install {missing}, restart the kernel and run this cell again."
    )
