"""A draft: a tree and the distributions that its tokens were really drawn from.

Owns: the pairing of nodes with q. Does not know: models, the target, acceptance.
Invariants: there is one entry of q per node, None for the root; each other entry sums to 1 over
the target's vocabulary and gives its node's token some mass, or is None for a token that was
proposed deterministically and is judged as one-hot.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.errors import BadInput
from labkit.tree import DraftTree


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
    """

    tree: DraftTree
    q: tuple[Tensor | None, ...]
    forwards: int = 0
    forward_seconds: float = 0.0
    logits: tuple[Tensor | None, ...] = ()

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

    def check(self, *, vocab_size: int) -> None:
        """Assert the invariants of q (reads from the device; for tests and lessons).

        Raises:
            BadInput: naming the node whose q is not what its token was drawn from.
        """
        for node, (token, q) in enumerate(zip(self.tree.tokens, self.q, strict=True)):
            if q is None:
                continue
            good = q.shape == (vocab_size,) and abs(float(q.sum()) - 1) < 1e-4 and q[token] > 0
            if not good:
                raise BadInput(
                    f"q of node {node}",
                    expected=f"shape ({vocab_size},), sum 1, some mass on token {token}",
                    got=f"shape {tuple(q.shape)}, sum {float(q.sum()):.6f}",
                    next_step="return the distribution the token was really drawn from",
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
