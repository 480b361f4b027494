"""The target's hidden states for training text, computed once and kept on disk.

Owns: which states are kept, their files, and whether files that are found may be used.
Does not know: heads, losses, where the text came from.
Invariants: a state on disk is what `Target` hands to a drafter for the same token, rounded to 16
bits; the files hold whole rows in the order of the text, and ``features.json`` says how many, so
that an interrupted call goes on where it stopped; files of other text, or of another target, are
refused.

    rows        p p p r r | p r r r | ...       one line per token in every file
    h2.npy      0 1 2 3 4   5 6 7 8             16 bits x hidden_size per line
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from labkit.devices import HOST
from labkit.errors import BadInput, UnsupportedModel
from labkit.heads.draft_checkpoint import target_fingerprint, write_json
from labkit.progress import Progress
from labkit.target import Target
from labkit.training.data import Batch, Row, collate
from labkit.tree import DraftTree

FORMAT = "labkit-features"
MANIFEST = "features.json"
FINAL = "final"
STORAGE = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_BLOCK = 512  # tokens per forward of the target
_ROWS_PER_FLUSH = 64


@dataclass(frozen=True)
class FeatureBatch:
    """Rows padded on the right, and what the target made of them.

    Attributes:
        text: tokens and targets, [B, T] each.
        states: {name: float32 [B, T, Ht]}, zero where padded.
    """

    text: Batch
    states: dict[str, Tensor]


@dataclass(frozen=True)
class _Manifest:
    """What ``features.json`` says."""

    rows_sha256: str
    target_fingerprint: str
    hidden_size: int
    tokens: int
    storage: str
    needs: tuple[str, ...]
    rows_done: int = 0
    format: str = FORMAT


class States(Protocol):
    """What training reads of states."""

    def batch(
        self, rows: Sequence[Row], *, needs: Sequence[str], device: torch.device | str
    ) -> FeatureBatch: ...


class Features:
    """States on disk, read through a memory map; made by `cache_features`."""

    def __init__(self, folder: Path, manifest: _Manifest, rows: Sequence[Row]) -> None:
        self.folder, self.needs = folder, manifest.needs
        self._dtype = STORAGE[manifest.storage]
        starts = accumulate((len(row) for row in rows), initial=0)
        # equal rows have equal states, so either place will do
        self._start = dict(zip(rows, starts, strict=False))
        self._files = {name: _open(folder, name) for name in manifest.needs}

    def states(self, row: Row, name: str) -> Tensor:
        """[len(row), Ht] as stored, in 16 bits."""
        return _from_bits(self._lines(row, name), self._dtype)

    def batch(
        self, rows: Sequence[Row], *, needs: Sequence[str], device: torch.device | str
    ) -> FeatureBatch:
        """These rows' tokens and states, padded to one width."""
        text = collate(rows, device=device)
        width = text.tokens.shape[1]
        states = {name: self._padded(rows, name, width).to(device).float() for name in needs}
        return FeatureBatch(text, states)

    def _padded(self, rows: Sequence[Row], name: str, width: int) -> Tensor:
        found = [self.states(row, name) for row in rows]
        out = found[0].new_zeros(len(rows), width, found[0].shape[1])
        for index, lines in enumerate(found):
            out[index, : len(lines)] = lines
        return out

    def _lines(self, row: Row, name: str) -> Any:
        start = self._start[row]
        return np.array(self._files[name][start : start + len(row)])


def cache_features(
    model: Any,
    rows: Sequence[Row],
    *,
    needs: Sequence[str],
    folder: Path | str,
    storage: str = "float16",
    progress: Progress | None = None,
) -> Features:
    """Compute the target's states for ``rows``, or take up those that are in ``folder``.

    Args:
        model: the target; its device and dtype are used as they are.
        needs: "hk" (the residual stream after k layers) or "final" (after the final norm).
        folder: new, or made by this function for the same rows and target. Files that hold more
            than ``needs`` are used as they are.
        storage: float16, or bfloat16 for targets whose states leave float16's range.
        progress: told the size on disk first, then tokens done.

    Raises:
        BadInput: files of other text or another target, too little room on the disk, states
            that the storage cannot hold, or a state that the target does not have.
        UnsupportedModel: a target whose logits are not its output rows times its final state.
    """
    folder = Path(folder)
    target = Target(model, needs=tuple(dict.fromkeys((*needs, FINAL))))
    manifest = _wanted(model, rows, needs=target.needs, storage=storage)
    found = _read_manifest(folder)
    if found is not None:
        manifest = _usable(folder, found, manifest)
        target = Target(model, needs=manifest.needs)
    _check_logits(target, rows[0])
    if found is None:
        _check_room(folder, manifest)
        _create(folder, manifest)
    features = Features(folder, manifest, rows)
    if manifest.rows_done:
        _check_fresh(features, target, min(rows[: manifest.rows_done], key=len))
    _Writer(features, target, manifest, rows, progress).to_the_end()
    return features


def disk_bytes(rows: Sequence[Row], *, states: int, hidden_size: int) -> int:
    """Bytes that the files of so many states take."""
    return sum(map(len, rows)) * 2 * states * hidden_size


class _Writer:
    """Fills the files row by row."""

    def __init__(
        self,
        features: Features,
        target: Target,
        manifest: _Manifest,
        rows: Sequence[Row],
        progress: Progress | None,
    ) -> None:
        self._folder, self._target, self._manifest = features.folder, target, manifest
        self._rows, self._progress = rows, progress
        self._dtype = STORAGE[manifest.storage]
        size = disk_bytes(rows, states=len(manifest.needs), hidden_size=manifest.hidden_size)
        self._what = f"keeping the target's states ({size / 1e9:.1f} GB on disk)"

    def to_the_end(self) -> None:
        start, end = self._manifest.rows_done, len(self._rows)
        if start == end:
            return
        at = sum(map(len, self._rows[:start]))
        files = {n: _open(self._folder, n, mode="r+") for n in self._manifest.needs}
        for done, row in enumerate(self._rows[start:], start=start + 1):
            if self._progress is not None:
                self._progress(self._what, at, self._manifest.tokens)
            for name, lines in read_row(self._target, row).items():
                files[name][at : at + len(row)] = _to_bits(lines, self._dtype, name)
            at += len(row)
            if done % _ROWS_PER_FLUSH == 0 or done == end:
                for file in files.values():
                    file.flush()
                _write_manifest(self._folder, self._manifest, rows_done=done)
        if self._progress is not None:
            self._progress(self._what, at, self._manifest.tokens)


def read_row(target: Target, row: Row) -> dict[str, Tensor]:
    """{name: [len(row), Ht]}, as a decode sees them."""
    tokens = row.prompt + row.reply
    hidden: list[dict[str, Tensor]] = []
    target.truncate(0)
    for start in range(0, len(tokens), _BLOCK):
        block = tokens[start : start + _BLOCK]
        with target.speculation():
            scores = target.score(DraftTree.chain(block), all_logits=False)
            target.commit(tuple(range(len(block))))
        hidden.append(scores.hidden)
    target.truncate(0)
    return {name: torch.cat([h[name] for h in hidden]) for name in target.needs}


def _to_bits(states: Tensor, dtype: torch.dtype, name: str) -> Any:
    largest = float(states.abs().max())
    if not largest <= torch.finfo(dtype).max:
        raise BadInput(
            f"state {name} of the target",
            expected=f"numbers up to {torch.finfo(dtype).max:g}, which {dtype} can hold",
            got=f"{largest:g}",
            next_step="choose storage bfloat16 and an empty folder",
        )
    return states.to(HOST, dtype).view(torch.int16).numpy()


def _from_bits(lines: Any, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(lines).view(dtype)


def _open(folder: Path, name: str, *, mode: Any = "r") -> Any:
    try:
        return np.load(folder / f"{name}.npy", mmap_mode=mode, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _refused(folder, f"a file {name}.npy", str(error)) from error


def _create(folder: Path, manifest: _Manifest) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shape = (manifest.tokens, manifest.hidden_size)
    for name in manifest.needs:
        path = folder / f"{name}.npy"
        np.lib.format.open_memmap(path, mode="w+", dtype=np.int16, shape=shape)
    _write_manifest(folder, manifest, rows_done=0)


def _wanted(model: Any, rows: Sequence[Row], *, needs: tuple[str, ...], storage: str) -> _Manifest:
    if storage not in STORAGE:
        raise BadInput(
            "storage", expected=" or ".join(STORAGE), got=repr(storage), next_step="use float16"
        )
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row.prompt, row.reply]).encode())
    return _Manifest(
        rows_sha256=digest.hexdigest(),
        target_fingerprint=target_fingerprint(model),
        hidden_size=int(model.get_output_embeddings().weight.shape[1]),
        tokens=sum(map(len, rows)),
        storage=storage,
        needs=needs,
    )


def _write_manifest(folder: Path, manifest: _Manifest, *, rows_done: int) -> None:
    write_json(folder / MANIFEST, asdict(manifest) | {"rows_done": rows_done})


def _read_manifest(folder: Path) -> _Manifest | None:
    if not folder.exists():
        return None
    if not (folder / MANIFEST).is_file():
        # a kill between the first file and the manifest leaves files that say nothing
        if not folder.is_dir() or any(p.suffix != ".npy" for p in folder.iterdir()):
            raise _refused(folder, "a new or empty folder, or one of cached states", "another one")
        return None
    try:
        fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return _Manifest(**fields | {"needs": tuple(fields["needs"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _refused(folder, f"{MANIFEST} of a cache", str(error)) from error


def _usable(folder: Path, found: _Manifest, wanted: _Manifest) -> _Manifest:
    """``found`` if its files serve, whatever more they hold."""
    for key in ("format", "rows_sha256", "target_fingerprint", "hidden_size", "tokens"):
        if getattr(found, key) != getattr(wanted, key):
            was, now = getattr(found, key), getattr(wanted, key)
            raise _refused(folder, f"states with {key} {now}", f"{key} {was}")
    missing = [name for name in wanted.needs if name not in found.needs]
    if missing:
        raise _refused(folder, f"states {', '.join(wanted.needs)}", f"no {', '.join(missing)}")
    return found


def _check_fresh(features: Features, target: Target, row: Row) -> None:
    """Compute one row again: a fingerprint does not see fine-tuned layers."""
    for name, lines in read_row(target, row).items():
        kept = features.states(row, name).float()
        error = float((kept - lines.cpu().float()).norm() / lines.cpu().float().norm())
        if not error < 0.02:
            raise _refused(
                features.folder, f"{name} of this target", f"states that differ by {error:.0%}"
            )


def _check_logits(target: Target, row: Row) -> None:
    """The loss computes the target's logits from its final state, which must give them."""
    target.truncate(0)
    with target.speculation():
        scores = target.score(DraftTree.chain((row.prompt + row.reply)[:_BLOCK]))
    again = scores.hidden[FINAL].float() @ target.model.get_output_embeddings().weight.float().T
    error = float((again - scores.logits.float()).abs().max() / scores.logits.float().abs().max())
    if not error < 0.02:
        raise UnsupportedModel(
            "target of a head to train",
            expected="logits that are output rows times the final state",
            got=f"logits that differ from these by {error:.0%}",
            next_step="choose a target without capped, scaled or biased logits",
        )


def _check_room(folder: Path, manifest: _Manifest) -> None:
    size = manifest.tokens * 2 * len(manifest.needs) * manifest.hidden_size
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if size > 0.95 * free:
        raise BadInput(
            f"folder for states {folder}",
            expected=f"{size / 1e9:.1f} GB free on its disk",
            got=f"{free / 1e9:.1f} GB",
            next_step="name a folder on a larger disk, or train on fewer rows",
        )


def _refused(folder: Path, expected: str, got: str) -> BadInput:
    return BadInput(
        f"cached states in {folder}",
        expected=expected,
        got=got,
        next_step="name another folder, or delete that one",
    )
