"""Shapes of a draft, and how many nodes are worth their cost."""

import pytest

from labkit.drafters.shapes import SMALL_TREE, Costs, DynamicTree, StaticTree
from labkit.errors import BadInput


def test_static_tree_gives_the_parent_of_each_node() -> None:
    tree = StaticTree(((0,), (1,), (0, 0), (0, 1), (1, 0)))
    assert tree.parents == (-1, 0, 0, 1, 1, 2)
    assert len(SMALL_TREE.parents) == len(SMALL_TREE.choices) + 1


@pytest.mark.parametrize(
    "choices",
    [((0, 0),), ((1,),), ((0,), (0,)), ((0,), (0, 1)), ((),)],
    ids=["orphan", "second without first", "twice", "second child without first", "root"],
)
def test_impossible_static_trees_are_refused_by_index(choices: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(BadInput, match=rf"choices\[{len(choices) - 1}\]"):
        StaticTree(choices)


@pytest.mark.parametrize("name", ["top_k", "nodes"])
def test_a_dynamic_tree_needs_room(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        DynamicTree(**{name: 0})


def test_costs_between_and_beyond_measured_points() -> None:
    costs = Costs(((1, 10.0), (5, 14.0), (9, 22.0)), draft=1.0)
    assert [costs.of(n) for n in (1, 3, 5, 7, 9, 11)] == [10, 12, 14, 18, 22, 26]
    for broken in ((), ((2, 1.0), (1, 1.0)), ((1, 0.0),)):
        with pytest.raises(BadInput, match="verify costs"):
            Costs(broken, draft=1.0)


def brute_force(confidence: list[float], costs: Costs, nodes: int, forwards: int) -> int:
    rates = [
        (1 + sum(confidence[:n])) / (forwards * costs.draft + costs.of(n + 1))
        for n in range(min(nodes, len(confidence)) + 1)
    ]
    return rates.index(max(rates))


def test_size_is_the_best_expected_rate() -> None:
    """By hand: a step costs 10 and each further node 4; with confidence 0.9, 0.3 one node pays
    (1.9 / 14 > 1 / 10), the second does not (2.2 / 18 < 1.9 / 14)."""
    costs = Costs(((1, 10.0), (2, 14.0), (3, 18.0)), draft=0.0)
    assert DynamicTree(nodes=8, costs=costs).size([0.9, 0.3], forwards=1) == 1
    assert DynamicTree(nodes=8, costs=costs).size([0.3, 0.1], forwards=1) == 0
    assert DynamicTree(nodes=8).size([0.3, 0.1], forwards=1) == 2
    flat = Costs(((1, 10.0), (9, 10.5)), draft=1.0)
    for confidence in ([0.9, 0.8, 0.5, 0.1], [0.2, 0.1], [0.5] * 8):
        for given in (costs, flat):
            tree = DynamicTree(nodes=6, costs=given)
            assert tree.size(confidence, forwards=2) == brute_force(confidence, given, 6, 2)
