"""Parallel heads: each looks at the target's last state alone, and guesses a depth of its own.

Owns: the modules of Medusa's heads and of Meta's, their shapes, their first weights.
Does not know: checkpoints on disk, trees, the accept rule, training.
Invariants: head d, counted from 0, guesses the token d + 2 places after the one whose state it
reads (the next one is the target's own); no head reads a token, so its guess is the same whatever
the others guess; draft id i means target id ``vocab_ids[i]``.

    text        x0   x1   x2   x3   x4   x5
    states      f0   f1                           f after the target's final norm
                      \\- target x2                x2: pending, the root of the draft
                      \\- head 0 guesses x3
                      \\- head 1 guesses x4
                      \\- head 2 guesses x5

``medusa``: a head is one or more residual blocks, x + silu(W x + b), and an output layer of its own
or the target's. ``meta``: a decoder layer reads all states so far (the shared trunk), each head is
one more decoder layer on what the trunk made of them, and all share one output layer. Meta trains
trunk and heads with the model from scratch; here both are added to a finished target.

Sources: Cai et al. 2024 (Medusa, arXiv 2401.10774; FasterDecoding/Medusa), Gloeckle et al. 2024
(Meta's multi-token prediction, arXiv 2404.19737).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from labkit.heads.layers import (
    FINAL,
    KeyValues,
    LayerConfig,
    PlainLayer,
    layer_shapes,
    refuse,
)

MEDUSA, META = "medusa", "meta"
KINDS = (MEDUSA, META)


@dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """Shapes of one set of parallel heads.

    Attributes:
        kind: "medusa" or "meta".
        heads: how many depths are guessed.
        hidden_size: width of the target's states, and of the heads.
        vocab_size: width of the target's logits.
        draft_vocab_size: words that the heads can say.
        layers: medusa: residual blocks of each head.
        bias: medusa: whether their linear layers have one.
        shared_output: one output layer for all heads; meta always has one.
        block: meta: shapes of the trunk and of each head.
    """

    kind: str = MEDUSA
    heads: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    layers: int = 1
    bias: bool = True
    shared_output: bool = True
    block: LayerConfig | None = None

    def __post_init__(self) -> None:
        wide = self.block.hidden_size if self.block else self.hidden_size
        refuse(
            self,
            ("kind", " or ".join(KINDS), self.kind in KINDS),
            ("heads", "1 or more", self.heads >= 1),
            ("layers", "1 or more", self.layers >= 1),
            ("draft_vocab_size", f"1 to {self.vocab_size}",
             1 <= self.draft_vocab_size <= self.vocab_size),
            ("shared_output", "True for meta", self.shared_output or self.kind == MEDUSA),
            ("block", "shapes of decoder layers for meta, None for medusa",
             (self.kind == META) == (self.block is not None)),
            ("block", f"layers {self.hidden_size} wide, as the target's states",
             wide == self.hidden_size),
        )  # fmt: skip

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the target's activations."""
        return (FINAL,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the output layers' weights in the state dict."""
        if self.shared_output:
            return ("lm_head.weight",)
        return tuple(f"lm_heads.{d}.weight" for d in range(self.heads))


class ResidualBlocks(nn.Module):
    """Medusa's part of one head before its output layer: x + silu(W x + b), ``layers`` times."""

    def __init__(self, width: int, *, layers: int, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class MedusaHeads(nn.Module):
    """One set of parallel heads. An output layer that a checkpoint leaves to the target is set by
    whoever loads it.

    Args:
        config: shapes.
        vocab_ids: int64 [D], the target id of each draft id, ascending; None: the same numbers.
    """

    def __init__(self, config: MedusaConfig, *, vocab_ids: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        H, D = config.hidden_size, config.draft_vocab_size
        ids = torch.arange(D) if vocab_ids is None else vocab_ids
        self.vocab_ids: Tensor
        self.register_buffer("vocab_ids", ids, persistent=False)
        if config.block is None:
            self.blocks = nn.ModuleList(
                ResidualBlocks(H, layers=config.layers, bias=config.bias)
                for _ in range(config.heads)
            )
        else:
            self.rotary = LlamaRotaryEmbedding(config.block.llama())
            self.trunk = PlainLayer(config.block, input_norm=True)
            self.blocks = nn.ModuleList(
                PlainLayer(config.block, input_norm=True) for _ in range(config.heads)
            )
        if config.shared_output:
            self.lm_head = nn.Linear(H, D, bias=False)
        else:
            self.lm_heads = nn.ModuleList(nn.Linear(H, D, bias=False) for _ in range(config.heads))

    @property
    def device(self) -> torch.device:
        return self.output(0).weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.output(0).weight.dtype

    def output(self, head: int) -> nn.Linear:
        """The output layer of one head."""
        found = self.lm_head if self.config.shared_output else self.lm_heads[head]
        assert isinstance(found, nn.Linear)
        return found

    def forward(
        self,
        states: Tensor,
        *,
        positions: Tensor | None = None,
        kv: Sequence[Any] = (),
        mask: Tensor | None = None,
    ) -> Tensor:
        """[B, n, H], the target's last states -> [B, n, heads, H], what the output layers read.

        Args (of meta alone; medusa's heads look at one state at a time):
            positions: [B, n]; only differences matter.
            kv: one `KeyValues` (or `StackedKeyValues`) for the trunk and one per head.
            mask: bool, broadcast to [B, heads, n, all keys], True = attend; None: see all.
        """
        if self.config.kind == MEDUSA:
            return torch.stack([block(states) for block in self.blocks], -2)
        rotary = self.rotary(states, positions)
        made = self.trunk(states, rotary, kv[0], mask)
        found = [
            block(made, rotary, cache, mask)
            for block, cache in zip(self.blocks, kv[1:], strict=True)
        ]
        return torch.stack(found, -2)

    def logits(self, made: Tensor) -> Tensor:
        """[..., k, H] of the first k heads -> [..., k, D] over the draft vocabulary."""
        if self.config.shared_output:
            return self.lm_head(made)
        return torch.stack([self.output(d)(x) for d, x in enumerate(made.unbind(-2))], -2)

    def cache(self) -> list[KeyValues]:
        """An empty cache: trunk and heads of meta; () for medusa, whose heads remember nothing."""
        return (
            [] if self.config.kind == MEDUSA else [KeyValues() for _ in range(1 + len(self.blocks))]
        )


def medusa_config(
    target_model: Any,
    kind: str = MEDUSA,
    *,
    heads: int,
    draft_vocab_size: int | None = None,
    **switches: Any,
) -> MedusaConfig:
    """The config of new heads for a target; meta's layers have the shapes of the target's.

    Args:
        switches: further fields of `MedusaConfig`.
    """
    wide, hidden = target_model.get_output_embeddings().weight.shape
    block = LayerConfig(**layer_shapes(target_model)) if kind == META else None
    return MedusaConfig(
        **{
            "kind": kind,
            "heads": heads,
            "hidden_size": hidden,
            "vocab_size": wide,
            "draft_vocab_size": draft_vocab_size or wide,
            "block": block,
            **switches,
        }
    )


def first_heads(
    config: MedusaConfig, target_model: Any, *, seed: int, vocab_ids: Tensor | None = None
) -> MedusaHeads:
    """Untrained heads in float32 on the target's device: every block adds nothing yet, and the
    output rows are the target's, so each head guesses the target's next token once more.

    As published for Medusa (residual layers start at zero, outputs at the target's); for meta,
    whose blocks add what two projections give, these are zero and all others small random numbers.
    The rows are the target's own memory where nothing needs converting.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = MedusaHeads(config, vocab_ids=vocab_ids)
        for name, weight in made.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", ".bias")):
                nn.init.zeros_(weight)
            elif weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)
    if config.kind == MEDUSA:
        for weight in made.blocks.parameters():
            nn.init.zeros_(weight)
    made.to(target_model.get_output_embeddings().weight.device)
    rows = output_rows(target_model, made.vocab_ids)
    for d in range(1 if config.shared_output else config.heads):
        own = rows.float() if d == 0 and config.shared_output else rows.float().clone()
        made.output(d).weight = nn.Parameter(own, requires_grad=False)
    return made


def output_rows(target_model: Any, vocab_ids: Tensor) -> Tensor:
    """[D, H], the target's output rows of these ids; its own memory when they are all."""
    output = target_model.get_output_embeddings().weight.detach()
    return output if len(vocab_ids) == len(output) else output[vocab_ids.to(output.device)]


def random_heads(
    config: MedusaConfig, target_model: Any, *, seed: int = 0, vocab_ids: Tensor | None = None
) -> MedusaHeads:
    """Heads with random weights and norms; the output rows are the target's, each head's own ones
    with noise on them."""
    made = first_heads(config, target_model, seed=seed, vocab_ids=vocab_ids)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in made.named_parameters():
        noise = torch.randn(weight.shape, generator=generator).to(weight.device)
        if name in config.outputs:
            weight.data = weight + (0 if config.shared_output else 0.2 * noise)
        elif "norm" in name:
            weight.data = 1 + 0.3 * noise
        else:
            weight.data = noise / weight.shape[-1] ** 0.5
    dtype = target_model.get_output_embeddings().weight.dtype
    return made.to(dtype).eval().requires_grad_(False)
