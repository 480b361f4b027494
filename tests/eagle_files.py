"""EAGLE heads as other people's tools write them, and what such heads compute.

Nothing here uses the product: files are laid out by hand, name by name, and `draft` follows the
formulas of the papers with its own norm, rotation and attention, one pair at a time, in float64.

Sources: arXiv 2401.15077 (EAGLE), 2503.01840 (EAGLE-3), 2605.09992 (EAGLE-3.1); tensor names and
config keys as SafeAILab/EAGLE, SpecForge 0.2.0, speculators 0.9.0, nvidia-modelopt 0.47.0,
TorchSpec and NeMo Automodel write them.
"""

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

H, HEADS, KV, DIM, INNER = 32, 4, 2, 8, 48
VOCAB, TARGET_LAYERS = 64, 8
BOUNDS = (2, 4, 5)  # 2, L // 2, L - 3 of 8 layers
KEPT = tuple(sorted({0, 1, 2, 3, *range(5, 60, 4), 62}))  # target ids of the draft vocabulary
D = len(KEPT)
IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Spec:
    """What a head computes. ``rope``: a config's rope_scaling; ``wide``: the target's width."""

    version: int = 3
    layers: int = 1
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    attention_bias: bool = False
    fc_bias: bool = False
    qk_norm: bool = False
    pruned: bool = True
    embedding: bool = False
    wide: int = H
    theta: float = 10000.0
    rope: dict[str, Any] | None = None
    eps: float = 1e-5
    bounds: tuple[int, ...] = BOUNDS

    @property
    def ids(self) -> tuple[int, ...]:
        return KEPT if self.pruned and self.version == 3 else tuple(range(VOCAB))


def weights(spec: Spec, seed: int = 0) -> dict[str, Tensor]:
    """Random numbers by role: ``q0`` is the query matrix of layer 0, and so on."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])

    def norm(width: int) -> Tensor:
        return 1 + 0.5 * torch.randn(width, generator=generator)

    fused = H + spec.wide if spec.version == 1 else len(spec.bounds) * spec.wide
    made = {"fc": matrix(H, fused)}
    if spec.fc_bias:
        made["fc_bias"] = 0.3 * torch.randn(H, generator=generator)
    for i in range(spec.layers):
        width = 2 * H if i == 0 and spec.version == 3 else H
        made |= {
            f"q{i}": matrix(HEADS * DIM, width), f"k{i}": matrix(KV * DIM, width),
            f"v{i}": matrix(KV * DIM, width), f"o{i}": matrix(H, HEADS * DIM),
            f"gate{i}": matrix(INNER, H), f"up{i}": matrix(INNER, H), f"down{i}": matrix(H, INNER),
            f"post{i}": norm(H),
        }  # fmt: skip
        if spec.version == 3 or i > 0:
            made[f"in{i}"] = norm(H)
        if spec.attention_bias:
            for name, size in (("q", HEADS * DIM), ("k", KV * DIM), ("v", KV * DIM), ("o", H)):
                made[f"{name}_bias{i}"] = 0.3 * torch.randn(size, generator=generator)
        if spec.qk_norm:
            made |= {f"q_norm{i}": norm(DIM), f"k_norm{i}": norm(DIM)}
    if spec.version == 3:
        made |= {"hidden": norm(H), "out": norm(H), "head": 3 * matrix(len(spec.ids), H)}
    for i in range(len(spec.bounds) if spec.fc_norm else 0):
        made[f"fc_norm{i}"] = norm(spec.wide)
    if spec.norm_before_fc:
        made["concat"] = norm(len(spec.bounds) * spec.wide)
    if spec.embedding or spec.wide != H:
        made["embed"] = torch.randn(VOCAB, H, generator=generator)
    return made


# ------------------------------------------------------------------------------------- files

_LAYER = {
    "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight", "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight", "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias", "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias", "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight", "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
    "post": "post_attention_layernorm.weight", "in": "input_layernorm.weight",
}  # fmt: skip


def plain_names(made: dict[str, Tensor], first: str, later: str = "layers.{}.", top: str = ""
                ) -> dict[str, Tensor]:  # fmt: skip
    """Roles -> names: ``first`` before the tensors of layer 0, ``top`` before all but lm_head."""
    found = {}
    for role, tensor in made.items():
        stem = role.rstrip("0123456789")
        number = role[len(stem) :]
        if stem in _LAYER:
            prefix = first if number == "0" else later.format(number)
            found[prefix + _LAYER[stem]] = tensor
            continue
        name = {
            "fc": "fc.weight", "fc_bias": "fc.bias", "hidden": "HIDDEN", "out": "norm.weight",
            "head": "lm_head.weight", "embed": "embed_tokens.weight",
            "concat": "input_norm.weight", "fc_norm": f"fc_norm.{number}.weight",
        }[stem]  # fmt: skip
        if name == "HIDDEN":
            found[f"{first}hidden_norm.weight"] = tensor
        else:
            found[("" if stem == "head" else top) + name] = tensor
    return found


def shape(spec: Spec) -> dict[str, Any]:
    return {
        "model_type": "qwen3" if spec.qk_norm else "llama", "hidden_size": H,
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV,
        "head_dim": DIM, "num_hidden_layers": spec.layers, "vocab_size": VOCAB,
        "rms_norm_eps": spec.eps, "rope_theta": spec.theta, "rope_scaling": spec.rope,
        "max_position_embeddings": 512, "hidden_act": "silu",
        "attention_bias": spec.attention_bias, "tie_word_embeddings": False,
    }  # fmt: skip


def flags(spec: Spec) -> dict[str, bool]:
    names = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
    return {name: True for name in names if getattr(spec, name)}


def maps(spec: Spec, *, t2d: bool = True) -> dict[str, Tensor]:
    ids = torch.tensor(spec.ids)
    found = {"d2t": ids - torch.arange(len(ids))}
    if t2d:
        found["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    return found


def in_format(name: str, spec: Spec, made: dict[str, Tensor]
              ) -> tuple[dict[str, Any], dict[str, Tensor]]:  # fmt: skip
    """config.json and the tensors as the tool ``name`` writes this head."""
    flat = shape(spec) | flags(spec) | {"draft_vocab_size": len(spec.ids)}
    if spec.wide != H:
        flat["target_hidden_size"] = spec.wide
    outputs = [k - 1 for k in spec.bounds]
    eagle3 = {"architectures": ["LlamaForCausalLMEagle3"]}
    words = maps(spec) if spec.pruned and spec.version == 3 else {}
    if name == "safeailab":
        llama = {"architectures": ["LlamaForCausalLM"], "bias": spec.fc_bias}
        first = "layers.0." if spec.version == 1 else "midlayer."
        if spec.bounds != BOUNDS:
            llama[IDS] = list(spec.bounds)
        return flat | llama, plain_names(made, first) | words
    if name == "specforge":
        return (
            flat | eagle3 | {"eagle_config": {IDS: outputs}},
            plain_names(made, "midlayer.") | maps(spec),
        )
    if name == "torchspec":
        return (
            flat | eagle3 | {"_torchspec_version": "0.1", "eagle_config": {IDS: outputs}},
            plain_names(made, "midlayer.") | words,
        )
    if name == "torchspec-for-vllm":
        return (
            flat | eagle3 | {"_torchspec_version": "0.1", "eagle_config": {IDS: outputs}},
            plain_names(made, "layers.0.") | words,
        )
    if name == "nemo":
        return (
            flat | {"architectures": ["LlamaEagle3DraftModel"]},
            plain_names(made, "model.layers.0.", top="model.") | maps(spec),
        )
    if name in ("modelopt", "modelopt-megatron"):
        nested = {
            IDS: outputs, "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True, "use_mtp_layernorm": False, "next_layer_regular": True,
            "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1,
        }  # fmt: skip
        config = flat | eagle3 | {"eagle_config": nested, "torch_dtype": "float32"}
        offsets = maps(spec, t2d=False)
        if name == "modelopt":
            return config, plain_names(made, "layers.0.") | offsets
        deep = "midlayer.0." if spec.layers > 1 else "midlayer."
        tensors = plain_names(made, deep, "midlayer.{}.")
        for i in range(1, spec.layers):  # Megatron's name for the only norm of later layers
            old = f"midlayer.{i}.input_layernorm.weight"
            tensors[f"midlayer.{i}.hidden_norm.weight"] = tensors.pop(old)
        return config, tensors | offsets
    assert name == "speculators", name
    layer = {k: v for k, v in shape(spec).items() if v is not None}
    switches = {
        "norm_before_residual": spec.norm_before_residual, "fc_norm": spec.fc_norm,
        "norm_before_fc": spec.norm_before_fc, "norm_output": spec.norm_output,
    }  # fmt: skip
    return (
        switches | {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
            "transformer_layer_config": layer, "draft_vocab_size": len(spec.ids),
            IDS: list(spec.bounds), "target_hidden_size": None, "embed_requires_grad": False,
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x"}},
        },
        plain_names(made, "layers.0.") | words,
    )  # fmt: skip


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


# ---------------------------------------------------------------------------------- formulas


@dataclass
class Draft:
    """A head by its formulas. ``embed`` [V, H] and ``output`` [V, H] are the target's."""

    spec: Spec
    w: dict[str, Tensor]
    embed: Tensor
    output: Tensor
    seen: list[list[tuple[Tensor, Tensor]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.w = {name: tensor.double() for name, tensor in self.w.items()}
        self.embed = self.w.get("embed", self.embed.double())
        self.head = self.w.get("head", self.output.double()[list(self.spec.ids)])
        self.seen = [[] for _ in range(self.spec.layers)]

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.spec.eps) * weight

    def fuse(self, states: list[Tensor]) -> Tensor:
        """States of one position, one per depth, -> [H]."""
        if self.spec.version == 1:
            return states[0].double()
        states = [state.double() for state in states]
        if self.spec.fc_norm:
            states = [self.norm(s, self.w[f"fc_norm{i}"]) for i, s in enumerate(states)]
        joined = torch.cat(states)
        if self.spec.norm_before_fc:
            joined = self.norm(joined, self.w["concat"])
        return self.w["fc"] @ joined + self.w.get("fc_bias", 0.0)

    def frequencies(self) -> Tensor:
        base = self.spec.theta ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
        rope = self.spec.rope or {}
        kind = rope.get("rope_type") or rope.get("type")
        if kind == "linear":
            return base / rope["factor"]
        if kind == "llama3":
            old = rope["original_max_position_embeddings"]
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            out = []
            for f in base.tolist():
                turns = old * f / (2 * math.pi)  # rotations over the original length
                share = min(max((turns - low) / (high - low), 0.0), 1.0)
                out.append(f * share + f / rope["factor"] * (1 - share))
            return torch.tensor(out, dtype=torch.float64)
        return base

    def turn(self, x: Tensor, position: int) -> Tensor:
        """Rotate [n, DIM] by the position; dimension i pairs with i + DIM / 2."""
        angle = position * self.frequencies()
        a, b = x[:, : DIM // 2], x[:, DIM // 2 :]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    def attend(self, i: int, x: Tensor, position: int) -> Tensor:
        w = self.w
        q, k, v = (
            (w[f"{n}{i}"] @ x + w.get(f"{n}_bias{i}", 0.0)).view(-1, DIM) for n in ("q", "k", "v")
        )
        if self.spec.qk_norm:
            q, k = self.norm(q, w[f"q_norm{i}"]), self.norm(k, w[f"k_norm{i}"])
        q, k = self.turn(q, position), self.turn(k, position)
        self.seen[i].append((k, v))
        out = []
        for head in range(HEADS):
            group = head // (HEADS // KV)
            keys = torch.stack([k[group] for k, _ in self.seen[i]])
            values = torch.stack([v[group] for _, v in self.seen[i]])
            scores = keys @ q[head] / math.sqrt(DIM)
            out.append((scores - scores.max()).exp() @ values / (scores - scores.max()).exp().sum())
        return w[f"o{i}"] @ torch.cat(out) + w.get(f"o_bias{i}", 0.0)

    def feed(self, i: int, x: Tensor) -> Tensor:
        w, y = self.w, self.norm(x, self.w[f"post{i}"])
        gate = w[f"gate{i}"] @ y
        return x + w[f"down{i}"] @ (gate * torch.sigmoid(gate) * (w[f"up{i}"] @ y))

    def step(self, token: int, state: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """One pair -> state to feed back, logits over the draft vocabulary."""
        e = self.embed[token]
        if self.spec.version == 1:
            x = self.w["fc"] @ torch.cat((e, state)) + self.w.get("fc_bias", 0.0)
            x = self.feed(0, x + self.attend(0, x, position))
        else:
            g = self.norm(state, self.w["hidden"])
            carried = g if self.spec.norm_before_residual else state
            both = torch.cat((self.norm(e, self.w["in0"]), g))
            x = self.feed(0, carried + self.attend(0, both, position))
        for i in range(1, self.spec.layers):
            x = self.feed(i, x + self.attend(i, self.norm(x, self.w[f"in{i}"]), position))
        if self.spec.version == 1:
            return x, self.head @ x
        y = self.norm(x, self.w["out"])
        return (y if self.spec.norm_output else x), self.head @ y

    def chain(self, tokens: list[int], states: list[list[Tensor]], steps: int = 3
              ) -> tuple[list[Tensor], list[int]]:  # fmt: skip
        """Read the pairs (state of t - 1, token t), then recycle: logits of every step, and the
        target ids that were drafted. ``states[d][t]``: depth d, position t."""
        rows = []
        for t in range(1, len(tokens)):
            given = self.fuse([depth[t - 1] for depth in states])
            state, logits = self.step(tokens[t], given, t - 1)
            rows.append(logits)
        drafted = []
        for i in range(steps):
            drafted.append(self.spec.ids[int(logits.argmax())])
            state, logits = self.step(drafted[-1], state, len(tokens) - 1 + i)
            rows.append(logits)
        return rows, drafted


SPECS = {
    "plain": Spec(),
    "3.1": Spec(fc_norm=True, norm_output=True),
    "fc_norm": Spec(fc_norm=True),
    "norm_output": Spec(norm_output=True),
    "norm_before_fc": Spec(norm_before_fc=True),
    "norm_before_residual": Spec(norm_before_residual=True),
    "speculators' default": Spec(norm_before_fc=True, norm_output=True, norm_before_residual=True),
    "attention_bias": Spec(attention_bias=True),
    "fc_bias": Spec(fc_bias=True),
    "qwen3 layer": Spec(qk_norm=True),
    "two layers": Spec(layers=2),
    "three layers": Spec(layers=3, norm_output=True),
    "all words": Spec(pruned=False),
    "own embedding": Spec(embedding=True),
    "other width": Spec(wide=24),
    "theta": Spec(theta=500000.0),
    "linear rope": Spec(rope={"type": "linear", "factor": 4.0}),
    "llama3 rope": Spec(theta=500000.0, rope={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}),
    "four states": Spec(bounds=(2, 3, 5, 7), fc_norm=True),
    "eagle1": Spec(version=1),
    "eagle1 with bias": Spec(version=1, fc_bias=True, embedding=True),
    "eagle1 two layers": Spec(version=1, layers=2),
}  # fmt: skip


def variant(spec: Spec, **changes: Any) -> Spec:
    return replace(spec, **changes)
