"""Train an EAGLE head for a target: ``labkit train eagle1|eagle3|eagle31``.

Owns: the order of the work (text, states, training), and finished heads on disk.
Does not know: losses, the training loop, how heads draft.
Invariants: nothing is written before every argument has been checked; ``out`` holds a head in the
SafeAILab layout, which published engines read, without the rows that equal the target's.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from labkit.errors import BadInput, require
from labkit.heads.checkpoints import checkpoint_of, write_checkpoint
from labkit.heads.draft_checkpoint import CONFIG, TENSORS
from labkit.heads.eagle import EagleHead, head_config
from labkit.heads.layers import FINAL
from labkit.progress import Progress
from labkit.training.data import Row, read_rows
from labkit.training.eagle_trainer import RECIPES, EagleRecipe, EagleTrainer, new_head
from labkit.training.features import Features, cache_features
from labkit.training.parallel import Ranks, join
from labkit.training.run import Plan, TrainReport, check_options, origin_of, run

KINDS = tuple(RECIPES)


def train_eagle(
    target_model: Any,
    kind: str,
    *,
    data: Path | str,
    out: Path | str,
    features: Path | str,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    recipe: EagleRecipe | None = None,
    boundaries: Sequence[int] | None = None,
    storage: str = "float16",
    target: str = "smollm2-135m",
    ranks: Ranks | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TrainReport:
    """Train a head for ``target_model``, or go on where an interrupted call stopped.

    Exactly one of ``minutes`` and ``steps`` says how long; the time to compute the target's states
    is not counted. ``minutes`` ends on time on a busy machine too; ``steps`` is what makes two
    runs equal.

    Args:
        target_model: an HF causal LM; training runs on its device.
        kind: eagle1, eagle3 or eagle31.
        data: rows as ``labkit selfgen`` writes them (see ``read_rows``).
        out: folder for the head: new, empty, or left by an interrupted call.
        features: folder for the target's states; the heads of one target share it.
        recipe: what to train and how; None: the one of ``kind``.
        boundaries: depths that an EAGLE-3 head reads; None: the published ones.
        storage: of the states, see ``cache_features``.
        target: the target's name, noted in the head's files.
        ranks: this process among several (see ``parallel.join``); None: as the launcher says.
        progress: called after every step with (what, done, total), in seconds or steps.

    Raises:
        BadInput: impossible settings, bad rows, an ``out`` or ``features`` that holds something
            else, or an interrupted run with other data, seed or recipe.
        BadCheckpoint: the interrupted run cannot be read.
        UnsupportedModel: the target cannot be driven, or its states do not give its logits.
    """
    data, out = Path(data), Path(out)
    check_options(out=out, minutes=minutes, steps=steps, seed=seed)
    recipe = recipe_with(kind, **({} if recipe is None else asdict(recipe)))
    device = target_model.get_input_embeddings().weight.device
    ranks = join(device) if ranks is None else ranks
    context = target_model.config.get_text_config().max_position_embeddings
    width = target_model.get_output_embeddings().weight.shape[0]
    _check_vocabulary(recipe, width)
    rows = read_rows(data, vocab_size=width, context=context)
    config = head_config(target_model, recipe.version, boundaries=boundaries)
    needs = tuple(dict.fromkeys((*config.needs, FINAL)))
    states = _states(
        target_model,
        rows,
        needs=needs,
        folder=Path(features),
        storage=storage,
        ranks=ranks,
        progress=progress,
    )
    trainer = EagleTrainer(
        target_model,
        rows,
        states,
        recipe=recipe,
        seed=seed,
        keep=lambda head, folder: save_head(folder, head, target_model=target_model, target=target),
        boundaries=config.boundaries or None,
        ranks=ranks,
    )
    origin = origin_of(data, seed=seed, recipe=recipe) | {"boundaries": list(config.boundaries)}
    pause = recipe.seconds_between_checkpoints
    plan = Plan(kind, target, data, out, minutes, steps, pause, origin)
    return run(trainer, plan, progress=progress, clock=clock)


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


def save_head(folder: Path, head: EagleHead, *, target_model: Any, target: str) -> None:
    """Write ``config.json`` and ``model.safetensors`` (bfloat16), each whole or not at all.

    Args:
        folder: may hold other files; files of these names are replaced.
        target: the target's name, for people; the fingerprint is what is checked.
    """
    checkpoint = checkpoint_of(head, target_model=target_model, target=target, dtype=torch.bfloat16)
    part = folder / "weights.part"
    shutil.rmtree(part, ignore_errors=True)
    write_checkpoint(checkpoint, part)
    for name in (TENSORS, CONFIG):
        os.replace(part / name, folder / name)
    part.rmdir()


def convert(
    target_model: Any,
    kind: str,
    *,
    vocab_ids: Sequence[int] | torch.Tensor | None = None,
    draft_vocab_size: int | None = None,
    boundaries: Sequence[int] | None = None,
    seed: int = 0,
) -> EagleHead:
    """Add an untrained head to a target: of its own widths, reading its states, using its rows.

    The target itself is not changed. Train the head with `train_eagle`, or drive it as it is.

    Args:
        target_model: any HF causal LM that `Target` accepts.
        kind: eagle1, eagle3 or eagle31.
        vocab_ids: ascending target ids that an EAGLE-3 head can say; None: the first
            ``draft_vocab_size``, or all.
        boundaries: depths that an EAGLE-3 head reads; None: the published ones.

    Raises:
        BadInput: an unknown kind, ids that are not ascending ids of the target, or a target too
            shallow for the usual boundaries.
    """
    recipe = recipe_of(kind)
    width = target_model.get_output_embeddings().weight.shape[0]
    ids = torch.arange(draft_vocab_size or width) if vocab_ids is None else vocab_ids
    ids = torch.as_tensor(ids, dtype=torch.int64)
    ascending = ids.ndim == 1 and len(ids) > 0 and bool((ids[1:] > ids[:-1]).all())
    if not ascending or int(ids[0]) < 0 or int(ids[-1]) >= width:
        raise BadInput(
            "draft vocabulary",
            expected=f"ascending target ids from 0 to {width - 1}",
            got=f"{ids.flatten()[:4].tolist()}... and others",
            next_step="sort the ids and drop the doubles, or leave vocab_ids out",
        )
    return new_head(
        target_model, recipe=recipe, vocab_ids=ids, seed=seed, boundaries=boundaries
    ).eval()


def recipe_of(kind: str) -> EagleRecipe:
    """The usual recipe. BadInput for an unknown kind."""
    if kind not in RECIPES:
        raise BadInput(
            "kind of head", expected=", ".join(KINDS), got=repr(kind), next_step="choose one"
        )
    return RECIPES[kind]


def recipe_with(kind: str, **changes: Any) -> EagleRecipe:
    """The usual recipe with some settings changed. BadInput for impossible ones."""
    recipe = replace(recipe_of(kind), **changes)
    checks = (
        ("version", "1 or 3", recipe.version in (1, 3)),
        ("fc_norm", "only for EAGLE-3", recipe.version == 3 or not recipe.fc_norm),
        ("norm_output", "only for EAGLE-3", recipe.version == 3 or not recipe.norm_output),
        ("train_output", "only for EAGLE-3", recipe.version == 3 or not recipe.train_output),
        ("draft_vocab_size", "at least 1", recipe.draft_vocab_size >= 1),
        ("depth", "at least 1", recipe.depth >= 1),
        ("depth_decay", "above 0", recipe.depth_decay > 0),
        ("shallow", "0 or more and below 1", 0 <= recipe.shallow < 1),
        ("noise", "0 or more", recipe.noise >= 0),
        ("batch_tokens", "at least 1", recipe.batch_tokens >= 1),
        ("learning_rate", "above 0", recipe.learning_rate > 0),
        ("warmup", "above 0 and below 1", 0 < recipe.warmup < 1),
        ("clip_norm", "above 0", recipe.clip_norm > 0),
        ("held_out", "above 0 and below 1", 0 < recipe.held_out < 1),
        ("measured_rows", "at least 1", recipe.measured_rows >= 1),
        ("draft_length", "at least 1", recipe.draft_length >= 1),
    )
    for name, expected, holds in checks:
        require(holds, f"recipe's {name}", expected, getattr(recipe, name))
    return recipe


def _check_vocabulary(recipe: EagleRecipe, width: int) -> None:
    size = recipe.draft_vocab_size
    fits = size <= width
    require(fits, "recipe's draft_vocab_size", f"1 to {width}, the target's vocabulary", size)
