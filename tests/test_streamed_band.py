"""Narrow masks by distance, whose blocks the streamed path takes in runs: the same as the dense path in all."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.streaming import assert_close
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core import streamed
from tfattn.core.streamed import band
from tfattn.core.streamed.band import Band
from tfattn.core.streamed.blocks import NUMBERS_APART

MASKS = {
    "window": masks.window(5),
    "wide window": masks.window(9),
    "one's own": masks.window(1),
    "causal window": masks.causal() & masks.window(7),
    "later": ~masks.causal() & masks.window(4),
    "a gap": masks.window(6) & ~masks.window(3),
}


def operands(rows, heads, groups, queries, keys, dtype="float32", seed=1):
    """query, key, value and an upstream gradient, of 6 and 5 features."""
    draw = np.random.default_rng(seed).normal
    shapes = [(rows, heads, queries, 6), (rows, groups, keys, 6), (rows, groups, keys, 5), (rows, heads, queries, 5)]
    return [tf.constant(draw(size=shape), dtype) for shape in shapes]


def pulled(mask, query, key, value, upstream, block, **options):
    """Output and gradients of the streamed path; of the dense one where `block` is None."""
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        if block is None:
            repeats = query.shape[1] // key.shape[1]
            keys, values = (tf.repeat(x, repeats, axis=1) for x in (key, value))
            seen = masks.explicit(mask.dense(query.shape[2], key.shape[2]))
            output = attend(query, values, keys, mask=seen, path="dense")
        else:
            score = score_functions.scaled_dot_product
            output = streamed.attend(query, value, key, score, mask=mask, block=block, **options)
    return [output, *tape.gradient(output, [query, key, value], upstream)]


@given(
    name=st.sampled_from([*MASKS]),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (3, 1)]),
    queries=st.integers(4, 60),
    keys=st.integers(8, 60),
    side=st.integers(2, 8),
    run=st.integers(2, 9),
)
@settings(max_examples=40, deadline=None)
def test_a_band_equals_the_dense_path_for_any_lengths_sides_and_runs(name, heads, queries, keys, side, run):
    mask, arguments = MASKS[name], operands(2, *heads, queries, keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(band, "_MOST_IN_A_RUN", run)
        assume(Band.of(*arguments[:2], mask, (side, side)) is not None)
        here = pulled(mask, *arguments, (side, side))
    assert_close(here, pulled(mask, *arguments, None), 2e-5)


@pytest.mark.parametrize("name", [*MASKS])
def test_every_block_of_a_band_is_that_of_the_mask(name):
    mask, queries, keys, side = MASKS[name], 29, 41, 4
    query, key, *_ = operands(2, 2, 1, queries, keys)
    found = Band.of(query, key, mask, (side, side))
    whole = np.pad(np.asarray(mask.dense(queries, keys)), [(0, side), (0, side)])
    seen = np.zeros_like(whole)
    for i in range(found.query_blocks):
        grid = found.square.query_grid(*found.at(3, i))  # of the last head
        rule = np.broadcast_to(found.mask.on(found.square.grid(*found.at(3, i), 0)), (found.run, side, side))
        assert rule.shape == (found.run, side, side)
        low, high = (int(x) for x in found.mask.open_bounds(grid))
        for j in range(found.square.key_blocks):
            rule = np.asarray(found.mask.on(found.square.grid(*found.at(3, i), j)))
            for k, here in enumerate(rule):
                row, column = (i * found.run + k) * side, (i * found.run + k + found.seen.first + j) * side
                inside = here[: max(0, queries - row)]
                if low <= j * side and (j + 1) * side <= high:
                    assert inside.all()
                if row < queries and 0 <= column < keys:
                    wanted = whole[row : row + side, column : column + side][: len(inside)]
                    np.testing.assert_array_equal(inside, wanted)
                    seen[row : row + side, column : column + side] = wanted.any()
                else:
                    assert not inside.any()
    assert not (whole & ~seen).any()  # and every pair that the mask leaves is in one of them


def test_a_band_where_the_mask_goes_by_distance_and_leaves_little():
    def shape(mask, queries=4096, keys=4096, heads=2, groups=2, block=None):
        arguments = tf.zeros((1, heads, queries, 2)), tf.zeros((1, groups, keys, 2)), mask, block
        found = Band.of(*arguments)
        return None if found is None else (found.seen.side, found.run, found.seen.count)

    assert shape(masks.window(256)) == (128, 16, 5)
    assert shape(masks.window(256) & masks.causal()) == (128, 16, 3)
    assert shape(masks.window(512)) == (128, 16, 9)
    assert shape(masks.window(64)) == (64, 64, 3)
    assert shape(masks.window(256), 4000) == (128, 16, 6)  # 96 tokens further on: no multiple of a block
    assert shape(masks.window(256), 5000, 5000) == (128, 14, 5)  # 40 blocks in three runs
    assert shape(masks.window(64), heads=8) == (64, 16, 3)  # four heads that share a key head
    assert shape(masks.window(64), 512, 512) == (64, 8, 3)
    assert shape(masks.window(8), 64, 64, block=(8, 8)) == (8, 8, 3)
    for mask in (None, masks.causal(), masks.window(513), ~masks.window(64), masks.window(64) & masks.padding([4096])):
        assert shape(mask) is None
    assert shape(masks.window(64), 448, 448) is None  # a few blocks: heads fill a step as well
    assert shape(masks.window(8), 64, 64, block=(8, 4)) is None
    assert shape(masks.window(64), heads=128) is None  # 64 heads to a key head fill a block by themselves
    side, run, _ = shape(masks.window(64))
    assert side * side * run <= NUMBERS_APART


@pytest.mark.parametrize("block", [(4, 4), None], ids=["blocks of 4", "as it is cut"])
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_a_band_in_a_graph_and_under_xla_with_a_batch_of_any_size(jit, block):
    mask = MASKS["causal window"]
    tokens = 30 if block else 520
    arguments = operands(3, 2, 2, tokens, tokens)
    assert Band.of(*arguments[:2], mask, block) is not None
    score = score_functions.scaled_dot_product

    @tf.function(
        jit_compile=jit,
        input_signature=[tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in arguments],
    )
    def run(query, key, value, upstream):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            output = streamed.attend(query, value, key, score, mask=mask, block=block)
        return [output, *tape.gradient(output, [query, key, value], upstream)]

    assert_close(run(*arguments), pulled(mask, *arguments, None), 2e-5)
    empty = [x[:0] for x in arguments]
    if not jit:
        assert [x.shape for x in run(*empty)] == [empty[3].shape, *[x.shape for x in empty[:3]]]


@pytest.mark.parametrize("dtype, tolerance", [("float16", 4e-2), ("bfloat16", 2e-1), ("float64", 1e-12)])
def test_a_band_in_other_dtypes(dtype, tolerance):
    mask, arguments = MASKS["window"], operands(2, 2, 1, 31, 31, dtype)
    wide = [tf.cast(x, "float64") for x in arguments]
    here = pulled(mask, *arguments, (4, 4))
    assert all(x.dtype == dtype for x in here)
    assert_close(here, pulled(mask, *wide, None), tolerance)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("at", [0, 17, 30])
def test_a_broken_token_reaches_the_queries_of_a_band_that_may_see_it_and_no_other(broken, at):
    mask, (query, key, value, upstream) = MASKS["causal window"], operands(1, 2, 2, 31, 31)
    there = tf.range(31)[:, None] == at
    broken_value = tf.where(there, broken, value)
    clean, *_ = pulled(mask, query, key, value, upstream, (4, 4))
    output, *_ = pulled(mask, query, key, broken_value, upstream, (4, 4))
    sees = np.asarray(mask.dense(31, 31))[:, at]
    np.testing.assert_array_equal(output.numpy()[:, :, ~sees], clean.numpy()[:, :, ~sees])
    if broken != 3e38:
        assert not np.isfinite(output.numpy()[:, :, sees]).any()


def test_queries_of_a_band_that_see_nothing_pool_to_zero_with_zero_gradients():
    mask = MASKS["later"]  # the last query sees nothing
    output, of_query, of_key, of_value = pulled(mask, *operands(2, 2, 2, 24, 24), (4, 4))
    assert np.all(output[:, :, -1] == 0) and np.all(of_query[:, :, -1] == 0)
    assert np.all(of_key[:, :, 0] == 0) and np.all(of_value[:, :, 0] == 0)  # and nobody sees the first key
    assert np.any(output[:, :, -2] != 0)


def test_scores_of_a_band_whose_exponentials_overflow():
    mask, (query, key, value, upstream) = MASKS["window"], operands(1, 2, 2, 40, 40)
    arguments = 7 * query, 7 * key, value, upstream
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(score_functions.scaled_dot_product(*arguments[:2]))).any()
    here, there = pulled(mask, *arguments, (4, 4)), pulled(mask, *arguments, None)
    assert_close(here, there, 1e-3)


def test_dropout_of_a_band_is_the_same_both_ways_and_in_second_derivatives():
    mask, (query, key, value, upstream) = MASKS["window"], operands(2, 2, 2, 26, 26)
    options = {"block": (4, 4), "dropout": 0.4, "seed": 7}
    score = score_functions.scaled_dot_product
    identity = tf.eye(26, batch_shape=[2, 2])
    kept = tf.cast(streamed.attend(query, identity, key, score, mask=mask, **options) > 0, "float32") / 0.6
    seen = tf.constant(np.asarray(mask.dense(26, 26)))
    share = tf.reduce_sum(kept * 0.6) / (4 * tf.reduce_sum(tf.cast(seen, "float32")))
    assert abs(share - 0.6) < 0.06

    def by_hand(query, key, value):
        scores = tf.where(seen, score(query, key), -1e9)
        return (tf.nn.softmax(scores) * kept) @ value

    def penalty(function):
        sources = [query, key, value]
        with tf.GradientTape() as outer:
            outer.watch(sources)
            with tf.GradientTape() as inner:
                inner.watch(sources)
                output = function(*sources)
            gradients = inner.gradient(output, sources, upstream)
            total = tf.add_n([tf.reduce_sum(tf.square(x)) for x in gradients])
        return [output, *gradients, *outer.gradient(total, sources)]

    here = penalty(lambda query, key, value: streamed.attend(query, value, key, score, mask=mask, **options))
    assert_close(here, penalty(by_hand), 1e-3)


def test_no_two_blocks_of_a_band_share_a_dropout_pattern():
    tokens, side = 96, 16
    x, identity = tf.zeros((2, 1, tokens, 2)), tf.eye(tokens, batch_shape=[2, 1])
    mask = masks.window(17)
    weights = streamed.attend(
        x, identity, x, score_functions.dot_product, mask=mask, dropout=0.5, seed=3, block=(side, side)
    )
    kept = np.asarray(weights > 0).reshape(2, 6, side, 6, side)
    own = np.stack([kept[b, i, :, i].ravel() for b in range(2) for i in range(6)])
    same = (own[:, None] == own).mean(-1)[~np.eye(len(own), dtype=bool)]
    assert np.all(np.abs(same - 0.5) < 0.2)  # 6 deviations of 256 coins
    np.testing.assert_allclose(same.mean(), 0.5, atol=0.02)
