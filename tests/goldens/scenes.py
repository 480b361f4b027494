"""The runs whose events are kept as golden files: tables as models, and a clock that counts.

Tables have rows of simple numbers in float64, so that no kernel's rounding reaches the files.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch

from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.draft import Draft
from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.ngram import NGram
from labkit.drafters.nothing import Nothing
from labkit.drafters.scripted import Scripted
from labkit.streaming import TextStream
from labkit.target import Target
from labkit.toy import TableModel
from labkit.trace import Trace
from labkit.tree import DraftTree

V = 6
PROMPT = (0, 1, 2, 0, 1)


def table(shift: int, spread: int) -> torch.Tensor:
    """[V, V]: row i gives weights spread, spread - 1, ..., 1 to the tokens from i + shift on."""
    rows = torch.zeros(V, V, dtype=torch.float64)
    for i in range(V):
        for place in range(spread):
            rows[i, (i + shift + place) % V] += spread - place
    return rows / rows.sum(-1, keepdim=True)


Clock = Callable[[], float]


def ticking() -> Clock:
    """Every look at it is 1/1024 s later."""
    ticks = itertools.count()
    return lambda: next(ticks) / 1024


def drawn(clock: Clock) -> DraftModel:
    """Like the target, but for every third token, after which it is mistaken."""
    rows = table(1, 3)
    rows[2::3] = table(2, 3)[2::3]
    return DraftModel(TableModel(rows), vocab_size=V, clock=clock)


def branches(tokens: tuple[int, ...], _rng: Any, depth: int) -> Draft:
    """A wrong child and a right one, below the right one again two."""
    root = tokens[-1]
    wrong, right = (root + 2) % V, (root + 1) % V
    tree = DraftTree(
        (root, wrong, right, (right + 3) % V, (right + 1) % V, wrong), (-1, 0, 0, 2, 2, 1)
    )
    return Draft.deterministic(tree.up_to_depth(depth))


def letters(ids: Any) -> str:
    return "".join("abcdef"[i] for i in ids)


def record(
    drafter: Callable[[Clock], Drafter], *, context: int | None = None, **settings: Any
) -> Trace:
    config = DecodeConfig(**{"max_new_tokens": 9, "draft_length": 3, "detail": "full"} | settings)
    clock = ticking()
    events = speculate(
        Target(TableModel(table(1, 4), context=context), clock=clock),
        drafter(clock),
        PROMPT,
        config=config,
        text=TextStream(letters, stop_strings=config.stop_strings),
        clock=clock,
    )
    return Trace.record(events)


def plain(_: Clock) -> Drafter:
    return Nothing()


def looked_up(_: Clock) -> Drafter:
    return NGram()


def tree(_: Clock) -> Drafter:
    return Scripted(branches)


SCENES: dict[str, Callable[[], Trace]] = {
    "plain": lambda: record(plain, max_new_tokens=3),
    "ngram_greedy": lambda: record(looked_up),
    "draft_model_greedy": lambda: record(drawn),
    "draft_model_sampled": lambda: record(drawn, temperature=1.0, seed=3),
    "tree_sampled": lambda: record(tree, temperature=1.0, seed=5, draft_length=2),
    "tree_summary": lambda: record(tree, detail="summary", draft_length=2),
    "timing": lambda: record(drawn, detail="timing"),
    "end_token": lambda: record(drawn, eos=5),
    "stop_string": lambda: record(drawn, stop_strings=["ef"]),
    "context_limit": lambda: record(drawn, context=len(PROMPT) + 4),
}
