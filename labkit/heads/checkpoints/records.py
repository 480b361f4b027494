"""What is known about one head's files.

Owns: the records that reading hands out. Does not know: files, formats.
Invariants: an `InspectReport` holds no tensors and turns into JSON as it is; in a `HeadCheckpoint`
tensors bear the names of `EagleHead.state_dict` and have the bytes of the file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit.heads.eagle import EagleConfig

UNSETTLED = -1
"""Boundary of a head whose file names no layers, until the target's depth is known. No activation
bears such a name, so a head that were built with it could not run."""


@dataclass(frozen=True)
class TargetMark:
    """The target that a head was made for, as the lab's own files note it.

    Attributes:
        name: for people. fingerprint: of `labkit.heads.draft_checkpoint.target_fingerprint`.
    """

    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class InspectReport:
    """Everything that a folder tells, and everything that it leaves open.

    Attributes:
        format: name of the layout; decided_by: what gave it away; alternatives: other layouts
            with the same keys.
        name: EAGLE-1, EAGLE-3, EAGLE-3.1 or a variant; version: 1 or 3.
        switches: how the head computes, by the names of `EagleConfig`.
        layer_ids: as stored, None: none are; layer_ids_from: the place in the config.
        readings: what the ids may mean, likeliest first: (convention, boundaries).
        layer_ids_decided_by: why the first reading is the first.
        vocabulary: sizes, kind of map, first and last target id, share of the target's ids.
        shapes: of the head, by the names of `EagleConfig`.
        tensors, parameters, bytes: what is stored; dtypes: how many tensors of each.
        borrowed: names that the target provides.
        missing, unused: names of tensors. misfits: tensors of a wrong shape.
        suspicious: sentences. refused: why the head cannot be loaded; () when it can.
    """

    format: str
    decided_by: str
    alternatives: tuple[str, ...] = ()
    name: str = ""
    version: int = 3
    switches: dict[str, bool]
    layer_ids: tuple[int, ...] | None = None
    layer_ids_from: str = ""
    layer_ids_decided_by: str = ""
    readings: tuple[tuple[str, tuple[int, ...]], ...] = ()
    vocabulary: dict[str, Any]
    shapes: dict[str, Any]
    tensors: int = 0
    parameters: int = 0
    bytes: int = 0
    dtypes: dict[str, int]
    borrowed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoredHead:
    """A head's weights, whatever kind it is and whatever format they came from.

    Attributes:
        tensors: canonical name -> tensor, as stored.
        vocab_ids: int64 [D], the target id of each draft id, ascending.
        format: the layout it was read from.
        borrowed: names that the target provides: ``embed_tokens.weight``, ``lm_head.weight``.
        target: whom it was made for, where the file says so.
        folder: where it was read; None: made in memory.
    """

    tensors: dict[str, Tensor]
    vocab_ids: Tensor
    format: str
    borrowed: tuple[str, ...] = ()
    target: TargetMark | None = None
    report: InspectReport
    folder: Path | None = None

    @property
    def called(self) -> str:
        """What an error calls it."""
        return f"{self.report.format} head" + (f" {self.folder}" if self.folder else "")


@dataclass(frozen=True, kw_only=True)
class HeadCheckpoint(StoredHead):
    """An EAGLE head's weights and their meaning.

    Attributes:
        config: under the likeliest reading of the file.
        alternatives: the other readings that the file allows; see `readings`.
    """

    config: EagleConfig
    alternatives: tuple[EagleConfig, ...] = ()
