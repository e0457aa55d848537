"""Which blocks of keys a mask leaves of a row, which of them are full, and what a mask is asked."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.blockwise import MASKS, B, S, T, blocks_of, mask_of
from tfattn import attend, masks
from tfattn.core.masks import hooks
from tfattn.core.paths.blockwise import block_scores
from tfattn.core.paths.blockwise.tiling import Tiling
from tfattn.core.paths.blockwise.visible_keys import VisibleKeys

pytestmark = pytest.mark.tensorflow

RELATIVE = {
    "causal": masks.causal(),
    "window": masks.window(5),
    "one window": masks.window(1),
    "causal & window": masks.causal() & masks.window(7),
    "~causal": ~masks.causal(),
    "~window | causal": ~masks.window(3) | masks.causal(),
}


def tiled(queries, keys, mask, block, batch=1):
    query, key = tf.zeros((batch, 2, queries, 3)), tf.zeros((batch, 2, keys, 3))
    score = block_scores.Product(True)
    return Tiling.of(query, key, score, mask, block, heads_independent=True)


def whole_of(mask, tiling):
    """The whole square as `(B or 1, H or 1, T, S)`."""
    seen = np.asarray(mask.dense(tiling.queries, tiling.keys))
    seen = seen if seen.ndim == 4 else seen.reshape((-1, 1, *seen.shape[-2:]))
    return np.broadcast_to(seen, (*seen.shape[:2], tiling.queries, tiling.keys))


def check(mask, tiling):
    """No block outside of the range has a visible pair, no full block a hidden or a padded one.

    Returns how many blocks are skipped, full and partial.
    """
    whole, counts = whole_of(mask, tiling), np.zeros(3, int)
    for m in range(tiling.steps // tiling.head_steps):
        rows = slice(m * tiling.chunk, (m + 1) * tiling.chunk) if len(whole) > 1 else slice(None)
        for i in range(tiling.query_blocks):
            visible = VisibleKeys.of(mask, tiling, m * tiling.head_steps, i)
            left = [int(visible.at(n)) for n in range(int(visible.first), int(visible.end))]
            for j in range(tiling.key_blocks):
                queries = slice(i * tiling.rows, (i + 1) * tiling.rows)
                here = whole[rows, :, queries, j * tiling.columns : (j + 1) * tiling.columns]
                if j not in left:
                    assert not here.any()
                    counts[0] += 1
                elif visible.is_full(j):
                    assert here.all() and here.shape[-1] == tiling.columns
                    counts[1] += 1
                else:
                    counts[2] += 1
    return counts


@given(
    name=st.sampled_from([*RELATIVE]),
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
)
@settings(max_examples=100, deadline=None)
def test_what_is_skipped_is_hidden_and_what_is_full_is_visible_wherever_the_diagonal_passes(
    name, queries, keys, rows, columns
):
    check(RELATIVE[name], tiled(queries, keys, RELATIVE[name], (rows, columns)))


@pytest.mark.parametrize("name", [name for name in MASKS if name != "none"])
@pytest.mark.parametrize("block", [(4, 6), (5, 3), (13, 17)])
def test_what_any_mask_skips_is_hidden_and_what_it_calls_full_is_visible(name, block):
    mask = mask_of(name, 3)
    check(mask, tiled(T, S, mask, block, batch=B))


@pytest.mark.parametrize(
    "name, counts",
    [
        ("causal", (28, 28, 8)),
        ("~causal", (28, 28, 8)),
        ("window", (42, 0, 22)),
        ("causal & window", (49, 0, 15)),
    ],
)
def test_all_that_can_be_skipped_or_full_is(name, counts):
    mask = RELATIVE[name]
    assert tuple(check(mask, tiled(64, 64, mask, (8, 8)))) == counts


def test_of_a_plan_the_blocks_that_it_names_are_left_those_between_them_not():
    plan = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]], bool)
    mask = masks.blocks(plan, 16)
    assert tuple(check(mask, tiled(64, 64, mask, (8, 8)))) == (64 - 28, 24, 4)
    visible = VisibleKeys.of(mask, tiled(64, 64, mask, (8, 8)), 0, 1)
    left = [int(visible.at(n)) for n in range(int(visible.first), int(visible.end))]
    assert left == [0, 1, 6, 7]
    causal = mask & masks.causal()
    assert check(causal, tiled(64, 64, causal, (8, 8)))[0] == 64 - (3 + 2 * 2 + 7 + 8)
    # a plan joined with a rule that has bounds alone
    either = mask | masks.window(1)
    assert check(either, tiled(64, 64, either, (8, 8)))[0] == 64 - (28 + 4)


def test_a_window_and_a_prefix_have_a_hole_that_a_plan_tells():
    rule = masks.causal() & (masks.window(8) | masks.prefix(8))
    planned = rule & masks.blocks(masks.plan(rule, 64, 64, 8), 8)
    assert check(rule, tiled(64, 64, rule, (8, 8)))[0] == 28
    assert check(planned, tiled(64, 64, planned, (8, 8)))[0] == 64 - (1 + 2 + 6 * 3)


def test_documents_that_are_packed_in_order_skip_each_other():
    mask = masks.segments(np.repeat(np.arange(4), 16)[None])
    assert tuple(check(mask, tiled(64, 64, mask, (8, 8)))) == (64 - 16, 16, 0)


def test_without_a_mask_the_last_block_alone_may_be_partial():
    visible = VisibleKeys.of(None, tiled(8, 20, None, (8, 8)), 0, 0)
    assert (visible.first, visible.end) == (0, 3)
    assert [visible.is_full(j) for j in range(3)] == [True, True, False]
    whole = VisibleKeys.of(None, tiled(8, 24, None, (8, 8)), 0, 0)
    assert whole.is_full(tf.constant(1)) is True  # known of all blocks before the loop runs


def test_what_the_run_tells_is_told_by_tensors():
    mask = masks.padding(tf.constant([11, 20]))
    visible = VisibleKeys.of(mask, tiled(8, 32, mask, (8, 8), batch=2), 0, 0)
    assert int(visible.first) == 0 and int(visible.end) == 2
    assert [bool(visible.is_full(j)) for j in range(2)] == [True, False]


def test_the_masks_that_ask_for_nothing_but_distance():
    for name in MASKS:
        mask = mask_of(name, 1)
        if mask is not None:
            wanted = ("causal", "window", "causal & window", "~window", "~causal")
            wanted += ("strided", "dilated window")
            assert hooks.is_relative(mask) == (name in wanted)
    assert not hooks.is_relative(masks.prefix(3) | masks.causal())


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(
    "kind, arguments, partial",
    [(masks.causal, (), 8), (masks.window, (25,), 10), (masks.window, (8,), 1)],
    # the third is local attention, which asks once for all of it
    ids=["causal", "wide window", "window"],
)
def test_a_mask_is_asked_of_partial_blocks_alone(kind, arguments, partial, heads):
    asked = []

    class Counted(kind):
        is_relative, key_bounds, full_bounds = True, kind.key_bounds, kind.full_bounds
        max_keys = kind.max_keys

        def on(self, grid):
            asked.append((grid.query_start, grid.key_start))
            return super().on(grid)

    x = tf.random.stateless_normal((1, heads, 64, 4), (1, 2))
    mask = Counted(*arguments)
    with blocks_of((8, 8)):
        here = attend(x, x, x, mask=mask, path="streamed")
    steps = heads if partial > 1 else 1
    assert len(asked) == 1 + partial * steps  # and once, whether it fits the square
    there = attend(x, x, x, mask=masks.explicit(mask.dense(64, 64)), path="dense")
    np.testing.assert_allclose(here, there, 1e-5, 1e-5)


@pytest.mark.parametrize(
    "name", ["segments in order", "chunk ends", "blocks", "blocks by head", "by head"]
)
def test_no_more_than_a_block_is_asked_of_a_mask_at_once(name):
    inner, asked = mask_of(name, 3), []

    class Noted(masks.Mask):
        def on(self, grid):
            asked.append((grid.queries, grid.keys))
            return inner.on(grid)

    heads = len(inner.dense(T, S).shape) == 4
    shapes = [(B, 4 if heads else 1, length, 3) for length in (T, S)]
    x, y = (tf.random.stateless_normal(shape, (1, 2)) for shape in shapes)
    with blocks_of((4, 6)):
        attend(query=x, value=y, mask=Noted(), path="streamed")
    assert {*asked} == {(1, 1), (4, 6)}  # one pair, whether it fits, and blocks


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

    assert hooks.is_relative(masks.causal()) and hooks.is_relative(Local(2))
    assert not hooks.is_relative(Even() | masks.window(2))
    grid = masks.Grid(20, 20, 3, 0, 4, 20)
    assert hooks.full_bounds(Local(5), grid) == hooks.full_bounds(masks.window(5), grid)
    x = tf.random.stateless_normal((1, 2, 20, 4), (1, 2))
    for mask in (Even(), AllLater(), Local(5), Sparse(6)):
        with blocks_of((3, 3)):
            here = attend(x, x, x, mask=mask, path="streamed")
        seen = masks.explicit(mask.dense(20, 20))
        np.testing.assert_allclose(here, attend(x, x, x, mask=seen, path="dense"), 1e-5, 1e-5)
