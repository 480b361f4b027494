"""Heads with nonsense in config or tensors: one error that names folder, key and next step, before
anything is made of it."""

import itertools
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import eagle_files as ref
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from labkit.errors import BadCheckpoint, LabError
from labkit.heads.checkpoints import fit, inspect_checkpoint, load_head
from labkit.heads.checkpoints import medusa as medusa_files
from labkit.heads.checkpoints import mtp as mtp_files
from labkit.heads.checkpoints import read as eagle_reading
from labkit.heads.checkpoints.medusa import load_medusa, read_medusa
from labkit.heads.checkpoints.medusa_write import (
    checkpoint_of_medusa,
    complete_medusa,
    write_medusa,
)
from labkit.heads.checkpoints.mtp import build_mtp, read_mtp
from labkit.heads.checkpoints.mtp_write import checkpoint_of_mtp, save_mtp
from labkit.heads.config_keys import wrong_key
from labkit.heads.draft_checkpoint import (
    build_draft,
    load_draft_checkpoint,
    save_draft_checkpoint,
    stored_parameters,
)
from labkit.heads.medusa import medusa_config, random_heads
from labkit.heads.mtp import random_mtp
from labkit.kinds import TRUTH, Wrong, first_wrong, keys, list_of, number, whole_from
from labkit.toy import tiny

PLACE: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
IDS = torch.tensor([3, 7, 11, 20])
HUGE = 10**12


@lru_cache
def target() -> Any:
    return tiny("llama", layers=ref.TARGET_LAYERS, vocab_size=ref.VOCAB, hidden=ref.H)


@dataclass(frozen=True)
class Layout:
    """Sound files of one layout, and what loads and what inspects them."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    load: Callable[[Path], Any]
    inspect: Callable[[Path], Any]

    def save(self, folder: Path, config: Any = None, tensors: Any = None) -> Path:
        return ref.save(folder, config or self.config, tensors or self.tensors)


def files_of(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def of_eagle(name: str, spec: ref.Spec) -> Layout:
    files = ref.in_format(name, spec, ref.weights(spec))
    return Layout(
        *files, lambda path: load_head(path, target_model=target(), **PLACE), inspect_checkpoint
    )


def of_medusa(kind: str, way: str, folder: Path) -> Layout:
    heads = random_heads(
        medusa_config(target(), kind, heads=2, draft_vocab_size=len(IDS)), target(), vocab_ids=IDS
    )
    made = checkpoint_of_medusa(heads, target_model=target(), target="toy")
    write_medusa(complete_medusa(made, target()), folder, format=way)
    return Layout(
        *files_of(folder),
        lambda path: load_medusa(path, target_model=target(), **PLACE),
        lambda path: read_medusa(path).report,
    )


def of_mtp(folder: Path) -> Layout:
    made = checkpoint_of_mtp(
        random_mtp(target(), vocab_ids=IDS), target_model=target(), target="toy"
    )
    save_mtp(made, folder)
    return Layout(
        *files_of(folder),
        lambda path: build_mtp(
            read_mtp(path, target_model=target()), target_model=target(), **PLACE
        ),
        lambda path: read_mtp(path, target_model=target()).report,
    )


def of_draft(folder: Path) -> Layout:
    model = build_draft(target(), IDS, layers=1, **PLACE)
    with torch.no_grad():
        for parameter in stored_parameters(model).values():
            parameter.fill_(0.5)
    save_draft_checkpoint(folder, model, vocab_ids=IDS, target_model=target(), target="toy")

    def load(path: Path) -> Any:
        return load_draft_checkpoint(path, target_model=target(), **PLACE)

    return Layout(*files_of(folder), load, load)


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Layout]:
    root = tmp_path_factory.mktemp("sound")
    return {
        "safeailab": of_eagle("safeailab", ref.Spec()),
        "eagle1": of_eagle("safeailab", ref.Spec(version=1)),
        "specforge": of_eagle("specforge", ref.Spec(fc_norm=True, norm_output=True)),
        "speculators": of_eagle("speculators", ref.Spec()),
        "medusa": of_medusa("medusa", "medusa", root / "medusa"),
        "vllm": of_medusa("medusa", "vllm", root / "vllm"),
        "meta": of_medusa("meta", "meta", root / "meta"),
        "mtp": of_mtp(root / "mtp"),
        "draft": of_draft(root / "draft"),
    }


def refusal(layout: Layout, folder: Path) -> str:
    """The error of loading; inspecting says the same, or has a report that tells of it."""
    with pytest.raises(LabError) as caught:
        layout.load(folder)
    said = str(caught.value)
    try:
        report = layout.inspect(folder)
        told = bool(report.refused or report.misfits or report.missing)
    except LabError as error:
        told = str(error) == said
    assert told
    return said


@pytest.mark.parametrize("name", ["safeailab", "eagle1", "specforge", "speculators", "medusa",
                                  "vllm", "meta", "mtp", "draft"])  # fmt: skip
def test_sound_files_load(name: str, layouts: dict[str, Layout], tmp_path: Path) -> None:
    layout = layouts[name]
    assert layout.load(layout.save(tmp_path)) is not None


# -------------------------------------------------------------------------------- config.json

ODD: list[Any] = ["x", "", [], {}, [None], {"a": None}, float("inf"), float("nan")]
COUNTS = [*ODD[:3], *ODD[4:], 0, -1, True, False, 2.5, HUGE, -HUGE]
REALS = [*ODD, 0, -1, True, -float("inf")]
TRUTHS = [*ODD, 0, 1, "true"]
WORDS = [*ODD[2:], 0, True, HUGE]
ROPE = ({"rope_type": 5}, {"factor": "x"}, {"factor": True}, {"rope_theta": -1.0},
        {"rope_type": "longrope", "short_factor": "x", "long_factor": [1.0]},
        "x", 5, [1])  # fmt: skip
LAYER = {
    "hidden_size": COUNTS, "intermediate_size": COUNTS, "num_attention_heads": COUNTS,
    "num_key_value_heads": COUNTS, "head_dim": [*COUNTS, 7], "num_hidden_layers": COUNTS,
    "vocab_size": COUNTS, "max_position_embeddings": COUNTS, "rms_norm_eps": [*REALS, 2.0],
    "hidden_act": [*WORDS, "swish2"], "attention_bias": TRUTHS, "rope_theta": REALS,
    "rope_scaling": ROPE, "rope_parameters": ROPE, "partial_rotary_factor": [*REALS, 1.5],
    "layer_types": ["x", 5, [None], [1], {}],
}  # fmt: skip
MARKS = {
    "architectures": ["x", 5, [1], {}],
    "labkit": ["x", 5, [1], {"borrowed": 5}],
    "labkit.version": [0, 2, True, "1", HUGE],
}
EAGLE = {
    **LAYER, **MARKS,
    "draft_vocab_size": COUNTS, "target_hidden_size": COUNTS, "num_aux_hidden_states": COUNTS,
    "fc_norm": TRUTHS, "norm_output": TRUTHS, "norm_before_residual": TRUTHS,
    "parallel_drafting": TRUTHS, "eagle_config": ["x", 5, [1]], "speculators_model_type": WORDS,
    ref.IDS: ["x", 5, ["2"], [2, True], [2, HUGE], [-1], [2.5], [None], {}],
}  # fmt: skip
CASES: dict[str, dict[str, list[Any] | tuple[Any, ...]]] = {
    "safeailab": EAGLE,
    "eagle1": EAGLE,
    "specforge": {"eagle_config." + ref.IDS: EAGLE[ref.IDS], "eagle_config.fc_norm": TRUTHS,
                  "eagle_config.parallel_draft_step": COUNTS},
    "speculators": {**{f"transformer_layer_config.{key}": bad for key, bad in LAYER.items()},
                    "transformer_layer_config": ["x", 5, [1]], "draft_vocab_size": COUNTS},
    "medusa": {"medusa_num_heads": COUNTS, "medusa_num_layers": COUNTS, "hidden_size": COUNTS,
               "vocab_size": COUNTS, "truncated_vocab_size": COUNTS, **MARKS,
               "labkit.shared_output": TRUTHS, "labkit.kind": WORDS},
    "vllm": {"num_heads": COUNTS, "num_hidden_layers": COUNTS, "medusa_fc_bias": TRUTHS,
             "original_lm_head": TRUTHS, "truncated_vocab_size": COUNTS},
    "meta": {"num_heads": COUNTS, "labkit.block": ["x", 5, [1]], "labkit.block.heads": COUNTS,
             "labkit.block.kv_heads": COUNTS, "labkit.block.head_dim": [*COUNTS, 7],
             "labkit.block.hidden_size": COUNTS, "labkit.block.eps": REALS,
             "labkit.block.rope": ROPE, "labkit.block.hidden_act": WORDS},
    "mtp": {"hidden_size": COUNTS, "vocab_size": COUNTS, "draft_vocab_size": COUNTS,
            "num_hidden_layers": COUNTS, "num_mtp_layers": COUNTS, "rms_norm_eps": REALS,
            "labkit.norm_adds_one": TRUTHS, "labkit.hidden_first": TRUTHS,
            "labkit.state": [*WORDS, "x"], "labkit.recycles_normed": TRUTHS},
    "draft": {"num_hidden_layers": COUNTS, "rms_norm_eps": REALS, "hidden_size": COUNTS,
              "labkit.draft_vocab_size": COUNTS},
}  # fmt: skip


def with_value(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    made = deepcopy(config)
    *places, last = key.split(".")
    inner = made
    for place in places:
        inner = inner.setdefault(place, {})
    inner[last] = value
    return made


@pytest.fixture
def nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns making a module or a map of words into a failure, so that no size can take effect."""

    def stop(*_: Any, **__: Any) -> None:
        raise AssertionError("something was made of a config that was not judged")

    for module, name in (
        (eagle_reading, "EagleHead"), (eagle_reading, "read_vocabulary"),
        (medusa_files, "MedusaHeads"), (medusa_files, "read_vocabulary"),
        (mtp_files, "blocks_of"), (mtp_files, "read_vocabulary"), (fit, "LlamaRotaryEmbedding"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, stop)
    monkeypatch.setattr("labkit.heads.draft_checkpoint.LlamaForCausalLM", stop)


def every(cases: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, key) for name, table in cases.items() for key in table]


@pytest.mark.usefixtures("nothing_is_made")
@pytest.mark.parametrize(("name", "key"), every(CASES))
def test_nonsense_in_a_key_is_named_before_anything_is_made(
    name: str, key: str, layouts: dict[str, Layout], tmp_path: Path
) -> None:
    layout, last = layouts[name], key.rpartition(".")[2]
    folder = layout.save(tmp_path / "head")
    for value in CASES[name][key]:
        text = json.dumps(with_value(layout.config, key, value))
        (folder / "config.json").write_text(text)
        said = refusal(layout, folder)
        assert str(folder) in said, value
        assert f"{last}" in said, value
        assert "in config.json, got" in said, value
        assert "Next: " in said, value


@pytest.mark.parametrize("text", ["[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}", "\x00"])
def test_a_config_that_json_cannot_hold_is_refused(
    text: str, layouts: dict[str, Layout], tmp_path: Path
) -> None:
    for name in ("safeailab", "draft"):
        folder = layouts[name].save(tmp_path / name)
        (folder / "config.json").write_text(text)
        with pytest.raises(BadCheckpoint, match=r"JSON in config\.json"):
            layouts[name].load(folder)


def test_null_is_no_key_at_all(layouts: dict[str, Layout], tmp_path: Path) -> None:
    layout = layouts["speculators"]
    for key in ("rope_scaling", "rope_parameters", "rms_norm_eps", "num_key_value_heads"):
        config = with_value(layout.config, f"transformer_layer_config.{key}", None)
        assert layout.load(layout.save(tmp_path / key, config)) is not None
    needed = layouts["mtp"]
    for key in ("hidden_size", "num_mtp_layers", "labkit.state"):
        folder = needed.save(tmp_path / key, with_value(needed.config, key, None))
        assert f"as {key} in config.json, got none" in refusal(needed, folder)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear"},
        {"rope_type": "yarn"},
        {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 3,
         "long_factor": [1.0] * 3},
        {"rope_type": "llama3", "factor": 8.0},
    ],
)  # fmt: skip
def test_rotary_parameters_that_do_not_go_together_name_the_folder(
    rope: dict[str, Any], layouts: dict[str, Layout], tmp_path: Path
) -> None:
    layout = layouts["safeailab"]
    folder = layout.save(tmp_path, layout.config | {"rope_scaling": rope, "rope_theta": None})
    said = refusal(layout, folder)
    assert str(folder) in said
    assert "rope" in said


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("num_key_value_heads", 3, "kv_heads"),
        ("num_attention_heads", 3, "heads"),
        ("draft_vocab_size", ref.VOCAB + 1, "65 words"),
    ],
)
def test_keys_that_contradict_each_other_name_the_folder(
    key: str, value: int, named: str, layouts: dict[str, Layout], tmp_path: Path
) -> None:
    layout = layouts["safeailab"]
    said = refusal(layout, layout.save(tmp_path, layout.config | {key: value}))
    assert str(tmp_path) in said
    assert named in said


# ------------------------------------------------------------------------------------ tensors


def changed(tensor: Tensor) -> dict[str, Tensor]:
    """What a weight must not be."""
    spoilt = {
        "scalar": tensor.flatten()[0].clone(),
        "cut": tensor[:-1].clone(),
        "deeper": tensor[None].clone(),
        "int8": tensor.to(torch.int8),
        "uint8": tensor.to(torch.uint8),
        "bool": tensor.to(torch.bool),
        "float8": tensor.to(torch.float8_e4m3fn),
        "nan": tensor.clone(),
        "inf": tensor.clone(),
    }
    spoilt["nan"].view(-1)[0] = torch.nan
    spoilt["inf"].view(-1)[-1] = -torch.inf
    if tensor.ndim > 1:
        spoilt["flat"] = tensor.flatten()
    return spoilt


@pytest.mark.parametrize("name", CASES)
def test_a_spoilt_weight_is_named(name: str, layouts: dict[str, Layout], tmp_path: Path) -> None:
    layout = layouts[name]
    weights = {n: t for n, t in layout.tensors.items() if n not in ("d2t", "t2d", "token_map")}
    others = itertools.cycle(("scalar", "cut", "deeper", "uint8", "bool", "float8", "inf", "flat"))
    for weight, tensor in weights.items():
        spoilt = changed(tensor)
        for how in ("int8", "nan", next(others)):
            bad = spoilt.get(how, spoilt["scalar"])
            folder = layout.save(tmp_path / "head", tensors=layout.tensors | {weight: bad})
            said = refusal(layout, folder)
            assert str(folder) in said, (weight, how)
            if how in ("nan", "inf"):
                assert "NaN or infinity" in said, weight
            if how in ("int8", "uint8", "bool", "float8"):
                assert "16 bits or more" in said, weight


@pytest.mark.parametrize(
    ("name", "stored"),
    [("safeailab", "d2t"), ("safeailab", "t2d"), ("medusa", "token_map"), ("mtp", "d2t"),
     ("draft", "d2t")],
)  # fmt: skip
def test_a_map_that_is_no_row_of_whole_numbers_is_named(
    name: str, stored: str, layouts: dict[str, Layout], tmp_path: Path
) -> None:
    layout = layouts[name]
    sound = layout.tensors[stored]
    for bad in (sound.float(), sound[0].clone(), sound[None].clone(), sound[:0].clone()):
        folder = layout.save(tmp_path / "head", tensors=layout.tensors | {stored: bad})
        said = refusal(layout, folder)
        assert str(folder) in said
        assert stored in said


@pytest.mark.parametrize(
    ("name", "silent", "extra"),
    [
        ("safeailab", "num_hidden_layers", "layers.999999999999.self_attn.q_proj.weight"),
        ("medusa", "medusa_num_heads", "999999999999.0.linear.weight"),
        ("medusa", "medusa_num_layers", "0.999999999999.linear.weight"),
    ],
)
def test_a_number_in_a_name_is_judged_like_one_in_the_config(
    name: str, silent: str, extra: str, layouts: dict[str, Layout], tmp_path: Path
) -> None:
    layout = layouts[name]
    config = {key: value for key, value in layout.config.items() if key != silent}
    tensors = layout.tensors | {extra: torch.zeros(4, 4)}
    said = refusal(layout, layout.save(tmp_path, config, tensors))
    assert "got 1000000000000" in said


# ------------------------------------------------------------------------------------- kinds


def test_a_table_of_kinds_names_the_first_value_that_is_wrong() -> None:
    table = {
        "n": whole_from(1, 9),
        "even": whole_from(0, even=True),
        "x": number(above=0, most=2),
        "inner": keys({"on": TRUTH}, required=("on",), closed=True),
        "rows": list_of(list_of(number(least=0))),
    }
    good: dict[str, Any] = {"n": 9, "even": 10**400, "x": 2, "inner": {"on": False},
                            "rows": [[0, 1.5], []], "other": object()}  # fmt: skip
    assert first_wrong(good, table) is None
    for key, value, named in (
        ("n", 10**400, "n"), ("n", 9.0, "n"), ("even", 3, "even"), ("x", 10**400, "x"),
        ("x", -(10**400), "x"), ("inner", {"on": None}, "inner.on"), ("inner", {}, "inner.on"),
        ("inner", {"on": True, "of": 1}, "inner.of"), ("rows", [[0], [1, "x"]], "rows[1][1]"),
        ("rows", [None], "rows[0]"),
    ):  # fmt: skip
        found = first_wrong(good | {key: value}, table)
        assert found is not None
        assert found.key == named, (key, value)
    assert first_wrong({"n": "x"}, table) == Wrong("n", "a whole number from 1 to 9", "'x'")


def test_published_settings_are_of_their_kind() -> None:
    """As in the configs of Llama-3.1-8B, DeepSeek-V3, Kimi-K2 and gpt-oss and their heads."""
    for config in (
        {"vocab_size": 128256, "rope_theta": 500000.0, "max_position_embeddings": 131072,
         "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
        {"hidden_size": 7168, "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn"}},
        {"hidden_size": 7168, "vocab_size": 163840, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
         "eagle_config": {ref.IDS: [2, 30, 58]}, "draft_vocab_size": 32000},
        {"head_dim": 64, "vocab_size": 201088, "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "truncate": False,
            "original_max_position_embeddings": 4096, "rope_type": "yarn"}},
    ):  # fmt: skip
        assert wrong_key(config) is None
