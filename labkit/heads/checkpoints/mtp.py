"""Files of multi-token prediction heads: those inside a target's own checkpoint, and the lab's.

Owns: reading, judging and building them. Does not know: drafting, training.
Invariants: safetensors only; of a target's checkpoint only the head's tensors are read; tensors
keep their bytes, there and back; a head is handed out whole or not at all.

Native heads lie beside the target's own weights, under names that `mtp_names` translates. The lab's
own heads are a folder: ``model.safetensors`` under the names of transformers' ``MtpModel``
(``layers.0.enorm.weight``, ``layers.0.mtp_block.self_attn.q_proj.weight``, ...), with
``embed_tokens.weight`` and ``lm_head.weight`` only where they differ from the target's rows and
``d2t`` where the head has fewer words than the target; and ``config.json``:

    model_type, hidden_size, vocab_size, num_hidden_layers      of the target
    draft_vocab_size, num_mtp_layers, rms_norm_eps              of the head
    labkit: format, version, adapter, the adapter's switches, borrowed, target, target_fingerprint
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.errors import BadCheckpoint, ModelUnavailable, UnsupportedModel
from labkit.heads.checkpoints.files import (
    CONFIG,
    broken,
    check_config,
    check_tensors,
    made_of,
    read_folder,
    read_json,
    read_some,
    tensor_names,
)
from labkit.heads.checkpoints.fit import misfits
from labkit.heads.checkpoints.layouts import section
from labkit.heads.checkpoints.load import check_complete, check_match, fill, target_rows
from labkit.heads.checkpoints.mtp_names import (
    canonical,
    count_modules,
    family_of,
    stacked,
)
from labkit.heads.checkpoints.read import (
    EMBEDDING,
    OUTPUT,
    mark_of,
    measure,
    words,
)
from labkit.heads.checkpoints.records import InspectReport, StoredHead, TargetMark
from labkit.heads.checkpoints.vocabulary import read_vocabulary
from labkit.heads.layers import plain_eps
from labkit.heads.mtp import (
    ADAPTERS,
    GENERIC,
    SWITCHES,
    MtpConfig,
    MtpHead,
    blocks_of,
    mtp_config,
    rotary_of,
)

FORMAT = "labkit-mtp"
VERSION = 1
_REQUIRED = (
    "hidden_size", "vocab_size", "draft_vocab_size", "num_hidden_layers", "num_mtp_layers",
    "rms_norm_eps", *(f"labkit.{name}" for name in SWITCHES),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MtpCheckpoint(StoredHead):
    """A head's weights and their meaning.

    Attributes:
        copies: the target's rows as a native file repeats them, by `mtp_names`.
        apart: the file has one tensor per expert.
    """

    config: MtpConfig
    copies: dict[str, Tensor]
    apart: bool = False


def has_mtp(path: Path, target_model: Any) -> bool:
    """Does this folder hold a head for ``target_model``: in its own checkpoint, or by itself?"""
    return _holds(path, **_whose(path, target_model))


def holds_mtp(path: Path) -> bool:
    """The same by the files alone, for the target that lies in the same folder."""
    if not (path / CONFIG).is_file():
        return False
    config = read_json(path, CONFIG)
    text = section(config, "text_config") or config
    layers = text.get("num_hidden_layers")
    kind = str(text.get("model_type"))
    return isinstance(layers, int) and _holds(path, model_type=kind, layers=layers)


def stated_type(path: Path) -> str | None:
    """The type of the target as the files beside the head state it: MiMo's say "mimo", and load as
    Qwen2."""
    if not (path / CONFIG).is_file():
        return None
    config = read_json(path, CONFIG)
    return (section(config, "text_config") or config).get("model_type")


def target_of_mtp(path: Path) -> str:
    """What to load beside the head in ``path``: the target that one of the lab's names; a native
    head lies in its target's own folder."""
    if not _is_ours(path):
        return str(path)
    mark = mark_of(section(read_json(path, CONFIG), "labkit"))
    return mark.name if mark else str(path)


def _holds(path: Path, *, model_type: str, layers: int) -> bool:
    if not path.is_dir():
        return False
    if _is_ours(path):
        return True
    try:
        names = tensor_names(path)
    except BadCheckpoint:
        return False
    return family_of(names, model_type=model_type, layers=layers) is not None


def read_mtp(path: Path | str, *, target_model: Any) -> MtpCheckpoint:
    """Read the head in a target's own checkpoint, or one of the lab's.

    Args:
        path: a folder with safetensors; other tensors in it are not read.
        target_model: gives the shapes of the decoder layer, and the rows that copies may repeat.

    Returns:
        Tensors may be missing or of a wrong shape (see its report); `build_mtp` refuses those.

    Raises:
        BadCheckpoint: files that cannot be read. ModelUnavailable: no such head among them.
        UnsupportedModel: quantised weights, or output layers that differ from module to module.
    """
    path = Path(path)
    return _read_ours(path, target_model) if _is_ours(path) else _read_native(path, target_model)


def build_mtp(
    checkpoint: MtpCheckpoint,
    *,
    target_model: Any,
    dtype: torch.dtype,
    device: torch.device | str,
) -> MtpHead:
    """A head in evaluation mode, its weights in place and frozen.

    Raises:
        BadCheckpoint: tensors that are missing, of a wrong shape or not finite.
        BadInput: the head was made for another target.
    """
    config = checkpoint.config
    check_complete(checkpoint)
    wanted = mtp_config(target_model)
    names = ("hidden_size", "vocab_size", "target_layers")
    pairs = {name: (getattr(config, name), getattr(wanted, name)) for name in names}
    check_match(checkpoint, target_model, pairs)
    head = _on_meta(target_model, config, checkpoint.vocab_ids)
    head.rotary.to(device)  # stays in its own width
    head.vocab_ids = checkpoint.vocab_ids.to(device)
    lent = target_rows(target_model, checkpoint.vocab_ids)
    fill(head, checkpoint, {n: lent[n] for n in checkpoint.borrowed}, dtype=dtype, device=device)
    for name, _ in list(head.layers.named_buffers(prefix="layers")):
        if name in checkpoint.tensors:  # routers' biases keep their own width
            owner, _, last = name.rpartition(".")
            setattr(head.get_submodule(owner), last, checkpoint.tensors[name].to(device))
    _check_buffers(head, checkpoint)
    return head.eval()


def _is_ours(path: Path) -> bool:
    if not (path / CONFIG).is_file():
        return False
    return section(read_json(path, CONFIG), "labkit").get("format") == FORMAT


def _whose(path: Path, target_model: Any) -> dict[str, Any]:
    text = target_model.config.get_text_config()
    kind = stated_type(path) or text.model_type
    return {"model_type": kind, "layers": text.num_hidden_layers}


def _read_native(path: Path, target_model: Any) -> MtpCheckpoint:
    whose = _whose(path, target_model)
    layers, names = whose["layers"], tensor_names(path)
    adapter = family_of(names, **whose)
    if adapter is None:
        raise ModelUnavailable(
            f"multi-token prediction in {path}",
            expected="modules of a known family: " + ", ".join(n for n in ADAPTERS),
            got="none of their names",
            next_step="choose a model that ships them, or train a head with `labkit train mtp`",
        )
    modules = count_modules(names, adapter, layers=layers)
    ours = {n: canonical(n, adapter, modules=modules, layers=layers) for n in sorted(names)}
    stored = read_some(path, [name for name, found in ours.items() if found])
    found = {str(ours[name]): tensor for name, tensor in stored.items()}
    check_tensors(path, found)
    config = mtp_config(target_model, adapter, modules=modules)
    copies = {n: found.pop(n) for n in list(found) if _is_copy(n)}
    own, borrowed = _own_rows(path, copies, target_model)
    known = whose["model_type"] in adapter.model_types
    by = "its names" + ("" if known else f"; targets of type {whose['model_type']} are new to it")
    return judged(
        config, found | own, torch.arange(config.vocab_size), target_model,
        copies=copies, borrowed=borrowed, decided_by=by, source="none: all words of the target",
        folder=path,
    )  # fmt: skip


def _is_copy(name: str) -> bool:
    return name.split(".", 2)[-1] in (EMBEDDING, OUTPUT)


def _own_rows(
    path: Path, copies: Mapping[str, Tensor], target_model: Any
) -> tuple[dict[str, Tensor], list[str]]:
    """Rows that are not the target's, and the names of those that are."""
    own: dict[str, Tensor] = {}
    for row, theirs in target_rows(target_model, None).items():
        mine = [tensor for name, tensor in copies.items() if name.endswith(f".{row}")]
        here = theirs.cpu()
        different = [t for t in mine if t.shape != here.shape or not torch.equal(t.to(here), here)]
        if not different:
            continue
        if len(different) < len(mine) or any(not torch.equal(t, mine[0]) for t in mine):
            raise UnsupportedModel(
                f"head in {path}",
                expected=f"one {row} for all modules",
                got="modules that differ",
                next_step="choose another head",
            )
        own[row] = mine[0]
    return own, [row for row in (EMBEDDING, OUTPUT) if row not in own]


def _read_ours(path: Path, target_model: Any) -> MtpCheckpoint:
    settings, tensors = read_folder(path)
    ours = section(settings, "labkit")
    if ours.get("version") != VERSION:
        raise broken(
            path,
            expected=f"format version {VERSION}",
            got=f"version {ours.get('version')}",
            next_step="use the labkit version that wrote it, or train it again",
        )
    check_config(path, settings, required=_REQUIRED)
    sizes = {name: settings[name] for name in ("vocab_size", "draft_vocab_size")}
    shapes = sizes | {
        "adapter": replace(GENERIC, **{name: ours[name] for name in SWITCHES}),
        "hidden_size": settings["hidden_size"],
        "target_layers": settings["num_hidden_layers"],
        "modules": settings["num_mtp_layers"],
        "eps": plain_eps(settings["rms_norm_eps"]),
    }
    config = made_of(path, MtpConfig, shapes)
    check_tensors(path, tensors)
    ids, source, _ = read_vocabulary(path, tensors.pop("d2t", None), None, **sizes)
    borrowed = [n for n in (EMBEDDING, OUTPUT) if n in (ours.get("borrowed") or ())]
    return judged(
        config, tensors, ids, target_model,
        borrowed=borrowed, target=mark_of(ours), decided_by=f"format {FORMAT}", source=source,
        folder=path,
    )  # fmt: skip


def judged(
    config: MtpConfig,
    tensors: Mapping[str, Tensor],
    vocab_ids: Tensor,
    target_model: Any,
    *,
    borrowed: list[str],
    decided_by: str,
    source: str,
    target: TargetMark | None = None,
    copies: dict[str, Tensor] | None = None,
    folder: Path | None = None,
) -> MtpCheckpoint:
    """The checkpoint with everything that can be said against it."""
    meta = _on_meta(target_model, config, vocab_ids)
    wanted = {name: tuple(t.shape) for name, t in meta.state_dict().items()}
    found = stacked(tensors, wanted)
    unused = tuple(sorted(found.keys() - wanted.keys()))
    kept = {name: found[name] for name in wanted if name in found}
    some = "1 module" if config.modules == 1 else f"{config.modules} modules"
    made = MtpCheckpoint(
        config=config,
        tensors=kept,
        vocab_ids=vocab_ids,
        format=config.adapter.name,
        borrowed=tuple(borrowed),
        target=target,
        folder=folder,
        copies=copies or {},
        apart=found.keys() != tensors.keys(),
        report=InspectReport(
            format=f"{config.adapter.name} multi-token prediction",
            decided_by=decided_by,
            name=f"MTP, {some}, reads {config.needs[0]}",
            version=0,
            switches={n: bool(getattr(config.adapter, n)) for n in SWITCHES if n != "state"},
            vocabulary=words(vocab_ids, vocab_size=config.vocab_size) | {"map": source},
            shapes={"hidden_size": config.hidden_size, "target_layers": config.target_layers},
            borrowed=tuple(borrowed),
            missing=tuple(sorted(wanted.keys() - kept.keys() - {*borrowed})),
            unused=unused,
            misfits=misfits(kept, wanted),
            suspicious=_doubts(unused),
            **measure(kept),
        ),
    )
    return made


def _on_meta(target_model: Any, config: MtpConfig, vocab_ids: Tensor) -> MtpHead:
    with torch.device("meta"):
        blocks = blocks_of(target_model, modules=config.modules)
        rotary = rotary_of(target_model)
        return MtpHead(config, blocks=blocks, rotary=rotary, vocab_ids=vocab_ids)


def _doubts(unused: tuple[str, ...]) -> tuple[str, ...]:
    if not unused:
        return ()
    return (f"{len(unused)} tensors of the head are not used, first {unused[0]}",)


def _check_buffers(head: MtpHead, checkpoint: MtpCheckpoint) -> None:
    for name, buffer in head.layers.named_buffers(prefix="layers"):
        if buffer.is_meta or not bool(torch.isfinite(buffer).all()):
            raise BadCheckpoint(
                checkpoint.called,
                expected=f"finite numbers in {name}",
                got="none" if buffer.is_meta else "NaN or infinity in the file",
                next_step="fetch the head again",
            )
