"""Parallel heads of every layout guess what the papers' formulas say, and their files are judged.

The formulas are written here once more in float64, and the files are laid out by hand, name by
name as FasterDecoding/Medusa and vLLM have them; Meta's decoder layers are those of `eagle_files`.
"""

import json
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eagle_files as ref
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from labkit import cli
from labkit.errors import BadCheckpoint, BadInput
from labkit.heads.checkpoints import report_text
from labkit.heads.checkpoints.medusa import load_medusa, read_medusa
from labkit.heads.checkpoints.medusa_write import (
    checkpoint_of_medusa,
    complete_medusa,
    write_medusa,
)
from labkit.heads.medusa import MedusaHeads, medusa_config, random_heads
from labkit.lab import load as load_module
from labkit.toy import tiny

H, V, K = ref.H, ref.VOCAB, 3
TOKENS = [3, 17, 40, 5, 22, 61, 9]
FEW = torch.tensor([11, 2, 40, 7, 63, 30])  # in no order, as a map of frequent words may be
CLOSE, FAR = 1e-5, 1e-3


@lru_cache
def target(seed: int = 0) -> Any:
    return tiny(vocab_size=V, hidden=H, seed=seed)


def states() -> Tensor:
    """[n, H], transformers' own last states."""
    with torch.no_grad():
        out = target()(torch.tensor([TOKENS]), output_hidden_states=True, use_cache=False)
    return out.hidden_states[-1][0]


def numbers(layers: int = 1, *, bias: bool = True, words: int = V) -> dict[str, Tensor]:
    """Random weights by role: ``w2.0`` and ``b2.0`` of head 2's first block, ``out2``."""
    generator = torch.Generator().manual_seed(1)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    made = {}
    for head in range(K):
        for layer in range(layers):
            made[f"w{head}.{layer}"] = matrix(H, H)
            if bias:
                made[f"b{head}.{layer}"] = 0.3 * matrix(H, 1)[:, 0]
        made[f"out{head}"] = matrix(words, H)
    return made


def by_formula(made: dict[str, Tensor], layers: int, *, outputs: Any = None) -> Tensor:
    """[K, D], one state after the other: x + silu(W x + b), then the output rows."""
    rows = []
    for head in range(K):
        x = states()[-1].double()
        for layer in range(layers):
            y = made[f"w{head}.{layer}"].double() @ x + made.get(f"b{head}.{layer}", torch.zeros(H))
            x = x + y / (1 + torch.exp(-y))
        rows.append((made[f"out{head}"] if outputs is None else outputs).double() @ x)
    return torch.stack(rows)


def faster_decoding(made: dict[str, Tensor], layers: int, prefix: str = "") -> dict[str, Tensor]:
    named = {}
    for head in range(K):
        for layer in range(layers):
            named[f"{prefix}{head}.{layer}.linear.weight"] = made[f"w{head}.{layer}"]
            if f"b{head}.{layer}" in made:
                named[f"{prefix}{head}.{layer}.linear.bias"] = made[f"b{head}.{layer}"]
        named[f"{prefix}{head}.{layers}.weight"] = made[f"out{head}"]
    return named


def vllm(made: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    named = {}
    for head in range(K):
        for layer in range(layers):
            named[f"blocks.{head}.layers.{layer}.weight"] = made[f"w{head}.{layer}"]
            if f"b{head}.{layer}" in made:
                named[f"blocks.{head}.layers.{layer}.bias"] = made[f"b{head}.{layer}"]
        named[f"lm_heads.{head}.weight"] = made[f"out{head}"]
    return named


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    return ref.save(folder, config, tensors)


def published(layers: int = 1) -> dict[str, Any]:
    """FasterDecoding's whole config."""
    return {"medusa_num_heads": K, "medusa_num_layers": layers,
            "base_model_name_or_path": "toy"}  # fmt: skip


def for_vllm(layers: int = 1, **more: Any) -> dict[str, Any]:
    return {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": H,
            "vocab_size": V, "num_heads": K, "num_hidden_layers": layers, **more}  # fmt: skip


def load(folder: Path, model: Any = None) -> MedusaHeads:
    model = target() if model is None else model
    return load_medusa(folder, target_model=model, dtype=torch.float32, device="cpu")


@torch.no_grad()
def guessed(heads: MedusaHeads) -> Tensor:
    """[K, D] after the last token, by ours, all states read at once."""
    n = len(TOKENS)
    made = heads(
        states()[None],
        positions=torch.arange(n)[None],
        kv=heads.cache(),
        mask=torch.ones(n, n, dtype=torch.bool).tril(),
    )
    return heads.logits(made[0, -1])


def gap(folder: Path, expected: Tensor) -> float:
    ours = guessed(load(folder))
    return float((ours - expected).abs().max()) if ours.shape == expected.shape else float("inf")


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("prefix", ["", "medusa_head.", "medusa_heads."])
def test_fasterdecoding_s_layout_is_the_formula(prefix: str, layers: int, tmp_path: Path) -> None:
    made = numbers(layers)
    folder = save(tmp_path / "h", published(layers), faster_decoding(made, layers, prefix))
    assert gap(folder, by_formula(made, layers)) < CLOSE


@pytest.mark.parametrize("bias", [False, True])
def test_vllm_s_layout_is_the_formula(bias: bool, tmp_path: Path) -> None:
    made = numbers(2, bias=bias)
    folder = save(tmp_path / "h", for_vllm(2, medusa_fc_bias=bias), vllm(made, 2))
    assert gap(folder, by_formula(made, 2)) < CLOSE


def test_a_token_map_names_the_words(tmp_path: Path) -> None:
    made = numbers(words=len(FEW))
    config = for_vllm(medusa_fc_bias=True, truncated_vocab_size=len(FEW))
    folder = save(tmp_path / "h", config, vllm(made, 1) | {"token_map": FEW})
    assert gap(folder, by_formula(made, 1)) < CLOSE
    assert load(folder).vocab_ids.tolist() == FEW.tolist()
    assert read_medusa(folder).report.suspicious == ()
    # vLLM cuts whole output layers to the map's words
    made = numbers()
    folder = save(tmp_path / "w", config, vllm(made, 1) | {"token_map": FEW})
    assert gap(folder, by_formula(made, 1)[:, FEW]) < CLOSE


def test_one_output_layer_for_all_heads(tmp_path: Path) -> None:
    made = numbers()
    rows = made["out0"]
    tensors = {n: t for n, t in vllm(made, 1).items() if n[:9] != "lm_heads." or n[9] == "0"}
    config = for_vllm(medusa_fc_bias=True, original_lm_head=True)
    folder = save(tmp_path / "h", config, tensors)
    assert gap(folder, by_formula(made, 1, outputs=rows)) < CLOSE


def test_output_rows_that_are_not_stored_are_the_target_s(tmp_path: Path) -> None:
    """As FasterDecoding's reader does, which starts from the target's rows."""
    made = numbers()
    tensors = {n: t for n, t in faster_decoding(made, 1).items() if "linear" in n}
    folder = save(tmp_path / "h", published() | {"vocab_size": V}, tensors)
    rows = target().get_output_embeddings().weight
    assert gap(folder, by_formula(made, 1, outputs=rows)) < CLOSE
    assert load(folder).output(0).weight.data_ptr() == rows.data_ptr()
    # vLLM has no such rows, so a file in its layout must bring them
    tensors = {n: t for n, t in vllm(made, 1).items() if "blocks" in n}
    folder = save(tmp_path / "v", for_vllm(medusa_fc_bias=True), tensors)
    with pytest.raises(BadCheckpoint, match=r"no lm_head\.weight"):
        load(folder)


def meta_by_formula(made: dict[str, Tensor]) -> Tensor:
    """[K, V]: layer 1 of the reference is the trunk, layers 2 to K + 1 are the heads."""
    rows = target().get_output_embeddings().weight
    draft = ref.Draft(ref.Spec(version=1, layers=K + 2, eps=1e-6), made, rows, rows)

    def layer(i: int, x: Tensor, position: int) -> Tensor:
        normed = draft.norm(x, draft.w[f"in{i}"])
        return draft.feed(i, x + draft.attend(i, normed, position))

    for position, state in enumerate(states().double()):
        trunk = layer(1, state, position)
        last = [rows.double() @ layer(2 + head, trunk, position) for head in range(K)]
    return torch.stack(last)


def meta_files(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    made = ref.weights(ref.Spec(version=1, layers=K + 2))
    names = ref.plain_names(made, "unused.", "layer{}.")
    tensors = {n: t for n, t in names.items() if n.startswith("layer")}
    for i in range(1, K + 2):
        place = "trunk." if i == 1 else f"blocks.{i - 2}."
        tensors = {n.replace(f"layer{i}.", place): t for n, t in tensors.items()}
    block = {"hidden_size": H, "intermediate_size": ref.INNER, "heads": ref.HEADS,
             "kv_heads": ref.KV, "head_dim": ref.DIM, "eps": 1e-6}  # fmt: skip
    config = {"hidden_size": H, "vocab_size": V, "num_heads": K, "labkit": {
        "format": "labkit-medusa", "layout": "meta", "kind": "meta", "block": block}}  # fmt: skip
    return save(tmp_path / "h", config, tensors), made


def test_meta_s_layout_is_the_formula(tmp_path: Path) -> None:
    folder, made = meta_files(tmp_path)
    assert gap(folder, meta_by_formula(made)) < CLOSE


@pytest.mark.parametrize("fault", ["trunk and head swapped", "heads swapped"])
def test_wrong_meta_layers_are_noticed(fault: str, tmp_path: Path) -> None:
    folder, made = meta_files(tmp_path)
    one, other = ("trunk.", "blocks.0.") if fault[0] == "t" else ("blocks.1.", "blocks.0.")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    swapped = {
        n.replace(one, "-").replace(other, one).replace("-", other): t for n, t in tensors.items()
    }
    save_file(swapped, file)
    assert gap(folder, meta_by_formula(made)) > FAR


@pytest.mark.parametrize("fault", ["no residual", "relu", "blocks after another", "heads swapped"])
def test_other_formulas_are_noticed(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = numbers(2)
    tensors = faster_decoding(made, 2)
    if fault == "blocks after another":
        for head in range(K):
            a, b = (f"{head}.{layer}.linear.weight" for layer in (0, 1))
            tensors[a], tensors[b] = tensors[b], tensors[a]
    if fault == "heads swapped":
        tensors["0.2.weight"], tensors["1.2.weight"] = tensors["1.2.weight"], tensors["0.2.weight"]
    folder = save(tmp_path / "h", published(2), tensors)
    if fault == "relu":
        monkeypatch.setattr("labkit.heads.medusa.F.silu", torch.relu)
    if fault == "no residual":
        monkeypatch.setattr(
            "labkit.heads.medusa.ResidualBlocks.forward",
            lambda self, x: self.layers[1](torch.nn.functional.silu(self.layers[0](x))),
        )
    assert gap(folder, by_formula(made, 2)) > FAR


# --- there and back ---


def heads_of(case: str) -> MedusaHeads:
    settings: dict[str, dict[str, Any]] = {
        "plain": {},
        "two blocks": {"layers": 2, "bias": False, "shared_output": False},
        "few words": {"draft_vocab_size": len(FEW)},
        "few words, own outputs": {"draft_vocab_size": len(FEW), "shared_output": False},
        "meta": {"kind": "meta"},
        "meta, few words": {"kind": "meta", "draft_vocab_size": len(FEW)},
    }
    chosen = dict(settings[case])
    ids = FEW if "few words" in case else None
    config = medusa_config(target(), chosen.pop("kind", "medusa"), heads=K, **chosen)
    return random_heads(config, target(), vocab_ids=ids)


MEDUSA_CASES = ("plain", "two blocks", "few words", "few words, own outputs")
WAYS = [(way, case) for way in ("medusa", "vllm") for case in MEDUSA_CASES]
WAYS += [("meta", "meta"), ("meta", "meta, few words")]


@pytest.mark.parametrize(("way", "case"), WAYS)
def test_a_round_trip_keeps_bytes_and_logits(way: str, case: str, tmp_path: Path) -> None:
    heads = heads_of(case)
    first = checkpoint_of_medusa(heads, target_model=target(), target="toy")
    if way == "vllm":
        with (
            pytest.raises(BadInput, match="bring their output") if first.borrowed else nullcontext()
        ):
            write_medusa(first, tmp_path / "no", format=way)
        first = complete_medusa(first, target())
    folder = write_medusa(first, tmp_path / "b", format=way)
    second = read_medusa(folder)
    assert second.config == first.config
    assert second.tensors.keys() == first.tensors.keys()
    for name, tensor in first.tensors.items():
        assert second.tensors[name].numpy().tobytes() == tensor.numpy().tobytes(), name
    assert second.vocab_ids.tolist() == heads.vocab_ids.tolist()
    assert second.report.suspicious == ()
    assert second.borrowed == first.borrowed
    assert (guessed(load(folder)) - guessed(heads)).abs().max() < CLOSE


def test_rows_of_the_target_are_not_stored(tmp_path: Path) -> None:
    for case in ("plain", "few words", "meta"):
        made = checkpoint_of_medusa(heads_of(case), target_model=target(), target="toy")
        assert made.borrowed == ("lm_head.weight",)
        folder = write_medusa(made, tmp_path / case)
        assert not [n for n in load_file(folder / "model.safetensors") if n.startswith("lm_head")]
    own = heads_of("two blocks")
    own.lm_heads[1].weight.data.copy_(target().get_output_embeddings().weight)
    made = checkpoint_of_medusa(own, target_model=target(), target="toy")
    assert made.borrowed == ("lm_heads.1.weight",)
    folder = write_medusa(made, tmp_path / "own")
    assert "0.2.weight" in load_file(folder / "model.safetensors")
    assert "1.2.weight" not in load_file(folder / "model.safetensors")
    assert (guessed(load(folder)) - guessed(own)).abs().max() < CLOSE


def test_the_files_have_the_public_names(tmp_path: Path) -> None:
    made = checkpoint_of_medusa(heads_of("few words"), target_model=target(), target="toy")
    folder = write_medusa(made, tmp_path / "m")
    names = {f"{h}.0.linear.{w}" for h in range(K) for w in ("weight", "bias")}
    assert load_file(folder / "model.safetensors").keys() == names | {"token_map"}
    config = json.loads((folder / "config.json").read_text())
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (K, 1)
    folder = write_medusa(complete_medusa(made, target()), tmp_path / "v", format="vllm")
    stored = load_file(folder / "model.safetensors")
    names = {f"blocks.{h}.layers.0.{w}" for h in range(K) for w in ("weight", "bias")}
    assert stored.keys() == names | {"lm_heads.0.weight", "token_map"}
    assert as_vllm_reads(json.loads((folder / "config.json").read_text())) == {
        "num_heads": K, "num_hidden_layers": 1, "hidden_size": H, "vocab_size": V,
        "truncated_vocab_size": len(FEW), "medusa_fc_bias": True, "original_lm_head": True,
    }  # fmt: skip


def as_vllm_reads(config: dict[str, Any]) -> dict[str, Any]:
    """The keys that vLLM's MedusaConfig and model look at; any key with "num" and "heads" in it is
    taken for num_heads, and with "layers" for num_hidden_layers."""
    for key in list(config):
        if "num" in key and "heads" in key:
            config["num_heads"] = config.pop(key)
        elif "num" in key and "layers" in key:
            config["num_hidden_layers"] = config.pop(key)
    assert config["model_type"] == "medusa"
    assert config["architectures"] == ["MedusaModel"]
    wanted = ("num_heads", "num_hidden_layers", "hidden_size", "vocab_size",
              "truncated_vocab_size", "medusa_fc_bias", "original_lm_head")  # fmt: skip
    return {key: config[key] for key in wanted}


# --- files that are refused ---


def pickled(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(published()))
    (folder / "medusa_lm_head.pt").write_bytes(b"\x80\x02")
    return folder


def test_a_pickle_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"medusa_lm_head\.pt.*safetensors") as caught:
        read_medusa(pickled(tmp_path / "h"))
    assert "save_file" in str(caught.value)


def without(name: str) -> Any:
    return lambda config, tensors: tensors.pop(name)


def more_heads(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["medusa_num_heads"] = K + 1


def fewer_heads(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["medusa_num_heads"] = K - 1


def a_base_model(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(2, 2)


def not_a_number(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["1.0.linear.weight"][3, 4] = torch.nan


def wrong_shape(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["1.0.linear.weight"] = torch.zeros(H, H - 1)


def a_map_outside(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["token_map"] = torch.tensor([1, V])


def a_map_twice(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["token_map"] = torch.tensor([5, 5])


def no_heads(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["medusa_num_heads"] = "three"


def few_rows(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["vocab_size"] = V
    for head in range(K):
        tensors[f"{head}.1.weight"] = tensors[f"{head}.1.weight"][:8]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (without("1.0.linear.weight"), r"no blocks\.1\.layers\.0\.weight"),
        (without("1.1.weight"), r"no lm_heads\.1\.weight"),
        (without("2.0.linear.bias"), r"no blocks\.2\.layers\.0\.bias"),
        (more_heads, r"no blocks\.3"),
        (fewer_heads, r"blocks\.2.*no part of such heads"),
        (a_base_model, r"model\.layers\.0.*no part of such heads"),
        (not_a_number, r"blocks\.1\.layers\.0\.weight: NaN or infinity, expected finite"),
        (wrong_shape, r"blocks\.1\.layers\.0\.weight: \(32, 31\), expected \(32, 32\)"),
        (a_map_outside, "target ids below 64 in token_map"),
        (a_map_twice, "different target ids"),
        (no_heads, "as medusa_num_heads in config.json, got 'three'"),
        (few_rows, "8 of the target's 64 words"),
    ],
)
def test_broken_files_are_refused_by_name(spoil: Any, named: str, tmp_path: Path) -> None:
    config, tensors = published(), faster_decoding(numbers(), 1)
    folder = save(tmp_path / "good", config, tensors)
    assert load(folder) is not None
    spoil(config, tensors)
    with pytest.raises(BadCheckpoint, match=named):
        load(save(tmp_path / "bad", config, tensors))


def test_heads_of_another_target_or_kind_are_refused(tmp_path: Path) -> None:
    made = checkpoint_of_medusa(heads_of("plain"), target_model=target(), target="toy")
    folder = write_medusa(made, tmp_path / "h")
    with pytest.raises(BadInput, match="fingerprint"):
        load(folder, target(seed=9))
    with pytest.raises(BadInput, match="hidden_size"):
        load(save(tmp_path / "w", published(), faster_decoding(numbers(), 1)),
             tiny(vocab_size=V, hidden=16))  # fmt: skip
    eagle = ref.save(
        tmp_path / "e", *ref.in_format("safeailab", ref.Spec(), ref.weights(ref.Spec()))
    )
    with pytest.raises(BadCheckpoint, match="parallel heads"):
        read_medusa(eagle)
    for case, way in (("plain", "meta"), ("meta", "vllm"), ("plain", "eagle")):
        stored = checkpoint_of_medusa(heads_of(case), target_model=target(), target="toy")
        with pytest.raises(BadInput, match=f"format {way}"):
            write_medusa(complete_medusa(stored, target()), tmp_path / "no", format=way)
    assert not (tmp_path / "no").exists()


def test_a_bias_that_the_config_denies_is_used_and_told(tmp_path: Path) -> None:
    made = numbers()
    folder = save(tmp_path / "h", for_vllm(), vllm(made, 1))
    assert gap(folder, by_formula(made, 1)) < CLOSE
    assert "medusa_fc_bias" in read_medusa(folder).report.suspicious[0]


def test_the_report_says_what_the_heads_are(tmp_path: Path) -> None:
    made = checkpoint_of_medusa(heads_of("few words"), target_model=target(), target="toy")
    folder = write_medusa(made, tmp_path / "h")
    told = report_text(read_medusa(folder).report)
    for part in ("Medusa, 3 heads", "medusa (by", "after the final norm", "6 of 64 words",
                 "lm_head.weight", "bias, shared_output"):  # fmt: skip
        assert part in told, told


# --- the command line ---


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_inspect_and_export_know_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(name: str, **_: Any) -> Any:
        asked.append(name)
        return SimpleNamespace(model=target())

    monkeypatch.setattr(load_module, "load_model", fake)
    made = checkpoint_of_medusa(heads_of("few words"), target_model=target(), target="toy")
    folder = write_medusa(made, tmp_path / "h")
    done = command("inspect", folder, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["name"] == "Medusa, 3 heads"
    for way, named in (("medusa", []), ("vllm", ["toy"])):
        out = tmp_path / way
        done = command("export", "--head", folder, "--format", way, "--out", out, "--json")
        assert done.exit_code == 0, done.output
        assert asked == named
        assert json.loads(command("inspect", out, "--json").stdout)["format"] == way
    assert "lm_heads.0.weight" in load_file(tmp_path / "vllm" / "model.safetensors")
    done = command("export", "--head", folder, "--format", "specforge", "--out", tmp_path / "s")
    assert isinstance(done.exception, BadInput)
    assert not (tmp_path / "s").exists()


def test_inspect_tells_what_a_broken_file_lacks(tmp_path: Path) -> None:
    tensors = faster_decoding(numbers(), 1)
    del tensors["1.0.linear.weight"]
    done = command("inspect", save(tmp_path / "h", published(), tensors), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["missing"] == ["blocks.1.layers.0.weight"]
    done = command("inspect", pickled(tmp_path / "p"))
    assert "can run code" in str(done.exception)
