"""Whether a head's tensors and its config fit together.

Owns: the shapes that a config asks for, and what transformers refuses of one.
Does not know: files, formats, where values came from.
Invariants: no weight is made to find out.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from labkit.errors import BadCheckpoint
from labkit.heads.layers import LayerConfig


def expected_shapes(
    kind: Callable[[Any], nn.Module], config: Any, *, folder: Path | None = None
) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a head of this kind, without making one.

    Raises:
        BadCheckpoint: shapes, activation or rotary parameters that transformers refuses.
    """
    with _taken(folder), torch.device("meta"):
        head = kind(config)
    return {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}


def check_rotary(config: LayerConfig, *, folder: Path | None) -> None:
    """Raises BadCheckpoint unless the rotary parameters give a frequency for every pair."""
    with _taken(folder):
        found = LlamaRotaryEmbedding(config.llama()).inv_freq
        if not bool((torch.isfinite(found) & (found > 0)).all()):
            raise ValueError(f"rope {config.rope} with frequencies that are 0 or not finite")


@contextlib.contextmanager
def _taken(folder: Path | None) -> Iterator[None]:
    """Whatever transformers refuses in it, as BadCheckpoint."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RuntimeError, StrictDataclassError) as error:
        raise BadCheckpoint(
            "head's config" + (f" in {folder}" if folder else ""),
            expected="shapes, activation and rope that Llama layers know",
            got=_words(error),
            next_step="correct config.json, or choose another head",
        ) from error


def _words(error: Exception) -> str:
    """The last line of what transformers says, which is the reason, without names of classes."""
    if isinstance(error, KeyError):
        return f"{error} missing or unknown"
    said = str(error).strip().splitlines() or ["a refusal without a word"]
    return re.sub(r"^\s*\w+Error: ", "", said[-1]).strip().rstrip(".")


def misfits(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """A sentence per tensor that has another shape than ``wanted``, or is not finite."""
    there = [(name, tensors[name], shape) for name, shape in sorted(wanted.items())
             if name in tensors]  # fmt: skip
    shapes = tuple(
        f"{name}: {tuple(tensor.shape)}, expected {shape}"
        for name, tensor, shape in there
        if tuple(tensor.shape) != shape
    )
    return shapes + tuple(
        f"{name}: NaN or infinity, expected finite numbers"
        for name, tensor, _ in there
        if not bool(torch.isfinite(tensor).all())
    )
