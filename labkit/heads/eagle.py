"""EAGLE draft heads: one decoder layer that reads the target's hidden states.

Owns: the modules of EAGLE-1, EAGLE-3 and EAGLE-3.1, and the switches between their variants.
Does not know: checkpoints on disk, trees, the accept rule, training.
Invariants: ``boundaries`` count layers ("the residual stream after k layers", transformers'
``hidden_states[k]``), whatever convention a checkpoint used; embeddings are the target's unless
the checkpoint brings its own; draft id i means target id ``vocab_ids[i]``.

Sources: Li et al. 2024 (EAGLE, arXiv 2401.15077), Li et al. 2025 (EAGLE-3, arXiv 2503.01840),
Eldenk et al. 2026 (EAGLE-3.1, arXiv 2605.09992). Tensor names as in SafeAILab/EAGLE.

A pair is a token and what the target thought before it was chosen:

    text        x0   x1   x2   x3            the head at pair t reads  state of t-1, token t
    states      f0   f1   f2                 and guesses token t+1
    pairs            (f0,x1) (f1,x2) (f2,x3) -> guesses x4; fed back, its own state stands for f3
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from labkit.errors import BadInput
from labkit.heads.layers import (
    FINAL,
    HeadAttention,
    KeyValues,
    LayerConfig,
    PlainLayer,
    layer_shapes,
    refuse,
)


@dataclass(frozen=True, kw_only=True)
class EagleConfig(LayerConfig):
    """Shapes and switches of one head.

    Attributes:
        version: 1 (feature-level, EAGLE-1) or 3 (EAGLE-3 and 3.1).
        vocab_size: width of the target's logits.
        draft_vocab_size: words that the head can say.
        target_hidden_size: width of the target's states.
        boundaries: EAGLE-3: which states are fused, as numbers of layers; EAGLE-1: ().
        layers: decoder layers; all but the first are ordinary ones.
        fc_norm: EAGLE-3.1: norm each fused state by itself before ``fc``.
        norm_output: EAGLE-3.1: feed the normed state back, not the raw one.
        norm_before_fc: one norm over the concatenated states before ``fc``.
        norm_before_residual: the first residual carries the normed state, not the raw one.
    """

    version: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    boundaries: tuple[int, ...] = ()
    layers: int = 1
    fc_bias: bool = False
    own_embedding: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(
            self,
            ("version", "1 or 3", self.version in (1, 3)),
            ("boundaries", "none for EAGLE-1, at least one for EAGLE-3",
             (self.version == 3) == bool(self.boundaries)),
            ("fc_norm", "not together with norm_before_fc",
             not (self.fc_norm and self.norm_before_fc)),
            ("draft_vocab_size", f"1 to {self.vocab_size}",
             1 <= self.draft_vocab_size <= self.vocab_size),
        )  # fmt: skip

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the target's activations, in the order in which they are concatenated."""
        return (FINAL,) if self.version == 1 else tuple(f"h{k}" for k in self.boundaries)


class HeadStep(NamedTuple):
    """What one forward of a head gives. Both [B, n, H].

    recycled: stands for the target's state in the next step. normed: goes to the output layer.
    """

    recycled: Tensor
    normed: Tensor


class FusedLayer(nn.Module):
    """The first layer of EAGLE-3: attention reads token and state side by side, 2H wide."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        H = config.hidden_size
        self.input_layernorm = LlamaRMSNorm(H, config.eps)
        self.hidden_norm = LlamaRMSNorm(H, config.eps)
        self.self_attn = HeadAttention(config, width=2 * H)
        self.post_attention_layernorm = LlamaRMSNorm(H, config.eps)
        self.mlp = LlamaMLP(config.llama())
        self._norm_before_residual = config.norm_before_residual

    def forward(
        self,
        embedded: Tensor,
        state: Tensor,
        rotary: tuple[Tensor, Tensor],
        kv: Any,
        mask: Tensor | None,
    ) -> Tensor:
        """embedded, state [B, n, H] -> [B, n, H]."""
        normed = self.hidden_norm(state)
        carried = normed if self._norm_before_residual else state
        both = torch.cat((self.input_layernorm(embedded), normed), -1)
        x = carried + self.self_attn(both, rotary, kv, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleHead(nn.Module):
    """One head of any version. Parameters that a checkpoint may leave to the target
    (``embed_tokens``, and ``lm_head`` when the vocabularies agree) are set by whoever loads it.

    Args:
        config: shapes and switches.
        vocab_ids: int64 [D], the target id of each draft id, ascending; None: the same numbers.
    """

    def __init__(self, config: EagleConfig, *, vocab_ids: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        H, Ht = config.hidden_size, config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, H)
        self.lm_head = nn.Linear(H, config.draft_vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config.llama())
        ids = torch.arange(config.draft_vocab_size) if vocab_ids is None else vocab_ids
        self.vocab_ids: Tensor
        self.register_buffer("vocab_ids", ids, persistent=False)
        later = [PlainLayer(config, input_norm=True) for _ in range(config.layers - 1)]
        if config.version == 1:
            self.fc = nn.Linear(H + Ht, H, bias=config.fc_bias)
            self.layers = nn.ModuleList([PlainLayer(config, input_norm=False), *later])
            return
        fused = len(config.boundaries)
        self.fc = nn.Linear(fused * Ht, H, bias=config.fc_bias)
        self.layers = nn.ModuleList([FusedLayer(config), *later])
        self.norm = LlamaRMSNorm(H, config.eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(Ht, config.eps) for _ in range(fused))
        if config.norm_before_fc:
            self.input_norm = LlamaRMSNorm(fused * Ht, config.eps)

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def steps(self) -> "tuple[EagleHead]":
        """One step, again and again."""
        return (self,)

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        """The target's states, one [..., Ht] per entry of ``config.needs`` -> [..., H].

        EAGLE-3 and 3.1 mix depths here, once per true state and never per drafted one. EAGLE-1
        takes the target's final state as it is.
        """
        if self.config.version == 1:
            return states[0]
        if self.config.fc_norm:
            states = [norm(s) for norm, s in zip(self.fc_norm, states, strict=True)]
        mixed = torch.cat(list(states), -1)
        return self.fc(self.input_norm(mixed) if self.config.norm_before_fc else mixed)

    def forward(
        self,
        ids: Tensor,
        state: Tensor,
        *,
        positions: Tensor,
        kv: Sequence[Any],
        mask: Tensor | None,
    ) -> HeadStep:
        """One step over n pairs.

        Args:
            ids: [B, n] target ids; state: [B, n, H], of the position before each id.
            positions: [B, n]; only differences matter.
            kv: one `KeyValues` (or `StackedKeyValues`) per layer.
            mask: bool, broadcast to [B, heads, n, all keys], True = attend; None: see all.
        """
        embedded = self.embed_tokens(ids).to(state.dtype)
        rotary = self.rotary(state, positions)
        if self.config.version == 1:
            x = self.layers[0](self.fc(torch.cat((embedded, state), -1)), rotary, kv[0], mask)
        else:
            x = self.layers[0](embedded, state, rotary, kv[0], mask)
        for layer, cache in zip(self.layers[1:], kv[1:], strict=True):
            x = layer(x, rotary, cache, mask)
        if self.config.version == 1:
            return HeadStep(x, x)
        normed = self.norm(x)
        return HeadStep(normed if self.config.norm_output else x, normed)

    def logits(self, normed: Tensor) -> Tensor:
        """[..., H] -> [..., D] over the draft vocabulary."""
        return self.lm_head(normed)

    def cache(self) -> list[KeyValues]:
        """An empty cache: one table per layer."""
        return [KeyValues() for _ in self.layers]


def default_boundaries(layers: int) -> tuple[int, int, int]:
    """The three states that published EAGLE-3 heads read of a target with so many layers: after
    2, L // 2 and L - 3 layers (SafeAILab/EAGLE, vLLM).

    Raises:
        BadInput: fewer than 7 layers, where these would not be three different depths.
    """
    found = (2, layers // 2, layers - 3)
    if not found[0] < found[1] < found[2]:
        raise BadInput(
            "boundaries",
            expected="a target with at least 7 layers, or boundaries of your own",
            got=f"{layers} layers",
            next_step="name the boundaries",
        )
    return found


def head_config(
    target_model: Any,
    version: int,
    *,
    draft_vocab_size: int | None = None,
    boundaries: Sequence[int] | None = None,
    **switches: Any,
) -> EagleConfig:
    """The config of a new head for a target: its own widths, heads and rotary positions.

    Args:
        version: 1 or 3; EAGLE-3.1 is 3 with ``fc_norm=True, norm_output=True``.
        switches: further fields of `EagleConfig`.
    """
    text = target_model.config.get_text_config()
    wide = target_model.get_output_embeddings().weight.shape[0]
    if version == 3 and boundaries is None:
        boundaries = default_boundaries(text.num_hidden_layers)
    return EagleConfig(
        **{
            **layer_shapes(target_model),
            "version": version,
            "vocab_size": wide,
            "draft_vocab_size": draft_vocab_size or wide,
            "target_hidden_size": text.hidden_size,
            "boundaries": tuple(boundaries or ()),
            **switches,
        }
    )


def random_head(
    config: EagleConfig, target_model: Any, *, seed: int = 0, vocab_ids: Tensor | None = None
) -> EagleHead:
    """A head with random weights and norms, the target's embedding, and (where the vocabularies
    agree) the target's output layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = EagleHead(config, vocab_ids=vocab_ids)
        for name, weight in head.named_parameters():
            if "norm" in name:
                nn.init.uniform_(weight, 0.5, 1.5)
    embedding = target_model.get_input_embeddings().weight.detach()
    head.embed_tokens = nn.Embedding.from_pretrained(embedding)
    output = target_model.get_output_embeddings().weight
    if vocab_ids is not None:
        output = output[vocab_ids]
    with torch.no_grad():
        head.lm_head.weight.copy_(output)
    return head.to(output.device, output.dtype).eval().requires_grad_(False)
