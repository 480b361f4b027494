"""From parallel heads to a folder that another engine reads.

Owns: the config of each layout, and refusing what a layout cannot say. Does not know: reading.
Invariants: a folder appears whole or not at all and never replaces one; tensors keep their bytes.
The layouts are described in `labkit.heads.checkpoints.medusa`.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.devices import HOST
from labkit.errors import BadInput
from labkit.heads import formats
from labkit.heads.checkpoints.load import check_complete
from labkit.heads.checkpoints.medusa import (
    FORMAT,
    LAYOUTS,
    MAP,
    VERSION,
    MedusaCheckpoint,
    check_owner,
    judged,
)
from labkit.heads.checkpoints.read import OUTPUT
from labkit.heads.checkpoints.records import TargetMark
from labkit.heads.checkpoints.write import most_common_dtype, ownership, write_folder
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.heads.medusa import MEDUSA, META, MedusaHeads, output_rows


def checkpoint_of_medusa(
    heads: MedusaHeads, *, target_model: Any, target: str, dtype: torch.dtype | None = None
) -> MedusaCheckpoint:
    """Trained heads as a checkpoint; output layers that equal the target's rows are left out.

    Args:
        target: the target's name, for people; its fingerprint is noted too.
        dtype: to store in; None: the heads' own.
    """
    ids, tensors = heads.vocab_ids.cpu(), dict(heads.state_dict())
    rows = output_rows(target_model, ids)
    borrowed = tuple(
        name
        for name in heads.config.outputs
        if torch.equal(tensors[name], rows.to(tensors[name].device, tensors[name].dtype))
    )
    kept = {
        name: tensor.detach().to(HOST, dtype or tensor.dtype).contiguous()
        for name, tensor in tensors.items()
        if name not in borrowed
    }
    return judged(
        heads.config,
        kept,
        ids,
        layout=heads.config.kind,
        borrowed=borrowed,
        target=TargetMark(target, target_fingerprint(target_model)),
        decided_by="made in memory",
        source="the heads themselves",
    )


def complete_medusa(checkpoint: MedusaCheckpoint, target_model: Any) -> MedusaCheckpoint:
    """The same with the target's output rows stored too, in the heads' dtype.

    Raises:
        BadInput: the heads were made for another target.
    """
    if not checkpoint.borrowed:
        return checkpoint
    check_owner(checkpoint, target_model)
    dtype = getattr(torch, most_common_dtype(checkpoint.tensors))
    rows = output_rows(target_model, checkpoint.vocab_ids).to(HOST, dtype)
    return judged(
        checkpoint.config,
        checkpoint.tensors | {name: rows.clone() for name in checkpoint.borrowed},
        checkpoint.vocab_ids,
        layout=checkpoint.format,
        borrowed=(),
        target=checkpoint.target,
        decided_by=checkpoint.report.decided_by,
        source=str(checkpoint.report.vocabulary["map"]),
        doubts=checkpoint.report.suspicious,
    )


def write_medusa(
    checkpoint: MedusaCheckpoint, path: Path | str, *, format: str | None = None
) -> Path:
    """Write ``config.json`` and ``model.safetensors``.

    Args:
        path: a folder that is not there yet, or is empty.
        format: "medusa" (FasterDecoding) or "vllm" for Medusa's heads, "meta" for Meta's; None:
            "medusa" or "meta".

    Raises:
        BadInput: ``path`` holds something; the layout cannot express the heads.
        BadCheckpoint: tensors are missing, left over or do not fit.
    """
    layout = checkpoint.config.kind if format is None else format
    check_complete(checkpoint)
    check_layout(checkpoint, layout)
    return write_folder(path, _tensors(checkpoint, layout), _config(checkpoint, layout))


def check_layout(checkpoint: MedusaCheckpoint, layout: str) -> None:
    """Refuse heads that a reader of the layout would not compute alike. Raises BadInput."""
    kind = checkpoint.config.kind
    can = formats.META if kind == META else formats.MEDUSA
    problems = (
        (layout not in LAYOUTS, ", ".join(LAYOUTS), repr(layout), "choose one of these"),
        (layout not in can, f"heads of another kind, or format {' or '.join(can)}", kind,
         f"choose --format {can[0]}"),
        (layout == "vllm" and bool(checkpoint.borrowed), "heads that bring their output layers",
         "heads that take the target's", "complete them with their target (--model)"),
    )  # fmt: skip
    for bad, expected, got, next_step in problems:
        if bad:
            raise BadInput(f"format {layout}", expected=expected, got=got, next_step=next_step)


def _tensors(checkpoint: MedusaCheckpoint, layout: str) -> dict[str, Tensor]:
    config, found = checkpoint.config, {}
    for name, tensor in checkpoint.tensors.items():
        for stored in _stored_names(name, layout, heads=config.heads, layers=config.layers):
            # copies: safetensors refuses tensors that share memory
            found[stored] = tensor.clone(memory_format=torch.contiguous_format)
    if config.draft_vocab_size != config.vocab_size:
        found[MAP] = checkpoint.vocab_ids.clone()
    return found


def _stored_names(name: str, layout: str, *, heads: int, layers: int) -> list[str]:
    """Under which names a layout stores a tensor of `MedusaHeads.state_dict`."""
    if layout == "vllm":
        return ["lm_heads.0.weight"] if name == OUTPUT else [name]
    if layout == "meta":
        return [name]
    if name == OUTPUT:
        return [f"{head}.{layers}.weight" for head in range(heads)]
    parts = name.split(".")
    if parts[0] == "lm_heads":
        return [f"{parts[1]}.{layers}.weight"]
    return [f"{parts[1]}.{parts[3]}.linear.{parts[4]}"]


def _config(checkpoint: MedusaCheckpoint, layout: str) -> dict[str, Any]:
    config = checkpoint.config
    found: dict[str, Any] = {
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "truncated_vocab_size": config.draft_vocab_size,
        "torch_dtype": most_common_dtype(checkpoint.tensors),
    }
    entry: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "layout": layout,
        "kind": config.kind,
        "shared_output": config.shared_output,
    }
    if layout == "vllm":
        # vLLM takes any key with "num" and "heads" in it for num_heads, so there is one only
        found |= {
            "model_type": MEDUSA,
            "architectures": ["MedusaModel"],
            "num_heads": config.heads,
            "num_hidden_layers": config.layers,
            "medusa_fc_bias": config.bias,
            "original_lm_head": config.shared_output,
        }
    elif layout == "medusa":
        found |= {
            "medusa_num_heads": config.heads,
            "medusa_num_layers": config.layers,
            "base_model_name_or_path": checkpoint.target.name if checkpoint.target else None,
        }
    else:
        found["num_heads"] = config.heads
        entry["block"] = dict(vars(config.block)) if config.block else None
    found["labkit"] = entry | ownership(checkpoint)
    return found
