"""A cell that runs again makes its widgets anew; those of its earlier run are closed.

Owns: which run of which cell made a widget. Does not know: what widgets show.
Invariants: nothing but what the same cell made when it ran before is closed; where cells have no
names (a script, an old front end) nothing is.

ipywidgets keeps every widget, and the channel to its twin in the browser, until it is closed: a
cell with a stepper that ran twenty times would hold twenty films.
"""

from collections.abc import Iterator
from typing import Any

from IPython import get_ipython
from ipywidgets import Widget
from ipywidgets.widgets import widget as registry


def take_over(widget: Widget) -> None:
    """Close what this cell made, and marked by this function, in an earlier run."""
    widget.made_by = here = _run_of_cell()
    cell, run = here
    for other in _open():
        its_cell, its_run = getattr(other, "made_by", ("", ""))
        if cell and its_cell == cell and its_run != run:
            close_whole(other)


def close_whole(widget: Widget) -> None:
    """Close a widget with its layout, its style and all that it holds."""
    if widget.comm is None:
        return
    parts = [part for value in widget.trait_values().values() for part in _widgets_in(value)]
    widget.close()
    for part in parts:
        close_whole(part)


def _widgets_in(value: Any) -> Iterator[Widget]:
    held = value if isinstance(value, (tuple, list)) else (value,)
    return (part for part in held if isinstance(part, Widget))


def _run_of_cell() -> tuple[str, str]:
    """The name of the cell that is running and the number of this run; empty where unknown."""
    parent: dict[str, Any] = getattr(get_ipython(), "get_parent", dict)()
    return (
        str(parent.get("metadata", {}).get("cellId", "")),
        str(parent.get("header", {}).get("msg_id", "")),
    )


def _open() -> list[Widget]:
    """Every open widget; ipywidgets 7 keeps the list elsewhere than 8."""
    kept = vars(registry).get("_instances")
    return list((Widget.widgets if kept is None else kept).values())
