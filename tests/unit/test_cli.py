"""The command line: one object with --json, one message and exit code 2 for what users can mend."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from labkit import __version__, cli, progress
from labkit.errors import BadCheckpoint, BadInput
from labkit.lab import doctor as doctoring
from labkit.lab import pull as pulling
from labkit.lab.doctor import Check
from labkit.lab.head_names import WEIGHTS, head_folder

ROOT = Path(__file__).parents[2]


def run(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LABKIT_HOME": str(home), "TERM": "dumb", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "labkit", *arguments],
        capture_output=True, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip


def test_help_lists_the_commands_and_version_is_the_package_s(tmp_path: Path) -> None:
    helped = run("--help", home=tmp_path)
    assert helped.returncode == 0
    for command in ("doctor", "pull"):
        assert command in helped.stdout
    assert run("--version", home=tmp_path).stdout.strip() == __version__


def test_what_the_user_can_mend_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    done = run("pull", "smollm9", "--json", home=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("labkit: model: expected one of smollm2-135m")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_a_full_disk_is_one_message_and_exit_code_2(asked: str, unbuffered: str) -> None:
    """/dev/full is Linux's own stand-in for one."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "labkit", asked],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "labkit: output: expected a place with room for it, got No space left on device. "
        "Next: make room there, or write elsewhere.\n"
    )


CHATTER = """
import time
from types import SimpleNamespace
from labkit import cli, cli_decode
from labkit.events import Committed

def events(*_, **__):
    while True:
        yield Committed(round=1, tokens=(1,), sources=("target",), text="a line\\n")

cli_decode._open = lambda *_, **__: SimpleNamespace(events=events, clock=time.monotonic)
cli.main()
"""


@pytest.mark.parametrize("start", [["-m", "labkit", "--version"], ["-c", CHATTER, "generate",
    "--method", "ar", "--prompt", "Say something."]], ids=["version", "generate"])  # fmt: skip
def test_a_reader_that_has_seen_enough_ends_the_command_without_a_traceback(
    start: list[str],
) -> None:
    """As in ``labkit generate ... | head -1``; the text here would never end by itself."""
    command = [sys.executable, *start]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        if "generate" in start:
            assert process.stdout.readline() == "a line\n"
        process.stdout.close()
        said = process.stderr.read()
        process.wait(timeout=60)
    assert said == ""


def test_an_unknown_option_is_refused_by_name(tmp_path: Path) -> None:
    done = run("pull", "--speed", "9", home=tmp_path)
    assert done.returncode == 2
    assert "--speed" in done.stderr
    assert done.stdout == ""


def test_doctor_says_what_is_missing_and_how_to_mend_it(tmp_path: Path) -> None:
    done = run("doctor", "--json", home=tmp_path / "new")
    assert done.returncode == 1, "the model is not there"
    report = json.loads(done.stdout)
    assert report["ok"] is False
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["python"]["ok"]
    assert checks["transformers"]["wanted"] == "<6,>=5.15"
    assert checks["model"] == {
        "name": "model", "ok": False, "found": "not here", "wanted": "SmolLM2-135M-Instruct",
        "advice": "run `labkit pull`",
    }  # fmt: skip
    assert not (tmp_path / "new").exists(), "looking changes nothing"


def test_the_report_for_people_puts_advice_last() -> None:
    checks = (Check("a", True, "1"), Check("long name", False, "2", "3", "do this"))
    assert doctoring.report(checks).splitlines() == [
        "ok  a          1",
        "BAD long name  2  (wanted: 3)",
        "Next: do this.",
    ]
    assert not doctoring.all_well(checks)
    assert doctoring.all_well(checks[:1])


def test_doctor_compares_versions_with_the_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctoring.importlib.metadata.version
    fakes = {"transformers": "5.14.9", "plotly": "5.24.1"}
    monkeypatch.setattr(
        doctoring.importlib.metadata, "version", lambda name: fakes.get(name) or real(name)
    )
    found = {check.name: check for check in doctoring._packages()}
    assert not found["transformers"].ok
    assert found["plotly"].ok
    assert found["transformers"].advice == 'pip install "transformers<6,>=5.15"'


def test_doctor_reads_every_byte_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctoring, "folder_of", lambda preset, home: tmp_path)
    monkeypatch.setattr(doctoring, "damaged_files", lambda folder: ("model.safetensors",))
    check = doctoring._model(tmp_path)
    assert not check.ok
    assert check.found == "damaged: model.safetensors"
    monkeypatch.setattr(doctoring, "damaged_files", lambda folder: ())
    assert doctoring._model(tmp_path).ok


def test_pull_prints_one_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fake(model: str, *, from_file: Path | None, progress: progress.Progress) -> Path:
        progress("downloading", 1, 2)
        return tmp_path

    monkeypatch.setattr(pulling, "pull", fake)
    result = CliRunner().invoke(cli.app, ["pull", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"model": "smollm2-135m", "path": str(tmp_path)}
    assert "downloading" in result.stderr


def test_a_warm_pull_needs_neither_torch_nor_a_connection(tmp_path: Path) -> None:
    script = (
        "import sys, socket\n"
        "socket.socket.connect = socket.getaddrinfo = None\n"
        "from labkit.lab import presets, pull, store\n"
        "preset = presets.find(presets.DEFAULT)\n"
        "folder = store.model_folder(store.home_directory(), preset.name)\n"
        "folder.mkdir(parents=True)\n"
        "store.write_manifest(folder, preset.source.gguf_sha256)\n"
        "assert pull.pull() == folder\n"
        "print([m for m in ('torch', 'transformers', 'huggingface_hub') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "LABKIT_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr


def failing(error: BaseException) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fail() -> None:
        raise error

    return app


def test_main_shows_lab_errors_and_lets_defects_through(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["labkit"])
    error = BadInput("K", expected="at least 1", got="-1", next_step="pass 4")
    monkeypatch.setattr(cli, "app", failing(error))
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "labkit: K: expected at least 1, got -1. Next: pass 4.\n"
    monkeypatch.setattr(cli, "app", failing(ZeroDivisionError("a defect")))
    with pytest.raises(ZeroDivisionError):
        cli.main()


class Screen:
    """A stream that says whether it is a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        self.terminal, self.text = terminal, ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_progress_redraws_on_a_terminal_and_is_one_line_per_step_elsewhere() -> None:
    for terminal, expected in (
        (True, ["\rload [###############...............]  50 %\x1b[K",
                "\rload [##############################] 100 %\x1b[K\n", "\rdone\x1b[K"]),
        (False, ["load (50 %)\n", "load (100 %)\n", "done\n"]),
    ):  # fmt: skip
        screen = Screen(terminal=terminal)
        show = progress.text_bar(screen)  # type: ignore[arg-type]
        for step in (("load", 1, 2), ("load", 1, 2), ("load", 2, 2), ("done", 0, 0)):
            show(*step)
        assert screen.text == "".join(expected)
    progress.silent("load", 1, 2)


@pytest.mark.parametrize(("head", "got"), [("nowhere", "nothing there"), ("text.txt", "a file")])
def test_a_head_that_is_not_there_is_refused_before_any_model_is_read(
    tmp_path: Path, head: str, got: str
) -> None:
    (tmp_path / "text.txt").write_text("not a head", encoding="utf-8")
    given = ["generate", "--method", "eagle31", "--head", str(tmp_path / head), "--prompt", "hi"]
    ended = run(*given, home=tmp_path / "no-model")
    assert ended.returncode == 2
    assert got in ended.stderr
    assert "name the folder of a head" in ended.stderr


CHEAP = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "tokenizers", "safetensors"):
            raise ImportError(f"{name} was asked for")
sys.meta_path.insert(0, Refuse())
from labkit.cli import main
sys.argv = ["labkit", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["inspect", "no-such-head"], "expected a folder with a head, or one of eagle1, "),
        (["generate", "--method", "eagle31", "--head", "eagle9", "--prompt", "x"],
         "smollm2-135m-eagle31, smollm2-135m-medusa, "),
        (["bench", "--methods", "eagle31", "--head", "eagle9"], "smollm2-135m-mtp, got nothing"),
        (["export", "--head", "eagle9", "--format", "vllm", "--out", "x"], "got nothing there"),
        (["export", "--head", "eagle31", "--format", "gguf", "--out", "x"],
         "--format: expected one of safeailab, "),
        (["bench", "--methods", "eagle9"], "method"),
        (["bench", "--limit", "0"], "limit: expected 1 or more, got 0"),
        (["bench", "--prompts", "none.jsonl"], "got no such file"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_before_torch_is_imported(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    ended = subprocess.run([sys.executable, "-c", CHEAP, *arguments], capture_output=True,
                           text=True, cwd=tmp_path)  # fmt: skip
    assert (ended.returncode, told in ended.stderr) == (2, True), ended.stderr
    assert ended.stderr.count("\n") == 1


def test_torch_is_asked_for_where_the_input_is_right(tmp_path: Path) -> None:
    """Negative control."""
    ended = subprocess.run([sys.executable, "-c", CHEAP, "inspect", "eagle31"],
                           capture_output=True, text=True, cwd=tmp_path)  # fmt: skip
    assert "torch was asked for" in ended.stderr


def test_a_folder_of_that_name_wins_over_the_lab_s_own_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert head_folder("eagle31") == head_folder("smollm2-135m-eagle31")
    assert head_folder("eagle31").parent == WEIGHTS
    (tmp_path / "eagle31").mkdir()
    assert head_folder("eagle31") == Path("eagle31")
    for none in ("eagle9", "../eagle1", ".json", "", "\0", "e" * 5000):
        with pytest.raises(BadCheckpoint, match="smollm2-135m-eagle31"):
            head_folder(none)
    with pytest.raises(BadCheckpoint, match=r"^(?!.*-draft)"):  # no head, and not offered as one
        head_folder("eagle9")
