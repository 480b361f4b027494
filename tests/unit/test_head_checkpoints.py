"""Reading and judging the files of EAGLE heads: every trap has a test."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eagle_files as ref
import pytest
import safetensors.torch
import torch
from eagle_files import IDS, KEPT, TARGET_LAYERS, VOCAB, Spec
from full_disk import no_room
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from labkit import cli
from labkit.errors import BadCheckpoint, BadInput, UnsupportedModel
from labkit.heads.checkpoints import (
    WRITABLE,
    HeadCheckpoint,
    InspectReport,
    build_head,
    checkpoint_of,
    complete,
    inspect_checkpoint,
    load_head,
    read_checkpoint,
    readings,
    report_text,
    write_checkpoint,
)
from labkit.heads.checkpoints.layouts import LAYOUTS
from labkit.heads.eagle import EagleHead, head_config
from labkit.lab import load as load_module
from labkit.toy import tiny

Change = Callable[[dict[str, Any], dict[str, Tensor]], Any]


@lru_cache
def target(hidden: int = 32, seed: int = 0) -> Any:
    return tiny(layers=TARGET_LAYERS, vocab_size=VOCAB, hidden=hidden, seed=seed)


def folder(
    path: Path,
    name: str = "safeailab",
    spec: Spec | None = None,
    change: Change = lambda config, tensors: None,
) -> Path:
    spec = spec or Spec()
    config, tensors = ref.in_format(name, spec, ref.weights(spec))
    change(config, tensors)
    return ref.save(path / "head", config, tensors)


def load(path: Path, **options: Any) -> EagleHead:
    return load_head(path, target_model=target(), dtype=torch.float32, device="cpu", **options)


def suspicion(report: InspectReport) -> str:
    return " | ".join(report.suspicious)


# -------------------------------------------------------------------------------- formats


@pytest.mark.parametrize(
    ("name", "format", "others"),
    [
        ("safeailab", "safeailab", ()),
        ("specforge", "specforge", ("torchspec",)),
        ("speculators", "speculators", ()),
        ("modelopt", "modelopt", ()),
        ("modelopt-megatron", "modelopt-megatron", ()),
        ("torchspec", "torchspec", ()),
        ("torchspec-for-vllm", "torchspec", ()),
        ("nemo", "nemo", ()),
    ],
)
def test_formats_are_told_apart(
    name: str, format: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    report = inspect_checkpoint(folder(tmp_path, name))
    assert report.format == format
    assert report.alternatives == others
    assert report.decided_by
    assert (*report.refused, *report.missing, *report.unused, *report.misfits) == ()


def test_the_same_keys_of_several_tools_are_called_ambiguous(tmp_path: Path) -> None:
    bare = folder(tmp_path / "a", "modelopt", change=lambda c, t: c.pop("eagle_config"))
    assert inspect_checkpoint(bare).alternatives == ("torchspec",)

    def unmarked(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del config["eagle_config"], tensors["t2d"]

    report = inspect_checkpoint(folder(tmp_path / "b", "specforge", change=unmarked))
    assert report.format == "modelopt-megatron"
    assert report.alternatives == ("specforge", "torchspec")


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (Spec(version=1), "EAGLE-1"),
        (Spec(), "EAGLE-3"),
        (Spec(fc_norm=True, norm_output=True), "EAGLE-3.1"),
        (Spec(norm_output=True), "EAGLE-3 with norm_output"),
        (Spec(norm_before_fc=True), "EAGLE-3 with norm_before_fc"),
    ],
)
def test_the_report_names_the_version(spec: Spec, name: str, tmp_path: Path) -> None:
    assert inspect_checkpoint(folder(tmp_path, spec=spec)).name == name


def test_a_report_is_json_and_text_for_people(tmp_path: Path) -> None:
    report = inspect_checkpoint(folder(tmp_path, "specforge"), target_layers=TARGET_LAYERS)
    told = json.loads(json.dumps(asdict(report)))
    assert told["vocabulary"] == {
        "map": "d2t offsets, t2d agrees", "vocab_size": VOCAB, "draft_vocab_size": len(KEPT),
        "first_ids": [0, 1, 2, 3], "last_id": 62, "share_of_ids": round(len(KEPT) / VOCAB, 4),
    }  # fmt: skip
    assert told["dtypes"] == {"float32": 13}
    assert told["parameters"] == sum(t.numel() for t in ref.weights(Spec()).values())
    assert told["bytes"] == 4 * told["parameters"]
    assert told["shapes"]["kv_heads"] == ref.KV
    text = report_text(report)
    for part in ("EAGLE-3", "specforge", "torchspec", "after [2, 4, 5] layers", "float32",
                 "19 of 64 words (29.7%)", "embed_tokens.weight"):  # fmt: skip
        assert part in text, part


# ------------------------------------------------------------------------------ the files


def test_pickles_are_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(BadCheckpoint, match=r"only pytorch_model\.bin.*save_file"):
        read_checkpoint(tmp_path)


def test_shards_with_an_index_are_read(tmp_path: Path) -> None:
    config, tensors = ref.in_format("safeailab", Spec(), ref.weights(Spec()))
    whole = read_checkpoint(ref.save(tmp_path / "whole", config, tensors))
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    mapped = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(mapped.values()):
        save_file({n: tensors[n].contiguous() for n in names if mapped[n] == file}, parts / file)
    index = parts / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": mapped}))
    split = read_checkpoint(parts)
    assert split.tensors.keys() == whole.tensors.keys()
    assert all(torch.equal(split.tensors[n], t) for n, t in whole.tensors.items())

    index.write_text(json.dumps({"weight_map": mapped | {"extra": mapped[names[0]]}}))
    with pytest.raises(BadCheckpoint, match="expected extra in"):
        read_checkpoint(parts)
    index.write_text(json.dumps({"weight_map": mapped | {"extra": "../model.safetensors"}}))
    with pytest.raises(BadCheckpoint, match="same folder"):
        read_checkpoint(parts)
    (parts / mapped[names[0]]).unlink()
    index.write_text(json.dumps({"weight_map": mapped}))
    with pytest.raises(BadCheckpoint, match="the shard"):
        read_checkpoint(parts)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda p: (p / "config.json").unlink(), "a config.json"),
        (lambda p: (p / "config.json").write_text("{"), "JSON in config.json"),
        (lambda p: (p / "config.json").unlink(), "got none. Next: name the folder of a head, with"),
        (
            lambda p: [(p / "config.json").unlink(), (p / "config.json").mkdir()],
            "a readable config.json, got Is a directory",
        ),
        (lambda p: (p / "config.json").write_text("[]"), "an object in config.json"),
        (lambda p: (p / "model.safetensors").unlink(), "no safetensors"),
        (lambda p: (p / "model.safetensors").write_bytes(b"junk"), "safetensors in model"),
    ],
)
def test_broken_folders_are_refused(break_it: Any, message: str, tmp_path: Path) -> None:
    path = folder(tmp_path)
    break_it(path)
    with pytest.raises(BadCheckpoint, match=message):
        read_checkpoint(path)


def test_no_folder_and_no_head_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="nothing there"):
        read_checkpoint(tmp_path / "none")
    other = ref.save(tmp_path / "x", {}, {"lm_head.weight": torch.zeros(2, 2)})
    with pytest.raises(BadCheckpoint, match="an EAGLE head"):
        read_checkpoint(other)
    draft = ref.save(tmp_path / "y", {"labkit": {"format": "labkit-draft"}},
                     {"lm_head.weight": torch.zeros(2, 2)})  # fmt: skip
    with pytest.raises(BadCheckpoint, match="a draft model of this lab"):
        read_checkpoint(draft)


def latent(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["midlayer.self_attn.kv_a_proj_with_mqa.weight"] = torch.zeros(4, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (latent, "multi-head latent attention"),
        (lambda c, t: c.update(quantization_config={"quant_method": "fp8"}), "quantised"),
        (lambda c, t: c.update(speculators_model_type="dflash"), "dflash"),
        (lambda c, t: c.update(eagle_config={"use_aux_hidden_state": False}), "last state only"),
    ],
)
def test_heads_that_cannot_be_computed_are_refused_by_name(
    change: Change, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_checkpoint(folder(tmp_path, change=change))


def test_a_whole_model_is_no_head(tmp_path: Path) -> None:
    names = ("model.layers.0.self_attn.q_proj.weight", "model.norm.weight", "lm_head.weight")
    path = ref.save(tmp_path, {"vocab_size": 2}, {name: torch.ones(2, 2) for name in names})
    with pytest.raises(BadCheckpoint, match="an EAGLE head: fc"):
        read_checkpoint(path)


def test_biases_that_the_layer_lacks_are_refused_not_dropped(tmp_path: Path) -> None:
    def bias(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["midlayer.mlp.up_proj.bias"] = torch.ones(48)

    with pytest.raises(UnsupportedModel, match=r"mlp\.up_proj\.bias"):
        read_checkpoint(folder(tmp_path / "a", change=bias))

    def sink(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["midlayer.self_attn.sinks"] = torch.ones(4)

    report = inspect_checkpoint(folder(tmp_path / "b", change=sink))
    assert report.unused == ("layers.0.self_attn.sinks",)
    assert "inside its layers" in suspicion(report)


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    def twice(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.hidden_norm.weight"] = tensors["midlayer.hidden_norm.weight"].clone()

    with pytest.raises(BadCheckpoint, match=r"hidden_norm.weight twice"):
        read_checkpoint(folder(tmp_path, change=twice))


# --------------------------------------------------------------------- layer ids


def put_ids(ids: list[int] | None, place: str = "") -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for section in (config, config.get("eagle_config", {})):
            section.pop(IDS, None)
        if ids is not None:
            (config.setdefault(place, {}) if place else config)[IDS] = ids

    return change


@pytest.mark.parametrize(
    ("name", "ids", "layers", "bounds"),
    [
        # what the formats write by themselves, target of 32 layers
        ("safeailab", None, 32, [(2, 16, 29)]),
        ("specforge", [1, 15, 28], None, [(2, 16, 29)]),
        ("speculators", [2, 16, 29], None, [(2, 16, 29)]),
        ("modelopt", [1, 15, 28], None, [(2, 16, 29)]),
        ("nemo", [1, 15, 28], None, [(2, 16, 29)]),
        # ids by first number where the format is silent
        ("nemo", [2, 16, 29], None, [(2, 16, 29)]),
        # by format where the first number is silent
        ("modelopt", [23, 29, 35], None, [(24, 30, 36)]),
        ("speculators", [24, 30, 36], None, [(24, 30, 36)]),
        # first number against format: open (AQ-MedAI Kimi-K2.5: [2, 30, 58])
        ("specforge", [2, 30, 58], None, [(2, 30, 58), (3, 31, 59)]),
        ("speculators", [1, 15, 28], None, [(2, 16, 29), (1, 15, 28)]),
        # ... until the depth is known
        ("specforge", [2, 30, 58], 61, [(2, 30, 58)]),
        ("speculators", [1, 15, 28], 32, [(2, 16, 29)]),
        # neither says anything
        ("nemo", [5, 9, 12], None, [(5, 9, 12), (6, 10, 13)]),
        # id L can only be a boundary
        ("nemo", [5, 9, 32], 32, [(5, 9, 32)]),
        ("modelopt", [8, 16, 32], 32, [(8, 16, 32)]),
    ],
)
def test_layer_ids_are_read_by_the_rules(
    name: str,
    ids: list[int] | None,
    layers: int | None,
    bounds: list[tuple[int, ...]],
    tmp_path: Path,
) -> None:
    path = folder(tmp_path, name, change=put_ids(ids))
    report = inspect_checkpoint(path, target_layers=layers)
    assert [found for _, found in report.readings] == bounds
    assert ("open" in report.layer_ids_decided_by) == (len(bounds) > 1)
    checkpoint = read_checkpoint(path, target_layers=layers)
    assert [c.boundaries for c in readings(checkpoint, target_layers=layers)] == bounds


@pytest.mark.parametrize("place", ["", "eagle_config"])
def test_ids_are_found_at_top_level_and_nested(place: str, tmp_path: Path) -> None:
    report = inspect_checkpoint(folder(tmp_path, "modelopt", change=put_ids([1, 3, 4], place)))
    assert report.layer_ids == (1, 3, 4)
    assert report.layer_ids_from == (f"{place}.{IDS}" if place else IDS)


def test_two_different_lists_are_suspicious(tmp_path: Path) -> None:
    def both(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config[IDS] = [2, 4, 5]

    report = inspect_checkpoint(folder(tmp_path, "modelopt", change=both))
    assert "two lists of layer ids" in suspicion(report)


def test_the_caller_may_know_better(tmp_path: Path) -> None:
    path = folder(tmp_path, "modelopt", change=put_ids([2, 4, 5]))
    for convention, bounds in (("boundary", (2, 4, 5)), ("layer_output", (3, 5, 6))):
        checkpoint = read_checkpoint(path, convention=convention)
        assert checkpoint.config.boundaries == bounds
        assert not checkpoint.alternatives
    with pytest.raises(BadInput, match="convention"):
        read_checkpoint(path, convention="index")


def test_the_end_of_the_target_is_before_its_final_norm(tmp_path: Path) -> None:
    path = folder(tmp_path, "speculators", change=put_ids([2, 4, TARGET_LAYERS]))
    report = inspect_checkpoint(path, target_layers=TARGET_LAYERS)
    assert "before the final norm" in suspicion(report)
    assert load(path).config.needs == ("h2", "h4", f"h{TARGET_LAYERS}")


@pytest.mark.parametrize("ids", [[2, 4, 9], [2, 2, 5], [-1, 4, 5], [], "2,4,5", [2.5, 4, 5]])
def test_impossible_ids_are_refused(ids: Any, tmp_path: Path) -> None:
    path = folder(tmp_path, "speculators", change=put_ids(ids))
    with pytest.raises((BadCheckpoint, BadInput)):
        read_checkpoint(path, target_layers=TARGET_LAYERS)


def test_a_head_without_ids_needs_a_deep_enough_target(tmp_path: Path) -> None:
    path = folder(tmp_path)
    checkpoint = read_checkpoint(path)
    assert checkpoint.config.needs == ("h-1",) * 3, "no activation bears this name"
    with pytest.raises(BadInput, match="target_layers"):
        readings(checkpoint)
    for layers in (2, 4):  # 2, L // 2, L - 3 would be (2, 2, 1) for 4
        with pytest.raises(BadInput, match="layers"):
            read_checkpoint(path, target_layers=layers)


def test_a_head_on_other_than_three_states_must_name_them(tmp_path: Path) -> None:
    spec = Spec(bounds=(2, 3, 5, 7))
    path = folder(tmp_path, "speculators", spec, put_ids(None))
    with pytest.raises(BadCheckpoint, match="fuses 4 states"):
        read_checkpoint(path, target_layers=TARGET_LAYERS)


# --------------------------------------------------------------------------- the switches


def test_speculators_without_the_key_norm_the_residual(tmp_path: Path) -> None:
    def forget(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del config["norm_before_residual"]

    path = folder(tmp_path, "speculators", change=forget)
    assert read_checkpoint(path).config.norm_before_residual
    assert "norm_before_residual" in suspicion(inspect_checkpoint(path))
    assert not read_checkpoint(folder(tmp_path / "x", "specforge")).config.norm_before_residual
    plain = read_checkpoint(folder(tmp_path / "y", "speculators"))
    assert not plain.config.norm_before_residual, "the key says false here"


@pytest.mark.parametrize("value", [True, False])
def test_specforge_s_older_meaning_of_norm_output_is_named(value: bool, tmp_path: Path) -> None:
    path = folder(tmp_path, "specforge", change=lambda c, t: c.update(norm_output=value))
    checkpoint = read_checkpoint(path)
    assert "up to SpecForge 0.2.0" in suspicion(checkpoint.report)
    meanings = [config.norm_output for config in readings(checkpoint)]
    assert meanings == ([True, False] if value else [False])
    silent = read_checkpoint(folder(tmp_path / "x", "specforge"))
    assert not silent.config.norm_output, "no key is EAGLE-3, before and after"
    assert not silent.report.suspicious


@pytest.mark.parametrize("switch", ["fc_norm", "norm_before_fc"])
def test_tensors_switch_a_norm_on_that_the_config_forgot(switch: str, tmp_path: Path) -> None:
    spec = Spec(**{switch: True})
    path = folder(tmp_path / "a", spec=spec, change=lambda c, t: c.pop(switch))
    checkpoint = read_checkpoint(path)
    assert getattr(checkpoint.config, switch)
    assert f"{switch} is not in config.json" in suspicion(checkpoint.report)
    off = folder(tmp_path / "b", spec=spec, change=lambda c, t: c.update({switch: False}))
    report = inspect_checkpoint(off)
    assert f"{switch} is off in config.json" in suspicion(report)
    assert report.unused


def test_a_switch_without_its_tensors_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, change=lambda c, t: c.update(fc_norm=True))
    names = tuple(f"fc_norm.{i}.weight" for i in range(3))
    assert inspect_checkpoint(path).missing == names
    with pytest.raises(BadCheckpoint, match=r"no fc_norm\.0\.weight"):
        load(path)


@pytest.mark.parametrize("key", ["fc_norm", "use_aux_norm"])
def test_the_older_names_of_fc_norm_are_the_same_tensors(key: str, tmp_path: Path) -> None:
    spec = Spec(fc_norm=True)

    def rename(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del config["fc_norm"]
        config[key] = True
        for i, name in enumerate(("low", "mid", "high")):
            tensors[f"aux_norm_{name}.weight"] = tensors.pop(f"fc_norm.{i}.weight")

    old = read_checkpoint(folder(tmp_path / "a", spec=spec, change=rename))
    new = read_checkpoint(folder(tmp_path / "b", spec=spec))
    assert old.config == new.config
    assert all(torch.equal(old.tensors[name], t) for name, t in new.tensors.items())


def test_a_key_in_eagle_config_counts_and_contradictions_are_named(tmp_path: Path) -> None:
    def nested(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["eagle_config"]["return_hidden_post_norm"] = True

    assert read_checkpoint(folder(tmp_path / "a", "modelopt", change=nested)).config.norm_output

    def both(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["norm_output"] = False
        config["eagle_config"]["norm_output"] = True

    checkpoint = read_checkpoint(folder(tmp_path / "b", "modelopt", change=both))
    assert not checkpoint.config.norm_output
    assert "norm_output is both on and off" in suspicion(checkpoint.report)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c, t: c.update(parallel_drafting=True), "in parallel"),
        (lambda c, t: c.update(num_aux_hidden_states=4), "num_aux_hidden_states is 4"),
        (lambda c, t: c.update(layer_types=["sliding_attention"], sliding_window=16), "window"),
        (lambda c, t: c.update(eagle_config={"parallel_draft_step": 2}), "first step"),
    ],
)
def test_what_is_odd_is_said(change: Change, words: str, tmp_path: Path) -> None:
    assert words in suspicion(inspect_checkpoint(folder(tmp_path, change=change)))


def test_an_adapter_beside_the_head_is_said(tmp_path: Path) -> None:
    path = folder(tmp_path, "modelopt")
    save_file({"x": torch.zeros(1)}, path / "adapter_model.safetensors")
    assert "adapter" in suspicion(inspect_checkpoint(path))


def test_eagle1_bias_is_read_from_file_and_key(tmp_path: Path) -> None:
    spec = Spec(version=1, fc_bias=True)
    assert read_checkpoint(folder(tmp_path / "a", spec=spec)).config.fc_bias
    lost = folder(tmp_path / "b", spec=spec, change=lambda c, t: t.pop("fc.bias"))
    assert inspect_checkpoint(lost).missing == ("fc.bias",)
    assert not read_checkpoint(folder(tmp_path / "c", spec=Spec(version=1))).config.fc_bias


# --------------------------------------------------------------------- rope and shapes


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        ({"rope_theta": None}, {"rope_type": "default", "rope_theta": 10000.0}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "rope_theta": 5e5},
         {"rope_type": "default", "rope_theta": 7.0}),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 9.0},
         {"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0}),
        ({"rope_scaling": {"rope_type": "mrope", "mrope_section": [2, 1, 1]}, "rope_theta": 9.0},
         {"rope_type": "default", "rope_theta": 9.0}),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                           "original_max_position_embeddings": 128}, "rope_theta": 9.0},
         {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
          "rope_theta": 9.0}),
    ],
)  # fmt: skip
def test_rope_is_read_from_either_generation(
    keys: dict[str, Any], rope: dict[str, Any], tmp_path: Path
) -> None:
    path = folder(tmp_path, change=lambda c, t: c.update(keys))
    assert read_checkpoint(path).config.rope == rope
    load(path)  # transformers takes it
    write_checkpoint(read_checkpoint(path), tmp_path / "again")
    assert read_checkpoint(tmp_path / "again").config.rope == rope


@pytest.mark.parametrize("rope", [{"rope_type": "spiral"}, {"partial_rotary_factor": 0.5}])
def test_rope_that_llama_layers_do_not_know_is_refused(
    rope: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(BadCheckpoint, match="rope_type"):
        read_checkpoint(folder(tmp_path, change=lambda c, t: c.update(rope_scaling=rope)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_act": "swish2"}, "as hidden_act in config.json, got 'swish2'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "head's config"),
        ({"num_attention_heads": "four"}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "kv_heads"),
    ],
)
def test_a_config_that_no_layer_takes_is_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = folder(tmp_path, change=lambda c, t: c.update(keys))
    with pytest.raises((BadCheckpoint, BadInput), match=message):
        read_checkpoint(path)
    report = inspect_checkpoint(path)
    assert report.refused
    assert "REFUSED" in report_text(report)


def test_trained_positions_are_told(tmp_path: Path) -> None:
    path = folder(tmp_path, change=lambda c, t: c.update(max_position_embeddings=2048))
    assert inspect_checkpoint(path).shapes["max_positions"] == 2048


def test_every_layer_survives(tmp_path: Path) -> None:
    spec = Spec(layers=3)
    made = ref.weights(spec)
    checkpoint = read_checkpoint(folder(tmp_path, "speculators", spec))
    assert checkpoint.config.layers == 3
    deeper = {n: t for n, t in checkpoint.tensors.items() if n.startswith(("layers.1", "layers.2"))}
    stored = {n: t for n, t in ref.plain_names(made, "layers.0.").items() if n in deeper}
    assert len(stored) == len(deeper) == 2 * 9
    for way in ("speculators", "modelopt"):
        again = read_checkpoint(write_checkpoint(checkpoint, tmp_path / way, format=way))
        for name, tensor in stored.items():
            assert torch.equal(deeper[name], tensor), name
            assert torch.equal(again.tensors[name], tensor), name


def test_a_layer_beyond_the_config_is_not_dropped_in_silence(tmp_path: Path) -> None:
    path = folder(tmp_path, spec=Spec(layers=2), change=lambda c, t: c.update(num_hidden_layers=1))
    report = inspect_checkpoint(path)
    assert report.misfits == ("2 layers are stored, expected num_hidden_layers 1",)
    with pytest.raises(BadCheckpoint, match="2 layers are stored"):
        load(path)


def test_key_value_heads_come_from_the_tensors_when_the_config_omits_them(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", change=lambda c, t: c.pop("num_key_value_heads"))
    assert read_checkpoint(path).config.kv_heads == ref.KV

    def all_heads(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del config["num_key_value_heads"]
        for letter in "kv":
            name = f"midlayer.self_attn.{letter}_proj.weight"
            tensors[name] = tensors["midlayer.self_attn.q_proj.weight"].clone()

    path = folder(tmp_path / "b", change=all_heads)
    assert read_checkpoint(path).config.kv_heads == 4
    load(path)


def test_speculators_leave_out_what_is_transformers_default(tmp_path: Path) -> None:
    def diff(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        layer = config["transformer_layer_config"]
        for key in ("head_dim", "hidden_act", "hidden_size", "intermediate_size",
                    "max_position_embeddings", "num_hidden_layers"):  # fmt: skip
            layer.pop(key, None)

    config = read_checkpoint(folder(tmp_path, "speculators", change=diff)).config
    assert (config.hidden_size, config.head_dim, config.intermediate_size) == (32, 8, 48)
    assert (config.layers, config.max_positions, config.hidden_act) == (1, 2048, "silu")


def test_every_layout_that_can_be_written_is_offered() -> None:
    assert {name for name, layout in LAYOUTS.items() if layout.versions} == set(WRITABLE)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hidden_size": 36}, "expected a multiple of num_attention_heads (8) as head's "
         "hidden_size, got 36"),
        ({"hidden_act": "gelu_or_so"}, "hidden_act"),
    ],
)  # fmt: skip
def test_a_config_that_no_layer_has_is_refused_in_one_line_of_our_own_words(
    changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = folder(tmp_path, change=lambda c, t: c.update(num_attention_heads=8, **changed))
    with pytest.raises(BadCheckpoint) as refused:
        load(path)
    said = str(refused.value)
    assert told in said
    assert not re.search(r"\n|Error|\.\.", said.replace(str(path), "")), said


def test_shapes_that_do_not_fit_the_config_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, change=lambda c, t: c.update(intermediate_size=50))
    assert len(inspect_checkpoint(path).misfits) == 3
    with pytest.raises(BadCheckpoint, match=r"mlp\.down_proj\.weight: \(32, 48\), expected"):
        load(path)


# ------------------------------------------------------------------- vocabulary


def test_offsets_are_offsets(tmp_path: Path) -> None:
    kept = [3, 7, 11, 20]

    def four(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["draft_vocab_size"] = 4
        tensors["d2t"] = torch.tensor([3, 6, 9, 17])
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
        tensors["t2d"][kept] = True
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:4]

    path = folder(tmp_path, change=four)
    assert read_checkpoint(path).vocab_ids.tolist() == kept
    assert load(path).vocab_ids[2] == 11
    config = json.loads((write_checkpoint(read_checkpoint(path), tmp_path / "b") / "config.json")
                        .read_text())  # fmt: skip
    assert config["draft_vocab_size"] == 4


def zeros(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])
    tensors.pop("t2d", None)


def test_zeros_mean_identity_only_between_equal_sizes(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="only zeros"):
        read_checkpoint(folder(tmp_path / "a", change=zeros))
    spec = Spec(pruned=False)
    same = folder(tmp_path / "b", "specforge", spec, zeros)
    assert read_checkpoint(same).vocab_ids.tolist() == list(range(VOCAB))


def no_map(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name in ("d2t", "t2d"):
        tensors.pop(name, None)


def test_a_pruned_head_without_a_map_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, change=no_map)
    with pytest.raises(BadCheckpoint, match="d2t or t2d"):
        read_checkpoint(path)
    assert "d2t or t2d" in inspect_checkpoint(path).refused[0]


def test_a_missing_half_of_the_map_is_derived(tmp_path: Path) -> None:
    for half in ("d2t", "t2d"):
        path = folder(tmp_path / half, change=lambda c, t, half=half: t.pop(half))
        assert read_checkpoint(path).vocab_ids.tolist() == list(KEPT)


def absolute(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["d2t"] = torch.tensor(KEPT)


def test_absolute_numbers_are_not_taken_for_offsets(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="exactly the words marked in t2d"):
        read_checkpoint(folder(tmp_path / "a", change=absolute))

    def alone(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        absolute(config, tensors)
        del tensors["t2d"]

    with pytest.raises(BadCheckpoint, match="ids only by themselves"):
        read_checkpoint(folder(tmp_path / "b", change=alone))


def test_offsets_that_might_be_ids_are_suspicious(tmp_path: Path) -> None:
    def doubtful(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["d2t"] = torch.arange(1, 1 + len(KEPT))  # ids 1, 3, 5, ... or 1, 2, 3, ...
        del tensors["t2d"]

    checkpoint = read_checkpoint(folder(tmp_path, change=doubtful))
    assert checkpoint.vocab_ids[:3].tolist() == [1, 3, 5]
    assert "never stays level" in suspicion(checkpoint.report)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(d2t=t["d2t"][:-1]), "d2t of shape"),
        (lambda t: t.update(t2d=t["t2d"][:-1]), "t2d of shape"),
        (lambda t: t["t2d"].logical_not_(), "words marked in t2d"),
        (lambda t: t["d2t"].neg_(), "ascending target ids"),
        (lambda t: t.update(t2d=t["t2d"].roll(1)), "the same words in d2t and t2d"),
    ],
)
def test_maps_that_do_not_fit_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=message):
        read_checkpoint(folder(tmp_path, change=lambda c, t: change(t)))


# ---------------------------------------------------------------- what is loaded


def test_own_rows_stay_own_and_borrowed_ones_are_the_target_s(tmp_path: Path) -> None:
    spec = Spec(embedding=True)
    made = ref.weights(spec)
    own = load(folder(tmp_path / "a", "speculators", spec))
    assert torch.equal(own.embed_tokens.weight, made["embed"])
    assert torch.equal(own.lm_head.weight, made["head"])
    borrowed = load(folder(tmp_path / "b", "speculators"))
    theirs = target().get_input_embeddings().weight
    assert torch.equal(borrowed.embed_tokens.weight, theirs)
    assert not any(parameter.requires_grad for parameter in own.parameters())


def test_a_head_of_all_words_may_leave_the_output_layer_to_the_target(tmp_path: Path) -> None:
    def share(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del tensors["lm_head.weight"]
        config["draft_vocab_size"] = None

    head = load(folder(tmp_path, spec=Spec(pruned=False), change=share))
    assert torch.equal(head.lm_head.weight, target().get_output_embeddings().weight)


def test_a_pruned_head_without_output_layer_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, change=lambda c, t: t.pop("lm_head.weight"))
    assert inspect_checkpoint(path).missing == ("lm_head.weight",)
    with pytest.raises(BadCheckpoint, match=r"no lm_head\.weight"):
        load(path)


def lost(name: str) -> Change:
    return lambda config, tensors: tensors.pop(name)


@pytest.mark.parametrize(
    "name", ["midlayer.hidden_norm.weight", "midlayer.mlp.up_proj.weight", "norm.weight"]
)
def test_a_missing_weight_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = folder(tmp_path, change=lost(name))
    canonical = name.replace("midlayer", "layers.0")
    assert inspect_checkpoint(path).missing == (canonical,)
    with pytest.raises(BadCheckpoint, match=f"no {canonical}"):
        load(path)
    with pytest.raises(BadCheckpoint, match=f"no {canonical}"):
        write_checkpoint(read_checkpoint(path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_weight_that_nothing_filled_cannot_pass(tmp_path: Path) -> None:
    """Even when the list of missing names fails to name it."""
    checkpoint = read_checkpoint(folder(tmp_path))
    rest = {n: t for n, t in checkpoint.tensors.items() if n != "layers.0.hidden_norm.weight"}
    with pytest.raises(BadCheckpoint, match="a weight that nothing filled"):
        build_head(
            replace(checkpoint, tensors=rest),
            target_model=target(), dtype=torch.float32, device="cpu",
        )  # fmt: skip


def test_not_a_number_in_the_file_is_refused_by_name(tmp_path: Path) -> None:
    def spoil(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"][0, 0] = torch.nan

    with pytest.raises(BadCheckpoint, match=r"fc\.weight: NaN or infinity"):
        load(folder(tmp_path, change=spoil))


def test_unused_tensors_are_listed(tmp_path: Path) -> None:
    def more(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["verifier_norm.weight"] = torch.ones(32)
        tensors["parallel_draft_heads.0.medusa_layers.0.linear.weight"] = torch.ones(2, 2)

    report = inspect_checkpoint(folder(tmp_path, "speculators", change=more))
    assert report.unused == (
        "parallel_draft_heads.0.medusa_layers.0.linear.weight", "verifier_norm.weight",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda c, t: c.update(vocab_size=VOCAB + 1) or t.pop("t2d"), "vocab_size 65"),
        (lambda c, t: c.update({IDS: [2, 4, 9]}), "9"),
    ],
)
def test_another_target_is_refused_before_any_weight_is_copied(
    change: Change, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tmp_path, change=change)
    monkeypatch.setattr(torch, "full", lambda *a, **k: pytest.fail("a weight was made"))
    with pytest.raises((BadInput, BadCheckpoint), match=what):
        load(path)


def test_a_target_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="hidden_size 32"):
        load_head(folder(tmp_path), target_model=target(24), dtype=torch.float32, device="cpu")


def test_a_head_of_another_width_needs_its_own_embedding(tmp_path: Path) -> None:
    spec = Spec(wide=24)
    path = folder(tmp_path / "a", spec=spec)
    options: Any = {"target_model": target(24), "dtype": torch.float32, "device": "cpu"}
    assert load_head(path, **options).config.target_hidden_size == 24
    bare = folder(tmp_path / "b", spec=spec, change=lost("embed_tokens.weight"))
    with pytest.raises(BadInput, match="embedding"):
        load_head(bare, **options)


def test_dtypes_are_kept_and_cast_on_loading(tmp_path: Path) -> None:
    def half(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensors[name] = tensor.bfloat16()

    path = folder(tmp_path, change=half)
    checkpoint = read_checkpoint(path)
    assert checkpoint.report.dtypes == {"bfloat16": 13}
    out = write_checkpoint(checkpoint, tmp_path / "b", format="speculators")
    assert read_checkpoint(out).report.dtypes == {"bfloat16": 13}
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"
    head = load(path)
    assert {p.dtype for p in head.parameters()} == {torch.float32}
    assert head.rotary.inv_freq.dtype == torch.float32


def test_two_heads_of_one_checkpoint_share_nothing(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(folder(tmp_path), target_layers=TARGET_LAYERS)
    options: Any = {"target_model": target(), "dtype": torch.float32, "device": "cpu"}
    one, two = build_head(checkpoint, **options), build_head(checkpoint, **options)
    one.fc.weight.zero_()
    assert two.fc.weight.abs().sum() > 0
    assert checkpoint.tensors["fc.weight"].abs().sum() > 0


# --------------------------------------------------------------------------------- writing


def test_the_written_formats_have_the_names_and_keys_of_their_tools(tmp_path: Path) -> None:
    spec = Spec()
    first = read_checkpoint(folder(tmp_path), target_layers=TARGET_LAYERS)
    for way in ("safeailab", "specforge", "speculators", "modelopt"):
        config, tensors = ref.in_format(way, spec, ref.weights(spec))
        out = write_checkpoint(first, tmp_path / way, format=way)
        written = load_file(out / "model.safetensors")
        assert written.keys() == tensors.keys(), way
        for name, tensor in tensors.items():
            assert torch.equal(written[name], tensor), name
            assert written[name].dtype == tensor.dtype, name
        told = json.loads((out / "config.json").read_text())
        assert told["architectures"] == config["architectures"]
        nested = told.get("eagle_config", told)
        assert nested[IDS] == {"safeailab": [2, 4, 5], "speculators": [2, 4, 5]}.get(way, [1, 3, 4])
        layer = told.get("transformer_layer_config", told)
        for key, value in ref.shape(spec).items():
            assert layer[key] == value, (way, key)


def test_engines_get_ids_in_their_own_terms(tmp_path: Path) -> None:
    first = read_checkpoint(folder(tmp_path), target_layers=TARGET_LAYERS)
    vllm = json.loads(
        (write_checkpoint(first, tmp_path / "v", format="vllm") / "config.json").read_text()
    )
    sglang = json.loads(
        (write_checkpoint(first, tmp_path / "s", format="sglang") / "config.json").read_text()
    )
    assert vllm[IDS] == [2, 4, 5]
    assert sglang["eagle_config"][IDS] == [1, 3, 4]
    assert IDS not in sglang


def test_a_head_without_ids_is_written_without_them(tmp_path: Path) -> None:
    for way in ("safeailab", "specforge", "speculators", "modelopt"):
        out = write_checkpoint(read_checkpoint(folder(tmp_path / way)), tmp_path / way / "out",
                               format=way)  # fmt: skip
        assert IDS not in (out / "config.json").read_text()
        again = read_checkpoint(out, target_layers=32)
        assert again.config.boundaries == (2, 16, 29)


@pytest.mark.parametrize(
    ("way", "spec", "named"),
    [
        ("specforge", Spec(norm_before_residual=True), "norm_before_residual"),
        ("sglang", Spec(norm_before_residual=True), "norm_before_residual"),
        ("modelopt", Spec(fc_norm=True, norm_output=True), "fc_norm, norm_output"),
        ("speculators", Spec(fc_bias=True), "fc_bias"),
        ("vllm", Spec(fc_bias=True), "fc_bias"),
        ("specforge", Spec(layers=2), "layers"),
        ("speculators", Spec(version=1), "EAGLE-1"),
    ],
)
def test_what_a_format_cannot_say_is_refused_by_name(
    way: str, spec: Spec, named: str, tmp_path: Path
) -> None:
    first = read_checkpoint(folder(tmp_path, spec=spec), target_layers=TARGET_LAYERS)
    with pytest.raises(BadInput, match=named):
        write_checkpoint(first, tmp_path / "out", format=way)
    assert not (tmp_path / "out").exists()


def test_open_layer_ids_are_not_written(tmp_path: Path) -> None:
    path = folder(tmp_path, "specforge", change=put_ids([2, 4, 5]))
    with pytest.raises(BadInput, match="2 readings"):
        write_checkpoint(read_checkpoint(path), tmp_path / "out")
    write_checkpoint(read_checkpoint(path, convention="boundary"), tmp_path / "out")


def test_nothing_is_overwritten_and_nothing_left_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_checkpoint(folder(tmp_path))
    taken = tmp_path / "taken"
    taken.mkdir()
    write_checkpoint(first, taken)  # an empty folder may be filled
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadInput, match="new or empty"):
        write_checkpoint(first, taken)
    with pytest.raises(BadInput, match="one of these"):
        write_checkpoint(first, tmp_path / "x", format="nemo")
    monkeypatch.setattr(safetensors.torch, "save_file", no_room)
    where = re.escape(str(tmp_path / "x" / "model.safetensors"))
    with pytest.raises(BadInput, match=f"output {where}: .*No space left"):
        write_checkpoint(first, tmp_path / "x")
    assert sorted(tmp_path.iterdir()) == before


def own(rows: bool) -> HeadCheckpoint:
    """A head of this lab's own, for `target()`."""
    spec = Spec()
    with torch.no_grad():
        config = head_config(target(), 3, draft_vocab_size=len(spec.ids))
        head = EagleHead(config, vocab_ids=torch.tensor(spec.ids))
        model = target()
        head.embed_tokens.weight.copy_(model.get_input_embeddings().weight)
        if rows:
            head.lm_head.weight.copy_(model.get_output_embeddings().weight[list(spec.ids)])
    return checkpoint_of(head, target_model=target(), target="toy", dtype=torch.bfloat16)


def test_our_own_heads_store_no_row_of_their_target(tmp_path: Path) -> None:
    checkpoint = own(rows=True)
    assert checkpoint.borrowed == ("embed_tokens.weight", "lm_head.weight")
    out = write_checkpoint(checkpoint, tmp_path / "a")
    entry = json.loads((out / "config.json").read_text())["labkit"]
    assert entry["target"] == "toy"
    assert entry["borrowed"] == ["embed_tokens.weight", "lm_head.weight"]
    again = read_checkpoint(out)
    assert again.config == checkpoint.config
    assert again.target == checkpoint.target
    assert again.borrowed == checkpoint.borrowed
    assert again.report.dtypes == {"bfloat16": 12}
    head = load(out)
    assert torch.equal(head.lm_head.weight, target().get_output_embeddings().weight[list(KEPT)])
    assert own(rows=False).borrowed == ("embed_tokens.weight",)


def test_our_own_heads_refuse_another_target(tmp_path: Path) -> None:
    out = write_checkpoint(own(rows=True), tmp_path / "a")
    with pytest.raises(BadInput, match="toy with fingerprint"):
        load_head(out, target_model=target(seed=1), dtype=torch.float32, device="cpu")


def test_other_formats_want_the_rows_and_get_them(tmp_path: Path) -> None:
    checkpoint = own(rows=True)
    for way in ("speculators", "modelopt", "vllm", "sglang", "specforge"):
        with pytest.raises(BadInput, match="brings its output layer"):
            write_checkpoint(checkpoint, tmp_path / way, format=way)
    full = complete(checkpoint, target())
    out = write_checkpoint(full, tmp_path / "v", format="vllm")
    again = read_checkpoint(out)
    rows = target().get_output_embeddings().weight[list(KEPT)].bfloat16()
    assert torch.equal(again.tensors["lm_head.weight"], rows)
    assert complete(full, target()) is full


def test_tensors_that_share_memory_are_written_each(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(folder(tmp_path))
    norm = checkpoint.tensors["norm.weight"]
    tied = replace(checkpoint, tensors=checkpoint.tensors | {"layers.0.hidden_norm.weight": norm})
    again = read_checkpoint(write_checkpoint(tied, tmp_path / "b"))
    assert torch.equal(again.tensors["layers.0.hidden_norm.weight"], norm)


# ------------------------------------------------------------------------ the command line


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_inspect_prints_one_object_or_a_text(tmp_path: Path) -> None:
    path = folder(tmp_path, "speculators")
    done = command("inspect", path, "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["format"] == "speculators"
    assert told["readings"] == [["boundary", [2, 4, 5]]]
    assert "EAGLE-3" in command("inspect", path).stdout
    done = command("inspect", "smollm2-135m-draft")
    assert "a draft model of this lab" in str(done.exception), "names of the lab's own are known"


@pytest.mark.parametrize("change", [no_map, lost("norm.weight")])
def test_inspect_tells_all_of_a_head_that_cannot_be_loaded(change: Change, tmp_path: Path) -> None:
    done = command("inspect", folder(tmp_path, change=change), "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["refused"] or told["missing"]
    assert told["tensors"] > 0


def test_inspect_takes_what_the_user_knows(tmp_path: Path) -> None:
    path = folder(tmp_path, "specforge", change=put_ids([2, 4, 5]))
    assert len(json.loads(command("inspect", path, "--json").stdout)["readings"]) == 2
    for option, value in (("--layer-ids", "boundary"), ("--target-layers", TARGET_LAYERS)):
        told = json.loads(command("inspect", path, option, value, "--json").stdout)
        assert told["readings"] == [["boundary", [2, 4, 5]]]


@pytest.mark.parametrize(
    "way", ["safeailab", "specforge", "speculators", "modelopt", "vllm", "sglang"]
)
def test_export_writes_what_inspect_reads(way: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command("export", "--head", folder(tmp_path), "--format", way, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["format"] == way
    assert json.loads(command("inspect", out, "--json").stdout)["format"] == way
    again = command("export", "--head", folder(tmp_path), "--format", way, "--out", out)
    assert isinstance(again.exception, BadInput), "never overwritten"


def test_export_settles_feedback_as_engines_do_but_not_layer_ids(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", "specforge", Spec(fc_norm=True, norm_output=True))
    done = command("export", "--head", path, "--format", "vllm", "--out", tmp_path / "v")
    assert done.exit_code == 0, done.output
    assert "up to SpecForge 0.2.0" in done.stdout
    assert read_checkpoint(tmp_path / "v").config.norm_output
    open_ids = folder(tmp_path / "b", "specforge", change=put_ids([2, 4, 5]))
    done = command("export", "--head", open_ids, "--format", "vllm", "--out", tmp_path / "w")
    assert isinstance(done.exception, BadInput)
    assert "--layer-ids" in str(done.exception)


def test_export_completes_our_own_heads_with_their_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fake(name: str, **_: Any) -> Any:
        asked.append(name)
        return SimpleNamespace(model=target())

    monkeypatch.setattr(load_module, "load_model", fake)
    head = write_checkpoint(own(rows=True), tmp_path / "head")
    done = command("export", "--head", head, "--format", "vllm", "--out", tmp_path / "v")
    assert done.exit_code == 0, done.output
    assert asked == ["toy"]
    assert "lm_head.weight" in read_checkpoint(tmp_path / "v").tensors
    command("export", "--head", head, "--format", "safeailab", "--out", tmp_path / "s")
    assert asked == ["toy"], "our own layout needs no target"
