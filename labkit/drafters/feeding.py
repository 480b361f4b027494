"""Where the logits at the nodes of a draft come from: heads that read their own guesses, and heads
that guess every depth at once.

Owns: what each node of a recursive head may see. Does not know: which nodes grow, or are kept.
Invariants: a node sees the committed pairs, its ancestors and itself; rows of the head's cache
beyond the committed ones are guesses; nothing is read from the device.

    level 1     a  b          from the last committed pair, without a forward of its own
    level 2     aa ab ba      one forward over (state of the last pair, a), (same state, b)
    level 3     ...           one forward over (state after a, aa), ...
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from labkit.heads.eagle import HeadStep
from labkit.heads.layers import KeyValues


@dataclass(frozen=True, slots=True)
class Level:
    """k nodes that grow next.

    numbers: [k] candidate numbers (0: the root). scores: [k] log of the cumulative probability.
    paths: [k, d] drafted tokens down to each node. above: [k] places of their parents among the
    nodes of the level before.
    """

    numbers: Tensor
    scores: Tensor
    paths: Tensor
    above: Tensor

    @property
    def depth(self) -> int:
        """Drafted tokens above its children: 0 for the root."""
        return self.paths.shape[1]


class Source(Protocol):
    """What drafts grow from. Levels come from the root down, each once.

    vocab_ids: [D] target ids of the words it has; vocab_size: width of the target's logits.
    forwards, inside: head forwards spent and seconds in them, those of catching up included.
    """

    @property
    def vocab_ids(self) -> Tensor: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def forwards(self) -> int: ...
    @property
    def inside(self) -> float: ...

    def logits(self, level: Level) -> Tensor:
        """[k, D], raw, of the token after each node of ``level``."""
        ...


class RecursiveHead(Protocol):
    """A head that stands in for the target: it reads a token and a state, gives the next state."""

    vocab_ids: Tensor

    def __call__(
        self, ids: Tensor, state: Tensor, *, positions: Tensor, kv: Sequence[KeyValues],
        mask: Tensor | None,
    ) -> HeadStep: ...  # fmt: skip

    def logits(self, normed: Tensor) -> Tensor: ...


@dataclass(kw_only=True)
class Recursive:
    """One forward of the head per level, over the guesses of the level before.

    Attributes:
        true: committed pairs in ``kv``; last: the head's output for the last of them, [1, H] each.
        clock: seconds.
    """

    head: RecursiveHead
    vocab_size: int
    kv: Sequence[KeyValues]
    true: int
    last: HeadStep
    clock: Callable[[], float]
    forwards: int = 0
    inside: float = 0.0
    _seen: Tensor | None = field(default=None, init=False)  # [k, drafted rows of the cache] bool

    @property
    def vocab_ids(self) -> Tensor:
        return self.head.vocab_ids

    def logits(self, level: Level) -> Tensor:
        if level.depth:
            self._feed(level)
        return self.head.logits(self.last.normed)

    def _feed(self, level: Level) -> None:
        """One forward of the head over the level's nodes."""
        k, device = len(level.above), level.above.device
        itself = torch.eye(k, dtype=torch.bool, device=device)
        seen = itself if self._seen is None else torch.cat((self._seen[level.above], itself), 1)
        everything = seen.new_ones(k, self.true)
        start = self.clock()
        step = self.head(
            level.paths[None, :, -1],
            self.last.recycled[level.above][None],
            positions=torch.full((1, k), self.true + level.depth - 1, device=device),
            kv=self.kv,
            # alone in every level it sees all rows there are
            mask=None if seen.shape[1] == level.depth else torch.cat((everything, seen), 1),
        )
        self.inside += self.clock() - start
        self.forwards += 1
        self.last, self._seen = HeadStep(step.recycled[0], step.normed[0]), seen


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """Heads that guess every depth at once, whatever the guesses above: nothing is left to run.

    rows: [depths, D], raw logits; row d is that of all nodes at depth d.
    """

    rows: Tensor
    vocab_ids: Tensor
    vocab_size: int
    forwards: int = 0
    inside: float = 0.0

    def logits(self, level: Level) -> Tensor:
        return self.rows[level.depth].expand(len(level.above), -1)
