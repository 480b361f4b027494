"""Multi-token prediction heads to files: the lab's own format, and a family's own names.

Owns: writing, and turning a trained head into a checkpoint. Does not know: reading.
Invariants: a folder or file appears whole or not at all and never replaces one; tensors keep their
bytes. The formats are described in `labkit.heads.checkpoints.mtp`.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from labkit.devices import HOST
from labkit.errors import BadInput
from labkit.heads.checkpoints.load import check_complete, target_rows
from labkit.heads.checkpoints.mtp import FORMAT, VERSION, MtpCheckpoint, judged
from labkit.heads.checkpoints.mtp_names import native, unstacked
from labkit.heads.checkpoints.records import TargetMark
from labkit.heads.checkpoints.vocabulary import d2t_of
from labkit.heads.checkpoints.write import most_common_dtype, ownership, write_folder
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.heads.mtp import GENERIC, SWITCHES, MtpHead


def checkpoint_of_mtp(
    head: MtpHead, *, target_model: Any, target: str, dtype: torch.dtype | None = None
) -> MtpCheckpoint:
    """A trained head as a checkpoint; what equals the target's rows is left out.

    Args:
        target: the target's name, for people; its fingerprint is noted too.
        dtype: to store in; None: the head's own.
    """
    ids = head.vocab_ids.cpu()
    tensors, borrowed = dict(head.state_dict()), []
    for name, theirs in target_rows(target_model, ids).items():
        mine = tensors[name]
        if mine.shape == theirs.shape and torch.equal(mine, theirs.to(mine.device, mine.dtype)):
            borrowed.append(name)
            del tensors[name]
    kept = {
        name: tensor.detach().to(HOST, dtype or tensor.dtype).contiguous()
        for name, tensor in tensors.items()
    }
    mark = TargetMark(target, target_fingerprint(target_model))
    return judged(
        head.config, kept, ids, target_model,
        borrowed=borrowed, target=mark, decided_by="made in memory", source="the head itself",
    )  # fmt: skip


def save_mtp(checkpoint: MtpCheckpoint, path: Path | str) -> Path:
    """Write a folder of the lab's own format; it appears whole or not at all.

    Raises:
        BadInput: ``path`` holds something. BadCheckpoint: tensors are missing or do not fit.
    """
    check_complete(checkpoint)
    config = checkpoint.config
    tensors = {n: t.clone().contiguous() for n, t in checkpoint.tensors.items()}
    if config.draft_vocab_size != config.vocab_size:
        tensors["d2t"] = d2t_of(checkpoint.vocab_ids)
    settings = {
        "architectures": ["MtpModel"],
        "torch_dtype": most_common_dtype(checkpoint.tensors),
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "num_hidden_layers": config.target_layers,
        "num_mtp_layers": config.modules,
        "rms_norm_eps": config.eps,
        "labkit": {
            "format": FORMAT,
            "version": VERSION,
            "adapter": GENERIC.name,
            **{name: getattr(config.adapter, name) for name in SWITCHES},
            **ownership(checkpoint),
        },
    }
    return write_folder(path, tensors, settings)


def save_native(checkpoint: MtpCheckpoint, file: Path | str) -> Path:
    """Write the head's tensors under its family's names, as they were read, to one new file.

    Raises:
        BadInput: ``file`` is there. BadCheckpoint: tensors are missing or do not fit.
    """
    file = Path(file)
    check_complete(checkpoint)
    if file.exists():
        raise BadInput(
            f"output {file}", expected="a new file", got="one that exists", next_step="rename it"
        )
    config = checkpoint.config
    every = checkpoint.copies | {
        name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("layers.")
    }
    named = {
        native(name, config.adapter, layers=config.target_layers): tensor.clone().contiguous()
        for name, tensor in (unstacked(every) if checkpoint.apart else every).items()
    }
    part = file.with_name(file.name + ".part")
    save_file(named, part, metadata={"format": "pt"})
    part.rename(file)
    return file
