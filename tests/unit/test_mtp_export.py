"""Prediction modules on their way to engines: the names of their target's family, or a refusal."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mtp_files import LAYERS, MIMO_NAMES, QWEN_NAMES, save, target, weights
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from labkit.cli import app
from labkit.heads.checkpoints import inspect_checkpoint, report_text
from labkit.heads.checkpoints.mtp import build_mtp, has_mtp, read_mtp
from labkit.heads.checkpoints.mtp_write import checkpoint_of_mtp, save_mtp
from labkit.heads.eagle import head_config
from labkit.heads.layers import KeyValues, plain_eps
from labkit.heads.medusa import medusa_config
from labkit.heads.mtp import ADAPTERS, GENERIC, LAST, MtpHead, mtp_config, random_mtp
from labkit.lab import load as loading
from labkit.lab.head_names import WEIGHTS

NOISE = 9.999999747378752e-06
WORDS = torch.tensor([1, 5, 6, 30])
PLACE: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


def said(head: MtpHead) -> Tensor:
    """Its logits over all words after four pairs."""
    generator = torch.Generator().manual_seed(3)
    state = torch.randn(1, 4, head.config.hidden_size, generator=generator)
    made = head(
        torch.tensor([[3, 4, 5, 6]]),
        state,
        positions=torch.arange(4)[None],
        kv=[KeyValues()],
        mask=torch.ones(4, 4, dtype=torch.bool).tril(),
    )
    return head.logits(made.normed)


def exported(
    source: Path, out: Path, model: Any, monkeypatch: pytest.MonkeyPatch, *, format: str = "native"
) -> Any:
    found = SimpleNamespace(model=model, path=None)
    monkeypatch.setattr(loading, "load_model", lambda name, **_: found)
    return CliRunner().invoke(
        app, ["export", "--head", str(source), "--format", format, "--out", str(out)]
    )


def ours(path: Path, family: str, *, words: Tensor | None = None, **switches: Any) -> MtpHead:
    """A head of the lab's own, saved."""
    model = target(family)
    adapter = replace(GENERIC, **switches)
    head = random_mtp(model, adapter, vocab_ids=words)
    save_mtp(checkpoint_of_mtp(head, target_model=model, target="t"), path)
    return head


@pytest.mark.parametrize("words", [None, WORDS], ids=["all words", "few words"])
@pytest.mark.parametrize("family", ["qwen", "deepseek", "glm"])
def test_a_head_of_ours_computes_the_same_under_its_target_s_names(
    family: str, words: Tensor | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = target(family)
    head = ours(tmp_path / "h", family, words=words)
    found = exported(tmp_path / "h", tmp_path / "out", model, monkeypatch)
    assert found.exit_code == 0, found.output
    stored = load_file(tmp_path / "out" / "model.safetensors")
    if family == "qwen":
        assert {name: tuple(t.shape) for name, t in stored.items()} == QWEN_NAMES
    else:
        assert all(name.startswith(f"model.layers.{LAYERS}.") for name in stored)
        assert f"model.layers.{LAYERS}.mlp.experts.3.down_proj.weight" in stored
    # beside the target's own weights, as an engine wants it
    checkpoint = read_mtp(save(tmp_path / "m", model, stored), target_model=model)
    assert checkpoint.config.adapter is ADAPTERS[family]
    again = build_mtp(checkpoint, target_model=model, **PLACE)
    kept = slice(None) if words is None else words
    torch.testing.assert_close(said(again)[..., kept], said(head), atol=1e-5, rtol=1e-5)


def test_a_native_head_keeps_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = weights("mimo")
    folder = save(tmp_path / "m", target("mimo"), made)
    found = exported(folder, tmp_path / "out", target("mimo"), monkeypatch)
    assert found.exit_code == 0, found.output
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert stored.keys() == MIMO_NAMES.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in made.items())
    assert has_mtp(tmp_path / "out", target("mimo"))


@pytest.mark.parametrize(
    ("family", "switches", "format", "told"),
    [
        ("qwen", {}, "vllm", "own folder.*--format native"),
        ("qwen", {"state": LAST}, "native", "expected state final"),
        ("glm", {"hidden_first": True}, "native", "expected hidden_first False"),
        ("mimo", {}, "native", "type qwen2.*no engine.*EAGLE"),
    ],
)
def test_what_no_engine_would_compute_alike_is_refused(
    family: str,
    switches: Any,
    format: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours(tmp_path / "h", family, **switches)
    found = exported(tmp_path / "h", tmp_path / "out", target(family), monkeypatch, format=format)
    assert found.exit_code != 0
    assert not (tmp_path / "out").exists()
    text = " ".join(f"{found.output} {found.exception}".split())
    assert re.search(told, text), text


def test_names_decide_the_family_and_the_type_only_between_equal_names(tmp_path: Path) -> None:
    """MiMo's own config.json says "mimo"; its targets load as Qwen2 models."""
    model = target("mimo")
    assert model.config.model_type == "qwen2"
    folder = save(tmp_path / "m", model, weights("mimo"))
    config = json.loads((folder / "config.json").read_text())

    def read(kind: str) -> Any:
        (folder / "config.json").write_text(json.dumps(config | {"model_type": kind}))
        return read_mtp(folder, target_model=model)

    found = {kind: read(kind) for kind in ("mimo", "qwen2", "glm4_moe", "something")}
    assert {c.config.adapter.name for c in found.values()} == {"mimo"}
    assert found["mimo"].report.decided_by == "its names"
    assert "something are new to it" in found["something"].report.decided_by


def test_no_noise_of_32_bits_is_read_shown_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GGUF says 1e-05 in 32 bits, which Python reads as NOISE."""
    assert torch.equal(torch.tensor(NOISE), torch.tensor(1e-5))
    assert plain_eps(NOISE) == plain_eps(1e-5) == 1e-5 != NOISE
    model = target("mimo")
    monkeypatch.setattr(model.config, "rms_norm_eps", NOISE)
    found = (head_config(model, 1), mtp_config(model), medusa_config(model, "meta", heads=2).block)
    assert [config.eps for config in found if config] == [1e-5] * 3
    for config in WEIGHTS.glob("*/config.json"):
        assert json.loads(config.read_text()).get("rms_norm_eps", 1e-5) == 1e-5, config
    shipped = WEIGHTS / "smollm2-135m-eagle3"
    for name in ("config.json", "model.safetensors"):
        shutil.copy(shipped / name, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"rms_norm_eps": NOISE}))
    report = inspect_checkpoint(tmp_path)
    assert report.shapes["eps"] == 1e-5
    assert "eps 1e-05" in report_text(report)
