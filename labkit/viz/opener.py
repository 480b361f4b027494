"""Open a run that someone shared: a file field in the notebook.

Owns: the field, and what is said to a file that is no run. Does not know: drawing.
Invariants: nothing is made of a file that was refused, and what was open before stays; the file
goes from the reader's browser to the reader's kernel, and nowhere else.

A field of our own, because the file field of ipywidgets 7 and that of 8 hold their files in
different forms. Needs anywidget; ``Trace.load(path)`` does the same without it.
"""

import base64
import binascii
from typing import Any

import anywidget
import traitlets

from labkit import trace_file
from labkit.errors import BadInput
from labkit.trace import Trace
from labkit.viz.assets import script, sheet
from labkit.viz.turnover import take_over

LARGEST = 4_000_000  # bytes that the browser sends; notebook servers take up to ten million


class Opener(anywidget.AnyWidget):
    """A field that takes a ``.json`` or ``.json.gz`` file of a run.

        opener = viz.Opener()
        opener                      # choose a file; then, in the next cell:
        viz.Stepper(opener.trace)

    Attributes:
        told: what was opened, or why it was refused.
    """

    _esm = script("opener")
    _css = sheet("opener")
    _ipython_display_ = None  # see `labkit.viz.stepper.Stepper`
    file: Any = traitlets.List().tag(sync=True)  # [name, base64 of the bytes]
    told = traitlets.Unicode("No file yet.").tag(sync=True)
    largest = traitlets.Int(LARGEST).tag(sync=True)

    def __init__(self) -> None:
        self._trace: Trace | None = None
        super().__init__()
        take_over(self)

    @property
    def trace(self) -> Trace:
        """The run that was opened last.

        Raises:
            BadInput: none was.
        """
        if self._trace is None:
            raise BadInput(
                "shared run",
                expected="a file in the field above",
                got=self.told,
                next_step="choose a file and run this cell again, or use Trace.load(path)",
            )
        return self._trace

    @traitlets.observe("file")
    def _open(self, change: dict[str, Any]) -> None:
        if not change["new"]:
            return
        try:
            name, packed = change["new"]
            data = base64.b64decode(packed, validate=True)
            called = trace_file.called(name)
            trace = Trace.from_json(trace_file.parse(data, name=called), name=called)
            began = trace.started
        except BadInput as error:
            self.told = f"✗ {error}"
        except (ValueError, TypeError, binascii.Error) as error:
            self.told = f"✗ The file did not arrive whole ({error}). Choose it once more."
        else:
            self._trace = trace
            self.told = f"✓ {name}: {began.method}, {len(trace.tokens)} new tokens."

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle
        page = "<p>A field for the file of a recorded run. <em>Run this cell to use it.</em></p>"
        return {**data, "text/html": page, "text/plain": repr(self)}, metadata

    def __repr__(self) -> str:
        return f"Open a recorded run. {self.told}"
