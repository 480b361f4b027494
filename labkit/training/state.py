"""The state of a training, and the file of an interrupted one: weights, optimiser, position.

Owns: that file, the position that it notes, and how an update moves both.
Does not know: models, losses, clocks.
Invariants: the file is written whole or not at all; what was loaded continues bit for bit; a file
of a run with other settings, or with anything in it that no run writes, is refused before a weight
is touched; an update follows the gradients of its own loss alone.

The file has four tensors per parameter, and its metadata say where from and how far:

    lm_head.weight                 the weight         state: {"origin": {"seed": 0, ...},
    lm_head.weight#step            of AdamW                   "at": {"step": 40, ...}}
    lm_head.weight#exp_avg
    lm_head.weight#exp_avg_sq
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from labkit.errors import BadCheckpoint, BadInput
from labkit.kinds import OBJECT, keys, list_of, number, whole_from
from labkit.training.data import Row
from labkit.whole_file import save_tensors

_COUNT, _POSITIVE = whole_from(0), number(least=0)
_POINT = {
    "step": _COUNT,
    "tokens": _COUNT,
    "minutes": _POSITIVE,
    "loss": number(),
    "first": _POSITIVE,
    "by_depth": list_of(_POSITIVE),
    "mean_accepted_length": _POSITIVE,
}
_POSITION = {
    "step": _COUNT,
    "epoch": _COUNT,
    "batch": _COUNT,
    "tokens": _COUNT,
    "seconds": _POSITIVE,
    "loss": number(),
    "best": _POSITIVE,
    "curve": list_of(keys(_POINT, required=tuple(_POINT))),
}
_STATE = keys(
    {"origin": OBJECT, "at": keys(_POSITION, required=tuple(_POSITION), closed=True)},
    required=("origin", "at"),
    closed=True,
)
_STEP, _MEAN, _SQUARE = "#step", "#exp_avg", "#exp_avg_sq"


@dataclass(frozen=True)
class Position:
    """How far training has come. Stored as it is, so that it can be taken up again.

    ``loss`` is a running mean over about fifty steps; ``seconds`` excludes interruptions;
    ``curve`` has one entry per measurement, ready for JSON.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    best: float = 0.0
    curve: tuple[dict[str, Any], ...] = ()

    def after(self, loss: float, *, tokens: int, batches: int) -> "Position":
        """One update further: ``tokens`` were read, in an epoch of ``batches``."""
        ended = self.batch + 1 == batches
        return replace(
            self,
            step=self.step + 1,
            epoch=self.epoch + ended,
            batch=0 if ended else self.batch + 1,
            tokens=self.tokens + tokens,
            loss=loss if self.step == 0 else 0.98 * self.loss + 0.02 * loss,
        )


def make_optimiser(
    trained: Mapping[str, nn.Parameter], *, rate: float, decay: float, betas: tuple[float, float]
) -> torch.optim.Optimizer:
    """AdamW; norm weights are scales around one, and decay would pull them to zero."""
    groups = [
        {"params": [p for p in trained.values() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in trained.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True)


class Pace(Protocol):
    """What a recipe says of every update."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip_norm(self) -> float: ...


class TrainingState:
    """Weights, optimiser and position of one training, epoch after epoch.

    Args:
        trained: what is updated, by name.
        betas: of AdamW.
        epoch: the batches of the epoch of that number.

    Attributes:
        at: the position. batches: of its epoch.
    """

    def __init__(
        self,
        trained: Mapping[str, nn.Parameter],
        pace: Pace,
        *,
        betas: tuple[float, float],
        epoch: Callable[[int], list[list[Row]]],
    ) -> None:
        self.trained, self._pace, self._epoch = trained, pace, epoch
        self.optimiser = make_optimiser(
            trained, rate=pace.learning_rate, decay=pace.weight_decay, betas=betas
        )
        self.at = Position()
        self.batches = epoch(0)

    @property
    def batch(self) -> list[Row]:
        """Whose turn it is."""
        return self.batches[self.at.batch]

    def epochs(self) -> float:
        """Passes over the training rows, with the fraction."""
        return self.at.epoch + self.at.batch / len(self.batches)

    def update(
        self,
        loss: Tensor,
        *,
        warm: float,
        share_done: float,
        tokens: int,
        average: Callable[[Iterable[nn.Parameter]], None] | None = None,
    ) -> None:
        """One step down the gradients of ``loss``. Those that an interrupted call may have left
        do not count, and none are left.

        Args:
            warm: how far the learning rate has risen, 0 to 1.
            share_done: of the training, 0 to 1: how far the rate has come down its cosine.
            tokens: read for it.
            average: of gradients over several processes.

        Raises:
            BadInput: loss or gradients are not finite; weights, optimiser and position are as
                they were.
        """
        pace, at = self._pace, self.at
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if average is not None:
            average(self.trained.values())
        rate = pace.learning_rate * warm
        for group in self.optimiser.param_groups:
            group["lr"] = rate * (0.5 + 0.5 * math.cos(math.pi * share_done))
        norm = nn.utils.clip_grad_norm_(list(self.trained.values()), pace.clip_norm)
        told = float(loss.detach())
        # gradients were averaged: where one process diverged, all of them stop
        if not (math.isfinite(told) and math.isfinite(norm)):
            self.optimiser.zero_grad(set_to_none=True)
            raise _diverged(told, step=at.step + 1)
        # known before the weights move, so that an interruption does not part them from it
        after = at.after(told, tokens=tokens, batches=len(self.batches))
        batches = self._epoch(after.epoch) if after.epoch > at.epoch else self.batches
        self.optimiser.step()
        self.at, self.batches = after, batches
        self.optimiser.zero_grad(set_to_none=True)

    def save(self, path: Path, *, origin: Mapping[str, Any]) -> None:
        """Write everything that training needs to go on, whole or not at all."""
        save_state(path, self.trained, self.optimiser, at=self.at, origin=origin)

    def load(self, path: Path, *, origin: Mapping[str, Any]) -> None:
        """Take up what `save` wrote, all of it or, with an error, nothing.

        Raises:
            BadInput: it was written by a run with another ``origin``.
            BadCheckpoint: it cannot be read, or holds what no run writes.
        """
        at, tensors = read_state(path, self.trained, origin=origin)
        batches = self._epoch(at.epoch)
        if at.batch >= len(batches):
            raise _broken(path, f"batch 0 to {len(batches) - 1} of its epoch", str(at.batch))
        moments: dict[Tensor, Any] = {
            parameter: {
                part[1:]: tensors[name + part].to(parameter.device)
                for part in (_STEP, _MEAN, _SQUARE)
            }
            for name, parameter in self.trained.items()
        }
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(tensors[name])
        self.optimiser.state.update(moments)
        self.optimiser.zero_grad(set_to_none=True)
        self.at, self.batches = at, batches


def save_state(
    path: Path,
    trained: Mapping[str, nn.Parameter],
    optimiser: torch.optim.Optimizer,
    *,
    at: Position,
    origin: Mapping[str, Any],
) -> None:
    """Write everything that training needs to go on, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in trained.items():
        moments = optimiser.state.get(parameter) or {}
        weight = tensors[name] = parameter.detach().contiguous()
        # before its first gradient a weight has no moments; AdamW starts from these
        tensors[name + _STEP] = moments.get("step", torch.zeros(()))
        for part in (_MEAN, _SQUARE):
            tensors[name + part] = moments.get(part[1:], torch.zeros_like(weight)).contiguous()
    state = json.dumps({"origin": origin, "at": asdict(at)})
    save_tensors(path, tensors, metadata={"state": state})


def read_state(
    path: Path, trained: Mapping[str, nn.Parameter], *, origin: Mapping[str, Any]
) -> tuple[Position, dict[str, Tensor]]:
    """The position and the tensors that `save_state` wrote; changes nothing.

    Raises:
        BadInput: it was written by a run with another ``origin``.
        BadCheckpoint: it cannot be read, or holds what no run writes.
    """
    try:
        with safe_open(path, "pt") as file:
            state = json.loads((file.metadata() or {}).get("state", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise _broken(path, "a file that labkit wrote", str(error)) from error
    if wrong := _STATE.wrong(state):
        where = f" as {wrong.key}" if wrong.key else " with the state"
        raise _broken(path, wrong.expected + where, wrong.got)
    _check_origin(path, state["origin"], origin)
    at = Position(**state["at"] | {"curve": tuple(state["at"]["curve"])})
    for name, count in (("epoch", at.epoch), ("batch", at.batch)):
        if count > at.step:
            raise _broken(path, f"at.{name} 0 to {at.step}, the steps so far", str(count))
    _check_tensors(path, tensors, trained, step=at.step)
    return at, tensors


def _check_tensors(
    path: Path, tensors: Mapping[str, Tensor], trained: Mapping[str, nn.Parameter], *, step: int
) -> None:
    wanted = {name + part for name in trained for part in ("", _STEP, _MEAN, _SQUARE)}
    if missing := sorted(wanted - tensors.keys()):
        raise _broken(path, f"the tensor {missing[0]}", "none")
    if unknown := sorted(tensors.keys() - wanted):
        raise _broken(path, "only tensors of the weights in training", unknown[0])
    for name, parameter in trained.items():
        for part in ("", _MEAN, _SQUARE):
            least = 0 if part == _SQUARE else None
            _check_numbers(path, name + part, tensors[name + part], like=parameter, least=least)
        counted = tensors[name + _STEP]
        _check_numbers(path, name + _STEP, counted, like=torch.zeros(()), least=0)
        if not 0 <= float(counted) <= step or float(counted) % 1:
            raise _broken(path, f"0 to {step} updates as {name + _STEP}", f"{float(counted):g}")


def _check_numbers(
    path: Path, name: str, found: Tensor, *, like: Tensor, least: float | None
) -> None:
    kinds = [f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in (like, found)]
    if kinds[0] != kinds[1]:
        raise _broken(path, f"{kinds[0]} as {name}", kinds[1])
    if not bool(torch.isfinite(found).all()):
        raise _broken(path, f"finite numbers in {name}", "NaN or infinity")
    if least is not None and found.numel() and float(found.min()) < least:
        raise _broken(path, f"numbers from {least:g} on in {name}", f"{float(found.min()):g}")


def _check_origin(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key in {**now, **before}:
        if before.get(key) != now.get(key):
            raise BadInput(
                f"interrupted training {path}",
                expected=f"{key} {before.get(key)} as before",
                got=str(now.get(key)),
                next_step="repeat the first call's settings, or choose another --out",
            )


def _diverged(loss: float, *, step: int) -> BadInput:
    what = "gradients that are not finite" if math.isfinite(loss) else f"{loss:g}"
    return BadInput(
        "training",
        expected="a finite loss with finite gradients",
        got=f"{what} at step {step}",
        next_step="train into another folder at a lower learning rate; what was saved last is kept",
    )


def _broken(path: Path, expected: str, got: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"interrupted training {path}",
        expected=expected,
        got=got,
        next_step="put a sound copy of the file there, or train again into another folder",
    )
