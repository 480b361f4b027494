"""Tiny targets of the families that ship multi-token prediction, and what their modules compute.

Names of tensors are written out as published checkpoints have them; formulas are plain tensors, one
pair after the other, without a cache. Nothing here knows the product.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCAB, WIDE, LAYERS, HEADS, KV, DIM, INNER = 64, 32, 2, 4, 2, 8, 64
PLAIN = {
    "vocab_size": VOCAB,
    "hidden_size": WIDE,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
EXPERTS = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": HEADS,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}

GATED = {
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    },
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


@lru_cache
def target(family: str, modules: int = 1) -> Any:
    """A random model; ``modules``: how many modules its config promises."""
    promised = {"num_nextn_predict_layers": modules}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "glm": ("Glm4Moe", {"head_dim": DIM, "use_qk_norm": True} | EXPERTS | promised),
        "deepseek": ("DeepseekV3", EXPERTS | LATENT | promised),
        "mimo": ("Qwen2", {}),
        "qwen": ("Qwen3_5", GATED | {"layer_types": ["full_attention"] * LAYERS}),
        "hybrid": ("Qwen3_5", GATED | {"layer_types": ["linear_attention", "full_attention"]}),
    }
    name, more = kinds[family]
    text = "Text" if name == "Qwen3_5" else ""
    config = getattr(transformers, f"{name}{text}Config")(**PLAIN | more)
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        for parameter_name, weight in model.named_parameters():
            if "norm" in parameter_name:  # a norm of ones would hide a norm that is left out
                weight.data.uniform_(-0.5, 0.5).add_(0.0 if name == "Qwen3_5" else 1.0)
    return model.eval().requires_grad_(False)


QWEN_NAMES = {
    "mtp.pre_fc_norm_embedding.weight": (WIDE,),
    "mtp.pre_fc_norm_hidden.weight": (WIDE,),
    "mtp.fc.weight": (WIDE, 2 * WIDE),
    "mtp.norm.weight": (WIDE,),
    "mtp.layers.0.input_layernorm.weight": (WIDE,),
    "mtp.layers.0.post_attention_layernorm.weight": (WIDE,),
    "mtp.layers.0.self_attn.q_proj.weight": (2 * HEADS * 16, WIDE),
    "mtp.layers.0.self_attn.k_proj.weight": (KV * 16, WIDE),
    "mtp.layers.0.self_attn.v_proj.weight": (KV * 16, WIDE),
    "mtp.layers.0.self_attn.o_proj.weight": (WIDE, HEADS * 16),
    "mtp.layers.0.self_attn.q_norm.weight": (16,),
    "mtp.layers.0.self_attn.k_norm.weight": (16,),
    "mtp.layers.0.mlp.gate_proj.weight": (INNER, WIDE),
    "mtp.layers.0.mlp.up_proj.weight": (INNER, WIDE),
    "mtp.layers.0.mlp.down_proj.weight": (WIDE, INNER),
}
MIMO_NAMES = {
    "model.mtp_layers.0.token_layernorm.weight": (WIDE,),
    "model.mtp_layers.0.hidden_layernorm.weight": (WIDE,),
    "model.mtp_layers.0.input_proj.weight": (WIDE, 2 * WIDE),
    "model.mtp_layers.0.final_layernorm.weight": (WIDE,),
    "model.mtp_layers.0.input_layernorm.weight": (WIDE,),
    "model.mtp_layers.0.post_attention_layernorm.weight": (WIDE,),
    "model.mtp_layers.0.self_attn.q_proj.weight": (HEADS * DIM, WIDE),
    "model.mtp_layers.0.self_attn.q_proj.bias": (HEADS * DIM,),
    "model.mtp_layers.0.self_attn.k_proj.weight": (KV * DIM, WIDE),
    "model.mtp_layers.0.self_attn.k_proj.bias": (KV * DIM,),
    "model.mtp_layers.0.self_attn.v_proj.weight": (KV * DIM, WIDE),
    "model.mtp_layers.0.self_attn.v_proj.bias": (KV * DIM,),
    "model.mtp_layers.0.self_attn.o_proj.weight": (WIDE, HEADS * DIM),
    "model.mtp_layers.0.mlp.gate_proj.weight": (INNER, WIDE),
    "model.mtp_layers.0.mlp.up_proj.weight": (INNER, WIDE),
    "model.mtp_layers.0.mlp.down_proj.weight": (WIDE, INNER),
}
NAMES = {"qwen": QWEN_NAMES, "mimo": MIMO_NAMES}


def weights(family: str, *, seed: int = 1) -> dict[str, Tensor]:
    """Random tensors under the names of the file."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in NAMES[family].items():
        spread = 0.3 if "norm" in name else 0.2
        centre = 1.0 if "norm" in name and family == "mimo" else 0.0
        made[name] = centre + spread * torch.randn(shape, generator=generator)
    return made


def save(folder: Path, model: Any, extra: dict[str, Tensor], *, shards: bool = False) -> Path:
    """The model's folder with ``extra`` in its weights: in the same file, or in a second one."""
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    if not shards:
        save_file(load_file(file) | extra, file, metadata={"format": "pt"})
        return folder
    own = load_file(file)
    file.unlink()
    parts = {"model-00001-of-00002.safetensors": own, "model-00002-of-00002.safetensors": extra}
    for name, tensors in parts.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    index = {"weight_map": {n: part for part, tensors in parts.items() for n in tensors}}
    text = str(index).replace("'", '"')
    (folder / "model.safetensors.index.json").write_text(text)
    return folder


@torch.no_grad()
def states(model: Any, tokens: list[int]) -> dict[str, Tensor]:
    """What the target thinks after each token, [n, H]: "last", before its final norm, "final"."""
    seen = []
    hook = model.model.norm.register_forward_pre_hook(lambda m, args: seen.append(args[0][0]))
    try:
        out = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    finally:
        hook.remove()
    return {"last": seen[0], "final": out.hidden_states[-1][0]}


class Module:
    """One module of Qwen-3.5 or MiMo-7B, by its formulas."""

    def __init__(self, family: str, model: Any, made: dict[str, Tensor]) -> None:
        self.qwen, self.w = family == "qwen", made
        self.embedding = model.get_input_embeddings().weight
        self.output = model.get_output_embeddings().weight
        self.eps = model.config.rms_norm_eps
        self.prefix = "mtp." if self.qwen else "model.mtp_layers.0."
        self.block = self.prefix + ("layers.0." if self.qwen else "")
        self.state = "final" if self.qwen else "last"

    def norm(self, x: Tensor, name: str) -> Tensor:
        scaled = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return scaled * (self.w[name] + (1 if self.qwen else 0))

    def linear(self, x: Tensor, name: str) -> Tensor:
        bias = self.w.get(f"{self.block}{name}.bias", torch.zeros(()))
        return x @ self.w[f"{self.block}{name}.weight"].T + bias

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """[n, heads, d] with the first dimensions turned by their positions."""
        d = x.shape[-1] // 2 if self.qwen else x.shape[-1]
        half = d // 2
        angle = positions[:, None] * 10000.0 ** (-torch.arange(half) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b, rest = x[..., :half], x[..., half:d], x[..., d:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

    def attention(self, x: Tensor) -> Tensor:
        n, d = len(x), 16 if self.qwen else DIM
        q, k, v = (self.linear(x, f"self_attn.{p}_proj").view(n, -1, d) for p in "qkv")
        gate = torch.ones(n, HEADS, d)
        if self.qwen:
            both = q.reshape(n, HEADS, 2 * d)
            q, gate = both[..., :d], both[..., d:].sigmoid()
            q = self.norm(q, self.block + "self_attn.q_norm.weight")
            k = self.norm(k, self.block + "self_attn.k_norm.weight")
        at = torch.arange(n)
        q, k = self.turned(q, at), self.turned(k, at)
        out = torch.zeros(n, HEADS, d)
        for i in range(n):
            for h in range(HEADS):
                group = h // (HEADS // KV)
                p = (k[: i + 1, group] @ q[i, h] / math.sqrt(d)).softmax(0)
                out[i, h] = p @ v[: i + 1, group]
        return self.linear((out * gate).flatten(1), "self_attn.o_proj")

    @torch.no_grad()
    def read(self, tokens: list[int], given: Tensor) -> tuple[Tensor, Tensor]:
        """Of pairs (state t, token t + 1): what is recycled [n, H], and logits [n, V]."""
        embedded = self.embedding[tokens].clone()
        if self.qwen:
            a = self.norm(embedded, "mtp.pre_fc_norm_embedding.weight")
            b = self.norm(given, "mtp.pre_fc_norm_hidden.weight")
            x = torch.cat((a, b), -1) @ self.w["mtp.fc.weight"].T
        else:
            embedded[0] = 0
            a = self.norm(embedded, self.prefix + "token_layernorm.weight")
            b = self.norm(given, self.prefix + "hidden_layernorm.weight")
            x = torch.cat((b, a), -1) @ self.w[self.prefix + "input_proj.weight"].T
        x = x + self.attention(self.norm(x, self.block + "input_layernorm.weight"))
        y = self.norm(x, self.block + "post_attention_layernorm.weight")
        gate = self.linear(y, "mlp.gate_proj")
        x = x + self.linear(gate * gate.sigmoid() * self.linear(y, "mlp.up_proj"), "mlp.down_proj")
        last = "mtp.norm.weight" if self.qwen else self.prefix + "final_layernorm.weight"
        normed = self.norm(x, last)
        return (normed if self.qwen else x), normed @ self.output.T

    def chain(self, model: Any, tokens: list[int], steps: int) -> tuple[list[int], list[Tensor]]:
        """Greedy guesses after ``tokens``, each from all that was read, and their logits."""
        given, read = states(model, tokens)[self.state][:-1], tokens[1:]
        guesses, rows = [], []
        for _ in range(steps):
            recycled, logits = self.read(read, given)
            guesses.append(int(logits[-1].argmax()))
            rows.append(logits[-1])
            given = torch.cat((given, recycled[-1:]))
            read = [*read, guesses[-1]]
        return guesses, rows
