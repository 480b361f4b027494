"""One head on the target's states in training: batches in, updates.

Owns: the settings that all recipes share, the loss, what is measured.
Does not know: which kind of head it is, its first weights, how long training lasts, clocks, formats
of finished weights.
Invariants: on a CPU, equal rows, states, recipe, seed and learning-rate shares give equal weights
bit for bit, with or without saving and loading the state in between; only what requires a gradient
is trained.

    text       ... x_i x_i+1       The replies are the target's greedy text, so x_i+1 is also its
    p_i        target's law of     likeliest token after x_i; where the draft has no word for it,
               x_i+1 after x_i     the position does not count.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.errors import require
from labkit.heads.eagle import HeadStep
from labkit.heads.layers import FINAL
from labkit.training.acceptance import Replayed, replay_runs
from labkit.training.data import Row, Split, epoch_batches, frequent_ids, split, too_few
from labkit.training.features import FeatureBatch, States
from labkit.training.parallel import Ranks, half_precision
from labkit.training.state import TrainingState
from labkit.training.unrolled import soft_cross_entropy, unroll


@dataclass(frozen=True)
class HeadRecipe:
    """How a head is trained, whatever its kind.

    Attributes:
        draft_vocab_size: words of the head.
        train_output: give the head an output layer of its own, started from the target's rows;
            otherwise it uses these rows, and they are not stored.
        depth: steps of the training-time test; step s weighs ``depth_decay ** s``.
        shallow: share of the training with one step only; in the rest they grow to
            ``depth``. A head must guess one token before it can guess three, and one step costs
            less than half of three: at equal time on a CPU, more is accepted at every depth.
        batch_tokens: padded tokens per step and process. Small: many updates learn more from the
            same text than few large ones.
        learning_rate: its peak; it rises over the share ``warmup`` of the time, and falls along a
            cosine to 0.
        held_out: share of the rows that is measured on and never trained on.
        measured_rows: how many of these are looked at each time.
        draft_length: drafts per round in the reported acceptance.
        seconds_between_checkpoints: also between measurements.
    """

    draft_vocab_size: int = 8192
    train_output: bool = False
    depth: int = 3
    depth_decay: float = 0.8
    shallow: float = 0.5
    batch_tokens: int = 256
    learning_rate: float = 1e-3
    warmup: float = 0.04
    weight_decay: float = 0.1
    clip_norm: float = 0.5
    held_out: float = 0.02
    measured_rows: int = 24
    draft_length: int = 5
    seconds_between_checkpoints: float = 300.0


def put_aside(rows: Sequence[Row], recipe: HeadRecipe) -> Split:
    """The rows to train on and to measure on. Raises BadInput if there are none of either."""
    found = split(rows, held_out=recipe.held_out)
    if not found.held_out or not _usable(found, recipe):
        prompts, least = len({row.prompt for row in rows}), 2 + recipe.depth
        raise too_few("training data", rows=len(rows), prompts=prompts, tokens=least)
    return found


def _usable(rows: Split, recipe: HeadRecipe) -> list[Row]:
    """Those to train on that have a token for every step."""
    return [row for row in rows.train if len(row) >= 2 + recipe.depth]


class Imitation(Protocol):
    """How much the next state counts, how much the law that it gives, and how wide the noise on
    the states is, for texts of 512 tokens."""

    @property
    def feature_weight(self) -> float: ...
    @property
    def token_weight(self) -> float: ...
    @property
    def noise(self) -> float: ...


def check_recipe(recipe: HeadRecipe) -> None:
    """Raises BadInput for the first setting that cannot be."""
    checks = (
        ("draft_vocab_size", "at least 1", recipe.draft_vocab_size >= 1),
        ("depth", "at least 1", recipe.depth >= 1),
        ("depth_decay", "above 0", recipe.depth_decay > 0),
        ("shallow", "0 or more and below 1", 0 <= recipe.shallow < 1),
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


def depth_at(share_done: float, recipe: HeadRecipe) -> int:
    """Steps of the training-time test when ``share_done`` of the training is over.

    depth 3, shallow 0.5:   1 . . . . . . . . 2 . . . 3 . . .
                            0               1/2     3/4     1
    """
    if share_done < recipe.shallow:
        return 1
    rest = (share_done - recipe.shallow) / (1 - recipe.shallow)
    return min(recipe.depth, 2 + int(rest * (recipe.depth - 1)))


class Drafting(Protocol):
    """How a head drafts along a text: see `Recycling`."""

    def depth(self, share_done: float, recipe: HeadRecipe) -> int: ...
    def unroll(
        self, head: Any, tokens: Tensor, states: Sequence[Tensor], *, steps: int, first: int
    ) -> list[HeadStep]: ...
    def logits(self, head: Any, step: int, normed: Tensor) -> Tensor: ...


class Recycling:
    """Step after step, each on the states of the one before."""

    def depth(self, share_done: float, recipe: HeadRecipe) -> int:
        """How many steps are trained when ``share_done`` of the training is over."""
        return depth_at(share_done, recipe)

    def unroll(
        self, head: Any, tokens: Tensor, states: Sequence[Tensor], *, steps: int, first: int
    ) -> list[HeadStep]:
        """At most ``steps`` steps; see `labkit.training.unrolled.unroll`."""
        return unroll(head, tokens, states, steps=steps, first=first)

    def logits(self, head: Any, step: int, normed: Tensor) -> Tensor:
        """[N, H] of one step -> [N, D]."""
        found: Tensor = head.logits(normed)
        return found


class HeadTrainer:
    """The head in training: one call, one step.

    Args:
        target_model: gives embedding and output rows; unchanged.
        rows: all rows; the held-out ones are put aside here.
        features: their states.
        keep: writes a finished head into a folder.
        make: an untrained head, in float32, that says the words of these ids, [D] ascending.
        imitation: train it to give the target's next state, not only its law.
        drafting: how it drafts along a text; None: `Recycling`.
    """

    def __init__(
        self,
        target_model: Any,
        rows: tuple[Row, ...],
        features: States,
        *,
        recipe: HeadRecipe,
        seed: int,
        keep: Callable[[Any, Path], None],
        make: Callable[[Tensor], Any],
        imitation: Imitation | None = None,
        drafting: Drafting | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.recipe, self.seed, self.ranks = recipe, seed, ranks or Ranks()
        self.rows = put_aside(rows, recipe)
        self._features, self._keep, self.imitation = features, keep, imitation
        self._drafting = drafting or Recycling()
        self.vocab_ids = frequent_ids(self.rows.train, size=recipe.draft_vocab_size)
        self.head = make(self.vocab_ids)
        self.device = self.head.device
        self.vocab_ids = self.vocab_ids.to(self.device)
        output = target_model.get_output_embeddings().weight.detach()
        self._target_rows = output[self.vocab_ids].float()
        self._draft_id = torch.full((len(output),), -1, device=self.device)
        self._draft_id[self.vocab_ids] = torch.arange(len(self.vocab_ids), device=self.device)
        self._needs = tuple(dict.fromkeys((*self.head.config.needs, FINAL)))
        self.trained = {n: p for n, p in self.head.named_parameters() if p.requires_grad}
        self.state = TrainingState(self.trained, recipe, betas=(0.9, 0.95), epoch=self._epoch)

    @property
    def coverage(self) -> float:
        """Share of the training rows' reply tokens that the draft vocabulary has."""
        known = set(self.vocab_ids.tolist())
        replies = [token for row in self.rows.train for token in row.reply]
        return sum(token in known for token in replies) / len(replies)

    def _epoch(self, number: int) -> list[list[Row]]:
        """This process's batches: every ``size``-th, as many as every other has."""
        usable = _usable(self.rows, self.recipe)
        size = self.recipe.batch_tokens
        batches = epoch_batches(usable, batch_tokens=size, seed=self.seed, epoch=number)
        ranks = self.ranks
        even = len(batches) - len(batches) % ranks.size or len(batches)
        return batches[ranks.rank : even : ranks.size] or batches[:1]

    def facts(self) -> dict[str, Any]:
        """What provenance says of this trainer alone."""
        vocabulary = {"size": len(self.vocab_ids), "coverage": round(self.coverage, 4)}
        parameters = sum(p.numel() for p in self.trained.values())
        return {"draft_vocabulary": vocabulary, "trained_parameters": parameters}

    def step(self, share_done: float) -> None:
        """One update. ``share_done`` from 0 to 1 sets the learning rate on its course."""
        recipe, rows = self.recipe, self.state.batch
        batch = self._features.batch(rows, needs=self._needs, device=self.device)
        with half_precision(self.device):
            loss = self.loss(batch, depth=self._drafting.depth(share_done, recipe))
        warm = min(1.0, (share_done + 1e-3) / recipe.warmup)
        tokens = self.ranks.size * sum(map(len, rows))
        average = self.ranks.average_gradients
        self.state.update(loss, warm=warm, share_done=share_done, tokens=tokens, average=average)

    def loss(self, batch: FeatureBatch, *, depth: int) -> Tensor:
        """In nats: the weighted mean over ``depth`` steps; both terms of an imitation."""
        reply = batch.text.targets >= 0
        kept = reply & (self._draft_id[batch.text.targets.clamp(min=0)] >= 0)
        first = max(0, int(reply.int().argmax(1).min()) - 1)
        law = self._target_law(batch.states[FINAL][kept])
        line = kept.flatten().cumsum(0).view_as(kept) - 1  # position -> its line of ``law``
        if self.imitation is not None:
            guessed = kept[:, first + 1 : -1]  # no pair guesses what follows a text's first token
            law = law[line[:, first + 1 : -1][guessed]]
            return self._imitated(self.imitation, batch, reply, guessed, law, first=first)
        states = [batch.states[name] for name in self.head.config.needs]
        tokens = batch.text.tokens
        steps = self._drafting.unroll(self.head, tokens, states, steps=depth, first=first)
        weights = [self.recipe.depth_decay**s for s in range(depth)]
        total = law.new_zeros(())
        for s, (made, weight) in enumerate(zip(steps, weights, strict=True)):
            counted, lines = (t[:, first + 1 + s : -1] for t in (kept, line))
            logits = self._drafting.logits(self.head, s, made.normed[counted])
            total = total + weight * soft_cross_entropy(logits, law[lines[counted]])
        return total / sum(weights)

    def _imitated(
        self,
        weights: Imitation,
        batch: FeatureBatch,
        reply: Tensor,
        guessed: Tensor,
        law: Tensor,
        *,
        first: int,
    ) -> Tensor:
        """The next state, and the law that it gives; ``law``: a row per ``guessed``."""
        final, tokens = batch.states[FINAL], batch.text.tokens
        noisy = final + self._noise(final.shape, width=weights.noise)
        made = unroll(self.head, tokens, [noisy], steps=1, first=first)[0]
        there = reply[:, first + 1 : -1]
        error = F.smooth_l1_loss(made.recycled[there].float(), final[:, first + 1 : -1][there])
        logits = F.linear(made.normed[guessed], self._target_rows)
        likeness = soft_cross_entropy(logits, law)
        return weights.feature_weight * error + weights.token_weight * likeness

    def _noise(self, shape: torch.Size, *, width: float) -> Tensor:
        """Uniform around 0; a function of seed, step and process alone."""
        name = f"{self.seed}/{self.state.at.step}/{self.ranks.rank}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(shape, generator=generator) - 0.5
        return (drawn * (width * 512 / shape[1])).to(self.device)

    @torch.no_grad()
    def _target_law(self, final: Tensor) -> Tensor:
        """[N, Ht] -> [N, D], the target's distribution over the draft vocabulary."""
        return F.linear(final, self._target_rows).float().softmax(-1)

    @torch.no_grad()
    def measure(self) -> Replayed:
        """Acceptance of greedy chains on held-out rows."""
        chosen = sorted(self.rows.held_out, key=len)
        stride = max(1, len(chosen) // self.recipe.measured_rows)
        runs = [self._runs(row) for row in chosen[::stride]]
        return replay_runs(runs, depth=self.recipe.draft_length)

    def _runs(self, row: Row) -> list[int]:
        """For each reply position: how many drafts in a row would have been right from there.

        Up to its first wrong guess a chain has read the text's own tokens, so unrolling along the
        text is what a live decode computes.
        """
        depth, prompt = self.recipe.draft_length, len(row.prompt)
        batch = self._features.batch([row], needs=self.head.config.needs, device=self.device)
        # dummies at the end, so that the last columns are unrolled too
        tokens = F.pad(batch.text.tokens, (0, depth + 1))
        states = [F.pad(batch.states[n], (0, 0, 0, depth + 1)) for n in self.head.config.needs]
        first = max(0, prompt - 2)
        with half_precision(self.device):
            steps = self._drafting.unroll(self.head, tokens, states, steps=depth, first=first)
        there = len(row) - 2 - first  # columns whose guess is a token of the row
        right = torch.ones(there, dtype=torch.bool, device=self.device)
        runs = torch.zeros(there, dtype=torch.int64, device=self.device)
        truth = F.pad(batch.text.tokens[0], (0, depth), value=-1)
        for s, made in enumerate(steps):
            logits = self._drafting.logits(self.head, s, made.normed[0, :there])
            guesses = self.head.vocab_ids[logits.argmax(-1)]
            right &= guesses == truth[first + 2 + s : first + 2 + s + there]
            runs += right
        # a prompt of one token has no pair before the first reply token
        return [0] * (len(row.reply) - there) + runs.tolist()

    def save_weights(self, out: Path) -> None:
        """Finished weights, in the format of ``keep``."""
        self._keep(self.head, out)
