"""Blocks of several heads and rows side by side, in squares of several blocks: the cut that they have by themselves."""

import numpy as np
import pytest
import tensorflow as tf

from tests.streaming import assert_close
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core import streamed
from tfattn.core.streamed import block_scores
from tfattn.core.streamed.blocks import Square

B, D, V = 4, 4, 3
LENGTHS = [4, 0, 500, 131]
MASKS = {
    "causal": lambda draw, queries, keys: masks.causal(),
    "window": lambda draw, queries, keys: masks.window(200),
    "padding": lambda draw, queries, keys: masks.padding(LENGTHS),
    "prefix | causal": lambda draw, queries, keys: masks.prefix(np.array(LENGTHS)) | masks.causal(),
    "explicit by row": lambda draw, queries, keys: masks.explicit(draw.random((B, queries, keys)) < 0.5),
}
# (heads, key heads, queries, keys) to (rows of the batch, heads, queries and keys) of a block.
CUTS = {
    (2, 2, 520, 520): (1, 2, 260, 260),
    (2, 2, 521, 517): (1, 2, 261, 259),  # padded in both directions
    (4, 2, 301, 517): (1, 4, 151, 259),
    (1, 1, 521, 517): (2, 1, 261, 259),
}


def operands(shape, seed=0):
    draw = np.random.default_rng(seed).normal
    heads, groups, queries, keys = shape
    shapes = (B, heads, queries, D), (B, groups, keys, D), (B, groups, keys, V), (B, heads, queries, V)
    *arrays, upstream = (tf.constant(draw(size=x), tf.float32) for x in shapes)
    return arrays, upstream


def both_ways(path, arrays, upstream, mask, **options):
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        query, key, value = arrays
        output = attend(query, value, key, mask=mask, path=path, **options)
    return [output, *tape.gradient(output, arrays, upstream)]


@pytest.mark.parametrize("shape", CUTS, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_blocks_side_by_side_equal_the_dense_path(name, shape):
    arrays, upstream = operands(shape)
    mask = MASKS[name](np.random.default_rng(1), *shape[2:])
    square = Square.cut(*arrays[:2], block_scores.Dot(True), mask, apart=True)
    assert (square.chunk, square.heads, square.rows, square.columns) == CUTS[shape]
    assert square.query_blocks > 1 and square.key_blocks > 1 and square.steps > 1
    dense, here = (both_ways(path, arrays, upstream, mask) for path in ("dense", "streamed"))
    assert_close(here, dense)
    assert np.abs(dense[0]).max() > 0.1


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_blocks_side_by_side_equal_the_dense_path_where_the_run_tells_the_sizes(jit):
    shape = (2, 2, 521, 517)
    arrays, upstream = operands(shape)
    lengths = tf.constant(LENGTHS)

    @tf.function(
        input_signature=[tf.TensorSpec((None, *shape[:1], None, x.shape[-1])) for x in (*arrays, upstream)],
        jit_compile=jit,
    )
    def here(*tensors):
        return both_ways("streamed", [*tensors[:-1]], tensors[-1], masks.padding(lengths) & masks.causal())

    assert_close(here(*arrays, upstream), both_ways("dense", arrays, upstream, masks.padding(LENGTHS) & masks.causal()))


def test_what_a_mask_hides_stays_there_side_by_side():
    shape = (2, 2, 521, 517)
    (query, key, value), upstream = operands(shape)
    mask = masks.padding(LENGTHS) & masks.causal()
    hidden = np.arange(517)[None] >= np.array(LENGTHS)[:, None]  # (B, S)
    broken = [tf.where(hidden[:, None, :, None], np.nan, x) for x in (key, value)]
    clean = both_ways("streamed", [query, key, value], upstream, mask)
    found = both_ways("streamed", [query, *broken], upstream, mask)
    assert_close(found, clean, 1e-5)
    assert not np.any(found[0][1]) and not np.any(found[1][1])  # the row without keys


@pytest.mark.parametrize(
    "score", [score_functions.scaled_dot_product, score_functions.additive], ids=lambda s: s.__name__
)
def test_dropout_side_by_side_is_the_same_on_both_ways(score):
    """Of a pooling that is linear in the values, the gradient by them times the values is the output's sum again."""
    shape = (2, 2, 521, 517)
    (query, key, value), upstream = operands(shape)
    parameters = [tf.ones((D, 1))] if score is score_functions.additive else []
    with tf.GradientTape() as tape:
        tape.watch(value)
        output = streamed.attend(query, value, key, score, parameters, masks.causal(), dropout=0.4, seed=3)
    gradient = tape.gradient(output, value, upstream)
    plain = attend(query, value, key, score, parameters, masks.causal(), path="dense")
    assert np.abs(output - plain).max() > 0.1  # something was dropped
    np.testing.assert_allclose(tf.reduce_sum(gradient * value), tf.reduce_sum(output * upstream), rtol=1e-3)
