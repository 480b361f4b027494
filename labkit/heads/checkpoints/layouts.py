"""The public formats of EAGLE heads, as one table.

Owns: names, prefixes, config nesting, id conventions and switch keys of each format, and how a
format is told from another. Does not know: tensors' contents, files.
Invariants: every name maps to one of `EagleHead.state_dict`, ``d2t``, ``t2d`` or itself; formats
with the same keys name each other as alternatives.

Sources: SafeAILab/EAGLE (cb7e084), SpecForge 0.2.0, speculators 0.9.0, nvidia-modelopt 0.47.0
(``hf_spec_export.py``, ``mcore_llama.py``), TorchSpec, NeMo Automodel (``draft_llama.py``), and
what vLLM 0.32 and SGLang 0.5.23 read.

    one layer        SafeAILab  midlayer.self_attn...      speculators  layers.0.self_attn...
                     Megatron   midlayer.self_attn...      NeMo         model.layers.0.self_attn...
    layer i > 0      layers.i.self_attn...; Megatron: midlayer.i.self_attn..., where hidden_norm
                     is what others call input_layernorm
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.errors import BadInput, UnsupportedModel
from labkit.heads import formats
from labkit.heads.checkpoints.files import broken, check_config
from labkit.heads.config_keys import MARKS

BOUNDARY, LAYER_OUTPUT = "boundary", "layer_output"
CONVENTIONS = (BOUNDARY, LAYER_OUTPUT)
"""What a layer id counts: layers passed, or the layer (from 0) whose output is meant."""

SWITCH_KEYS: Mapping[str, tuple[str, ...]] = {
    "fc_norm": ("fc_norm", "use_aux_norm"),
    "norm_output": ("norm_output", "return_hidden_post_norm"),
    "norm_before_fc": ("norm_before_fc",),
    "norm_before_residual": ("norm_before_residual",),
}
"""Switch of `EagleConfig` -> keys that stand for it, at top level or in ``eagle_config``."""

_ALL = frozenset(
    {*SWITCH_KEYS, "attention_bias", "fc_bias", "qk_norm", "layers", "own_width", "fused"}
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One format.

    Attributes:
        architecture: written to ``architectures``.
        first, later: prefixes of the first and of the i-th layer.
        shape_section: config section with the shapes of the layer; "" is the top level.
        id_section: config section with the layer ids.
        ids: convention of the ids; None: not known.
        norm_before_residual: what a missing key means.
        stores_t2d: whether ``t2d`` is written. maps_always: also when it says nothing.
        needs_lm_head: EAGLE-3 heads must bring their output layer.
        expresses: switches and shapes that readers of this format understand.
        versions: of heads that can be written; () : read only.
    """

    name: str
    architecture: str = "LlamaForCausalLMEagle3"
    first: str = "midlayer."
    later: str = "layers.{}."
    shape_section: str = ""
    id_section: str = ""
    ids: str | None = LAYER_OUTPUT
    norm_before_residual: bool = False
    stores_t2d: bool = True
    maps_always: bool = False
    needs_lm_head: bool = True
    expresses: frozenset[str] = _ALL
    versions: tuple[int, ...] = ()


_SAFEAILAB = Layout(
    name="safeailab",
    architecture="LlamaForCausalLM",
    ids=BOUNDARY,
    needs_lm_head=False,
    versions=(1, 3),
)
_SPECFORGE = Layout(
    name="specforge",
    id_section="eagle_config",
    maps_always=True,
    expresses=frozenset({"fc_norm", "norm_output", "own_width"}),
    versions=(3,),
)
_SPECULATORS = Layout(
    name="speculators",
    architecture="Eagle3Speculator",
    first="layers.0.",
    shape_section="transformer_layer_config",
    ids=BOUNDARY,
    norm_before_residual=True,
    expresses=frozenset({*SWITCH_KEYS, "attention_bias", "qk_norm", "layers", "fused"}),
    versions=(3,),
)
_MODELOPT = Layout(
    name="modelopt",
    first="layers.0.",
    id_section="eagle_config",
    stores_t2d=False,
    expresses=frozenset({"attention_bias", "layers"}),
    versions=(3,),
)
LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        _SAFEAILAB,
        _SPECFORGE,
        _SPECULATORS,
        _MODELOPT,
        replace(_MODELOPT, name="modelopt-megatron", first="midlayer.", later="midlayer.{}.",
                versions=()),
        replace(_SPECFORGE, name="torchspec", versions=()),
        Layout(name="nemo", first="model.layers.0.", later="model.layers.{}.", ids=None),
        # two engines, each a public layout cut down to what the engine computes
        replace(_SAFEAILAB, name="vllm", needs_lm_head=True,
                expresses=_ALL - {"fc_bias", "qk_norm"}),
        replace(_SPECFORGE, name="sglang",
                expresses=frozenset({"fc_norm", "norm_output", "norm_before_fc", "fc_bias",
                                     "attention_bias", "own_width"})),
    )
}  # fmt: skip
WRITABLE = formats.EAGLE
FORMATS = tuple(name for name in LAYOUTS if name not in ("vllm", "sglang"))

_MODELOPT_KEYS = {
    "use_aux_hidden_state",
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
}
_AUX_NORMS = {"low": 0, "mid": 1, "high": 2}


@dataclass(frozen=True)
class Detected:
    """A format and what gave it away."""

    layout: Layout
    decided_by: str
    alternatives: tuple[str, ...] = ()


def layout_of(name: str) -> Layout:
    """The layout to write.

    Raises:
        BadInput: unknown, or one that is only read.
    """
    if name not in WRITABLE:
        raise BadInput(
            "format", expected=", ".join(WRITABLE), got=repr(name), next_step="choose one of these"
        )
    return LAYOUTS[name]


def canonical_name(name: str) -> str:
    """The name in `EagleHead.state_dict` of a tensor of any format.

    >>> canonical_name("model.layers.0.hidden_norm.weight")
    'layers.0.hidden_norm.weight'
    """
    name = name.removeprefix("model.")
    if found := re.fullmatch(r"aux_norm_(low|mid|high)\.weight", name):
        return f"fc_norm.{_AUX_NORMS[found[1]]}.weight"
    if found := re.match(r"midlayer\.(\d+)\.", name):
        rest = name[found.end() :]
        if int(found[1]) > 0:  # Megatron calls the only norm of later layers hidden_norm
            rest = rest.replace("hidden_norm.", "input_layernorm.")
        return f"layers.{found[1]}.{rest}"
    return re.sub(r"^midlayer\.", "layers.0.", name)


def stored_name(name: str, layout: Layout) -> str:
    """The name under which ``layout`` stores a tensor of `EagleHead.state_dict`."""
    if name.startswith("layers.0."):
        return layout.first + name.removeprefix("layers.0.")
    if found := re.match(r"layers\.(\d+)\.", name):
        return layout.later.format(found[1]) + name[found.end() :]
    return name


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object of a config; empty when there is none. "" is the config itself."""
    found = config.get(name) if name else config
    return found if isinstance(found, dict) else {}


def detect(path: Path, config: Mapping[str, Any], names: Iterable[str]) -> Detected:
    """Tell the format by the config's keys, its architecture and the names of the tensors.

    Raises:
        BadCheckpoint: not an EAGLE head. UnsupportedModel: a head that this lab cannot compute.
    """
    names = tuple(names)
    check_config(path, {key: config.get(key) for key in MARKS})
    _refuse_other_heads(path, config, names)
    ours = str(section(config, "labkit").get("layout"))
    if ours in LAYOUTS:
        return Detected(LAYOUTS[ours], "the labkit entry in config.json")
    if "speculators_model_type" in config:
        return Detected(_SPECULATORS, "speculators_model_type in config.json")
    if any(name.startswith("model.") for name in names):
        return Detected(LAYOUTS["nemo"], "tensor names with the prefix model.")
    if "_torchspec_version" in config:
        return Detected(LAYOUTS["torchspec"], "_torchspec_version in config.json")
    middle = any(name.startswith("midlayer.") for name in names)
    if marks := sorted(_MODELOPT_KEYS & section(config, "eagle_config").keys()):
        found = LAYOUTS["modelopt-megatron"] if middle else _MODELOPT
        return Detected(found, f"{marks[0]} in eagle_config")
    return _by_architecture(config, names, middle=middle)


def _by_architecture(
    config: Mapping[str, Any], names: tuple[str, ...], *, middle: bool
) -> Detected:
    eagle3 = "LlamaForCausalLMEagle3" in (config.get("architectures") or ())
    named = "architectures and tensor names"
    if eagle3 and middle:
        if "d2t" in names and "t2d" not in names:
            why = f"{named}; d2t without t2d"
            return Detected(LAYOUTS["modelopt-megatron"], why, ("specforge", "torchspec"))
        return Detected(_SPECFORGE, named, ("torchspec",))
    if eagle3:
        return Detected(_MODELOPT, named, ("torchspec",))
    if not middle and any("hidden_norm" in name for name in names):
        return Detected(_MODELOPT, "tensor names only", ("torchspec", "safeailab"))
    return Detected(_SAFEAILAB, "tensor names; no mark of another format")


def _refuse_other_heads(path: Path, config: Mapping[str, Any], names: tuple[str, ...]) -> None:
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise _unsupported(path, f"speculators_model_type {kind}")
    if section(config, "labkit").get("format") == "labkit-draft":
        raise broken(
            path,
            expected="an EAGLE head",
            got="a draft model of this lab",
            next_step="name it with --draft",
        )
    if mla := sorted(name for name in names if "kv_a_proj_with_mqa" in name or "kv_b_proj" in name):
        raise _unsupported(path, f"multi-head latent attention ({mla[0]})")
    if config.get("quantization_config"):
        raise _unsupported(path, "quantised weights (quantization_config)")
    if section(config, "eagle_config").get("use_aux_hidden_state") is False:
        raise _unsupported(path, "a head on the last state only (use_aux_hidden_state false)")
    known = {canonical_name(name) for name in names}
    if biased := sorted(n for n in known if ".mlp." in n and n.endswith("_proj.bias")):
        raise _unsupported(path, f"biases in its feed-forward part ({biased[0]})")
    if not {"fc.weight", "layers.0.hidden_norm.weight"} & known:
        raise broken(
            path,
            expected="an EAGLE head: fc.weight and one decoder layer",
            got=f"{len(names)} tensors, first {min(names, default='none')}",
            next_step="name the folder of an EAGLE head",
        )


def _unsupported(path: Path, got: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"head {path}",
        expected="an EAGLE head with Llama- or Qwen3-style layers in full precision",
        got=got,
        next_step="choose another head for this target, or train one with `labkit train`",
    )
