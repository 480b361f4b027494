"""The draft checkpoint: what is stored, what is borrowed, what is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from labkit.errors import BadCheckpoint, BadInput, LabError, UnsupportedModel
from labkit.heads.draft_checkpoint import (
    build_draft,
    load_draft_checkpoint,
    save_draft_checkpoint,
    stored_parameters,
    target_fingerprint,
)
from labkit.toy import tiny

IDS = torch.tensor([3, 7, 11, 20])


def fill(model, *, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in stored_parameters(model).values():
            # values that bfloat16 holds exactly, so that a round trip can be bit-equal
            parameter.copy_(torch.randn(parameter.shape, generator=generator).bfloat16())
    return model


@pytest.fixture
def target():
    return tiny("llama", seed=1, vocab_size=32, layers=3)


@pytest.fixture
def saved(tmp_path, target):
    model = build_draft(target, IDS, layers=2, dtype=torch.float32, device="cpu")
    path = tmp_path / "draft"
    save_draft_checkpoint(path, fill(model, seed=2), vocab_ids=IDS, target_model=target, target="t")
    return path


def load(path, target, **changes):
    settings = {"dtype": torch.float32, "device": "cpu"} | changes
    return load_draft_checkpoint(path, target_model=target, **settings)


def edit_tensors(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def edit_config(path, change):
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def test_the_file_holds_offsets_and_nothing_of_the_target(saved):
    tensors = load_file(saved / "model.safetensors")
    assert tensors["d2t"].tolist() == [3, 6, 9, 17]
    assert not [name for name in tensors if "embed" in name or "lm_head" in name]
    assert {t.dtype for name, t in tensors.items() if name != "d2t"} == {torch.bfloat16}
    assert {name.split(".")[2] for name in tensors if name.startswith("model.layers.")} == {
        "0",
        "1",
    }
    config = json.loads((saved / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    assert config["labkit"]["draft_vocab_size"] == 4


def test_a_round_trip_gives_the_same_logits(saved, target):
    draft = load(saved, target)
    assert draft.vocab_ids.tolist() == IDS.tolist()
    original = fill(build_draft(target, IDS, layers=2, dtype=torch.float32, device="cpu"), seed=2)
    tokens = torch.tensor([[1, 5, 9, 2]])
    assert torch.equal(draft.model(tokens).logits, original(tokens).logits)
    assert draft.model(tokens).logits.shape == (1, 4, 4)
    # control: one changed weight changes the logits
    with torch.no_grad():
        draft.model.model.norm.weight[0] += 1
    assert not torch.equal(draft.model(tokens).logits, original(tokens).logits)


def test_borrowed_weights_are_the_targets(saved, target):
    model = load(saved, target).model
    embedding = target.get_input_embeddings().weight
    assert model.get_input_embeddings().weight.data_ptr() == embedding.data_ptr()
    assert torch.equal(model.lm_head.weight, target.get_output_embeddings().weight[IDS])
    assert not any(p.requires_grad for p in model.parameters())
    half = load(saved, target, dtype=torch.bfloat16).model
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert embedding.dtype == torch.float32


def test_custom_positions_and_masks_reach_the_layers(saved, target):
    """A row of unrelated tokens that the mask hides changes nothing: what a slot cache needs."""
    model = load(saved, target).model
    plain = model(torch.tensor([[1, 5, 9]])).logits
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2:, 1] = False
    scrambled = model(
        torch.tensor([[1, 30, 5, 9]]),
        attention_mask=mask[None, None],
        position_ids=torch.tensor([[0, 1, 1, 2]]),
    ).logits
    torch.testing.assert_close(scrambled[:, [0, 2, 3]], plain)
    unmasked = model(torch.tensor([[1, 30, 5, 9]])).logits
    assert not torch.allclose(unmasked[:, [0, 2, 3]], plain, atol=1e-3)


def test_unfilled_weights_are_nan(target):
    model = build_draft(target, IDS, layers=2, dtype=torch.float32, device="cpu")
    assert all(torch.isnan(p).all() for p in stored_parameters(model).values())
    assert torch.isnan(model(torch.tensor([[1, 2]])).logits).all()
    assert len(stored_parameters(model)) == 2 * 9 + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "1 missing, first model.layers.1"),
        (lambda t: t.update({"lm_head.weight": torch.zeros(4, 32)}), "1 unexpected, first lm_head"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(31)}), "model.norm.weight of shape"),
        (lambda t: t["model.norm.weight"].fill_(torch.nan), "finite numbers in model.norm.weight"),
        (lambda t: t.pop("d2t"), "a tensor d2t of 4 offsets"),
        (lambda t: t.update(d2t=torch.zeros(3, dtype=torch.int64)), "a tensor d2t of 4 offsets"),
        (lambda t: t.update(d2t=torch.tensor([3, 6, 9, 29])), "ascending target ids"),
        (lambda t: t.update(d2t=torch.tensor([3, 2, 1, 0])), "ascending target ids"),
        (lambda t: t.update(d2t=torch.tensor([-1, 2, 5, 9])), "ascending target ids"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(saved, target, change, words):
    load(saved, target)  # control: it is sound before the change
    edit_tensors(saved, change)
    with pytest.raises(BadCheckpoint) as caught:
        load(saved, target)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("labkit"), "format labkit-draft"),
        (lambda c: c["labkit"].update(version=2), "version 2"),
        (lambda c: c.pop("num_hidden_layers"), "num_hidden_layers"),
        (lambda c: c.update(num_hidden_layers=1), "unexpected"),
        (lambda c: c.update(num_hidden_layers=3), "missing"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(saved, target, change, words):
    edit_config(saved, change)
    with pytest.raises(BadCheckpoint) as caught:
        load(saved, target)
    assert words in str(caught.value)


def test_broken_and_absent_files_are_refused(saved, target, tmp_path):
    with pytest.raises(BadCheckpoint, match=r"no config.json"):
        load(tmp_path / "nowhere", target)
    no_tensors = tmp_path / "no_tensors"
    shutil.copytree(saved, no_tensors)
    (no_tensors / "model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"no model.safetensors"):
        load(no_tensors, target)
    whole = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadCheckpoint):
        load(saved, target)
    (saved / "config.json").write_text("{")
    with pytest.raises(BadCheckpoint, match=r"JSON in config.json"):
        load(saved, target)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"seed": 2}, "fingerprint"),
        ({"hidden": 64}, "hidden_size"),
        ({"vocab_size": 33}, "vocab_size"),
    ],
)
def test_another_target_is_refused_by_what_differs(saved, other, words):
    stranger = tiny("llama", **({"seed": 1, "vocab_size": 32, "layers": 3} | other))
    with pytest.raises(BadInput) as caught:
        load(saved, stranger)
    assert words in str(caught.value)
    assert isinstance(caught.value, LabError)


def test_a_target_of_another_family_is_refused(saved):
    with pytest.raises(UnsupportedModel, match="qwen3"):
        load(saved, tiny("qwen3", seed=1, vocab_size=32))


def test_the_fingerprint_outlives_rounding(target):
    before = target_fingerprint(target)
    assert target_fingerprint(target.to(torch.bfloat16)) == before
    assert target_fingerprint(tiny("llama", seed=1, vocab_size=32, layers=3).half()) == before
    with torch.no_grad():
        target.get_input_embeddings().weight[5, 5] *= -1
    assert target_fingerprint(target) != before
