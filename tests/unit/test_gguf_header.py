"""The quick header reader against the gguf package's own, slower one."""

from pathlib import Path

import pytest
from gguf import GGUFReader
from tiny_gguf import write_gguf

from labkit.errors import BadCheckpoint
from labkit.lab.gguf_header import read_header


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_facts_and_tensors_are_those_of_the_reference_reader(path: Path) -> None:
    header, reference = read_header(path), GGUFReader(path)
    expected = {
        name: field.contents()
        for name, field in reference.fields.items()
        if not name.startswith("GGUF.")
    }
    assert len(expected) > 15
    assert dict(header.facts) == expected
    assert header.tensors == tuple(tensor.name for tensor in reference.tensors)


def test_a_file_cut_anywhere_is_refused(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for keep in [*range(0, 200), *range(200, len(content), 97), len(content) - 1]:
        cut.write_bytes(content[:keep])
        with pytest.raises(BadCheckpoint, match="complete GGUF file"):
            read_header(cut)
    cut.write_bytes(content)
    assert read_header(cut) == read_header(path)


@pytest.mark.parametrize(
    ("at", "new", "told"),
    [
        (0, b"GGML", "first bytes"),
        (4, b"\x01\0\0\0", "version 1"),
        (8, b"\xff" * 8, "a length of"),
        (16, b"\xff" * 8, "a length of"),
        (24, b"\xff" * 8, "a length of"),
    ],
)
def test_damage_is_named(path: Path, tmp_path: Path, at: int, new: bytes, told: str) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(new)] = new
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=told):
        read_header(broken)
