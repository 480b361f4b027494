"""A head's config.json as the fields of `EagleConfig`.

Owns: shapes, rotary positions and switches, and what is taken when a key is missing.
Does not know: layer ids, vocabulary maps.
Invariants: where the config is silent the tensors decide, and every such choice that may be wrong
is named.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit.heads.checkpoints.files import broken, check_config
from labkit.heads.checkpoints.layouts import SWITCH_KEYS, Layout, section
from labkit.heads.layers import plain_eps

# transformers writes only what differs from its class; these are the values it leaves out
_UNWRITTEN: Mapping[str, Mapping[str, Any]] = {
    "llama": {"num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048},
    "qwen3": {"num_attention_heads": 32, "vocab_size": 151936, "max_position_embeddings": 32768},
}
_ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_FIRST = "layers.0."


def version_of(tensors: Mapping[str, Tensor]) -> int:
    """1 for a head without norms around its first layer, else 3."""
    marks = {f"{_FIRST}hidden_norm.weight", f"{_FIRST}input_layernorm.weight", "norm.weight"}
    return 3 if marks & tensors.keys() else 1


def read_shapes(
    path: Path, config: Mapping[str, Any], layout: Layout, tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Shape fields of `EagleConfig`; missing ones from the tensors.

    Raises:
        BadCheckpoint: a number that neither the config nor the tensors give, or that is none.
    """
    flat = dict(section(config, layout.shape_section))
    kind = "qwen3" if str(flat.get("model_type", "")).startswith("qwen3") else "llama"
    flat = {**_UNWRITTEN[kind], **{key: value for key, value in flat.items() if value is not None}}

    def number(key: str, tensor: str = "", divisor: int = 1) -> int:
        if (value := flat.get(key)) is None and tensor in tensors:
            value = len(tensors[tensor]) // divisor
        return positive(path, key, value)

    heads = number("num_attention_heads")
    head_dim = number("head_dim", f"{_FIRST}self_attn.q_proj.weight", heads)
    hidden = number("hidden_size", "fc.weight")
    vocab_size, stored = number("vocab_size"), layers_in(tensors)
    return {
        "hidden_size": hidden,
        "intermediate_size": number("intermediate_size", f"{_FIRST}mlp.gate_proj.weight"),
        "heads": heads,
        "head_dim": head_dim,
        "kv_heads": number("num_key_value_heads", f"{_FIRST}self_attn.k_proj.weight", head_dim),
        "layers": positive(path, "num_hidden_layers", flat.get("num_hidden_layers", stored)),
        "vocab_size": vocab_size,
        "draft_vocab_size": _draft_size(config, tensors) or vocab_size,
        "target_hidden_size": config.get("target_hidden_size") or hidden,
        "eps": plain_eps(flat.get("rms_norm_eps", 1e-6)),
        "max_positions": number("max_position_embeddings"),
        "rope": read_rope(path, flat),
        "hidden_act": flat.get("hidden_act", "silu"),
        "qk_norm": kind == "qwen3" or f"{_FIRST}self_attn.q_norm.weight" in tensors,
        "attention_bias": bool(flat.get("attention_bias"))
        or f"{_FIRST}self_attn.q_proj.bias" in tensors,
    }


def positive(path: Path, key: str, value: int | None) -> int:
    """What the config or, where it is silent, the tensors say of ``key``; raises BadCheckpoint."""
    check_config(path, {key: value}, required=(key,))
    return value or 0


def layers_in(tensors: Mapping[str, Tensor]) -> int:
    """Decoder layers that have tensors."""
    found = (re.match(r"layers\.(\d+)\.", name) for name in tensors)
    return max((int(match[1]) + 1 for match in found if match), default=1)


def _draft_size(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
    if (size := config.get("draft_vocab_size")) is not None:
        return int(size)
    for name in ("lm_head.weight", "d2t"):
        if name in tensors:
            return len(tensors[name])
    return None


def read_rope(path: Path, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters from ``rope_parameters``, or from ``rope_scaling`` and ``rope_theta``.

    A config can hold both; then ``rope_parameters`` is the newer and wins.

    Raises:
        BadCheckpoint: a kind of scaling that Llama layers do not know.
    """
    rope = dict(section(flat, "rope_scaling")) | dict(section(flat, "rope_parameters"))
    rope = {key: value for key, value in rope.items() if value is not None}
    kind = rope.pop("type", None)
    rope.setdefault("rope_type", kind or "default")
    if rope["rope_type"] == "mrope":  # text alone moves along all its axes at once
        rope = {"rope_type": "default"} | {k: v for k, v in rope.items() if k == "rope_theta"}
    rope.setdefault("rope_theta", flat.get("rope_theta") or 10000.0)
    partial = rope.get("partial_rotary_factor", flat.get("partial_rotary_factor")) or 1.0
    if rope["rope_type"] not in _ROPES or partial != 1.0:
        raise broken(
            path,
            expected=f"rope_type {', '.join(_ROPES)}, over whole heads",
            got=f"{rope['rope_type']} over {partial:g} of each head",
            next_step="choose another head for this target",
        )
    return rope


def read_switches(
    config: Mapping[str, Any], layout: Layout, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, bool], list[str]]:
    """Switch fields of `EagleConfig`, and doubts about them."""
    nested = section(config, "eagle_config")
    switches, doubts = {}, []
    present = {
        "fc_norm": "fc_norm.0.weight" in tensors,
        "norm_before_fc": "input_norm.weight" in tensors,
    }
    for switch, keys in SWITCH_KEYS.items():
        said = [place[key] for place in (config, nested) for key in keys if key in place]
        said = [bool(value) for value in said if value is not None]
        default = layout.norm_before_residual if switch == "norm_before_residual" else False
        switches[switch] = said[0] if said else present.get(switch, default)
        if len(set(said)) > 1:
            doubts.append(f"{switch} is both on and off in config.json; {said[0]} is used")
        if present.get(switch) and not said:
            doubts.append(f"{switch} is not in config.json; its tensors are, so it is on")
        elif present.get(switch) and not switches[switch]:
            doubts.append(f"{switch} is off in config.json, but its tensors are there")
    if layout.name == "speculators" and "norm_before_residual" not in config:
        doubts.append("norm_before_residual is not in config.json; taken as on, as vLLM does")
    return switches, doubts


def feedback_is_open(config: Mapping[str, Any], layout: Layout) -> bool:
    """SpecForge up to 0.2.0 wrote ``norm_output: true`` for heads that were trained to feed back
    the raw state; later ones write it for the normed state. The file does not say which."""
    ours = section(config, "labkit").get("format")
    return layout.name == "specforge" and config.get("norm_output") is True and not ours


def general_doubts(config: Mapping[str, Any], layout: Layout, *, fused: int) -> list[str]:
    """What a careful reader would ask about the rest of the config."""
    flat = section(config, layout.shape_section)
    windows = "sliding_attention" in (flat.get("layer_types") or ())
    said = config.get("num_aux_hidden_states", fused)
    checks = (
        (windows, f"trained with a sliding window of {flat.get('sliding_window')} tokens; "
                  "here every token is seen"),
        (said != fused, f"num_aux_hidden_states is {said}, but fc takes {fused} states"),
        (bool(config.get("parallel_drafting")), "trained to draft in parallel (P-EAGLE); "
                                                "here it drafts token by token"),
        ((section(config, "eagle_config").get("parallel_draft_step") or 1) > 1,
         "has parallel draft heads; only the first step is used"),
        (layout.name == "specforge" and config.get("norm_output") is False,
         "norm_output is false: up to SpecForge 0.2.0 that left out the norm before the output "
         "layer; later it means EAGLE-3, and is read so"),
        (feedback_is_open(config, layout),
         "norm_output is true: up to SpecForge 0.2.0 heads were trained with the raw state fed "
         "back, later with the normed one; engines use the normed one; measure both"),
    )  # fmt: skip
    return [sentence for applies, sentence in checks if applies]
