"""Self-generated text: the file is the same however often writing it was interrupted."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from full_disk import small_files_only
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from labkit import cli
from labkit.errors import BadInput
from labkit.lab import load as loading
from labkit.toy import tiny
from labkit.training import selfgen as writing_own_text
from labkit.training.data import read_rows
from labkit.training.openings import OPENINGS
from labkit.training.selfgen import SelfgenSettings, _Writer, answer, kept, selfgen

SETTINGS = SelfgenSettings(batch_rows=4, bare_share=0.5, user_tokens=6, reply_tokens=10)
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    """One token per byte, and two marks."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {s: i for i, s in enumerate(["<s>", "</s>", *symbols])}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    return fast


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny("llama", seed=5, vocab_size=len(tokenizer))


def write(model, tokenizer, out, **changes):
    settings = {"tokens": 150, "seed": 1, "settings": SETTINGS} | changes
    return selfgen(model, tokenizer, out=out, **settings)


def test_rows_are_whole_conversations_and_reach_the_goal(tmp_path, model, tokenizer):
    out = tmp_path / "a.jsonl"
    report = write(model, tokenizer, out)
    rows = read_rows(out, vocab_size=len(tokenizer))
    assert report.rows == len(rows)
    assert report.reply_tokens == sum(len(row.reply) for row in rows) >= 150
    # one batch less would not have been enough
    assert sum(len(row.reply) for row in rows[: -SETTINGS.batch_rows]) < 150
    for row in rows:
        text = tokenizer.decode(row.prompt)
        assert text.startswith("<s>user\n")
        assert text.endswith("</s>\n<s>assistant\n")
        assert len(row.reply) <= 10
        assert tokenizer.eos_token_id not in row.reply[:-1]
    kinds = [json.loads(line)["kind"] for line in out.read_text().splitlines()]
    assert set(kinds) == {"bare", "steered"}
    for kind, row in zip(kinds, rows, strict=True):
        turn = tokenizer.decode(row.prompt).removeprefix("<s>user\n")
        opened = any(turn.startswith(opening.strip()) for opening in OPENINGS)
        assert opened or kind == "bare"


def test_the_reply_is_greedy(tmp_path, model, tokenizer):
    out = tmp_path / "a.jsonl"
    write(model, tokenizer, out)
    for row in read_rows(out, vocab_size=len(tokenizer))[:6]:
        text = list(row.prompt)
        for token in row.reply:  # slow: one full forward per token, no padding, no cache
            assert int(model(torch.tensor([text])).logits[0, -1].argmax()) == token
            text.append(token)


@pytest.mark.parametrize("cut", [1, 37, 400, 900])
def test_an_interrupted_file_ends_with_the_same_bytes(tmp_path, model, tokenizer, cut):
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    write(model, tokenizer, whole)
    content = whole.read_bytes()
    for size in (len(content) - cut, cut):
        torn.write_bytes(content[:size])
        # a first line that is not whole cannot be told from somebody else's file
        if b"\n" not in content[:size]:
            with pytest.raises(BadInput):
                write(model, tokenizer, torn)
            assert torn.read_bytes() == content[:size]
            continue
        write(model, tokenizer, torn)
        assert torn.read_bytes() == content


def test_a_longer_goal_continues_the_same_stream(tmp_path, model, tokenizer):
    short, long = tmp_path / "short.jsonl", tmp_path / "long.jsonl"
    write(model, tokenizer, short, tokens=60)
    write(model, tokenizer, long, tokens=200)
    assert long.read_bytes().startswith(short.read_bytes())
    assert len(long.read_bytes()) > len(short.read_bytes())
    write(model, tokenizer, short, tokens=200)
    assert short.read_bytes() == long.read_bytes()
    before = long.read_bytes()
    report = write(model, tokenizer, long, tokens=100)
    assert long.read_bytes() == before
    assert report.reply_tokens >= 200


def test_seeds_write_different_texts(tmp_path, model, tokenizer):
    texts = []
    for seed in (1, 1, 2):
        out = tmp_path / f"{len(texts)}.jsonl"
        write(model, tokenizer, out, seed=seed)
        texts.append([row.prompt for row in read_rows(out, vocab_size=len(tokenizer))])
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_torchs_own_random_state_is_given_back(tmp_path, model, tokenizer):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    write(model, tokenizer, tmp_path / "a.jsonl")
    assert torch.equal(torch.rand(3), expected)


def test_another_runs_file_is_refused_and_left_alone(tmp_path, model, tokenizer):
    out = tmp_path / "a.jsonl"
    write(model, tokenizer, out)
    before = out.read_bytes()
    other = tiny("llama", seed=6, vocab_size=len(tokenizer))
    for changes in ({"seed": 2}, {"settings": replace(SETTINGS, reply_tokens=9)}):
        with pytest.raises(BadInput, match="line 1"):
            write(model, tokenizer, out, tokens=500, **changes)
    with pytest.raises(BadInput, match="line 1"):
        write(other, tokenizer, out, tokens=500)
    out.write_text('{"p": [1], "r": [2]}\n')
    with pytest.raises(BadInput, match="something else"):
        write(model, tokenizer, out)
    assert out.read_text() == '{"p": [1], "r": [2]}\n'
    out.write_bytes(before)
    write(model, tokenizer, out)  # control: its own settings are accepted


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 0}, "tokens: expected at least 1"),
        ({"settings": replace(SETTINGS, batch_rows=0)}, "batch_rows"),
        ({"settings": replace(SETTINGS, bare_share=1.5)}, "bare_share"),
        ({"settings": replace(SETTINGS, reply_tokens=0)}, "reply_tokens"),
        ({"settings": replace(SETTINGS, temperature=0.0)}, "temperature"),
        ({"settings": replace(SETTINGS, top_p=0.0)}, "top_p"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    tmp_path, model, tokenizer, changes, words
):
    with pytest.raises(BadInput) as caught:
        write(model, tokenizer, tmp_path / "new" / "a.jsonl", **changes)
    assert words in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_bad_files_and_tokenizers_are_refused(tmp_path, model, tokenizer):
    with pytest.raises(BadInput, match=r"\.jsonl"):
        write(model, tokenizer, tmp_path / "a.jsonl.gz")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(BadInput, match="folder"):
        write(model, tokenizer, tmp_path / "folder.jsonl")
    silent = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(BadInput, match="chat template"):
        write(model, silent, tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()


def test_progress_ends_at_the_goal(tmp_path, model, tokenizer):
    told = []
    write(
        model,
        tokenizer,
        tmp_path / "a.jsonl",
        progress=lambda what, done, total: told.append((done, total)),
    )
    done = [d for d, _ in told]
    assert done == sorted(done)
    assert told[-1] == (150, 150)


# --- user turns of your own ---

TURNS = ["count to ten", "name a fruit", "what is 2 + 2?", "why?", "and then?", "say it again"]


def test_given_turns_are_answered_in_their_order(tmp_path, model, tokenizer):
    out = tmp_path / "a.jsonl"
    report = answer(model, tokenizer, TURNS, out=out, settings=SETTINGS)
    rows = read_rows(out, vocab_size=len(tokenizer))
    assert report.rows == len(rows) == len(TURNS)
    for turn, row in zip(TURNS, rows, strict=True):
        assert tokenizer.decode(row.prompt) == f"<s>user\n{turn}</s>\n<s>assistant\n"
        text = list(row.prompt)
        for token in row.reply:
            assert int(model(torch.tensor([text])).logits[0, -1].argmax()) == token
            text.append(token)


@pytest.mark.parametrize("cut", [0, 700, 1000, 10_000])
def test_interrupted_answers_end_with_the_same_bytes(tmp_path, model, tokenizer, cut):
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    answer(model, tokenizer, TURNS, out=whole, settings=SETTINGS)
    part.write_bytes(whole.read_bytes()[:cut])
    calls = []
    answer(
        model,
        tokenizer,
        TURNS,
        out=part,
        settings=SETTINGS,
        progress=lambda what, done, total: calls.append((done, total)),
    )
    assert part.read_bytes() == whole.read_bytes()
    # a file that is complete is left alone, its smaller last batch too
    assert bool(calls) == (cut != 10_000)
    assert not calls or calls[-1] == (6, 6)


def test_a_disk_that_fills_up_names_the_file_which_can_be_continued(tmp_path, model, tokenizer):
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    answer(model, tokenizer, TURNS, out=whole, settings=SETTINGS)
    with (
        small_files_only(whole.stat().st_size - 10),
        pytest.raises(BadInput, match=f"output {part}"),
    ):
        answer(model, tokenizer, TURNS, out=part, settings=SETTINGS)
    answer(model, tokenizer, TURNS, out=part, settings=SETTINGS)
    assert part.read_bytes() == whole.read_bytes()


def test_given_turns_that_cannot_be_are_refused(tmp_path, model, tokenizer):
    out = tmp_path / "a.jsonl"
    with pytest.raises(BadInput, match="user turns"):
        answer(model, tokenizer, [], out=out, settings=SETTINGS)
    with pytest.raises(BadInput, match="user turn 1"):
        answer(model, tokenizer, ["a", "  "], out=out, settings=SETTINGS)
    assert not out.exists()
    answer(model, tokenizer, TURNS, out=out, settings=SETTINGS)
    before = out.read_bytes()
    with pytest.raises(BadInput, match="a row of this run"):
        answer(model, tokenizer, TURNS[:-1], out=out, settings=SETTINGS)
    assert out.read_bytes() == before


# --- interruptions ---


class Stopped:
    """Progress that is interrupted when so many rows are in the file."""

    def __init__(self, out, *, rows):
        self.out, self.rows = out, rows

    def __call__(self, what, done, total):
        there = self.out.read_text().count("\n") if self.out.exists() else 0
        if there >= self.rows:
            raise KeyboardInterrupt


@pytest.mark.parametrize("rows", [4, 8])
def test_an_interrupted_call_keeps_whole_batches_and_goes_on_after_them(
    tmp_path, model, tokenizer, monkeypatch, rows
):
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    write(model, tokenizer, whole)
    with pytest.raises(KeyboardInterrupt):
        write(model, tokenizer, part, progress=Stopped(part, rows=rows))
    lines = whole.read_bytes().splitlines(keepends=True)
    assert len(lines) > rows
    assert part.read_bytes() == b"".join(lines[:rows])
    found = kept(part)
    assert found.rows == rows
    assert found.reply_tokens == sum(len(json.loads(line)["r"]) for line in lines[:rows])
    made = []
    written = _Writer.conversations
    monkeypatch.setattr(
        _Writer,
        "conversations",
        lambda self, n, *a, **k: made.append(n) or written(self, n, *a, **k),
    )
    write(model, tokenizer, part)
    assert made == list(range(rows // 4, len(lines) // 4)), "no batch is made again"
    assert part.read_bytes() == whole.read_bytes()


def stop(what, done, total):
    if done:
        raise KeyboardInterrupt


def test_a_call_that_made_nothing_leaves_no_file_of_its_own(tmp_path, model, tokenizer):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "new" / "a.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write(model, tokenizer, out, progress=stop)
    assert not out.exists()
    write(model, tokenizer, whole)
    out.parent.mkdir(exist_ok=True)
    torn = whole.read_bytes().split(b"\n", 2)[0] + b"\n"  # one row, no whole batch
    out.write_bytes(torn)
    with pytest.raises(KeyboardInterrupt):
        write(model, tokenizer, out, progress=stop)
    assert out.read_bytes() == torn
    write(model, tokenizer, out)
    assert out.read_bytes() == whole.read_bytes()


def test_progress_is_told_while_a_batch_is_at_work(tmp_path, model, tokenizer):
    told, out = [], tmp_path / "a.jsonl"

    def progress(what, done, total):
        told.append((done, out.exists()))

    write(model, tokenizer, out, progress=progress)
    early = [done for done, there in told if not there]
    assert early[0] == 0
    assert len(set(early)) > 5
    # the last word on a batch at work is what the batch then has
    rows = read_rows(out, vocab_size=len(tokenizer))
    assert early[-1] == sum(len(row.reply) for row in rows[: SETTINGS.batch_rows])


def batches_of(model, tokenizer, out, monkeypatch, *, tokens):
    """Rows per batch of a call with the usual settings, here with short texts."""
    sizes = []
    written = _Writer.replies
    with monkeypatch.context() as patch:
        patch.setattr(writing_own_text, "SelfgenSettings", Short)
        patch.setattr(
            _Writer, "replies", lambda self, t, **k: sizes.append(len(t)) or written(self, t, **k)
        )
        write(model, tokenizer, out, tokens=tokens, settings=None)
    return set(sizes)


@dataclass(frozen=True)
class Short(SelfgenSettings):
    user_tokens: int = 3
    reply_tokens: int = 6


def test_small_calls_make_small_batches_and_a_file_goes_on_with_its_own(
    tmp_path, model, tokenizer, monkeypatch
):
    few, many = tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    options = (model, tokenizer)
    assert batches_of(*options, few, monkeypatch, tokens=16 * 6) == {4}
    assert batches_of(*options, many, monkeypatch, tokens=16 * 6 + 1) == {16}
    assert batches_of(*options, few, monkeypatch, tokens=200) == {4}
    many.write_bytes(b"".join(many.read_bytes().splitlines(keepends=True)[:16]))
    assert batches_of(*options, many, monkeypatch, tokens=90) <= {16}
    assert batches_of(*options, many, monkeypatch, tokens=200) == {16}


@pytest.fixture
def loaded(model, tokenizer, monkeypatch):
    found = SimpleNamespace(model=model, tokenizer=tokenizer)
    monkeypatch.setattr(loading, "load_model", lambda name, **options: found)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (0, "labkit selfgen: interrupted before any conversation was whole; nothing kept"),
        (4, "labkit selfgen: interrupted; kept 4 conversations, "),
    ],
)
def test_the_command_says_what_an_interruption_left(tmp_path, loaded, monkeypatch, rows, said):
    out = tmp_path / "a.jsonl"
    stopped = Stopped(out, rows=rows)
    monkeypatch.setattr("labkit.progress.text_bar", lambda stream: stopped)
    turns = tmp_path / "turns.jsonl"
    turns.write_text("".join(json.dumps({"prompt": turn}) + "\n" for turn in TURNS))
    done = CliRunner().invoke(cli.app, ["selfgen", "--prompts", str(turns), "--out", str(out)])
    assert done.exit_code == 130
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert out.exists() == bool(rows)
