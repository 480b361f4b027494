"""How one draft grows from what a head says at its nodes.

Owns: the levels of a draft, and which candidates are kept.
Does not know: where logits come from, the target, commits, the accept rule.
Invariants: the draft is read from the device once, when it is complete.

A chain is the static tree ((0,), (0, 0), (0, 0, 0), ...). A static and a dynamic tree differ in
two places: which candidates grow on, and which are kept in the end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit.draft import Considered, Draft, LazyRows
from labkit.drafters.feeding import Level, Source
from labkit.drafters.shapes import Chain, DynamicTree, Shape, StaticTree
from labkit.sampling import Rng, Warp
from labkit.tree import DraftTree


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Children of one level, k * w of them, siblings side by side: [k * w] each.

    rows: [k, D], the head's raw logits at the k parents. qs: what each was drawn from.
    possible: False where the parent's distribution had no token left, and below such a token.
    """

    tokens: Tensor
    scores: Tensor
    parents: Tensor
    possible: Tensor
    rows: Tensor
    qs: list[Tensor | None]


@dataclass(kw_only=True)
class Growing:
    """One draft under way.

    Attributes:
        tokens: the committed text. depth: most levels. drawn: draw tokens, or take the likeliest.
    """

    source: Source
    tokens: tuple[int, ...]
    rng: Rng
    depth: int
    warp: Warp
    confidence: float
    drawn: bool
    stopped: str = field(default="", init=False)
    _levels: list[_Candidates] = field(default_factory=list, init=False)

    def grow(self, shape: Shape) -> Draft:
        """The draft of this shape."""
        if isinstance(shape, Chain):
            shape = StaticTree(tuple((0,) * n for n in range(1, self.depth + 1)))
        if isinstance(shape, DynamicTree):
            self.drawn = False  # to keep or drop a drawn token by its probability bends the law
        level, count = self._root(), 1
        for depth in range(1, self.depth + 1):
            widths = _widths(shape, depth)
            if not widths:
                break
            raw, logits = self._logits(level)
            if self._unsure(level, logits):
                self.stopped = "confidence"
                break
            found = self._children(level, raw, logits, widths)
            self._levels.append(found)
            level = self._next(level, found, _growing_on(shape, depth, found), count)
            count += len(found.tokens)
        return self._finished(shape)

    def _root(self) -> Level:
        device = self.source.vocab_ids.device
        zero = torch.zeros(1, dtype=torch.long, device=device)
        return Level(zero, zero.double(), zero.new_zeros(1, 0), zero)

    def _logits(self, level: Level) -> tuple[Tensor, Tensor]:
        """The head's own, [k, D], and over the target's ids after the processors, [k, V]."""
        raw = self.source.logits(level)
        return raw, self.warp.processed(self._spread(raw), self._prefixes(level.paths))

    def _unsure(self, level: Level, logits: Tensor) -> bool:
        """Is even the likeliest next path too unlikely? Asked before anything of this level is
        drawn: a choice that looked at the draw would change the law."""
        if not self.confidence:
            return False
        best = level.scores + torch.log_softmax(logits, -1).amax(-1)
        return float(best.max()) < math.log(self.confidence)

    def _children(
        self, level: Level, raw: Tensor, logits: Tensor, widths: Sequence[int]
    ) -> _Candidates:
        """``widths``: children of each node of the level; one number stands for all."""
        certain = torch.log_softmax(logits, -1).double()
        width = max(widths)
        if self.drawn:
            tokens, possible, qs = self._draw(self.warp.law(logits), widths, width)
        else:
            tokens = logits.topk(min(width, logits.shape[-1]), -1).indices
            possible, qs = torch.ones_like(tokens, dtype=torch.bool), [None] * tokens.numel()
        gains = certain.gather(1, tokens).nan_to_num(-torch.inf, neginf=-torch.inf)
        scores = level.scores[:, None] + gains
        # below a token that was ruled out nothing is possible, however likely after it
        possible = possible & (scores > -torch.inf)
        parents = level.numbers[:, None].expand_as(tokens)
        return _Candidates(
            tokens.flatten(), scores.flatten(), parents.flatten(), possible.flatten(), raw, qs
        )

    def _draw(
        self, law: Tensor, widths: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """Siblings without replacement: each from what its earlier siblings left, renormalised."""
        tokens = torch.zeros(len(law), width, dtype=torch.long, device=law.device)
        possible = torch.zeros_like(tokens, dtype=torch.bool)
        qs: list[Tensor | None] = [None] * tokens.numel()
        for row, q in enumerate(law):
            for i in range(widths[row] if len(widths) > 1 else width):
                left = q.sum()
                possible[row, i] = left > 0  # NaN: processors ruled out every word of the head
                q = torch.where(left > 0, q / left, torch.full_like(q, 1 / len(q)))
                tokens[row, i] = self.rng.pick(q)
                qs[row * width + i] = q
                q = q.index_fill(0, tokens[row, i], 0)
        return tokens, possible, qs

    def _next(self, level: Level, found: _Candidates, chosen: Tensor, count: int) -> Level:
        """The candidates at places ``chosen`` [k'] as a level of their own."""
        above = chosen // (len(found.tokens) // len(level.numbers))  # rows of their parents
        paths = torch.cat((level.paths[above], found.tokens[chosen, None]), 1)
        return Level(chosen + count, found.scores[chosen], paths, above)

    def _finished(self, shape: StaticTree | DynamicTree) -> Draft:
        root = self.tokens[-1]
        if not self._levels:
            return Draft(
                DraftTree.chain([root]),
                (None,),
                self.source.forwards,
                self.source.inside,
                stopped=self.stopped,
            )
        columns = [torch.stack((c.tokens, c.scores, c.parents, c.possible)) for c in self._levels]
        tokens, scores, parents, possible = torch.cat(columns, 1).tolist()  # the one read
        scores, tokens = [0.0, *scores], [root, *map(int, tokens)]
        parents, usable = [-1, *map(int, parents)], {i for i, p in enumerate(possible, 1) if p}
        kept = self._kept(shape, scores, parents, usable)
        place = {-1: -1} | {number: node for node, number in enumerate(kept)}
        tree = DraftTree(tuple(tokens[i] for i in kept), tuple(place[parents[i]] for i in kept))
        rows, qs = self._told()
        sure = tuple(math.exp(s) for s in scores)
        considered = Considered(tuple(tokens), tuple(parents), sure, tuple(kept))
        return Draft(
            tree,
            tuple(qs[i] for i in kept),
            self.source.forwards,
            self.source.inside,
            LazyRows([rows[i] for i in kept], self._spread),
            tuple(sure[i] for i in kept),
            self.stopped,
            considered if isinstance(shape, DynamicTree) else None,
        )

    def _kept(
        self,
        shape: StaticTree | DynamicTree,
        scores: Sequence[float],
        parents: Sequence[int],
        usable: set[int],
    ) -> list[int]:
        """Candidate numbers that stay, ascending, the root first."""
        if isinstance(shape, DynamicTree):
            # a child is no likelier than its parent, and stands after it when they are equal
            ranked = sorted(usable, key=lambda i: (-scores[i], i))
            size = shape.size([math.exp(scores[i]) for i in ranked], forwards=self.source.forwards)
            if shape.costs is not None and size < min(shape.nodes, len(ranked)):
                self.stopped = self.stopped or "cost"
            return [0, *sorted(ranked[:size])]
        kept = [0]
        for i in _of_template(shape, [len(c.tokens) for c in self._levels]):
            if i in usable and parents[i] in kept:
                kept.append(i)
        return kept

    def _told(self) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Per candidate: the raw logits it came from, and its q."""
        rows: list[Tensor | None] = [None]
        qs: list[Tensor | None] = [None]
        for found in self._levels:
            width = len(found.tokens) // len(found.rows)
            rows.extend(row for row in found.rows for _ in range(width))
            qs.extend(found.qs)
        return rows, qs

    def _spread(self, raw: Tensor) -> Tensor:
        """[..., D] over the draft's ids -> [..., V] over the target's; -inf without a word."""
        if raw.shape[-1] == self.source.vocab_size:
            return raw
        full = raw.new_full((*raw.shape[:-1], self.source.vocab_size), -torch.inf)
        return full.index_copy_(-1, self.source.vocab_ids, raw)

    def _prefixes(self, paths: Tensor) -> list[Tensor] | None:
        """The text up to each node; None when no processor asks for it."""
        if not self.warp.needs_prefix:
            return None
        text = torch.tensor(self.tokens, device=paths.device)
        return [torch.cat((text, path)) for path in paths]


def _widths(shape: StaticTree | DynamicTree, depth: int) -> tuple[int, ...]:
    """Children of each node of the level above ``depth`` that grows on; () when none does."""
    if isinstance(shape, DynamicTree):
        return (shape.top_k,)
    above = _growers(shape, depth - 1)
    return tuple(sum(p[:-1] == path for p in shape.choices) for path in above)


def _growers(shape: StaticTree, depth: int) -> list[tuple[int, ...]]:
    """Paths of the static tree's nodes at ``depth`` that have children."""
    nodes: Sequence[tuple[int, ...]] = shape.choices if depth else ((),)
    return [
        path
        for path in nodes
        if len(path) == depth and any(child[:-1] == path for child in shape.choices)
    ]


def _growing_on(shape: StaticTree | DynamicTree, depth: int, found: _Candidates) -> Tensor:
    """[k] places among the candidates at ``depth`` that become the next level."""
    if isinstance(shape, DynamicTree):
        return found.scores.topk(min(shape.top_k, len(found.scores))).indices.sort().values
    above = _growers(shape, depth - 1)
    width = len(found.tokens) // len(above)
    places = [above.index(path[:-1]) * width + path[-1] for path in _growers(shape, depth)]
    return torch.tensor(places, dtype=torch.long, device=found.tokens.device)


def _of_template(shape: StaticTree, counts: Sequence[int]) -> list[int]:
    """Candidate numbers of a static tree's nodes, as far as levels were grown."""
    numbers, start = [], 1
    for depth, count in enumerate(counts, start=1):
        above = _growers(shape, depth - 1)
        width = count // len(above)
        numbers += [
            start + above.index(path[:-1]) * width + path[-1]
            for path in shape.choices
            if len(path) == depth
        ]
        start += count
    return sorted(numbers)
