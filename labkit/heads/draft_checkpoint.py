"""The lab's own format for a small draft model that borrows from its target.

Owns: ``config.json`` and ``model.safetensors``, and how both become a runnable model again.
Does not know: training, drafting, caches.
Invariants: what equals the target's (embedding and output rows) is taken from the target and never
stored; every other parameter is NaN until the file has filled it, so a missing tensor cannot pass
for a random one; draft id i means target id ``vocab_ids[i]``.

``d2t`` is an offset, as in published heads: target id = draft id + d2t[draft id].

    vocab_ids   3  7  11  20
    draft id    0  1   2   3
    d2t         3  6   9  17
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from labkit.errors import BadCheckpoint, BadInput, UnsupportedModel
from labkit.heads.config_keys import WHOLE, WIDE, wrong_key
from labkit.heads.layers import plain_eps
from labkit.whole_file import save_tensors, whole, writing

FORMAT = "labkit-draft"
VERSION = 1
SHARED = ("model.embed_tokens.weight", "lm_head.weight")
CONFIG = "config.json"
TENSORS = "model.safetensors"
_FINGERPRINT_ROWS = 256


@dataclass(frozen=True)
class DraftWeights:
    """A draft model and the meaning of its ids.

    Attributes:
        model: a Llama in eval mode that reads target ids and returns logits [B, T, D] over D
            draft ids.
        vocab_ids: int64 [D], the target id of each draft id, ascending; on the model's device.
    """

    model: LlamaForCausalLM
    vocab_ids: Tensor


def target_fingerprint(target_model: Any) -> str:
    """SHA-256 of the signs of the first 256 embedding rows.

    Signs outlive rounding to any dtype, which values do not, and two models of one shape do not
    share 256 x hidden_size of them by chance.
    """
    rows = target_model.get_input_embeddings().weight[:_FINGERPRINT_ROWS].detach()
    return hashlib.sha256(torch.signbit(rows).cpu().numpy().tobytes()).hexdigest()


def draft_config(target_model: Any, *, layers: int) -> LlamaConfig:
    """The target's configuration with ``layers`` layers and untied weights.

    Raises:
        UnsupportedModel: the target is not a Llama, so its layers cannot seed a Llama's.
    """
    kind = target_model.config.model_type
    if kind != "llama":
        raise UnsupportedModel(
            "target of a trained draft model",
            expected="a model of type llama",
            got=f"type {kind}",
            next_step="choose a Llama-type target, or a published draft model for this one",
        )
    settings = target_model.config.to_dict()
    # where the target's files lay is nobody's business, and differs from machine to machine
    for private in ("_name_or_path", "_model_name_or_path"):
        settings.pop(private, None)
    eps = plain_eps(settings["rms_norm_eps"])
    settings.update(num_hidden_layers=layers, tie_word_embeddings=False, rms_norm_eps=eps)
    return LlamaConfig.from_dict(settings)


def build_draft(
    target_model: Any,
    vocab_ids: Tensor,
    *,
    layers: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> LlamaForCausalLM:
    """A draft model of ``layers`` layers: borrowed weights in place and frozen, the rest NaN.

    The embedding is the target's own memory where dtype and device agree.
    """
    vocabulary = target_model.config.vocab_size
    model = _of_one_word(target_model, layers=layers)
    nn.Module.to(model, device=device, dtype=dtype)  # transformers' own wrapper has no types
    model.config.vocab_size = vocabulary
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    embedding = target_model.get_input_embeddings().weight.detach()
    output = target_model.get_output_embeddings().weight.detach()
    rows = output[vocab_ids.to(output.device)]
    model.model.embed_tokens = nn.Embedding.from_pretrained(embedding.to(device, dtype))
    head = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    head.weight = nn.Parameter(rows.to(device, dtype), requires_grad=False)
    model.lm_head = head
    return model.eval()


def _of_one_word(target_model: Any, *, layers: int) -> LlamaForCausalLM:
    """Both weights of the vocabulary's size are the target's, and take the place of these."""
    config = draft_config(target_model, layers=layers)
    config.vocab_size, config.pad_token_id = 1, None
    return LlamaForCausalLM(config)


def stored_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter of all that the target does not already hold."""
    return {name: p for name, p in model.named_parameters() if name not in SHARED}


def save_draft_checkpoint(
    path: Path, model: LlamaForCausalLM, *, vocab_ids: Tensor, target_model: Any, target: str
) -> None:
    """Write ``config.json`` and ``model.safetensors`` (bfloat16), each whole or not at all.

    Args:
        path: folder, made if needed; files of the same name are replaced.
        vocab_ids: int64 [D], ascending target ids.
        target: the target's name, for people; the fingerprint is what is checked.

    Raises:
        BadInput: they cannot be written.
    """
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    settings = draft_config(target_model, layers=model.config.num_hidden_layers).to_dict()
    settings.update(architectures=["LlamaForCausalLM"], dtype="bfloat16")
    settings["labkit"] = {
        "format": FORMAT,
        "version": VERSION,
        "target": target,
        "draft_vocab_size": len(vocab_ids),
        "shared_with_target": list(SHARED),
        "target_fingerprint": target_fingerprint(target_model),
    }
    tensors = {
        name: p.detach().to("cpu", torch.bfloat16).contiguous()
        for name, p in stored_parameters(model).items()
    }
    tensors["d2t"] = vocab_ids.cpu() - torch.arange(len(vocab_ids))
    save_tensors(path / TENSORS, tensors, metadata={"format": "pt"})
    write_json(path / CONFIG, settings)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` with sorted keys; the file is replaced whole or not at all."""
    text = json.dumps(value, indent=2, sort_keys=True) + "\n"
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


def load_draft_checkpoint(
    path: Path | str, *, target_model: Any, dtype: torch.dtype, device: torch.device | str
) -> DraftWeights:
    """Read a draft model and complete it with its target's weights.

    Raises:
        BadCheckpoint: files that are missing, broken, of another format, or incomplete.
        BadInput: the draft model was trained for another target.
        UnsupportedModel: the target is not a Llama.
    """
    path = Path(path)
    settings = _read_settings(path)
    _check_target(path, settings, target_model)
    tensors = _read_tensors(path)
    vocab_ids = _vocab_ids(path, tensors, settings)
    layers = settings["num_hidden_layers"]
    with torch.device("meta"):  # no memory, however many layers the file promises
        promised = _of_one_word(target_model, layers=layers)
    _check_tensors(path, tensors, stored_parameters(promised))
    model = build_draft(target_model, vocab_ids, layers=layers, dtype=dtype, device=device)
    wanted = stored_parameters(model)
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(tensors[name])
            parameter.requires_grad_(False)
    for name, parameter in wanted.items():  # also what is too large for ``dtype``
        if not bool(torch.isfinite(parameter).all()):
            raise _broken(path, f"finite numbers in {name}", "NaN or infinity")
    return DraftWeights(model, vocab_ids.to(device))


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _broken(path, f"a folder with {CONFIG} and {TENSORS}", f"no {CONFIG}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(path, f"JSON in {CONFIG}", str(error)) from error
    ours = settings.get("labkit") if isinstance(settings, dict) else None
    if not isinstance(ours, dict) or ours.get("format") != FORMAT:
        raise _broken(path, f"format {FORMAT} in {CONFIG}", "a checkpoint of another kind")
    if ours.get("version") != VERSION:
        raise BadCheckpoint(
            f"draft model {path}",
            expected=f"format version {VERSION}",
            got=f"version {ours.get('version')}",
            next_step="use the labkit version that wrote it, or train it again",
        )
    if wrong := wrong_key(settings, required=("num_hidden_layers", "labkit.draft_vocab_size")):
        raise _broken(path, f"{wrong.expected} as {wrong.key} in {CONFIG}", wrong.got)
    return settings


def _check_target(path: Path, settings: dict[str, Any], target_model: Any) -> None:
    config = draft_config(target_model, layers=settings["num_hidden_layers"])
    pairs = {
        key: (settings.get(key), getattr(config, key))
        for key in ("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads")
    }
    pairs["fingerprint"] = (
        settings["labkit"].get("target_fingerprint"),
        target_fingerprint(target_model),
    )
    for what, (file, model) in pairs.items():
        if file != model:
            raise BadInput(
                f"target of draft model {path}",
                expected=f"{settings['labkit'].get('target')} with {what} {file}",
                got=f"a model with {what} {model}",
                next_step="load the target it was trained for, or train a draft model for this one",
            )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path / TENSORS)
    except FileNotFoundError:
        raise _broken(path, f"a folder with {CONFIG} and {TENSORS}", f"no {TENSORS}") from None
    except (OSError, SafetensorError) as error:
        raise _broken(path, f"a safetensors file {TENSORS}", str(error)) from error


def _vocab_ids(path: Path, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Tensor:
    offsets = tensors.pop("d2t", None)
    size = settings["labkit"].get("draft_vocab_size")
    if offsets is None or offsets.shape != (size,) or offsets.dtype not in WHOLE:
        got = "none" if offsets is None else f"{offsets.dtype} of shape {tuple(offsets.shape)}"
        raise _broken(path, f"a tensor d2t of {size} offsets", got)
    ids = offsets.long() + torch.arange(len(offsets))
    ascending = bool((ids[1:] > ids[:-1]).all())
    if not ascending or int(ids[0]) < 0 or int(ids[-1]) >= settings["vocab_size"]:
        raise _broken(path, "ascending target ids in d2t", f"ids {ids[:4].tolist()}... and others")
    return ids


def _check_tensors(path: Path, tensors: dict[str, Tensor], wanted: dict[str, nn.Parameter]) -> None:
    missing = sorted(wanted.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - wanted.keys())
    if missing or unexpected:
        got = "; ".join(
            f"{len(names)} {what}, first {names[0]}"
            for what, names in (("missing", missing), ("unexpected", unexpected))
            if names
        )
        raise _broken(path, f"exactly {len(wanted)} tensors and d2t in {TENSORS}", got)
    for name, parameter in wanted.items():
        found = tensors[name]
        if found.shape != parameter.shape:
            expected = f"{name} of shape {tuple(parameter.shape)}"
            raise _broken(path, expected, f"shape {tuple(found.shape)}")
        if found.dtype not in WIDE:
            got = str(found.dtype).removeprefix("torch.")
            raise _broken(path, f"{name} in 16 bits or more", got)
        if not bool(torch.isfinite(found).all()):
            raise _broken(path, f"finite numbers in {name}", "NaN or infinity")


def _broken(path: Path, expected: str, got: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"draft model {path}",
        expected=expected,
        got=got,
        next_step="copy the folder again from where it came, or train it with `labkit train draft`",
    )
