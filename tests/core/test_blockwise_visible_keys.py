"""The visible and the full blocks of keys in a row, and the evaluations of a mask."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.blockwise import MASKS, B, S, T, blocks_of, mask_of
from tfattn import attend, masks
from tfattn.core.engine.tensorflow import block_scores
from tfattn.core.engine.tensorflow.tiling import Tiling, VisibleKeys

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
    """The whole mask as `(B or 1, H or 1, T, S)`."""
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


@pytest.mark.slow
@given(
    name=st.sampled_from([*RELATIVE]),
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
)
@settings(max_examples=40, deadline=None)
def test_visible_keys_of_drawn_sizes_skip_only_hidden_blocks(name, queries, keys, rows, columns):
    check(RELATIVE[name], tiled(queries, keys, RELATIVE[name], (rows, columns)))


@pytest.mark.parametrize("name", [name for name in MASKS if name != "none"])
def test_visible_keys_of_any_mask_skip_only_hidden_blocks(name):
    mask = mask_of(name, 3)
    check(mask, tiled(T, S, mask, (4, 6), batch=B))


@pytest.mark.slow
def test_visible_keys_of_run_time_sizes_equal_static_ones():
    names = [name for name in MASKS if name != "none"]
    arrays = {
        name: [tf.constant(x) for x in MASKS[name].arrays(np.random.default_rng(3))]
        for name in names
    }

    def told(query, key, arrays):
        for name in names:
            mask, score = MASKS[name].rule(*arrays[name]), block_scores.Product(True)
            tiling = Tiling.of(query, key, score, mask, (4, 6), heads_independent=True)
            m, i, j = tiling.head_steps, 2, 1
            visible = VisibleKeys.of(mask, tiling, m, i)
            ends = visible.first, visible.end, visible.full_low, visible.full_high
            yield name, [*ends, visible.is_full(j), mask.on(tiling.grid(m, i, j))]

    query, key = tf.zeros((B, 4, T, 3)), tf.zeros((B, 2, S, 3))
    unknown = tf.function(
        lambda *x: [found for _, found in told(*x)],
        input_signature=[
            tf.TensorSpec((None, 4, None, 3)),
            tf.TensorSpec((None, 2, None, 3)),
            tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), arrays),
        ],
    )
    known = told(query, key, arrays)
    for here, (name, there) in zip(unknown(query, key, arrays), known, strict=True):
        for this, that in zip(here, there, strict=True):
            np.testing.assert_array_equal(this, that, err_msg=name)


def test_visible_keys_skip_all_that_can_be_skipped():
    for mask, counts in (
        (masks.causal(), (28, 28, 8)),
        (masks.window(5), (42, 0, 22)),
        # documents that are packed in order skip each other
        (masks.segments(np.repeat(np.arange(4), 16)[None]), (64 - 16, 16, 0)),
    ):
        assert tuple(check(mask, tiled(64, 64, mask, (8, 8)))) == counts


def test_visible_keys_of_joined_masks_have_holes():
    rule = masks.causal() & (masks.window(8) | masks.prefix(8))
    assert check(rule, tiled(64, 64, rule, (8, 8)))[0] == 64 - (1 + 2 + 6 * 3)
    visible = VisibleKeys.of(rule, tiled(64, 64, rule, (8, 8)), 0, 6)
    assert [int(visible.at(n)) for n in range(int(visible.end))] == [0, 5, 6]


def test_visible_keys_without_mask_are_partial_in_last_block_alone():
    visible = VisibleKeys.of(None, tiled(8, 20, None, (8, 8)), 0, 0)
    assert (visible.first, visible.end) == (0, 3)
    assert [visible.is_full(j) for j in range(3)] == [True, True, False]
    whole = VisibleKeys.of(None, tiled(8, 24, None, (8, 8)), 0, 0)
    assert whole.is_full(tf.constant(1)) is True  # known of all blocks before the loop runs


def test_visible_keys_of_run_time_padding_are_tensors():
    mask = masks.padding(tf.constant([11, 20]))
    visible = VisibleKeys.of(mask, tiled(8, 32, mask, (8, 8), batch=2), 0, 0)
    assert int(visible.first) == 0 and int(visible.end) == 2
    assert [bool(visible.is_full(j)) for j in range(2)] == [True, False]


def test_relative_masks_are_those_by_distance_alone():
    for name in MASKS:
        mask = mask_of(name, 1)
        if mask is not None:
            wanted = ("causal", "window", "causal & window", "~window", "~causal")
            assert mask.is_relative == (name in wanted)
    assert not (masks.prefix(3) | masks.causal()).is_relative


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, arguments, partial",
    [(masks.causal, (), 8), (masks.window, (25,), 10), (masks.window, (8,), 1)],
    # the third is local attention, which asks once for all of it
    ids=["causal", "wide window", "window"],
)
def test_mask_is_evaluated_for_partial_blocks_alone(kind, arguments, partial):
    heads, asked = 3, []

    class Counted(kind):
        is_relative, bounds = True, kind.bounds

        def on(self, grid):
            asked.append((grid.query_start, grid.key_start))
            return super().on(grid)

    x = tf.random.stateless_normal((1, heads, 64, 4), (1, 2))
    mask = Counted(*arguments)
    with blocks_of((8, 8)):
        here = attend(x, x, key=x, mask=mask, path="streamed")
    steps = heads if partial > 1 else 1
    # and twice before: which keys any query sees, and whether the mask fits the matrix
    assert len(asked) == 2 + partial * steps
    there = attend(x, x, key=x, mask=masks.explicit(mask.dense(64, 64)), path="dense")
    np.testing.assert_allclose(here, there, 1e-5, 1e-5)


@pytest.mark.slow
def test_mask_is_evaluated_for_no_more_than_a_block_in_the_loops():
    inner, asked = mask_of("explicit by head", 3), []

    class Noted(masks.Mask):
        def on(self, grid):
            asked.append((grid.queries, grid.keys))
            return inner.on(grid)

    x, y = (tf.random.stateless_normal((B, 4, length, 3), (1, 2)) for length in (T, S))
    with blocks_of((4, 6)):
        attend(query=x, value=y, mask=Noted(), path="streamed")
    # All pairs for the keys that are hidden from all, one for its lengths, and blocks.
    assert {*asked} == {(T, S), (1, 1), (4, 6)}
