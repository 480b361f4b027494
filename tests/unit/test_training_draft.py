"""Training a draft model: it learns, it resumes to the bit, it refuses before it writes."""

import hashlib
import json
import random
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from training_helpers import check_a_saved_state

from labkit.errors import BadCheckpoint, BadInput, UnsupportedModel
from labkit.heads.draft_checkpoint import load_draft_checkpoint
from labkit.toy import tiny
from labkit.training.acceptance import replay_chains
from labkit.training.data import IGNORED, collate, read_rows, split
from labkit.training.draft import train_draft
from labkit.training.draft_trainer import DraftRecipe, DraftTrainer
from labkit.training.run import PROVENANCE, RESUME

VOCAB = 32
RECIPE = DraftRecipe(
    layers=(0, 1),
    draft_vocab_size=24,
    batch_tokens=64,
    learning_rate=1e-2,
    warmup_steps=5,
    held_out=0.15,
    seconds_between_checkpoints=1e9,
)


def a_target(**changes):
    return tiny("llama", **({"seed": 0, "vocab_size": VOCAB, "layers": 3} | changes))


def write_rows(path, successor, *, count=120, seed=0):
    """A toy language: after token t comes successor(t, rng)."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            text = [rng.randrange(20)]
            while len(text) < 14:
                text.append(successor(text[-1], rng))
            file.write(json.dumps({"p": text[:4], "r": text[4:]}) + "\n")
    return path


@pytest.fixture
def language(tmp_path):
    return write_rows(tmp_path / "rule.jsonl", lambda t, rng: (3 * t + 1) % 20)


@pytest.fixture
def noise(tmp_path):
    return write_rows(tmp_path / "noise.jsonl", lambda t, rng: rng.randrange(20))


def fake_clock():
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    return clock


def tensors_of(path):
    return load_file(path / "model.safetensors")


def assert_equal_tensors(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_it_learns_a_rule_and_cannot_learn_noise(tmp_path, language, noise):
    target = a_target()
    learnt = train_draft(target, data=language, out=tmp_path / "a", steps=120, recipe=RECIPE)
    guessed = train_draft(target, data=noise, out=tmp_path / "b", steps=120, recipe=RECIPE)
    assert learnt.acceptance.first == 1.0
    assert learnt.acceptance.by_depth == (1.0, 1.0, 1.0)
    assert learnt.loss < 0.5
    # control: twenty equally likely tokens can be guessed with probability 1/20
    assert guessed.acceptance.first < 0.3
    assert guessed.loss > 2.0


class Killed(Exception):
    pass


def killed_after(steps):
    calls = [0]

    def progress(what, done, total):
        calls[0] += 1
        if calls[0] == steps:
            raise Killed

    return progress


@pytest.mark.parametrize("killed_at", [1, 7, 20])
def test_interrupted_training_ends_with_the_same_bits(tmp_path, language, killed_at):
    target = a_target()
    # a clock of one second per look: checkpoints come every few steps, at different ones
    often = replace(RECIPE, seconds_between_checkpoints=5.0)
    whole = train_draft(target, data=language, out=tmp_path / "a", steps=40, recipe=RECIPE)
    settings = {"data": language, "out": tmp_path / "b", "steps": 40, "recipe": often}
    with pytest.raises(Killed):
        train_draft(target, **settings, progress=killed_after(killed_at), clock=fake_clock())
    assert (tmp_path / "b" / RESUME).exists()
    with pytest.raises(Killed):
        train_draft(target, **settings, progress=killed_after(9), clock=fake_clock())
    resumed = train_draft(target, **settings, clock=fake_clock())
    assert (resumed.steps, resumed.tokens, resumed.loss) == (whole.steps, whole.tokens, whole.loss)
    # the rule is learnt by then, so in both runs the last weights are the best
    assert whole.acceptance.first == resumed.acceptance.first == 1.0
    assert_equal_tensors(tensors_of(tmp_path / "b"), tensors_of(tmp_path / "a"))
    assert not (tmp_path / "b" / RESUME).exists()


@pytest.mark.parametrize("lost", ["model.safetensors", "config.json", PROVENANCE])
def test_a_run_whose_weights_were_taken_away_writes_them_again(tmp_path, language, lost):
    often = replace(RECIPE, seconds_between_checkpoints=3.0)
    settings = {"data": language, "out": tmp_path / "out", "steps": 20, "recipe": often}
    with pytest.raises(Killed):
        train_draft(a_target(), **settings, progress=killed_after(9), clock=fake_clock())
    resume = tmp_path / "out" / RESUME
    with safe_open(resume, "pt") as file:
        state = json.loads(file.metadata()["state"])
    assert state["at"]["curve"]
    state["at"]["best"] = 99.0  # as if nothing to come could be as good as what is lost
    save_file(load_file(resume), resume, metadata={"state": json.dumps(state)})
    (tmp_path / "out" / lost).unlink()
    report = train_draft(a_target(), **settings, clock=fake_clock())
    assert report.steps == 20
    assert load_draft_checkpoint(
        tmp_path / "out", target_model=a_target(), dtype=torch.float32, device="cpu"
    )
    assert (tmp_path / "out" / PROVENANCE).exists()


def rows_of(path):
    return read_rows(path, vocab_size=VOCAB)


def test_save_and_load_leave_no_trace_in_the_weights(tmp_path, language):
    target, rows = a_target(), rows_of(language)

    def trainer():
        return DraftTrainer(target, rows, recipe=RECIPE, seed=0)

    check_a_saved_state(trainer, tmp_path / "s", saved_at=13, steps=30)


def test_another_seed_trains_other_weights(tmp_path, language):
    target = a_target()
    for seed in (0, 1):
        train_draft(
            target, data=language, out=tmp_path / str(seed), steps=10, seed=seed, recipe=RECIPE
        )
    again = tmp_path / "again"
    train_draft(target, data=language, out=again, steps=10, seed=0, recipe=RECIPE)
    assert_equal_tensors(tensors_of(again), tensors_of(tmp_path / "0"))
    name = "model.norm.weight"
    assert not torch.equal(tensors_of(again)[name], tensors_of(tmp_path / "1")[name])


def test_minutes_end_on_the_clock(tmp_path, language):
    report = train_draft(
        a_target(),
        data=language,
        out=tmp_path / "a",
        minutes=1.0,
        recipe=RECIPE,
        clock=fake_clock(),
    )
    # the clock gives a second per look, three looks per step
    assert 10 <= report.steps <= 30
    assert 1.0 <= report.minutes < 1.2


def test_the_report_is_what_the_loaded_weights_do(tmp_path, language):
    target = a_target()
    report = train_draft(target, data=language, out=tmp_path / "a", steps=9, recipe=RECIPE)
    draft = load_draft_checkpoint(
        tmp_path / "a", target_model=target, dtype=torch.float32, device="cpu"
    )
    hits = []
    for row in split(rows_of(language), held_out=RECIPE.held_out).held_out:
        text = row.prompt + row.reply
        # one forward per position, nothing shared: slow and plain
        guesses = [
            int(draft.vocab_ids[draft.model(torch.tensor([text[:i]])).logits[0, -1].argmax()])
            for i in range(len(row.prompt), len(text))
        ]
        hits.append([g == t for g, t in zip(guesses, row.reply, strict=True)])
    live = replay_chains(hits, depth=3)
    # training measured in float32, the file is bfloat16: a guess or two may tip
    assert live.first == pytest.approx(report.acceptance.first, abs=0.05)
    assert 0.1 < live.first < 1.0


def test_provenance_says_how_to_repeat_it(tmp_path, language):
    out = tmp_path / "a"
    report = train_draft(a_target(), data=language, out=out, steps=10, seed=3, recipe=RECIPE)
    text = (out / PROVENANCE).read_text()
    said = json.loads(text)
    assert said["command"] == "labkit train draft --data rule.jsonl --steps 10 --seed 3 --out DIR"
    assert said["steps"] == report.steps == 10
    assert said["held_out"]["first"] == report.acceptance.first
    weights = (out / "model.safetensors").read_bytes()
    assert said["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert said["data"]["rows"] == 120
    reply_tokens = said["data"]["reply_tokens_trained_on"] + said["data"]["reply_tokens_held_out"]
    assert reply_tokens == 1200
    assert str(tmp_path) not in text


def test_held_out_rows_are_never_trained_on(language):
    trainer = DraftTrainer(a_target(), rows_of(language), recipe=RECIPE, seed=0)
    assert len(trainer.rows.train) + len(trainer.rows.held_out) == 120
    seen = {row for batch in trainer.state.batches for row in batch}
    assert seen == set(trainer.rows.train)
    held_prompts = {row.prompt for row in trainer.rows.held_out}
    assert held_prompts
    assert not held_prompts & {row.prompt for row in trainer.rows.train}


def test_the_loss_counts_reply_words_of_the_draft_vocabulary_only(language):
    target = a_target()
    rows = rows_of(language)
    trainer = DraftTrainer(target, rows, recipe=replace(RECIPE, draft_vocab_size=10), seed=0)
    batch = collate(rows[:5], device="cpu")
    words = {int(i): d for d, i in enumerate(trainer.vocab_ids)}
    losses, skipped = [], 0
    for row in rows[:5]:
        text = torch.tensor([row.prompt + row.reply])
        log_p = trainer.model(text).logits[0].log_softmax(-1)
        for i, token in enumerate(row.reply, start=len(row.prompt)):
            if token in words:
                losses.append(-log_p[i - 1, words[token]])
            else:
                skipped += 1
    assert skipped > 0
    torch.testing.assert_close(trainer._loss(batch), torch.stack(losses).mean())
    # and a batch without any such word costs nothing instead of turning everything into NaN
    batch.targets.fill_(IGNORED)
    assert trainer._loss(batch).item() == 0.0


def test_the_layers_start_as_the_targets(language):
    target = a_target()
    recipe = replace(RECIPE, layers=(2,))
    trainer = DraftTrainer(target, rows_of(language), recipe=recipe, seed=0)
    ours = trainer.model.model.layers[0].state_dict()
    assert_equal_tensors(ours, target.model.layers[2].state_dict())
    name = "mlp.up_proj.weight"
    assert not torch.equal(ours[name], target.model.layers[0].state_dict()[name])
    trainer.step(0.0)
    assert not torch.equal(
        trainer.model.model.layers[0].mlp.up_proj.weight, target.model.layers[2].mlp.up_proj.weight
    )
    assert_equal_tensors(target.state_dict(), a_target().state_dict())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minutes": 0.0, "steps": None}, "minutes: expected a number above 0"),
        ({"minutes": -1.0, "steps": None}, "minutes: expected a number above 0"),
        ({"minutes": float("nan"), "steps": None}, "minutes: expected a number above 0"),
        ({"steps": 0}, "steps: expected a number above 0"),
        ({"minutes": 1.0}, "got both"),
        ({"steps": None}, "got neither"),
        ({"recipe": replace(RECIPE, layers=(0, 3))}, "layer numbers from 0 to 2"),
        ({"recipe": replace(RECIPE, layers=())}, "layer numbers from 0 to 2"),
        ({"recipe": replace(RECIPE, draft_vocab_size=33)}, "1 to 32"),
        ({"recipe": replace(RECIPE, held_out=0.0)}, "held_out"),
        ({"recipe": replace(RECIPE, learning_rate=0.0)}, "learning_rate"),
        ({"data": "missing.jsonl"}, "no such file"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(tmp_path, language, changes, words):
    settings = {"data": language, "out": tmp_path / "out", "steps": 1, "recipe": RECIPE}
    with pytest.raises(BadInput) as caught:
        train_draft(a_target(), **(settings | changes))
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()
    train_draft(a_target(), **settings)  # control: unchanged settings work


def test_too_few_rows_are_refused(tmp_path):
    data = write_rows(tmp_path / "one.jsonl", lambda t, rng: t, count=1)
    with pytest.raises(BadInput, match="at least 2 different prompts"):
        train_draft(a_target(), data=data, out=tmp_path / "out", steps=1, recipe=RECIPE)
    assert not (tmp_path / "out").exists()


def test_a_target_of_another_family_is_refused(tmp_path, language):
    with pytest.raises(UnsupportedModel, match="qwen3"):
        train_draft(
            tiny("qwen3", vocab_size=VOCAB, layers=3),
            data=language,
            out=tmp_path / "out",
            steps=1,
            recipe=RECIPE,
        )
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, language):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"thesis\.txt"):
        train_draft(a_target(), data=language, out=out, steps=1, recipe=RECIPE)
    assert [item.name for item in out.iterdir()] == ["thesis.txt"]
    with pytest.raises(BadInput, match="a file"):
        train_draft(a_target(), data=language, out=out / "thesis.txt", steps=1, recipe=RECIPE)


def test_a_finished_folder_is_not_trained_over(tmp_path, language):
    settings = {"data": language, "out": tmp_path / "out", "steps": 2, "recipe": RECIPE}
    train_draft(a_target(), **settings)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    with pytest.raises(BadInput, match="new or empty folder"):
        train_draft(a_target(), **settings)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("changed", ["data", "seed", "recipe"])
def test_a_run_is_resumed_with_its_own_settings_only(tmp_path, language, noise, changed):
    settings = {"data": language, "out": tmp_path / "out", "steps": 9, "recipe": RECIPE}
    with pytest.raises(Killed):
        train_draft(a_target(), **settings, progress=killed_after(2))
    other = {"data": noise, "seed": 1, "recipe": replace(RECIPE, learning_rate=1e-4)}
    with pytest.raises(BadInput, match=changed):
        train_draft(a_target(), **(settings | {changed: other[changed]}))
    train_draft(a_target(), **settings)


def test_an_unreadable_interrupted_run_is_named(tmp_path, language):
    out = tmp_path / "out"
    out.mkdir()
    (out / RESUME).write_bytes(b"not a tensor file")
    with pytest.raises(BadCheckpoint, match="interrupted training"):
        train_draft(a_target(), data=language, out=out, steps=1, recipe=RECIPE)


def test_progress_counts_up_to_the_goal(tmp_path, language):
    told = []
    train_draft(
        a_target(),
        data=language,
        out=tmp_path / "out",
        steps=5,
        recipe=RECIPE,
        progress=lambda what, done, total: told.append((done, total)),
    )
    assert told == [(i, 5) for i in range(1, 6)]
