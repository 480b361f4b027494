"""Train one recursive module for multi-token prediction: ``labkit train mtp``.

Owns: its recipe, its first weights, and finished heads on disk.
Does not know: the loss (that of EAGLE-3's training-time test, with steps weighed as FastMTP does),
the order of the work, the training loop.
Invariants: only the module is trained; embedding and output rows are the target's own memory unless
the recipe trains the output; ``out`` holds a head in the lab's own format (see
`labkit.heads.checkpoints.mtp`).

The module reads the target's state after its final norm, and its own output, normed likewise.

Source: FastMTP (arXiv 2509.18362): one head for all depths, trained on its own states on text that
the target wrote, step k weighed by beta ** k with beta 0.6.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.heads.checkpoints.mtp_write import checkpoint_of_mtp, save_mtp
from labkit.heads.mtp import GENERIC, MtpHead, bare_mtp, mtp_config
from labkit.training.head_trainer import HeadRecipe, HeadTrainer, check_recipe
from labkit.training.on_states import Course, replace_weights, train_on_states
from labkit.training.run import TrainReport


@dataclass(frozen=True)
class MtpRecipe(HeadRecipe):
    """What is trained, and how; ``depth_decay`` is FastMTP's beta."""

    depth_decay: float = 0.6


def train_mtp(
    target_model: Any,
    *,
    data: Path | str,
    out: Path | str,
    seed: int = 0,
    recipe: MtpRecipe | None = None,
    target: str = "smollm2-135m",
    **options: Any,
) -> TrainReport:
    """Train a head for ``target_model``, or go on where an interrupted call stopped.

    Args:
        recipe: what to train and how; None: the usual one.
        options: the rest, and what may go wrong, as of `train_on_states`.

    Raises:
        UnsupportedModel: also a target whose layers or rotary positions are not apart.
    """
    recipe = recipe_with(**({} if recipe is None else asdict(recipe)))
    keep = partial(save_mtp_head, target_model=target_model, target=target)
    course = Course(
        kind="mtp",
        recipe=recipe,
        needs=mtp_config(target_model).needs,
        trainer=partial(
            HeadTrainer,
            target_model,
            recipe=recipe,
            seed=seed,
            keep=lambda head, folder: keep(folder, head),
            make=partial(new_mtp, target_model, recipe=recipe, seed=seed),
        ),
    )
    return train_on_states(
        target_model, course, data=data, out=out, seed=seed, target=target, **options
    )


def recipe_with(**changes: Any) -> MtpRecipe:
    """The usual recipe with some settings changed. BadInput for impossible ones."""
    recipe = replace(MtpRecipe(), **changes)
    check_recipe(recipe)
    return recipe


def new_mtp(
    target_model: Any, vocab_ids: Tensor | Sequence[int], *, recipe: MtpRecipe, seed: int
) -> MtpHead:
    """An untrained head in float32 on the target's device, with the target's rows in place.

    Args:
        vocab_ids: int64 [D], ascending target ids that the head can say.

    Raises:
        UnsupportedModel: a target without layers and rotary positions of their own.
    """
    ids = torch.as_tensor(vocab_ids, dtype=torch.int64)
    config = mtp_config(target_model, GENERIC, draft_vocab_size=len(ids))
    head = bare_mtp(target_model, config, vocab_ids=ids)
    head.layers.float()
    _first_weights(head, target_model, seed=seed)
    output = head.lm_head.weight.detach().float()
    head.lm_head.weight = nn.Parameter(output, requires_grad=recipe.train_output)
    # dropout of the target's own training would make two runs differ
    return head.eval()


@torch.no_grad()
def _first_weights(head: MtpHead, target_model: Any, *, seed: int) -> None:
    """Start from a module that hands the target's state through, and says softly what it says.

        state after the norm   w * s      the norm on the way in takes w out again, the projection
        hnorm, eh_proj             s      is the identity on this half and small noise on the
        layer adds nothing         s      token's, and the norm before the output puts w back,
        post_norm          c * w * s      scaled so that logits spread by about 1

    A random start is sure of random words, and most of a short training goes into unlearning them.
    """
    generator = torch.Generator().manual_seed(seed)
    module: Any = head.layers[0]
    for name, weight in module.state_dict().items():
        drawn = torch.randn(weight.shape, generator=generator) * 0.02
        weight.copy_(torch.ones_like(weight) if "norm" in name else drawn)
    H = head.config.hidden_size
    noise = torch.randn(H, H, generator=generator) * 0.1 / H**0.5  # a tenth of the state's size
    module.eh_proj.weight.copy_(torch.cat((noise, torch.eye(H)), 1))
    for name, weight in module.mtp_block.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
            weight.zero_()
    final = _final_scale(target_model).to(head.device)
    safe = torch.where(final.abs() < 1e-2, torch.ones_like(final), final)
    module.hnorm.weight.copy_(1 / safe)
    spread = head.lm_head.weight.float().norm(dim=1).mean() * final.square().mean().sqrt()
    module.post_norm.weight.copy_(safe / spread)


def _final_scale(target_model: Any) -> Tensor:
    """[H], what the target's final norm multiplies a state of unit size by."""
    output = target_model.get_output_embeddings().weight
    ones = torch.ones(1, output.shape[1], dtype=output.dtype, device=output.device)
    # asked, not read: some norms scale by their weight, others by one more than it
    norm = getattr(target_model.get_decoder(), "norm", nn.Identity())
    return norm(ones)[0].float()


def save_mtp_head(folder: Path, head: MtpHead, *, target_model: Any, target: str) -> None:
    """Write ``config.json`` and ``model.safetensors`` (bfloat16), each whole or not at all.

    Args:
        folder: may hold other files; files of these names are replaced.
        target: the target's name, for people; the fingerprint is what is checked.
    """
    checkpoint = checkpoint_of_mtp(
        head, target_model=target_model, target=target, dtype=torch.bfloat16
    )
    replace_weights(folder, lambda part: save_mtp(checkpoint, part))
