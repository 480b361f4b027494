"""Show the source that runs: the very lines, with their file and number.

Owns: finding and colouring source. Does not know: what it shows.
Invariants: nothing is paraphrased; the file is named from the package on, so that a stored
notebook tells nothing about the machine it was made on.
"""

import html
import inspect
import io
import keyword
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadInput

# JupyterLab's own editor colours where there are any, so that both themes stay readable.
_COLOURS = {"keyword": "#00662e", "def": "#0030b3", "string": "#a31515", "comment": "#386a6a"}
_KINDS = {tokenize.STRING: "string", tokenize.COMMENT: "comment"}


@dataclass(frozen=True, slots=True)
class Source:
    """Some lines of a file. file: from the package on; line: number of the first one."""

    name: str
    file: str
    line: int
    code: str

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}"

    @property
    def html(self) -> str:
        """Coloured source; without style sheets it is still the source in a fixed-width font."""
        rules = "".join(
            f".labkit-source .lk-{kind}{{color:var(--jp-mirror-editor-{kind}-color,{colour})}}"
            for kind, colour in _COLOURS.items()
        )
        body = "".join(_coloured(self.code))
        return (
            f'<div class="labkit-source"><style>{rules}</style>'
            f"<div><b>{html.escape(self.place)}</b></div>"
            '<pre style="overflow-x:auto;line-height:1.4;margin:.3em 0;font-family:'
            'var(--jp-code-font-family,ui-monospace,monospace)" tabindex="0" '
            f'aria-label="Source of {html.escape(self.name)}">{body}</pre></div>'
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"# {self.place}\n{self.code}"


def show(thing: Any) -> Source:
    """The source of a function, class or method of the lab, as it runs.

    Raises:
        BadInput: something that has no Python source, such as a number or a built-in.
    """
    try:
        lines, start = inspect.getsourcelines(thing)
    except (TypeError, OSError) as error:
        raise BadInput(
            "show",
            expected="a function or class written in Python",
            got=type(thing).__name__,
            next_step="show the function itself: show(verify), without calling it",
        ) from error
    module = inspect.getmodule(thing)
    name = module.__name__ if module else "__main__"
    file = "this notebook" if name == "__main__" else name.replace(".", "/") + ".py"
    code = textwrap.dedent("".join(lines)).rstrip() + "\n"
    return Source(getattr(thing, "__qualname__", str(thing)), file, start, code)


def _coloured(code: str) -> Iterator[str]:
    """The code as html, keywords, strings, comments and defined names in spans."""
    lines = code.splitlines(keepends=True)
    row, column, before = 1, 0, ""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        gap = _between(lines, (row, column), token.start)
        yield html.escape(gap, quote=False)
        text = html.escape(token.string, quote=False)
        kind = _KINDS.get(token.type)
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            kind = "keyword"
        elif before in ("def", "class"):
            kind = "def"
        yield f'<span class="lk-{kind}">{text}</span>' if kind and text else text
        (row, column), before = token.end, token.string


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The text of ``lines`` from ``start`` to ``end``, both (row from 1, column)."""
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]] if start[0] <= len(lines) else ""
    first, last = lines[start[0] - 1][start[1] :], lines[: end[0]][end[0] - 1 :]
    middle = lines[start[0] : end[0] - 1]
    return "".join([first, *middle, *(line[: end[1]] for line in last)])
