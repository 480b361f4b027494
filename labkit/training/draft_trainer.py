"""One draft model in training: batches in, updates, and everything needed to go on later.

Owns: initialisation from target layers, the loss, what is measured.
Does not know: how long training lasts, clocks, where the finished weights go.
Invariants: on a CPU, equal rows, recipe, seed and learning-rate shares give equal weights bit for
bit, with or without saving and loading the state in between.

The replies are the target's own greedy text, so cross-entropy on their tokens is distillation to
the target's most likely token; no forward of the target is needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.heads.draft_checkpoint import build_draft, stored_parameters
from labkit.training.acceptance import Replayed, replay_chains
from labkit.training.data import (
    IGNORED,
    Batch,
    Row,
    collate,
    epoch_batches,
    frequent_ids,
    split,
    too_few,
)
from labkit.training.parallel import Ranks
from labkit.training.state import TrainingState


@dataclass(frozen=True)
class DraftRecipe:
    """What is trained, and how; the defaults made the draft model that ships.

    Attributes:
        layers: target layers that the draft's layers start from.
        draft_vocab_size: output words, the commonest in the replies.
        batch_tokens: padded tokens per step, or one longer row. Small: many updates learn more from
            the same text than few large ones.
        learning_rate: its peak; it rises over ``warmup_steps`` and falls along a cosine to 0.
        held_out: share of the rows that is measured on and never trained on.
        draft_length: drafts per round in the reported acceptance.
        seconds_between_checkpoints: also between measurements.
    """

    layers: tuple[int, ...] = (0, 1)
    draft_vocab_size: int = 8192
    batch_tokens: int = 320
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    held_out: float = 0.02
    draft_length: int = 3
    seconds_between_checkpoints: float = 300.0


class DraftTrainer:
    """The draft model in training: one call, one step.

    Args:
        target_model: gives the first weights, the embedding and the output rows; unchanged.
        rows: all rows; the held-out ones are put aside here.
        keep: writes finished weights into a folder.
    """

    def __init__(
        self,
        target_model: Any,
        rows: tuple[Row, ...],
        *,
        recipe: DraftRecipe,
        seed: int,
        keep: Callable[["DraftTrainer", Path], None] = lambda trainer, folder: None,
    ) -> None:
        self.recipe, self.seed, self._keep = recipe, seed, keep
        self.ranks = Ranks()
        self.device = target_model.get_input_embeddings().weight.device
        self.rows = split(rows, held_out=recipe.held_out)
        self._check_rows(len(rows))
        self.vocab_ids = frequent_ids(self.rows.train, size=recipe.draft_vocab_size)
        words = torch.full((target_model.config.vocab_size,), IGNORED, dtype=torch.int64)
        words[self.vocab_ids] = torch.arange(len(self.vocab_ids))
        self._draft_id = words.to(self.device)
        self.model = build_draft(
            target_model,
            self.vocab_ids,
            layers=len(recipe.layers),
            dtype=torch.float32,
            device=self.device,
        )
        source = target_model.model
        for layer, index in zip(self.model.model.layers, recipe.layers, strict=True):
            layer.load_state_dict(source.layers[index].state_dict())
        self.model.model.norm.load_state_dict(source.norm.state_dict())
        self.trained = stored_parameters(self.model)
        self.state = TrainingState(self.trained, recipe, betas=(0.9, 0.98), epoch=self._epoch)

    def _check_rows(self, found: int) -> None:
        if not self.rows.train or (self.recipe.held_out > 0 and not self.rows.held_out):
            prompts = {row.prompt for row in (*self.rows.train, *self.rows.held_out)}
            raise too_few("training data", rows=found, prompts=len(prompts))

    def _epoch(self, number: int) -> list[list[Row]]:
        size = self.recipe.batch_tokens
        return epoch_batches(self.rows.train, batch_tokens=size, seed=self.seed, epoch=number)

    def facts(self) -> dict[str, Any]:
        """What provenance says of this trainer alone."""
        return {}

    def step(self, share_done: float) -> None:
        """One update. ``share_done`` from 0 to 1 sets the learning rate on its cosine."""
        batch = collate(self.state.batch, device=self.device)
        loss = self._loss(batch)
        warm = min(1.0, (self.state.at.step + 1) / self.recipe.warmup_steps)
        tokens = batch.tokens.numel()
        self.state.update(loss, warm=warm, share_done=share_done, tokens=tokens)

    def _loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy over reply tokens that the draft has a word for."""
        hidden = self.model.model(batch.tokens, use_cache=False).last_hidden_state
        target_ids = batch.targets.clamp(min=0)
        targets = torch.where(batch.targets >= 0, self._draft_id[target_ids], IGNORED)
        counted = targets >= 0
        # the head runs only where it is scored: it is a third of the arithmetic
        logits = self.model.lm_head(hidden[counted])
        total = F.cross_entropy(logits, targets[counted], reduction="sum")
        # a batch may hold no such token at all; the mean of nothing would be NaN
        return total / counted.sum().clamp(min=1)

    @torch.no_grad()
    def measure(self) -> Replayed:
        """Acceptance on the held-out rows; words outside the draft vocabulary count as wrong."""
        hits: list[list[bool]] = []
        vocab_ids = self.vocab_ids.to(self.device)
        rows = sorted(self.rows.held_out, key=len)
        for start in range(0, len(rows), 4):
            batch = collate(rows[start : start + 4], device=self.device)
            hidden = self.model.model(batch.tokens, use_cache=False).last_hidden_state
            for states, targets in zip(hidden, batch.targets, strict=True):
                there = targets >= 0
                guesses = vocab_ids[self.model.lm_head(states[there]).argmax(-1)]
                hits.append((guesses == targets[there]).tolist())
        return replay_chains(hits, depth=self.recipe.draft_length)

    def save_weights(self, out: Path) -> None:
        """Finished weights, in the format of ``keep``."""
        self._keep(self, out)
