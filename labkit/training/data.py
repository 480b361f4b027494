"""Training text: rows of token ids that the target wrote itself.

Owns: reading and checking JSON lines, the held-out split, the order and the shape of batches.
Does not know: models, losses, where the rows came from.
Invariants: replies to one prompt are on the same side of the split; a row is on the same side in
every run, whatever the other rows are, except where a side would be empty; the batches of an epoch
follow from rows, seed and epoch number alone, so training can stop at any batch and go on.
"""

import gzip
import hashlib
import json
import os
import random
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from labkit.errors import BadInput

IGNORED = -100  # the target value that a cross-entropy skips
_WINDOW = 64


@dataclass(frozen=True)
class Row:
    """One conversation in token ids: what the target was given, and what it answered."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.reply)


@dataclass(frozen=True)
class Split:
    """Rows to train on and rows to measure on."""

    train: tuple[Row, ...]
    held_out: tuple[Row, ...]


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right.

    Attributes:
        tokens: int64 [B, T].
        targets: int64 [B, T]; ``targets[b, i]`` is the token after ``tokens[b, i]`` where that
            is a reply token, elsewhere ``IGNORED``.
    """

    tokens: Tensor
    targets: Tensor


def read_rows(path: Path | str, *, vocab_size: int, context: int | None = None) -> tuple[Row, ...]:
    """Read ``.jsonl`` or ``.jsonl.gz`` with token id lists ``p`` (prompt) and ``r`` (reply).

    Other fields are ignored. ``context`` is the longest row that the model can read.

    Raises:
        BadInput: no such file, no rows, or the first bad row by its line number.
    """
    path = Path(path)
    rows = tuple(
        _parse(line, where=f"{path}, line {number}", vocab_size=vocab_size, context=context)
        for number, line in _lines(path)
    )
    if not rows:
        raise BadInput(
            f"training data {path}",
            expected="at least one row",
            got="an empty file",
            next_step="write some with `labkit selfgen`",
        )
    return rows


def check_prompts(path: Path | str) -> None:
    """Refuse, before a model is there, text of which no prompt could be put aside.

    Raises:
        BadInput: fewer than two different prompts, or a bad row among the first.
    """
    path, prompts, count = Path(path), set(), 0
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        prompts.add(_parse(line, where=where, vocab_size=sys.maxsize, context=None).prompt)
        count += 1
        if len(prompts) > 1:
            return
    raise too_few(f"training data {path}", rows=count, prompts=len(prompts))


def too_few(what: str, *, rows: int, prompts: int, tokens: int = 2) -> BadInput:
    """What is said of text that cannot be split; ``tokens``: of the shortest row of use."""
    return BadInput(
        what,
        expected=f"at least 2 different prompts, one to measure on and another to train on with a "
        f"row of {tokens} or more tokens",
        got=f"rows: {rows}, different prompts: {prompts}",
        next_step="write more rows with `labkit selfgen`",
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise BadInput(
            f"training data {path}",
            expected="a .jsonl or .jsonl.gz file",
            got="a folder" if path.is_dir() else "no such file",
            next_step="check the path, or write one with `labkit selfgen`",
        )
    number = 0
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadInput(
            f"training data {path}, after line {number}",
            expected="UTF-8 text, compressed only if the name ends in .gz",
            got=str(error),
            next_step="copy the file again from where it came",
        ) from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _parse(line: str, *, where: str, vocab_size: int, context: int | None) -> Row:
    def bad(expected: str, got: str) -> BadInput:
        return BadInput(where, expected=expected, got=got, next_step="correct or delete that line")

    try:
        fields = json.loads(line)
    except ValueError as error:
        raise bad('a JSON object with "p" and "r"', f"{line[:40]!r} ({error})") from None
    if not isinstance(fields, dict):
        raise bad('a JSON object with "p" and "r"', f"{line[:40]!r}")
    for key in ("p", "r"):
        ids = fields.get(key)
        if not isinstance(ids, list) or not ids:
            raise bad(f'"{key}": a list of at least one token id', repr(ids)[:40])
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise bad(f'"{key}": token ids from 0 to {vocab_size - 1}', repr(token)[:40])
    row = Row(tuple(fields["p"]), tuple(fields["r"]))
    if context is not None and len(row) > context:
        raise bad(f"at most {context} tokens, the target's context", f"{len(row)} tokens")
    return row


def split(rows: Sequence[Row], *, held_out: float) -> Split:
    """Put about the share ``held_out`` of the rows aside, decided by each prompt's own hash.

    Of two or more prompts at least one is put aside, and at least one is not: in a small file the
    hash alone may choose none, or all.
    """
    shares = {row.prompt: _share(row.prompt) for row in rows}
    chosen = {prompt for prompt, share in shares.items() if share < held_out}
    if held_out > 0 and len(shares) > 1:
        chosen |= {min(shares, key=shares.__getitem__)}
        chosen -= {max(shares, key=shares.__getitem__)}
    aside = [row.prompt in chosen for row in rows]
    return Split(
        train=tuple(row for row, out in zip(rows, aside, strict=True) if not out),
        held_out=tuple(row for row, out in zip(rows, aside, strict=True) if out),
    )


def _share(prompt: Sequence[int]) -> float:
    # the prompt alone decides, so that two replies to one prompt never part
    digest = hashlib.sha256(" ".join(map(str, prompt)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def frequent_ids(rows: Sequence[Row], *, size: int) -> Tensor:
    """The ``size`` commonest reply tokens, ascending: int64 [size].

    When fewer tokens occur, the lowest other ids fill up: byte-level vocabularies are numbered
    from the most frequent on.
    """
    counts = Counter(token for row in rows for token in row.reply)
    commonest = sorted(counts, key=lambda token: (-counts[token], token))
    chosen = set(commonest[:size])
    filler = 0
    while len(chosen) < size:
        chosen.add(filler)
        filler += 1
    return torch.tensor(sorted(chosen), dtype=torch.int64)


def epoch_batches(
    rows: Sequence[Row], *, batch_tokens: int, seed: int, epoch: int
) -> list[list[Row]]:
    """Every row once, in batches of at most ``batch_tokens`` padded tokens (or one longer row).

    Rows are sorted by length inside windows of 64 shuffled rows only: enough to save most of the
    padding, not enough to make neighbouring batches alike.
    """
    rng = random.Random(f"{seed}/{epoch}")
    order = list(range(len(rows)))
    rng.shuffle(order)
    batches: list[list[Row]] = []
    for start in range(0, len(order), _WINDOW):
        batch: list[Row] = []
        for index in sorted(order[start : start + _WINDOW], key=lambda i: (len(rows[i]), i)):
            row = rows[index]
            if batch and len(row) * (len(batch) + 1) > batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(row)
        batches.append(batch)
    rng.shuffle(batches)
    return batches


def collate(rows: Sequence[Row], *, device: torch.device | str) -> Batch:
    """Pad rows to one width. Under a causal mask, padding on the right is never read.

    tokens     p0  p1  p2  r0  r1  r2
    targets     -   -  r0  r1  r2   -
    """
    width = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
    targets = torch.full((len(rows), width), IGNORED, dtype=torch.int64)
    for index, row in enumerate(rows):
        text = torch.tensor(row.prompt + row.reply, dtype=torch.int64)
        tokens[index, : len(row)] = text
        targets[index, len(row.prompt) - 1 : len(row) - 1] = text[len(row.prompt) :]
    return Batch(tokens.to(device), targets.to(device))


def may_be_made(path: Path) -> bool:
    """Could ``path`` be written, or made with the folders above it?"""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    return os.access(there, os.W_OK) and (there == path.absolute() or there.is_dir())
