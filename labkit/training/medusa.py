"""Train parallel heads for a target: ``labkit train medusa`` and ``labkit train meta``.

Owns: their recipes, what one forward of them guesses along a text, and finished heads on disk.
Does not know: the loss, the order of the work, the training loop.
Invariants: the target is frozen (Medusa-1); output rows are the target's own memory unless the
recipe trains outputs; ``out`` holds heads in a layout of `labkit.heads.checkpoints.medusa`.

    text      x0 x1 x2 x3 x4 x5       f: the target's states after the final norm
    f1        head 0 guesses x3, of which the target's law after x2 is known: it is f2's
              head 1 guesses x4, whose law is f3's; head d weighs depth_decay ** d

The published loss is the cross-entropy of the text's own tokens; here the target's law, which is
cached anyway, takes their place: on the target's greedy text it has the same mode, and says more.

Source: Cai et al. 2024 (Medusa, arXiv 2401.10774): Medusa-1, weights 0.8 ** k, learning rate 1e-3,
residual blocks from zero, outputs from the target's rows.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.errors import BadInput, require
from labkit.heads.checkpoints.medusa_write import checkpoint_of_medusa, write_medusa
from labkit.heads.eagle import HeadStep
from labkit.heads.layers import FINAL, StackedKeyValues
from labkit.heads.medusa import KINDS, MEDUSA, META, MedusaHeads, first_heads, medusa_config
from labkit.training.head_trainer import HeadRecipe, HeadTrainer, check_recipe
from labkit.training.on_states import Course, replace_weights, train_on_states
from labkit.training.run import TrainReport


@dataclass(frozen=True)
class MedusaRecipe(HeadRecipe):
    """What is trained, and how.

    ``depth`` is the number of heads, all trained from the start: ``shallow`` has no meaning here.
    With ``train_output`` each of Medusa's heads has an output layer of its own, as published; it
    makes them many times as large.

    Attributes:
        kind: "medusa" or "meta" (see ``MedusaConfig``).
        layers: medusa: residual blocks of each head.
    """

    kind: str = MEDUSA
    layers: int = 1
    depth: int = 4
    shallow: float = 0.0
    draft_length: int = 4


RECIPES: dict[str, MedusaRecipe] = {kind: MedusaRecipe(kind=kind) for kind in KINDS}


def train_medusa(
    target_model: Any,
    kind: str = MEDUSA,
    *,
    data: Path | str,
    out: Path | str,
    seed: int = 0,
    recipe: MedusaRecipe | None = None,
    target: str = "smollm2-135m",
    **options: Any,
) -> TrainReport:
    """Train heads for ``target_model``, or go on where an interrupted call stopped.

    Args:
        kind: medusa or meta.
        recipe: what to train and how; None: the one of ``kind``.
        options: the rest, and what may go wrong, as of `train_on_states`.
    """
    recipe = recipe_with(kind, **({} if recipe is None else asdict(recipe)))
    keep = partial(save_medusa, target_model=target_model, target=target)
    course = Course(
        kind=kind,
        recipe=recipe,
        needs=(FINAL,),
        trainer=partial(medusa_trainer, target_model, recipe=recipe, seed=seed, keep=keep),
    )
    return train_on_states(
        target_model, course, data=data, out=out, seed=seed, target=target, **options
    )


def medusa_trainer(
    target_model: Any, rows: Any, features: Any, ranks: Any = None, *, recipe: MedusaRecipe,
    seed: int, keep: Any,
) -> HeadTrainer:  # fmt: skip
    """`HeadTrainer` of new parallel heads; ``keep`` takes a folder and the heads."""
    return HeadTrainer(
        target_model,
        rows,
        features,
        ranks=ranks,
        recipe=recipe,
        seed=seed,
        keep=lambda heads, folder: keep(folder, heads),
        make=partial(new_heads, target_model, recipe=recipe, seed=seed),
        drafting=AtOnce(),
    )


class AtOnce:
    """All depths from one forward; a `labkit.training.head_trainer.Drafting`."""

    def depth(self, share_done: float, recipe: HeadRecipe) -> int:
        return recipe.depth

    def unroll(
        self, head: MedusaHeads, tokens: Tensor, states: Sequence[Tensor], *, steps: int, first: int
    ) -> list[HeadStep]:
        columns = tokens.shape[1] - 2
        if head.config.kind == MEDUSA:  # what stands before needs no reading
            made = head(states[0][:, first:columns])
        else:
            causal = torch.ones(columns, columns, dtype=torch.bool, device=tokens.device).tril()
            made = head(
                states[0][:, :columns],
                positions=torch.arange(columns, device=tokens.device)[None],
                kv=[StackedKeyValues() for _ in head.cache()],
                mask=causal,
            )[:, first:]
        depths = made.unbind(2)[:steps]
        cut = [x[:, : made.shape[1] - s] for s, x in enumerate(depths)]
        return [HeadStep(x, x) for x in cut]

    def logits(self, head: MedusaHeads, step: int, normed: Tensor) -> Tensor:
        return head.output(step)(normed)


def new_heads(
    target_model: Any, vocab_ids: Tensor, *, recipe: MedusaRecipe, seed: int
) -> MedusaHeads:
    """Untrained heads in float32 on the target's device, with the target's rows in place; see
    `first_heads`.

    Args:
        vocab_ids: int64 [D], ascending target ids that the heads can say.
    """
    own = recipe.train_output and recipe.kind == MEDUSA
    config = medusa_config(
        target_model,
        recipe.kind,
        heads=recipe.depth,
        layers=recipe.layers,
        draft_vocab_size=len(vocab_ids),
        shared_output=not own,
    )
    heads = first_heads(config, target_model, seed=seed, vocab_ids=vocab_ids.cpu())
    for d in range(config.heads if recipe.train_output else 0):
        heads.output(d).weight = nn.Parameter(heads.output(d).weight.detach().clone())
    return heads


def save_medusa(folder: Path, heads: MedusaHeads, *, target_model: Any, target: str) -> None:
    """Write ``config.json`` and ``model.safetensors`` (bfloat16), each whole or not at all.

    Args:
        folder: may hold other files; files of these names are replaced.
        target: the target's name, for people; the fingerprint is what is checked.
    """
    checkpoint = checkpoint_of_medusa(
        heads, target_model=target_model, target=target, dtype=torch.bfloat16
    )
    replace_weights(folder, lambda part: write_medusa(checkpoint, part))


def recipe_with(kind: str, /, **changes: Any) -> MedusaRecipe:
    """The usual recipe with some settings changed. BadInput for impossible ones."""
    if kind not in RECIPES:
        raise BadInput(
            "kind of heads", expected=", ".join(RECIPES), got=repr(kind), next_step="choose one"
        )
    recipe = replace(RECIPES[kind], **changes)
    require(recipe.kind == kind, "recipe's kind", kind, recipe.kind)
    require(recipe.layers >= 1, "recipe's layers", "1 or more", recipe.layers)
    one = recipe.kind == MEDUSA or recipe.layers == 1
    require(one, "recipe's layers", f"1 for {META}, whose heads are one layer each", recipe.layers)
    check_recipe(recipe)
    # no draft is deeper than there are heads
    return replace(recipe, draft_length=min(recipe.draft_length, recipe.depth))
