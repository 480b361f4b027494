"""Train an EAGLE head for a target: ``labkit train eagle1|eagle3|eagle31``.

Owns: the choice of recipes, and finished heads on disk.
Does not know: losses, the order of the work, the training loop, how heads draft.
Invariants: ``out`` holds a head in the SafeAILab layout, which published engines read, without the
rows that equal the target's.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from labkit.errors import BadInput, require
from labkit.heads.checkpoints import checkpoint_of, write_checkpoint
from labkit.heads.eagle import EagleHead, head_config
from labkit.training.eagle_trainer import RECIPES, EagleRecipe, EagleTrainer, new_head
from labkit.training.head_trainer import check_recipe
from labkit.training.on_states import Course, replace_weights, train_on_states
from labkit.training.run import TrainReport

KINDS = tuple(RECIPES)


def train_eagle(
    target_model: Any,
    kind: str,
    *,
    data: Path | str,
    out: Path | str,
    seed: int = 0,
    recipe: EagleRecipe | None = None,
    boundaries: Sequence[int] | None = None,
    target: str = "smollm2-135m",
    **options: Any,
) -> TrainReport:
    """Train a head for ``target_model``, or go on where an interrupted call stopped.

    Args:
        kind: eagle1, eagle3 or eagle31.
        recipe: what to train and how; None: the one of ``kind``.
        boundaries: depths that an EAGLE-3 head reads; None: the published ones.
        options: the rest, and what may go wrong, as of `train_on_states`.
    """
    recipe = recipe_with(kind, **({} if recipe is None else asdict(recipe)))
    config = head_config(target_model, recipe.version, boundaries=boundaries)
    keep = partial(save_head, target_model=target_model, target=target)
    course = Course(
        kind=kind,
        recipe=recipe,
        needs=config.needs,
        trainer=partial(
            EagleTrainer,
            target_model,
            recipe=recipe,
            seed=seed,
            keep=lambda head, folder: keep(folder, head),
            boundaries=config.boundaries or None,
        ),
        origin={"boundaries": list(config.boundaries)},
    )
    return train_on_states(
        target_model, course, data=data, out=out, seed=seed, target=target, **options
    )


def save_head(folder: Path, head: EagleHead, *, target_model: Any, target: str) -> None:
    """Write ``config.json`` and ``model.safetensors`` (bfloat16), each whole or not at all.

    Args:
        folder: may hold other files; files of these names are replaced.
        target: the target's name, for people; the fingerprint is what is checked.
    """
    checkpoint = checkpoint_of(head, target_model=target_model, target=target, dtype=torch.bfloat16)
    replace_weights(folder, lambda part: write_checkpoint(checkpoint, part))


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
        ("noise", "0 or more", recipe.noise >= 0),
    )
    for name, expected, holds in checks:
        require(holds, f"recipe's {name}", expected, getattr(recipe, name))
    check_recipe(recipe)
    return recipe
