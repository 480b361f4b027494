"""Which reading of an ambiguous head is right: the one whose first guesses come true.

Owns: the measurement, and what its outcome settles. Does not know: file formats.
Invariants: the text that is guessed at is the target's own greedy text, the same for all readings.

A list of layer ids such as [1, 14, 24] can mean states after 1, 14 and 24 layers, or the outputs of
layers 1, 14 and 24, which are states after 2, 15 and 25. Both run, both give the right text; under
the wrong one the head guesses worse (vLLM PR #43671: some 45 % against 10 % at the first position).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.eagle import eagle_drafter
from labkit.heads.checkpoints import (
    HeadCheckpoint,
    build_head,
    read_checkpoint,
    readings,
    settle,
)
from labkit.heads.eagle import EagleConfig
from labkit.metrics import acceptance
from labkit.target import Target
from labkit.trace import Trace

QUESTIONS = ("How does a bicycle work?", "Name three fruits.", "Write a sentence about the sea.")
"""Short prompts of the lab's own that every target can answer."""


@dataclass(frozen=True, slots=True)
class Measured:
    """First guesses under one reading: how many there were, how many came true."""

    config: EagleConfig
    right: int
    tried: int

    @property
    def rate(self) -> float:
        return self.right / self.tried if self.tried else 0.0


def read_settled(
    path: Path,
    target_model: Any,
    *,
    prompts: Callable[[], Sequence[Sequence[int]]],
    dtype: torch.dtype,
    device: torch.device,
    convention: str | None = None,
) -> HeadCheckpoint:
    """A head's file with one reading: measured where it is open to several.

    Args:
        prompts: asked for only then. convention: see `read_checkpoint`.
    """
    layers = target_model.config.get_text_config().num_hidden_layers
    checkpoint = read_checkpoint(path, convention=convention, target_layers=layers)
    if len(readings(checkpoint, target_layers=layers)) <= 1:
        return checkpoint
    measured = measure_readings(checkpoint, target_model, prompts(), dtype=dtype, device=device)
    return settled(checkpoint, measured)


def measure_readings(
    checkpoint: HeadCheckpoint,
    target_model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    dtype: torch.dtype,
    device: torch.device,
    new_tokens: int = 24,
) -> list[Measured]:
    """First-position acceptance under every reading, likeliest reading first.

    Args:
        prompts: token ids.
        new_tokens: greedy text per prompt, the end of the reply notwithstanding.
    """
    layers = target_model.config.get_text_config().num_hidden_layers
    config = DecodeConfig(max_new_tokens=new_tokens, draft_length=1)
    found = []
    for reading in readings(checkpoint, target_layers=layers):
        head = build_head(
            checkpoint, target_model=target_model, dtype=dtype, device=device, config=reading
        )
        target, drafter = Target(target_model, needs=reading.needs), eagle_drafter(head)
        runs = [
            acceptance(Trace.record(speculate(target, drafter, prompt, config=config)))
            for prompt in prompts
        ]
        right, tried = sum(run.accepted for run in runs), sum(run.drafted for run in runs)
        found.append(Measured(reading, right, tried))
    return found


def settled(checkpoint: HeadCheckpoint, measured: Sequence[Measured]) -> HeadCheckpoint:
    """The head under the reading that guessed best; the report says what was measured. When none
    is better than the likeliest one, that one stays, and the report says so."""
    best = max(measured, key=lambda m: m.rate)  # the first of equals: the likeliest
    told = ", ".join(f"{m.rate:.0%} with {_depths(m.config)}" for m in measured)
    verdict = "measured" if best.rate > min(m.rate for m in measured) else "measured, undecided"
    why = f"{verdict}: first guesses right, of {best.tried}: {told}"
    return settle(checkpoint, best.config, why=why)


def _depths(config: EagleConfig) -> str:
    ids = ", ".join(map(str, config.boundaries))
    return f"states after {ids} layers" + ("" if not config.norm_output else ", norm_output")
