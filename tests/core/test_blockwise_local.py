"""Local attention, with blocks of queries in runs, against the dense path."""

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.blockwise import (
    Case,
    OfTheSquare,
    assert_close,
    blocks_of,
    both_ways,
    check,
    operands_of,
)
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.engine import sizes
from tfattn.core.engine.tensorflow import block_scores
from tfattn.core.engine.tensorflow.differentiation import BlockwiseCall
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

    def bounds(self, grid):
        return (grid.first_position() + 9, grid.last_position() + 14), (0, 0)


def by_blocks(mask, *arguments, path="streamed", block=None):
    """Output and gradients."""
    *operands, upstream = arguments
    score = score_functions.scaled_dot_product
    return both_ways(score, operands, mask, path, block=block, upstream=upstream)


def by_the_dense_path(mask, *arguments):
    """The same by the dense path, from the array of visible pairs alone."""
    seen = masks.explicit(mask.dense(arguments[0].shape[2], arguments[1].shape[2]))
    return by_blocks(seen, *arguments, path="dense")


MASKS |= {"beyond": Beyond(), "of the square": OfTheSquare()}


def local_of(mask, query, key, block=None):
    call = BlockwiseCall(query=query, key=key, value=key, mask=mask, block=block)
    return LocalPasses.of(call, block_scores.Product(True))


def run_of(monkeypatch, most_scores):
    """Limits the scores in a run of blocks."""
    bounds = sizes.BLOCKS["cpu"]._replace(local_scores=most_scores)
    monkeypatch.setitem(sizes.BLOCKS, "cpu", bounds)


@pytest.fixture
def short_runs(monkeypatch):
    """The shortest runs: as long as the keys that a block sees beyond itself."""
    run_of(monkeypatch, 1)


# Scores of a run, and the case.
HALF, DOUBLE = ("float16",) * 3, ("float64",) * 3
CASES = [
    # seen from the second block on, by fewer blocks than there are keys
    (1000, Case("later", lengths=(19, 22), block=(4, 4))),
    (500, Case("beyond", heads=(2, 1), lengths=(40, 40), block=(4, 4), sums=True)),
    # one query alone in the last block
    (150, Case("of the square", lengths=(41, 41), block=(4, 4))),
    # three blocks are seen, in runs of two
    (1, Case("window", lengths=(40, 40), block=(4, 4))),
    (150, Case("one's own", heads=(3, 1), lengths=(37, 37), block=(4, 4), sums=True)),
    (200, Case("window", lengths=(48, 40), block=(4, 4))),  # queries before all keys
    # and many keys before all queries
    (400, Case("causal window", heads=(4, 2), lengths=(22, 57), block=(4, 4), sums=True)),
    (10**6, Case("a gap", lengths=(40, 40), block=(8, 8))),  # one run
    # and padded
    (10**6, Case("wide window", heads=(3, 3), lengths=(37, 57), block=(5, 5), sums=True)),
    (10**6, Case("window", heads=(2, 1), lengths=(31, 31), block=(4, 4), dtypes=HALF)),
    (10**6, Case("window", heads=(2, 1), lengths=(31, 31), block=(4, 4), dtypes=DOUBLE)),
    (10**6, Case("window", heads=(2, 2), lengths=(30, 30), block=(4, 4), widths=(6, 0))),
]


@pytest.mark.parametrize("scores, case", CASES)
def test_local_attention_equals_dense_and_oracle(scores, case, monkeypatch):
    run_of(monkeypatch, scores)
    case = case._replace(mask=MASKS[case.mask])
    (heads, groups), (queries, keys) = case.heads, case.lengths
    query, key, *_ = operands_of((2, heads, groups, queries, keys))
    assert local_of(case.mask, query, key, case.block) is not None
    check(case)


@pytest.mark.parametrize("name", [*MASKS])
def test_local_runs_hold_the_pairs_of_the_mask_and_no_other(name, monkeypatch):
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


def test_local_attention_is_taken_under_narrow_masks_by_distance():
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
def test_local_attention_in_graph_of_unknown_batch_equals_dense(
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


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, -30.0], ids=["overflow", "vanish"])
def test_local_attention_with_extreme_scores_equals_dense(shift, short_runs):
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
def test_local_dropout_is_the_same_in_all_derivatives(short_runs):
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


def test_local_dropout_of_two_blocks_is_independent(short_runs):
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
