"""Blocks of several heads and rows side by side, in squares of several blocks: tiled as they
are by themselves.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.blockwise import assert_close
from tfattn import attend, masks
from tfattn.core.paths.blockwise import block_scores
from tfattn.core.paths.blockwise.tiling import Tiling

pytestmark = pytest.mark.tensorflow

B, D, V = 4, 4, 3
LENGTHS = [4, 0, 500, 131]
MASKS = {
    "causal": lambda draw, queries, keys: masks.causal(),
    "window": lambda draw, queries, keys: masks.window(200),
    "padding": lambda draw, queries, keys: masks.padding(LENGTHS),
    "prefix | causal": lambda draw, queries, keys: masks.prefix(np.array(LENGTHS)) | masks.causal(),
    "explicit by row": lambda draw, queries, keys: masks.explicit(
        draw.random((B, queries, keys)) < 0.5
    ),
}
# (heads, key heads, queries, keys) to (rows of the batch, heads, queries and keys) of a block.
TILINGS = {
    (2, 2, 520, 520): (1, 2, 260, 260),
    (2, 2, 256, 256): (2, 2, 256, 256),  # one block
    (2, 2, 521, 517): (1, 2, 261, 259),  # padded in both directions
    (4, 2, 301, 517): (1, 4, 151, 259),
    (4, 4, 521, 517): (1, 2, 261, 259),  # two steps for each row of the batch
    (1, 1, 521, 517): (2, 1, 261, 259),
}


def operands(shape, seed=0):
    draw = np.random.default_rng(seed).normal
    heads, groups, queries, keys = shape
    shapes = (
        (B, heads, queries, D),
        (B, groups, keys, D),
        (B, groups, keys, V),
        (B, heads, queries, V),
    )
    *arrays, upstream = (tf.constant(draw(size=x), tf.float32) for x in shapes)
    return arrays, upstream


def both_ways(path, arrays, upstream, mask):
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        query, key, value = arrays
        output = attend(query, value, key, mask=mask, path=path)
    return [output, *tape.gradient(output, arrays, upstream)]


# Each shape and each mask once, quickly.
QUICK = [*zip(TILINGS, [*MASKS, "causal"], strict=True)]


@pytest.mark.parametrize(
    "shape, name",
    [
        pytest.param(*row, id=str(row), marks=[pytest.mark.slow] * (row not in QUICK))
        for row in itertools.product(TILINGS, MASKS)
    ],
)
def test_blocks_side_by_side_equal_the_dense_path(name, shape):
    arrays, upstream = operands(shape)
    mask = MASKS[name](np.random.default_rng(1), *shape[2:])
    tiling = Tiling.of(*arrays[:2], block_scores.Product(True), mask, heads_independent=True)
    assert (tiling.chunk, tiling.heads, tiling.rows, tiling.columns) == TILINGS[shape]
    assert (tiling.query_blocks > 1 and tiling.key_blocks > 1) == (shape[2] > 256)
    assert tiling.steps > 1
    dense, here = (both_ways(path, arrays, upstream, mask) for path in ("dense", "streamed"))
    assert_close(here, dense)
    assert np.abs(dense[0]).max() > 0.1


@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["graph", "XLA"]
)
def test_blocks_side_by_side_equal_the_dense_path_where_the_run_tells_the_batch(jit):
    shape = (2, 2, 521, 517)
    arrays, upstream = operands(shape)
    rule, tilings = masks.padding(LENGTHS) & masks.causal(), []

    @tf.function(
        input_signature=[tf.TensorSpec((None, *x.shape[1:])) for x in (*arrays, upstream)],
        jit_compile=jit,
    )
    def here(*tensors):
        tilings.append(
            Tiling.of(*tensors[:2], block_scores.Product(True), rule, heads_independent=True)
        )
        return both_ways("streamed", [*tensors[:-1]], tensors[-1], rule)

    assert_close(here(*arrays, upstream), both_ways("dense", arrays, upstream, rule))
    assert all(
        (tiling.chunk, tiling.heads, tiling.rows, tiling.columns) == TILINGS[shape]
        for tiling in tilings
    )


@pytest.mark.parametrize("shape", [(2, 2, 521, 517), (1, 1, 521, 517)], ids=str)
def test_what_is_broken_reaches_those_who_see_it_side_by_side(shape):
    (query, key, value), upstream = operands(shape)
    mask = masks.padding(LENGTHS) & masks.causal()
    broken = np.arange(517)[None] >= np.array(LENGTHS)[:, None]  # (B, S), hidden from all
    broken[2, 300] = True  # and one that some see
    broken = broken[:, None, :, None]
    arrays = [query, tf.where(broken, np.nan, key), tf.where(broken, np.nan, value)]
    dense, here = (both_ways(path, arrays, upstream, mask) for path in ("dense", "streamed"))
    assert_close(here, dense)
    seen = np.isnan(here[0]).any((1, 3))
    first = 300 + 521 - 517  # the last query stands at the last key
    assert seen[2, first:].all() and seen.sum() == 521 - first
    assert not np.any(here[0][1]) and not np.any(here[1][1])  # the row without keys


def test_dropout_side_by_side_is_the_same_on_both_ways():
    """Of a pooling that is linear in the values, the gradient by them times the values is the
    output's sum again.
    """
    (query, key, value), upstream = operands((2, 2, 521, 517))
    with tf.GradientTape() as tape:
        tape.watch(value)
        output = attend(
            query, value, key, mask=masks.causal(), path="streamed", dropout=0.4, seed=3
        )
    gradient = tape.gradient(output, value, upstream)
    plain = attend(query, value, key, mask=masks.causal(), path="dense")
    assert np.abs(output - plain).max() > 0.1  # something was dropped
    np.testing.assert_allclose(
        tf.reduce_sum(gradient * value), tf.reduce_sum(output * upstream), rtol=1e-3
    )
