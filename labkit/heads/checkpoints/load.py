"""From a head checkpoint to a head that runs beside its target.

Owns: what a head takes from its target, and the refusals before it runs. Does not know: files.
Invariants: all checks of shapes come before the first copy; a parameter is NaN until the file or
the target has filled it; the target's rows are shared, not copied, where dtype and device agree,
and nothing else is shared with anybody.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from labkit.errors import BadCheckpoint, BadInput
from labkit.heads.checkpoints.read import (
    EMBEDDING,
    OUTPUT,
    describe,
    read_checkpoint,
    readings,
)
from labkit.heads.checkpoints.records import (
    HeadCheckpoint,
    InspectReport,
    StoredHead,
    TargetMark,
)
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.heads.eagle import EagleConfig, EagleHead


def load_head(
    path: Path | str,
    *,
    target_model: Any,
    dtype: torch.dtype,
    device: torch.device | str,
    convention: str | None = None,
) -> EagleHead:
    """Read a head and make it run beside its target, under the likeliest reading of its file.

    Where the file is open to several (`readings`), measure first and use `build_head`.

    Raises:
        BadCheckpoint, UnsupportedModel: see `read_checkpoint`; tensors that are missing, of a
            wrong shape or not finite. BadInput: made for another target.
    """
    layers = target_model.config.get_text_config().num_hidden_layers
    checkpoint = read_checkpoint(path, convention=convention, target_layers=layers)
    return build_head(checkpoint, target_model=target_model, dtype=dtype, device=device)


def build_head(
    checkpoint: HeadCheckpoint,
    *,
    target_model: Any,
    dtype: torch.dtype,
    device: torch.device | str,
    config: EagleConfig | None = None,
) -> EagleHead:
    """A head in evaluation mode, its weights in place and frozen.

    Args:
        config: one of the checkpoint's `readings`; None: the likeliest.

    Raises:
        BadCheckpoint: tensors that are missing, of a wrong shape or not finite.
        BadInput: the head was made for another target.
    """
    layers = target_model.config.get_text_config().num_hidden_layers
    if config is None:
        config = readings(checkpoint, target_layers=layers)[0]
    check_complete(checkpoint)
    _check_target(checkpoint, config, target_model)
    with torch.device("meta"):
        head = EagleHead(config, vocab_ids=checkpoint.vocab_ids)
    head.to(dtype)
    head.rotary = LlamaRotaryEmbedding(config.llama()).to(device)  # stays in float32
    head.vocab_ids = checkpoint.vocab_ids.to(device)
    lent = borrowed_tensors(checkpoint, target_model)
    fill(head, checkpoint, lent, dtype=dtype, device=device)
    return head.eval()


def fill(
    head: nn.Module,
    checkpoint: StoredHead,
    lent: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> None:
    """Put the weights of a file and those that the target lends into a head, frozen.

    Args:
        lent: name -> tensor; shared, not copied, where dtype and device agree.

    Raises:
        BadCheckpoint: a parameter that nothing filled, or that is not finite.
    """
    given = {
        name: tensor.to(device, dtype, copy=True) for name, tensor in checkpoint.tensors.items()
    }
    given |= {name: tensor.to(device, dtype) for name, tensor in lent.items()}
    for name, parameter in list(head.named_parameters()):
        value = given.get(name)
        if value is None:
            value = torch.full(parameter.shape, torch.nan, dtype=dtype, device=device)
        owner, _, last = name.rpartition(".")
        setattr(head.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
    _check_finite(head, checkpoint)


def complete(checkpoint: HeadCheckpoint, target_model: Any) -> HeadCheckpoint:
    """The same with the target's output rows stored too, in the head's dtype; for formats that
    want heads to bring them.

    Raises:
        BadInput: the head was made for another target.
    """
    if OUTPUT not in checkpoint.borrowed:
        return checkpoint
    config = checkpoint.config
    _check_target(checkpoint, config, target_model)
    rows = borrowed_tensors(checkpoint, target_model)[OUTPUT]
    stored = rows.to("cpu", checkpoint.tensors["fc.weight"].dtype).clone()
    made = replace(
        checkpoint,
        tensors=checkpoint.tensors | {OUTPUT: stored},
        borrowed=tuple(name for name in checkpoint.borrowed if name != OUTPUT),
    )
    return replace(made, report=describe(made, made.report))


def checkpoint_of(
    head: EagleHead, *, target_model: Any, target: str, dtype: torch.dtype | None = None
) -> HeadCheckpoint:
    """A trained head as a checkpoint; what equals the target's rows is left out.

    Args:
        target: the target's name, for people; its fingerprint is noted too.
        dtype: to store in; None: the head's own.
    """
    config, ids = head.config, head.vocab_ids.cpu()
    tensors = dict(head.state_dict())
    borrowed = []
    for name, theirs in target_rows(target_model, ids).items():
        mine = tensors[name]
        if mine.shape == theirs.shape and torch.equal(mine, theirs.to(mine.device, mine.dtype)):
            borrowed.append(name)
    config = replace(config, own_embedding=EMBEDDING not in borrowed)
    report = _own_report(config)
    made = HeadCheckpoint(
        config=config,
        tensors={
            name: tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()
            for name, tensor in tensors.items()
            if name not in borrowed
        },
        vocab_ids=ids,
        format="safeailab",
        borrowed=tuple(borrowed),
        target=TargetMark(target, target_fingerprint(target_model)),
        report=report,
    )
    return replace(made, report=describe(made, report))


def _own_report(config: EagleConfig) -> InspectReport:
    bounds = (("boundary", config.boundaries),) if config.boundaries else ()
    switches = (
        "fc_norm", "norm_output", "norm_before_fc", "norm_before_residual",
        "fc_bias", "own_embedding", "attention_bias", "qk_norm",
    )  # fmt: skip
    return InspectReport(
        format="safeailab",
        decided_by="made in memory",
        switches={name: getattr(config, name) for name in switches},
        layer_ids=config.boundaries or None,
        layer_ids_decided_by="the head itself",
        readings=bounds,
        vocabulary={"map": "the head itself"},
        shapes={},
        dtypes={},
    )


def check_complete(checkpoint: StoredHead) -> None:
    """Refuse a checkpoint that lacks tensors or holds some of a wrong shape.

    Raises:
        BadCheckpoint: names the first ones.
    """
    report = checkpoint.report
    for names, expected in (
        (report.missing, "all tensors of the head"),
        (report.misfits, "sound tensors that fit config.json"),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            what = "no " if names is report.missing else ""
            raise BadCheckpoint(
                checkpoint.called,
                expected=expected,
                got=what + ", ".join(names[:3]) + more,
                next_step="look at it with `labkit inspect`, or fetch it again",
            )


def borrowed_tensors(checkpoint: HeadCheckpoint, target_model: Any) -> dict[str, Tensor]:
    """What the target provides, by name; the embedding is the target's own memory."""
    rows = target_rows(target_model, checkpoint.vocab_ids)
    return {name: rows[name] for name in checkpoint.borrowed}


def target_rows(target_model: Any, vocab_ids: Tensor | None) -> dict[str, Tensor]:
    """Embedding and output rows by the names of a head's state dict; of all words for None."""
    embedding = target_model.get_input_embeddings().weight.detach()
    output = target_model.get_output_embeddings().weight.detach()
    if vocab_ids is not None and len(vocab_ids) != output.shape[0]:
        output = output[vocab_ids.to(output.device)]
    return {EMBEDDING: embedding, OUTPUT: output}


def _check_target(checkpoint: HeadCheckpoint, config: EagleConfig, target_model: Any) -> None:
    text = target_model.config.get_text_config()
    output = target_model.get_output_embeddings().weight
    embedding = target_model.get_input_embeddings().weight
    pairs: Mapping[str, tuple[Any, Any]] = {
        "hidden_size": (config.target_hidden_size, text.hidden_size),
        "vocab_size": (config.vocab_size, output.shape[0]),
    }
    if EMBEDDING in checkpoint.borrowed:
        pairs = {**pairs, "embedding": ((config.vocab_size, config.hidden_size),
                                        tuple(embedding.shape))}  # fmt: skip
    if OUTPUT in checkpoint.borrowed:
        pairs = {**pairs, "output width": (config.hidden_size, output.shape[1])}
    deepest = max(config.boundaries, default=0)
    pairs = {**pairs, "layers": (max(deepest, text.num_hidden_layers), text.num_hidden_layers)}
    check_match(checkpoint, target_model, pairs)


def check_match(
    checkpoint: StoredHead, target_model: Any, pairs: Mapping[str, tuple[Any, Any]]
) -> None:
    """Refuse a target that is not the head's: by its fingerprint where the file has one, and by
    ``pairs``: what is compared -> (the head's, the target's).

    Raises:
        BadInput: names the first that differ.
    """
    if checkpoint.target is not None:
        print_of = target_fingerprint(target_model)
        pairs = {**pairs, "fingerprint": (checkpoint.target.fingerprint, print_of)}
    for what, (wanted, found) in pairs.items():
        if wanted != found:
            name = checkpoint.target.name if checkpoint.target else "a target"
            raise BadInput(
                f"target of the {checkpoint.called}",
                expected=f"{name} with {what} {wanted}",
                got=f"a model with {what} {found}",
                next_step="load the target it was trained for, or choose a head for this one",
            )


def _check_finite(head: nn.Module, checkpoint: StoredHead) -> None:
    for name, parameter in head.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            given = name in checkpoint.tensors or name in checkpoint.borrowed
            raise BadCheckpoint(
                checkpoint.called,
                expected=f"finite numbers in {name}",
                got="NaN or infinity in the file" if given else "a weight that nothing filled",
                next_step="fetch the head again, or load it in a wider dtype",
            )
