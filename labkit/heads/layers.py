"""Decoder layers of draft heads, and the tables of keys and values that they read.

Owns: an ordinary pre-norm layer with grouped-query attention, its shapes, its cache.
Does not know: what a head feeds into its layers, checkpoints, targets beyond their shapes.
Invariants: a cache grows at its end and truncates at will; only differences of positions matter.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    apply_rotary_pos_emb,
)

from labkit.errors import BadInput

FINAL = "final"
"""Name of the target's state after its final norm, which EAGLE-1 and parallel heads read."""


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """Shapes of a head's decoder layers.

    Attributes:
        hidden_size, intermediate_size, heads, kv_heads, head_dim: of each layer.
        eps: of the norms. max_positions, rope: transformers' ``rope_parameters``.
        qk_norm: norm queries and keys per head, as Qwen-3 layers do.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-6
    max_positions: int = 2048
    rope: dict[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}
    )
    hidden_act: str = "silu"
    attention_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        refuse(
            self,
            # no need of the arithmetic, but of transformers' layers
            ("hidden_size", f"a multiple of num_attention_heads ({self.heads})",
             self.heads > 0 and self.hidden_size % self.heads == 0),
            ("kv_heads", f"a divisor of heads ({self.heads})",
             self.kv_heads > 0 and self.heads % self.kv_heads == 0),
        )  # fmt: skip

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


def refuse(config: Any, *problems: tuple[str, str, bool]) -> None:
    """Raises BadInput for the first of (name, what it should be, is it so) that is not so."""
    for name, expected, good in problems:
        if not good:
            raise BadInput(
                f"head's {name}",
                expected=expected,
                got=repr(getattr(config, name)),
                next_step="correct the head's config",
            )


def layer_shapes(target_model: Any) -> dict[str, Any]:
    """The fields of `LayerConfig` that give a head layers like its target's."""
    text = target_model.config.get_text_config()
    heads = text.num_attention_heads
    return {
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "heads": heads,
        "kv_heads": getattr(text, "num_key_value_heads", heads),
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "eps": plain_eps(getattr(text, "rms_norm_eps", 1e-6)),
        "max_positions": text.max_position_embeddings,
        "rope": plain_rope(text),
    }


def plain_eps(value: float) -> float:
    """The number that a person wrote. GGUF files hold 32 bits, so that 1e-05 is read from them as
    9.999999747378752e-06; in float32 both are the same.

    Raises:
        TypeError, ValueError: no number.
    """
    return float(str(np.float32(float(value))))  # NumPy alone takes None for NaN


def plain_rope(text: Any) -> dict[str, Any]:
    """A model's rotary parameters as one flat dictionary; per-kind ones (Gemma-3) give those of
    full attention."""
    rope = getattr(text, "rope_parameters", None) or {"rope_type": "default"}
    rope = dict(rope.get("full_attention", rope))
    rope.setdefault("rope_theta", getattr(text, "rope_theta", None) or 10000.0)
    return rope


class KeyValues:
    """Keys and values of one layer for one sequence; grows at the end, truncates at will."""

    def __init__(self) -> None:
        self.length = 0
        # [1, kv_heads, capacity, head_dim] of keys and of values, which may differ in width
        self._tables: list[Tensor] = []

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """[1, kv_heads, n, head_dim] each -> all so far, [1, kv_heads, length, head_dim]."""
        start, end = self.length, self.length + keys.shape[2]
        if not self._tables or self._tables[0].shape[2] < end:
            grown = [new.new_empty(*new.shape[:2], max(128, 2 * end), new.shape[3])
                     for new in (keys, values)]  # fmt: skip
            for old, table in zip(self._tables, grown, strict=False):
                table[:, :, :start] = old[:, :, :start]
            self._tables = grown
        for table, new in zip(self._tables, (keys, values), strict=True):
            table[:, :, start:end] = new
        self.length = end
        return self._tables[0][:, :, :end], self._tables[1][:, :, :end]

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
        return self.keys, torch.cat(self._values, 2)

    @property
    def keys(self) -> Tensor:
        """[B, kv_heads, all so far, head_dim]."""
        return torch.cat(self._keys, 2)


class HeadAttention(nn.Module):
    """Grouped-query attention with rotary positions; reads ``width`` features, gives H."""

    def __init__(self, config: LayerConfig, *, width: int) -> None:
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
        q, k = self._rotated(x, rotary)
        v = self.v_proj(x).view(*x.shape[:2], -1, self._head_dim)
        keys, values = kv.append(k, v.transpose(1, 2))
        keys, values = (t.repeat_interleave(self._groups, 1) for t in (keys, values))
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.o_proj(seen.transpose(1, 2).flatten(2))

    def weights(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], keys: Tensor, mask: Tensor | None
    ) -> Tensor:
        """How much of each value `forward` mixes in: [B, heads, n, all keys], rows sum to 1.

        Args:
            keys: [B, kv_heads, all keys, head_dim], those of x included, as the cache holds them
                after `forward`.
        """
        q, _ = self._rotated(x, rotary)
        scores = q @ keys.repeat_interleave(self._groups, 1).mT * self._head_dim**-0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return scores.softmax(-1)

    def _rotated(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Queries and keys of x with their positions, [B, heads or kv_heads, n, head_dim]."""
        q, k = (
            projected.view(*x.shape[:2], -1, self._head_dim)
            for projected in (self.q_proj(x), self.k_proj(x))
        )
        if self._qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        turned: tuple[Tensor, Tensor] = apply_rotary_pos_emb(
            q.transpose(1, 2), k.transpose(1, 2), *rotary
        )
        return turned


class PlainLayer(nn.Module):
    """An ordinary pre-norm layer; EAGLE-1's first one has no norm before its attention."""

    def __init__(self, config: LayerConfig, *, input_norm: bool) -> None:
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
