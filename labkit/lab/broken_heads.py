"""EAGLE heads and drafters that are wrong in one known way, to learn from.

Owns: how each fault is made. Does not know: whom it happened to, what it costs.
Invariants: everything here differs from the right thing in exactly the way its docstring names; the
healthy head is left as it is, and its weights are shared, not copied; nothing here touches the
target, so no fault can change a text.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from labkit.drafters.base import Commit
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.pairs import Pairs
from labkit.heads.checkpoints.vocabulary import d2t_of
from labkit.heads.eagle import EagleHead, HeadStep

Change = Callable[[EagleHead], EagleHead]


def twin(head: Any, **config: Any) -> Any:
    """A head of any kind on the very same weights, with modules and a config of its own."""
    shared: dict[int, Any] = {id(t): t for t in (*head.parameters(), *head.buffers())}
    other = copy.deepcopy(head, shared)
    other.config = replace(head.config, **config)
    return other


def with_pairs(kind: Callable[..., Pairs], head: Any) -> HeadDrafter:
    """A drafter whose pairs are of this kind."""
    return HeadDrafter(kind(head, clock=time.perf_counter), name=kind.__name__)


# --- what the head reads


def layers_off(head: EagleHead, *, by: int) -> EagleHead:
    """Reads the target's states ``by`` layers later than it was trained to."""
    return twin(head, boundaries=tuple(k + by for k in head.config.boundaries))


def depths_reversed(head: EagleHead) -> EagleHead:
    """Joins the states from the last layer to the first."""
    return twin(head, boundaries=head.config.boundaries[::-1])


def strange_embedding(head: EagleHead, *, seed: int = 0) -> EagleHead:
    """Reads tokens through random rows, as large as the target's own."""
    other, right = twin(head), head.embed_tokens.weight
    rows = torch.randn(right.shape, generator=torch.Generator().manual_seed(seed))
    rows = rows.to(right.device, right.dtype) * right.std()
    other.embed_tokens = nn.Embedding.from_pretrained(rows)
    return other


def before_final_norm(head: EagleHead, *, layers: int) -> HeadDrafter:
    """EAGLE-1 on the target's last state as it was before the final norm, not after it.

    Args:
        layers: of the target.
    """
    pairs = Pairs(head, clock=time.perf_counter)
    pairs.needs = (f"h{layers}",)
    return HeadDrafter(pairs, name="before_final_norm")


class Unshifted(Pairs):
    """Pairs each state with its own token, not with the one after it.

    text      x0   x1   x2   x3     right    (f0,x1) (f1,x2) (f2,x3)  guesses x4
    states    f0   f1   f2          here     (f0,x0) (f1,x1) (f2,x2)  guesses x3, at the place of x4
    """

    def reset(self) -> None:
        super().reset()
        self._pending: tuple[int, ...] = ()

    def observe(self, commit: Commit) -> None:
        before = self._pending or commit.tokens[:1]
        self._pending = commit.tokens[-1:]
        super().observe(Commit((*before, *commit.tokens[:-1]), commit.hidden))


# --- how it computes


def norms_swapped(head: EagleHead) -> EagleHead:
    """Norms tokens by the weights for states, and states by the weights for tokens."""
    other = twin(head)
    layer: Any = other.layers[0]
    layer.hidden_norm, layer.input_layernorm = layer.input_layernorm, layer.hidden_norm
    return other


def fuse_norm_dropped(head: EagleHead) -> EagleHead:
    """Joins the states as they are; the norms for them are loaded and never used."""
    return twin(head, fc_norm=False, norm_before_fc=False)


def feedback_flipped(head: EagleHead) -> EagleHead:
    """Reads its own state raw where it was trained on normed ones, or the other way round."""
    return twin(head, norm_output=not head.config.norm_output)


def residual_flipped(head: EagleHead) -> EagleHead:
    """Carries the normed state past the attention where training carried the raw one, or the
    other way round."""
    other = twin(head, norm_before_residual=not head.config.norm_before_residual)
    layer: Any = other.layers[0]
    layer._norm_before_residual = other.config.norm_before_residual
    return other


def residual_missing(head: EagleHead) -> EagleHead:
    """Its last layer gives what its MLP adds, without what it adds that to."""
    other, seen = twin(head), {}
    layer: Any = other.layers[-1]

    def note(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen["carried"] = inputs[0]

    def leave_out(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        return output - seen["carried"]

    layer.post_attention_layernorm.register_forward_pre_hook(note)
    layer.register_forward_hook(leave_out)
    return other


class _Ahead(EagleHead):
    """Knows a true pair by this: the states of such pairs have just been fused."""

    _true = False

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        self._true = True
        return super().fuse(states)

    def forward(
        self,
        ids: Tensor,
        state: Tensor,
        *,
        positions: Tensor,
        kv: Sequence[Any],
        mask: Tensor | None,
    ) -> HeadStep:
        ahead, self._true = (0 if self._true else 1), False
        return super().forward(ids, state, positions=positions + ahead, kv=kv, mask=mask)


def positions_ahead(head: EagleHead) -> EagleHead:
    """Its guesses stand one position further on than they should; committed pairs stand right.

    committed 0 1 2 3   guesses 5 6 7, should be 4 5 6
    """
    other = twin(head)
    other.__class__ = _Ahead
    return other


# --- what its words mean


def speaking(head: EagleHead, ids: Tensor) -> EagleHead:
    """Says other words: draft id i means target id ``ids[i]``; ids may come more than once."""
    words, place = ids.to(head.device).unique(return_inverse=True)
    other = twin(head)
    other.lm_head = _Merged(head.lm_head, place, len(words))
    other.vocab_ids = words
    return other


class _Merged(nn.Module):
    """An output layer some of whose words are one to whoever listens: the likeliest counts."""

    def __init__(self, output: nn.Module, place: Tensor, size: int) -> None:
        super().__init__()
        self.output, self.place, self.size = output, place, size

    def forward(self, normed: Tensor) -> Tensor:
        """[..., H] -> [..., size]."""
        raw = self.output(normed)
        merged = raw.new_full((*raw.shape[:-1], self.size), -torch.inf)
        return merged.scatter_reduce(-1, self.place.expand_as(raw), raw, "amax")


def offsets_as_ids(head: EagleHead) -> EagleHead:
    """Takes the offsets of d2t for target ids."""
    return speaking(head, d2t_of(head.vocab_ids.cpu()))


def first_ids(head: EagleHead) -> EagleHead:
    """Takes draft ids for target ids, as if its words were the first of the vocabulary."""
    return speaking(head, torch.arange(len(head.vocab_ids)))


# --- what it remembers; these draft chains


class StaleRows(Pairs):
    """Keeps its own states of accepted guesses, and never reads the target's for them."""

    def observe(self, commit: Commit) -> None:
        guessed = self.kv[0][0].length - self.true[0]
        kept = min(len(commit.tokens) - 1, guessed)
        self.true[0] += kept
        rest = {name: states[kept:] for name, states in commit.hidden.items()}
        super().observe(Commit(commit.tokens[kept:], rest))


class NoRollback(Pairs):
    """Never forgets a guess: rejected ones stay in the cache, are read by all that comes after,
    and push it to later positions."""

    def forget(self) -> None:
        self.true = [tables[0].length for tables in self.kv]
