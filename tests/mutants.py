"""The accept rule written again, slowly, and broken ways of writing it.

`RIGHT` is the rule by the book; every entry of `MUTANTS` changes one line of it. The law test must
pass the first and fail all others, or it shows nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.draft import Draft
from labkit.sampling import Rng
from labkit.verify import Verdict


def one_hot(token: int, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_fill_(0, torch.tensor([token]), 1.0)


def q_as_drawn(draft: Draft, node: int, p: Tensor) -> Tensor:
    q = draft.q[node]
    return one_hot(draft.tree.tokens[node], p) if q is None else q


def q_of_first_sibling(draft: Draft, node: int, p: Tensor) -> Tensor:
    first = draft.tree.children[draft.tree.parents[node]][0]
    return q_as_drawn(draft, node if draft.q[node] is None else first, p)


def q_by_softmax(draft: Draft, node: int, p: Tensor) -> Tensor:
    logits = draft.logits[node] if draft.logits else None
    return q_as_drawn(draft, node, p) if logits is None else torch.softmax(logits, -1)


def by_the_book(p_x: float, q_x: float) -> float:
    return min(1.0, p_x / q_x)


def positive_part(p: Tensor, q: Tensor) -> Tensor:
    rest = (p - q).clamp(min=0)
    return rest / rest.sum() if rest.sum() > 0 else p


@dataclass(frozen=True)
class Rules:
    """chance: accept probability from p and q; left: what a rejection leaves of p; q: what a node
    is judged by; between: is p reduced already between siblings; row: whose p follows a node."""

    chance: Callable[[float, float], float] = by_the_book
    left: Callable[[Tensor, Tensor], Tensor] = positive_part
    q: Callable[[Draft, int, Tensor], Tensor] = q_as_drawn
    between: bool = True
    row: Callable[[int], int] = lambda node: node
    last: Callable[[Tensor, Rng], int] = lambda p, rng: int(rng.pick(p))

    def __call__(self, draft: Draft, p: Tensor, rng: Rng) -> list[int]:
        """Tokens that the round commits."""
        node, out = 0, []
        while True:
            rest = tried_by = p[self.row(node)]
            for child in draft.tree.children[node]:
                token, q = draft.tree.tokens[child], self.q(draft, child, rest)
                if rng.flip(self.chance(float(tried_by[token]), float(q[token]))).accepted:
                    out.append(token)
                    node = child
                    break
                rest = self.left(rest, q)
                tried_by = rest if self.between else tried_by
            else:
                return [*out, self.last(rest, rng)]


def argmax(p: Tensor, _rng: Rng) -> int:
    return int(p.argmax())


RIGHT = Rules()
MUTANTS = {
    "p and q swapped": replace(RIGHT, chance=lambda p, q: min(1.0, q / p) if p else 1.0),
    "residual replaced by p": replace(RIGHT, left=lambda p, q: p),
    "always accept": replace(RIGHT, chance=lambda p, q: 1.0),
    "second sibling keeps the stale q": replace(RIGHT, q=q_of_first_sibling),
    "argmax draft judged by its softmax": replace(RIGHT, q=q_by_softmax),
    "greedy beside the rule": replace(RIGHT, q=q_by_softmax, last=argmax),
    "siblings do not reduce p": replace(RIGHT, between=False),
    "bonus from the root's row": replace(RIGHT, row=lambda node: 0),
}


def in_the_engine(name: str) -> Callable[[Draft, Tensor, Rng], Verdict]:
    """A mutant in the place of `labkit.verify.verify`, for drafts that are chains."""

    def verify(draft: Draft, p: Tensor, rng: Rng) -> Verdict:
        tokens = MUTANTS[name](draft, p, rng)
        return Verdict(tuple(range(len(tokens))), tokens[-1], (), p[len(tokens) - 1])

    return verify
