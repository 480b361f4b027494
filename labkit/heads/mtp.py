"""Multi-token prediction: modules that read the target's last state and guess one token further.

Owns: the modules, and the one table of how the families of published checkpoints differ.
Does not know: files, trees, the accept rule, training.
Invariants: a wrong row of the table never changes a text, only how much is accepted; the decoder
layer inside a module is transformers' own, of the target's class and configuration (latent
attention, experts, gates included); embedding and output rows are the target's unless a checkpoint
brings others; draft id i means target id ``vocab_ids[i]``.

    text        x0   x1   x2   x3            h: the target's states, h_t after reading x_0..x_t
    module 0         (h0,x1) (h1,x2) (h2,x3)       guesses x4, gives a2
    module 1                 (a0,x2) (a1,x3)       and (a2,x4): guesses x5, gives b2
    again                                          the last module goes on from (b2,x5) by itself

With one module, every step after the first reads what that module gave the step before (FastMTP,
arXiv 2509.18362). A pair of state t stands at position t; only differences matter to rotary
positions.

How the layer is driven: it appends to the lab's own `KeyValues`, one per module, in place of
transformers' cache, and sees what an explicit mask names; so branches of a tree do not see each
other. Its attention is sdpa, whatever the target's is.

Sources: DeepSeek-AI 2024 (DeepSeek-V3, arXiv 2412.19437); tensor names and switches as vLLM 0.32
loads them (``deepseek_mtp``, ``glm4_moe_mtp``, ``mimo_mtp``, ``qwen3_5_mtp``) and transformers'
``MtpLayer`` has them.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.errors import BadInput, UnsupportedModel
from labkit.heads.eagle import HeadStep
from labkit.heads.layers import FINAL, KeyValues, plain_eps, refuse

LAST = "last"
"""The target's state before its final norm: the residual stream after all layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How one family names the parts of a module, and what it feeds them.

    Attributes:
        name: of the family. model_types: the targets that have it, as their own config.json states
            them (MiMo's load as Qwen2 models); they decide only between families whose tensors have
            the same names.
        prefix: of a module's tensors; {k} is its number, {layer} the target's layers plus {k}.
        enorm, hnorm: norms of the token's embedding and of the state. eh_proj: [H, 2H].
        post_norm: norm before the output layer. block: what the decoder layer's names begin with.
        embedding, output: copies of the target's rows that files hold too; "": never.
        norm_adds_one: these norms scale by 1 + weight.
        hidden_first: the projection reads [state, embedding], not [embedding, state].
        state: which state of the target is read: `FINAL`, after its last norm, or `LAST`, before.
        recycles_normed: the next step reads the normed output, not the block's own.
        masks_first: the embedding at position 0 counts as zero, as vLLM has it.
    """

    name: str
    model_types: tuple[str, ...] = ()
    prefix: str
    enorm: str = "enorm"
    hnorm: str = "hnorm"
    eh_proj: str = "eh_proj"
    post_norm: str
    block: str = ""
    embedding: str = ""
    output: str = ""
    norm_adds_one: bool = False
    hidden_first: bool = False
    state: str = FINAL
    recycles_normed: bool = True
    masks_first: bool = False


GENERIC = Adapter(
    name="generic",  # transformers' MtpModel; also the lab's own heads
    prefix="layers.{k}.",
    post_norm="post_norm",
    block="mtp_block.",
)
DEEPSEEK = Adapter(
    name="deepseek",
    model_types=("deepseek_v3", "deepseek_v32"),
    prefix="model.layers.{layer}.",
    post_norm="shared_head.norm",
    embedding="embed_tokens",
    output="shared_head.head",
)
# vLLM recycles GLM's state before its norm, transformers after; measured once (GLM-5.2, ROCm/ATOM
# #1742): 3.04 tokens per forward before, 3.46 after
GLM = replace(DEEPSEEK, name="glm", model_types=("glm4_moe", "glm4_moe_lite", "glm_moe_dsa"))
QWEN = Adapter(
    name="qwen",
    model_types=(
        "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
    ),
    prefix="mtp.",
    enorm="pre_fc_norm_embedding",
    hnorm="pre_fc_norm_hidden",
    eh_proj="fc",
    post_norm="norm",
    block="layers.0.",
    norm_adds_one=True,
)  # fmt: skip
MIMO = Adapter(
    name="mimo",
    model_types=("mimo",),
    prefix="model.mtp_layers.{k}.",
    enorm="token_layernorm",
    hnorm="hidden_layernorm",
    eh_proj="input_proj",
    post_norm="final_layernorm",
    hidden_first=True,
    state=LAST,
    recycles_normed=False,
    masks_first=True,
)
ADAPTERS = {row.name: row for row in (GENERIC, DEEPSEEK, GLM, QWEN, MIMO)}
SWITCHES = ("norm_adds_one", "hidden_first", "state", "recycles_normed", "masks_first")
"""What of an adapter changes the numbers, not the names."""


@dataclass(frozen=True, kw_only=True)
class MtpConfig:
    """Shapes of one head; those inside the decoder layer are the target's.

    Attributes:
        modules: how many of their own; the last one is used again for deeper drafts.
        hidden_size, vocab_size, target_layers: of the target.
        draft_vocab_size: words that the head can say.
        eps: of the head's own norms.
    """

    adapter: Adapter
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    target_layers: int
    modules: int = 1
    eps: float = 1e-6

    def __post_init__(self) -> None:
        refuse(
            self,
            ("modules", "1 or more", self.modules >= 1),
            ("draft_vocab_size", f"1 to {self.vocab_size}",
             1 <= self.draft_vocab_size <= self.vocab_size),
        )  # fmt: skip

    @property
    def needs(self) -> tuple[str, ...]:
        """Name of the target's activation that the first module reads."""
        return (FINAL,) if self.adapter.state == FINAL else (f"h{self.target_layers}",)


def mtp_config(
    target_model: Any,
    adapter: Adapter = GENERIC,
    *,
    modules: int = 1,
    draft_vocab_size: int | None = None,
) -> MtpConfig:
    """The config of a head for a target."""
    text = target_model.config.get_text_config()
    wide = int(target_model.get_output_embeddings().weight.shape[0])
    return MtpConfig(
        adapter=adapter,
        hidden_size=text.hidden_size,
        vocab_size=wide,
        draft_vocab_size=draft_vocab_size or wide,
        target_layers=text.num_hidden_layers,
        modules=modules,
        eps=plain_eps(getattr(text, "rms_norm_eps", 1e-6)),
    )


class HeadNorm(nn.Module):
    """Root-mean-square norm, scaled by the weight or by one more than it."""

    def __init__(self, size: int, *, eps: float, adds_one: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if adds_one else torch.ones(size))
        self._eps, self._adds_one = eps, adds_one

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        if self._adds_one:
            return (normed * (1 + self.weight.float())).to(x.dtype)
        return self.weight * normed.to(x.dtype)


class _Appending:
    """What a decoder layer takes for its cache; only one layer ever writes to it."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv

    def update(
        self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self._kv.append(keys, values)
        return found


class MtpModule(nn.Module):
    """One module: it reads a token and a state, and gives a state.

    Args:
        block: a decoder layer of the target's class.
    """

    def __init__(self, config: MtpConfig, block: nn.Module) -> None:
        super().__init__()
        H, adapter = config.hidden_size, config.adapter
        norm = partial(HeadNorm, H, eps=config.eps, adds_one=adapter.norm_adds_one)
        self.enorm, self.hnorm = norm(), norm()
        self.eh_proj = nn.Linear(2 * H, H, bias=False)
        self.mtp_block = block
        self.post_norm = norm()
        self._adapter = adapter
        # renamed in transformers 5.24
        takes = inspect.signature(block.forward).parameters
        self._cache = "cache" if "cache" in takes else "past_key_values"

    def forward(
        self,
        embedded: Tensor,
        state: Tensor,
        *,
        rotary: Any,
        positions: Tensor,
        kv: Any,
        mask: Tensor | None,
    ) -> HeadStep:
        """embedded, state [B, n, H]; mask as of `MtpHead`."""
        if self._adapter.masks_first:
            embedded = embedded.masked_fill(positions[..., None] == 0, 0)
        both = [self.enorm(embedded), self.hnorm(state)]
        x = self.mtp_block(
            self.eh_proj(torch.cat(both[::-1] if self._adapter.hidden_first else both, -1)),
            position_embeddings=rotary,
            position_ids=positions,
            attention_mask=None if mask is None else mask[(None,) * (4 - mask.ndim)],
            **{self._cache: _Appending(kv)},
        )
        normed = self.post_norm(x)
        return HeadStep(normed if self._adapter.recycles_normed else x, normed)


class MtpHead(nn.Module):
    """All modules of one head.

    Args:
        blocks, rotary: of `blocks_of` and `rotary_of` the target.
        vocab_ids: int64 [D], the target id of each draft id, ascending; None: the same numbers.
    """

    def __init__(
        self,
        config: MtpConfig,
        *,
        blocks: Sequence[nn.Module],
        rotary: nn.Module,
        vocab_ids: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.layers = nn.ModuleList(MtpModule(config, block) for block in blocks)
        self.rotary = rotary
        by_kind = "layer_type" in inspect.signature(rotary.forward).parameters
        self._rotary_kind = {"layer_type": "full_attention"} if by_kind else {}
        ids = torch.arange(config.draft_vocab_size) if vocab_ids is None else vocab_ids
        self.vocab_ids: Tensor
        self.register_buffer("vocab_ids", ids, persistent=False)

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.layers.parameters()).dtype

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        """The one state that the head reads, as it is: [..., H]."""
        return states[0]

    def forward(
        self,
        ids: Tensor,
        state: Tensor,
        *,
        positions: Tensor,
        kv: Sequence[Any],
        mask: Tensor | None,
        module: int = 0,
    ) -> HeadStep:
        """One module over n pairs.

        Args:
            ids: [B, n] target ids; state: [B, n, H], of the target or of the module before.
            positions: [B, n], or [1, n] for all, of the states.
            kv: one `KeyValues` (or `StackedKeyValues`), this module's own.
            mask: bool, broadcast to [B, heads, n, all keys], True = attend; None: see all, for
                one pair only.
        """
        embedded = self.embed_tokens(ids).to(state.dtype)
        rotary = self.rotary(state, positions, **self._rotary_kind)
        made: HeadStep = self.layers[module](
            embedded, state, rotary=rotary, positions=positions, kv=kv[0], mask=mask
        )
        return made

    def logits(self, normed: Tensor) -> Tensor:
        """[..., H] -> [..., D] over the draft vocabulary."""
        found: Tensor = self.lm_head(normed)
        return found

    @property
    def steps(self) -> tuple[Callable[..., HeadStep], ...]:
        """`forward`, one per module."""
        return tuple(partial(self, module=k) for k in range(len(self.layers)))

    def cache(self) -> list[KeyValues]:
        """An empty cache of one module: one table."""
        return [KeyValues()]


def blocks_of(target_model: Any, *, modules: int) -> list[nn.Module]:
    """Untrained decoder layers of the target's class, as they would follow its last layer.

    Raises:
        UnsupportedModel: a decoder that does not keep its layers and rotary positions apart.
    """
    decoder = target_model.get_decoder()
    rotary_of(target_model)
    text = target_model.config.get_text_config()
    config, depth = copy.deepcopy(text), text.num_hidden_layers
    config.num_hidden_layers = depth + modules
    for key in ("layer_types", "mlp_layer_types"):
        if kinds := getattr(text, key, None):
            more = "full_attention" if key == "layer_types" else kinds[-1]
            setattr(config, key, [*kinds, *[more] * modules])
    config._attn_implementation = "sdpa"
    layer = type(decoder.layers[-1])
    return [layer(config, depth + k) for k in range(modules)]


def rotary_of(target_model: Any) -> nn.Module:
    """A copy of the module that gives the target its rotary positions.

    Raises:
        UnsupportedModel: there is none.
    """
    decoder = target_model.get_decoder()
    rotary = getattr(decoder, "rotary_emb", None)
    if rotary is None or not hasattr(decoder, "layers"):
        raise UnsupportedModel(
            f"multi-token prediction for {type(target_model).__name__}",
            expected="a decoder with layers and rotary positions",
            got="one without",
            next_step="choose a target of another kind",
        )
    return copy.deepcopy(rotary)


def random_mtp(
    target_model: Any,
    adapter: Adapter = GENERIC,
    *,
    modules: int = 1,
    seed: int = 0,
    vocab_ids: Tensor | None = None,
) -> MtpHead:
    """A head with random weights and norms and the target's embedding and output rows."""
    size = None if vocab_ids is None else len(vocab_ids)
    config = mtp_config(target_model, adapter, modules=modules, draft_vocab_size=size)
    head = bare_mtp(target_model, config, vocab_ids=vocab_ids)
    spread = target_model.config.get_text_config().initializer_range
    generator = torch.Generator().manual_seed(seed)
    own = dict(head.layers.state_dict())
    with torch.no_grad():
        for name, weight in own.items():
            drawn = torch.randn(weight.shape, generator=generator) * spread
            if "norm" in name:
                centre = 0.0 if adapter.norm_adds_one else 1.0
                drawn = centre + torch.rand(weight.shape, generator=generator) - 0.5
            weight.copy_(drawn)
    return head.eval().requires_grad_(False)


def bare_mtp(target_model: Any, config: MtpConfig, *, vocab_ids: Tensor | None = None) -> MtpHead:
    """A head on the target's device and in its dtype; its layers' weights are yet to be set, its
    rows are the target's own memory.

    Raises:
        BadInput: a target of another width. UnsupportedModel: see `blocks_of`.
    """
    embedding = target_model.get_input_embeddings().weight.detach()
    output = target_model.get_output_embeddings().weight.detach()
    if (config.vocab_size, config.hidden_size) != tuple(output.shape):
        raise BadInput(
            "target of a multi-token prediction head",
            expected=f"{config.vocab_size} words, width {config.hidden_size}",
            got=f"{output.shape[0]} words, width {output.shape[1]}",
            next_step="load the target that the head was made for",
        )
    blocks, rotary = blocks_of(target_model, modules=config.modules), rotary_of(target_model)
    head = MtpHead(config, blocks=blocks, rotary=rotary, vocab_ids=vocab_ids)
    head.layers.to(output.device, output.dtype)
    head.vocab_ids = head.vocab_ids.to(output.device)
    rows = output if vocab_ids is None else output[vocab_ids.to(output.device)]
    head.embed_tokens.weight = nn.Parameter(embedding, requires_grad=False)
    head.lm_head.weight = nn.Parameter(rows, requires_grad=False)
    return head
