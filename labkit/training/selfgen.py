"""Let the target write its own training text: ``labkit selfgen``.

Owns: how user turns come about, the file of rows, interruption.
Does not know: training, draft models.
Invariants: batch number b is a function of the model, the settings, the seed and b alone; the file
holds whole batches in order, so a run that was interrupted any number of times ends with the same
bytes as one that was not. A file is there only when a batch is.

A user turn is sampled from the model inside its own chat template, either from nothing or from one
of our openings. The reply is greedy: it is what a draft model has to guess.
"""

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from labkit.devices import is_gpu
from labkit.errors import BadInput, require
from labkit.heads.draft_checkpoint import target_fingerprint
from labkit.ids import end_ids
from labkit.progress import Progress
from labkit.training.data import may_be_made
from labkit.training.openings import OPENINGS
from labkit.whole_file import writing

_FEW = 4  # rows per batch where no more is asked for than one usual batch may hold
_MARK = "\u241fuser turn\u241f"

Tell = Callable[[int, int], None]
"""Told of the batch at work how many reply tokens there are, and how many replies have ended."""


@dataclass(frozen=True)
class SelfgenSettings:
    """How text is written.

    Attributes:
        batch_rows: conversations per batch, which are written together; what an interruption
            loses. Without settings of your own, small calls make batches of 4.
        bare_share: share of user turns that start from nothing; the others take an opening.
        user_tokens: longest user turn, in sampled tokens.
        reply_tokens: longest reply.
        temperature, top_p: of user turns. Replies are greedy.
    """

    batch_rows: int = 16
    bare_share: float = 0.3
    user_tokens: int = 64
    reply_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 0.9


@dataclass(frozen=True)
class SelfgenReport:
    """What the file holds at the end: rows, and the tokens of their replies."""

    out: Path
    rows: int
    reply_tokens: int


def selfgen(
    model: Any,
    tokenizer: Any,
    *,
    tokens: int,
    out: Path | str,
    seed: int = 0,
    settings: SelfgenSettings | None = None,
    openings: Sequence[str] = OPENINGS,
    progress: Progress | None = None,
) -> SelfgenReport:
    """Write conversations until their replies hold at least ``tokens`` tokens.

    A file that an interrupted call left is continued. Each line is one row: ``p`` and ``r`` are
    the token ids of prompt (chat template included) and reply, ``kind`` is ``bare`` or
    ``steered``, and ``run`` names model, settings and seed.

    Args:
        model: HF causal LM with ``generate``; its device and dtype are used as they are.
        tokenizer: its HF tokenizer, with a chat template.
        tokens: goal for the whole file, in reply tokens.
        out: a ``.jsonl`` file, new or left by an interrupted call.

    Raises:
        BadInput: impossible settings, a tokenizer without chat template, or a file that another
            run wrote. Nothing has been written then.
    """
    out = Path(out)
    check_options(tokens=tokens, out=out, seed=seed, settings=settings)
    few = tokens <= SelfgenSettings.batch_rows * SelfgenSettings.reply_tokens
    writer = _writer(model, tokenizer, settings, few=few, out=out, seed=seed, texts=openings)

    def batch(number: int, tell: Tell) -> list[dict[str, Any]]:
        return writer.conversations(number, seed, openings, tell=tell)

    return _fill(out, writer, batch, goal=tokens, progress=progress)


def answer(
    model: Any,
    tokenizer: Any,
    turns: Sequence[str],
    *,
    out: Path | str,
    settings: SelfgenSettings | None = None,
    progress: Progress | None = None,
) -> SelfgenReport:
    """Write the target's greedy replies to user turns of your own; for the rest, see `selfgen`.

    Args:
        turns: one conversation each, in this order.

    Raises:
        BadInput: no turns, an empty one, or as `selfgen`.
    """
    out = Path(out)
    require(len(turns) > 0, "user turns", "at least one", 0)
    blank = next((i for i, turn in enumerate(turns) if not turn.strip()), None)
    require(blank is None, f"user turn {blank}", "some text", "none")
    check_options(tokens=1, out=out, settings=settings)
    few = len(turns) <= SelfgenSettings.batch_rows
    writer = _writer(model, tokenizer, settings, few=few, out=out, seed="given", texts=turns)
    size = writer.settings.batch_rows

    def batch(number: int, tell: Tell) -> list[dict[str, Any]]:
        rows = writer.replies(turns[number * size : (number + 1) * size], tell=tell)
        return [row | {"kind": "given"} for row in rows]

    return _fill(out, writer, batch, rows=len(turns), progress=progress)


def kept(out: Path) -> SelfgenReport:
    """What an interrupted call left: the whole rows of a file, or of none."""
    lines = out.read_bytes().split(b"\n")[:-1] if out.is_file() else []
    lengths = [_read(line)[1] for line in lines]  # 0 for a line of something else
    return SelfgenReport(out=out, rows=sum(map(bool, lengths)), reply_tokens=sum(lengths))


def _fill(
    out: Path,
    writer: "_Writer",
    batch: Callable[[int, Tell], list[dict[str, Any]]],
    *,
    progress: Progress | None,
    goal: int | None = None,
    rows: int = 0,
) -> SelfgenReport:
    """Append batches to the usable beginning of a file, up to a goal in reply tokens or rows.

    Raises:
        BadInput: the file cannot be written.
    """
    batch_rows = writer.settings.batch_rows
    found = _whole_batches(out, run=writer.run, batch_rows=batch_rows, last=rows or None)
    size, written, done = found.size, found.rows, found.reply_tokens

    def tell(reply_tokens: int, ended: int) -> None:
        if progress is not None:
            told = (
                (written + ended, rows) if goal is None else (min(done + reply_tokens, goal), goal)
            )
            progress("the model writes its own training text", *told)

    while (done < goal) if goal is not None else (written < rows):
        tell(0, 0)
        made = [row | {"run": writer.run} for row in batch(written // batch_rows, tell)]
        size = _append(out, made, at=size)
        written += len(made)
        done += sum(len(row["r"]) for row in made)
        tell(0, 0)
    if out.stat().st_size > size:
        _append(out, [], at=size)
    return SelfgenReport(out=out, rows=written, reply_tokens=done)


def _append(out: Path, rows: Sequence[dict[str, Any]], *, at: int) -> int:
    """Put rows in place of all that follows ``at``; where the next ones go."""
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("ab") as file:  # closing it writes once more
            file.truncate(at)
            file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())
        return out.stat().st_size


@dataclass(frozen=True)
class _Found:
    """The usable beginning of a file: whole batches of whole rows."""

    size: int
    rows: int
    reply_tokens: int


def _whole_batches(out: Path, *, run: str, batch_rows: int, last: int | None = None) -> _Found:
    """``last``: rows of a complete file, whose last batch may be a smaller one."""
    if not out.exists():
        return _Found(0, 0, 0)
    lines = out.read_bytes().split(b"\n")[:-1]  # the last piece is empty, or a torn row
    size = reply_tokens = 0
    whole = len(lines) if len(lines) == last else len(lines) - len(lines) % batch_rows
    for number, line in enumerate(lines, start=1):
        length = _reply_length(line, where=f"{out}, line {number}", run=run)
        if number <= whole:
            size += len(line) + 1
            reply_tokens += length
    if not lines and out.stat().st_size > 0:
        _reply_length(out.read_bytes(), where=f"{out}, line 1", run=run)
    return _Found(size, whole, reply_tokens)


def _read(line: bytes) -> tuple[Any, int]:
    """The run of a row, and how long its reply is."""
    try:
        row = json.loads(line)
        return row["run"], len(row["r"])
    except (ValueError, KeyError, TypeError):
        return "something else", 0


def _reply_length(line: bytes, *, where: str, run: str) -> int:
    found, length = _read(line)
    if found != run:
        raise BadInput(
            where,
            expected=f"a row of this run ({run})",
            got=str(found),
            next_step="repeat the first call's model, seed and settings, or name a new file",
        )
    return length


def _writer(
    model: Any,
    tokenizer: Any,
    settings: SelfgenSettings | None,
    *,
    few: bool,
    out: Path,
    seed: int | str,
    texts: Sequence[str],
) -> "_Writer":
    """One of these settings; else of the usual ones with batches for ``few`` rows or many, but a
    file that is there goes on with its own."""
    usual = SelfgenSettings()
    small = replace(usual, batch_rows=_FEW)
    choice = (settings,) if settings else (small, usual) if few else (usual, small)
    writers = [_Writer(model, tokenizer, s, seed=seed, texts=texts) for s in choice]
    begun = out.read_bytes().split(b"\n", 1)[0] if out.exists() else b""
    return next((w for w in writers if json.dumps(w.run).encode() in begun), writers[0])


class _Writer:
    """Makes rows from nothing but its arguments and what it was built with.

    Attributes:
        run: equal for runs that write the same file.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: SelfgenSettings,
        *,
        seed: int | str,
        texts: Sequence[str],
    ) -> None:
        self._model, self._tokenizer, self.settings = model, tokenizer, settings
        self._before = _template_before_user(tokenizer)
        recipe = json.dumps([asdict(settings), texts, target_fingerprint(model)])
        self.run = f"seed {seed}, {hashlib.sha256(recipe.encode()).hexdigest()[:12]}"

    def conversations(
        self, number: int, seed: int, openings: Sequence[str], *, tell: Tell
    ) -> list[dict[str, Any]]:
        """Rows ``number * batch_rows`` and following, user turns sampled from the model."""
        settings = self.settings
        rng = random.Random(f"{seed}/{number}")
        starts = [
            "" if rng.random() < settings.bare_share else rng.choice(openings)
            for _ in range(settings.batch_rows)
        ]
        turns = self._user_turns(starts, seed=rng.getrandbits(63), fallback=openings[0])
        rows = self.replies(turns, tell=tell)
        kinds = ("steered" if start else "bare" for start in starts)
        return [row | {"kind": kind} for row, kind in zip(rows, kinds, strict=True)]

    def replies(self, turns: Sequence[str], *, tell: Tell) -> list[dict[str, Any]]:
        """Prompt and greedy reply of each user turn."""
        prompts = [self._prompt(turn) for turn in turns]
        ends, length = end_ids(self._model, self._tokenizer), self.settings.reply_tokens
        counter = _Counter(ends, tell)
        replies = self._generate(prompts, new_tokens=length, do_sample=False, streamer=counter)
        return [{"p": p, "r": r} for p, r in zip(prompts, replies, strict=True)]

    def _user_turns(self, starts: Sequence[str], *, seed: int, fallback: str) -> list[str]:
        settings, encode = self.settings, self._tokenizer.encode
        prompts = [encode(self._before + start, add_special_tokens=False) for start in starts]
        device = self._model.device
        # `generate` draws from torch's global state, so that state is borrowed and given back
        with torch.random.fork_rng(devices=[device] if is_gpu(device) else []):
            torch.manual_seed(seed)
            ends = self._generate(
                prompts,
                new_tokens=settings.user_tokens,
                do_sample=True,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=0,
                min_new_tokens=2,
            )
        decode = self._tokenizer.decode
        texts = [
            start + decode(end, skip_special_tokens=True)
            for start, end in zip(starts, ends, strict=True)
        ]
        # the model may sample nothing but blanks; a row is due all the same
        return [text.strip() or fallback for text in texts]

    def _prompt(self, turn: str) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": turn}], add_generation_prompt=True, tokenize=False
        )
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    @torch.no_grad()
    def _generate(
        self, prompts: Sequence[list[int]], *, new_tokens: int, **sampling: Any
    ) -> list[list[int]]:
        """Continue each prompt; the end token is kept, what follows it is cut."""
        ends = end_ids(self._model, self._tokenizer)
        width = max(map(len, prompts))
        tokens = torch.full((len(prompts), width), ends[0], dtype=torch.int64)
        mask = torch.zeros_like(tokens)
        for index, prompt in enumerate(prompts):  # padded on the left: all replies start together
            tokens[index, width - len(prompt) :] = torch.tensor(prompt)
            mask[index, width - len(prompt) :] = 1
        device = self._model.device
        produced: Tensor = self._model.generate(
            input_ids=tokens.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=new_tokens,
            eos_token_id=list(ends),
            pad_token_id=ends[0],
            **sampling,
        )
        return [_up_to_end(row, ends) for row in produced[:, width:].tolist()]


class _Counter(BaseStreamer):
    """Tells how much of a batch is there, token after token."""

    def __init__(self, ends: Sequence[int], tell: Tell) -> None:
        self._ends, self._tell = ends, tell
        self._tokens, self._ended = 0, set[int]()

    def put(self, value: Tensor) -> None:
        """The prompts [B, T], then the next token of each row [B], also after a row's end."""
        if value.ndim > 1:
            return
        for row, token in enumerate(value.tolist()):
            self._tokens += row not in self._ended
            if token in self._ends:
                self._ended.add(row)
        self._tell(self._tokens, len(self._ended))

    def end(self) -> None:
        """Nothing is left to tell."""


def _up_to_end(tokens: list[int], ends: Sequence[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in ends:
            return tokens[: index + 1]
    return tokens


def _template_before_user(tokenizer: Any) -> str:
    """The chat template's text up to where the user speaks."""
    if not getattr(tokenizer, "chat_template", None):
        raise BadInput(
            "model for selfgen",
            expected="a tokenizer with a chat template",
            got="none",
            next_step="choose an instruction-tuned model",
        )
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": _MARK}], add_generation_prompt=True, tokenize=False
    )
    return str(text).split(_MARK)[0]


def check_options(
    *, tokens: int, out: Path, seed: int = 0, settings: SelfgenSettings | None = None
) -> None:
    """What can be refused without a model. Raises BadInput by name."""
    settings = settings or SelfgenSettings()
    checks = (
        ("tokens", tokens, "at least 1", tokens >= 1),
        ("seed", seed, "a whole number of 64 bits", -(2**63) <= seed < 2**63),
        ("batch_rows", settings.batch_rows, "at least 1", settings.batch_rows >= 1),
        ("bare_share", settings.bare_share, "0 to 1", 0 <= settings.bare_share <= 1),
        ("user_tokens", settings.user_tokens, "at least 2", settings.user_tokens >= 2),
        ("reply_tokens", settings.reply_tokens, "at least 1", settings.reply_tokens >= 1),
        ("temperature", settings.temperature, "above 0", settings.temperature > 0),
        ("top_p", settings.top_p, "above 0, at most 1", 0 < settings.top_p <= 1),
        ("out", str(out), "a name that ends in .jsonl", out.suffix == ".jsonl"),
        ("out", str(out), "a file, not a folder", not out.is_dir()),
        ("out", str(out), "a place that may be written to", may_be_made(out)),
    )
    for name, value, expected, holds in checks:
        require(holds, name, expected, value)
