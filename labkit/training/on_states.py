"""Train a head on the target's states, whatever its kind.

Owns: the order of the work: text, states, training; and how finished weights replace older ones.
Does not know: kinds of heads, losses, the training loop.
Invariants: nothing is written before every argument has been checked; the first of several
processes computes the states, the others read them.
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import require
from labkit.heads.draft_checkpoint import CONFIG, TENSORS
from labkit.heads.layers import FINAL
from labkit.progress import Progress
from labkit.training.data import Row, read_rows
from labkit.training.features import Features, cache_features
from labkit.training.head_trainer import HeadRecipe, HeadTrainer, put_aside
from labkit.training.parallel import Ranks, join
from labkit.training.run import Plan, TrainReport, Watch, check_options, origin_of, run


@dataclass(frozen=True, kw_only=True)
class Course:
    """What is particular to one kind of head.

    Attributes:
        kind: the word after ``labkit train``.
        needs: the states that it reads.
        trainer: makes one of rows, their states, and ``ranks``, this process among several.
        origin: what else must be equal for a run to be taken up again.
    """

    kind: str
    recipe: HeadRecipe
    needs: tuple[str, ...]
    trainer: Callable[..., HeadTrainer]
    origin: dict[str, Any] = field(default_factory=dict)


def train_on_states(
    target_model: Any,
    course: Course,
    *,
    data: Path | str,
    out: Path | str,
    features: Path | str,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    storage: str = "float16",
    target: str = "smollm2-135m",
    ranks: Ranks | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TrainReport:
    """Train a head, or go on where an interrupted call stopped.

    Exactly one of ``minutes`` and ``steps`` says how long; the time to compute the target's states
    is not counted. ``minutes`` ends on time on a busy machine too; ``steps`` is what makes two
    runs equal.

    Args:
        target_model: an HF causal LM; training runs on its device.
        data: rows as ``labkit selfgen`` writes them (see ``read_rows``).
        out: folder for the head: new, empty, or left by an interrupted call.
        features: folder for the target's states; the heads of one target share it.
        storage: of the states, see ``cache_features``.
        target: the target's name, noted in the head's files.
        ranks: this process among several (see ``parallel.join``); None: as the launcher says.
        progress: called after every step with (what, done, total), in seconds or steps.
        watch: called after every measurement with all of them; see `labkit.training.run.Watch`.

    Raises:
        BadInput: impossible settings, bad rows, an ``out`` or ``features`` that holds something
            else, or an interrupted run with other data, seed or recipe.
        BadCheckpoint: the interrupted run cannot be read.
        UnsupportedModel: the target cannot be driven, or its states do not give its logits.
    """
    data, out = Path(data), Path(out)
    check_options(out=out, minutes=minutes, steps=steps, seed=seed)
    device = target_model.get_input_embeddings().weight.device
    ranks = join(device) if ranks is None else ranks
    context = target_model.config.get_text_config().max_position_embeddings
    width = target_model.get_output_embeddings().weight.shape[0]
    size = course.recipe.draft_vocab_size
    require(size <= width, "recipe's draft_vocab_size", f"1 to {width}, the target's words", size)
    rows = read_rows(data, vocab_size=width, context=context)
    put_aside(rows, course.recipe)  # the states may take an hour: refused before
    states = _states(
        target_model,
        rows,
        needs=tuple(dict.fromkeys((*course.needs, FINAL))),
        folder=Path(features),
        storage=storage,
        ranks=ranks,
        progress=progress,
    )
    origin = origin_of(data, seed=seed, recipe=course.recipe) | course.origin
    pause = course.recipe.seconds_between_checkpoints
    plan = Plan(course.kind, target, data, out, minutes, steps, pause, origin)
    trainer = course.trainer(rows, states, ranks=ranks)
    return run(trainer, plan, progress=progress, watch=watch, clock=clock)


def _states(
    model: Any,
    rows: tuple[Row, ...],
    *,
    needs: tuple[str, ...],
    folder: Path,
    storage: str,
    ranks: Ranks,
    progress: Progress | None,
) -> Features:
    """The first process computes what is missing; the others wait, and read."""
    device = model.get_input_embeddings().weight.device
    if not ranks.first:
        ranks.agree(0.0, device)
    found = cache_features(
        model, rows, needs=needs, folder=folder, storage=storage, progress=progress
    )
    if ranks.first:
        ranks.agree(0.0, device)
    return found


def replace_weights(folder: Path, write: Callable[[Path], Any]) -> None:
    """Put ``config.json`` and ``model.safetensors`` into ``folder``, each whole or not at all.

    Args:
        folder: may hold other files; files of these names are replaced.
        write: makes both in a folder that is not there yet.
    """
    part = folder / "weights.part"
    shutil.rmtree(part, ignore_errors=True)
    write(part)
    for name in (TENSORS, CONFIG):
        os.replace(part / name, folder / name)
    part.rmdir()
