"""Sessions, benchmarks and the decoding commands, on a tiny model with a real tokenizer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mtp_files
import pytest
import torch
import typer
from tiny_gguf import write_gguf
from typer.testing import CliRunner

from labkit.bench import prompts as prompt_files
from labkit.bench import run as bench_run
from labkit.bench.prompts import Prompt, read_prompts
from labkit.bench.recording import recording_seconds
from labkit.bench.run import bench, conditions
from labkit.cli import app
from labkit.decode import autoregress
from labkit.drafters.shapes import Chain, DynamicTree
from labkit.errors import BadCheckpoint, BadInput, ModelUnavailable
from labkit.events import Committed
from labkit.heads.checkpoints import checkpoint_of, write_checkpoint
from labkit.heads.checkpoints.medusa_write import checkpoint_of_medusa, write_medusa
from labkit.heads.checkpoints.mtp_write import checkpoint_of_mtp, save_mtp
from labkit.heads.eagle import head_config, random_head
from labkit.heads.medusa import medusa_config, random_heads
from labkit.heads.mtp import MtpHead, random_mtp
from labkit.lab.heads import HEADS
from labkit.lab.load import load_model
from labkit.lab.report import row
from labkit.lab.session import Lab, open_lab
from labkit.toy import tiny
from labkit.trace import Trace

PROMPTS = [Prompt("a", "x", "the other thing"), Prompt("b", "y", "then there\n\nthe")]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("session") / "tiny.Q4_1.gguf")


@pytest.fixture(scope="module")
def lab(gguf: Path) -> Lab:
    return Lab(load_model(gguf, device="cpu"), draft=str(gguf))


def one_by_one(lab: Lab, ids: list[int], count: int) -> tuple[int, ...]:
    """Greedy text from transformers' forward over the whole text, no cache, up to an end id."""
    text = list(ids)
    with torch.inference_mode():
        while len(text) < len(ids) + count and (
            len(text) == len(ids) or text[-1] not in lab.eos_ids
        ):
            text.append(
                int(lab.model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax())
            )
    return tuple(text[len(ids) :])


# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ar", "ngram", "draft"])
def test_every_method_writes_the_reference_s_text(lab: Lab, method: str) -> None:
    ids = lab.tokens(PROMPTS[0].text)
    trace = lab.record(PROMPTS[0].text, method=method, max_new_tokens=24)
    assert trace.tokens == one_by_one(lab, ids, 24)
    assert trace.prompt == tuple(ids)
    assert trace.text == lab.text(trace.tokens)
    assert trace.started.method == method


def test_the_target_as_its_own_draft_is_accepted_whole(lab: Lab) -> None:
    trace = lab.record("the", method="draft", max_new_tokens=20, draft_length=4, eos=None)
    assert [r.accepted for r in trace.rounds] == [4, 4, 4, 4]
    assert trace.sources == (*["draft"] * 4, "target") * 4


def test_the_chat_template_is_applied_unless_told_otherwise(lab: Lab) -> None:
    assert lab.text(lab.tokens("the")) == "user: the\n"
    assert lab.text(lab.tokens("the", chat=False)) == "the"


def test_the_vocabulary_of_a_trace_names_all_its_tokens(lab: Lab) -> None:
    trace = lab.record("the", method="draft", max_new_tokens=8, detail="full")
    assert {*trace.prompt, *trace.tokens} <= set(trace.vocabulary)
    assert trace.header["model"] == lab.loaded.name
    assert trace.header["settings"]["max_new_tokens"] == 8


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_refused(lab: Lab, prompt: str) -> None:
    with pytest.raises(BadInput, match="prompt: expected some text"):
        lab.record(prompt)


def test_an_unknown_method_lists_the_known_ones(lab: Lab) -> None:
    with pytest.raises(
        BadInput,
        match="one of ar, ngram, draft, eagle1, eagle2, eagle3, eagle31, mtp, medusa, got 'eagle9'",
    ):
        lab.record("the", method="eagle9")


def test_a_target_without_a_draft_model_says_what_to_do(lab: Lab) -> None:
    alone = replace_draft(lab, None)
    with pytest.raises(ModelUnavailable, match="labkit train draft"):
        alone.record("the", method="draft")
    assert alone.record("the", method="ngram", max_new_tokens=2).tokens


def replace_draft(lab: Lab, draft: str | None) -> Lab:
    return Lab(lab.loaded, draft=draft)


def test_a_draft_that_is_never_sure_enough_drafts_nothing(lab: Lab) -> None:
    """A confidence threshold that drops every draft: the rate has nothing to count, and the
    volume beside it says so."""
    shy = open_lab(lab.loaded.name, device="cpu", draft=lab.draft, confidence=0.999999)
    trace = shy.record("the", method="draft", max_new_tokens=10, eos=None)
    numbers = row([trace], seconds=1.0)
    assert (numbers.drafted, numbers.accepted, numbers.rounds) == (0, 0, 10)
    assert trace.tokens == lab.record("the", method="ar", max_new_tokens=10, eos=None).tokens
    bold = open_lab(lab.loaded.name, device="cpu", draft=lab.draft, confidence=1e-9)
    trace = bold.record("the", method="draft", max_new_tokens=10, draft_length=4, eos=None)
    assert row([trace], seconds=1.0).drafted == 8


@pytest.mark.parametrize("confidence", [-0.1, 1.0])
def test_an_impossible_confidence_is_refused(lab: Lab, confidence: float) -> None:
    with pytest.raises(BadInput, match="confidence"):
        open_lab(lab.loaded.name, device="cpu", draft=lab.draft, confidence=confidence).drafter(
            "draft"
        )


@pytest.mark.parametrize(("method", "length"), [("ar", 0), ("ngram", 3), ("draft", 1)])
def test_every_method_has_a_draft_length_of_its_own(lab: Lab, method: str, length: int) -> None:
    assert lab.record("the", method=method, max_new_tokens=6).started.draft_length == length
    named = lab.record("the", method=method, max_new_tokens=6, draft_length=5)
    assert named.started.draft_length == 5


# --- prompt files ---------------------------------------------------------------------------------


def test_the_lab_s_own_prompts_are_48_of_six_kinds() -> None:
    found = read_prompts()
    kinds = {p.kind: sum(q.kind == p.kind for q in found) for p in found}
    assert kinds == dict.fromkeys(
        ("chat", "code", "arithmetic", "questions", "lists", "continuation"), 8
    )
    assert len({p.text for p in found}) == 48


def test_a_limit_keeps_every_kind() -> None:
    found = read_prompts(limit=24)
    assert {p.kind: sum(q.kind == p.kind for q in found) for p in found} == {
        p.kind: 4 for p in read_prompts()
    }
    assert found == [p for p in read_prompts() if p in found], "the file's order"


def test_turns_and_categories_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"question_id": 81, "category": "writing", "turns": ["one", "two"]}\n\n')
    assert read_prompts(path) == [Prompt("81", "writing", "one")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "at least one prompt"),
        ('{"prompt": "a"}\n{"text": "b"}\n', "line 2"),
        ('{"prompt": " "}\n', "line 1"),
        ('{"turns": []}\n', "line 1"),
        ("not json\n", "line 1"),
    ],
)
def test_bad_prompt_files_are_named_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with pytest.raises(BadInput, match=message):
        read_prompts(path)


def test_a_missing_prompt_file_and_an_impossible_limit_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="got no such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(BadInput, match="limit"):
        read_prompts(prompt_files.DEFAULT_FILE, limit=0)


# --- benchmarks -----------------------------------------------------------------------------------


def test_a_benchmark_pools_every_prompt_and_compares_texts(lab: Lab) -> None:
    rows = bench(
        lab, ["generate", "ar", "ngram", "draft"], PROMPTS, max_new_tokens=12, draft_length=4
    )
    by_name = {r.numbers.method: r for r in rows}
    assert [r.numbers.method for r in rows] == ["generate", "ar", "ngram", "draft"]
    assert {r.numbers.prompts for r in rows} == {2}
    assert len({r.numbers.tokens for r in rows}) == 1, "greedy in float32: one text for all"
    assert len({r.numbers.prompt_tokens for r in rows}) == 1
    assert all((r.same_as_ar, r.near_ties, r.faults) == (2, 0, 0) for r in rows)
    assert by_name["ar"].speedup_vs_ar == 1.0
    assert by_name["draft"].numbers.mean_accepted_length == 4.0  # 12 = 5 + 5 + 2
    assert by_name["generate"].numbers.rounds is None
    assert 0 < by_name["draft"].recording < 1


def test_a_speed_up_is_the_ratio_of_speeds(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts 1 s for `ar` and 0.5 s for `ngram` per run, the ratio is 2."""

    def fake(lab: Lab, method: str, prompt: Prompt, settings: dict[str, Any]) -> Any:
        ids = tuple(range(10))
        return ids, None, {"ar": 1.0, "ngram": 0.5}[method]

    monkeypatch.setattr(bench_run, "_once", fake)
    rows = bench(lab, ["ar", "ngram"], PROMPTS)
    assert [r.speedup_vs_ar for r in rows] == [1.0, 2.0]
    assert [r.numbers.tokens_per_second for r in rows] == [10.0, 20.0]


def test_methods_take_turns_in_going_first() -> None:
    order = [m for m, _ in bench_run._turns(["a", "b"], PROMPTS)]
    assert order == ["a", "b", "b", "a"]


def test_bad_benchmarks_are_refused_before_any_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_run, "_once", lambda *_: pytest.fail("a run began"))
    with pytest.raises(BadInput, match="one of generate, ar, ngram, draft"):
        bench(lab, ["ar", "what"], PROMPTS)
    with pytest.raises(BadInput, match="each method once"):
        bench(lab, ["ar", "ar"], PROMPTS)
    with pytest.raises(BadInput, match="max_new_tokens"):
        bench(lab, ["ar"], PROMPTS, max_new_tokens=0)


def test_recording_cost_rebuilds_every_event(lab: Lab) -> None:
    trace = lab.record("the", method="draft", max_new_tokens=8)
    ticks = iter(range(1000))
    assert recording_seconds(trace, repeats=3, clock=lambda: float(next(ticks))) == 1.0
    assert recording_seconds(trace) > 0
    assert conditions(lab, PROMPTS, seed=3)["settings"] == {"seed": 3}


# --- commands -------------------------------------------------------------------------------------


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_generate_prints_one_object(lab: Lab, gguf: Path, tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    arguments = ("--model", str(gguf), "--draft", str(gguf), "--device", "cpu", "--prompt", "the")
    done = call("generate", *arguments, "--max-new-tokens", "9", "--json", "--trace", str(saved))
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    names = {
        *("method", "model", "dtype", "device", "prompt_tokens", "tokens", "text", "stop_reason"),
        *("rounds", "drafted", "accepted", "mean_accepted_length", "acceptance_by_position"),
        *("target_forwards", "draft_forwards", "seconds", "tokens_per_second"),
    }
    assert names <= set(record)
    expected = lab.record("the", method="ar", max_new_tokens=9)
    assert (record["text"], record["tokens"]) == (expected.text, 9)
    assert record["stop_reason"] == "max_new_tokens"
    assert Trace.load(saved).tokens == expected.tokens


def test_generate_streams_the_text(lab: Lab, gguf: Path) -> None:
    arguments = ("--model", str(gguf), "--device", "cpu", "--prompt", "the", "--method", "ar")
    done = call("generate", *arguments, "--max-new-tokens", "6")
    assert done.stdout == lab.record("the", method="ar", max_new_tokens=6).text
    assert "6 tokens in" in done.stderr


def test_an_interrupted_generate_keeps_what_it_has(
    lab: Lab, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(self: Lab, prompt: str, **options: Any) -> Any:
        events = autoregress(lab.target, lab.tokens("the"), config=lab.config(max_new_tokens=9))
        for event in events:
            yield event
            if isinstance(event, Committed) and event.round == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(Lab, "events", cut)
    saved = tmp_path / "run.json"
    arguments = ("--model", str(gguf), "--device", "cpu", "--prompt", "the", "--method", "ar")
    done = call("generate", *arguments, "--json", "--trace", str(saved))
    assert done.exit_code == 130
    assert json.loads(done.stdout)["stop_reason"] == "interrupted"
    assert len(Trace.load(saved).tokens) == 3
    told = call("generate", *arguments, "--trace", str(saved))
    assert told.exit_code == 130
    assert "(the target's own token counted); interrupted.\n" in told.stderr
    assert told.stderr.endswith(f"trace written to {saved}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt", ""), "prompt"),
        (("--prompt", "x", "--method", "eagle9"), "method"),
        (("--prompt", "x", "--draft-length", "-1"), "draft_length"),
        (("--prompt", "x", "--temperature", "-0.5"), "temperature"),
        (("--prompt", "x", "--max-new-tokens", "0"), "change max_new_tokens (--max-new-tokens)"),
        (("--prompt", "x", "--tree"), "--tree"),
        (("--prompt", "x", "--trace", "/no/such/folder/run.json"), "--trace"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.lab.session.open_lab", lambda *_, **__: pytest.fail("loaded"))
    done = call("generate", *arguments)
    assert isinstance(done.exception, BadInput)
    assert message in str(done.exception)


def test_bench_prints_one_object_and_a_table(gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "the"}\n{"prompt": "then"}\n')
    base = ("bench", "--model", str(gguf), "--device", "cpu", "--methods", "ar,ngram")
    options = ("--prompts", str(path), "--max-new-tokens", "6")
    record = json.loads(call(*base, *options, "--json").stdout)
    assert [r["method"] for r in record["rows"]] == ["ar", "ngram"]
    assert record["conditions"]["prompts"] == 2
    assert record["conditions"]["draft lengths"] == {"ngram": 3}
    table = call(*base, *options).stdout
    assert ", draft lengths 3 (ngram), " in table
    assert "| ar |" in table
    assert "n/a" in table, "nothing drafted: no rate is made up"


def test_bench_refuses_batches_and_unknown_methods() -> None:
    assert "batch size 1" in str(call("bench", "--batch-size", "2").exception)
    assert "what" in str(call("bench", "--methods", "ar,what").exception)


def test_train_and_selfgen_refuse_bad_options(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    minutes = call("train", "draft", "--data", "x", "--minutes", "0", "--out", out)
    assert "--minutes" in str(minutes.exception)
    missing = call("train", "draft", "--data", "none.jsonl", "--minutes", "1", "--out", out)
    assert "selfgen" in str(missing.exception)
    assert "tokens" in str(call("selfgen", "--tokens", "0", "--out", out).exception)
    assert not Path(out).exists()


def test_train_and_selfgen_refuse_what_they_can_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("labkit.lab.load.load_model", loads)
    data = tmp_path / "rows.jsonl"
    data.write_text("{}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    write, learn = ("selfgen", "--tokens"), ("train", "draft", "--data", str(data), "--minutes")
    refused = {
        (*write, "0", "--out", str(tmp_path / "x.jsonl")): "tokens",
        (*write, "9", "--out", str(tmp_path / "x.txt")): ".jsonl",
        (*write, "9", "--out", str(data / "x.jsonl")): "a place that may be written to",
        (*write, "9", "--seed", str(2**64), "--out", str(tmp_path / "x.jsonl")): "64 bits",
        (*learn, "0", "--out", str(tmp_path / "new")): "minutes",
        (*learn, "nan", "--out", str(tmp_path / "new")): "minutes",
        (*learn, "inf", "--out", str(tmp_path / "new")): "minutes",
        (*learn, "1", "--out", str(tmp_path / "full")): "letter.txt",
        (*learn, "1", "--out", str(data)): "a folder",
        (*learn, "1", "--out", str(data / "new")): "a place that may be written to",
        (*learn, "1", "--seed", str(2**64), "--out", str(tmp_path / "new")): "64 bits",
    }
    for arguments, named in refused.items():
        error = call(*arguments).exception
        assert isinstance(error, BadInput), (arguments, error)
        assert named in str(error)
    with pytest.raises(AssertionError, match="a model was loaded"):
        raise call(*write, "9", "--out", str(tmp_path / "x.jsonl")).exception
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "rows.jsonl"]


def test_every_command_is_reachable() -> None:
    assert isinstance(app, typer.Typer)
    for words in (
        ("generate",),
        ("bench",),
        ("selfgen",),
        ("train", "draft"),
        ("doctor",),
        ("pull",),
    ):
        assert call(*words, "--help").exit_code == 0, words


def test_rows_add_up_over_runs(lab: Lab) -> None:
    runs = [lab.record(p.text, method="ngram", max_new_tokens=7) for p in PROMPTS]
    both = row(runs, seconds=2.0)
    single = [row([r], seconds=1.0) for r in runs]
    for name in ("tokens", "rounds", "drafted", "accepted", "target_forwards"):
        assert getattr(both, name) == sum(getattr(s, name) for s in single)
    assert both.tokens_per_second == both.tokens / 2
    assert replace(both, tokens=0) != both


def test_a_benchmark_tells_a_fault_from_the_same_text(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that writes another token than the likeliest one is named."""

    def fake(lab: Lab, method: str, prompt: Prompt, settings: dict[str, Any]) -> Any:
        right = one_by_one(lab, lab.tokens(prompt.text), 1)
        wrong = (lab.tokens("z", chat=False)[0],)
        return (right if method == "ar" or prompt.id == "b" else wrong), None, 1.0

    monkeypatch.setattr(bench_run, "_once", fake)
    found = bench(lab, ["ar", "ngram"], PROMPTS, max_new_tokens=9)[1]
    assert (found.same_as_ar, found.near_ties, found.faults) == (1, 0, 1)


# EAGLE heads, as folders in a public format.


@pytest.fixture(scope="module")
def head_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """A tiny deep target and a random EAGLE-3.1 head for it."""
    model = tiny("llama", layers=8)
    config = head_config(model, 3, fc_norm=True, norm_output=True)
    folder = tmp_path_factory.mktemp("heads") / "eagle31"
    head = random_head(config, model)
    write_checkpoint(
        checkpoint_of(head, target_model=model, target="tiny"), folder, format="safeailab"
    )
    return model, str(folder)


def test_a_head_of_one_s_own_drafts(head_folder: tuple[Any, str], lab: Lab) -> None:
    model, folder = head_folder
    loaded = replace(lab.loaded, model=model)
    bench = Lab(loaded, head=folder, shape=DynamicTree(top_k=2, nodes=5))
    trace = bench.record([1, 2, 3, 4], method="eagle31", max_new_tokens=10, eos=None)
    plain = bench.record([1, 2, 3, 4], method="ar", max_new_tokens=10, eos=None)
    assert trace.tokens == plain.tokens
    assert trace.header["head"] == folder
    assert trace.header["shape"] == "DynamicTree(top_k=2, nodes=5, costs=None)"
    facts = conditions(bench, PROMPTS)
    assert (facts["head"], facts["shape"]) == (folder, trace.header["shape"])
    assert max(len(r.drafted.tokens) for r in trace.rounds) == 6
    with pytest.raises(BadInput, match=r"expected an eagle1 head, got EAGLE-3\.1"):
        bench.record([1, 2, 3, 4], method="eagle1")
    with pytest.raises(BadInput, match=r"expected an eagle3 head, got EAGLE-3\.1"):
        bench.record([1, 2, 3, 4], method="eagle3")
    with pytest.raises(ModelUnavailable, match="labkit train eagle3"):
        Lab(loaded).record([1, 2, 3, 4], method="eagle3")


def test_a_target_s_own_modules_draft_and_so_does_a_folder(tmp_path: Path, lab: Lab) -> None:
    model = mtp_files.target("mimo")
    folder = mtp_files.save(tmp_path / "m", model, mtp_files.weights("mimo"))
    loaded = replace(lab.loaded, model=model, path=folder)
    checkpoint = checkpoint_of_mtp(random_mtp(model), target_model=model, target="tiny")
    own = str(save_mtp(checkpoint, tmp_path / "h"))
    plain = Lab(loaded).record([1, 2, 3, 4], method="ar", max_new_tokens=10, eos=None)
    heads = {}
    for head in (None, own):
        bench = Lab(loaded, head=head)
        trace = bench.record([1, 2, 3, 4], method="mtp", max_new_tokens=10, eos=None)
        assert trace.tokens == plain.tokens
        assert max(len(r.drafted.tokens) for r in trace.rounds) == 4
        drafter = bench.drafter("mtp")
        assert isinstance(drafter.head, MtpHead)
        heads[head] = drafter.head.config.adapter.name
    assert heads == {None: "mimo", own: "generic"}
    model.save_pretrained(tmp_path / "plain")
    for path in (None, tmp_path / "plain"):
        with pytest.raises(ModelUnavailable, match="labkit train mtp"):
            Lab(replace(loaded, path=path)).record([1, 2, 3, 4], method="mtp")


@pytest.mark.parametrize("kind", ["medusa", "meta"])
def test_parallel_heads_draft_trees_by_themselves(kind: str, tmp_path: Path, lab: Lab) -> None:
    model = lab.model
    heads = random_heads(medusa_config(model, kind, heads=4), model)
    stored = checkpoint_of_medusa(heads, target_model=model, target="tiny")
    folder = str(write_medusa(stored, tmp_path / "h"))
    options: dict[str, Any] = {"max_new_tokens": 10, "eos": None}
    plain = Lab(lab.loaded).record([1, 2, 3, 4], method="ar", **options)
    for shape in (None, Chain()):
        bench = Lab(lab.loaded, head=folder, shape=shape)
        trace = bench.record([1, 2, 3, 4], method="medusa", **options)
        assert trace.tokens == plain.tokens
        widest = max(len(r.drafted.tokens) for r in trace.rounds)
        assert widest == (3 if shape else 4)  # with the root
        assert trace.header["drafter"] == "medusa"
    with pytest.raises(ModelUnavailable, match="labkit train medusa"):
        Lab(lab.loaded).record([1, 2, 3, 4], method="medusa")
    with pytest.raises(BadCheckpoint, match="an EAGLE head"):
        Lab(lab.loaded, head=folder).record([1, 2, 3, 4], method="eagle3")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--method", "ngram", "--tree"), "--tree"),
        (("--method", "draft", "--tree-nodes", "9"), "--tree-nodes"),
        (("--method", "eagle3", "--chain", "--tree-width", "3"), "--tree-width"),
        (("--method", "eagle3", "--tree-nodes", "0"), "nodes"),
        (("--method", "draft", "--head", "somewhere"), "--head"),
        (("--method", "eagle3", "--draft", "somewhere"), "--draft"),
        (("--method", "mtp", "--tree-nodes", "0"), "nodes"),
        (("--method", "mtp", "--draft", "somewhere"), "--draft"),
        (("--method", "medusa", "--tree-nodes", "0"), "nodes"),
    ],
)
def test_shapes_and_heads_that_a_method_has_no_use_for(
    options: tuple[str, ...], named: str
) -> None:
    done = CliRunner().invoke(app, ["generate", "--prompt", "x", *options])
    assert isinstance(done.exception, BadInput)
    assert named in str(done.exception)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ((), None),
        (("--chain",), Chain()),
        (("--tree",), HEADS["eagle2"].shape),
        (("--tree-nodes", "9"), DynamicTree(top_k=3, nodes=9)),
        (("--tree", "--tree-width", "2"), DynamicTree(top_k=2, nodes=3)),
    ],
)
def test_a_tree_without_sizes_is_the_one_that_the_lab_s_own_methods_draft(
    options: tuple[str, ...], shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def opened(*_: Any, **given: Any) -> Any:
        asked.append(given["shape"])
        raise KeyboardInterrupt

    monkeypatch.setattr("labkit.lab.session.open_lab", opened)
    for command in (["generate", "--prompt", "x", "--method"], ["bench", "--methods"]):
        CliRunner().invoke(app, [*command, "eagle31", *options])
    assert asked == [shape, shape]
    assert HEADS["eagle2"].shape == HEADS["medusa"].shape != DynamicTree()
