"""The file of a trace: JSON text, plain or gzipped, written whole or not at all.

Owns: bytes on disk and in a link, and what is said about a file that is no trace.
Does not know: what stands in a trace.
Invariants: the same text gives the same bytes; a file is refused before anything is made of it; a
small file cannot unpack into one that fills the memory.
"""

import contextlib
import errno
import gzip
import io
import json
import os
import secrets
import zlib
from pathlib import Path
from typing import Any

from labkit.errors import BadInput
from labkit.events import SCHEMA_VERSION
from labkit.whole_file import beside

LARGEST = 64 * 1024 * 1024  # bytes of JSON; a full trace of 64 tokens has 0.3 million
_OPEN = "open a file that `labkit generate --trace` wrote, or Trace.save in Python"
_RUN = "open the .json or .json.gz file of the run itself"
_GZIP = b"\x1f\x8b"
# What people save by mistake, by its first bytes.
_OTHERS = (
    (b"<", "a web page", "download the file itself (the raw file), not the page that shows it"),
    (b"PK", "a zip archive", "unpack the archive and open the trace in it"),
    (b"\x89PNG", "a picture", "open the .json or .json.gz file of the run"),
)


def pack(text: str) -> bytes:
    """``text`` gzipped, without name and date, so that equal traces are equal files."""
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def writable(path: str | Path, *, name: str = "") -> Path:
    """The place of ``path``, if a file can be written there; for asking before any work.

    Args:
        name: how an error calls it, for instance an option of the command line.

    Raises:
        BadInput: a path that is no ordinary file, that no file can have, or without a folder.
    """
    name = name or called(path)
    try:
        place = Path(path).resolve()
        with contextlib.suppress(FileNotFoundError):
            place.with_name(f"{place.name}{_mark()}.part").stat()  # is there room for the name?
        if place.exists() and not place.is_file():
            raise _unwritable(name, f"{_short(path)}, a folder, a pipe or a device")
        if not place.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not os.access(place.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        raise _unwritable(name, f"{_short(path)}: {_words(error)}") from error
    return place


def write(path: str | Path, text: str) -> Path:
    """Write ``text``, gzipped when ``path`` ends in ``.gz``; the file appears whole or not at all.

    Raises:
        BadInput: a path that is no ordinary file or that cannot be written.
    """
    place = writable(path)
    data = pack(text) if place.suffix == ".gz" else text.encode()
    try:
        with beside(place, mark=_mark()) as part:
            part.write_bytes(data)
    except OSError as error:
        raise _unwritable(called(path), _words(error)) from error
    return place


def read(path: str | Path) -> Any:
    """The JSON value in a file, gzipped or not, whatever its name.

    Raises:
        BadInput: a file that is missing, cut off, too large or no JSON.
    """
    name = called(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        next_step = "check the path, or record the run again"
        raise _unreadable(name, _words(error), next_step) from error
    return parse(data, name=name)


def parse(data: bytes, *, name: str) -> Any:
    """The JSON value in ``data``; ``name`` is how an error calls it. Raises: see `read`."""
    again = "get the file once more from where it was recorded"
    for start, got, next_step in _OTHERS:
        if data.lstrip()[:8].startswith(start):
            raise _unreadable(name, got, next_step)
    try:
        text = _plain(data, name).decode()
        return json.loads(text, parse_constant=_no_number)
    except BadInput:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        got = f"a gzip file that is cut off or damaged ({error})"
        raise _unreadable(name, got, again) from error
    except json.JSONDecodeError as error:
        early = error.pos >= len(error.doc.rstrip()) - 1 or error.msg.startswith("Unterminated")
        got = f"{'a file that ends too early' if early else 'text that is no JSON'} ({error})"
        raise _unreadable(name, got, again) from error
    except UnicodeDecodeError as error:
        raise _unreadable(name, f"bytes that are no text ({error.reason})", again) from error
    except RecursionError as error:
        got = "lists in lists, deeper than any trace"
        raise _unreadable(name, got, again) from error
    except ValueError as error:
        raise _unreadable(name, f"a number that is none ({error})", again) from error


def _no_number(word: str) -> None:
    """NaN and infinity, which JSON does not know."""
    raise ValueError(word)


def check_schema(record: Any, *, name: str = "trace") -> None:
    """Refuse what is no trace of this version; ``name`` is how an error calls it.

    Raises:
        BadInput: saying what it is instead, as far as that can be told.
    """
    found = record.get("schema") if isinstance(record, dict) else None
    if type(found) is int and found == SCHEMA_VERSION:
        return
    got, next_step = f"schema {found!r}", "record the run again with this version of the lab"
    if not isinstance(record, dict):
        got, next_step = f"JSON of another kind ({type(record).__name__})", _OPEN
    elif "traceEvents" in record:
        got = "a Chrome trace, which does not hold the whole run"
        next_step = _RUN
    elif "schema" not in record:
        got, next_step = "JSON of another kind, without a schema", _OPEN
    elif type(found) is int and found > SCHEMA_VERSION:
        got = f"schema {found}, from a newer version of the lab"
        next_step = "update labkit, or ask for the run recorded with this version"
    of_schema = f" of schema {SCHEMA_VERSION}" if next_step not in (_OPEN, _RUN) else ""
    expected = f"a recorded run{of_schema}"
    raise BadInput(name, expected=expected, got=got, next_step=next_step)


def _plain(data: bytes, name: str) -> bytes:
    if data.startswith(_GZIP):
        with gzip.open(io.BytesIO(data)) as unpacked:
            data = unpacked.read(LARGEST + 1)
    if len(data) > LARGEST:
        got = f"more than {LARGEST // 1024**2} MiB of it"
        raise _unreadable(name, got, "record fewer tokens, or at detail 'summary'")
    return data


def _mark() -> str:
    """In the name of the part while a file is written, where several may write the same."""
    return f".{secrets.token_hex(4)}"


def called(path: str | Path) -> str:
    """How an error calls a trace's file."""
    return f"trace file {_short(path)}"


def _short(path: str | Path) -> str:
    """A path as an error calls it, even one of thousands of characters."""
    words = str(path)
    return repr(words if len(words) <= 200 else f"{words[:100]}…{words[-50:]}")


def _words(error: OSError | ValueError) -> str:
    """What the system said of a path, without names of Python."""
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read or written"
    return f"a name that no file can have ({error})"


def _unreadable(name: str, got: str, next_step: str) -> BadInput:
    expected = "the JSON file of a recorded run, plain or gzipped"
    return BadInput(name, expected=expected, got=got, next_step=next_step)


def _unwritable(name: str, got: str) -> BadInput:
    return BadInput(
        name,
        expected="a file in a folder that exists and may be written to",
        got=got,
        next_step="make the folder first, or choose another path",
    )
