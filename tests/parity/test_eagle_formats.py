"""Heads of every public format draft what the papers' formulas say.

The files and the formulas are those of `eagle_files`, which knows nothing of the product.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import eagle_files as ref
import pytest
import torch
from eagle_files import BOUNDS, SPECS, TARGET_LAYERS, VOCAB, Draft, Spec
from torch import Tensor

from labkit.errors import BadCheckpoint
from labkit.heads.checkpoints import (
    build_head,
    checkpoint_of,
    load_head,
    read_checkpoint,
    readings,
    settle,
    write_checkpoint,
)
from labkit.heads.checkpoints import read as reader
from labkit.heads.eagle import EagleHead
from labkit.toy import tiny

TOKENS = [3, 17, 40, 5, 22, 61, 9]
STEPS = 3
CLOSE = 1e-5
FAR = 1e-3


@lru_cache
def target(hidden: int = ref.H) -> Any:
    return tiny(layers=TARGET_LAYERS, vocab_size=VOCAB, hidden=hidden)


@lru_cache
def streams(hidden: int = ref.H) -> dict[str, Tensor]:
    """What transformers calls hidden_states[k], and the final one; each [n, H]."""
    with torch.no_grad():
        out = target(hidden)(torch.tensor([TOKENS]), output_hidden_states=True)
    found = {f"h{k}": state[0] for k, state in enumerate(out.hidden_states[:-1])}
    return found | {"final": out.hidden_states[-1][0]}


def expected(spec: Spec, made: dict[str, Tensor]) -> tuple[list[Tensor], list[int]]:
    model = target(spec.wide)
    embed, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    depths = ["final"] if spec.version == 1 else [f"h{k}" for k in spec.bounds]
    states = [list(streams(spec.wide)[name]) for name in depths]
    return Draft(spec, made, embed, output).chain(TOKENS, states, STEPS)


@torch.no_grad()
def drafted(head: EagleHead) -> tuple[list[Tensor], list[int]]:
    """The same chain by our head."""
    states = [streams(head.config.target_hidden_size)[name][:-1] for name in head.config.needs]
    n, kv = len(TOKENS) - 1, head.cache()
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    step = head(
        torch.tensor([TOKENS[1:]]), head.fuse(states)[None],
        positions=torch.arange(n)[None], kv=kv, mask=mask,
    )  # fmt: skip
    rows, tokens = list(head.logits(step.normed)[0]), []
    for i in range(STEPS):
        tokens.append(int(head.vocab_ids[rows[-1].argmax()]))
        step = head(
            torch.tensor([tokens[-1:]]), step.recycled[:, -1:],
            positions=torch.tensor([[n + i]]), kv=kv, mask=None,
        )  # fmt: skip
        rows.append(head.logits(step.normed)[0, 0])
    return rows, tokens


def load(folder: Path, spec: Spec, **options: Any) -> EagleHead:
    return load_head(
        folder, target_model=target(spec.wide), dtype=torch.float32, device="cpu", **options
    )


def gap(head: EagleHead, spec: Spec, made: dict[str, Tensor]) -> float:
    """Largest difference of any logit; infinite where other tokens are drafted."""
    (ours, said), (theirs, right) = drafted(head), expected(spec, made)
    if said != right or ours[0].shape != theirs[0].shape:
        return float("inf")
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


CASES = {
    "safeailab": [*SPECS][:9] + [*SPECS][10:],
    "specforge": ["plain", "fc_norm", "3.1", "all words", "own embedding", "llama3 rope"],
    "torchspec": ["plain", "3.1", "all words"],
    "torchspec-for-vllm": ["plain", "3.1"],
    "nemo": ["plain", "3.1", "fc_norm", "norm_output", "attention_bias", "own embedding"],
    "modelopt": ["plain", "attention_bias", "two layers", "linear rope", "all words"],
    "modelopt-megatron": ["plain", "two layers", "three layers", "own embedding"],
    "speculators": [
        "plain", "3.1", "fc_norm", "norm_output", "norm_before_fc", "norm_before_residual",
        "speculators' default", "qwen3 layer", "two layers", "all words", "own embedding",
        "four states", "llama3 rope",
    ],
}  # fmt: skip
PAIRS = [(name, case) for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_logits_are_those_of_the_formulas(name: str, case: str, tmp_path: Path) -> None:
    spec = SPECS[case]
    made = ref.weights(spec)
    folder = ref.save(tmp_path / "head", *ref.in_format(name, spec, made))
    head = load(folder, spec)
    assert head.config.boundaries == (() if spec.version == 1 else spec.bounds)
    assert gap(head, spec, made) < CLOSE


@torch.no_grad()
def tree_of(head: EagleHead, pairs: list[tuple[int, int]]) -> Tensor:
    """Logits [4, D] of a tree of two tokens and one child under each, drafted level by level."""
    states = [streams(head.config.target_hidden_size)[name][:-1] for name in head.config.needs]
    n, kv = len(TOKENS) - 1, head.cache()
    step = head(
        torch.tensor([TOKENS[1:]]), head.fuse(states)[None],
        positions=torch.arange(n)[None], kv=kv, mask=torch.ones(n, n, dtype=torch.bool).tril(),
    )  # fmt: skip
    state, rows = step.recycled[:, -1:].expand(1, 2, -1), []
    for depth in range(2):
        own = torch.eye(2, dtype=torch.bool)  # a node sees the prefix, its ancestor and itself
        mask = torch.cat([torch.ones(2, n, dtype=torch.bool)] + [own] * (depth + 1), -1)
        step = head(
            torch.tensor([[path[depth] for path in pairs]]), state,
            positions=torch.full((1, 2), n + depth), kv=kv, mask=mask,
        )  # fmt: skip
        state = step.recycled
        rows.append(head.logits(step.normed)[0])
    return torch.cat(rows)


@pytest.mark.parametrize("name", CASES)
def test_a_tree_is_its_paths(name: str, tmp_path: Path) -> None:
    spec = SPECS["plain"]
    made = ref.weights(spec)
    head = load(ref.save(tmp_path / "head", *ref.in_format(name, spec, made)), spec)
    pairs = [(7, 30), (41, 2)]
    model = target(ref.H)
    embed, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    states = [list(streams()[f"h{k}"]) for k in spec.bounds]
    right = []
    for path in pairs:
        draft = Draft(spec, made, embed, output)
        for t in range(1, len(TOKENS)):
            given = draft.fuse([depth[t - 1] for depth in states])
            state, _ = draft.step(TOKENS[t], given, t - 1)
        rows = []
        for depth, token in enumerate(path):
            state, logits = draft.step(token, state, len(TOKENS) - 1 + depth)
            rows.append(logits)
        right.append(rows)
    ours = tree_of(head, pairs)
    for depth in range(2):
        for branch in range(2):
            assert (ours[2 * depth + branch] - right[branch][depth]).abs().max() < CLOSE


SWITCHES = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_changes_the_logits(switch: str, tmp_path: Path) -> None:
    spec = ref.variant(Spec(), **{switch: True})
    made = ref.weights(spec)
    head = load(ref.save(tmp_path / "head", *ref.in_format("safeailab", spec, made)), spec)
    assert gap(head, spec, made) < CLOSE
    assert gap(head, ref.variant(spec, **{switch: False}), made) > FAR


def swap_norms(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    a, b = "midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight"
    tensors[a], tensors[b] = tensors[b], tensors[a]


def ids_one_later(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config[ref.IDS] = [k + 1 for k in BOUNDS]


def ids_one_earlier(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config[ref.IDS] = [k - 1 for k in BOUNDS]


def other_theta(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["rope_theta"] = 1e6


def other_eps(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["rms_norm_eps"] = 0.1


def halves_of_the_input(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for letter in "qkv":
        name = f"midlayer.self_attn.{letter}_proj.weight"
        tensors[name] = torch.cat(tensors[name].chunk(2, -1)[::-1], -1)


MUTANTS = [swap_norms, ids_one_later, ids_one_earlier, other_theta, other_eps, halves_of_the_input]


@pytest.mark.parametrize("mutate", MUTANTS)
def test_a_wrong_file_is_noticed(mutate: Any, tmp_path: Path) -> None:
    spec = Spec()
    made = ref.weights(spec)
    config, tensors = ref.in_format("safeailab", spec, made)
    mutate(config, tensors)
    # read as written: what ids one off cost is the point here, not that they could be repaired
    head = load(ref.save(tmp_path / "head", config, tensors), spec, convention="boundary")
    assert gap(head, spec, made) > FAR


def test_offsets_read_as_ids_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec()
    made = ref.weights(spec)
    folder = ref.save(tmp_path / "head", *ref.in_format("safeailab", spec, made))
    assert gap(load(folder, spec), spec, made) < CLOSE
    right = reader.read_vocabulary

    def absolute(path: Path, d2t: Tensor, t2d: Any, **sizes: int) -> Any:
        _, source, doubts = right(path, d2t, t2d, **sizes)
        return d2t, source, doubts

    monkeypatch.setattr(reader, "read_vocabulary", absolute)
    assert gap(load(folder, spec), spec, made) > FAR


def test_swapped_norms_of_the_head_would_be_noticed(tmp_path: Path) -> None:
    spec = Spec()
    made = ref.weights(spec)
    head = load(ref.save(tmp_path / "head", *ref.in_format("nemo", spec, made)), spec)
    layer = head.layers[0]
    layer.hidden_norm, layer.input_layernorm = layer.input_layernorm, layer.hidden_norm
    assert gap(head, spec, made) > FAR


@pytest.mark.parametrize("right", [0, 1])
def test_measuring_both_readings_finds_the_right_one(right: int, tmp_path: Path) -> None:
    """Ids that say nothing by themselves: only one reading computes what was trained."""
    spec = Spec(bounds=((3, 5, 6), (4, 6, 7))[right])
    made = ref.weights(spec)
    config, tensors = ref.in_format("nemo", spec, made)
    config[ref.IDS] = [3, 5, 6]
    checkpoint = read_checkpoint(ref.save(tmp_path / "head", config, tensors))
    found = readings(checkpoint, target_layers=TARGET_LAYERS)
    assert [c.boundaries for c in found] == [(3, 5, 6), (4, 6, 7)]
    options: Any = {"target_model": target(ref.H), "dtype": torch.float32, "device": "cpu"}
    gaps = [gap(build_head(checkpoint, config=c, **options), spec, made) for c in found]
    assert gaps[right] < CLOSE
    assert gaps[1 - right] > FAR
    settled = settle(checkpoint, found[right], why="first position: 0.6 against 0.1")
    assert gap(build_head(settled, **options), spec, made) < CLOSE
    assert settled.report.layer_ids_decided_by == "first position: 0.6 against 0.1"


WAYS = {
    "safeailab": CASES["safeailab"],
    "specforge": ["plain", "3.1", "all words", "own embedding", "other width"],
    "speculators": [*CASES["speculators"], "attention_bias"],
    "modelopt": CASES["modelopt"],
    "vllm": ["plain", "3.1", "norm_before_fc", "norm_before_residual", "two layers", "eagle1"],
    "sglang": ["plain", "3.1", "norm_before_fc", "fc_bias", "attention_bias"],
}


def loadable(case: str) -> str:
    """A format in which the reference can write this head."""
    return "speculators" if SPECS[case].qk_norm else "safeailab"


@pytest.mark.parametrize(("way", "case"), [(w, c) for w, cases in WAYS.items() for c in cases])
def test_a_round_trip_keeps_bytes_and_logits(way: str, case: str, tmp_path: Path) -> None:
    spec = SPECS[case]
    made = ref.weights(spec)
    folder = ref.save(tmp_path / "a", *ref.in_format(loadable(case), spec, made))
    first = read_checkpoint(folder, convention="boundary", target_layers=TARGET_LAYERS)
    write_checkpoint(first, tmp_path / "b", format=way)
    second = read_checkpoint(tmp_path / "b", target_layers=TARGET_LAYERS)
    assert second.alternatives == ()
    assert second.config == first.config
    assert second.tensors.keys() == first.tensors.keys()
    for name, tensor in first.tensors.items():
        again = second.tensors[name]
        assert again.dtype == tensor.dtype
        assert again.numpy().tobytes() == tensor.numpy().tobytes(), name
    assert second.vocab_ids.tolist() == list(spec.ids)
    assert gap(load(tmp_path / "b", spec), spec, made) < CLOSE


def test_a_head_from_memory_stores_no_row_of_the_target(tmp_path: Path) -> None:
    spec, model = Spec(), target(ref.H)
    made = ref.weights(spec)
    made["head"] = model.get_output_embeddings().weight[list(spec.ids)]
    head = load(ref.save(tmp_path / "a", *ref.in_format("safeailab", spec, made)), spec)
    stored = checkpoint_of(head, target_model=model, target="toy")
    assert stored.borrowed == ("embed_tokens.weight", "lm_head.weight")
    write_checkpoint(stored, tmp_path / "b")
    again = load(tmp_path / "b", spec)
    assert gap(again, spec, made) < CLOSE
    embedding = model.get_input_embeddings().weight
    assert again.embed_tokens.weight.data_ptr() == embedding.data_ptr()


def test_a_file_without_its_words_is_refused_and_not_guessed(tmp_path: Path) -> None:
    config, tensors = ref.in_format("safeailab", Spec(), ref.weights(Spec()))
    del tensors["d2t"], tensors["t2d"]
    folder = ref.save(tmp_path / "head", config, tensors)
    with pytest.raises(BadCheckpoint, match="d2t or t2d"):
        load(folder, Spec())
