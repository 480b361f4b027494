"""Published checkpoints with modules for multi-token prediction, in exactly their files' names.

The targets in them load without the modules, without code from the checkpoint, and leave the
modules where they are. Names and shapes: vLLM's loaders (``mimo_mtp.py``, ``qwen3_5_mtp.py``);
MiMo's settings and classes: XiaomiMiMo/MiMo-7B-RL, ``config.json`` and ``modeling_mimo.py``.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import mtp_files
import pytest
import torch
from helpers import greedy_reference, prompt_of, run
from safetensors.torch import load_file, save_file
from test_load import from_gguf, gguf  # noqa: F401  (a tokenizer)

from labkit.drafters.ngram import NGram
from labkit.drafters.shapes import DynamicTree
from labkit.errors import BadCheckpoint, BadInput, UnsupportedModel
from labkit.lab import presets
from labkit.lab.load import LoadedModel, load_model
from labkit.lab.session import Lab
from labkit.target import Target

PROMPT = prompt_of(9)


def write(
    folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], tokenizer: Any
) -> Path:
    """Two shards and an index, as published."""
    folder.mkdir()
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors":
              names[1::2]}  # fmt: skip
    for file, some in shards.items():
        save_file({n: tensors[n].contiguous() for n in some}, folder / file, {"format": "pt"})
    weight_map = {name: file for file, some in shards.items() for name in some}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def qwen(folder: Path, tokenizer: Any, **changes: Any) -> tuple[Path, Any]:
    """As Qwen3.5's dense models: a vision tower beside the language model, tied output rows."""
    model = deepcopy(mtp_files.target("hybrid"))
    model.lm_head.weight.data.copy_(model.model.embed_tokens.weight)
    text = {k: v for k, v in model.config.to_dict().items() if k != "architectures"}
    text |= {"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "tie_word_embeddings": True}
    vision = {"model_type": "qwen3_5", "depth": 1, "hidden_size": 16, "num_heads": 2}
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": vision,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    own = {
        "model.language_model." + name.removeprefix("model."): tensor
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    tower = {"model.visual.patch_embed.proj.weight": torch.ones(16, 3, 2, 16, 16)}
    return write(
        folder, config | changes, own | tower | mtp_files.weights("qwen"), tokenizer
    ), model


def mimo(folder: Path, tokenizer: Any, **changes: Any) -> tuple[Path, Any]:
    """As MiMo-7B: model type and classes of its own, in files that must not run."""
    model = mtp_files.target("mimo")
    config = {
        "architectures": ["MiMoForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_mimo.MiMoConfig",
            "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM",
        },
        "attention_bias": True,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": mtp_files.WIDE,
        "initializer_range": 0.02,
        "intermediate_size": mtp_files.INNER,
        "max_position_embeddings": 512,
        "max_window_layers": 2,
        "model_type": "mimo",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": mtp_files.VOCAB,
    }
    tensors = model.state_dict() | mtp_files.weights("mimo")
    written = write(folder, config | changes, tensors, tokenizer)
    for name in ("configuration_mimo.py", "modeling_mimo.py"):
        (folder / name).write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    return written, model


MAKERS = {"qwen": qwen, "mimo": mimo}
kinds = pytest.mark.parametrize("kind", MAKERS)


@pytest.fixture
def tokenizer(from_gguf: LoadedModel) -> Any:  # noqa: F811
    return from_gguf.tokenizer


@kinds
def test_the_target_loads_and_decodes_as_its_plain_model(
    kind: str, tokenizer: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make = MAKERS[kind]
    folder, plain = make(tmp_path / "model", tokenizer)
    loaded = load_model(folder, device="cpu", dtype="float32", linear="plain")
    assert capfd.readouterr() == ("", "")
    assert not (folder / "ran").exists()
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        theirs, ours = plain(ids, use_cache=False).logits, loaded.model(ids, use_cache=False).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
    target = Target(loaded.model)
    text = greedy_reference(plain, PROMPT, 12)
    assert run(target, NGram(), PROMPT, max_new_tokens=12, draft_length=3).tokens == text
    assert target.recurrent_layers == (1 if kind == "qwen" else 0)


@kinds
def test_its_modules_stay_where_they_are_and_are_named(
    kind: str, tokenizer: Any, tmp_path: Path
) -> None:
    make = MAKERS[kind]
    folder, _ = make(tmp_path / "model", tokenizer)
    loaded = load_model(folder, device="cpu")
    assert loaded.path == folder
    others = {name for name in loaded.beside if not name.startswith("model.visual.")}
    assert others == set(mtp_files.NAMES[kind])
    # unused means unused: no parameter of the model comes from them
    assert not any("mtp" in name or "visual" in name for name in loaded.model.state_dict())
    stored = {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}
    assert all(torch.equal(stored[name], t) for name, t in mtp_files.weights(kind).items())


def test_qwen_has_fifteen_tensors_in_its_module() -> None:
    assert len(mtp_files.QWEN_NAMES) == 15  # as published, e.g. guru87/Qwen3.5-2B-MTP


def test_mimo_reads_its_settings(tokenizer: Any, tmp_path: Path) -> None:
    """Negative control of the parity above: another base of the rotation is another model."""
    folder, plain = mimo(tmp_path / "model", tokenizer, rope_theta=640000)
    loaded = load_model(folder, device="cpu")
    ids = torch.tensor([PROMPT])
    assert not torch.allclose(loaded.model(ids).logits, plain(ids).logits, atol=1e-3)
    assert loaded.model.config.num_nextn_predict_layers == 1


def test_another_type_with_code_of_its_own_is_still_refused(tokenizer: Any, tmp_path: Path) -> None:
    folder, _ = mimo(tmp_path / "model", tokenizer, model_type="mimo_v9")
    with pytest.raises(UnsupportedModel, match="mimo_v9"):
        load_model(folder, device="cpu")
    assert not (folder / "ran").exists()


@kinds
def test_a_weight_that_is_missing_is_not_filled_with_random_numbers(
    kind: str, tokenizer: Any, tmp_path: Path
) -> None:
    make = MAKERS[kind]
    folder, _ = make(tmp_path / "model", tokenizer)
    for file in folder.glob("*.safetensors"):
        kept = {n: t for n, t in load_file(file).items() if "layers.1.mlp.up_proj" not in n}
        save_file(kept, file, {"format": "pt"})
    with pytest.raises(BadCheckpoint, match=r"layers\.1\.mlp\.up_proj"):
        load_model(folder, device="cpu")


@kinds
def test_the_modules_draft_for_their_own_target(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    folder, plain = MAKERS[kind](tmp_path / "model", tokenizer)
    bench = Lab(load_model(folder, device="cpu", dtype="float32", linear="plain"))
    trace = bench.record(PROMPT, method="mtp", max_new_tokens=12, eos=None)
    assert trace.tokens == greedy_reference(plain, PROMPT, 12)
    assert sum(len(r.drafted.tokens) - 1 for r in trace.rounds) > 12


@pytest.mark.parametrize(
    ("method", "shape"), [("medusa", None), ("eagle2", None), ("mtp", DynamicTree())]
)
def test_trees_for_a_hybrid_target_are_refused_before_a_head_is_read(
    method: str, shape: Any, tokenizer: Any, tmp_path: Path
) -> None:
    folder, _ = qwen(tmp_path / "model", tokenizer)
    bench = Lab(load_model(folder, device="cpu"), shape=shape, head=str(tmp_path / "no head"))
    with pytest.raises(BadInput, match=r"expected chains.*1 layer.*--chain"):
        bench.record(PROMPT, method=method)
    assert bench.target.forwards == 0


# --- presets --------------------------------------------------------------------------------------


def test_models_with_modules_are_chosen_by_memory() -> None:
    def best(gigabytes: float) -> str:
        fit = presets.native_mtp_that_fit(int(gigabytes * 1e9))
        return fit[0].name if fit else ""

    assert best(80) == "mimo-7b"
    assert best(24) == "mimo-7b"  # an L4 or 3090
    assert best(15) == "qwen3.5-4b"  # a T4
    assert best(8) == "qwen3.5-2b"
    assert best(4) == "qwen3.5-0.8b"
    assert best(1) == ""
    everything = presets.native_mtp_that_fit(10**12)
    assert [p.name for p in everything] == ["mimo-7b", "qwen3.5-4b", "qwen3.5-2b", "qwen3.5-0.8b"]
    assert all(p.mtp and isinstance(p.source, presets.HubSource) for p in everything)
    assert not any(p.source.gated for p in everything if isinstance(p.source, presets.HubSource))


def test_memory_in_full_precision_is_twice_that_of_half() -> None:
    fits = presets.native_mtp_that_fit(15_000_000_000, bytes_per_number=4)
    assert fits[0].name == "qwen3.5-2b"
