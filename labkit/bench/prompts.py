"""Prompt files: JSON lines with ``prompt``, or with ``turns`` (MT-bench, Spec-Bench; first turn).

Owns: reading and checking. Does not know: models.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import BadInput

DEFAULT_FILE = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, slots=True)
class Prompt:
    """id, kind ("" when the file gives none) and the text of the first turn."""

    id: str
    kind: str
    text: str


def read_prompts(path: str | Path | None = None, *, limit: int | None = None) -> list[Prompt]:
    """Read a prompt file; None reads the lab's own 48 prompts.

    Args:
        limit: keep this many, one of every kind in turn.

    Raises:
        BadInput: a missing or empty file, or a line that has no prompt, by number.
    """
    if limit is not None and limit < 1:
        raise BadInput(
            "limit", expected="1 or more", got=str(limit), next_step="change limit (--limit)"
        )
    path = Path(path) if path else DEFAULT_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"prompt file {str(path)!r}",
            expected="a readable file of JSON lines",
            got=_words(error),
            next_step="check the path",
        ) from error
    prompts = [_parse(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise BadInput(
            f"prompt file {str(path)!r}",
            expected="at least one prompt",
            got="none",
            next_step='write lines such as {"prompt": "Why is the sky blue?"}',
        )
    if limit is None or limit >= len(prompts):
        return prompts
    return _from_every_kind(prompts, limit)


def _words(error: OSError | UnicodeDecodeError) -> str:
    """What is wrong with a file, without names of Python."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return (error.strerror or "none") if isinstance(error, OSError) else "bytes that are no text"


def _from_every_kind(prompts: list[Prompt], limit: int) -> list[Prompt]:
    """The first prompt of every kind, then the second of every kind, ..., in the file's order."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int]] = []
    for place, prompt in enumerate(prompts):
        turns.append((seen[prompt.kind], place))
        seen[prompt.kind] += 1
    return [prompts[place] for place in sorted(place for _, place in sorted(turns)[:limit])]


def _parse(line: str, number: int, path: Path) -> Prompt:
    try:
        record: Any = json.loads(line)
        text = record["prompt"] if "prompt" in record else record["turns"][0]
        if not isinstance(text, str) or not text.strip():
            raise TypeError("the prompt is not a text")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BadInput(
            f"line {number} of {path.name}",
            expected='a JSON object with "prompt", or with "turns", a list of texts',
            got=repr(line[:60]),
            next_step="mend the line",
        ) from error
    kind = record.get("kind", record.get("category", ""))
    return Prompt(str(record.get("id", record.get("question_id", number))), str(kind), text)
