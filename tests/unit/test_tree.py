"""The tree's derived views against their definitions, on random trees and on one drawn by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import BadInput
from labkit.tree import DraftTree


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    size = draw(st.integers(1, 12))
    parents = [-1, *(draw(st.integers(0, i - 1)) for i in range(1, size))]
    tokens = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    return DraftTree(tuple(tokens), tuple(parents))


#       0
#      / \
#     1   2
#    / \   \
#   3   4   5
DRAWN = DraftTree((7, 1, 2, 3, 4, 5), (-1, 0, 0, 1, 1, 2))


def test_drawn_tree() -> None:
    mask = ["".join("01"[seen] for seen in row) for row in DRAWN.mask]
    assert mask == ["100000", "110000", "101000", "110100", "110010", "101001"]
    assert DRAWN.positions(10) == (10, 11, 11, 12, 12, 12)
    assert DRAWN.children == ((1, 2), (3, 4), (5,), (), (), ())
    assert DRAWN.leaves == (3, 4, 5)
    assert DRAWN.path(4) == (0, 1, 4)
    assert DRAWN.up_to_depth(1) == DraftTree((7, 1, 2), (-1, 0, 0))
    assert not DRAWN.is_chain
    assert DraftTree.chain((7, 8, 9)).is_chain


def follows_ancestry(mask: tuple[tuple[bool, ...], ...], tree: DraftTree) -> bool:
    """Reflexive, transitive, and row sums are depths plus one: the ancestors and nothing else."""
    nodes = range(len(tree))
    reflexive = all(mask[i][i] for i in nodes)
    transitive = all(
        mask[i][k] for i in nodes for j in nodes for k in nodes if mask[i][j] and mask[j][k]
    )
    parents = all(mask[i][tree.parents[i]] for i in nodes if i)
    return (
        reflexive
        and transitive
        and parents
        and all(sum(mask[i]) - 1 == tree.depths[i] for i in nodes)
    )


@settings(deadline=None)
@given(trees())
def test_mask_is_ancestry(tree: DraftTree) -> None:
    assert follows_ancestry(tree.mask, tree)


def test_mask_check_can_fail() -> None:
    """Branches that see each other, as a plain lower triangle lets them."""
    triangle = tuple(tuple(j <= i for j in range(len(DRAWN))) for i in range(len(DRAWN)))
    assert not follows_ancestry(triangle, DRAWN)


@settings(deadline=None)
@given(trees())
def test_paths_rebuild_parents(tree: DraftTree) -> None:
    paths = [tree.path(i) for i in range(len(tree))]
    assert tree.parents == tuple(p[-2] if len(p) > 1 else -1 for p in paths)
    assert tree.depths == tuple(len(p) - 1 for p in paths)
    assert tree.leaves == tuple(i for i in range(len(tree)) if not any(i in p[:-1] for p in paths))


@settings(deadline=None)
@given(trees(), st.integers(0, 5))
def test_up_to_depth_keeps_the_upper_paths(tree: DraftTree, depth: int) -> None:
    def texts(tree: DraftTree) -> list[list[int]]:
        return [[tree.tokens[i] for i in tree.path(node)] for node in range(len(tree))]

    assert texts(tree.up_to_depth(depth)) == [t for t in texts(tree) if len(t) <= depth + 1]


@pytest.mark.parametrize(
    ("tokens", "parents", "named"),
    [
        ((), (), "at least one"),
        ((1, 2), (-1,), "2 tokens and 1 parents"),
        ((1,), (0,), "parents[0]"),
        ((1, 2, 3), (-1, 0, 2), "parents[2]"),
        ((1, 2, 3), (-1, -1, 0), "parents[1]"),
        ((1, -2), (-1, 0), "tokens[1]"),
        ((1, True), (-1, 0), "tokens: expected whole numbers, got True (bool) as entry 1"),
        ((1, 2), (-1, None), "parents: expected whole numbers, got None"),
        (("a",), (-1,), "tokens"),
        (None, (-1,), "tokens"),
    ],
)
def test_malformed_trees_are_refused_by_index(
    tokens: tuple[int, ...], parents: tuple[int, ...], named: str
) -> None:
    with pytest.raises(BadInput) as caught:
        DraftTree(tokens, parents)
    assert named in str(caught.value)


@pytest.mark.parametrize("spelled", [list, np.array, torch.tensor], ids=lambda f: f.__name__)
def test_numbers_of_any_library_become_plain_ints(spelled: Any) -> None:
    tree = DraftTree(spelled([7, 8, 9]), spelled([-1, 0, 0]))
    assert tree == DraftTree((7, 8, 9), (-1, 0, 0))
    assert {type(i) for i in (*tree.tokens, *tree.parents)} == {int}
    assert DraftTree.chain(spelled([7, 8])).tokens == (7, 8)
