"""EAGLE heads in training.

Owns: their recipes, and a new head's first weights. Does not know: the loss, how long training
lasts.
Invariants: embedding and output rows are the target's own memory unless the recipe trains the
output.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.heads.eagle import EagleHead, head_config
from labkit.training.data import Row
from labkit.training.features import FINAL, FeatureBatch, Features, States
from labkit.training.head_trainer import HeadRecipe, HeadTrainer
from labkit.training.parallel import Ranks


@dataclass(frozen=True)
class EagleRecipe(HeadRecipe):
    """What is trained, and how; the defaults made the heads that ship.

    EAGLE-1 has all of the target's words, and is trained on ``draft_vocab_size`` of them; it takes
    one step only.

    Attributes:
        version, fc_norm, norm_output: which head (see ``EagleConfig``).
        feature_weight, token_weight: EAGLE-1: of the two losses.
        noise: EAGLE-1: width of the uniform noise on the states, for texts of 512 tokens;
            shorter ones get more.
    """

    version: int = 3
    fc_norm: bool = False
    norm_output: bool = False
    feature_weight: float = 1.0
    token_weight: float = 0.1
    noise: float = 0.2


_SIZED_ROWS = 64

RECIPES: dict[str, EagleRecipe] = {
    "eagle1": EagleRecipe(version=1),
    "eagle3": EagleRecipe(),
    "eagle31": EagleRecipe(fc_norm=True, norm_output=True),
}


def new_head(
    target_model: Any,
    *,
    recipe: EagleRecipe,
    vocab_ids: Tensor,
    seed: int,
    boundaries: Sequence[int] | None = None,
) -> EagleHead:
    """An untrained head in float32 on the target's device, with the target's rows in place.

    Args:
        vocab_ids: int64 [D], ascending target ids; EAGLE-1 ignores it.

    Raises:
        BadInput: a target too shallow for the usual boundaries, when none are named.
    """
    output = target_model.get_output_embeddings().weight.detach()
    switches = {"fc_norm": recipe.fc_norm, "norm_output": recipe.norm_output}
    size = len(vocab_ids) if recipe.version == 3 else None
    config = head_config(
        target_model,
        recipe.version,
        draft_vocab_size=size,
        boundaries=boundaries,
        **switches,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = EagleHead(config, vocab_ids=vocab_ids.cpu() if recipe.version == 3 else None)
        for module in head.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
    if recipe.version == 3:
        _pass_through(head, spread=float(output.float().norm(dim=1).mean()))
    head.to(output.device)
    rows = output[vocab_ids.to(output.device)] if recipe.version == 3 else output
    embedding = target_model.get_input_embeddings().weight.detach()
    head.embed_tokens.weight = nn.Parameter(embedding, requires_grad=False)
    head.lm_head.weight = nn.Parameter(rows.float(), requires_grad=recipe.train_output)
    return head


@torch.no_grad()
def _pass_through(head: EagleHead, *, spread: float) -> None:
    """Start from a head that says, softly, what the deepest state it reads says.

    A random start is sure of random words: 12 to 30 nats per token instead of 7, and the first
    100 k tokens go into unlearning them.

    Args:
        spread: standard deviation of the logits of a state of unit size.
    """
    width = head.config.hidden_size
    if head.config.target_hidden_size == width:
        head.fc.weight[:, -width:] += torch.eye(width)
    head.norm.weight.fill_(1 / spread)
    first: Any = head.layers[0]
    for last in (first.self_attn.o_proj, first.mlp.down_proj):
        last.weight.zero_()


class UnitStates:
    """The states of ``features`` that a head fuses, each divided by its typical size.

    EAGLE-3 mixes raw states, and late ones are many times larger than early ones: a step of the
    optimiser that suits the weights of one moves the sum by far too much through those of another.
    So ``fc`` is trained on states of unit size, and its columns are divided by the sizes when it is
    kept. Sizes are powers of two, so that this changes no bit of any weight's mantissa.

    Attributes:
        sizes: by name; the final state, which only gives the target's law, stays as it is.
    """

    def __init__(self, features: Features, rows: Sequence[Row]) -> None:
        self._features = features
        self.sizes = {
            name: float(
                _typical([features.states(row, name) for row in rows]).log2().round().exp2()
            )
            for name in features.needs
            if name != FINAL
        }

    def batch(
        self, rows: Sequence[Row], *, needs: Sequence[str], device: torch.device | str
    ) -> FeatureBatch:
        found = self._features.batch(rows, needs=needs, device=device)
        states = {name: s / self.sizes.get(name, 1.0) for name, s in found.states.items()}
        return replace(found, states=states)


def _typical(states: Sequence[Tensor]) -> Tensor:
    """Root mean square of the median token: a text's first one is like no other."""
    return torch.cat([s.float().pow(2).mean(-1) for s in states]).median().sqrt()


def _keep_for_raw_states(
    states: UnitStates, head: EagleHead, out: Path, *, keep: Callable[[EagleHead, Path], None]
) -> None:
    width = head.config.target_hidden_size
    sizes = head.fc.weight.new_tensor([states.sizes[name] for name in head.config.needs])
    columns = sizes.repeat_interleave(width)
    with torch.no_grad():
        head.fc.weight.div_(columns)
        try:
            keep(head, out)
        finally:
            head.fc.weight.mul_(columns)  # exact: powers of two


class EagleTrainer(HeadTrainer):
    """`HeadTrainer` of a new EAGLE head; ``boundaries`` as of `new_head`."""

    def __init__(
        self,
        target_model: Any,
        rows: tuple[Row, ...],
        features: Features,
        *,
        recipe: EagleRecipe,
        seed: int,
        keep: Callable[[EagleHead, Path], None],
        boundaries: Sequence[int] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        states: States = features
        if recipe.version == 3 and not recipe.fc_norm:
            unit = UnitStates(features, rows[:_SIZED_ROWS])
            states, keep = unit, partial(_keep_for_raw_states, unit, keep=keep)
        super().__init__(
            target_model,
            rows,
            states,
            recipe=recipe,
            seed=seed,
            keep=keep,
            make=lambda ids: new_head(
                target_model, recipe=recipe, vocab_ids=ids, seed=seed, boundaries=boundaries
            ),
            imitation=recipe if recipe.version == 1 else None,
            ranks=ranks,
        )
