"""Which blocks a mask leaves open, which it cuts through, and what is asked once for a whole
diagonal of them.
"""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streaming import MASKS
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.paths.blockwise import attend as streamed
from tfattn.core.paths.blockwise import block_scores
from tfattn.core.paths.blockwise.blocks import Square
from tfattn.core.paths.blockwise.reach import Diagonals, Reach

BY_DISTANCE = {
    "causal": masks.causal(),
    "window": masks.window(5),
    "one window": masks.window(1),
    "causal & window": masks.causal() & masks.window(7),
    "~causal": ~masks.causal(),
    "~window | causal": ~masks.window(3) | masks.causal(),
}


def cut(queries, keys, mask, block):
    query, key = tf.zeros((1, 2, queries, 3)), tf.zeros((1, 2, keys, 3))
    return Square.cut(query, key, block_scores.Dot(True), mask, block, apart=True)


def block_of(mask, grid):
    return np.broadcast_to(np.asarray(mask.on(grid)), (grid.queries, grid.keys))


@given(
    name=st.sampled_from([*BY_DISTANCE]),
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
)
@settings(max_examples=150, deadline=None)
def test_a_block_of_a_diagonal_is_that_of_the_mask_wherever_the_diagonal_passes(
    name, queries, keys, rows, columns
):
    mask = BY_DISTANCE[name]
    square = cut(queries, keys, mask, (rows, columns))
    diagonals = Diagonals.of(mask, square)
    for i in range(square.query_blocks):
        reach = Reach.of(mask, square, 0, i)
        cut_through = set(reach.cut_through(square))
        for j in range(square.key_blocks):
            grid = square.grid(0, i, j)
            here = block_of(mask, grid)[: queries - i * square.rows, : keys - j * square.columns]
            if not reach.first <= j < reach.end:
                assert not here.any()
                continue
            assert (j in cut_through) == (not reach.is_open(square, j))
            if j not in cut_through:
                assert here.all() and here.shape[1] == square.columns
            elif diagonals is not None:
                np.testing.assert_array_equal(np.asarray(diagonals.on(grid)), block_of(mask, grid))


def test_masks_that_ask_for_more_than_distance_have_no_diagonals():
    rng = np.random.default_rng(1)
    square = cut(13, 17, None, (4, 4))
    for name, mask in MASKS.items():
        mask = mask(rng)
        assert (Diagonals.of(mask, square) is None) == (
            name not in ("causal", "window", "causal & window", "~window", "~causal")
        )
    assert Diagonals.of(masks.prefix(3) | masks.causal(), square) is None
    unknown = square._replace(keys=tf.constant(17))
    assert Diagonals.of(masks.causal(), unknown) is None
    assert Diagonals.of(~masks.window(2), cut(64, 64, None, (1, 5))) is None  # too many to hold


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(
    "kind, arguments, diagonals",
    [(masks.causal, (), 1), (masks.window, (25,), 2), (masks.window, (8,), 3)],
    # the third is a band, which asks for the open diagonal too
    ids=["causal", "wide window", "window"],
)
def test_a_mask_is_asked_once_for_each_diagonal(kind, arguments, diagonals, heads):
    asked = []

    class Counted(kind):
        is_relative, key_bounds, full_bounds = True, kind.key_bounds, kind.full_bounds

        def on(self, grid):
            asked.append((grid.query_start, grid.key_start))
            return super().on(grid)

    x = tf.random.stateless_normal((1, heads, 64, 4), (1, 2))
    score, mask = score_functions.scaled_dot_product, Counted(*arguments)
    here = streamed.attend(x, x, x, score, mask=mask, block=(8, 8))
    assert len(asked) == 1 + diagonals  # and whether it fits the square
    there = streamed.attend(x, x, x, score, mask=masks.explicit(mask.dense(64, 64)))
    np.testing.assert_allclose(here, there, 1e-5, 1e-5)


def test_a_rule_on_top_of_another_inherits_nothing_that_was_said_of_that():
    class Even(masks.causal):
        def on(self, grid):
            return super().on(grid) & (grid.key_positions() % 2 == 0)

    class Later:
        def on(self, grid):
            return grid.key_positions() >= grid.query_positions()

    class AllLater(Later, masks.causal):
        """A rule from beside the masks."""

    class Local(masks.window):
        """A window by another name."""

    class Sparse(masks.window):
        def on(self, grid):
            return super().on(grid) & (grid.key_positions() % 3 == 0)

        def key_bounds(self, grid):
            return masks.window.key_bounds(self, grid)

    assert (
        masks.causal.is_relative
        and Local(2).is_relative
        and not (Even() | masks.window(2)).is_relative
    )
    assert Local.full_bounds is masks.window.full_bounds
    x = tf.random.stateless_normal((1, 2, 20, 4), (1, 2))
    for mask in (Even(), AllLater(), Local(5), Sparse(6)):
        here = streamed.attend(x, x, x, score_functions.scaled_dot_product, mask=mask, block=(3, 3))
        seen = masks.explicit(mask.dense(20, 20))
        np.testing.assert_allclose(here, attend(x, x, x, mask=seen, path="dense"), 1e-5, 1e-5)
