"""Files that appear whole or not at all, and what is said of a disk that takes no more."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from full_disk import no_room, small_files_only
from safetensors import SafetensorError
from safetensors.torch import load_file

from labkit.errors import BadInput
from labkit.heads.draft_checkpoint import build_draft, save_draft_checkpoint, write_json
from labkit.toy import tiny
from labkit.training.state import Position, make_optimiser, save_state
from labkit.whole_file import save_tensors, whole, writing

TENSORS = {"a": torch.arange(5000.0)}


def store(path: Path) -> None:
    save_tensors(path, TENSORS, metadata={"format": "pt"})


def test_tensors_are_stored_with_their_metadata(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"an older file")
    store(path)
    assert torch.equal(load_file(path)["a"], TENSORS["a"])
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert os.listdir(tmp_path) == [path.name]


def private(path: Path) -> None:
    """As a library writes that renames a temporary file of its own into place."""
    with whole(path) as part:
        part.unlink()
        part.touch(mode=0o600)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
@pytest.mark.parametrize("write", [store, private, lambda path: write_json(path, {})])
def test_files_have_the_mode_of_any_new_file(write: Any, mask: int, tmp_path: Path) -> None:
    path = tmp_path / "x"
    for there in (path, tmp_path / "x.part"):  # an older file, and what a kill left
        there.touch(mode=0o600)
    before = os.umask(mask)
    try:
        write(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("changes", [{}, {"chmod": lambda self, mode: None}])
def test_the_mode_is_set_where_a_library_chose_its_own(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: without that step the file would stay as the library made it."""
    for name, double in changes.items():
        monkeypatch.setattr(Path, name, double)
    private(tmp_path / "x")
    assert (tmp_path / "x").stat().st_mode & 0o777 == (0o600 if changes else _ordinary(tmp_path))


def _ordinary(folder: Path) -> int:
    (folder / "any").touch()
    return (folder / "any").stat().st_mode & 0o777


def test_a_full_disk_is_one_message_with_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"an older file")
    monkeypatch.setattr(safetensors.torch, "save_file", no_room)
    with pytest.raises(BadInput) as told:
        store(path)
    assert str(told.value) == (
        f"output {path}: expected a place that may be written to and has room for it, got No space "
        "left on device. Next: make room there, or write elsewhere."
    )
    assert isinstance(told.value.__cause__, OSError)
    assert told.value.__cause__.errno == errno.ENOSPC
    assert path.read_bytes() == b"an older file"
    assert os.listdir(tmp_path) == [path.name]


def test_the_library_tells_of_the_system_s_errors_as_the_stand_in_does(tmp_path: Path) -> None:
    """Control of the double: a file larger than this process may write, and a missing folder."""
    path = tmp_path / "x.safetensors"
    with small_files_only(1000):
        with pytest.raises(SafetensorError, match=rf"I/O error: .*\(os error {errno.EFBIG}\)"):
            safetensors.torch.save_file(TENSORS, path)
        with pytest.raises(BadInput, match=f"output {path}: .*got {os.strerror(errno.EFBIG)}"):
            store(path)
    with pytest.raises(BadInput, match="got No such file or directory"):
        store(tmp_path / "missing" / "x.safetensors")
    assert os.listdir(tmp_path) == []


def test_what_is_no_error_of_the_system_is_told_in_the_library_s_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise SafetensorError("header too large")

    monkeypatch.setattr(safetensors.torch, "save_file", refuse)
    with pytest.raises(BadInput, match="got header too large"):
        store(tmp_path / "x.safetensors")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_other_errors_pass_unchanged_and_leave_no_part(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def work() -> None:
        with whole(tmp_path / "x") as part:
            part.write_text("half")
            raise error

    with pytest.raises(error):
        work()
    assert os.listdir(tmp_path) == []


def save_draft(folder: Path) -> Path:
    target, ids = tiny("llama", vocab_size=32), torch.tensor([3, 7])
    model = build_draft(target, ids, layers=1, dtype=torch.float32, device="cpu")
    save_draft_checkpoint(folder, model, vocab_ids=ids, target_model=target, target="t")
    return folder / "model.safetensors"


def save_training(folder: Path) -> Path:
    trained = {"w": torch.nn.Parameter(torch.zeros(2, 2))}
    optimiser = make_optimiser(trained, rate=0.1, decay=0.0, betas=(0.9, 0.95))
    save_state(folder / "resume", trained, optimiser, at=Position(), origin={})
    return folder / "resume"


@pytest.mark.parametrize("save", [save_draft, save_training])
def test_whoever_stores_weights_names_the_file(
    save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(safetensors.torch, "save_file", no_room)
    with pytest.raises(BadInput, match=f"output {path}: .*No space left on device"):
        save(tmp_path)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


def test_json_that_does_not_fit_names_its_file_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *_: Any, **__: Any) -> None:
        self.write_bytes(b"{")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as of a write: without a name

    path = tmp_path / "config.json"
    write_json(path, {"a": 1})
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BadInput, match=f"output {path}: .*No space left on device"):
        write_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert os.listdir(tmp_path) == [path.name]


def test_work_that_writes_names_its_file() -> None:
    with (
        pytest.raises(BadInput, match=r"output rows\.jsonl: .*got OSError"),
        writing(Path("rows.jsonl")),
    ):
        raise OSError
