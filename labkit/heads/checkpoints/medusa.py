"""Files of parallel heads: how they are told, read, judged and made to run.

Owns: the names and keys of each layout, and what a file leaves open. Does not know: drafting.
Invariants: safetensors only; tensors keep their bytes; a head is handed out whole or not at all:
what is missing, left over, of a wrong shape or not finite is refused by name.

    ours                    FasterDecoding            vLLM                      what
    blocks.2.layers.0.*     2.0.linear.*              blocks.2.layers.0.*       residual block
    lm_heads.2.weight       2.1.weight                lm_heads.2.weight         its output layer
    lm_head.weight          2.1.weight, all equal     lm_heads.0.weight         one for all heads
                            token_map                 token_map                 [D] target ids

FasterDecoding's number after the head counts the parts of a sequence: blocks first, then the
output layer. Its own files have no token map; the lab adds vLLM's where the heads say fewer words.
Output layers that are not stored are the target's: in the lab's own files, and in FasterDecoding's
layout, whose reader starts from the target's rows. Meta published no file of heads alone; the
lab's ``meta`` layout has our own names: ``trunk.*``, ``blocks.{head}.*``.

Sources: FasterDecoding/Medusa (``medusa_model.py``), vLLM (``models/medusa.py``,
``transformers_utils/configs/medusa.py``).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from labkit.errors import BadCheckpoint
from labkit.heads import formats
from labkit.heads.checkpoints.files import (
    CONFIG,
    broken,
    check_config,
    check_tensors,
    made_of,
    read_folder,
    read_json,
    tensor_names,
)
from labkit.heads.checkpoints.fit import check_rotary, expected_shapes, misfits
from labkit.heads.checkpoints.layouts import section
from labkit.heads.checkpoints.load import check_complete, check_match, fill
from labkit.heads.checkpoints.read import OUTPUT, mark_of, measure, words
from labkit.heads.checkpoints.records import InspectReport, StoredHead, TargetMark
from labkit.heads.checkpoints.settings import positive
from labkit.heads.checkpoints.vocabulary import read_vocabulary
from labkit.heads.layers import LayerConfig
from labkit.heads.medusa import MEDUSA, META, MedusaConfig, MedusaHeads, output_rows

FORMAT = "labkit-medusa"
VERSION = 1
MAP = "token_map"
LAYOUTS = (*formats.MEDUSA, *formats.META)
_PREFIX = re.compile(r"^(medusa_heads?\.|heads\.)")
_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_LAST = re.compile(r"(\d+)\.(\d+)\.weight")
_MARK = re.compile(r"(\d+\.\d+\.linear|blocks\.\d+\.layers\.\d+)\.weight")


@dataclass(frozen=True, kw_only=True)
class MedusaCheckpoint(StoredHead):
    """Parallel heads as they are stored; names as in `MedusaHeads.state_dict`."""

    config: MedusaConfig


def is_medusa(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Are these the config and the tensors' names of parallel heads?"""
    if section(config, "labkit").get("format") == FORMAT:
        return True
    return any(_MARK.fullmatch(_PREFIX.sub("", name)) for name in names)


def holds_medusa(path: Path | str) -> bool:
    """Does this folder hold parallel heads? False also for what cannot be read as a head at all,
    which `read_medusa` and other readers refuse with their reasons."""
    try:
        return is_medusa(read_json(Path(path), CONFIG), tensor_names(Path(path)))
    except BadCheckpoint:
        return False


def canonical_name(name: str) -> str:
    """The name in `MedusaHeads.state_dict` of a tensor of either public layout.

    >>> canonical_name("medusa_head.2.0.linear.weight")
    'blocks.2.layers.0.weight'
    >>> canonical_name("2.1.weight")
    'lm_heads.2.weight'
    """
    name = _PREFIX.sub("", name)
    if found := _BLOCK.fullmatch(name):
        return f"blocks.{found[1]}.layers.{found[2]}.{found[3]}"
    if found := _LAST.fullmatch(name):
        return f"lm_heads.{found[1]}.weight"
    return name


def read_medusa(path: Path | str) -> MedusaCheckpoint:
    """Read parallel heads of any known layout.

    Returns:
        Tensors may be missing, left over or of a wrong shape (see its report); `build_medusa`
        refuses those.

    Raises:
        BadCheckpoint: files, shapes or a token map that cannot be read.
    """
    path = Path(path)
    config, stored = read_folder(path)
    check_config(path, config)
    if not is_medusa(config, stored):
        raise broken(
            path,
            expected="parallel heads: blocks.0.layers.0.weight or 0.0.linear.weight",
            got=f"{len(stored)} tensors, first {min(stored, default='none')}",
            next_step="name the folder of Medusa heads",
        )
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if (ours := canonical_name(name)) in tensors:
            raise broken(path, expected="one tensor per name", got=f"{ours} twice")
        tensors[ours] = tensor
    check_tensors(path, tensors)
    return _Reading(path, config, tensors, numbered=any(map(_BLOCK.search, stored))).checkpoint()


@dataclass
class _Reading:
    """One folder on its way to a checkpoint. numbered: in FasterDecoding's names."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    numbered: bool

    def checkpoint(self) -> MedusaCheckpoint:
        ours, tensors = section(self.config, "labkit"), self.tensors
        doubts: list[str] = []
        self._one_output()
        ids, source = self._words(doubts)
        config = self._shapes(len(ids))
        biased = any(name.endswith(".bias") for name in tensors)
        if config.kind == MEDUSA and not self.numbered and biased != config.bias:
            doubts.append("medusa_fc_bias does not say what the tensors do; the tensors count")
            config = replace(config, bias=biased)
        layout = "medusa" if self.numbered else "vllm"
        return judged(
            config,
            tensors,
            ids,
            layout=str(ours.get("layout") or layout),
            borrowed=self._borrowed(config),
            target=mark_of(ours),
            decided_by="the labkit entry in config.json" if ours else "tensor names",
            source=source,
            doubts=tuple(doubts),
            folder=self.path,
        )

    def _one_output(self) -> None:
        """Bring one output layer for all heads under its own name."""
        stored = sorted(n for n in self.tensors if n.startswith("lm_heads."))
        if self.config.get("original_lm_head") and "lm_heads.0.weight" in stored:
            self.tensors[OUTPUT] = self.tensors.pop("lm_heads.0.weight")
        elif section(self.config, "labkit").get("shared_output") and stored:
            first = self.tensors[stored[0]]
            if all(torch.equal(self.tensors[name], first) for name in stored):
                for name in stored:
                    del self.tensors[name]
                self.tensors[OUTPUT] = first

    def _words(self, doubts: list[str]) -> tuple[Tensor, str]:
        """[D] target ids and how they were found."""
        rows = [t for n, t in self.tensors.items() if n.startswith("lm_head")]
        stored = len(rows[0]) if rows else None
        ids = self.tensors.pop(MAP, None)
        V = self._number(("vocab_size",), stored)
        D = self._number(("truncated_vocab_size",), stored or V)
        if ids is None:
            every, source, _ = read_vocabulary(
                self.path, None, None, vocab_size=V, draft_vocab_size=stored or D
            )
            return every, source
        ids = ids.long()
        sound = ids.ndim == 1 and 0 < len(ids) == len(ids.unique())
        if not sound or int(ids.min()) < 0 or int(ids.max()) >= V:
            raise broken(
                self.path,
                expected=f"different target ids below {V} in {MAP}",
                got=f"{ids.flatten()[:4].tolist()}... and others",
            )
        if stored == V > len(ids):  # as vLLM does with whole output layers
            for name in [n for n in self.tensors if n.startswith("lm_head")]:
                self.tensors[name] = self.tensors[name][ids]
            doubts.append("its output layers have all words; those of token_map are used")
        if "truncated_vocab_size" not in self.config:
            doubts.append("truncated_vocab_size is not in config.json; vLLM ignores token_map then")
        return ids, f"{MAP}: target ids"

    def _shapes(self, words: int) -> MedusaConfig:
        ours = section(self.config, "labkit")
        stored = [n for n in self.tensors if _MARK.fullmatch(n)]
        places = [tuple(map(int, re.findall(r"\d+", n))) for n in stored]
        block = self.tensors.get(stored[0]) if stored else None
        known = {f.name for f in fields(LayerConfig)}
        layer = {k: v for k, v in section(ours, "block").items() if k in known and v is not None}
        shapes = {
            "kind": str(ours.get("kind") or MEDUSA),
            "heads": self._number(("num_heads", "medusa_num_heads"),
                                  max((p[0] + 1 for p in places), default=None)),
            "layers": self._number(("num_hidden_layers", "medusa_num_layers"),
                                   max((p[1] + 1 for p in places), default=1)),
            "hidden_size": self._number(("hidden_size",), None if block is None else len(block)),
            "vocab_size": self._number(("vocab_size",), words),
            "draft_vocab_size": words,
            "bias": self._bias(),
            "shared_output": not any(n.startswith("lm_heads.") for n in self.tensors),
            "block": made_of(self.path, LayerConfig, layer) if layer else None,
        }  # fmt: skip
        return made_of(self.path, MedusaConfig, shapes)

    def _bias(self) -> bool:
        if self.numbered:  # always there as published; without any, they were never trained
            return any(name.endswith(".bias") for name in self.tensors)
        # not a question for meta
        return bool(self.config.get("medusa_fc_bias", "block" in section(self.config, "labkit")))

    def _number(self, keys: tuple[str, ...], otherwise: int | None) -> int:
        """The first of these keys of the config, else what the tensors say."""
        value = next((self.config[k] for k in keys if self.config.get(k) is not None), otherwise)
        return positive(self.path, keys[0], value)

    def _borrowed(self, config: MedusaConfig) -> tuple[str, ...]:
        said = section(self.config, "labkit").get("borrowed") or ()
        every = config.draft_vocab_size == config.vocab_size
        # FasterDecoding's reader starts from the target's rows and takes what the file has
        silent = every and config.shared_output and (self.numbered or config.kind == META)
        lent = config.outputs if silent else tuple(n for n in config.outputs if n in said)
        return tuple(name for name in lent if name not in self.tensors)


def judged(
    config: MedusaConfig,
    tensors: Mapping[str, Tensor],
    vocab_ids: Tensor,
    *,
    layout: str,
    borrowed: tuple[str, ...],
    target: TargetMark | None,
    decided_by: str,
    source: str,
    doubts: tuple[str, ...] = (),
    folder: Path | None = None,
) -> MedusaCheckpoint:
    """The checkpoint with everything that can be said against it."""
    if config.block is not None:
        check_rotary(config.block, folder=folder)
    wanted = expected_shapes(MedusaHeads, config, folder=folder)
    kept = {name: tensors[name] for name in wanted if name in tensors}
    unused = tuple(sorted(tensors.keys() - wanted.keys()))
    left = (f"{unused[0]} and {len(unused) - 1} more: no part of such heads",) if unused else ()
    what = "Medusa" if config.kind == MEDUSA else "Meta's parallel heads"
    report = InspectReport(
        format=layout,
        decided_by=decided_by,
        name=f"{what}, {config.heads} heads",
        version=0,
        switches={"bias": config.bias, "shared_output": config.shared_output},
        layer_ids_decided_by="reads the state after the final norm",
        vocabulary=words(vocab_ids, vocab_size=config.vocab_size) | {"map": source},
        shapes={
            "heads": config.heads,
            "hidden_size": config.hidden_size,
            "layers": config.layers,
            **(vars(config.block) if config.block else {}),
        },
        borrowed=borrowed,
        missing=tuple(sorted(wanted.keys() - kept.keys() - {*borrowed})),
        unused=unused,
        misfits=misfits(kept, wanted) + left,
        suspicious=doubts,
        **measure(kept),
    )
    return MedusaCheckpoint(
        config=config,
        tensors=kept,
        vocab_ids=vocab_ids,
        format=layout,
        borrowed=borrowed,
        target=target,
        folder=folder,
        report=report,
    )


def build_medusa(
    checkpoint: MedusaCheckpoint,
    *,
    target_model: Any,
    dtype: torch.dtype,
    device: torch.device | str,
) -> MedusaHeads:
    """Heads in evaluation mode, their weights in place and frozen.

    Raises:
        BadCheckpoint: tensors that are missing, left over, of a wrong shape or not finite.
        BadInput: the heads were made for another target.
    """
    config = checkpoint.config
    check_complete(checkpoint)
    check_owner(checkpoint, target_model)
    with torch.device("meta"):
        heads = MedusaHeads(config, vocab_ids=checkpoint.vocab_ids)
    if config.block is not None:
        heads.rotary = LlamaRotaryEmbedding(config.block.llama()).to(device)  # stays in float32
    heads.vocab_ids = checkpoint.vocab_ids.to(device)
    rows = output_rows(target_model, checkpoint.vocab_ids)
    lent = dict.fromkeys(checkpoint.borrowed, rows)
    fill(heads, checkpoint, lent, dtype=dtype, device=device)
    return heads.eval()


def load_medusa(
    path: Path | str, *, target_model: Any, dtype: torch.dtype, device: torch.device | str
) -> MedusaHeads:
    """`read_medusa` and `build_medusa`."""
    checkpoint = read_medusa(path)
    return build_medusa(checkpoint, target_model=target_model, dtype=dtype, device=device)


def check_owner(checkpoint: MedusaCheckpoint, target_model: Any) -> None:
    """Refuse a target that these heads were not made for. Raises BadInput."""
    config, output = checkpoint.config, target_model.get_output_embeddings().weight
    pairs = {
        "hidden_size": (config.hidden_size, output.shape[1]),
        "vocab_size": (config.vocab_size, output.shape[0]),
    }
    check_match(checkpoint, target_model, pairs)
