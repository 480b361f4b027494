"""Train a small draft model for a target: ``labkit train draft``.

Owns: its settings' limits, and finished draft models on disk.
Does not know: losses and optimisers, the training loop, how the draft is driven in decoding.
Invariants: nothing is written before every argument has been checked.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.errors import BadInput
from labkit.heads.draft_checkpoint import save_draft_checkpoint
from labkit.progress import Progress
from labkit.training.data import read_rows
from labkit.training.draft_trainer import DraftRecipe, DraftTrainer
from labkit.training.run import (
    Plan,
    TrainReport,
    check_options,
    origin_of,
    run,
)


def train_draft(
    target_model: Any,
    *,
    data: Path | str,
    out: Path | str,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    recipe: DraftRecipe | None = None,
    target: str = "smollm2-135m",
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TrainReport:
    """Train a draft model for ``target_model``, or go on where an interrupted call stopped.

    Exactly one of ``minutes`` and ``steps`` says how long. ``minutes`` ends on time on a busy
    machine too; ``steps`` is what makes two runs equal.

    Args:
        target_model: HF Llama; training runs on its device, in float32.
        data: rows as ``labkit selfgen`` writes them (see ``read_rows``).
        out: folder for the checkpoint: new, empty, or left by an interrupted call.
        target: the target's name, noted in the checkpoint.
        progress: called after every step with (what, done, total), in seconds or steps.

    Raises:
        BadInput: impossible settings, bad rows, an ``out`` that holds something else, or an
            interrupted run with other data, seed or recipe. Nothing has been written then.
        BadCheckpoint: the interrupted run cannot be read.
        UnsupportedModel: the target is not a Llama.
    """
    recipe, data, out = recipe or DraftRecipe(), Path(data), Path(out)
    check_options(out=out, minutes=minutes, steps=steps, seed=seed)
    _check_recipe(recipe, target_model)
    config = target_model.config
    rows = read_rows(data, vocab_size=config.vocab_size, context=config.max_position_embeddings)

    def keep(trainer: DraftTrainer, folder: Path) -> None:
        save_draft_checkpoint(
            folder,
            trainer.model,
            vocab_ids=trainer.vocab_ids,
            target_model=target_model,
            target=target,
        )

    trainer = DraftTrainer(target_model, rows, recipe=recipe, seed=seed, keep=keep)
    origin = origin_of(data, seed=seed, recipe=recipe)
    pause = recipe.seconds_between_checkpoints
    plan = Plan("draft", target, data, out, minutes, steps, pause, origin)
    return run(trainer, plan, progress=progress, clock=clock)


def _check_recipe(recipe: DraftRecipe, target_model: Any) -> None:
    depth = target_model.config.num_hidden_layers
    width = target_model.config.vocab_size
    checks = (
        ("layers", f"one or more layer numbers from 0 to {depth - 1}",
         bool(recipe.layers) and all(0 <= layer < depth for layer in recipe.layers)),
        ("draft_vocab_size", f"1 to {width}", 1 <= recipe.draft_vocab_size <= width),
        ("batch_tokens", "at least 1", recipe.batch_tokens >= 1),
        ("learning_rate", "above 0", recipe.learning_rate > 0),
        ("warmup_steps", "at least 1", recipe.warmup_steps >= 1),
        ("held_out", "above 0 and below 1", 0 < recipe.held_out < 1),
        ("draft_length", "at least 1", recipe.draft_length >= 1),
    )  # fmt: skip
    for name, expected, holds in checks:
        if not holds:
            raise BadInput(
                f"recipe's {name}",
                expected=expected,
                got=str(getattr(recipe, name)),
                next_step=f"change {name}, or leave it at its default",
            )
