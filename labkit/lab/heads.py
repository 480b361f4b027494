"""Which head belongs to which method, and where the ones that come with the lab lie.

Owns: the EAGLE methods, their default shapes, and the search among the shipped weights.
Does not know: file formats, drafting.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import labkit
from labkit.drafters.shapes import Chain, DynamicTree, Shape
from labkit.errors import BadInput, ModelUnavailable
from labkit.heads.checkpoints import build_head
from labkit.heads.checkpoints.read import name_of
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.heads.eagle import EagleHead
from labkit.lab.readings import read_settled

WEIGHTS = Path(labkit.__file__).parent / "weights"


@dataclass(frozen=True, slots=True)
class EagleMethod:
    """A name of the command line: which kind of head, and how it drafts by itself."""

    kind: str  # as `labkit train` and the folders of shipped weights call it
    shape: Shape


EAGLE = {
    "eagle1": EagleMethod("eagle1", Chain()),
    "eagle2": EagleMethod("eagle1", DynamicTree(top_k=3, nodes=7)),
    "eagle3": EagleMethod("eagle3", Chain()),
    "eagle31": EagleMethod("eagle31", Chain()),
}


def shipped(model: Any, *, kind: str) -> Path | None:
    """The folder of the weights of this kind ("draft", "eagle1", ...) that were made for this
    very target, if the lab ships them."""
    mark = target_fingerprint(model)
    for config in sorted(WEIGHTS.glob(f"*-{kind}/config.json")):
        ours = json.loads(config.read_text(encoding="utf-8"))["labkit"]
        if ours["target_fingerprint"] == mark:
            return config.parent
    return None


def head_for(
    method: str,
    model: Any,
    *,
    source: str | None,
    prompts: Callable[[], Sequence[Sequence[int]]],
    dtype: torch.dtype,
    device: torch.device,
) -> EagleHead:
    """The head of an EAGLE method: the folder ``source``, or the one that comes with the lab.

    Args:
        prompts: asked for when the file can be read in several ways: `readings` are then measured.

    Raises:
        ModelUnavailable: neither is there. BadInput: ``source`` holds another kind of head.
    """
    wanted = EAGLE[method]
    path = Path(source) if source else shipped(model, kind=wanted.kind)
    if path is None:
        raise ModelUnavailable(
            f"{wanted.kind} head for this target",
            expected="one that comes with the lab, or one you name",
            got="neither",
            next_step=f"name a checkpoint (--head), or train one with `labkit train {wanted.kind}`",
        )
    checkpoint = read_settled(path, model, prompts=prompts, dtype=dtype, device=device)
    head = build_head(checkpoint, target_model=model, dtype=dtype, device=device)
    # variants in the wild pass under both names of the third version
    exact = {"EAGLE-1": "eagle1", "EAGLE-3": "eagle3", "EAGLE-3.1": "eagle31"}
    kinds = ("eagle1",) if head.config.version == 1 else ("eagle3", "eagle31")
    if wanted.kind != exact.get(name_of(head.config), wanted.kind) or wanted.kind not in kinds:
        raise BadInput(
            f"--head for method {method!r}",
            expected=f"an {wanted.kind} head",
            got=f"{name_of(head.config)}, in {path}",
            next_step="choose the method that belongs to this head",
        )
    return head
