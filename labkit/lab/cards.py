"""A short message that shows itself in a notebook: glyph, text, colour, never colour alone.

Owns: the look. Does not know: what is said.
Invariants: ``repr`` is the message in plain text; the html holds no script.
"""

import html
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

# Okabe and Ito 2008, as in labkit.viz; each is told by its glyph too.
_BORDER = {"✓": "#009E73", "✗": "#D55E00", "…": "#999999", "?": "#0072B2"}


@dataclass(frozen=True, slots=True)
class Card:
    """glyph: ✓ right, ✗ not yet, … waiting, ? a question; text: sentences, `code` in backticks."""

    glyph: str
    text: str

    @property
    def html(self) -> str:
        colour = _BORDER[self.glyph]
        style = f"border-left:4px solid {colour};padding:.5em .9em;margin:.3em 0;line-height:1.5"
        return f'<div role="status" style="{style}"><b>{self.glyph}</b> {rich(self.text)}</div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"{self.glyph} {plain(self.text)}"


class Carded(ABC):
    """A record that shows itself as its card. A dataclass of this kind says ``repr=False``."""

    __slots__ = ()

    @property
    @abstractmethod
    def card(self) -> Card: ...

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.card._repr_mimebundle_()

    def __repr__(self) -> str:
        return repr(self.card)


def interactive(widget: Any, *, html: str, text: str) -> dict[str, Any]:
    """What a notebook shows of ``widget``: itself, and for pages without a kernel the rest."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {
        "text/plain": text,
        "text/html": html,
        "application/vnd.jupyter.widget-view+json": view,
    }


def rich(text: str) -> str:
    """HTML of a sentence: special characters escaped, `code` and *emphasis* marked up."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    return re.sub(r"\*(?=\S)([^*\n]+)(?<=\S)\*", r"<em>\1</em>", marked).replace("\n", "<br>")


def plain(text: str) -> str:
    """The sentence without its mark-up."""
    return re.sub(r"\*(?=\S)([^*\n]+)(?<=\S)\*", r"\1", text.replace("`", ""))
