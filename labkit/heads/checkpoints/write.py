"""From a head checkpoint to a folder that another engine reads.

Owns: the config of each format, and refusing what a format cannot say. Does not know: targets.
Invariants: a folder appears whole or not at all and never replaces one; tensors keep their bytes;
what a reader would ignore is refused by name, not dropped.
"""

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.errors import BadInput
from labkit.heads.checkpoints.files import CONFIG, TENSORS
from labkit.heads.checkpoints.layer_ids import KEY
from labkit.heads.checkpoints.layouts import (
    BOUNDARY,
    LAYER_OUTPUT,
    SWITCH_KEYS,
    Layout,
    layout_of,
    stored_name,
)
from labkit.heads.checkpoints.load import check_complete
from labkit.heads.checkpoints.read import OUTPUT
from labkit.heads.checkpoints.records import UNSETTLED, HeadCheckpoint, StoredHead
from labkit.heads.checkpoints.vocabulary import d2t_of, t2d_of
from labkit.heads.eagle import EagleConfig
from labkit.whole_file import save_tensors, writing

VERSION = 1


def write_checkpoint(
    checkpoint: HeadCheckpoint, path: Path | str, *, format: str = "safeailab"
) -> Path:
    """Write ``config.json`` and ``model.safetensors`` in a public format.

    Args:
        path: a folder that is not there yet, or is empty.
        format: one of `WRITABLE`. vllm and sglang are the layouts safeailab and specforge, cut
            down to what those engines compute.

    Returns:
        ``path``.

    Raises:
        BadInput: ``path`` holds something; the format cannot express the head; layer ids whose
            meaning is open. BadCheckpoint: tensors are missing or do not fit.
    """
    layout = layout_of(format)
    check_new(Path(path))
    check_complete(checkpoint)
    check_expressible(checkpoint, layout)
    return write_folder(path, _tensors(checkpoint, layout), _config(checkpoint, layout))


def write_folder(path: Path | str, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Write ``config.json`` and ``model.safetensors``, both or none.

    Raises:
        BadInput: ``path`` holds something, or cannot be written.
    """
    path = Path(path)
    check_new(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        save_tensors(part / TENSORS, tensors, metadata={"format": "pt"}, named=path / TENSORS)
        text = json.dumps(config, indent=2, sort_keys=True)
        with writing(path):
            (part / CONFIG).write_text(text + "\n", encoding="utf-8")
            part.chmod(0o755)  # mkdtemp's folders are for one user only
            part.rename(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return path


def check_new(path: Path) -> None:
    """Refuse a place where something is.

    Raises:
        BadInput: a file, or a folder that is not empty.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise BadInput(
            "output folder",
            expected="a folder that is new or empty",
            got=f"{path}, which holds something",
            next_step="name another folder",
        )


def check_expressible(checkpoint: HeadCheckpoint, layout: Layout) -> None:
    """Refuse a head that readers of the format would compute differently.

    Raises:
        BadInput: names what cannot be said, and which format can.
    """
    config = checkpoint.config
    extras = {
        **{name: getattr(config, name) for name in SWITCH_KEYS},
        "attention_bias": config.attention_bias,
        "fc_bias": config.fc_bias,
        "qk_norm": config.qk_norm,
        "layers": config.layers > 1,
        "own_width": config.target_hidden_size != config.hidden_size,
        "fused": len(config.boundaries) not in (0, 3),
    }
    unsaid = sorted(name for name, on in extras.items() if on and name not in layout.expresses)
    problems = (
        (config.version not in layout.versions, "an EAGLE-3 head", f"EAGLE-{config.version}"),
        (bool(unsaid), "a head without " + ", ".join(unsaid), "one with it"),
        (bool(checkpoint.alternatives), "layer ids and switches whose meaning is settled",
         f"{1 + len(checkpoint.alternatives)} readings"),
        (_lacks_output(checkpoint, layout), "a head that brings its output layer",
         "one that takes the target's"),
    )  # fmt: skip
    advice = (
        "choose --format safeailab",
        "choose --format safeailab or speculators",
        "say which with --layer-ids, after measuring both",
        "complete it with its target (--model)",
    )
    for (bad, expected, got), next_step in zip(problems, advice, strict=True):
        if bad:
            raise BadInput(f"format {layout.name}", expected=expected, got=got, next_step=next_step)


def _lacks_output(checkpoint: HeadCheckpoint, layout: Layout) -> bool:
    if OUTPUT not in checkpoint.borrowed or checkpoint.config.version == 1:
        return False
    return layout.needs_lm_head or (
        checkpoint.target is None
        and checkpoint.config.draft_vocab_size != checkpoint.config.vocab_size
    )


def _tensors(checkpoint: HeadCheckpoint, layout: Layout) -> dict[str, Tensor]:
    config, ids = checkpoint.config, checkpoint.vocab_ids
    found = {
        # copies: safetensors refuses tensors that share memory
        stored_name(name, layout): tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in checkpoint.tensors.items()
    }
    if layout.maps_always or config.draft_vocab_size != config.vocab_size:
        found["d2t"] = d2t_of(ids)
        if layout.stores_t2d:
            found["t2d"] = t2d_of(ids, vocab_size=config.vocab_size)
    return found


def _config(checkpoint: HeadCheckpoint, layout: Layout) -> dict[str, Any]:
    head = checkpoint.config
    dtype = most_common_dtype(checkpoint.tensors)
    shape = _shape(head)
    found: dict[str, Any] = {"architectures": [layout.architecture], "torch_dtype": dtype}
    if layout.shape_section:
        found |= {layout.shape_section: shape, **_speculators(checkpoint)}
    else:
        found |= shape | {"bias": head.fc_bias, "torch_dtype": dtype}
    found["draft_vocab_size"] = head.draft_vocab_size
    if head.target_hidden_size != head.hidden_size:
        found["target_hidden_size"] = head.target_hidden_size
    if len(head.boundaries) not in (0, 3):
        found["num_aux_hidden_states"] = len(head.boundaries)
    for switch in SWITCH_KEYS:
        # absent means off, except for speculators' residual; SpecForge once read "false" otherwise
        if getattr(head, switch) or (switch == "norm_before_residual" and layout.shape_section):
            found[switch] = getattr(head, switch)
    if layout.id_section:
        found[layout.id_section] = _eagle_section(layout)
    if head.boundaries and UNSETTLED not in head.boundaries:
        ids = [k - 1 if layout.ids == LAYER_OUTPUT else k for k in head.boundaries]
        _check_ids(ids, layout)
        place = found[layout.id_section] if layout.id_section else found
        place[KEY] = ids
    found["labkit"] = _labkit(checkpoint, layout)
    return found


def most_common_dtype(tensors: dict[str, Tensor]) -> str:
    """As configs name it, such as "bfloat16"."""
    kinds = Counter(str(t.dtype).removeprefix("torch.") for t in tensors.values())
    return kinds.most_common(1)[0][0]


def _shape(head: EagleConfig) -> dict[str, Any]:
    rope = dict(head.rope)
    theta = rope.get("rope_theta", 10000.0)
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {
        "model_type": "qwen3" if head.qk_norm else "llama",
        "hidden_size": head.hidden_size,
        "intermediate_size": head.intermediate_size,
        "num_attention_heads": head.heads,
        "num_key_value_heads": head.kv_heads,
        "head_dim": head.head_dim,
        "num_hidden_layers": head.layers,
        "vocab_size": head.vocab_size,
        "rms_norm_eps": head.eps,
        "max_position_embeddings": head.max_positions,
        "hidden_act": head.hidden_act,
        "attention_bias": head.attention_bias,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        # the newer key, and the two older ones that engines still read
        "rope_parameters": rope,
        "rope_theta": theta,
        "rope_scaling": None if rope.get("rope_type") == "default" else scaling,
    }


def _speculators(checkpoint: HeadCheckpoint) -> dict[str, Any]:
    verifier = checkpoint.target.name if checkpoint.target else None
    return {
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
    }


def _eagle_section(layout: Layout) -> dict[str, Any]:
    if layout.name != "modelopt":
        return {}
    return {
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }


def _check_ids(ids: list[int], layout: Layout) -> None:
    if min(ids) < 0:
        raise BadInput(
            f"format {layout.name}",
            expected="states after at least one layer, which ids of layer outputs can name",
            got="a head that reads the embedding (boundary 0)",
            next_step="choose --format safeailab or speculators",
        )


def _labkit(checkpoint: HeadCheckpoint, layout: Layout) -> dict[str, Any]:
    """What our own reader need not guess: the layout and what the ids in it mean."""
    entry: dict[str, Any] = {
        "format": "labkit-head",
        "version": VERSION,
        "layout": layout.name,
        "layer_ids": layout.ids or BOUNDARY,
    }
    return entry | ownership(checkpoint)


def ownership(checkpoint: StoredHead) -> dict[str, Any]:
    """What a head takes from its target, and which target that is."""
    entry: dict[str, Any] = {"borrowed": list(checkpoint.borrowed)}
    if checkpoint.target is not None:
        entry["target"] = checkpoint.target.name
        entry["target_fingerprint"] = checkpoint.target.fingerprint
    return entry
