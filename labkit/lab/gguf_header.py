"""The header of a GGUF file: its key-value facts and where its tensors lie.

Owns: parsing versions 2 and 3, and the check that the file is complete.
Does not know: what the facts mean; tensor contents.
Invariants: reading takes milliseconds, not the seconds of a reader that maps every string; a file
that is cut short anywhere is refused.

Source of the layout: "GGUF" in the ggml documentation: magic, u32 version, u64 tensor count, u64
fact count, facts, tensor table, padding to ``general.alignment``, data. Little endian.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from labkit.errors import BadCheckpoint

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_LONGEST = 1 << 28  # bytes in one string or numbers in one array: more than any real file has


@dataclass(frozen=True)
class GgufHeader:
    """Facts by key, and the names of the tensors in the file's order."""

    facts: Mapping[str, Any]
    tensors: tuple[str, ...]


def read_header(path: Path) -> GgufHeader:
    """Read the header and check that every tensor lies inside the file.

    Raises:
        BadCheckpoint: not a GGUF file, cut short, or damaged.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path.stat().st_size)
    except (ValueError, struct.error, KeyError, UnicodeDecodeError, MemoryError) as error:
        raise BadCheckpoint(
            str(path),
            expected="a complete GGUF file",
            got=f"{error}" if isinstance(error, ValueError) else f"a damaged header ({error})",
            next_step="fetch the file again and compare its size and checksum",
        ) from error


def _read(file: BinaryIO, size: int) -> GgufHeader:
    magic = file.read(4)
    if magic != _MAGIC:
        raise ValueError(f"the first bytes are {magic!r}, not {_MAGIC!r}")
    (version,) = _unpack(file, "I")
    if version not in (2, 3):
        raise ValueError(f"version {version}, not 2 or 3")
    tensor_count, fact_count = _unpack(file, "QQ")
    facts = {}
    for _ in range(_sane(fact_count)):
        key = _string(file)
        (kind,) = _unpack(file, "I")
        facts[key] = _value(file, kind)
    table = [_tensor(file) for _ in range(_sane(tensor_count))]
    alignment = int(facts.get("general.alignment", 32))
    start = -(-file.tell() // alignment) * alignment
    for name, offset, length in table:
        if start + offset + length > size:
            raise ValueError(f"{size} bytes, too few to hold {name}")
    return GgufHeader(facts, tuple(name for name, _, _ in table))


def _tensor(file: BinaryIO) -> tuple[str, int, int]:
    """Name, offset in the data part, bytes."""
    name = _string(file)
    (dimensions,) = _unpack(file, "I")
    shape = _unpack(file, f"{_sane(dimensions)}Q")
    kind, offset = _unpack(file, "IQ")
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    return name, offset, math.prod(shape) // block * block_bytes


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _unpack(file, _NUMBERS[kind])[0]
    inner, count = _unpack(file, "IQ")
    if inner in _NUMBERS:
        return list(_unpack(file, f"{_sane(count)}{_NUMBERS[inner]}"))
    read: Callable[[BinaryIO], Any] = _string if inner == _STRING else lambda f: _value(f, inner)
    return [read(file) for _ in range(_sane(count))]


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    return _bytes(file, _sane(length)).decode("utf-8")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    form = "<" + form
    return struct.unpack(form, _bytes(file, struct.calcsize(form)))


def _bytes(file: BinaryIO, count: int) -> bytes:
    found = file.read(count)
    if len(found) < count:
        raise ValueError("it ends in the middle of its header")
    return found


def _sane(count: int) -> int:
    if count > _LONGEST:
        raise ValueError(f"a length of {count} in its header")
    return count
