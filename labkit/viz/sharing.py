"""Give a recorded run away, as a link that holds the whole file.

Owns: the link and its words. Does not know: widgets, models.
Invariants: no script, no server; the link holds the very bytes of ``Trace.save``; its size is told.
"""

import base64
import re
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadInput
from labkit.trace import Trace
from labkit.trace_file import pack
from labkit.viz.svg import escape

LARGEST = 1_000_000  # bytes; beyond that a cell's output grows too large to be sent or saved


@dataclass(frozen=True, slots=True)
class Shared:
    """name: of the file; data: its bytes; told: the run in a few words."""

    name: str
    data: bytes
    told: str

    @property
    def html(self) -> str:
        """The link: a click saves the file."""
        address = "data:application/gzip;base64," + base64.b64encode(self.data).decode()
        name = escape(self.name)
        return (
            f'<p style="line-height:1.5"><a download="{name}" href="{address}">Download {name}</a> '
            f"({self._size}): {escape(self.told)}<br>Open it elsewhere with "
            f'<code>Trace.load("{name}")</code> or <code>viz.Opener()</code>. '
            "It holds the prompt and the text of the run.</p>"
        )

    @property
    def _size(self) -> str:
        return f"{max(1, round(len(self.data) / 1000))} kB"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"{self.name} ({self._size}), to download: {self.told}"


def share(trace: Trace, name: str = "run") -> Shared:
    """``trace`` as a download link for a notebook's page.

    Args:
        name: of the file, without its ending.

    Raises:
        BadInput: a name that is no file name, or a run too large for a link.
    """
    if not re.fullmatch(r"[\w. -]{1,80}", name) or name.startswith("."):
        raise BadInput(
            "name of a file",
            expected="letters, digits, spaces, dots, - and _",
            got=repr(name),
            next_step="choose another name",
        )
    data = pack(trace.dumps())
    if len(data) > LARGEST:
        raise BadInput(
            "run to share",
            expected=f"at most {LARGEST // 1000} kB as a file",
            got=f"{len(data) // 1000} kB",
            next_step='write it with trace.save("run.json.gz") and share that file',
        )
    ending = "" if name.endswith((".json.gz", ".gz")) else ".json.gz"
    told = f"{trace.started.method}, {len(trace.tokens)} new tokens."
    return Shared(name + ending, data, told)
