"""Where the logits at the nodes of a draft come from.

Owns: the levels of a draft, what a source of logits is, and the one of heads that guess every depth
at once; that of heads that read their own guesses is `labkit.drafters.pairs.Guesses`.
Does not know: which nodes grow, or are kept.
Invariants: nothing is read from the device.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


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
