"""What the keys of a head's config.json may hold: one table for every layout.

Owns: the kind and the range of each key that any reader of heads looks at, and the widths in which
tensors may be stored.
Does not know: which layout reads which key, what is taken where one is missing, files.
Invariants: values are judged before anything is made of them. The ranges end far beyond all
published heads, and low enough that nothing of that size fills a memory or takes minutes to make.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers.activations import ACT2FN

from labkit.heads.layers import FINAL
from labkit.heads.mtp import LAST
from labkit.kinds import (
    OBJECT,
    TEXT,
    TRUTH,
    Kind,
    Wrong,
    first_wrong,
    keys,
    list_of,
    number,
    one_of,
    whole_from,
)

_WIDTH, _WORDS, _HEADS = whole_from(1, 2**20), whole_from(1, 2**22), whole_from(1, 4096)
_LAYERS, _STEPS, _POSITIONS = whole_from(1, 256), whole_from(1, 128), whole_from(1, 2**31)
_FACTOR, _EPS = number(above=0), number(above=0, most=1)
_HEAD_DIM = whole_from(2, 8192, even=True)  # rotary positions turn pairs
_IDS = list_of(whole_from(0, 1024))
_VERSION = Kind(
    expected="1, the version that this labkit reads,",
    holds=lambda value: type(value) is int and value == 1,
)
_ACTIVATION = Kind(
    expected="an activation of transformers, such as silu",
    holds=lambda value: isinstance(value, str) and value in ACT2FN,
)
_ROPE: Mapping[str, Kind] = {
    "rope_type": TEXT,
    "type": TEXT,
    "rope_theta": _FACTOR,
    "partial_rotary_factor": number(above=0, most=1),
    "factor": _FACTOR,
    "low_freq_factor": _FACTOR,
    "high_freq_factor": _FACTOR,
    "original_max_position_embeddings": _POSITIONS,
    "attention_factor": _FACTOR,
    "beta_fast": _FACTOR,
    "beta_slow": _FACTOR,
    "mscale": number(),
    "mscale_all_dim": number(),
    "short_factor": list_of(_FACTOR),
    "long_factor": list_of(_FACTOR),
    "truncate": TRUTH,
}
_LAYER: Mapping[str, Kind] = {
    "model_type": TEXT,
    "hidden_size": _WIDTH,
    "intermediate_size": _WORDS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "head_dim": _HEAD_DIM,
    "num_hidden_layers": _LAYERS,
    "vocab_size": _WORDS,
    "max_position_embeddings": _POSITIONS,
    "rms_norm_eps": _EPS,
    "hidden_act": _ACTIVATION,
    "attention_bias": TRUTH,
    "rope_theta": _FACTOR,
    "partial_rotary_factor": _ROPE["partial_rotary_factor"],
    "rope_scaling": keys(_ROPE),
    "rope_parameters": keys(_ROPE),
    "layer_types": list_of(TEXT),
}
_EAGLE: Mapping[str, Kind] = {
    "draft_vocab_size": _WORDS,
    "target_hidden_size": _WIDTH,
    "num_aux_hidden_states": _LAYERS,
    "eagle_aux_hidden_state_layer_ids": _IDS,
    "fc_norm": TRUTH,
    "use_aux_norm": TRUTH,
    "norm_output": TRUTH,
    "return_hidden_post_norm": TRUTH,
    "norm_before_fc": TRUTH,
    "norm_before_residual": TRUTH,
    "use_aux_hidden_state": TRUTH,
    "parallel_drafting": TRUTH,
    "parallel_draft_step": _STEPS,
}
_PARALLEL: Mapping[str, Kind] = {
    "num_heads": _STEPS,
    "medusa_num_heads": _STEPS,
    "medusa_num_layers": _LAYERS,
    "truncated_vocab_size": _WORDS,
    "medusa_fc_bias": TRUTH,
    "original_lm_head": TRUTH,
}
_BLOCK: Mapping[str, Kind] = {
    "hidden_size": _WIDTH,
    "intermediate_size": _WORDS,
    "heads": _HEADS,
    "kv_heads": _HEADS,
    "head_dim": _HEAD_DIM,
    "eps": _EPS,
    "max_positions": _POSITIONS,
    "rope": keys(_ROPE),
    "hidden_act": _ACTIVATION,
    "attention_bias": TRUTH,
    "qk_norm": TRUTH,
}
_OURS: Mapping[str, Kind] = {
    "format": TEXT,
    "version": _VERSION,
    "layout": TEXT,
    "layer_ids": TEXT,
    "borrowed": list_of(TEXT),
    "target": TEXT,
    "target_fingerprint": TEXT,
    "kind": TEXT,
    "shared_output": TRUTH,
    "block": keys(
        _BLOCK, required=("hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim")
    ),
    "draft_vocab_size": _WORDS,
    "norm_adds_one": TRUTH,
    "hidden_first": TRUTH,
    "state": one_of((FINAL, LAST)),
    "recycles_normed": TRUTH,
    "masks_first": TRUTH,
}
_CONFIG: Mapping[str, Kind] = {
    **_LAYER,
    **_EAGLE,
    **_PARALLEL,
    "num_mtp_layers": _STEPS,
    "architectures": list_of(TEXT),
    "speculators_model_type": TEXT,
    "quantization_config": OBJECT,
    "eagle_config": keys({**_LAYER, **_EAGLE}),
    "transformer_layer_config": keys(_LAYER),
    "labkit": keys(_OURS),
}
WIDE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What weights are stored in."""
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""What vocabulary maps are stored in."""
MARKS = ("architectures", "speculators_model_type", "quantization_config", "eagle_config", "labkit")
"""Keys that tell what kind of head a folder holds, before the others are looked at."""


def wrong_key(config: Mapping[str, Any], *, required: tuple[str, ...] = ()) -> Wrong | None:
    """The first key whose value is not of its kind; required: keys that must be there, those
    inside another as ``labkit.state``."""
    if found := first_wrong(config, _CONFIG):
        return found
    for name in required:
        place, _, last = name.rpartition(".")
        values = config.get(place) or {} if place else config
        table = _CONFIG[place].keys if place else _CONFIG
        if values.get(last) is None:
            return Wrong(name, table[last].expected, "none")
    return None
