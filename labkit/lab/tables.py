"""A small table that shows itself in a notebook, with one sentence that says the same.

Owns: the look. Does not know: what stands in it.
Invariants: ``repr`` is the sentence; the html holds table and sentence and no script.
"""

from dataclasses import dataclass
from typing import Any

from labkit.lab.cards import plain, rich

_CELL = "padding:.25em .8em;vertical-align:top;text-align:"


@dataclass(frozen=True, slots=True)
class Table:
    """columns: names; rows: one text per column, the first names the row; sentence: what the table
    says. Texts may mark `code` and *emphasis*."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sentence: str

    @property
    def html(self) -> str:
        head = "".join(f'<th scope="col" style="{_CELL}left">{rich(c)}</th>' for c in self.columns)
        body = "".join(f"<tr>{_row(row)}</tr>" for row in self.rows)
        return (
            '<div style="overflow-x:auto"><table style="border-collapse:collapse">'
            '<caption style="caption-side:bottom;text-align:left;padding:.4em 0;line-height:1.5">'
            f"{rich(self.sentence)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return plain(self.sentence)


def _row(texts: tuple[str, ...]) -> str:
    first, *rest = texts
    cells = "".join(f'<td style="{_CELL}left">{rich(text)}</td>' for text in rest)
    return f'<th scope="row" style="{_CELL}left;font-weight:normal">{rich(first)}</th>{cells}'
