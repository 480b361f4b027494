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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from labkit.errors import BadInput

FINAL = "final"
"""Name of the target's state after its final norm, which EAGLE-1 reads."""


@dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """Shapes and switches of one head.

    Attributes:
        version: 1 (feature-level, EAGLE-1) or 3 (EAGLE-3 and 3.1).
        hidden_size, intermediate_size, heads, kv_heads, head_dim: of the head's own layers.
        vocab_size: width of the target's logits.
        draft_vocab_size: words that the head can say.
        target_hidden_size: width of the target's states.
        boundaries: EAGLE-3: which states are fused, as numbers of layers; EAGLE-1: ().
        rope: transformers' ``rope_parameters``.
        layers: decoder layers; all but the first are ordinary ones.
        qk_norm: norm queries and keys per head, as Qwen-3 layers do.
        fc_norm: EAGLE-3.1: norm each fused state by itself before ``fc``.
        norm_output: EAGLE-3.1: feed the normed state back, not the raw one.
        norm_before_fc: one norm over the concatenated states before ``fc``.
        norm_before_residual: the first residual carries the normed state, not the raw one.
    """

    version: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    boundaries: tuple[int, ...] = ()
    eps: float = 1e-6
    max_positions: int = 2048
    rope: dict[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}
    )
    layers: int = 1
    hidden_act: str = "silu"
    attention_bias: bool = False
    fc_bias: bool = False
    qk_norm: bool = False
    own_embedding: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False

    def __post_init__(self) -> None:
        problems = (
            ("version", "1 or 3", self.version in (1, 3)),
            ("boundaries", "none for EAGLE-1, at least one for EAGLE-3",
             (self.version == 3) == bool(self.boundaries)),
            ("kv_heads", f"a divisor of heads ({self.heads})",
             self.kv_heads > 0 and self.heads % self.kv_heads == 0),
            ("fc_norm", "not together with norm_before_fc",
             not (self.fc_norm and self.norm_before_fc)),
            ("draft_vocab_size", f"1 to {self.vocab_size}",
             1 <= self.draft_vocab_size <= self.vocab_size),
        )  # fmt: skip
        for name, expected, good in problems:
            if not good:
                raise BadInput(
                    f"head's {name}",
                    expected=expected,
                    got=repr(getattr(self, name)),
                    next_step="correct the head's config",
                )

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the target's activations, in the order in which they are concatenated."""
        return (FINAL,) if self.version == 1 else tuple(f"h{k}" for k in self.boundaries)

    def llama(self) -> LlamaConfig:
        """The same shapes for transformers' building blocks."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.eps,
            max_position_embeddings=self.max_positions,
            rope_parameters=dict(self.rope),
            hidden_act=self.hidden_act,
            attention_bias=self.attention_bias,
        )


class KeyValues:
    """Keys and values of one layer for one sequence; grows at the end, truncates at will."""

    def __init__(self) -> None:
        self.length = 0
        self._table: Tensor | None = None  # [2, 1, kv_heads, capacity, head_dim]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """[1, kv_heads, n, head_dim] each -> all so far, [1, kv_heads, length, head_dim]."""
        end = self.length + keys.shape[2]
        if self._table is None or self._table.shape[3] < end:
            grown = keys.new_empty(2, 1, keys.shape[1], max(128, 2 * end), keys.shape[3])
            if self._table is not None:
                grown[:, :, :, : self.length] = self._table[:, :, :, : self.length]
            self._table = grown
        self._table[0, :, :, self.length : end] = keys
        self._table[1, :, :, self.length : end] = values
        self.length = end
        return self._table[0, :, :, :end], self._table[1, :, :, :end]

    def truncate(self, length: int) -> None:
        """Forget everything from ``length`` on. ValueError outside 0..length."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length {length} is outside 0..{self.length}")
        self.length = length


class StackedKeyValues:
    """The same for training: whole batches, and gradients flow through what was appended."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """[B, kv_heads, n, head_dim] each -> all so far."""
        self._keys.append(keys)
        self._values.append(values)
        return torch.cat(self._keys, 2), torch.cat(self._values, 2)


class HeadStep(NamedTuple):
    """What one forward of a head gives. Both [B, n, H].

    recycled: stands for the target's state in the next step. normed: goes to the output layer.
    """

    recycled: Tensor
    normed: Tensor


class HeadAttention(nn.Module):
    """Grouped-query attention with rotary positions; reads ``width`` features, gives H."""

    def __init__(self, config: EagleConfig, *, width: int) -> None:
        super().__init__()
        inner, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(width, inner, bias=bias)
        self.k_proj = nn.Linear(width, kv, bias=bias)
        self.v_proj = nn.Linear(width, kv, bias=bias)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=bias)
        if config.qk_norm:
            self.q_norm = LlamaRMSNorm(config.head_dim, config.eps)
            self.k_norm = LlamaRMSNorm(config.head_dim, config.eps)
        self._head_dim = config.head_dim
        self._groups = config.heads // config.kv_heads
        self._qk_norm = config.qk_norm

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], kv: Any, mask: Tensor | None
    ) -> Tensor:
        """x [B, n, width]; mask bool, broadcast to [B, heads, n, all keys], None: see all."""
        q, k, v = (
            projected.view(*x.shape[:2], -1, self._head_dim)
            for projected in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        if self._qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), *rotary)
        keys, values = kv.append(k, v.transpose(1, 2))
        keys, values = (t.repeat_interleave(self._groups, 1) for t in (keys, values))
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.o_proj(seen.transpose(1, 2).flatten(2))


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


class PlainLayer(nn.Module):
    """An ordinary pre-norm layer; EAGLE-1's first one has no norm before its attention."""

    def __init__(self, config: EagleConfig, *, input_norm: bool) -> None:
        super().__init__()
        if input_norm:
            self.input_layernorm: nn.Module = LlamaRMSNorm(config.hidden_size, config.eps)
        else:
            self.input_layernorm = nn.Identity()
        self.self_attn = HeadAttention(config, width=config.hidden_size)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.eps)
        self.mlp = LlamaMLP(config.llama())

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], kv: Any, mask: Tensor | None
    ) -> Tensor:
        """[B, n, H] -> [B, n, H]."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, kv, mask)
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
    heads = text.num_attention_heads
    return EagleConfig(
        **{
            "version": version,
            "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size,
            "heads": heads,
            "kv_heads": getattr(text, "num_key_value_heads", heads),
            "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
            "vocab_size": wide,
            "draft_vocab_size": draft_vocab_size or wide,
            "target_hidden_size": text.hidden_size,
            "boundaries": tuple(boundaries or ()),
            "eps": getattr(text, "rms_norm_eps", 1e-6),
            "max_positions": text.max_position_embeddings,
            "rope": plain_rope(text),
            **switches,
        }
    )


def plain_rope(text: Any) -> dict[str, Any]:
    """A model's rotary parameters as one flat dictionary; per-kind ones (Gemma-3) give those of
    full attention."""
    rope = getattr(text, "rope_parameters", None) or {"rope_type": "default"}
    rope = dict(rope.get("full_attention", rope))
    rope.setdefault("rope_theta", getattr(text, "rope_theta", None) or 10000.0)
    return rope


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
