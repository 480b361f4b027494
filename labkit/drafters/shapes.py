"""Which nodes a draft has: a chain, a fixed tree, or a tree that grows where the head is sure.

Owns: the settings of a shape, and the choice of how many nodes are worth their cost.
Does not know: heads, models, devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cost import along
from labkit.errors import BadInput, require


@dataclass(frozen=True, slots=True)
class Chain:
    """One guess after another."""


@dataclass(frozen=True, slots=True)
class StaticTree:
    """The same tree every round (Medusa, EAGLE-1).

    choices: one path of ranks per node; (0, 2) is the third likeliest token after the likeliest.
    Parents come before their children, earlier siblings before later ones.

        ((0,), (1,), (0, 0), (0, 1), (1, 0))        root
                                                   /    \\
                                                 0        1
                                                / \\       |
                                              00   01     10
    """

    choices: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        seen: set[tuple[int, ...]] = {()}
        for i, path in enumerate(self.choices):
            before = (*path[:-1], path[-1] - 1) if path and path[-1] else path[:-1]
            if not path or path in seen or path[:-1] not in seen or before not in seen:
                raise BadInput(
                    f"choices[{i}] of a static tree",
                    expected="a new path whose parent and next likelier sibling stand before it",
                    got=repr(path),
                    next_step="list paths from the root down, ranks 0, 1, 2, ... at each parent",
                )
            seen.add(path)

    @property
    def width(self) -> int:
        """Most children of one node."""
        return max((path[-1] + 1 for path in self.choices), default=0)

    @property
    def parents(self) -> tuple[int, ...]:
        """Parent of each node, the root included: (-1, 0, 0, ...)."""
        place = {(): 0} | {path: i for i, path in enumerate(self.choices, start=1)}
        return (-1, *(place[path[:-1]] for path in self.choices))


SMALL_TREE = StaticTree(
    ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0))
)
"""Nine nodes that suit a head which is right about half the time."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured seconds of this machine. verify: (nodes, seconds) of one target forward, ascending;
    draft: seconds of one forward of the head."""

    verify: tuple[tuple[int, float], ...]
    draft: float

    def __post_init__(self) -> None:
        counts = [n for n, _ in self.verify]
        if not counts or counts != sorted(set(counts)) or min(s for _, s in self.verify) <= 0:
            raise BadInput(
                "verify costs",
                expected="(nodes, seconds above 0), ascending by nodes",
                got=repr(self.verify),
                next_step="measure them with `labkit.lab.measure`",
            )

    def of(self, nodes: int) -> float:
        """Seconds of one target forward over so many nodes: between two measured points along
        the line that joins them, beyond the last one along the last line."""
        return along(self.verify, nodes)


@dataclass(frozen=True, slots=True)
class DynamicTree:
    """EAGLE-2's tree (Li et al. 2024, arXiv 2406.16858): grow where the head is sure.

    At every depth the ``top_k`` best nodes so far are each given ``top_k`` children; in the end
    the ``nodes`` candidates with the largest cumulative probability are kept. A child is never
    likelier than its parent, so what is kept is a tree.

    Attributes:
        top_k: nodes expanded per depth, and children of each.
        nodes: drafted nodes kept, the root not counted.
        costs: keep fewer when more would not pay: the size with the most expected tokens per
            second, at these measured costs.
    """

    top_k: int = 4
    nodes: int = 15
    costs: Costs | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "nodes"):
            if getattr(self, name) < 1:
                raise BadInput(
                    f"dynamic tree's {name}",
                    expected="1 or more",
                    got=repr(getattr(self, name)),
                    next_step=f"change {name}",
                )

    def size(self, confidence: Sequence[float], *, forwards: int) -> int:
        """How many of the candidates to keep.

        Args:
            confidence: cumulative probability of each candidate, descending.
            forwards: what the head has spent on this draft.
        """
        most = min(self.nodes, len(confidence))
        if self.costs is None:
            return most
        drafting = forwards * self.costs.draft  # spent already, whatever is kept
        best, best_rate, expected = 0, 1 / (drafting + self.costs.of(1)), 1.0
        for count in range(1, most + 1):
            expected += confidence[count - 1]
            rate = expected / (drafting + self.costs.of(count + 1))
            if rate > best_rate:
                best, best_rate = count, rate
        return best


Shape = Chain | StaticTree | DynamicTree


SMALL_DYNAMIC_TREE = DynamicTree(top_k=3, nodes=3)
"""Pays on 2 CPU cores, where 4 tokens cost a target step hardly more than 1, and a fifth makes it
half as dear again."""


def check_shape(shape: object) -> Shape | None:
    """``shape``, if it is one or None.

    Raises:
        BadInput: it is something else.
    """
    wanted = "Chain(), StaticTree(...), DynamicTree(...), or None for the method's own"
    require(shape is None or isinstance(shape, Shape), "shape", wanted, shape)
    return shape  # type: ignore[return-value]
