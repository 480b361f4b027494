"""A draft: a tree and the distributions that its tokens were really drawn from.

Owns: the pairing of nodes with q. Does not know: models, the target, acceptance.
Invariants: there is one entry of q per node, None for the root; each other entry sums to 1 over
the target's vocabulary and gives its node's token some mass, or is None for a token that was
proposed deterministically and is judged as one-hot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from labkit.errors import BadInput
from labkit.tree import DraftTree

_ROUNDING = 1e-4  # of a sum of float32 probabilities over a large vocabulary


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter hands to `verify`.

    Args:
        tree: the proposal; node 0 is the pending token.
        q: per node, [V] over the target's vocabulary: the distribution its token was drawn from,
            after temperature and filters and given its earlier siblings (drawn without
            replacement: earlier siblings removed, renormalised). None: deterministic.
        forwards: model forwards the drafter spent; forward_seconds: the time inside them.
        logits: per node, [V]: the drafter's own logits at its parent, for pictures and
            confidence only (empty when the drafter has none).
        confidence: per node the cumulative probability that the drafter gives it, 1 for the root
            (empty when the drafter does not say).
        stopped: why the draft is smaller than it could be: "", "confidence" or "cost".
        considered: every candidate of a tree that was pruned, for pictures.
    """

    tree: DraftTree
    q: tuple[Tensor | None, ...]
    forwards: int = 0
    forward_seconds: float = 0.0
    logits: Sequence[Tensor | None] = ()
    confidence: tuple[float, ...] = ()
    stopped: str = ""
    considered: "Considered | None" = None

    def __post_init__(self) -> None:
        if len(self.q) != len(self.tree):
            raise BadInput(
                "draft",
                expected=f"one q for each of {len(self.tree)} nodes (None for the root)",
                got=f"{len(self.q)}",
                next_step="give every node its q, or None for a deterministic token",
            )

    @classmethod
    def deterministic(cls, tree: DraftTree, *, forwards: int = 0) -> "Draft":
        """A draft without chance: every token is judged as one-hot."""
        return cls(tree, (None,) * len(tree), forwards)

    @property
    def is_deterministic(self) -> bool:
        return all(q is None for q in self.q)

    def totals(self, *, vocab_size: int, device: torch.device | None = None) -> Tensor:
        """[n] float64 on ``device`` (the CPU), without waiting for it: the sum of each q, or its
        lowest number where that is negative; 1 for nodes without a q. See `check_total`.

        Raises:
            BadInput: a q of another shape, naming its node.
        """
        total = torch.ones(len(self.tree), dtype=torch.float64, device=device)
        for node, q in enumerate(self.q):
            if q is None:
                continue
            if q.shape != (vocab_size,):
                raise _bad_q(node, f"shape ({vocab_size},)", f"shape {tuple(q.shape)}")
            lowest = q.min().double()
            total[node] = torch.where(lowest < 0, lowest, q.sum(dtype=torch.float64))
        return total

    def check(self, *, vocab_size: int) -> None:
        """Assert the invariants of q (reads from the device; for tests and lessons).

        Raises:
            BadInput: naming the node whose q is not what its token was drawn from.
        """
        totals = self.totals(vocab_size=vocab_size).tolist()
        for node, (token, q) in enumerate(zip(self.tree.tokens, self.q, strict=True)):
            check_total(node, totals[node])
            if q is not None:
                check_mass(node, float(q[token]))


def check_total(node: int, total: float) -> None:
    """Refuse a q that is no distribution; ``total`` as of `Draft.totals`."""
    if not abs(total - 1) <= _ROUNDING:  # NaN is refused too
        got = f"one of {total:.3g}" if total < 0 else f"a total of {total:.6g}"
        raise _bad_q(node, "probabilities of 0 or more with a total of 1", got)


def check_mass(node: int, mass: float) -> None:
    """Refuse a q that gives the token that was drawn from it no ``mass``."""
    if not mass > 0:
        raise _bad_q(node, "some mass on the token that was drawn from it", repr(mass))


def _bad_q(node: int, expected: str, got: str) -> BadInput:
    return BadInput(
        f"q of node {node}",
        expected=expected,
        got=got,
        next_step="return the distribution that the token was really drawn from",
    )


def spread(q: Tensor, ids: Tensor, *, vocab_size: int) -> Tensor:
    """A distribution over a reduced vocabulary, spread over the full one.

    Args:
        q: [..., D]; ids: [D], the target id of each draft id.

    Returns:
        [..., vocab_size], zero outside ``ids``.
    """
    full = torch.zeros(*q.shape[:-1], vocab_size, dtype=q.dtype, device=q.device)
    return full.index_copy_(-1, ids, q)


@dataclass(frozen=True, slots=True)
class Considered:
    """Every candidate of a draft, kept or pruned; candidate 0 is the root.

    tokens, parents, confidence: per candidate, as in `DraftTree` and `Draft`; kept: the numbers
    of those that became the draft's nodes, ascending.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    confidence: tuple[float, ...]
    kept: tuple[int, ...]


class LazyRows(Sequence[Tensor | None]):
    """Rows that are spread to full width when somebody looks: most rounds, nobody does.

    Args:
        rows: per node a row as the drafter computed it, or None.
        spread: row -> [V].
    """

    def __init__(self, rows: Sequence[Tensor | None], spread: Callable[[Tensor], Tensor]) -> None:
        self._rows = tuple(rows)
        self._spread = spread

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Tensor | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor | None]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor | None] | None:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = self._rows[index]
        return None if row is None else self._spread(row)
