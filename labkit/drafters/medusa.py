"""Parallel heads that draft: Medusa's, and Meta's with a shared trunk.

Owns: the state that the heads guess from, and Meta's cache. Does not know: the target, the accept
rule, how a draft grows.
Invariants: one forward of the heads per round, whatever the draft's shape; a depth's distribution
is the same at all of its nodes, because no head reads a token; what a cache holds is committed.

    committed    x0  x1  x2  x3       states of the target   f0  f1  f2     pending: x3
    heads        read f2 and guess    x4 by head 0, x5 by head 1, x6 by head 2

A tree takes the likeliest tokens of each head and combines them: with one law per depth, every
node at depth d has the same candidate children, and a path is as likely as the product of its
tokens' probabilities. Keeping the likeliest paths of the Cartesian product, as Medusa does, is the
dynamic tree of `growing` on such laws; its hand-made sparse trees are static ones.

Medusa's own acceptance test ("typical acceptance") takes any token that the target finds likely
enough. That is another law than the target's: it is lossy, and not offered here. Drafts are judged
by `labkit.verify.verify`, as every drafter's.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.drafters.base import Commit
from labkit.drafters.feeding import Foretold, Source
from labkit.drafters.on_head import HeadDrafter
from labkit.heads.medusa import MedusaHeads


def medusa_drafter(
    head: MedusaHeads,
    *,
    name: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **settings: Any,
) -> HeadDrafter:
    """Drafts with one set of parallel heads, at most as deep as there are heads.

    Args:
        head: in evaluation mode, on the target's device.
        name: what traces call it; None: the kind of the heads.
        clock: seconds; on a device that works asynchronously, one that waits for it.
        settings: as of `HeadDrafter`.
    """
    return HeadDrafter(LastState(head, clock=clock), name=name or head.config.kind, **settings)


class LastState:
    """The state after the committed text, which all heads guess from, and Meta's cache.

    Attributes:
        needs: the name of that state. deepest: how many heads there are.
    """

    def __init__(self, head: MedusaHeads, *, clock: Callable[[], float]) -> None:
        self.head, self._clock = head, clock
        self.needs: tuple[str, ...] = head.config.needs
        self.deepest: int = head.config.heads
        self.reset()

    @property
    def length(self) -> int:
        """States that the heads have read so far and remember."""
        return self._read

    def reset(self) -> None:
        """A new sequence begins."""
        self._kv = self.head.cache()
        self._first = True  # the prompt's last token is pending: one state fewer than tokens
        self._waiting: list[Tensor] = []  # [m, H] each
        self._read = 0
        self._made: Tensor | None = None  # [heads, H], after the last committed state

    def observe(self, commit: Commit) -> None:
        """The text grew."""
        self.forget()
        if len(commit.tokens) > self._first:
            self._waiting.append(commit.hidden[self.needs[0]])
        self._first = False

    def forget(self) -> None:
        """Drop what a forward left that an interrupt cut off; guesses never enter the cache."""
        for kv in self._kv:
            kv.truncate(min(self._read, kv.length))

    def source(self, depth: int) -> Source | None:
        """What a draft of ``depth`` grows from; None before there is a state."""
        if not (self._waiting or self._made is not None):
            return None
        before = self._clock()
        forwards = self._catch_up()
        assert self._made is not None
        return Foretold(
            rows=self.head.logits(self._made[:depth]),
            vocab_ids=self.head.vocab_ids,
            vocab_size=self.head.config.vocab_size,
            forwards=forwards,
            inside=self._clock() - before,
        )

    def _catch_up(self) -> int:
        """Read the states that wait; forwards spent."""
        if not self._waiting:
            return 0
        states = torch.cat(self._waiting).to(self.head.dtype)
        if not self._kv:  # heads without a memory need the last one only
            states = states[-1:]
        start, n, device = self._read if self._kv else 0, len(states), states.device
        mask = torch.ones(n, start + n, dtype=torch.bool, device=device).tril_(start)
        made = self.head(
            states[None],
            positions=torch.arange(start, start + n, device=device)[None],
            kv=self._kv,
            mask=mask if n > 1 else None,
        )
        self._made = made[0, -1]
        # until this line an interrupt leaves the states waiting, and the rows to be truncated
        self._read, self._waiting = self._read + sum(map(len, self._waiting)), []
        return 1
