"""Names of multi-token prediction tensors: the family's own, and the lab's.

Owns: the translation both ways, the stacking of experts, telling families apart by names.
Does not know: files, what tensors mean.
Invariants: translating there and back changes no name and no byte.

The lab's names are those of `MtpHead.state_dict`; a checkpoint's copies of the target's rows become
``layers.{k}.embed_tokens.weight`` and ``layers.{k}.lm_head.weight``.

    deepseek    model.layers.61.eh_proj.weight                  layers.0.eh_proj.weight
                model.layers.61.shared_head.norm.weight         layers.0.post_norm.weight
                model.layers.61.mlp.experts.7.up_proj.weight    part of layers.0.mtp_block.mlp.
                                                                         experts.gate_up_proj
    qwen        mtp.layers.0.self_attn.q_proj.weight            layers.0.mtp_block.self_attn....
"""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from labkit.heads.mtp import ADAPTERS, Adapter

_PARTS = ("enorm", "hnorm", "eh_proj", "post_norm")
_COPIES = {"embed_tokens": "embedding", "lm_head": "output"}
_EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def prefix_of(adapter: Adapter, k: int, *, layers: int) -> str:
    """What the names of module ``k`` begin with; ``layers``: of the target."""
    return adapter.prefix.format(k=k, layer=layers + k)


def count_modules(names: Collection[str], adapter: Adapter, *, layers: int) -> int:
    """How many modules of this family are among ``names``."""
    numbered = prefix_of(adapter, 1, layers=layers) != prefix_of(adapter, 0, layers=layers)
    count = 0
    while f"{prefix_of(adapter, count, layers=layers)}{adapter.eh_proj}.weight" in names:
        count += 1
        if not numbered:
            break
    return count


def family_of(names: Collection[str], *, model_type: str, layers: int) -> Adapter | None:
    """The family whose names are there; where several have the same names, the one that says it
    has this type of target, else the first."""
    found = [
        row
        for row in ADAPTERS.values()
        if row.model_types and count_modules(names, row, layers=layers)
    ]
    return next((row for row in found if model_type in row.model_types), next(iter(found), None))


def canonical(name: str, adapter: Adapter, *, modules: int, layers: int) -> str | None:
    """The lab's name of a tensor; its own name where no module has such a part; None: it is none
    of the head's."""
    for k in range(modules):
        prefix = prefix_of(adapter, k, layers=layers)
        if not name.startswith(prefix):
            continue
        rest = name[len(prefix) :]
        for part in _PARTS:
            if rest == f"{getattr(adapter, part)}.weight":
                return f"layers.{k}.{part}.weight"
        for ours, field in _COPIES.items():
            if (theirs := getattr(adapter, field)) and rest == f"{theirs}.weight":
                return f"layers.{k}.{ours}.weight"
        if rest.startswith(adapter.block):
            return f"layers.{k}.mtp_block.{rest[len(adapter.block) :]}"
        return name
    return None


def native(name: str, adapter: Adapter, *, layers: int) -> str:
    """The family's name of one of the lab's."""
    _, k, rest = name.split(".", 2)
    prefix = prefix_of(adapter, int(k), layers=layers)
    part = rest.removesuffix(".weight")
    if part in _PARTS:
        return f"{prefix}{getattr(adapter, part)}.weight"
    if part in _COPIES:
        return f"{prefix}{getattr(adapter, _COPIES[part])}.weight"
    return f"{prefix}{adapter.block}{rest.removeprefix('mtp_block.')}"


def stacked(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """The same with experts side by side where ``wanted`` has them so: [E, 2I, H] and [E, H, I].

    Experts that are not all there, or not alike, stay as they are.
    """
    found = dict(tensors)
    for name, shape in wanted.items():
        base, _, last = name.rpartition(".")
        if name in found or last not in _EXPERTS or not base.endswith(".experts"):
            continue
        rows = [[f"{base}.{e}.{part}.weight" for part in _EXPERTS[last]] for e in range(shape[0])]
        there = [found.get(single) for row in rows for single in row]
        if None in there or len({t.shape for t in there if t is not None}) != 1:
            continue
        found[name] = torch.stack([torch.cat([found.pop(s) for s in row]) for row in rows])
    return found


def unstacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The reverse of `stacked`."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        base, _, last = name.rpartition(".")
        if last not in _EXPERTS or not base.endswith(".experts"):
            found[name] = tensor
            continue
        parts = _EXPERTS[last]
        for e, expert in enumerate(tensor):
            for part, piece in zip(parts, expert.chunk(len(parts)), strict=True):
                found[f"{base}.{e}.{part}.weight"] = piece
    return found
