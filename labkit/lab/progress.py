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
    """A bar that redraws itself on a terminal, and elsewhere one line per step of the work."""
    redraws = stream.isatty()
    last: list[str] = [""]

    def show(what: str, done: int, total: int) -> None:
        if not redraws:
            if what != last[0]:
                print(what, file=stream, flush=True)
                last[0] = what
            return
        line = _line(what, done, total)
        if line != last[0]:
            ending = "\n" if total and done >= total else ""
            stream.write(f"\r{line}\x1b[K{ending}")
            stream.flush()
            last[0] = line

    return show


def _line(what: str, done: int, total: int) -> str:
    if not total:
        return what
    filled = min(_BAR, _BAR * done // total)
    bar = "#" * filled + "." * (_BAR - filled)
    return f"{what} [{bar}] {100 * done // total:3d} %"
