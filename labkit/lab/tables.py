"""A small table that shows itself in a notebook, with one sentence that says the same.

Owns: the look. Does not know: what stands in it.
Invariants: ``repr`` is the sentence; the html holds table and sentence and no script; numbers of
a column end below each other; on a telephone a wide table becomes one card for each row.
"""

import html
import re
from dataclasses import dataclass
from typing import Any

from labkit.lab.cards import plain, rich

_CELL = "padding:.25em .8em;vertical-align:top;text-align:"
_WIDE = 60  # characters; a telephone shows some 45 in a line
_CARDS = (
    "<style>@media (max-width:600px){"
    ".labkit-cards,.labkit-cards :is(caption,tbody,tr,th,td)"
    "{display:block;text-align:left!important}"
    ".labkit-cards thead,.labkit-cards td:empty{display:none}"
    ".labkit-cards tr{padding:.5em 0;border-bottom:1px solid #999999}"
    ".labkit-cards td{padding:.1em .8em!important}"
    ".labkit-cards td::before{content:attr(data-column) ': ';font-weight:600}}</style>"
)
_NONE = "–"
_NUMBER = re.compile(r"[<>]?-?\d+(\.\d+)?[×%]?|n/a")


@dataclass(frozen=True, slots=True)
class Table:
    """columns: names; rows: one text per column, the first names the row; sentence: what the table
    says. Texts may mark `code` and *emphasis*."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sentence: str

    @property
    def html(self) -> str:
        sides = [self._side(i) for i in range(len(self.columns))]
        head = "".join(
            f'<th scope="col" style="{_CELL}{side}">{rich(name)}</th>'
            for name, side in zip(self.columns, sides, strict=True)
        )
        body = "".join(f"<tr>{self._row(row, sides)}</tr>" for row in self.rows)
        style, kind = (_CARDS, ' class="labkit-cards"') if self._wide else ("", "")
        return (
            f'<div style="overflow-x:auto">{style}<table{kind} style="border-collapse:collapse;'
            'font-variant-numeric:tabular-nums">'
            '<caption style="caption-side:bottom;text-align:left;padding:.4em 0;line-height:1.5">'
            f"{rich(self.sentence)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    @property
    def _wide(self) -> bool:
        every = zip(self.columns, *self.rows, strict=True)
        return sum(max(map(len, texts)) for texts in every) > _WIDE

    def _row(self, texts: tuple[str, ...], sides: list[str]) -> str:
        cells = "".join(
            f'<td style="{_CELL}{side}" data-column="{html.escape(plain(name))}">{rich(text)}</td>'
            for name, text, side in zip(self.columns[1:], texts[1:], sides[1:], strict=True)
        )
        first = rich(texts[0])
        return f'<th scope="row" style="{_CELL}left;font-weight:normal">{first}</th>{cells}'

    def _side(self, column: int) -> str:
        """Where the texts of a column begin or end; the first one names its row."""
        texts = [row[column] for row in self.rows]
        counted = [text for text in texts if text != _NONE]
        numbers = column > 0 and counted and all(map(_NUMBER.fullmatch, counted))
        return "right" if numbers else "left"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return plain(self.sentence)
