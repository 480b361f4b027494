"""A small table that shows itself in a notebook, with one sentence that says the same.

Owns: the look. Does not know: what stands in it.
Invariants: ``repr`` is the sentence; the html holds table and sentence and no script; numbers of
a column end below each other.
"""

import re
from dataclasses import dataclass
from typing import Any

from labkit.lab.cards import plain, rich

_CELL = "padding:.25em .8em;vertical-align:top;text-align:"
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
        body = "".join(f"<tr>{_row(row, sides)}</tr>" for row in self.rows)
        return (
            '<div style="overflow-x:auto"><table style="border-collapse:collapse;'
            'font-variant-numeric:tabular-nums">'
            '<caption style="caption-side:bottom;text-align:left;padding:.4em 0;line-height:1.5">'
            f"{rich(self.sentence)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _side(self, column: int) -> str:
        """Where the texts of a column begin or end; the first one names its row."""
        texts = [row[column] for row in self.rows]
        numbers = column > 0 and texts and all(map(_NUMBER.fullmatch, texts))
        return "right" if numbers else "left"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return plain(self.sentence)


def _row(texts: tuple[str, ...], sides: list[str]) -> str:
    first, *rest = texts
    cells = "".join(
        f'<td style="{_CELL}{side}">{rich(text)}</td>'
        for text, side in zip(rest, sides[1:], strict=True)
    )
    return f'<th scope="row" style="{_CELL}left;font-weight:normal">{rich(first)}</th>{cells}'
