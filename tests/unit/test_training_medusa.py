"""Training parallel heads: the loss by its definition, resumption to the bit, what is saved and
refused. Text, states and interruptions are those of the EAGLE heads' tests."""

import json
from dataclasses import replace
from typing import Any

import pytest
import test_training_eagle as eagle
import torch
from safetensors.torch import load_file
from training_helpers import law_of, learn_by_heart, live_acceptance

from labkit.drafters.medusa import medusa_drafter
from labkit.errors import BadInput
from labkit.heads.checkpoints.medusa import load_medusa, read_medusa
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.training.features import cache_features
from labkit.training.medusa import RECIPES, medusa_trainer, recipe_with, train_medusa
from labkit.training.run import PROVENANCE, RESUME

KINDS = tuple(RECIPES)
target, data, states = eagle.target, eagle.data, eagle.states  # fixtures
SMALL = {key: value for key, value in eagle.SMALL.items() if key != "noise"} | {
    "depth": 3,
    "draft_length": 3,
}


def features_of(target: Any, data: Any, states: Any) -> Any:
    return cache_features(target, eagle.rows_of(data), needs=eagle.NEEDS, folder=states)


def a_trainer(target: Any, data: Any, states: Any, kind: str, **changes: Any) -> Any:
    return medusa_trainer(
        target,
        eagle.rows_of(data),
        features_of(target, data, states),
        recipe=recipe_with(kind, **SMALL | changes),
        seed=0,
        keep=lambda folder, heads: None,
    )


def randomised(heads: Any) -> None:
    """Blocks that add something, so that heads differ."""
    generator = torch.Generator().manual_seed(2)
    for weight in heads.blocks.parameters():
        weight.data += torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5


def slow_loss(trainer: Any, target: Any, row: Any, features: Any) -> Any:
    """By the definition: every head at every state from the last but one of the prompt on, one at
    a time, against the law that the target's state there gives."""
    heads, text = trainer.head, row.prompt + row.reply
    final = features.states(row, "final").float()
    terms: list[list[Any]] = [[] for _ in range(heads.config.heads)]
    for at in range(len(row.prompt) - 2, len(text) - 2):
        n = at + 1
        made = heads(
            final[None, :n],
            positions=torch.arange(n)[None],
            kv=heads.cache(),
            mask=torch.ones(n, n, dtype=torch.bool).tril(),
        )[0, -1]
        for d in range(heads.config.heads):
            before = at + 1 + d  # the token whose follower head d guesses
            if before + 1 >= len(text):
                break
            law, best = law_of(target, final[before], trainer.vocab_ids)
            if best in trainer.vocab_ids.tolist():
                log_q = heads.output(d)(made[d]).log_softmax(-1)
                terms[d].append(-(law * log_q).sum())
    means = [sum(t) / max(1, len(t)) for t in terms]
    return (means[0] + 0.8 * means[1] + 0.64 * means[2]) / 2.44


@pytest.mark.parametrize(
    ("kind", "changes"), [("medusa", {}), ("medusa", {"train_output": True}), ("meta", {})]
)
def test_the_loss_is_that_of_every_head_at_every_state(target, data, states, kind, changes):
    trainer = a_trainer(target, data, states, kind, draft_vocab_size=5, **changes)
    randomised(trainer.head)
    features = features_of(target, data, states)
    for row in trainer.rows.train[:3]:
        batch = features.batch([row], needs=("final",), device="cpu")
        with torch.no_grad():
            fast, slow = trainer.loss(batch, depth=3), slow_loss(trainer, target, row, features)
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    # controls: the weights of the depths, and which head is which, matter
    trainer.recipe = replace(trainer.recipe, depth_decay=0.5)
    with torch.no_grad():
        assert abs(float(trainer.loss(batch, depth=3) - slow)) > 1e-3
        trainer.recipe = replace(trainer.recipe, depth_decay=0.8)
        trainer.head.blocks = torch.nn.ModuleList(list(trainer.head.blocks)[::-1])
        assert abs(float(trainer.loss(batch, depth=3) - slow)) > 1e-3


def test_all_heads_are_trained_from_the_start(target, data, states):
    for kind in KINDS:
        trainer = a_trainer(target, data, states, kind)
        assert trainer.head.config.heads == 3
        before = {name: p.detach().clone() for name, p in trainer.trained.items()}
        trainer.step(0.0)
        trainer.step(0.1)
        for head in range(3):
            own = [n for n in trainer.trained if n.startswith(f"blocks.{head}.")]
            moved = [n for n in own if not torch.equal(trainer.trained[n], before[n])]
            assert moved, (kind, head)


def train(target: Any, data: Any, states: Any, out: Any, kind: str, **options: Any) -> Any:
    known = RECIPES[kind].__dict__
    changes = {key: options.pop(key) for key in list(options) if key in known}
    recipe = recipe_with(kind, **SMALL | changes)
    return train_medusa(target, kind, data=data, out=out, features=states, recipe=recipe, **options)


@pytest.mark.parametrize(("kind", "changes"), [("medusa", {"layers": 2}), ("meta", {})])
def test_texts_learnt_by_heart_are_accepted_as_often_as_measured(
    target, data, states, kind, changes
):
    """What training reports is what decoding gets; equal but for states in half precision."""
    trainer = a_trainer(target, data, states, kind, draft_vocab_size=64, **changes)
    before = trainer.measure()
    few = trainer.rows.train[:3]
    after = learn_by_heart(trainer, few, steps=150)
    assert before.mean_accepted_length < 2.0
    assert after.mean_accepted_length > 2.8, after
    assert len(after.by_depth) == 3
    heads = trainer.head.eval()
    live = live_acceptance(target, lambda: medusa_drafter(heads), few, draft_length=3)
    assert live == pytest.approx(after.mean_accepted_length, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_training_ends_with_the_same_bits(target, data, states, tmp_path, kind):
    whole = train(target, data, states, tmp_path / "a", kind, steps=9)
    options: dict[str, Any] = {"steps": 9, "seconds_between_checkpoints": 7.0}
    with pytest.raises(eagle.Killed):
        train(target, data, states, tmp_path / "b", kind, **options,
              progress=eagle.killed_after(5), clock=eagle.fake_clock())  # fmt: skip
    assert (tmp_path / "b" / RESUME).exists()
    resumed = train(target, data, states, tmp_path / "b", kind, **options, clock=eagle.fake_clock())
    assert (resumed.steps, resumed.tokens, resumed.loss) == (9, whole.tokens, whole.loss)
    assert not (tmp_path / "b" / RESUME).exists()
    with pytest.raises(eagle.Killed):
        train(target, data, states, tmp_path / "c", kind, steps=9, progress=eagle.killed_after(2))
    with pytest.raises(BadInput, match="as before"):  # control: another run is not taken up
        train(target, data, states, tmp_path / "c", kind, steps=9, seed=1)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_heads_are_whole_and_small_and_know_their_target(
    target, data, states, tmp_path, kind
):
    out = tmp_path / "h"
    before = {name: p.clone() for name, p in target.named_parameters()}
    report = train(target, data, states, out, kind, steps=3)
    assert sorted(p.name for p in out.iterdir()) == ["config.json", "model.safetensors", PROVENANCE]
    tensors = load_file(out / "model.safetensors")
    floats = {k: t for k, t in tensors.items() if t.is_floating_point()}
    assert all(t.dtype == torch.bfloat16 for t in floats.values())
    assert "token_map" in tensors
    stored = read_medusa(out)
    assert stored.borrowed == ("lm_head.weight",)
    assert stored.target is not None
    assert stored.target.fingerprint == target_fingerprint(target)
    assert stored.config.kind == kind
    told = json.loads((out / PROVENANCE).read_text())
    assert told["command"] == f"labkit train {kind} --data text.jsonl --steps 3 --seed 0 --out DIR"
    assert told["draft_vocabulary"]["size"] == 48
    assert len(told["curve"][-1]["by_depth"]) == 3 == len(report.acceptance.by_depth)
    assert str(tmp_path) not in json.dumps(told)
    place: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    assert load_medusa(out, target_model=target, **place).config == stored.config
    with pytest.raises(BadInput, match="fingerprint"):
        load_medusa(out, target_model=eagle.a_target(seed=9), **place)
    assert all(torch.equal(p, before[name]) for name, p in target.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_output_layers_of_their_own_are_trained_and_stored(target, data, states, tmp_path, kind):
    rows = target.get_output_embeddings().weight.clone()
    out = tmp_path / "h"
    train(target, data, states, out, kind, steps=12, train_output=True, draft_vocab_size=64)
    stored = read_medusa(out)
    assert stored.borrowed == ()
    assert len(stored.config.outputs) == (3 if kind == "medusa" else 1)
    for name in stored.config.outputs:
        assert not torch.equal(stored.tensors[name].float(), rows.bfloat16().float())
    assert torch.equal(target.get_output_embeddings().weight, rows)  # the target's own stay


def test_acceptance_is_told_for_as_many_depths_as_there_are_heads():
    assert recipe_with("medusa", depth=2).draft_length == 2
    assert recipe_with("medusa", depth=6, draft_length=5).draft_length == 5


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("medusa", {"depth": 0}, "depth"),
        ("medusa", {"layers": 0}, "layers"),
        ("meta", {"layers": 2}, "layers"),
        ("medusa", {"kind": "meta"}, "kind"),
        ("medusa", {"learning_rate": 0.0}, "learning_rate"),
        ("hydra", {}, "kind of heads"),
    ],
)
def test_impossible_settings_are_refused(kind, changes, named):
    with pytest.raises(BadInput, match=named):
        recipe_with(kind, **changes)
