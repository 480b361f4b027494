"""``labkit train`` of every kind of head: refused before a model is loaded, or trained."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit.errors import BadInput
from labkit.lab import load as loading
from labkit.toy import tiny

KINDS = ("eagle1", "eagle3", "eagle31", "mtp", "medusa", "meta")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "text.jsonl"
    rows = [{"p": [i, i + 1, i + 2], "r": [7, 8, 9, 10, 11, 12]} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def loads(monkeypatch):
    """Models that were asked for; each is a tiny one."""
    asked: list[Any] = []

    def load_model(name, **options):
        asked.append((name, options))
        return SimpleNamespace(model=tiny("llama", layers=8), name=name)

    monkeypatch.setattr(loading, "load_model", load_model)
    return asked


def call(*arguments):
    return CliRunner().invoke(cli.app, ["train", *map(str, arguments)])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--data", "nowhere.jsonl", "--minutes", 1), "--data"),
        (("--minutes", 0), "minutes"),
        (("--minutes", 1, "--steps", 5), "length of training"),
        ((), "length of training"),
        (("--steps", 1, "--depth", 0), "depth"),
        (("--steps", 1, "--learning-rate", -1), "learning_rate"),
        (("--steps", 1, "--draft-vocab", 0), "draft_vocab_size"),
        (("--steps", 1, "--seed", 2**64), "seed"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_options_are_refused_before_a_model_is_loaded(
    tmp_path, data, loads, kind, options, named
):
    given = () if "--data" in options else ("--data", data)
    done = call(kind, *given, "--out", tmp_path / "out", *options)
    assert isinstance(done.exception, BadInput)
    assert named in str(done.exception)
    assert loads == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.jsonl"]


def test_an_output_of_its_own_is_not_for_eagle_1(tmp_path, data, loads):
    done = call("eagle1", "--data", data, "--out", tmp_path / "out", "--steps", 1, "--own-output")
    assert isinstance(done.exception, BadInput)
    assert "train_output" in str(done.exception)
    assert loads == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "medusa"])
def test_residual_blocks_are_for_medusa_alone(tmp_path, data, loads, kind):
    done = call(kind, "--data", data, "--out", tmp_path / "out", "--steps", 1, "--blocks", 2)
    assert isinstance(done.exception, BadInput)
    assert ("--blocks" if kind != "meta" else "layers") in str(done.exception)
    assert loads == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_trained_and_one_object_printed(tmp_path, data, loads, kind, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    options = ("--draft-vocab", 20, "--steps", 2, "--learning-rate", 1e-3, "--json")
    done = call(kind, "--data", data, "--out", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["steps"] == 2
    assert 1 <= told["acceptance"]["mean_accepted_length"] <= 6
    recipe = json.loads((tmp_path / "out" / "provenance.json").read_text())["recipe"]
    assert (recipe["draft_vocab_size"], recipe["learning_rate"]) == (20, 1e-3)
    # training is in float32, and the states are kept for the next head of this target
    assert loads[0][1]["dtype"] == "float32"
    (kept,) = (tmp_path / "home" / "features").iterdir()
    assert done.stderr.count(str(kept)) == 1


@pytest.mark.parametrize("kind", ["draft", *KINDS])
def test_one_prompt_is_refused_before_a_model_is_loaded(tmp_path, loads, kind):
    data = tmp_path / "text.jsonl"
    data.write_text('{"p": [1, 2], "r": [3, 4, 5, 6, 7]}\n' * 16)
    done = call(kind, "--data", data, "--out", tmp_path / "out", "--minutes", 1)
    assert isinstance(done.exception, BadInput)
    assert "at least 2 different prompts" in str(done.exception)
    assert loads == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.jsonl"]


@pytest.mark.parametrize("kind", ["eagle31", "mtp"])
def test_sixteen_conversations_are_enough(tmp_path, loads, kind, monkeypatch):
    """None of these prompts has a hash in the share that is put aside."""
    data = tmp_path / "text.jsonl"
    rows = [{"p": [i, i + 1, i + 2], "r": [7, 8, 9, 10, 11, 12]} for i in range(16)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    options = ("--draft-vocab", 20, "--steps", 1, "--json")
    done = call(kind, "--data", data, "--out", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    said = json.loads((tmp_path / "out" / "provenance.json").read_text())["data"]
    assert said["reply_tokens_held_out"] == 6
    assert said["reply_tokens_trained_on"] == 90


def test_rows_too_short_are_refused_before_a_state_is_read(tmp_path, loads, monkeypatch):
    data = tmp_path / "text.jsonl"
    data.write_text("".join(json.dumps({"p": [i], "r": [7]}) + "\n" for i in range(16)))
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    options = ("--draft-vocab", 20, "--steps", 1, "--depth", 3)
    done = call("eagle31", "--data", data, "--out", tmp_path / "out", *options)
    assert isinstance(done.exception, BadInput)
    assert "5 or more tokens, got rows: 16, different prompts: 16" in str(done.exception)
    assert not (tmp_path / "home").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_help_says_where_states_are_kept(kind):
    told = " ".join(call(kind, "--help").output.replace("│", " ").split())
    assert "features/*" in told
    assert "Delete it when you need the room" in told


def test_help_says_which_head_the_method_without_a_command_drafts_with() -> None:
    told = " ".join(call("--help").output.replace("│", " ").split())
    assert "The method eagle2 drafts with the head of eagle1." in told
