"""Traces on disk and by round. Runs are those of `test_metrics`, or tiny real ones."""

import gzip
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import prompt_of, run, tiny

from labkit import toy, trace_file
from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.ngram import NGram
from labkit.drafters.shapes import DynamicTree
from labkit.errors import BadInput
from labkit.events import Prefilled
from labkit.heads.eagle import head_config, random_head
from labkit.target import Target
from labkit.trace import Trace

PROMPT = prompt_of(9)


def recorded(**options: Any) -> Trace:
    events = speculate(
        Target(tiny()), NGram(), PROMPT, config=DecodeConfig(max_new_tokens=8, **options)
    )
    return Trace.record(events, header={"model": "toy"}, token_text=lambda i: f"t{i}")


def test_save_and_load(tmp_path: Path) -> None:
    trace = recorded(detail="full")
    path = trace.save(tmp_path / "run.json")
    back = Trace.load(path)
    assert back == Trace.from_json(trace.to_json())
    assert back.dumps() == trace.dumps()
    assert (back.tokens, back.sources, back.prompt) == (trace.tokens, trace.sources, PROMPT)
    assert back.header == {"model": "toy"}
    assert back.vocabulary == trace.vocabulary


def test_vocabulary_holds_every_id_that_occurs_and_no_other() -> None:
    trace = recorded(detail="full")
    first = trace.rounds[0]
    shown = {i for row in first.scored.p_top for i, _ in row}
    assert {*PROMPT, *trace.tokens, *shown} <= set(trace.vocabulary)
    assert trace.token_text(PROMPT[0]) == f"t{PROMPT[0]}"
    assert set(recorded(detail="timing").vocabulary) < set(range(64))
    assert Trace(trace.events).token_text(5) == "<5>"


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recorded().save(tmp_path / "run.json")
    before = path.read_text()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BadInput, match="No space"):
        recorded(detail="full").save(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="choose another path"):
        recorded().save(tmp_path)
    with pytest.raises(BadInput, match="No such file"):
        recorded().save(tmp_path / "nowhere" / "run.json")
    assert list(tmp_path.iterdir()) == []


def test_saved_traces_can_be_read_by_others(tmp_path: Path) -> None:
    """As any other new file: a temporary file's own mode would shut out a shared server's users."""
    path = recorded().save(tmp_path / "run.json")
    (tmp_path / "other").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("<!doctype html><p>run.json", "a web page"),
        ("PK\x03\x04", "a zip archive"),
        ('{"schema": 1, "events": [', "ends too early"),
        ('{"schema": 1, "events": [{"kind": "start', "ends too early"),
        ('{"schema": 1, events: []}', "text that is no JSON"),
        ('{"traceEvents": []}', "Chrome trace"),
        ('{"events": []}', "without a schema"),
        ('{"schema": 2000, "events": []}', "from a newer version of the lab"),
        ('{"schema": true, "events": []}', "True"),
        ("", "JSON file"),
        ("{", "JSON file"),
        ("[]", "JSON of another kind (list)"),
        ('{"schema": 99, "events": []}', "99"),
        ('{"schema": 1, "events": [{"kind": "dreamt"}]}', "dreamt"),
        ('{"schema": 1, "events": [{"kind": []}]}', "event kind"),
        ('{"schema": 1, "events": {"a": 1}}', "a list of events"),
        ('{"schema": 1, "events": 3}', "a list of events"),
        ('{"schema": 1, "events": [], "header": 3}', "a list of events"),
        ('{"schema": 1, "events": [], "vocabulary": {"a": "b"}}', "a list of events"),
        ('{"schema": 1, "events": [], "vocabulary": {"1": null}}', "a list of events"),
        ("[" * 100_000, "lists in lists"),
        ('{"a":' * 100_000, "lists in lists"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(BadInput) as caught:
        Trace.load(path)
    assert named in str(caught.value)


def test_a_gzipped_trace_is_the_same_trace(tmp_path: Path) -> None:
    trace = recorded(detail="full")
    path = trace.save(tmp_path / "run.json.gz")
    assert Trace.load(path).dumps() == trace.dumps()
    assert len(path.read_bytes()) < len(trace.dumps().encode()) / 3
    assert path.read_bytes() == trace.save(tmp_path / "again.json.gz").read_bytes()
    renamed = path.rename(tmp_path / "run.json")  # what it is does not hang on its name
    assert Trace.load(renamed).dumps() == trace.dumps()


@pytest.mark.parametrize("kept", [2, 11, 200, -9, -1])
def test_a_gzipped_trace_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    path = recorded(detail="full").save(tmp_path / "run.json.gz")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(BadInput, match="cut off or damaged"):
        Trace.load(path)


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = recorded(detail="full").save(tmp_path / "run.json.gz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(BadInput, match="cut off or damaged"):
        Trace.load(path)


def test_a_small_file_cannot_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "LARGEST", 100_000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b" " * 10_000_000))
    with pytest.raises(BadInput, match="record fewer tokens"):
        Trace.load(path)
    plain = tmp_path / "long.json"
    plain.write_bytes(b" " * 100_001)
    with pytest.raises(BadInput, match="record fewer tokens"):
        Trace.load(plain)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere"):
        Trace.load(tmp_path / "nowhere.json")


def test_a_run_that_was_cut_short_keeps_its_rounds() -> None:
    whole = recorded()
    for count in range(1, len(whole.events)):
        cut = Trace(whole.events[:count])
        assert all(a.drafted == b.drafted for a, b in zip(cut.rounds, whole.rounds, strict=False))
        assert cut.tokens == whole.tokens[: len(cut.tokens)]
        assert cut.finished is None
    with pytest.raises(BadInput, match="started event"):
        _ = Trace(whole.events[1:]).started


def test_a_full_trace_of_64_tokens_is_small() -> None:
    """At most 300 KB, with a vocabulary of real size and words of usual length."""
    model = toy.tiny("llama", vocab_size=49152, layers=1)
    drafter = DraftModel(model, vocab_size=49152)
    options: dict[str, Any] = {"detail": "full", "temperature": 1.0, "draft_length": 8}
    events = run(Target(model), drafter, PROMPT, max_new_tokens=64, **options).events
    trace = Trace.record(events, token_text=lambda i: f" word{i}")
    assert len(trace.tokens) == 64
    assert len(trace.dumps().encode()) <= 300_000


def test_a_full_trace_of_64_tokens_is_small_with_dynamic_trees() -> None:
    """The worst there is: 64 rounds, since nothing that a random head says is accepted, each with
    15 nodes of 116 candidates, all of which would make it 341 KB."""
    model = toy.tiny("llama", vocab_size=49152, layers=8)
    head = random_head(head_config(model, 3), model, seed=3)
    drafter = eagle_drafter(head, shape=DynamicTree(top_k=4, nodes=15))
    target = Target(model, needs=head.config.needs)
    events = run(
        target, drafter, PROMPT, max_new_tokens=64, detail="full", temperature=1.0, draft_length=8
    ).events
    trace = Trace.record(events, token_text=lambda i: f" word{i}")
    deep = [r.drafted for r in trace.rounds if r.drafted.limit == 8]
    assert {len(e.tokens) - 1 for e in deep} == {15}
    assert {(len(e.considered), e.unlisted) for e in deep} == {(16 + 48, 117 - 16 - 48)}
    assert all(e.considered[parent][2] >= sure for e in deep for _, parent, sure, _ in e.considered
               if parent >= 0)  # fmt: skip
    assert len(trace.dumps().encode()) <= 300_000
    again = Trace.from_json(json.loads(trace.dumps()))
    assert again.dumps() == trace.dumps()
    for one, other in zip(trace.rounds, again.rounds, strict=True):
        assert [c[:2] + c[3:] for c in one.drafted.considered] == [
            c[:2] + c[3:] for c in other.drafted.considered
        ]
    named = {token for r in trace.rounds for token, *_ in r.drafted.considered}
    assert named <= set(trace.vocabulary)


def test_large_trees_share_what_eight_nodes_may_keep() -> None:
    model = toy.tiny("llama", layers=8)
    head = random_head(head_config(model, 3), model, seed=3)
    target = Target(model, needs=head.config.needs)
    for nodes, kept in ((7, 8), (15, 4), (63, 1)):
        drafter = eagle_drafter(head, shape=DynamicTree(top_k=8, nodes=nodes))
        options: dict[str, Any] = {"max_new_tokens": 4, "draft_length": 2, "detail": "full"}
        first = run(target, drafter, PROMPT, **options).rounds[0]
        assert first.scored
        assert {len(row) for row in first.scored.p_top} == {kept}
        assert {len(row) for row in first.drafted.q_top[1:]} == {kept}


def test_a_trace_needs_no_torch(tmp_path: Path) -> None:
    path = recorded(detail="full").save(tmp_path / "run.json")
    code = (
        "import sys; from labkit.trace import Trace; from labkit.metrics import acceptance; "
        f"trace = Trace.load({str(path)!r}); print(acceptance(trace).committed); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "8"


def test_numbers_that_json_has_no_word_for_are_refused() -> None:
    """A browser cannot read NaN: better no file than one that shows nothing."""
    trace = Trace((Prefilled(round=0, tokens=1, seconds=float("nan")),))
    with pytest.raises(ValueError, match="JSON compliant"):
        trace.dumps()


def test_half_a_character_is_saved_and_comes_back(tmp_path: Path) -> None:
    """A tokenizer can put out half of a surrogate pair, which UTF-8 has no bytes for."""
    whole = recorded()
    events = [
        replace(e, text="x\ud83d \u00e9") if e.kind == "committed" else e for e in whole.events
    ]
    trace = Trace(tuple(events), {"prompt": "\udc80"}, {1: "\ud800", 2: "\U0001f600"})
    again = Trace.load(trace.save(tmp_path / "run.json"))
    assert (again.text, again.header, again.vocabulary) == (
        trace.text,
        trace.header,
        trace.vocabulary,
    )
    assert "\u00e9" in (tmp_path / "run.json").read_text(encoding="utf-8")  # the rest is readable
