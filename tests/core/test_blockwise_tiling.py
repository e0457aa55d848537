"""The tiling of the matrix, its computed blocks, and the strips of a block."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.blockwise import (
    Case,
    assert_close,
    blocks_of,
    both_ways,
    check,
    operands_of,
)
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.engine import devices, sizes
from tfattn.core.engine.tensorflow import additive, block_scores
from tfattn.core.engine.tensorflow.tiling import Tiling

pytestmark = pytest.mark.tensorflow


def tiled(query, key, mask=None, block=None):
    """The tiling of a dot product whose heads need not be computed together."""
    score = block_scores.Product(True)
    return Tiling.of(query, key, score, mask, block, heads_independent=True)


def test_tiling_of_run_time_lengths_has_few_block_sizes():
    sizes = []

    @tf.function(input_signature=[tf.TensorSpec((2, None, 256))])
    def block(x):
        tiling = Tiling.of(x[:, None], x[:, None], additive.Additive())
        return tiling.rows, tiling.columns

    for length in range(512, 1024, 7):
        sizes.append(tuple(map(int, block(tf.zeros((2, length, 256))))))
    # XLA compiles the kernels of an additive score once per shape.
    assert len(set(sizes)) <= 4
    assert block.experimental_get_tracing_count() == 1


def test_tiling_of_narrow_mask_has_narrow_blocks_with_padding_too():
    def columns(mask):
        return tiled(*[tf.zeros((2, 1, 4096, 8))] * 2, mask).columns

    wide, narrow = columns(masks.causal()), columns(masks.causal() & masks.window(64))
    assert narrow < wide
    row, lengths = (
        masks.explicit(np.ones((2, 1, 4096), bool)),
        masks.padding(tf.constant([4096, 100])),
    )
    for padding in (row, lengths, row & lengths):
        assert columns(padding & masks.causal() & masks.window(64)) == narrow
        assert columns(masks.window(64) & padding) == narrow
        assert columns(padding) == wide


def test_tiling_of_products_is_as_measured():
    """(shape of the queries, key heads, mask) to (rows, columns, chunk, heads, groups)."""
    narrow = masks.causal() & masks.window(300)
    for (shape, groups, mask), tiles in {
        ((1, 8, 4096, 64), 8, None): (512, 512, 1, 1, 1),
        ((1, 8, 2100, 64), 8, None): (420, 420, 1, 1, 1),  # spread evenly
        # heads that share a key head stay together, below each other
        ((1, 8, 4096, 64), 2, None): (128, 512, 1, 4, 1),
        ((16, 1, 4096, 64), 1, None): (512, 512, 1, 1, 1),  # one head
        ((1, 8, 4096, 64), 8, masks.causal()): (512, 512, 1, 1, 1),
        ((1, 8, 4096, 64), 8, masks.padding([4000])): (512, 512, 1, 1, 1),
        ((1, 8, 4096, 64), 8, narrow): (256, 256, 1, 1, 1),
        # as many heads and rows of the batch as fill a block
        ((16, 8, 256, 64), 8, None): (256, 256, 1, 4, 4),
        ((16, 8, 64, 64), 8, None): (64, 64, 8, 8, 8),
        ((15, 3, 64, 64), 3, None): (64, 64, 15, 3, 3),
    }.items():
        query, key = tf.zeros(shape), tf.zeros((shape[0], groups, *shape[2:]))
        tiling = tiled(query, key, mask)
        found = tiling.rows, tiling.columns, tiling.chunk, tiling.heads, tiling.groups
        assert found == tiles
        assert tiling.steps * tiling.chunk * tiling.heads == shape[0] * shape[1]
        assert np.prod(found[:4]) <= sizes.BLOCKS["cpu"].scores


# (heads, key heads, queries, keys) to (rows of the batch, heads, queries and keys) of a block.
LENGTHS = [4, 0, 131, 500]
SIDE_BY_SIDE = {
    (2, 2, 520, 520): (1, 2, 260, 260),
    (2, 2, 256, 256): (2, 2, 256, 256),  # one block
    (2, 2, 521, 517): (1, 2, 261, 259),  # padded in both directions
    (4, 2, 301, 517): (1, 4, 151, 259),
    (4, 4, 521, 517): (1, 2, 261, 259),  # two steps for each row of the batch
    (1, 1, 521, 517): (2, 1, 261, 259),
}
RULES = {
    "window": lambda lengths: masks.window(200),
    "padding": masks.padding,
    "prefix | causal": lambda lengths: masks.prefix(lengths) | masks.causal(),
    "padding & causal": lambda lengths: masks.padding(lengths) & masks.causal(),
}


def checked(shape, name):
    """The fields of a case that has the tiling of `SIDE_BY_SIDE`."""
    heads, groups, queries, keys = shape
    rule = RULES[name](np.minimum(LENGTHS, keys))
    tiling = tiled(tf.zeros((4, heads, queries, 4)), tf.zeros((4, groups, keys, 4)), rule)
    assert (tiling.chunk, tiling.heads, tiling.rows, tiling.columns) == SIDE_BY_SIDE[shape]
    assert (tiling.query_blocks > 1 and tiling.key_blocks > 1) == (queries > 256)
    fields = {"lengths": (queries, keys), "widths": (4, 3), "batch": 4, "block": None}
    return Case(rule, heads=(heads, groups), **fields)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, name",
    [*zip(SIDE_BY_SIDE, [*RULES, "padding", "padding & causal"], strict=True)],
    ids=str,
)
def test_blocks_side_by_side_equal_dense(shape, name):
    check(checked(shape, name))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 2, 521, 517), (1, 1, 521, 517)], ids=str)
def test_blocks_side_by_side_confine_nan_to_queries_that_see_it(shape):
    case = checked(shape, "padding & causal")
    check(case._replace(broken=np.nan, reached=True))


@pytest.mark.slow
def test_blocks_side_by_side_under_xla_with_unknown_batch_equal_dense():
    shape, name = (2, 2, 521, 517), "padding & causal"
    rule = checked(shape, name).mask
    arguments = operands_of((4, *shape), (4, 3))

    def run(*arguments, path="streamed"):
        score, (*operands, upstream) = score_functions.scaled_dot_product, arguments
        return both_ways(score, operands, rule, path, upstream=upstream, block=None)

    signature = [tf.TensorSpec((None, *x.shape[1:])) for x in arguments]
    compiled = tf.function(run, input_signature=signature, jit_compile=True)
    assert_close(compiled(*arguments), run(*arguments, path="dense"))


def test_tiling_on_gpu_has_larger_blocks(monkeypatch):
    """A GPU has more threads, and no cache to fit into."""
    query = tf.zeros((16, 8, 8192, 16))
    scores = (
        block_scores.Product(True),
        block_scores.AnyScore(score_functions.dot_product, 4),
        additive.Additive(),
    )

    def numbers():
        tilings = [Tiling.of(query, query, scores[0], heads_independent=True)]
        tilings += [Tiling.of(query, query, score) for score in scores[1:]]
        return [tiling.chunk * tiling.heads * tiling.rows * tiling.columns for tiling in tilings]

    few = numbers()
    monkeypatch.setattr(devices, "kind", lambda tensor: "gpu")
    for less, more in zip(few, numbers(), strict=True):
        assert 4 * less <= more <= 64 * less


@given(
    batch=st.integers(1, 12),
    groups=st.integers(1, 12),
    repeats=st.integers(1, 4),
    lengths=st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    mask=st.sampled_from([None, masks.causal(), masks.window(50), masks.prefix(7)]),
)
@settings(max_examples=50, deadline=None)
def test_tiling_drawn_has_every_head_once_and_bounded_blocks(batch, groups, repeats, lengths, mask):
    query, key = (
        tf.zeros((batch, groups * repeats, lengths[0], 1)),
        tf.zeros((batch, groups, lengths[1], 1)),
    )
    tiling = tiled(query, key, mask)
    assert tiling.steps * tiling.chunk * tiling.heads == batch * groups * repeats
    assert batch % tiling.chunk == 0 and groups % tiling.groups == 0
    assert tiling.heads == tiling.groups * repeats
    block = tiling.chunk * tiling.heads * tiling.rows * tiling.columns
    assert block <= sizes.BLOCKS["cpu"].scores
    assert tiling.query_blocks * tiling.rows >= lengths[0]
    assert tiling.key_blocks * tiling.columns >= lengths[1]


def test_tiling_of_other_scores_has_two_steps_at_least():
    scores = (additive.Additive(), block_scores.AnyScore(score_functions.dot_product, 4))
    for score, batch in itertools.product(scores, (2, 3, 8, 64)):
        tiling = Tiling.of(tf.zeros((batch, 2, 64, 8)), tf.zeros((batch, 2, 64, 8)), score)
        assert tiling.steps >= 2 and tiling.head_steps == 1 and tiling.heads == 2


@pytest.mark.slow
def test_blocks_hidden_by_mask_are_not_computed():
    calls = []

    def counted(query, key):
        calls.append(1)
        return score_functions.dot_product(query, key)

    def blocks(mask, queries=64, keys=64):
        calls.clear()
        x, y = tf.ones((1, 1, queries, 2)), tf.ones((1, 1, keys, 2))
        with blocks_of((8, 8)):
            attend(x, y, key=y, score=counted, mask=mask, path="streamed")
        return len(calls)

    assert blocks(None) == 64
    assert blocks(masks.causal()) == 36
    assert blocks(masks.window(8)) == 22
    assert blocks(masks.causal() & masks.window(8)) == 15
    assert blocks(masks.padding([11])) == 16
    assert blocks(masks.padding([20]) & masks.causal()) == 1 + 2 + 6 * 3
    assert blocks(masks.prefix(8) | masks.causal()) == 36
    assert blocks(masks.causal(), queries=16) == 7 + 8
    positions = np.arange(64)
    assert blocks(masks.explicit(positions[None, None] < 11)) == 16
    assert blocks(masks.explicit(positions[None] >= 53) & masks.causal()) == 1 + 2
    assert blocks(masks.explicit(positions[None, None] < 0)) == 0
    assert blocks(masks.chunks(16)) == 4 * 4
    assert blocks(masks.chunks(16) & masks.causal()) == 4 * 3
    assert blocks(masks.segments(positions[None] // 16) & masks.causal()) == 4 * 3
    assert blocks(masks.segments(positions[None] % 16)) == 8 * 7
    assert blocks(masks.window(8) | masks.prefix(8)) == 22 + 6
    assert blocks((masks.window(8) | masks.prefix(8)) & masks.causal()) == 15 + 6


def test_additive_strip_has_eight_queries_or_all():
    for parts in ([8] * 8, [8, 9, 8, 9, 8, 9, 9], [8, 8], [15], [3]):
        x = tf.range(sum(parts))[None]
        strips = additive._strips(x, 8)
        assert [strip.shape[1] for strip in strips] == parts
        np.testing.assert_array_equal(tf.concat(strips, 1), x)


@pytest.mark.slow
@pytest.mark.parametrize("heads, size", [(1, 1.0), (2, 60.0)], ids=["exponentials", "sigmoid"])
def test_additive_gradient_in_strips_adds_up_to_the_whole(size, heads, monkeypatch):
    rows, kernel = [], additive._strip_vjp

    def counted(exponentials, left, *rest):
        assert exponentials == (size == 1.0)
        rows.append(left.shape[1])
        return kernel(exponentials, left, *rest)

    monkeypatch.setattr(additive, "_strip_vjp", counted)
    draw = np.random.default_rng(5).normal
    left, right, weight, gradient = (
        tf.constant(draw(size=shape), tf.float32)
        for shape in ((2, 61, 3), (2, 7, 3), (heads, 3), (2, 61, 7))
    )
    left = left * size  # at 60 times beyond what has an exponential, and so in the other branch
    weight = tf.repeat(weight, 2 // heads, axis=0)  # (N, U)
    of_left, of_right, of_weight = additive._choose(additive._vjp, left, right, weight, gradient)
    assert len(rows) == 7 and sum(rows) == 61
    with tf.GradientTape() as tape:
        tape.watch([left, right, weight])
        hidden = tf.tanh(left[:, :, None] + right[:, None])
        scores = tf.reduce_sum(weight[:, None, None] * hidden, -1)
    expected = tape.gradient(scores, [left, right, weight], gradient)
    for found, wanted in zip((of_left, of_right, of_weight), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
