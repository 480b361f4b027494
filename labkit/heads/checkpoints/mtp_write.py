"""Multi-token prediction heads to files: the lab's own format, and a family's own names.

Owns: writing, and turning a trained head into a checkpoint. Does not know: reading.
Invariants: a folder or file appears whole or not at all and never replaces one; tensors keep their
bytes. The formats are described in `labkit.heads.checkpoints.mtp`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.devices import HOST
from labkit.errors import BadInput
from labkit.heads.checkpoints.load import check_complete, target_rows
from labkit.heads.checkpoints.mtp import FORMAT, VERSION, MtpCheckpoint, judged
from labkit.heads.checkpoints.mtp_names import native, unstacked
from labkit.heads.checkpoints.read import EMBEDDING, OUTPUT
from labkit.heads.checkpoints.records import TargetMark
from labkit.heads.checkpoints.vocabulary import d2t_of
from labkit.heads.checkpoints.write import most_common_dtype, ownership, write_folder
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.heads.mtp import ADAPTERS, GENERIC, SWITCHES, Adapter, MtpHead
from labkit.whole_file import save_tensors


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
        BadInput: ``file`` is there, or cannot be written. BadCheckpoint: tensors are missing or do
        not fit.
    """
    file = Path(file)
    named = _named(checkpoint)
    if file.exists():
        raise BadInput(
            f"output {file}", expected="a new file", got="one that exists", next_step="rename it"
        )
    save_tensors(file, named, metadata={"format": "pt"})
    return file


def write_native(checkpoint: MtpCheckpoint, path: Path | str, *, model_type: str) -> Path:
    """Write a folder with the same tensors, ready to be put beside the target's own.

    Args:
        model_type: of the target.

    Raises:
        BadInput: ``path`` holds something. BadCheckpoint: tensors are missing or do not fit.
    """
    config = checkpoint.config
    settings = {
        "model_type": model_type,
        "torch_dtype": most_common_dtype(checkpoint.tensors),
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.target_layers,
        "num_nextn_predict_layers": config.modules,
    }
    return write_folder(path, _named(checkpoint), settings)


def as_native(checkpoint: MtpCheckpoint, *, model_type: str) -> MtpCheckpoint:
    """A head of the lab's own format as the family of its target stores such heads; a native one
    as it is.

    The words that a head leaves out come back, for these files lend it all of the target's rows.

    Raises:
        BadInput: no family has such targets, or its engines would compute something else.
    """
    config = checkpoint.config
    if config.adapter.name != GENERIC.name:
        return checkpoint
    family = next((row for row in ADAPTERS.values() if model_type in row.model_types), None)
    if family is None:
        raise BadInput(
            f"native format for a target of type {model_type}",
            expected="one of " + ", ".join(t for row in ADAPTERS.values() for t in row.model_types),
            got="a type for which no engine reads prediction modules",
            next_step="keep the head in the lab's format, or train and export an EAGLE head",
        )
    _check_alike(checkpoint, family)
    less = float(family.norm_adds_one) - float(config.adapter.norm_adds_one)
    norms = (".enorm.weight", ".hnorm.weight", ".post_norm.weight")
    tensors = {
        name: tensor - less if less and name.endswith(norms) else tensor
        for name, tensor in checkpoint.tensors.items()
    }
    every = torch.arange(config.vocab_size)
    whole = replace(config, adapter=family, draft_vocab_size=config.vocab_size)
    return replace(
        checkpoint, config=whole, tensors=tensors, vocab_ids=every, format=family.name, apart=True
    )


def _check_alike(checkpoint: MtpCheckpoint, family: Adapter) -> None:
    """Refuse what a file of the family cannot say."""
    ours = checkpoint.config.adapter
    other = [
        f"{name} {getattr(family, name)}"
        for name in SWITCHES
        if name != "norm_adds_one" and getattr(family, name) != getattr(ours, name)
    ]
    own = [name for name in (EMBEDDING, OUTPUT) if name not in checkpoint.borrowed]
    for bad, expected in ((other, ", ".join(other)), (own, "rows that are the target's")):
        if bad:
            raise BadInput(
                f"head in the format of {family.name}",
                expected=expected,
                got="a head that was trained otherwise" if bad is other else ", ".join(own),
                next_step="keep it in the lab's format, or train a head that agrees",
            )


def _named(checkpoint: MtpCheckpoint) -> dict[str, Tensor]:
    """The head's tensors and copies by their family's names."""
    check_complete(checkpoint)
    config = checkpoint.config
    every = checkpoint.copies | {
        name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("layers.")
    }
    return {
        native(name, config.adapter, layers=config.target_layers): tensor.clone().contiguous()
        for name, tensor in (unstacked(every) if checkpoint.apart else every).items()
    }
