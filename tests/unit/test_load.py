"""Names, folders and files become models; what is broken or unsafe is refused before weights."""

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_gguf import LAYERS, NEWLINE, q4_1_by_hand, tensors, vocabulary, write_gguf
from torch import nn
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    dynamic_module_utils,
)

from labkit.devices import Memory
from labkit.errors import BadCheckpoint, BadInput, OutOfMemory, UnsupportedModel
from labkit.kernels import SkinnyLinear
from labkit.lab import load as loading
from labkit.lab.load import LoadedModel, count_parameters, load_model
from labkit.lab.pull import save_model


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf")


@pytest.fixture(scope="module")
def from_gguf(gguf: Path) -> LoadedModel:
    return load_model(gguf, device="cpu", linear="plain")


@pytest.fixture(scope="module")
def folder(from_gguf: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    save_model(from_gguf.model, from_gguf.tokenizer, made)
    return made


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# --- what is handed over --------------------------------------------------------------------------


def test_a_folder_is_loaded_ready_for_decoding(folder: Path) -> None:
    loaded = load_model(folder, device="cpu")
    assert loaded.name == str(folder)
    assert loaded.dtype == torch.float32
    assert loaded.device == torch.device("cpu")
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.eos_ids == (2,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.name = "other"  # type: ignore[misc]


def test_a_gguf_file_and_the_folder_made_from_it_are_the_same_model(
    from_gguf: LoadedModel, folder: Path
) -> None:
    ours = load_model(folder, device="cpu", linear="plain")
    ids = from_gguf.tokenizer("the 42\n\n2", return_tensors="pt").input_ids
    assert torch.equal(ids, ours.tokenizer("the 42\n\n2", return_tensors="pt").input_ids)
    assert torch.equal(from_gguf.model(ids).logits, ours.model(ids).logits)
    assert len(ours.model.model.layers) == LAYERS


def test_gguf_weights_are_those_decoded_by_hand(from_gguf: LoadedModel) -> None:
    expected = torch.from_numpy(q4_1_by_hand(tensors()["token_embd.weight"]))
    assert torch.equal(from_gguf.model.model.embed_tokens.weight, expected)


def test_files_beside_a_gguf_are_not_read(gguf: Path, tmp_path: Path) -> None:
    lone = Path(shutil.copy(gguf, tmp_path / "tiny.gguf"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    (tmp_path / "config.json").write_text("{broken")
    loaded = load_model(lone, device="cpu")
    assert loaded.eos_ids == (2,)
    assert vocabulary().index(2 * NEWLINE) in loaded.tokenizer("a\n\n2").input_ids


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes_are_obeyed(folder: Path, dtype: str) -> None:
    loaded = load_model(folder, device="cpu", dtype=dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {getattr(torch, dtype)}


def test_several_end_ids_are_gathered(copy: Path) -> None:
    path = copy / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [7, 5]}))
    assert load_model(copy, device="cpu").eos_ids == (2, 5, 7)


@pytest.mark.parametrize(
    ("linear", "capability", "expected"),
    [("auto", "AVX2", SkinnyLinear), ("auto", "AVX512", nn.Linear), ("plain", "AVX2", nn.Linear),
     ("skinny", "AVX512", SkinnyLinear)],
)  # fmt: skip
def test_linear_layers_can_be_chosen(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    linear: loading.Linear,
    capability: str,
    expected: type[nn.Module],
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    loaded = load_model(folder, device="cpu", linear=linear)
    assert loaded.linear == ("skinny" if expected is SkinnyLinear else "plain")
    assert type(loaded.model.lm_head) is expected
    plain = load_model(folder, device="cpu", linear="plain")
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(
        loaded.model(ids).logits, plain.model(ids).logits, atol=1e-5, rtol=1e-5
    )


def test_half_precision_keeps_plain_layers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert load_model(folder, device="cpu", dtype="bfloat16").linear == "plain"


def test_loading_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(folder, device="cpu")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


# --- what is refused ------------------------------------------------------------------------------


def test_a_bad_choice_of_linear_is_named(folder: Path) -> None:
    with pytest.raises(BadInput, match="auto, plain or skinny"):
        load_model(folder, linear="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "a/b/c", "~/none", "none.gguf"])
def test_paths_that_are_not_there_are_not_looked_up_on_the_hub(name: str) -> None:
    with pytest.raises(BadInput, match="which is not there"):
        load_model(name, device="cpu")


def test_pickled_weights_are_refused_and_stay_closed(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(BadCheckpoint, match="pickles") as caught:
        load_model(copy, device="cpu")
    assert "pytorch_model.bin" in str(caught.value)
    assert "convert" in str(caught.value)
    with pytest.raises(BadCheckpoint, match="never opened"):
        load_model(copy / "pytorch_model.bin", device="cpu")


def test_safetensors_are_used_although_a_pickle_lies_beside_them(copy: Path) -> None:
    (copy / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert load_model(copy, device="cpu").model is not None


def plant_code(folder: Path, ran: Path) -> None:
    """Classes of the checkpoint's own, whose file leaves a trace when it is imported."""
    (folder / "own.py").write_text(
        f"open({str(ran)!r}, 'w')\n"
        "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
        "class C(LlamaConfig): model_type = 'own'\nclass M(LlamaForCausalLM): config_class = C\n"
        "class T(PreTrainedTokenizerFast): pass\n"
    )
    classes = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}
    change_config(folder, model_type="own", auto_map=classes)
    path = folder / "tokenizer_config.json"
    stated = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": [None, "own.T"]}}
    path.write_text(json.dumps(json.loads(path.read_text()) | stated))


def test_code_of_a_checkpoint_never_runs(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    plant_code(copy, ran)
    with pytest.raises(UnsupportedModel, match="without code from the checkpoint"):
        load_model(copy, device="cpu")
    # The tokenizer's code alone: its vocabulary is plain data, so the model may load, without it.
    change_config(copy, model_type="llama", auto_map={})
    with contextlib.suppress(UnsupportedModel):
        load_model(copy, device="cpu")
    assert not ran.exists()
    # The control: transformers would run it for those who trust it.
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    AutoTokenizer.from_pretrained(copy, trust_remote_code=True, local_files_only=True)
    assert ran.exists()


def test_an_architecture_of_its_own_is_refused_by_name(copy: Path) -> None:
    change_config(copy, model_type="surprise")
    with pytest.raises(UnsupportedModel, match="surprise"):
        load_model(copy, device="cpu")


def test_a_model_that_does_not_predict_the_next_token_is_refused(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    change_config(tmp_path, model_type="vit")
    with pytest.raises(UnsupportedModel, match="vit"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize("fault", ["cut short", "no header", "header too long", "empty"])
def test_broken_safetensors_are_found_from_the_header(copy: Path, fault: str) -> None:
    path = copy / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut short": content[:-4],
            "no header": b"\x08\0\0\0\0\0\0\0nonsense",
            "header too long": b"\xff" * 8 + content,
            "empty": b"",
        }[fault]
    )
    with pytest.raises(BadCheckpoint, match="complete safetensors file"):
        load_model(copy, device="cpu")


def test_a_missing_shard_is_noticed(copy: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpoint, match="missing weights"):
        load_model(copy, device="cpu")


def test_an_empty_folder_and_a_broken_config_are_named(copy: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BadCheckpoint, match=r"no config\.json"):
        load_model(empty, device="cpu")
    (copy / "config.json").write_text("{")
    with pytest.raises(BadCheckpoint, match="expected JSON"):
        load_model(copy, device="cpu")


@pytest.mark.parametrize("keep", [0, 3, 24, 2000, -1])
def test_a_broken_gguf_is_refused(gguf: Path, tmp_path: Path, keep: int) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf.read_bytes()[:keep])
    with pytest.raises(BadCheckpoint, match="complete GGUF file"):
        load_model(broken, device="cpu")


def test_a_gguf_that_would_be_read_wrongly_is_refused(tmp_path: Path) -> None:
    scaled = write_gguf(tmp_path / "scaled.gguf", rope_freqs=True)
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        load_model(scaled, device="cpu")
    other = write_gguf(tmp_path / "other.gguf", architecture="clip")
    with pytest.raises(UnsupportedModel, match="clip"):
        load_model(other, device="cpu")


def test_a_device_that_is_too_small_is_told_before_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **others: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "memory", lambda device: Memory(total=1000, available=1000))
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", never)
    with pytest.raises(OutOfMemory, match="GB free on cpu"):
        load_model(folder, device="cpu")


def test_parameters_are_counted_from_headers(folder: Path, tmp_path: Path) -> None:
    kept = load_file(folder / "model.safetensors")
    assert count_parameters(folder) == sum(t.numel() for t in kept.values())
    for name, shape in (("a", (2, 3)), ("b", ())):
        save_file({name: torch.zeros(shape)}, tmp_path / f"{name}.safetensors")
    assert count_parameters(tmp_path) == 2 * 3 + 1


# --- real -----------------------------------------------------------------------------------------


@pytest.mark.real
def test_the_default_model_answers(smollm2: LoadedModel) -> None:
    assert smollm2.eos_ids == (2,)
    assert isinstance(smollm2.model, LlamaForCausalLM)
    assert isinstance(smollm2.model.config, LlamaConfig)
    assert smollm2.tokenizer("x\n\n2. y").input_ids == [104, 1116, 34, 30, 329]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = smollm2.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = smollm2.model.generate(**inputs, max_new_tokens=12, do_sample=False)
    text = smollm2.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :])
    assert text == "The capital of France is Paris.<|im_end|>"


@pytest.mark.gpu
def test_a_model_goes_to_the_gpu_in_half_precision(folder: Path) -> None:
    loaded = load_model(folder)
    assert loaded.linear == "plain"
    assert loaded.dtype in (torch.bfloat16, torch.float16)
    assert {p.device.type for p in loaded.model.parameters()} == {loaded.device.type} != {"cpu"}
    ids = torch.tensor([[5, 6, 7]])
    exact = load_model(folder, device="cpu", linear="plain").model(ids).logits
    near = load_model(folder, dtype="float32").model(ids.to(loaded.device)).logits.cpu()
    torch.testing.assert_close(near, exact, atol=1e-3, rtol=1e-3)
