"""A draft is a tree, and a tree is two arrays.

Owns: `tokens` and `parents`. Node 0 is the pending token (committed, not yet in the cache).
Does not know: probabilities, slots, models.
Invariants: ``parents[0] == -1`` and ``0 <= parents[i] < i``; everything else is derived.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.errors import BadInput
from labkit.ids import whole_numbers


@dataclass(frozen=True, slots=True)
class DraftTree:
    """n nodes: the pending token and n - 1 drafted ones. A chain is a tree.

        parents (-1, 0, 0, 1, 1, 2)          0
                                            / \\
                                           1   2
                                          / \\   \\
                                         3   4   5

    Raises:
        BadInput: naming the first index that breaks the form.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("tokens", "parents"):
            try:
                object.__setattr__(self, name, whole_numbers(getattr(self, name)))
            except TypeError as error:
                raise BadInput(
                    f"draft tree, {name}",
                    expected="whole numbers",
                    got=str(error),
                    next_step=f"give the {name} as a flat list of ints",
                ) from error
        self._check()

    def _check(self) -> None:
        if len(self.tokens) != len(self.parents) or not self.tokens:
            raise BadInput(
                "draft tree",
                expected="as many parents as tokens, at least one",
                got=f"{len(self.tokens)} tokens and {len(self.parents)} parents",
                next_step="give one parent for each token; the root has parent -1",
            )
        for i, parent in enumerate(self.parents):
            if not (parent == -1 if i == 0 else 0 <= parent < i):
                raise BadInput(
                    f"draft tree, parents[{i}]",
                    expected="-1" if i == 0 else f"a number from 0 to {i - 1}",
                    got=repr(parent),
                    next_step="list nodes so that every parent stands before its children",
                )
        for i, token in enumerate(self.tokens):
            if token < 0:
                raise BadInput(
                    f"draft tree, tokens[{i}]",
                    expected="a token id of 0 or more",
                    got=repr(token),
                    next_step="give ids of the target's vocabulary",
                )

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "DraftTree":
        """The tree in which every node has one child: ``tokens[0]`` is the pending token."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> tuple[int, ...]:
        """Distance of each node from the root."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Distance of the deepest node from the root."""
        return max(self.depths)

    @property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """For each node its children, in the order in which they will be tried."""
        children: list[list[int]] = [[] for _ in self.tokens]
        for i, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(i)
        return tuple(map(tuple, children))

    @property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children."""
        return tuple(i for i, below in enumerate(self.children) if not below)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root down to ``node``, both included."""
        path = [node]
        while path[-1] != 0:
            path.append(self.parents[path[-1]])
        return tuple(reversed(path))

    @property
    def mask(self) -> tuple[tuple[bool, ...], ...]:
        """[n, n]; ``mask[i][j]``: may node i look at node j? Its ancestors and itself, no others.

        For the tree above: 100000, 110000, 101000, 110100, 110010, 101001.
        """
        rows: list[tuple[bool, ...]] = []
        for i, parent in enumerate(self.parents):
            above = rows[parent] if i else (False,) * len(self.tokens)
            rows.append((*above[:i], True, *above[i + 1 :]))
        return tuple(rows)

    def positions(self, start: int) -> tuple[int, ...]:
        """Text position of each node when the root stands at ``start``."""
        return tuple(start + depth for depth in self.depths)

    def up_to_depth(self, depth: int) -> "DraftTree":
        """The tree without the nodes deeper than ``depth``."""
        kept = [i for i, d in enumerate(self.depths) if d <= depth]
        place = {old: new for new, old in enumerate(kept)} | {-1: -1}
        return DraftTree(
            tuple(self.tokens[i] for i in kept), tuple(place[self.parents[i]] for i in kept)
        )
