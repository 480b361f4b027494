"""Which head belongs to which method, and where the ones that come with the lab lie.

Owns: the methods with heads, their default shapes, and the search among the shipped weights.
Does not know: file formats, drafting.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.drafters.base import Drafter
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.medusa import medusa_drafter
from labkit.drafters.mtp import mtp_drafter
from labkit.drafters.shapes import SMALL_DYNAMIC_TREE, Chain, Shape
from labkit.errors import BadInput, ModelUnavailable
from labkit.heads.checkpoints import build_head
from labkit.heads.checkpoints.medusa import load_medusa
from labkit.heads.checkpoints.mtp import build_mtp, has_mtp, read_mtp
from labkit.heads.checkpoints.read import name_of
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.heads.eagle import EagleHead
from labkit.heads.medusa import KINDS, MedusaHeads
from labkit.heads.mtp import MtpHead
from labkit.lab.head_names import WEIGHTS, head_folder
from labkit.lab.readings import read_settled


def shipped(model: Any, *, kind: str) -> Path | None:
    """The folder of the weights of this kind ("draft", "eagle1", ...) that were made for this
    very target, if the lab ships them."""
    mark = target_fingerprint(model)
    for config in sorted(WEIGHTS.glob(f"*-{kind}/config.json")):
        ours = json.loads(config.read_text(encoding="utf-8"))["labkit"]
        if ours["target_fingerprint"] == mark:
            return config.parent
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A head that is asked for.

    Attributes:
        source: its folder; None: the one that belongs to the target.
        folder: where the target itself was read from, if it was from a folder.
        prompts: asked for when the file can be read in several ways: `readings` are then measured.
    """

    method: str
    model: Any
    source: str | None
    folder: Path | None
    prompts: Callable[[], Sequence[Sequence[int]]]
    dtype: torch.dtype
    device: torch.device

    @property
    def missing(self) -> ModelUnavailable:
        """The error for a target that has no such head."""
        kind = HEADS[self.method].kind
        return ModelUnavailable(
            f"{kind} head for this target",
            expected="one that comes with the lab, or one you name",
            got="neither",
            next_step=f"name a checkpoint (--head), or train one with `labkit train {kind}`",
        )


@dataclass(frozen=True, slots=True)
class HeadMethod:
    """A name of the command line: which kind of head, how it is found, how it drafts by itself.

    Attributes:
        kind: as `labkit train` and the folders of shipped weights call it.
        find: the head. drafter: made of a head, a shape, a confidence and a name.
        length: tokens drafted per round.
    """

    kind: str
    shape: Shape
    find: Callable[[Wanted], Any]
    drafter: Callable[..., Drafter]
    length: int = 2


def _eagle_head(wanted: Wanted) -> EagleHead:
    kind = HEADS[wanted.method].kind
    path = Path(wanted.source) if wanted.source else shipped(wanted.model, kind=kind)
    if path is None:
        raise wanted.missing
    place: dict[str, Any] = {"dtype": wanted.dtype, "device": wanted.device}
    checkpoint = read_settled(path, wanted.model, prompts=wanted.prompts, **place)
    head = build_head(checkpoint, target_model=wanted.model, **place)
    # variants in the wild pass under both names of the third version
    exact = {"EAGLE-1": "eagle1", "EAGLE-3": "eagle3", "EAGLE-3.1": "eagle31"}
    kinds = ("eagle1",) if head.config.version == 1 else ("eagle3", "eagle31")
    if kind != exact.get(name_of(head.config), kind) or kind not in kinds:
        raise BadInput(
            f"--head for method {wanted.method!r}",
            expected=f"an {kind} head",
            got=f"{name_of(head.config)}, in {path}",
            next_step="choose the method that belongs to this head",
        )
    return head


def _mtp_head(wanted: Wanted) -> MtpHead:
    """The folder that is named, or the target's own modules, or what comes with the lab."""
    model, folder = wanted.model, wanted.folder
    own = folder if folder and has_mtp(folder, model) else shipped(model, kind="mtp")
    path = Path(wanted.source) if wanted.source else own
    if path is None:
        raise wanted.missing
    checkpoint = read_mtp(path, target_model=model)
    return build_mtp(checkpoint, target_model=model, dtype=wanted.dtype, device=wanted.device)


def _medusa_heads(wanted: Wanted) -> MedusaHeads:
    """Parallel heads of either kind."""
    found = (shipped(wanted.model, kind=kind) for kind in KINDS)
    path = Path(wanted.source) if wanted.source else next(filter(None, found), None)
    if path is None:
        raise wanted.missing
    return load_medusa(path, target_model=wanted.model, dtype=wanted.dtype, device=wanted.device)


# Shapes and lengths that pay on 2 CPU cores, where every draft step costs a tenth of a target step.
HEADS = {
    "eagle1": HeadMethod("eagle1", Chain(), _eagle_head, eagle_drafter),
    "eagle2": HeadMethod("eagle1", SMALL_DYNAMIC_TREE, _eagle_head, eagle_drafter),
    "eagle3": HeadMethod("eagle3", Chain(), _eagle_head, eagle_drafter),
    "eagle31": HeadMethod("eagle31", Chain(), _eagle_head, eagle_drafter),
    "mtp": HeadMethod("mtp", Chain(), _mtp_head, mtp_drafter, length=3),
    "medusa": HeadMethod("medusa", SMALL_DYNAMIC_TREE, _medusa_heads, medusa_drafter),
}
EAGLE = {name: row for name, row in HEADS.items() if row.drafter is eagle_drafter}


def head_for(
    method: str,
    model: Any,
    *,
    source: str | None,
    prompts: Callable[[], Sequence[Sequence[int]]],
    dtype: torch.dtype,
    device: torch.device,
    folder: Path | None = None,
) -> Any:
    """The head of a method: the one that ``source`` names (see `head_folder`), or the one that
    belongs to the target; see `Wanted`.

    Raises:
        BadCheckpoint: ``source`` names none.
        ModelUnavailable: neither is there. BadInput: ``source`` holds another kind of head.
    """
    wanted = Wanted(
        method=method,
        model=model,
        source=str(head_folder(source)) if source else None,
        folder=folder,
        prompts=prompts,
        dtype=dtype,
        device=device,
    )
    return HEADS[method].find(wanted)
