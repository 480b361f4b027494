"""Training a module for multi-token prediction: its first weights, its loss, resumption to the bit,
what is saved and refused. What it shares with EAGLE is tested there."""

import hashlib
import json
from dataclasses import replace
from functools import partial

import pytest
import test_training_eagle as eagle
import torch
from safetensors.torch import load_file
from test_training_eagle import (
    SMALL,
    Killed,
    a_target,
    fake_clock,
    killed_after,
    rows_of,
    shaken,
)
from training_helpers import check_a_saved_state, learn_by_heart, live_acceptance, slow_loss

from labkit.drafters.mtp import mtp_drafter
from labkit.errors import BadInput
from labkit.heads.checkpoints.mtp import build_mtp, read_mtp
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.toy import tiny
from labkit.training.features import cache_features
from labkit.training.head_trainer import HeadTrainer
from labkit.training.mtp import MtpRecipe, new_mtp, recipe_with, train_mtp
from labkit.training.run import PROVENANCE, RESUME

NEEDS = ("final",)
target, data = eagle.target, eagle.data  # fixtures
SMALL = {name: value for name, value in SMALL.items() if name != "noise"}


@pytest.fixture(scope="session")
def states(target, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("states") / "f"
    cache_features(target, rows_of(data), needs=NEEDS, folder=folder)
    return folder


def a_trainer(target, data, states, **changes):
    rows, recipe = rows_of(data), recipe_with(**SMALL | changes)
    return HeadTrainer(
        target,
        rows,
        cache_features(target, rows, needs=NEEDS, folder=states),
        recipe=recipe,
        seed=0,
        keep=lambda head, folder: None,
        make=partial(new_mtp, target, recipe=recipe, seed=0),
    )


def train(target, data, states, out, **options):
    changes = {key: options.pop(key) for key in list(options) if key in vars(MtpRecipe())}
    recipe = recipe_with(**SMALL | changes)
    return train_mtp(target, data=data, out=out, features=states, recipe=recipe, **options)


# --- first weights ---


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_new_head_says_softly_what_the_target_s_state_says(family):
    """Its logits are the target's own, a constant apart, so it is never sure of a random word."""
    model = a_target() if family == "llama" else tiny(family)
    with torch.no_grad():
        scales = torch.cat((torch.linspace(-2.1, -0.8, 8), torch.linspace(0.8, 3.3, 24)))
        adds_one = family == "gemma3"  # as uneven as SmolLM2's
        model.model.norm.weight.copy_(scales - 1 if adds_one else scales)
        tokens = torch.tensor([[3, 9, 4, 1, 7, 22]])
        out = model(tokens, output_hidden_states=True, use_cache=False)
        state = out.hidden_states[-1]
        head = new_mtp(model, torch.arange(64), recipe=MtpRecipe(), seed=0)
        made = head(
            tokens[:, 1:],
            state[:, :-1],
            positions=torch.arange(5)[None],
            kv=head.cache(),
            mask=torch.ones(5, 5, dtype=torch.bool).tril(),
        )
        mine = head.logits(made.normed)
        theirs = state[:, :-1] @ model.get_output_embeddings().weight.T
    slopes = (mine * theirs).sum(-1) / theirs.square().sum(-1)
    alike = torch.nn.functional.cosine_similarity(mine, theirs, dim=-1)
    assert alike.min() > 0.95
    assert slopes.std() < 0.1 * slopes.mean()
    assert 0.3 < mine.std() < 3


def test_a_new_head_has_its_target_s_rows_and_trains_none_of_them(target, data, states):
    trainer = a_trainer(target, data, states)
    assert all(name.startswith("layers.0.") for name in trainer.trained)
    assert len(trainer.trained) == len(list(trainer.head.layers.parameters()))
    embedding = trainer.head.embed_tokens.weight
    assert embedding.data_ptr() == target.get_input_embeddings().weight.data_ptr()
    rows, before = trainer.head.lm_head.weight.clone(), embedding.clone()
    ours = {name: p.clone() for name, p in trainer.trained.items()}
    whole = {name: p.clone() for name, p in target.named_parameters()}
    for step in range(3):
        trainer.step(0.3 + step / 10)
    assert torch.equal(trainer.head.lm_head.weight, rows)
    assert torch.equal(embedding, before)
    assert all(torch.equal(p, whole[name]) for name, p in target.named_parameters())
    still = [name for name, p in trainer.trained.items() if torch.equal(p, ours[name])]
    assert not still, still
    more = a_trainer(target, data, states, train_output=True)
    assert set(more.trained) - set(trainer.trained) == {"lm_head.weight"}


# --- the loss ---


def test_the_loss_is_that_of_a_drafter_at_every_position(target, data, states):
    """FastMTP's: step k weighs beta ** k."""
    trainer = shaken(a_trainer(target, data, states, draft_vocab_size=5))
    trainer.head.layers[0].post_norm.weight.data.mul_(8)  # sure, and of something else each step
    features = cache_features(target, rows_of(data), needs=NEEDS, folder=states)
    for row in trainer.rows.train[:2]:
        batch = features.batch([row], needs=NEEDS, device="cpu")
        with torch.no_grad():
            fast = trainer.loss(batch, depth=3)
            slow = slow_loss(trainer, trainer.head, target, row, features, weights=(1, 0.6, 0.36))
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
        trainer.recipe = replace(trainer.recipe, depth_decay=0.8)  # control: beta matters
        with torch.no_grad():
            assert abs(float(trainer.loss(batch, depth=3) - slow)) > 1e-4
        trainer.recipe = replace(trainer.recipe, depth_decay=0.6)


# --- training ---


def test_texts_learnt_by_heart_are_accepted_as_often_as_measured(target, data, states):
    """What training reports is what decoding gets; equal but for states in half precision."""
    trainer = a_trainer(target, data, states, draft_vocab_size=64, shallow=0.0)
    before, few = trainer.measure(), trainer.rows.train[:4]
    after = learn_by_heart(trainer, few, steps=120)
    assert before.mean_accepted_length < 2.0
    assert after.first > 0.9, after
    assert after.mean_accepted_length > 3.3, after
    length = live_acceptance(target, lambda: mtp_drafter(trainer.head), few, draft_length=4)
    assert length == pytest.approx(after.mean_accepted_length, rel=0.02)


def test_interrupted_training_ends_with_the_same_bits(target, data, states, tmp_path):
    whole = train(target, data, states, tmp_path / "a", steps=8)
    options = {"steps": 8, "seconds_between_checkpoints": 5.0}
    with pytest.raises(Killed):
        train(target, data, states, tmp_path / "b", **options,
              progress=killed_after(5), clock=fake_clock())  # fmt: skip
    assert (tmp_path / "b" / RESUME).exists()
    resumed = train(target, data, states, tmp_path / "b", **options, clock=fake_clock())
    assert (resumed.steps, resumed.tokens, resumed.loss) == (8, whole.tokens, whole.loss)
    assert not (tmp_path / "b" / RESUME).exists()


def test_save_and_load_leave_no_trace_in_the_weights(target, data, states, tmp_path):
    file = tmp_path / "s"
    check_a_saved_state(lambda: a_trainer(target, data, states), file, saved_at=3, steps=6)


def test_a_saved_head_is_whole_and_small_and_says_how_it_was_made(
    target,
    data,
    states,
    tmp_path,
):
    out = tmp_path / "h"
    report = train(target, data, states, out, steps=3, seed=7)
    assert sorted(p.name for p in out.iterdir()) == ["config.json", "model.safetensors", PROVENANCE]
    tensors = load_file(out / "model.safetensors")
    assert all(t.dtype == torch.bfloat16 for n, t in tensors.items() if n != "d2t")
    assert not {"embed_tokens.weight", "lm_head.weight"} & tensors.keys()
    config = json.loads((out / "config.json").read_text())
    assert config["labkit"]["target_fingerprint"] == target_fingerprint(target)
    told = json.loads((out / PROVENANCE).read_text())
    assert told["command"] == "labkit train mtp --data text.jsonl --steps 3 --seed 7 --out DIR"
    assert told["recipe"]["depth_decay"] == 0.6
    assert told["weights_sha256"] == (
        hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    )
    assert len(told["held_out"]["by_depth"]) == SMALL["draft_length"]
    assert str(tmp_path) not in json.dumps(told)
    built = build_mtp(
        read_mtp(out, target_model=target), target_model=target, dtype=torch.float32, device="cpu"
    )
    assert built.config.draft_vocab_size == 48
    assert report.acceptance.mean_accepted_length >= 1


@pytest.mark.parametrize(
    "changes",
    [{"depth": 0}, {"learning_rate": 0.0}, {"draft_vocab_size": 65}, {"depth_decay": 0.0}],
)
def test_impossible_settings_are_refused_before_anything_is_written(
    target,
    data,
    tmp_path,
    changes,
):
    recipe = replace(MtpRecipe(), **SMALL | changes)
    with pytest.raises(BadInput, match=next(iter(changes))):
        train_mtp(target, data=data, out=tmp_path / "o", features=tmp_path / "f",
                  recipe=recipe, steps=1)  # fmt: skip
    assert not list(tmp_path.iterdir())
