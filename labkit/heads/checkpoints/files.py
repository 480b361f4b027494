"""A folder with one head: its config and its tensors.

Owns: which files are read, and why others, and contents that no head has, are refused.
Does not know: what they mean.
Invariants: only JSON and safetensors are opened; nothing outside the folder is; an error names the
folder.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from labkit.errors import BadCheckpoint, BadInput, UnsupportedModel
from labkit.heads.config_keys import WHOLE, WIDE, wrong_key

CONFIG = "config.json"
TENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_model.safetensors"
_MAP = re.compile(r"d2t|t2d|token_map")
_MATRIX = re.compile(
    r"(.*\.)?(fc|lm_head|lm_heads\.\d+|embed_tokens|layers\.\d+|[a-z]+_proj)\.weight"
)
_WEIGHT = re.compile(r".*(weight|bias|_proj)")
Made = TypeVar("Made")


def broken(path: Path, *, expected: str, got: str, next_step: str = "") -> BadCheckpoint:
    """The error for a folder that is not a sound head."""
    return BadCheckpoint(
        f"head {path}",
        expected=expected,
        got=got,
        next_step=next_step or "fetch the head again, or name another folder",
    )


def read_folder(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors under the names in the file.

    Raises:
        BadCheckpoint: no folder, no config, no safetensors, a shard that is not there or broken.
    """
    if not path.is_dir():
        raise broken(
            path,
            expected=f"a folder with {CONFIG} and {TENSORS}",
            got="a file" if path.exists() else "nothing there",
            next_step="name the folder of a head",
        )
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


def check_config(path: Path, config: Mapping[str, Any], *, required: tuple[str, ...] = ()) -> None:
    """Refuse values that a key of config.json cannot have, before anything is made of them.

    Args:
        required: keys that must be there; those inside another as ``labkit.state``.

    Raises:
        BadCheckpoint: names the first.
    """
    if wrong := wrong_key(config, required=required):
        raise broken(
            path,
            expected=f"{wrong.expected} as {wrong.key} in {CONFIG}",
            got=wrong.got,
            next_step=f"correct {wrong.key} in {CONFIG}, or fetch the head again",
        )


def check_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse what no head computes with: vocabulary maps that are no lists of whole numbers,
    matrices that are none, and weights of fewer than 16 bits.

    Raises:
        BadCheckpoint, UnsupportedModel: names the first.
    """
    for name, tensor in tensors.items():
        is_map, kind = bool(_MAP.fullmatch(name)), str(tensor.dtype).removeprefix("torch.")
        if is_map and tensor.dtype not in (*WHOLE, *[torch.bool] * (name == "t2d")):
            raise broken(path, expected=f"whole numbers in {name}", got=kind)
        rank = 1 if is_map else 2 if _MATRIX.fullmatch(name) else tensor.ndim
        if rank != tensor.ndim:
            words = "a row of numbers" if is_map else "a matrix"
            raise broken(path, expected=f"{words} as {name}", got=f"shape {tuple(tensor.shape)}")
        narrow = bool(_WEIGHT.fullmatch(name)) and tensor.dtype not in WIDE
        if narrow or name.endswith("_scale_inv"):
            raise UnsupportedModel(
                f"head {path}",
                expected="weights of 16 bits or more",
                got=f"{name}: {kind}, quantised",
                next_step="get the head in half precision",
            )


def made_of(path: Path, kind: Callable[..., Made], fields: Mapping[str, Any]) -> Made:
    """A record of what a folder's config says, which judges how its fields go together.

    Raises:
        BadCheckpoint: where ``kind`` raises BadInput.
    """
    try:
        return kind(**fields)
    except BadInput as error:
        raise broken(
            path,
            expected=f"{error.expected} as {error.what}",
            got=error.got,
            next_step=f"correct {CONFIG}, or choose another head",
        ) from error


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
        raise broken(
            path,
            expected=f"a {name}",
            got="none",
            next_step=f"name the folder of a head, with its {name}",
        ) from None
    except OSError as error:
        got = error.strerror or "none"
        raise broken(path, expected=f"a readable {name}", got=got) from error
    except (ValueError, RecursionError) as error:
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
