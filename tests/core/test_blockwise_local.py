"""Local attention, with blocks of queries in runs, against the dense path."""

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.blockwise import OfTheSquare, assert_close, blocks_of, both_ways, operands_of
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.engine import sizes
from tfattn.core.engine.tensorflow import block_scores
from tfattn.core.engine.tensorflow.local import LocalPasses

pytestmark = pytest.mark.tensorflow

MASKS = {
    "window": masks.window(5),
    "wide window": masks.window(9),
    "one's own": masks.window(1),
    "causal window": masks.causal() & masks.window(7),
    "later": ~masks.causal() & masks.window(4),
    "a gap": masks.window(6) & ~masks.window(3),
}


class Beyond(masks.Mask):
    """Keys more than a block after the query."""

    is_relative = True

    def on(self, grid):
        distance = grid.key_positions() - grid.query_positions()
        return (distance >= 9) & (distance < 14)

    def key_bounds(self, grid):
        return grid.first_position() + 9, grid.last_position() + 14


def by_blocks(mask, *arguments, path="streamed", block=None, **options):
    """Output, perhaps the log of the sums, and gradients."""
    *operands, upstream = arguments
    upstream = (upstream, upstream[..., 0]) if options else upstream
    options |= {"block": block, "upstream": upstream}
    return both_ways(score_functions.scaled_dot_product, operands, mask, path, **options)


def by_the_dense_path(mask, *arguments, **options):
    """The same by the dense path, from the array of visible pairs alone."""
    seen = masks.explicit(mask.dense(arguments[0].shape[2], arguments[1].shape[2]))
    return by_blocks(seen, *arguments, path="dense", **options)


MASKS |= {"beyond": Beyond(), "of the square": OfTheSquare()}


def local_of(mask, query, key, block=None):
    return LocalPasses.of(query, key, block_scores.Product(True), mask, block=block)


def run_of(monkeypatch, most_scores):
    """Limits the scores in a run of blocks."""
    bounds = sizes.BLOCKS["cpu"]._replace(local_scores=most_scores)
    monkeypatch.setitem(sizes.BLOCKS, "cpu", bounds)


@pytest.fixture
def short_runs(monkeypatch):
    """The shortest runs: as long as the keys that a block sees beyond itself."""
    run_of(monkeypatch, 1)


# A mask, heads, key heads, queries, keys, the side of a block, and scores of a run.
SHAPES = [
    # seen from the second block on, by fewer blocks than there are keys
    ("later", (1, 1), 19, 22, 4, 1000),
    ("beyond", (2, 1), 40, 40, 4, 500),
    ("of the square", (1, 1), 41, 41, 4, 150),  # one query alone in the last block
    ("window", (1, 1), 40, 40, 4, 1),  # three blocks are seen, in runs of two
    ("one's own", (3, 1), 37, 37, 4, 150),
    ("window", (1, 1), 48, 40, 4, 200),  # queries before all keys
    ("causal window", (4, 2), 22, 57, 4, 400),  # and many keys before all queries
    ("a gap", (1, 1), 40, 40, 8, 10**6),  # one run
    ("wide window", (3, 3), 37, 57, 5, 10**6),  # and padded
]


@pytest.mark.parametrize("name, heads, queries, keys, side, scores", SHAPES)
def test_local_attention_equals_the_dense_path_for_any_lengths_sides_and_runs(
    name, heads, queries, keys, side, scores, monkeypatch
):
    run_of(monkeypatch, scores)
    mask, arguments = MASKS[name], operands_of((2, *heads, queries, keys))
    assert local_of(mask, *arguments[:2], (side, side)) is not None
    options = {"return_log_sum_exp": True} if heads[0] > 1 else {}
    here = by_blocks(mask, *arguments, block=(side, side), **options)
    assert_close(here, by_the_dense_path(mask, *arguments, **options), 2e-5)


@pytest.mark.parametrize("name", [*MASKS])
def test_every_pair_that_the_mask_leaves_is_in_one_run_and_no_other_is(name, monkeypatch):
    run_of(monkeypatch, 150)
    mask, queries, keys, side = MASKS[name], 41, 53, 4
    query, key, *_ = operands_of((2, 2, 1, queries, keys))
    passes = local_of(mask, query, key, (side, side))
    assert passes.runs > 2
    whole = np.asarray(mask.dense(queries, keys))
    found = np.zeros_like(whole)
    for n in range(passes.runs):
        inside = np.asarray(passes._inside(n))  # (r, 1, 1, count·t)
        seen = np.asarray(passes.visible) & inside[:, 0]  # (r, t, count·t)
        for block in range(passes.run):
            i = n * passes.run + block
            for t, s in zip(*np.nonzero(seen[block]), strict=True):
                if i * side + t < queries:
                    found[i * side + t, (i + passes.first) * side + s] = True
    np.testing.assert_array_equal(found, whole)


def test_attention_is_local_where_the_mask_goes_by_distance_and_leaves_little():
    def shape(mask, queries=4096, keys=4096, heads=2, groups=2, block=None, width=2):
        query, key = tf.zeros((1, heads, queries, width)), tf.zeros((1, groups, keys, 2))
        found = local_of(mask, query, key, block)
        return None if found is None else (found.side, found.run, found.count)

    assert shape(masks.window(256)) == (128, 11, 5)
    assert shape(masks.window(256) & masks.causal()) == (128, 16, 3)
    assert shape(masks.window(512)) == (128, 8, 9)
    assert shape(masks.window(64)) == (64, 64, 3)
    # 96 tokens further on: no multiple of a block
    assert shape(masks.window(256), 4000) == (128, 8, 6)
    assert shape(masks.window(256), 5000, 5000) == (128, 10, 5)  # 40 blocks in four runs
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
    assert shape(masks.causal(), 4096, 512) is None  # most queries see nothing
    assert shape(masks.causal() & masks.window(64), 8192, 1024) is None
    # the middle sees few keys, and the first all of them
    assert shape(~masks.causal(), 1024, 1024) is None
    assert shape(masks.window(256), 1024, 1024) == (128, 8, 5)
    assert shape(masks.window(64), 448, 448) is None  # a few blocks: heads fill a step as well
    assert shape(masks.window(8), 64, 64, block=(8, 4)) is None
    # 64 heads to a key head: runs that are no shorter than what reaches beyond them
    assert shape(masks.window(64), heads=128) == (64, 2, 3)
    side, run, count = shape(masks.window(64))
    assert side * side * run * count <= sizes.BLOCKS["cpu"].local_scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, heads, sizes, block, jit",
    [
        ("causal window", (2, 1), (520, 520), None, False),
        ("window", (4, 2), (22, 31), (4, 4), True),
    ],
    ids=["graph", "XLA"],
)
def test_local_attention_in_a_graph_and_under_xla_with_a_batch_of_any_size(
    name, heads, sizes, block, jit, short_runs
):
    mask, arguments = MASKS[name], operands_of((2, *heads, *sizes))
    assert local_of(mask, *arguments[:2], block) is not None

    @tf.function(
        jit_compile=jit, input_signature=[tf.TensorSpec((None, *x.shape[1:])) for x in arguments]
    )
    def run(*arguments):
        return by_blocks(mask, *arguments, block=block)

    assert_close(run(*arguments), by_the_dense_path(mask, *arguments), 2e-5)
    if not jit:
        empty = [x[:0] for x in arguments]
        assert [x.shape for x in run(*empty)] == [empty[3].shape, *[x.shape for x in empty[:3]]]


@pytest.mark.parametrize("mask", [MASKS["window"], masks.causal()], ids=["local", "plain"])
def test_values_without_features(mask):
    query, key, *_ = operands_of((2, 2, 2, 30, 30))
    nothing = tf.zeros((2, 2, 30, 0))
    output, *gradients = by_blocks(mask, query, key, nothing, nothing, block=(4, 4))
    assert output.shape == nothing.shape and not np.any(gradients[0])


@pytest.mark.parametrize("dtype, tolerance", [("float16", 4e-2), ("float64", 1e-12)])
def test_local_attention_in_other_dtypes(dtype, tolerance):
    mask, arguments = MASKS["window"], operands_of((2, 2, 1, 31, 31), dtype=dtype)
    wide = [tf.cast(x, "float64") for x in arguments]
    here = by_blocks(mask, *arguments, block=(4, 4))
    assert all(x.dtype == dtype for x in here)
    assert_close(here, by_the_dense_path(mask, *wide), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, -30.0], ids=["overflow", "vanish"])
def test_exponentials_of_local_attention_that_overflow_or_vanish_for_some_queries(
    shift, short_runs
):
    mask, (query, key, value, upstream) = MASKS["window"], operands_of((1, 2, 2, 40, 40))
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
    arguments = (query, key, value, upstream)
    here = by_blocks(mask, *arguments, block=(4, 4))
    assert_close(here, by_the_dense_path(mask, *arguments), 1e-3)


@pytest.mark.slow
def test_dropout_of_local_attention_is_the_same_both_ways_and_in_second_derivatives(short_runs):
    mask, (query, key, value, upstream) = MASKS["window"], operands_of((2, 2, 2, 26, 26))
    score = score_functions.scaled_dot_product
    identity = tf.eye(26, batch_shape=[2, 2])

    def dropped(query, value, key):
        with blocks_of((4, 4)):
            return attend(query, value, key=key, mask=mask, dropout=0.4, seed=7, path="streamed")

    kept = tf.cast(dropped(query, identity, key) > 0, "float32") / 0.6
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

    here = penalty(lambda query, key, value: dropped(query, value, key))
    assert_close(here, penalty(by_hand), 1e-3)


def test_no_two_blocks_of_local_attention_share_a_dropout_pattern(short_runs):
    tokens, side = 144, 16
    x, identity = tf.zeros((2, 1, tokens, 2)), tf.eye(tokens, batch_shape=[2, 1])
    # a block sees all of its own keys and its neighbors', and some of the two beyond
    mask = masks.window(32)
    with blocks_of((side, side)):
        weights = attend(x, identity, key=x, mask=mask, dropout=0.5, seed=3, path="streamed")
    kept = np.asarray(weights > 0).reshape(2, 9, side, 9, side)
    open_blocks = [
        kept[b, i, :, i + d].ravel() for b in range(2) for i in range(1, 8) for d in (-1, 0, 1)
    ]
    same = np.mean(np.stack(open_blocks)[:, None] == open_blocks, -1)[
        ~np.eye(len(open_blocks), dtype=bool)
    ]
    assert np.all(np.abs(same - 0.5) < 0.2)  # 6 deviations of 256 coins
    np.testing.assert_allclose(same.mean(), 0.5, atol=0.02)
