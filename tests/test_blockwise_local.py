"""Narrow masks by distance, whose blocks the streamed path takes in runs: the same as the dense
path in all.
"""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.streaming import assert_close
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.paths.blockwise import attend as streamed
from tfattn.core.paths.blockwise import band
from tfattn.core.paths.blockwise.band import Band
from tfattn.core.paths.blockwise.blocks import NUMBERS_APART

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
    shapes = [
        (rows, heads, queries, 6),
        (rows, groups, keys, 6),
        (rows, groups, keys, 5),
        (rows, heads, queries, 5),
    ]
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


class Beyond(masks.Mask):
    """Keys that come later, and by more than a block."""

    is_relative = True

    def on(self, grid):
        distance = grid.key_positions() - grid.query_positions()
        return (distance >= 9) & (distance < 14)

    def key_bounds(self, grid):
        return grid.first_position() + 9, grid.last_position() + 14


class OfTheSquare(masks.Mask):
    """A window whose open bounds are those of the queries in the square, and wider than of what
    lies beyond.
    """

    is_relative = True

    def on(self, grid):
        return abs(grid.key_positions() - grid.query_positions()) < 5

    def key_bounds(self, grid):
        return grid.first_position() - 4, grid.last_position() + 5

    def full_bounds(self, grid):
        return min(grid.last_position(), grid.num_keys - 1) - 4, grid.first_position() + 5


MASKS |= {"beyond": Beyond(), "of the square": OfTheSquare()}


@pytest.fixture
def short_runs(monkeypatch):
    monkeypatch.setattr(band, "_MOST_IN_A_RUN", 3)


@given(
    name=st.sampled_from([*MASKS]),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (3, 1)]),
    queries=st.integers(4, 60),
    keys=st.integers(8, 60),
    side=st.integers(2, 8),
    run=st.integers(2, 9),
)
# seen from the second block on, by fewer blocks than there are keys
@example("later", (1, 1), 9, 12, 4, 9)
@example("beyond", (2, 1), 40, 40, 4, 5)
@example("of the square", (1, 1), 41, 41, 4, 3)  # one query alone in the last block
@example("window", (1, 1), 40, 40, 4, 2)  # three blocks are seen in runs of two
@example("one's own", (3, 1), 37, 37, 4, 3)
@example("window", (1, 1), 60, 40, 4, 4)  # queries before all keys
@settings(max_examples=40, deadline=None)
def test_a_band_equals_the_dense_path_for_any_lengths_sides_and_runs(
    name, heads, queries, keys, side, run
):
    mask, arguments = MASKS[name], operands(2, *heads, queries, keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(band, "_MOST_IN_A_RUN", run)
        assume(Band.of(*arguments[:3], mask, (side, side)) is not None)
        here = pulled(mask, *arguments, (side, side))
    assert_close(here, pulled(mask, *arguments, None), 2e-5)


@pytest.mark.parametrize("name", [*MASKS])
def test_every_block_of_a_band_is_that_of_the_mask(name, monkeypatch):
    monkeypatch.setattr(band, "_MOST_IN_A_RUN", 4)
    mask, queries, keys, side = MASKS[name], 41, 53, 4
    query, key, value, _ = operands(2, 2, 1, queries, keys)
    found = Band.of(query, key, value, mask, (side, side))
    assert found.query_blocks > 2
    whole = np.pad(np.asarray(mask.dense(queries, keys)), [(0, side), (0, side)])
    seen, opened = np.zeros_like(whole), 0
    for i in range(found.query_blocks):
        low, high = (
            int(x) for x in found.mask.full_bounds(found.square.query_grid(*found.at(1, i)))
        )  # of the last step
        for j in range(found.square.key_blocks):
            rule = np.asarray(found.mask.on(found.square.grid(*found.at(1, i), j)))
            assert rule.shape == (found.run, side, side)
            if low <= j * side and (j + 1) * side <= high:
                assert rule.all()
                opened += 1
            for k, here in enumerate(rule):
                row, column = (
                    (i * found.run + k) * side,
                    (i * found.run + k + found.seen.first + j) * side,
                )
                inside = here[: max(0, queries - row)]
                if row < queries and 0 <= column < keys:
                    wanted = whole[row : row + side, column : column + side][: len(inside)]
                    np.testing.assert_array_equal(inside, wanted)
                    seen[row : row + side, column : column + side] = wanted.any()
                else:
                    assert not inside.any()
    assert not (whole & ~seen).any()  # and every pair that the mask leaves is in one of them
    if name in ("window", "wide window", "of the square"):
        assert opened >= found.query_blocks - 1


def test_a_band_where_the_mask_is_relative_and_leaves_little():
    def shape(mask, queries=4096, keys=4096, heads=2, groups=2, block=None, width=2):
        query, key = tf.zeros((1, heads, queries, width)), tf.zeros((1, groups, keys, 2))
        found = Band.of(query, key, key, mask, block)
        return None if found is None else (found.seen.side, found.run, found.seen.count)

    assert shape(masks.window(256)) == (128, 16, 5)
    assert shape(masks.window(256) & masks.causal()) == (128, 16, 3)
    assert shape(masks.window(512)) == (128, 16, 9)
    assert shape(masks.window(64)) == (64, 64, 3)
    # 96 tokens further on: no multiple of a block
    assert shape(masks.window(256), 4000) == (128, 16, 6)
    assert shape(masks.window(256), 5000, 5000) == (128, 14, 5)  # 40 blocks in three runs
    assert shape(masks.window(64), heads=8) == (64, 16, 3)  # four heads that share a key head
    assert shape(masks.window(64), 512, 512) == (64, 8, 3)
    assert shape(masks.window(8), 64, 64, block=(8, 8)) == (8, 8, 3)
    for mask in (
        None,
        masks.causal(),
        masks.window(513),
        ~masks.window(64),
        masks.window(64) & masks.padding([4096]),
    ):
        assert shape(mask) is None
    assert shape(masks.window(512), 4000) is None  # ten blocks
    assert shape(masks.window(256), width=512) == (128, 6, 5)
    # no run that is as long as what a block sees
    assert shape(masks.window(256), width=1024) is None
    assert shape(masks.causal(), 4096, 512) is None  # most queries see nothing
    assert shape(masks.causal() & masks.window(64), 8192, 1024) is None
    # the middle sees few keys, and the first all of them
    assert shape(~masks.causal(), 1024, 1024) is None
    assert shape(masks.window(256), 1024, 1024) == (128, 8, 5)
    assert shape(masks.window(64), 448, 448) is None  # a few blocks: heads fill a step as well
    assert shape(masks.window(8), 64, 64, block=(8, 4)) is None
    # 64 heads to a key head fill a block by themselves
    assert shape(masks.window(64), heads=128) is None
    side, run, _ = shape(masks.window(64))
    assert side * side * run <= NUMBERS_APART


@pytest.mark.parametrize(
    "name, heads, sizes, block",
    [
        ("causal window", (2, 2), (30, 30), (4, 4)),
        ("one's own", (4, 2), (30, 30), (4, 4)),
        ("window", (2, 1), (22, 31), (4, 4)),
        ("causal window", (2, 2), (520, 520), None),
    ],
)
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_a_band_in_a_graph_and_under_xla_with_a_batch_of_any_size(
    name, heads, sizes, block, jit, short_runs
):
    mask, arguments = MASKS[name], operands(3, *heads, *sizes)
    assert Band.of(*arguments[:3], mask, block) is not None

    @tf.function(
        jit_compile=jit, input_signature=[tf.TensorSpec((None, *x.shape[1:])) for x in arguments]
    )
    def run(*arguments):
        return pulled(mask, *arguments, block)

    assert_close(run(*arguments), pulled(mask, *arguments, None), 2e-5)
    if not jit:
        empty = [x[:0] for x in arguments]
        assert [x.shape for x in run(*empty)] == [empty[3].shape, *[x.shape for x in empty[:3]]]


@pytest.mark.parametrize("mask", [MASKS["window"], masks.causal()], ids=["band", "plain"])
def test_values_without_features(mask):
    query, key, *_ = operands(2, 2, 2, 30, 30)
    nothing = tf.zeros((2, 2, 30, 0))
    output, *gradients = pulled(mask, query, key, nothing, nothing, (4, 4))
    assert output.shape == nothing.shape and not np.any(gradients[0])


@pytest.mark.parametrize(
    "dtype, tolerance", [("float16", 4e-2), ("bfloat16", 2e-1), ("float64", 1e-12)]
)
def test_a_band_in_other_dtypes(dtype, tolerance):
    mask, arguments = MASKS["window"], operands(2, 2, 1, 31, 31, dtype)
    wide = [tf.cast(x, "float64") for x in arguments]
    here = pulled(mask, *arguments, (4, 4))
    assert all(x.dtype == dtype for x in here)
    assert_close(here, pulled(mask, *wide, None), tolerance)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("at", [0, 17, 30])
@pytest.mark.parametrize("which", ["key", "value"])
def test_a_broken_token_reaches_the_queries_of_a_band_that_may_see_it_and_no_other(
    which, at, broken, short_runs
):
    mask, (query, key, value, upstream) = MASKS["causal window"], operands(1, 2, 2, 31, 31)
    clean = pulled(mask, query, key, value, upstream, (4, 4))
    there = tf.range(31)[:, None] == at
    key, value = (
        tf.where(there, broken, x) if name == which else x
        for name, x in (("key", key), ("value", value))
    )
    output, of_query, *_ = pulled(mask, query, key, value, upstream, (4, 4))
    sees = np.asarray(mask.dense(31, 31))[:, at]
    np.testing.assert_array_equal(output.numpy()[:, :, ~sees], clean[0].numpy()[:, :, ~sees])
    if broken != 3e38:
        np.testing.assert_array_equal(of_query.numpy()[:, :, ~sees], clean[1].numpy()[:, :, ~sees])
        assert not np.isfinite(output.numpy()[:, :, sees]).any()


def test_queries_of_a_band_that_see_nothing_pool_to_zero_with_zero_gradients():
    mask = MASKS["later"]  # the last query sees nothing
    output, of_query, of_key, of_value = pulled(mask, *operands(2, 2, 2, 24, 24), (4, 4))
    assert np.all(output[:, :, -1] == 0) and np.all(of_query[:, :, -1] == 0)
    # and nobody sees the first key
    assert np.all(of_key[:, :, 0] == 0) and np.all(of_value[:, :, 0] == 0)
    assert np.any(output[:, :, -2] != 0)


@pytest.mark.parametrize("shift", [0.0, -30.0], ids=["overflow", "vanish"])
def test_exponentials_of_a_band_that_overflow_or_vanish_for_some_queries(shift, short_runs):
    mask, (query, key, value, upstream) = MASKS["window"], operands(1, 2, 2, 40, 40)
    # a feature of its own moves all scores of a query: beside the others a third of them vanishes
    if shift:
        down = tf.where(tf.range(40)[:, None] % 3 == 0, 6**0.5 * shift, 0.0)
        query, key = (
            tf.concat([query[..., 1:], down + 0 * query[..., :1]], -1),
            tf.concat([key[..., 1:], 1 + 0 * key[..., :1]], -1),
        )
    else:
        query, key = 7 * query, 7 * key
    scores = score_functions.scaled_dot_product(query, key)
    with np.errstate(over="ignore"):
        totals = np.exp(scores).sum(-1)
    badly = ~np.isfinite(totals) | (totals < 1e-6)
    assert badly.any() and not badly.all()
    here, there = (pulled(mask, query, key, value, upstream, block) for block in ((4, 4), None))
    assert_close(here, there, 1e-3)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_dropout_of_a_band_is_the_same_both_ways_and_in_second_derivatives(compiled, short_runs):
    mask, (query, key, value, upstream) = MASKS["window"], operands(2, 2, 2, 26, 26)
    options = {"block": (4, 4), "dropout": 0.4, "seed": 7}
    score = score_functions.scaled_dot_product
    identity = tf.eye(26, batch_shape=[2, 2])
    kept = (
        tf.cast(streamed.attend(query, identity, key, score, mask=mask, **options) > 0, "float32")
        / 0.6
    )
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

    def here():
        return penalty(
            lambda query, key, value: streamed.attend(
                query, value, key, score, mask=mask, **options
            )
        )

    assert_close((tf.function(here) if compiled else here)(), penalty(by_hand), 1e-3)


def test_no_two_blocks_of_a_band_share_a_dropout_pattern(short_runs):
    tokens, side = 144, 16
    x, identity = tf.zeros((2, 1, tokens, 2)), tf.eye(tokens, batch_shape=[2, 1])
    # a block sees all of its own keys and its neighbours', and some of the two beyond
    mask = masks.window(32)
    options = {"mask": mask, "dropout": 0.5, "seed": 3, "block": (side, side)}
    weights = streamed.attend(x, identity, x, score_functions.dot_product, **options)
    kept = np.asarray(weights > 0).reshape(2, 9, side, 9, side)
    open_blocks = [
        kept[b, i, :, i + d].ravel() for b in range(2) for i in range(1, 8) for d in (-1, 0, 1)
    ]
    same = np.mean(np.stack(open_blocks)[:, None] == open_blocks, -1)[
        ~np.eye(len(open_blocks), dtype=bool)
    ]
    assert np.all(np.abs(same - 0.5) < 0.2)  # 6 deviations of 256 coins
    np.testing.assert_allclose(same.mean(), 0.5, atol=0.02)


@pytest.mark.parametrize("count, run", [(1, 3), (2, 2), (3, 4), (5, 2)])
def test_what_slides_adds_up(count, run):
    parts = np.random.default_rng(1).normal(size=(count, run, 2))
    wanted = sum(np.pad(part, [(j, count - 1 - j), (0, 0)]) for j, part in enumerate(parts))
    np.testing.assert_allclose(band._slid([*map(tf.constant, parts)]), wanted)


@pytest.mark.parametrize("by", [-7, -2, 0, 1, 3, 6, 9])
@pytest.mark.parametrize("count", [0, 3, 5, 8])
def test_blocks_that_are_moved_leave_zeros(by, count):
    blocks = np.arange(1.0, 6.0)[:, None]
    wanted = [[blocks[i - by, 0] if 0 <= i - by < 5 else 0] for i in range(count)]
    np.testing.assert_array_equal(
        band._moved(tf.constant(blocks), by, count), np.reshape(wanted, (count, 1))
    )
