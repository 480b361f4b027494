"""A name -> a model in memory, ready to be decoded with.

Owns: what may be loaded (presets, safetensors folders, GGUF files, hub models), what is refused,
and the state a model is handed over in: evaluation mode, no gradients, sdpa attention.
Does not know: decoding.
Invariants: no pickle is opened and no code from a checkpoint runs; without a missing file there is
no connection; everything that can be refused is refused before weights are read; no weight is left
at random.

What a folder holds beside the language model (modules for multi-token prediction, a vision tower)
is not loaded. It stays in the files, and `LoadedModel` says which names these are and where.
"""

import json
import math
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from labkit.devices import dtype_name, memory, resolve_device, resolve_dtype
from labkit.errors import BadCheckpoint, BadInput, OutOfMemory, UnsupportedModel
from labkit.ids import end_ids
from labkit.kernels import skinny_pays, use_skinny_linear
from labkit.lab.from_gguf import read_gguf
from labkit.lab.hub import has_weights
from labkit.lab.memory import safely
from labkit.lab.presets import DEFAULT
from labkit.lab.pull import pull
from labkit.lab.quiet import quiet_transformers
from labkit.progress import Progress, text_bar

Linear = Literal["auto", "plain", "skinny"]

# Published with code of their own that only adds to a model which transformers has: MiMo-7B is a
# Qwen2 with a module for multi-token prediction (XiaomiMiMo/MiMo-7B-RL, modeling_mimo.py).
_SAME_AS = {"mimo": Qwen2Config}
_BESIDE = ("mtp.", "model.mtp_layers.", "model.visual.")

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A causal language model and its tokenizer.

    Attributes:
        model: a transformers model on ``device`` in ``dtype``: evaluation mode, no gradients.
        tokenizer: its transformers tokenizer.
        name: what was asked for.
        linear: ``skinny`` when its linear layers are ``SkinnyLinear``, else ``plain``.
        path: the folder or file that it was read from.
        beside: names of tensors there that belong to no part of it: modules for multi-token
            prediction (`labkit.heads.checkpoints.mtp` reads them), a vision tower.
    """

    model: Any
    tokenizer: Any
    name: str
    dtype: torch.dtype
    device: torch.device
    linear: str
    path: Path | None = None
    beside: tuple[str, ...] = ()

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a text, in ascending order; empty when the model names none."""
        return end_ids(self.model, self.tokenizer)


def load_model(
    name_or_path: str | Path = DEFAULT,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    linear: Linear = "auto",
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a model; one that is not here yet is fetched first.

    Args:
        name_or_path: a preset (see ``presets.names()``), a folder with safetensors weights, a
            .gguf file, or owner/name of a hub model.
        dtype: ``auto`` is float32 on a CPU and half precision on a GPU.
        device: ``auto`` is the first GPU, else the CPU.
        linear: ``auto`` takes the faster linear layers where they were measured to be faster.
        progress: told what is being done; None writes to stderr, and only while a model is fetched.

    Raises:
        BadInput: an unknown name, device, dtype or path.
        BadCheckpoint: broken files, or weights in pickles only.
        UnsupportedModel: an architecture that transformers cannot load without foreign code.
        OutOfMemory: the device is too small for the weights.
        ModelUnavailable: the model is not here and cannot be fetched.
    """
    if linear not in ("auto", "plain", "skinny"):
        raise BadInput(
            "linear", expected="auto, plain or skinny", got=repr(linear), next_step="use auto"
        )
    place = resolve_device(device)
    width = resolve_dtype(dtype, place)
    path = _local_path(str(name_or_path), progress or text_bar(sys.stderr))
    if path.suffix == ".gguf":
        model, tokenizer = read_gguf(path, dtype=width)
    else:
        model, tokenizer = _read_folder(path, dtype=width, device=place)
    model = _place(model, place)
    kind = "skinny" if linear == "skinny" else "plain"
    if linear == "auto" and skinny_pays(place, width):
        kind = "skinny"
    if kind == "skinny":
        use_skinny_linear(model)
    stored = _shapes_in(path) if path.is_dir() else ()
    beside = tuple(sorted(name for name in stored if name.startswith(_BESIDE)))
    return LoadedModel(model, tokenizer, str(name_or_path), width, place, kind, path, beside)


def count_parameters(folder: Path) -> int:
    """Numbers stored in a folder's safetensors files, from their headers alone.

    Raises:
        BadCheckpoint: a file is cut short or is not safetensors.
    """
    return sum(map(math.prod, _shapes_in(folder).values()))


def _shapes_in(folder: Path) -> dict[str, list[int]]:
    """Shape of every tensor in a folder's safetensors files."""
    return {
        name: shape
        for path in sorted(folder.glob("*.safetensors"))
        for name, shape in _shapes_of(path).items()
    }


def _local_path(name: str, progress: Progress) -> Path:
    """An existing file or folder wins over a preset or hub model of the same spelling."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        raise BadCheckpoint(
            name,
            expected="a folder with config.json and *.safetensors, or a .gguf file",
            got=f"a {path.suffix or 'nameless'} file",
            next_step="give the folder that the file is in; pickled weights are never opened",
        )
    looks_like_path = (
        path.is_absolute()
        or name.startswith(("./", "../", "~"))
        or (name.count("/") > 1 or path.suffix == ".gguf")
    )
    if looks_like_path:
        raise BadInput(
            "model",
            expected="an existing folder or .gguf file",
            got=f"{name}, which is not there",
            next_step="check the path",
        )
    return pull(name, progress=progress)


def _read_folder(folder: Path, *, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any]:
    _check_folder(folder)
    config = _read_config(folder)
    _check_memory(folder, dtype, device)
    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation="sdpa",
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except (ValueError, KeyError, ImportError, OSError, RuntimeError) as error:
        raise _unsupported(folder, config.model_type, error) from error
    model, found = loaded
    _check_complete(folder, sorted(found["missing_keys"]))
    return model.eval(), tokenizer


def _check_complete(folder: Path, missing: list[str]) -> None:
    """transformers fills what it does not find with random numbers."""
    if missing:
        first = ", ".join(missing[:3])
        raise BadCheckpoint(
            str(folder),
            expected="every weight of the model",
            got=f"none for {first}" + (f" and {len(missing) - 3} more" if missing[3:] else ""),
            next_step="fetch the files again, or give a complete checkpoint",
        )


def _check_folder(folder: Path) -> None:
    if has_weights(folder):
        return
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    config = (folder / "config.json").is_file()
    raise BadCheckpoint(
        str(folder),
        expected="config.json and all of its *.safetensors files",
        got=f"weights in pickles ({', '.join(pickles)}), which can run code when opened"
        if pickles
        else ("missing weights" if config else "no config.json"),
        next_step="convert the checkpoint to safetensors, or fetch one that is"
        if pickles
        else "give a complete folder as transformers' save_pretrained writes it",
    )


def _read_config(folder: Path) -> Any:
    text = (folder / "config.json").read_text(encoding="utf-8")
    try:
        stated = json.loads(text)
    except ValueError as error:
        raise BadCheckpoint(
            str(folder / "config.json"),
            expected="JSON",
            got=str(error),
            next_step="fetch the file again",
        ) from error
    try:
        if same := _SAME_AS.get(str(stated.get("model_type"))):
            # "auto_map" names the code that would be run; the rest is that model's own settings
            return same.from_dict({n: v for n, v in stated.items() if n != "auto_map"})
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as error:
        raise _unsupported(folder, stated.get("model_type", "none named"), error) from error


def _unsupported(folder: Path, model_type: str, error: Exception) -> UnsupportedModel:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UnsupportedModel(
        str(folder),
        expected="a causal language model that transformers loads without code from the checkpoint",
        got=f"model type {model_type} ({lines[0]})",
        next_step="choose a model that is part of transformers, or update transformers",
    )


def _check_memory(folder: Path, dtype: torch.dtype, device: torch.device) -> None:
    there = memory(device)
    needed = count_parameters(folder) * dtype.itemsize
    if there is not None and needed > there.available:
        raise OutOfMemory(
            f"{folder.name} in {dtype_name(dtype)}",
            expected=f"{needed / 1e9:.1f} GB free on {device} for the weights alone",
            got=f"{there.available / 1e9:.1f} GB",
            next_step="choose a smaller model or a narrower dtype, or free memory on the device",
        )


def _shapes_of(path: Path) -> dict[str, list[int]]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if 8 + length + end != path.stat().st_size:
            raise ValueError(
                f"{path.stat().st_size} bytes where the header says {8 + length + end}"
            )
        return {name: [int(n) for n in entry["shape"]] for name, entry in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(
            str(path),
            expected="a complete safetensors file",
            got=str(error),
            next_step="fetch the file again",
        ) from error


def _place(model: nn.Module, device: torch.device) -> nn.Module:
    return safely(
        lambda: model.requires_grad_(False).to(device),
        "model",
        let_go=lambda: model.to("meta"),  # whoever holds it, a traceback for one, holds no weights
        expected=f"room for its weights on {device}",
        advice="choose a smaller model, or restart other kernels that use the device",
    )
