"""The gallery: what it holds, that it opens without torch, how it is recorded and told."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import viz_traces
from typer.testing import CliRunner

from labkit import cli
from labkit.errors import BadInput, ModelUnavailable
from labkit.gallery import gallery, recording
from labkit.gallery.recording import name_on, record
from labkit.gallery.scenes import METHODS, Scene, scenes
from labkit.gallery.shelf import TRACES, open_run
from labkit.lab.head_names import WEIGHTS
from labkit.metrics import acceptance

ROOT = Path(__file__).parents[2]
RUNS = sorted(path for path in TRACES.iterdir() if path.name.endswith(".json.gz"))


def test_every_scene_is_recorded_and_nothing_else() -> None:
    assert {path.name.removesuffix(".json.gz") for path in RUNS} >= {s.name for s in scenes()}
    for scene in scenes():
        run = gallery.open(scene.name)
        assert run.started.method == scene.method
        assert run.header["prompt"] == scene.prompt
        assert run.header["title"] == scene.title
        assert run.started.max_new_tokens == scene.settings["max_new_tokens"]


def test_the_files_are_small_and_name_no_machine() -> None:
    assert all(path.stat().st_size <= 60_000 for path in RUNS)
    assert sum(path.stat().st_size for path in TRACES.iterdir()) <= 500_000
    private = re.compile("/(?:ro" + "ot|wo" + "rk|ho" + "me|Us" + "ers)/")
    for path in RUNS:
        assert not private.search(gzip.decompress(path.read_bytes()).decode()), path.name
    assert not private.search((TRACES / "machine.json").read_text(encoding="utf-8"))


def test_it_holds_what_a_learner_should_see() -> None:
    runs = {name: gallery.open(name) for name in gallery.names}
    trials = [t for run in runs.values() for r in run.rounds if r.verified
              for t in r.verified.trials]  # fmt: skip
    assert {run.started.method for run in runs.values()} >= set(METHODS)
    assert any(not t.accepted and 0 < t.threshold < 1 for t in trials)
    assert any(r.verified and r.verified.resampled for r in runs["chat-draft"].rounds)
    assert any(len(r.drafted.tokens) > 20 for r in runs["maths-big-tree"].rounds)
    ended = runs["short-eagle3"].finished
    assert ended is not None
    assert ended.reason == "eos"


@pytest.mark.parametrize("prompt", ["code", "maths", "copy", "short"])
def test_greedy_runs_of_one_prompt_have_one_text(prompt: str) -> None:
    """Whoever drafts, the text is that of plain decoding."""
    plain = gallery.open(f"{prompt}-ar")
    others = [n for n in gallery.names if n.startswith(f"{prompt}-")]
    assert len(others) > 1
    for name in others:
        tokens = gallery.open(name).tokens
        assert tokens == plain.tokens[: len(tokens)], name
        assert gallery.plain(name) == plain


def test_the_table_counts_from_the_runs() -> None:
    entries = {entry.name: entry for entry in gallery.entries}
    run = gallery.open("code-eagle3")
    entry = entries["code-eagle3"]
    assert entry.mean_accepted_length == acceptance(run).mean_accepted_length
    assert (entry.tokens, entry.method, entry.temperature) == (len(run.tokens), "eagle3", 0.0)
    assert set(entries) == set(gallery.names)
    bundle = gallery._repr_mimebundle_()
    for name in gallery.names:
        assert f"<code>{name}</code>" in bundle["text/html"]
    assert repr(gallery).startswith(f"{len(gallery.names)} recorded runs")


WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "tokenizers", "safetensors"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
from labkit import viz
from labkit.gallery import gallery
assert gallery._repr_mimebundle_()["text/html"].count("<tr>") == len(gallery.names) + 1
for name in gallery.names:
    run = gallery.open(name)
    drawn = [viz.ribbon(run), viz.kv_slots(run), viz.timeline(run, ar=gallery.plain(name))]
    if run.rounds:
        drawn += [viz.draft_tree(run, round=1), viz.attention_mask(run, round=1)]
    assert all(picture.svg for picture in drawn)
    run.chrome()
stepper = gallery.play("maths-big-tree")
assert stepper.steps > 5 and stepper.picture.svg
what_if = viz.WhatIf(gallery.machine, drafting="eagle3", batch=4)
print(len(gallery.names), type(stepper).__name__, what_if.answer.best >= 0)
"""


def test_it_opens_where_there_is_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(gallery.names)), "Stepper", "True"]


def test_torch_would_be_refused_there() -> None:
    """Negative control."""
    script = WITHOUT_TORCH.partition("from labkit import viz")[0] + "import labkit.target"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert "is not installed here" in done.stderr


def test_unknown_runs_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="code-eagle3"):
        gallery.open("code-eagle9")
    with pytest.raises(BadInput, match="nowhere"):
        gallery(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="the gallery is empty"):
        gallery(tmp_path).open("x")
    with pytest.raises(BadInput, match=r"machine\.json"):
        _ = gallery(tmp_path).machine
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(BadInput, match=r"bad\.json"):
        _ = gallery(tmp_path).entries


def test_files_that_are_no_runs_are_named_and_left_out(tmp_path: Path) -> None:
    """`labkit trace chrome` writes such a file beside the run itself."""
    mine = viz_traces.chain()
    mine.save(tmp_path / "run.json")
    mine.to_chrome(tmp_path / "run.perfetto.json")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    foreign = ("gone.json", "run.perfetto.json")
    entries, left_out = gallery(tmp_path).listing
    assert ([entry.name for entry in entries], left_out) == (["run"], foreign)
    assert repr(gallery(tmp_path)).endswith(
        "Left out, no recorded runs: gone.json, run.perfetto.json."
    )
    assert gallery(tmp_path).play("run").steps > 1
    arguments = ["trace", "list", "--folder", str(tmp_path)]
    told = CliRunner().invoke(cli.app, arguments)
    assert (told.exit_code, told.stdout.count("\n")) == (0, 1)
    assert told.stderr == f"Left out, no recorded runs: {', '.join(foreign)}.\n"
    record = json.loads(CliRunner().invoke(cli.app, [*arguments, "--json"]).output)
    assert (len(record["runs"]), tuple(record["left_out"])) == (1, foreign)
    (tmp_path / "run.json").unlink()
    assert isinstance(CliRunner().invoke(cli.app, arguments).exception, BadInput)


def test_another_folder_is_a_gallery_too(tmp_path: Path) -> None:
    viz_traces.chain().save(tmp_path / "mine.json.gz")
    viz_traces.plain().save(tmp_path / "theirs.json")
    assert gallery(tmp_path).names == ("mine", "theirs")
    assert gallery() is gallery
    path = tmp_path / "mine.json.gz"
    assert open_run(path).tokens == gallery(tmp_path).open("mine").tokens
    viz_traces.plain().save(path)  # a file that was recorded again is read again
    assert gallery(tmp_path).open("mine").tokens == viz_traces.plain().tokens
    assert open_run("code-ar") == gallery.open("code-ar")


def test_a_file_that_is_there_is_read_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    viz_traces.chain().save("mine.txt")
    Path("notes.txt").write_text("no trace", encoding="utf-8")
    assert open_run("mine.txt").tokens == viz_traces.chain().tokens
    with pytest.raises(BadInput, match=r"trace file 'notes\.txt'"):
        open_run("notes.txt")


def test_recording_tells_what_a_model_cannot_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(lab: Any, scene: Scene) -> Any:
        if scene.method == "mtp":
            raise ModelUnavailable("head", expected="one", got="none", next_step="train one")
        return viz_traces.chain()

    monkeypatch.setattr(recording, "one", one)
    lab: Any = SimpleNamespace(loaded=SimpleNamespace(name="owner/Some Model-1B"))
    settings = {"max_new_tokens": 4}
    wanted = [Scene("a-ar", "", "x", "ar", settings), Scene("a-mtp", "", "x", "mtp", settings)]
    made = list(record(lab, wanted, tmp_path))
    assert [m.name for m in made] == ["some-model-1b-a-ar", "some-model-1b-a-mtp"]
    assert [bool(m.path) for m in made] == [True, False]
    assert "train one" in made[1].why
    assert [p.name for p in tmp_path.iterdir()] == ["some-model-1b-a-ar.json.gz"]
    with pytest.raises(BadInput, match="make the folder"):
        next(record(lab, wanted, tmp_path / "nowhere"))
    assert name_on("smollm2-135m", "a") == "a"


def test_methods_are_those_with_weights() -> None:
    drafts = {path.name.rpartition("-")[2] for path in WEIGHTS.iterdir()}
    assert {"draft", "eagle1", "eagle3", "eagle31"} <= drafts
    assert len({s.name for s in scenes()}) == len(scenes())
    assert {s.method for s in scenes(("ar",))} == {"ar"}


def ask(*arguments: str) -> Any:
    done = CliRunner().invoke(cli.app, ["trace", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_lists_tells_and_exports(tmp_path: Path) -> None:
    listed = json.loads(ask("list", "--json"))["runs"]
    assert [run["name"] for run in listed] == list(gallery.names)
    assert "code-eagle3" in ask("list")
    told = json.loads(ask("show", "code-eagle3", "--json"))
    run = gallery.open("code-eagle3")
    assert told["text"] == run.text
    assert told["mean_accepted_length"] == acceptance(run).mean_accepted_length
    assert len(told["sentences"]) == told["rounds"] == len(run.rounds)
    assert run.text in ask("show", str(TRACES / "code-eagle3.json.gz"))
    out = tmp_path / "chrome.json"
    assert json.loads(ask("chrome", "code-eagle3", str(out), "--json"))["path"] == str(out)
    assert json.loads(out.read_text(encoding="utf-8")) == json.loads(json.dumps(run.chrome()))


def test_the_command_refuses_unknown_runs(tmp_path: Path) -> None:
    for arguments in (["show", "code-eagle9"], ["record", "--out", str(tmp_path), "--only", "x"],
                      ["measure", "--out", str(tmp_path / "a" / "b.json")]):  # fmt: skip
        done = CliRunner().invoke(cli.app, ["trace", *arguments])
        assert isinstance(done.exception, BadInput)
    assert list(tmp_path.iterdir()) == []
