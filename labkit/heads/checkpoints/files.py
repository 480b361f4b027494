"""A folder with one head: its config and its tensors.

Owns: which files are read, and why others are refused. Does not know: what they mean.
Invariants: only JSON and safetensors are opened; nothing outside the folder is.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from labkit.errors import BadCheckpoint

CONFIG = "config.json"
TENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_model.safetensors"


def broken(path: Path, *, expected: str, got: str, next_step: str = "") -> BadCheckpoint:
    """The error for a folder that is not a sound head."""
    return BadCheckpoint(
        f"head {path}",
        expected=expected,
        got=got,
        next_step=next_step or "look at it with `labkit inspect`, or fetch it again",
    )


def check_folder(path: Path) -> None:
    """Raises: BadCheckpoint: there is no such folder."""
    if not path.is_dir():
        raise broken(
            path,
            expected=f"a folder with {CONFIG} and {TENSORS}",
            got="a file" if path.exists() else "nothing there",
            next_step="name the folder of a head",
        )


def read_folder(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors under the names in the file.

    Raises:
        BadCheckpoint: no folder, no config, no safetensors, a shard that is not there or broken.
    """
    check_folder(path)
    config = read_json(path, CONFIG)
    tensors: dict[str, Tensor] = {}
    for file in _tensor_files(path):
        try:
            found = load_file(file)
        except (OSError, SafetensorError) as error:
            raise broken(path, expected=f"safetensors in {file.name}", got=str(error)) from error
        if twice := sorted(found.keys() & tensors.keys()):
            raise broken(path, expected="each tensor once", got=f"{twice[0]} in two files")
        tensors |= found
    _check_index(path, tensors)
    return config, tensors


def tensor_names(path: Path) -> set[str]:
    """Names of all tensors in a folder, without reading them.

    Raises:
        BadCheckpoint: as of `read_folder`, a config apart.
    """
    if (mapped := _weight_map(path)) is not None:
        _tensor_files(path)
        return set(mapped)
    found: set[str] = set()
    for file in _tensor_files(path):
        found.update(_opened(path, file).keys())
    return found


def read_some(path: Path, names: Collection[str]) -> dict[str, Tensor]:
    """These tensors of a folder that may hold many more.

    Raises:
        BadCheckpoint: as of `read_folder`, a config apart; a tensor that is not there.
    """
    mapped, found = _weight_map(path), {}
    for file in _tensor_files(path):
        wanted = [n for n in names if mapped is None or mapped[n] == file.name]
        if not wanted:
            continue
        opened = _opened(path, file)
        for name in wanted:
            try:
                found[name] = opened.get_tensor(name)
            except SafetensorError as error:
                raise broken(path, expected=f"{name} in {file.name}", got=str(error)) from error
    return found


def _opened(path: Path, file: Path) -> Any:
    try:
        return safe_open(file, "pt")
    except (OSError, SafetensorError) as error:
        raise broken(path, expected=f"safetensors in {file.name}", got=str(error)) from error


def has_adapter(path: Path) -> bool:
    """Whether a low-rank adapter for the target lies beside the head (ModelOpt)."""
    return (path / _ADAPTER).exists()


def read_json(path: Path, name: str) -> dict[str, Any]:
    """The object in one of the folder's files.

    Raises:
        BadCheckpoint: no such file, no JSON, or no object.
    """
    try:
        found = json.loads((path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise broken(path, expected=f"a {name}", got="none") from None
    except (OSError, ValueError) as error:
        raise broken(path, expected=f"JSON in {name}", got=str(error)) from error
    if not isinstance(found, dict):
        raise broken(path, expected=f"an object in {name}", got=type(found).__name__)
    return found


def _weight_map(path: Path) -> dict[str, str] | None:
    if not (path / INDEX).exists():
        return None
    found = read_json(path, INDEX).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise broken(path, expected=f"a weight_map in {INDEX}", got=type(found).__name__)
    return found


def _tensor_files(path: Path) -> list[Path]:
    if (mapped := _weight_map(path)) is not None:
        for name in mapped.values():
            if Path(name).name != name:
                raise broken(path, expected="shards in the same folder", got=repr(name))
            if not (path / name).is_file():
                raise broken(path, expected=f"the shard {name}", got="nothing there")
        return sorted({path / name for name in mapped.values()})
    if (path / TENSORS).is_file():
        return [path / TENSORS]
    others = sorted(file for file in path.glob("*.safetensors") if file.name != _ADAPTER)
    if len(others) == 1:
        return others
    pickles = sorted(file.name for file in path.glob("*.bin")) + sorted(
        file.name for file in path.glob("*.pt")
    )
    if pickles and not others:
        raise broken(
            path,
            expected="weights as safetensors",
            got=f"only {pickles[0]}, which can run code when it is opened",
            next_step="get the safetensors version, or convert it where you trust its source: "
            "safetensors.torch.save_file(state_dict, 'model.safetensors')",
        )
    got = f"{len(others)} safetensors files without an index" if others else "no safetensors"
    raise broken(path, expected=f"{TENSORS}, or shards and {INDEX}", got=got)


def _check_index(path: Path, tensors: dict[str, Tensor]) -> None:
    promised = _weight_map(path) or {}
    if absent := sorted(promised.keys() - tensors.keys()):
        raise broken(path, expected=f"{absent[0]} in {promised[absent[0]]}", got="no such tensor")
