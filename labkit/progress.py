"""How long work tells that it is alive.

Owns: the ``Progress`` signature and two ways to show it.
Does not know: what the work is.
Invariants: nothing goes to stdout, which belongs to results.
"""

from collections.abc import Callable
from typing import TextIO

# (what is being done, units done, units in total; total 0 when unknown)
Progress = Callable[[str, int, int], None]

_BAR = 30


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


def text_bar(stream: TextIO) -> Progress:
    """A bar that redraws itself on a terminal; elsewhere a line per step and per quarter of it."""
    redraws = stream.isatty()
    last = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        line = _line(what, done, total) if redraws else _quarter(what, done, total)
        if line == last:
            return
        last = line
        if redraws:
            ending = "\n" if total and done >= total else ""
            stream.write(f"\r{line}\x1b[K{ending}")
        else:
            stream.write(f"{line}\n")
        stream.flush()

    return show


def _quarter(what: str, done: int, total: int) -> str:
    return f"{what} ({25 * (4 * done // total)} %)" if total else what


def _line(what: str, done: int, total: int) -> str:
    if not total:
        return what
    filled = min(_BAR, _BAR * done // total)
    bar = "#" * filled + "." * (_BAR - filled)
    return f"{what} [{bar}] {100 * done // total:3d} %"
