"""A folder of recorded runs, listed and opened.

Owns: what a row of the list says. Does not know: torch, models, how runs are recorded.
Invariants: everything in a row is counted from the run itself, but for its title.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit.errors import BadInput
from labkit.lab.tables import Table
from labkit.machine import Machine
from labkit.metrics import acceptance
from labkit.trace import Trace

TRACES = Path(__file__).with_name("traces")
MACHINE = "machine.json"
_ENDINGS = (".json.gz", ".json")
_COLUMNS = ("name", "title", "model", "method", "temperature", "tokens", "mean accepted length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One recorded run. mean_accepted_length: committed tokens / rounds, the target's own counted;
    None for a run without a round. stopped: why it ended, "" when it was cut short."""

    name: str
    title: str
    model: str
    method: str
    temperature: float
    tokens: int
    mean_accepted_length: float | None
    stopped: str

    @property
    def row(self) -> tuple[str, ...]:
        length = self.mean_accepted_length
        return (f"`{self.name}`", self.title, self.model, self.method, f"{self.temperature:g}",
                str(self.tokens), "n/a" if length is None else f"{length:.2f}")  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Gallery:
    """Recorded runs of one folder; shows itself as a table. Call it for another folder."""

    folder: Path = TRACES

    def __call__(self, folder: str | Path | None = None) -> "Gallery":
        """This gallery, or that of ``folder``.

        Raises:
            BadInput: there is no such folder.
        """
        if folder is None:
            return self
        if not os.path.isdir(folder):  # unlike Path's, it answers for impossible names too
            raise BadInput(
                "gallery",
                expected="a folder with recorded runs (.json or .json.gz)",
                got=str(folder),
                next_step="check the path",
            )
        return Gallery(Path(folder))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all runs, in alphabetical order."""
        return tuple(sorted(self._files()))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """One row for each run; see `listing`."""
        return self.listing[0]

    @property
    def listing(self) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
        """One row for each run, and the names of the files that are no runs of this version.

        Raises:
            BadInput: a folder that cannot be read, or one with such files alone.
        """
        files, entries, left_out = self._files(), [], []
        refused: BadInput | None = None
        for name in sorted(files):
            try:
                entries.append(_entry(name, self.open(name)))
            except BadInput as error:
                left_out.append(files[name].name)
                refused = refused or error
        if refused and not entries:
            raise refused
        return tuple(entries), tuple(left_out)

    def open(self, name: str) -> Trace:
        """The run of that name.

        Raises:
            BadInput: there is none, or its file cannot be read.
        """
        files = self._files()
        if name not in files:
            raise BadInput(
                "recorded run",
                expected="one of " + (", ".join(sorted(files)) or "none: the gallery is empty"),
                got=repr(name),
                next_step="choose one of these",
            )
        try:
            changed = files[name].stat().st_mtime_ns
        except OSError:  # a link to nothing: the loader says so
            changed = 0
        return _load(files[name], changed)

    def plain(self, name: str) -> Trace | None:
        """Plain decoding of the same prompt by the same model, if that was recorded too."""
        run = self.open(name)
        for other in self.entries:
            if other.method == "ar" and _same(plain := self.open(other.name), run):
                return plain
        return None

    @property
    def machine(self) -> Machine:
        """What was measured on the machine that recorded these runs, for `labkit.viz.WhatIf`.

        Raises:
            BadInput: nothing was, or the file cannot be read.
        """
        return Machine.load(self.folder / MACHINE)

    def play(self, name: str, **options: Any) -> Any:
        """A stepper over the run, with the time of plain decoding beside its own.

        Args:
            options: as of `labkit.viz.Stepper`.
        """
        from labkit import viz

        run = self.open(name)
        title = _fact(run, "title", name)
        return viz.Stepper(run, **{"compare": self.plain(name), "title": title} | options)

    @property
    def table(self) -> Table:
        """What there is, with one sentence."""
        entries, left_out = self.listing
        rows = tuple(entry.row for entry in entries)
        many = f"{len(rows)} recorded runs" if len(rows) != 1 else "1 recorded run"
        told = f'{many}. Open one with `gallery.open("name")`, or step through it with '
        told += '`gallery.play("name")`.'
        return Table(_COLUMNS, rows, f"{told} {no_runs(left_out)}".rstrip())

    def _files(self) -> dict[str, Path]:
        try:
            return dict(_named(self.folder))
        except OSError as error:
            raise BadInput(
                "gallery",
                expected="a folder that may be read",
                got=f"{str(self.folder)!r}: {error.strerror}",
                next_step="check the path",
            ) from error

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.table._repr_mimebundle_()

    def __repr__(self) -> str:
        return repr(self.table)


def open_run(name_or_path: str | Path) -> Trace:
    """A run of the lab's own gallery by its name, or any other by its path."""
    text = str(name_or_path)
    is_path = text.endswith(_ENDINGS) or Path(text).name != text
    is_path = is_path or (os.path.exists(text) and text not in gallery.names)
    return Trace.load(text) if is_path else gallery.open(text)


def no_runs(files: tuple[str, ...]) -> str:
    """What to tell of files in a folder of runs that are none; "" without any."""
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    named = ", ".join(files[:5]).encode(errors="replace").decode()
    return f"Left out, no recorded runs: {named}{more}." if files else ""


def _named(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.iterdir():
        ending = next((e for e in _ENDINGS if path.name.endswith(e)), None)
        if ending and path.name != MACHINE:
            yield path.name.removesuffix(ending), path


def _same(one: Trace, other: Trace) -> bool:
    return one.prompt == other.prompt and one.header.get("model") == other.header.get("model")


def _fact(run: Trace, name: str, default: str) -> str:
    """A fact of the header as a short text that any page can hold, whoever wrote it."""
    words = str(run.header.get(name, default))[:200]
    return words.encode(errors="replace").decode()


def _entry(name: str, run: Trace) -> Entry:
    settings = run.header.get("settings", {})
    return Entry(
        name=name,
        title=_fact(run, "title", name),
        model=_fact(run, "model", ""),
        method=run.started.method,
        temperature=float(settings.get("temperature", 0.0)),
        tokens=len(run.tokens),
        mean_accepted_length=acceptance(run).mean_accepted_length,
        stopped=run.finished.reason if run.finished else "",
    )


@lru_cache(maxsize=64)  # a list of runs is asked for often, and runs do not change
def _load(path: Path, changed: int) -> Trace:
    return Trace.load(path)


gallery = Gallery()
"""The runs that come with the lab."""
