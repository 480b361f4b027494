"""Training heads: the loss by its definition, resumption to the bit, what is saved and refused."""

import copy
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from typing import Any

import pytest
import torch
import training_helpers
from safetensors.torch import load_file
from training_helpers import (
    check_a_saved_state,
    law_of,
    learn_by_heart,
    live_acceptance,
    slow_loss,
)

from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.shapes import Chain
from labkit.errors import BadInput
from labkit.heads.checkpoints import load_head
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.metrics import acceptance
from labkit.target import Target
from labkit.toy import tiny
from labkit.trace import Trace
from labkit.training.data import read_rows
from labkit.training.eagle import KINDS, convert, recipe_of, recipe_with, train_eagle
from labkit.training.eagle_trainer import EagleTrainer
from labkit.training.features import cache_features
from labkit.training.head_trainer import depth_at
from labkit.training.parallel import announced
from labkit.training.run import PROVENANCE, RESUME

NEEDS = ("h2", "h4", "h5", "final")
SMALL = {
    "draft_vocab_size": 48,
    "batch_tokens": 96,
    "learning_rate": 1e-2,
    "held_out": 0.2,
    "draft_length": 4,
    "noise": 0.0,
    "seconds_between_checkpoints": 1e9,
}


def a_target(**changes: Any) -> Any:
    model = tiny("llama", **({"layers": 8, "vocab_size": 64} | changes))
    model.lm_head.weight.mul_(4)  # as sure of its next token as trained models are
    return model


@pytest.fixture(scope="session")
def target():
    return a_target()


@pytest.fixture(scope="session")
def data(target, tmp_path_factory):
    """Thirty prompts and the target's own greedy replies."""
    path = tmp_path_factory.mktemp("data") / "text.jsonl"
    generator = torch.Generator().manual_seed(3)
    prompts = torch.randint(64, (30, 4), generator=generator)
    ids = prompts
    with torch.inference_mode():
        for _ in range(20):
            following = target(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1)
            ids = torch.cat((ids, following[:, None]), 1)
    with path.open("w") as file:
        for index, row in enumerate(ids.tolist()):
            end = 24 - index % 5
            file.write(json.dumps({"p": row[:4], "r": row[4:end]}) + "\n")
    return path


@pytest.fixture(scope="session")
def states(target, data, tmp_path_factory):
    """A folder with the target's states for that text."""
    folder = tmp_path_factory.mktemp("states") / "f"
    cache_features(target, rows_of(data), needs=NEEDS, folder=folder)
    return folder


def rows_of(path):
    return read_rows(path, vocab_size=64)


def a_trainer(target, data, states, kind, **changes):
    rows = rows_of(data)
    return EagleTrainer(
        target,
        rows,
        cache_features(target, rows, needs=NEEDS, folder=states),
        recipe=recipe_with(kind, **SMALL | changes),
        seed=0,
        keep=lambda head, folder: folder.append(copy.deepcopy(head)),
    )


def kept(trainer):
    """The head as it would be written: for the target's states as they are."""
    heads: Any = []
    trainer.save_weights(heads)
    return heads[0]


def shaken(trainer):
    """A new head reads nothing of its attention yet; here everything matters."""
    generator = torch.Generator().manual_seed(5)
    for parameter in trainer.trained.values():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(0.05 * noise)
    return trainer


# --- the loss, position by position ---


@pytest.mark.parametrize("kind", ["eagle3", "eagle31"])
def test_the_loss_is_that_of_a_drafter_at_every_position(target, data, states, kind):
    trainer = shaken(a_trainer(target, data, states, kind, draft_vocab_size=5))
    features = cache_features(target, rows_of(data), needs=NEEDS, folder=states)
    said = [t in trainer.vocab_ids.tolist() for row in trainer.rows.train for t in row.reply]
    assert 0 < sum(said) < len(said)  # some positions count, some do not
    for row in trainer.rows.train[:4]:
        batch = trainer._features.batch([row], needs=NEEDS, device="cpu")
        with torch.no_grad():
            fast = trainer.loss(batch, depth=3)
            slow = slow_loss(trainer, kept(trainer), target, row, features, weights=(1, 0.8, 0.64))
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
        # control: the weight of a step matters
        trainer.recipe = replace(trainer.recipe, depth_decay=0.7)
        with torch.no_grad():
            assert abs(float(trainer.loss(batch, depth=3) - slow)) > 1e-3
        trainer.recipe = replace(trainer.recipe, depth_decay=0.8)


def test_padding_and_prompts_do_not_count(target, data, states):
    trainer = shaken(a_trainer(target, data, states, "eagle3"))
    features = cache_features(target, rows_of(data), needs=NEEDS, folder=states)
    short, long = sorted(trainer.rows.train, key=len)[:: len(trainer.rows.train) - 1]
    assert len(short) < len(long)

    def loss(*rows):
        return float(trainer.loss(features.batch(rows, needs=NEEDS, device="cpu"), depth=3))

    with torch.no_grad():
        together, apart = loss(short, long), (loss(short), loss(long))
        assert min(apart) < together < max(apart)
        batch = features.batch([long], needs=NEEDS, device="cpu")
        before = float(trainer.loss(batch, depth=3))
        batch.states["final"][:, : len(long.prompt) - 1] = 7.0  # what the prompt predicted
        assert float(trainer.loss(batch, depth=3)) == before


def test_the_loss_of_eagle_1(target, data, states):
    trainer = shaken(a_trainer(target, data, states, "eagle1"))
    features = cache_features(target, rows_of(data), needs=NEEDS, folder=states)
    row = trainer.rows.train[0]
    text, final = row.prompt + row.reply, features.states(row, "final").float()
    near, unlike = [], []
    with torch.no_grad():
        for pair in range(len(row.prompt) - 2, len(text) - 2):
            made = trainer.head(
                torch.tensor([text[1 : pair + 2]]),
                final[None, : pair + 1],
                positions=torch.arange(pair + 1)[None],
                kv=trainer.head.cache(),
                mask=torch.ones(pair + 1, pair + 1, dtype=torch.bool).tril(),
            ).normed[0, -1]
            error = (made - final[pair + 1]).abs()
            near.append(torch.where(error < 1, error**2 / 2, error - 0.5).mean())
            law, best = law_of(target, final[pair + 1], trainer.vocab_ids)
            if best in trainer.vocab_ids.tolist():
                log_q = trainer.head.logits(made)[trainer.vocab_ids].log_softmax(-1)
                unlike.append(-(law * log_q).sum())
        slow = sum(near) / len(near) + 0.1 * sum(unlike) / len(unlike)
        fast = trainer.loss(features.batch([row], needs=NEEDS, device="cpu"), depth=1)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_text_s_first_token_is_no_guess(target, tmp_path, kind):
    """No pair stands before it; with a prompt of one token it is part of the reply."""
    path = tmp_path / "text.jsonl"
    rows = [{"p": [i], "r": [(7 * i + j) % 64 for j in range(12)]} for i in range(20)]
    path.write_text("".join(map("{}\n".format, map(json.dumps, rows))))
    trainer = a_trainer(target, path, tmp_path / "states", kind)
    batch = trainer._features.batch(trainer.rows.train[:3], needs=NEEDS, device="cpu")
    with torch.no_grad():
        before = float(trainer.loss(batch, depth=1))
        batch.text.targets[:, 0] = -1
        torch.testing.assert_close(float(trainer.loss(batch, depth=1)), before)


def test_noise_is_uniform_and_follows_from_seed_and_step(target, data, states):
    trainer = a_trainer(target, data, states, "eagle1", noise=0.2)
    drawn = trainer._noise(torch.Size((4, 128, 32)), width=0.2)
    assert torch.equal(drawn, trainer._noise(torch.Size((4, 128, 32)), width=0.2))
    assert drawn.abs().max() <= 0.1 * 512 / 128
    assert drawn.std().item() == pytest.approx(0.2 * 4 / 12**0.5, rel=0.02)
    trainer.state.at = replace(trainer.state.at, step=1)
    assert not torch.equal(drawn, trainer._noise(torch.Size((4, 128, 32)), width=0.2))


# --- training ---


def test_the_test_of_training_time_grows_deeper():
    recipe = recipe_of("eagle3")
    assert [depth_at(share, recipe) for share in (0, 0.49, 0.5, 0.74, 0.75, 1)] == [
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    always = replace(recipe, shallow=0.0, depth=2)
    assert [depth_at(share, always) for share in (0, 0.5, 1)] == [2, 2, 2]
    seven = replace(recipe, depth=7, shallow=0.4)
    assert [depth_at(share, seven) for share in (0.39, 0.4, 0.51, 0.99)] == [1, 2, 3, 7]
    assert depth_at(0.9, replace(recipe, depth=1)) == 1


def train(target, data, states, out, kind, **options):
    changes = {key: options.pop(key) for key in list(options) if key in recipe_of(kind).__dict__}
    recipe = recipe_with(kind, **SMALL | changes)
    return train_eagle(target, kind, data=data, out=out, features=states, recipe=recipe, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_learnt_by_heart_are_accepted_as_often_as_measured(target, data, states, kind):
    """What training reports is what decoding gets; equal but for states in half precision."""
    trainer = a_trainer(target, data, states, kind, draft_vocab_size=64, shallow=0.0)
    before = trainer.measure()
    few = trainer.rows.train[:4]
    after = learn_by_heart(trainer, few, steps=150)
    assert before.mean_accepted_length < 2.0
    assert after.first > 0.9, after
    assert after.mean_accepted_length > 3.5, after
    head = kept(trainer).eval()
    live = live_acceptance(target, lambda: eagle_drafter(head, shape=Chain()), few, draft_length=4)
    assert live == pytest.approx(after.mean_accepted_length, rel=0.02)


class Killed(Exception):
    pass


def killed_after(steps):
    calls = [0]

    def progress(what, done, total):
        calls[0] += what.startswith("training")
        if calls[0] == steps:
            raise Killed

    return progress


def fake_clock():
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    return clock


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_training_ends_with_the_same_bits(target, data, states, tmp_path, kind):
    whole = train(target, data, states, tmp_path / "a", kind, steps=12, noise=0.2)
    options = {"steps": 12, "noise": 0.2, "seconds_between_checkpoints": 7.0}
    for killed_at in (5, 4):
        with pytest.raises(Killed):
            train(target, data, states, tmp_path / "b", kind, **options,
                  progress=killed_after(killed_at), clock=fake_clock())  # fmt: skip
        assert (tmp_path / "b" / RESUME).exists()
    resumed = train(target, data, states, tmp_path / "b", kind, **options, clock=fake_clock())
    assert (resumed.steps, resumed.tokens, resumed.loss) == (12, whole.tokens, whole.loss)
    curve = json.loads((tmp_path / "b" / PROVENANCE).read_text())["curve"]
    assert [p["step"] for p in curve] == sorted({p["step"] for p in curve})
    if curve[-1]["step"] == 12:  # the last weights were the best, in both runs
        ours, theirs = (load_file(tmp_path / n / "model.safetensors") for n in "ab")
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not (tmp_path / "b" / RESUME).exists()


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load_leave_no_trace_in_the_weights(target, data, states, tmp_path, kind):
    def trainer():
        return a_trainer(target, data, states, kind, noise=0.2)

    check_a_saved_state(trainer, tmp_path / "s", saved_at=4, steps=10)
    with pytest.raises(BadInput, match="seed 0 as before"):
        trainer().state.load(tmp_path / "s", origin={"seed": 1})


# --- the draft vocabulary and the files ---


def test_the_draft_vocabulary_is_the_commonest_reply_tokens(target, data, states, tmp_path):
    trainer = a_trainer(target, data, states, "eagle3", draft_vocab_size=5)
    replies = [t for row in trainer.rows.train for t in row.reply]
    counts = sorted(({t: replies.count(t) for t in set(replies)}).items(), key=lambda c: (-c[1], c))
    commonest = sorted(t for t, _ in counts[:5])
    assert trainer.vocab_ids.tolist() == commonest
    share = sum(t in commonest for t in replies) / len(replies)
    assert 0.05 < share < 0.95
    assert trainer.coverage == pytest.approx(share)
    train(target, data, states, tmp_path / "h", "eagle3", draft_vocab_size=5, steps=1)
    tensors = load_file(tmp_path / "h" / "model.safetensors")
    assert (tensors["d2t"] + torch.arange(5)).tolist() == commonest
    assert tensors["t2d"].nonzero().flatten().tolist() == commonest
    told = json.loads((tmp_path / "h" / PROVENANCE).read_text())
    assert told["draft_vocabulary"] == {"size": 5, "coverage": pytest.approx(share, abs=1e-4)}


def test_a_saved_head_is_whole_and_small_and_knows_its_target(target, data, states, tmp_path):
    for kind in KINDS:
        out = tmp_path / kind
        train(target, data, states, out, kind, steps=3)
        assert sorted(p.name for p in out.iterdir()) == [
            "config.json", "model.safetensors", PROVENANCE,
        ]  # fmt: skip
        tensors = load_file(out / "model.safetensors")
        floats = {k: t for k, t in tensors.items() if t.is_floating_point()}
        assert all(t.dtype == torch.bfloat16 for t in floats.values())
        assert not {"embed_tokens.weight", "lm_head.weight"} & tensors.keys()
        config = json.loads((out / "config.json").read_text())
        assert config["labkit"]["target_fingerprint"] == target_fingerprint(target)
        assert (config.get("fc_norm"), config.get("norm_output")) == (
            (True, True) if kind == "eagle31" else (None, None)
        )
        with pytest.raises(BadInput, match="fingerprint"):
            load_head(out, target_model=a_target(seed=9), dtype=torch.float32, device="cpu")
    section = json.loads((tmp_path / "eagle3" / "config.json").read_text())
    assert section["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert "midlayer.self_attn.q_proj.weight" in load_file(tmp_path / "eagle3/model.safetensors")


def test_an_output_layer_of_its_own_is_trained_and_stored(target, data, states, tmp_path):
    train(target, data, states, tmp_path / "h", "eagle3", steps=20, train_output=True)
    stored = load_file(tmp_path / "h" / "model.safetensors")["lm_head.weight"]
    trainer = a_trainer(target, data, states, "eagle3")
    theirs = target.get_output_embeddings().weight[trainer.vocab_ids]
    assert stored.shape == theirs.shape
    assert not torch.equal(stored, theirs.bfloat16())
    trainer.step(0.5)
    assert torch.equal(trainer.head.lm_head.weight, theirs)  # frozen otherwise


def test_provenance_repeats_the_run(target, data, states, tmp_path):
    train(target, data, states, tmp_path / "h", "eagle31", steps=4, seed=7)
    told = json.loads((tmp_path / "h" / PROVENANCE).read_text())
    assert told["command"] == (
        "labkit train eagle31 --data text.jsonl --steps 4 --seed 7 --out DIR"
    )
    assert told["data"]["sha256"] == hashlib.sha256(data.read_bytes()).hexdigest()
    assert told["recipe"]["norm_output"] is True
    assert told["weights_sha256"] == (
        hashlib.sha256((tmp_path / "h" / "model.safetensors").read_bytes()).hexdigest()
    )
    assert len(told["curve"][-1]["by_depth"]) == SMALL["draft_length"]
    assert str(tmp_path) not in json.dumps(told)


# --- several processes ---

TOGETHER = """
    import sys, torch
    from pathlib import Path
    sys.path[:0] = {folders!r}
    import test_training_eagle as t
    from labkit.training.data import read_rows
    from labkit.training.eagle import recipe_with, train_eagle
    from labkit.training.parallel import announced

    data, states, out = map(Path, sys.argv[1:])
    recipe = recipe_with("eagle3", **t.SMALL)
    train_eagle(t.a_target(), "eagle3", data=data, out=out, features=states, recipe=recipe, steps=3)
"""


def test_two_processes_train_one_head(target, data, states, tmp_path):
    """Both add the mean of two gradients, so they end as one process that takes both batches."""
    script = tmp_path / "together.py"
    folders = [os.path.dirname(__file__), os.path.dirname(training_helpers.__file__)]
    script.write_text(textwrap.dedent(TOGETHER).format(folders=folders))
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29811"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(data), str(states), str(tmp_path / "out")],
            env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]

    alone = a_trainer(target, data, states, "eagle3")
    features = alone._features
    even = len(alone.state.batches) - len(alone.state.batches) % 2
    assert even >= 6
    batches = list(alone.state.batches)
    plain = alone.loss

    def both(batch, *, depth):
        step = alone.state.at.step
        pair = [features.batch(b, needs=NEEDS, device="cpu") for b in batches[2 * step :][:2]]
        return sum(plain(b, depth=depth) for b in pair) / 2

    alone.loss = both
    for step in range(3):
        alone.step(step / 3)
    found = load_file(tmp_path / "out" / "model.safetensors")["midlayer.mlp.up_proj.weight"]
    mine = alone.head.layers[0].mlp.up_proj.weight.detach()
    torch.testing.assert_close(found, mine.bfloat16(), rtol=1e-2, atol=1e-4)
    other = a_trainer(target, data, states, "eagle3")  # control: one batch per step
    for step in range(3):
        other.step(step / 3)
    apart = (other.head.layers[0].mlp.up_proj.weight.detach() - mine).abs().mean()
    assert apart > 10 * (found.float() - mine).abs().mean()


def test_a_process_is_told_who_it_is_by_the_launcher():
    told = announced({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    assert (told.rank, told.size, told.local, told.first) == (3, 4, 1, False)
    assert announced({}).first


# --- conversion, refusals ---


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "mistral"])
@pytest.mark.parametrize("kind", KINDS)
def test_convert_adds_a_head_to_any_target(family, kind):
    model = tiny(family, layers=8)
    before = {name: p.clone() for name, p in model.named_parameters()}
    head = convert(model, kind, vocab_ids=range(0, 64, 2))
    drafter = eagle_drafter(head, shape=Chain())
    config = DecodeConfig(max_new_tokens=12, temperature=0.0)
    prompt = (5, 9, 2, 7)
    events = speculate(Target(model, needs=drafter.needs), drafter, prompt, config=config)
    trace = Trace.record(events)
    assert acceptance(trace).drafted > 0
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(12):
            following = model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1)
            ids = torch.cat((ids, following[None]), 1)
    assert list(trace.tokens) == ids[0, 4:].tolist()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert head.embed_tokens.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()


def test_raw_states_are_trained_at_one_size_and_the_kept_head_reads_them_as_they_are(
    target, data, states, tmp_path
):
    """A late state a hundred times as large changes nothing of the training, and of the kept head
    only that state's columns of ``fc``, by powers of two; keeping leaves no trace in the weights.
    """
    rows = rows_of(data)
    features = cache_features(target, rows, needs=NEEDS, folder=states)
    trainer = shaken(a_trainer(target, data, states, "eagle3"))
    sizes = trainer._features.sizes
    for name in ("h2", "h4", "h5"):
        found = torch.cat([features.states(row, name).float() for row in rows])
        typical = float(found.pow(2).mean(-1).median().sqrt())
        assert 0.7 < typical / sizes[name] < 1.42
        assert sizes[name] == 2.0 ** round(torch.tensor(sizes[name]).log2().item())
    before = {name: p.clone() for name, p in trainer.trained.items()}
    head, width = kept(trainer), 32
    for name, weight in trainer.trained.items():
        assert torch.equal(weight, before[name])
    for place, name in enumerate(("h2", "h4", "h5")):
        ours = trainer.head.fc.weight[:, place * width : (place + 1) * width]
        theirs = head.fc.weight[:, place * width : (place + 1) * width]
        assert torch.equal(theirs * sizes[name], ours)
    # EAGLE-3.1 norms the states itself
    plain = a_trainer(target, data, states, "eagle31")
    assert torch.equal(kept(plain).fc.weight, plain.head.fc.weight)


@pytest.mark.parametrize("kind", ["eagle3", "eagle31"])
def test_a_new_head_is_unsure_of_what_its_deepest_state_says(kind):
    """Its logits, for whatever token, are the target's rows times that state of unit size, with a
    spread near 1: worse than a uniform guess by well under a nat, where a random start loses many.
    """
    model = tiny("llama", layers=8, vocab_size=4096)
    model.lm_head.weight.mul_(40)
    head = convert(model, kind, draft_vocab_size=2048)
    ids = torch.randint(2048, (1, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(input_ids=ids, output_hidden_states=True, use_cache=False)
        states = [found.hidden_states[k] for k in head.config.boundaries]

        def logits(states):
            mask = torch.ones(64, 64, dtype=torch.bool).tril()
            where = torch.arange(64)[None]
            made = head(ids, head.fuse(states), positions=where, kv=head.cache(), mask=mask)
            return head.logits(made.normed)[0]

        said = logits(states)
        deepest = states[-1][0] / states[-1][0].pow(2).mean(-1, keepdim=True).sqrt()
        plain = deepest @ model.lm_head.weight[:2048].T
        law = found.logits[0, :, :2048].softmax(-1)
        nats = -(law * said.log_softmax(-1)).sum(-1).mean()
        alike = torch.cosine_similarity(said, plain, dim=-1)
        assert float(alike.min()) > 0.9
        # control: another state would not do
        assert float(torch.cosine_similarity(logits(states[::-1]), plain, dim=-1).mean()) < 0.8
    assert 0.7 < float(said.std(-1).mean()) < 1.4
    assert float(nats) < torch.tensor(2048.0).log() + 0.75


def test_convert_refuses_what_cannot_be():
    model = a_target()
    with pytest.raises(BadInput, match="eagle1, eagle3, eagle31"):
        convert(model, "eagle4")
    for wrong in ([3, 2], [1, 1], [-1, 2], [5, 64], []):
        with pytest.raises(BadInput, match="ascending target ids"):
            convert(model, "eagle3", vocab_ids=wrong)
    with pytest.raises(BadInput, match="4 layers"):
        convert(a_target(layers=4), "eagle3")
    assert convert(a_target(layers=4), "eagle3", boundaries=(1, 2, 3)).config.boundaries == (
        1,
        2,
        3,
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"depth": 0}, "depth"),
        ({"shallow": 1.0}, "shallow"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"draft_vocab_size": 0}, "draft_vocab_size"),
        ({"draft_vocab_size": 65}, "draft_vocab_size"),
        ({"warmup": 0.0}, "warmup"),
        ({"held_out": 1.0}, "held_out"),
        ({"version": 2}, "version"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_written(
    target, data, tmp_path, changes, named
):
    recipe = replace(recipe_of("eagle3"), **SMALL | changes)
    with pytest.raises(BadInput, match=named):
        train_eagle(target, "eagle3", data=data, out=tmp_path / "o", features=tmp_path / "f",
                    recipe=recipe, steps=1)  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_too_few_rows_and_other_runs_are_refused(target, data, states, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"p": [1, 2], "r": [3, 4, 5]}) + "\n")
    with pytest.raises(BadInput, match="at least 2 different prompts"):
        train(target, few, tmp_path / "f", tmp_path / "o", "eagle3", steps=1)
    assert not (tmp_path / "o").exists()
    with pytest.raises(Killed):
        train(target, data, states, tmp_path / "o", "eagle3", steps=9, progress=killed_after(2))
    for changes in ({"seed": 1}, {"learning_rate": 1e-3}):
        with pytest.raises(BadInput, match="as before"):
            train(target, data, states, tmp_path / "o", "eagle3", steps=9, **changes)
    with pytest.raises(BadInput, match="as before"):
        train(target, data, states, tmp_path / "o", "eagle31", steps=9)
