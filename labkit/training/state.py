"""The state of a training, and the file of an interrupted one: weights, optimiser, position.

Owns: that file, the position that it notes, and how an update moves both.
Does not know: models, losses, clocks.
Invariants: the file is written whole or not at all; what was loaded continues bit for bit; a file
of a run with other settings is refused.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from labkit.errors import BadCheckpoint, BadInput
from labkit.training.data import Row
from labkit.whole_file import save_tensors


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

    def update(self, loss: Tensor, *, warm: float, share_done: float, tokens: int) -> None:
        """One step down the gradients of ``loss``, which are there and then gone.

        Args:
            warm: how far the learning rate has risen, 0 to 1.
            share_done: of the training, 0 to 1: how far the rate has come down its cosine.
            tokens: read for it.
        """
        pace, at = self._pace, self.at
        rate = pace.learning_rate * warm
        for group in self.optimiser.param_groups:
            group["lr"] = rate * (0.5 + 0.5 * math.cos(math.pi * share_done))
        nn.utils.clip_grad_norm_(list(self.trained.values()), pace.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.at = at.after(float(loss.detach()), tokens=tokens, batches=len(self.batches))
        if self.at.epoch > at.epoch:
            self.batches = self._epoch(self.at.epoch)

    def save(self, path: Path, *, origin: Mapping[str, Any]) -> None:
        """Write everything that training needs to go on, whole or not at all."""
        save_state(path, self.trained, self.optimiser, at=self.at, origin=origin)

    def load(self, path: Path, *, origin: Mapping[str, Any]) -> None:
        """Take up what `save` wrote.

        Raises:
            BadInput: it was written by a run with another ``origin``.
            BadCheckpoint: it cannot be read.
        """
        self.at = load_state(path, self.trained, self.optimiser, origin=origin)
        self.batches = self._epoch(self.at.epoch)


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
        tensors[name] = parameter.detach().contiguous()
        for key, value in optimiser.state[parameter].items():
            tensors[f"{name}#{key}"] = value
    state = json.dumps({"origin": origin, "at": asdict(at)})
    save_tensors(path, tensors, metadata={"state": state})


def load_state(
    path: Path,
    trained: Mapping[str, nn.Parameter],
    optimiser: torch.optim.Optimizer,
    *,
    origin: Mapping[str, Any],
) -> Position:
    """Take up what `save_state` wrote; the position.

    Raises:
        BadInput: it was written by a run with another ``origin``.
        BadCheckpoint: it cannot be read.
    """
    try:
        with safe_open(path, "pt") as file:
            state = json.loads(file.metadata()["state"])
            _check_origin(path, state["origin"], origin)
            if state["at"]["step"]:
                _restore(trained, optimiser, file.get_tensor)
        return Position(**state["at"] | {"curve": tuple(state["at"]["curve"])})
    except BadInput:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(
            f"interrupted training {path}",
            expected="a file that labkit wrote",
            got=str(error),
            next_step="delete the folder and train again",
        ) from error


def _restore(
    trained: Mapping[str, nn.Parameter],
    optimiser: torch.optim.Optimizer,
    read: Callable[[str], Tensor],
) -> None:
    for name, parameter in trained.items():
        with torch.no_grad():
            parameter.copy_(read(name))
        optimiser.state[parameter] = {
            key: read(f"{name}#{key}").to(parameter.device)
            for key in ("step", "exp_avg", "exp_avg_sq")
        }


def _check_origin(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, value in now.items():
        if before.get(key) != value:
            raise BadInput(
                f"interrupted training {path}",
                expected=f"{key} {before.get(key)} as before",
                got=str(value),
                next_step="repeat the first call's settings, or choose another --out",
            )
