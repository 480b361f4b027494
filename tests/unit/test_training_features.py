"""Cached states are those that a decode sees, once and for all; anything else is refused."""

import json
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from labkit.errors import BadInput, UnsupportedModel
from labkit.target import Target
from labkit.toy import tiny
from labkit.training import features as features_module
from labkit.training.data import Row
from labkit.training.features import MANIFEST, cache_features, disk_bytes
from labkit.tree import DraftTree

NEEDS = ("h2", "h4", "h5", "final")


def a_target(**changes: Any) -> Any:
    return tiny("llama", **({"layers": 8, "vocab_size": 64} | changes))


def some_rows(count: int = 7, *, seed: int = 0) -> tuple[Row, ...]:
    generator = torch.Generator().manual_seed(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(64, (n,), generator=generator).tolist())

    return tuple(Row(ids(3 + i), ids(9 - i)) for i in range(count))


def tokens_of(row: Row) -> tuple[int, ...]:
    return row.prompt + row.reply


def test_states_are_those_that_a_decode_sees(tmp_path):
    model, rows = a_target(), some_rows()
    kept = cache_features(model, rows, needs=NEEDS, folder=tmp_path / "f")
    for row in rows:
        target = Target(model, needs=NEEDS)
        target.prefill([*tokens_of(row), 0])  # all but the last are cached
        target.truncate(0)
        with target.speculation():
            live = target.score(DraftTree.chain(tokens_of(row))).hidden
        for name in NEEDS:
            # control: half precision is all that is lost
            assert torch.equal(kept.states(row, name), live[name].half()), name
            assert not torch.equal(kept.states(row, name), kept.states(row, "h2")) or name == "h2"


@pytest.mark.parametrize("layers", [8, 28, 30, 32, 36])
def test_boundary_k_is_transformers_hidden_state_k(tmp_path, layers):
    model, row = a_target(layers=layers), some_rows(1)[0]
    needs = ("h2", f"h{layers // 2}", f"h{layers - 3}", "final")
    kept = cache_features(model, (row,), needs=needs, folder=tmp_path / "f")
    ids = torch.tensor([tokens_of(row)])
    with torch.inference_mode():
        there = model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    for name, k in zip(needs, (2, layers // 2, layers - 3, layers), strict=True):
        torch.testing.assert_close(
            kept.states(row, name).float(), there[k][0], rtol=2e-3, atol=2e-3
        )


def test_a_batch_is_padded_with_zeros(tmp_path):
    rows = some_rows(3)
    kept = cache_features(a_target(), rows, needs=NEEDS, folder=tmp_path / "f")
    longer = Row(rows[0].prompt, rows[0].reply)
    batch = kept.batch((rows[1], longer), needs=("h4",), device="cpu")
    assert list(batch.states) == ["h4"]
    assert batch.states["h4"].shape == (2, 12, 32)
    assert batch.states["h4"].dtype == torch.float32
    for index, row in enumerate((rows[1], longer)):
        assert torch.equal(batch.states["h4"][index, : len(row)], kept.states(row, "h4").float())
        assert not batch.states["h4"][index, len(row) :].any()


class Killed(Exception):
    pass


def test_an_interrupted_call_goes_on_and_computes_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(features_module, "_ROWS_PER_FLUSH", 2)
    model, rows = a_target(), some_rows()
    whole = cache_features(model, rows, needs=NEEDS, folder=tmp_path / "whole")
    calls = [0]

    def progress(what, done, total):
        calls[0] += 1
        if calls[0] == 6:  # five rows are done, four of them noted
            raise Killed

    with pytest.raises(Killed):
        cache_features(model, rows, needs=NEEDS, folder=tmp_path / "f", progress=progress)
    assert json.loads((tmp_path / "f" / MANIFEST).read_text())["rows_done"] == 4
    computed = []
    plain = features_module.read_row

    def spy(target, row):
        computed.append(row)
        return plain(target, row)

    monkeypatch.setattr(features_module, "read_row", spy)
    resumed = cache_features(model, rows, needs=NEEDS, folder=tmp_path / "f")
    assert computed[1:] == list(rows[4:])  # the first one checks that the target is the same
    for name in NEEDS:
        for row in rows:
            assert torch.equal(resumed.states(row, name), whole.states(row, name))
    computed.clear()
    cache_features(model, rows, needs=NEEDS, folder=tmp_path / "f")
    assert len(computed) == 1


def test_files_that_hold_more_are_used_and_files_that_hold_less_are_not(tmp_path):
    model, rows = a_target(), some_rows()
    cache_features(model, rows, needs=NEEDS, folder=tmp_path / "more")
    kept = cache_features(model, rows, needs=("final",), folder=tmp_path / "more")
    assert kept.needs == NEEDS
    cache_features(model, rows, needs=("final",), folder=tmp_path / "less")
    with pytest.raises(BadInput, match=r"no h2, h4, h5"):
        cache_features(model, rows, needs=NEEDS, folder=tmp_path / "less")


def fine_tuned(model: Any) -> Any:
    """The same embedding, and so the same fingerprint; one layer is another."""
    other = deepcopy(model)
    other.model.layers[0].mlp.down_proj.weight.mul_(1.5)
    return other


@pytest.mark.parametrize(
    ("model", "rows", "named"),
    [
        (a_target(), some_rows(seed=1), "rows_sha256"),
        (a_target(), some_rows(6), "rows_sha256"),
        (a_target(seed=1), some_rows(), "target_fingerprint"),
        (fine_tuned(a_target()), some_rows(), "states that differ by"),
    ],
    ids=["other text", "fewer rows", "other target", "fine-tuned target"],
)
def test_stale_states_are_refused_and_left_alone(tmp_path, model, rows, named):
    cache_features(a_target(), some_rows(), needs=NEEDS, folder=tmp_path / "f")
    before = {p.name: p.read_bytes() for p in (tmp_path / "f").iterdir()}
    with pytest.raises(BadInput, match=named):
        cache_features(model, rows, needs=NEEDS, folder=tmp_path / "f")
    assert {p.name: p.read_bytes() for p in (tmp_path / "f").iterdir()} == before


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="a new or empty folder"):
        cache_features(a_target(), some_rows(), needs=NEEDS, folder=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_torn_manifest_is_refused_and_a_missing_file_is_named(tmp_path):
    model, rows = a_target(), some_rows()
    cache_features(model, rows, needs=NEEDS, folder=tmp_path / "f")
    (tmp_path / "f" / "h4.npy").unlink()
    with pytest.raises(BadInput, match=r"h4\.npy"):
        cache_features(model, rows, needs=NEEDS, folder=tmp_path / "f")
    (tmp_path / "f" / MANIFEST).write_text('{"rows_sha256": ')
    with pytest.raises(BadInput, match=MANIFEST):
        cache_features(model, rows, needs=NEEDS, folder=tmp_path / "f")


def test_states_beyond_half_precision_need_the_wider_storage(tmp_path):
    model, rows = a_target(), some_rows(2)
    model.model.embed_tokens.weight.mul_(1e6)
    with pytest.raises(BadInput, match="bfloat16"):
        cache_features(model, rows, needs=("h2",), folder=tmp_path / "a")
    kept = cache_features(model, rows, needs=("h2",), folder=tmp_path / "b", storage="bfloat16")
    assert kept.states(rows[0], "h2").abs().max() > 65504
    with pytest.raises(BadInput, match="float16 or bfloat16"):
        cache_features(model, rows, needs=("h2",), folder=tmp_path / "c", storage="float32")


def test_the_size_is_said_before_anything_is_computed(tmp_path, monkeypatch):
    rows, said = some_rows(), []
    needed = disk_bytes(rows, states=len(NEEDS), hidden_size=32)
    assert needed == 7 * 12 * 4 * 32 * 2
    cache_features(
        a_target(),
        rows,
        needs=NEEDS,
        folder=tmp_path / "f",
        progress=lambda *told: said.append(told),
    )
    assert said[0][0] == "keeping the target's states (0.0 GB on disk)"
    assert said[0][1:] == (0, 84)
    assert said[-1][1:] == (84, 84)
    files = [p for p in (tmp_path / "f").iterdir() if p.suffix == ".npy"]
    assert sum(p.stat().st_size for p in files) == needed + 4 * 128  # a header each
    full = SimpleNamespace(total=1, used=1, free=needed)
    monkeypatch.setattr(features_module.shutil, "disk_usage", lambda path: full)
    with pytest.raises(BadInput, match="free on its disk"):
        cache_features(a_target(), rows, needs=NEEDS, folder=tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_logits_that_the_final_state_does_not_give_are_refused(tmp_path):
    model = a_target()
    biased = nn.Linear(32, 64)
    biased.weight, biased.bias.data[:] = model.lm_head.weight, 9.0
    model.lm_head = biased
    with pytest.raises(UnsupportedModel, match="logits"):
        cache_features(model, some_rows(), needs=NEEDS, folder=tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_state_that_the_target_lacks_is_named(tmp_path):
    with pytest.raises(BadInput, match="h9"):
        cache_features(a_target(), some_rows(), needs=("h9",), folder=tmp_path / "f")
