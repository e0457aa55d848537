"""The online softmax, and the passes with scores, exponentials and values of any size."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.helpers.blockwise import T, assert_close, both_ways, moved, problem, wide
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.engine.tensorflow.online_softmax import HIDDEN, OnlineSoftmax

pytestmark = pytest.mark.tensorflow

SHAPE = (2, 3, 5)  # rows of the batch, heads, queries
KEYS, WIDTH = 11, 7


def pooled(scores, values, splits, dtype="float32"):
    """(output, row_max, row_sum) of blocks of keys that end at `splits`."""
    softmax = OnlineSoftmax(scores.shape[-1])
    prepared = softmax.prepared(tf.constant(values, dtype))
    state = softmax.start(tf.zeros((*scores.shape[:-1], 1), dtype), values.shape[-1])
    for number, (start, end) in enumerate(zip([0, *splits], [*splits, None], strict=True)):
        block = tf.constant(scores[..., start:end], dtype)
        state = softmax.update(*state, block, prepared[..., start:end, :], number)
    return [np.asarray(x, "float64") for x in softmax.result(*state)]


def drawn(seed=1):
    draw = np.random.default_rng(seed).normal
    return 3 * draw(size=(*SHAPE, KEYS)), draw(size=(*SHAPE[:2], KEYS, WIDTH))


def assert_equals_the_oracle(scores, values, splits, tolerance=1e-5, dtype="float32"):
    scores, values = (np.asarray(x, dtype) for x in (scores, values))
    output, row_max, row_sum = pooled(scores, values, splits, dtype)
    expected, weights = reference.attention(scores, values)
    scale = np.abs(expected).max() or 1.0
    np.testing.assert_allclose(output / scale, expected / scale, tolerance, tolerance)
    with np.errstate(over="ignore"):
        again = np.exp(np.asarray(scores, "float64") - row_max) / row_sum
    np.testing.assert_allclose(again, weights, tolerance, tolerance)


@pytest.mark.parametrize("splits", [[], [3, 6, 9], [*range(1, KEYS)], [5, 5]], ids=str)
def test_online_softmax_in_any_split_equals_oracle(splits):
    assert_equals_the_oracle(*drawn(), splits)


def test_online_softmax_float64_keeps_its_digits():
    assert_equals_the_oracle(*drawn(), [3, 6, 9], 1e-13, "float64")


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_online_softmax_with_sorted_scores_equals_oracle(order):
    scores, values = drawn()
    assert_equals_the_oracle(np.sort(scores)[..., ::order], values, [2, 5, 7])


def test_online_softmax_hidden_keys_weigh_nothing():
    scores, values = drawn()
    scores[..., :4] = HIDDEN  # a whole block, the first
    scores[..., 5:9:2] = HIDDEN
    scores[0, 1, 2, 4:8] = HIDDEN  # and one in the middle for a single query
    assert_equals_the_oracle(scores, values, [4, 8])
    loud = values.copy()
    loud[..., :4, :] = 1e30
    there, here = (pooled(scores, x, [4, 8]) for x in (values, loud))
    np.testing.assert_array_equal(here[0], there[0])


@pytest.mark.parametrize("splits", [[], [4, 8]], ids=["one block", "three"])
def test_online_softmax_fully_masked_is_zero(splits):
    scores, values = drawn()
    scores[:, :, 1] = HIDDEN
    output, row_max, row_sum = pooled(scores, values, splits)
    assert np.all(output[:, :, 1] == 0) and np.all(row_sum[:, :, 1] == 1)
    # for any score, not only −inf
    for score in (0.0, 1e29, HIDDEN):
        assert np.all(np.exp(score - row_max[:, :, 1]) == 0)
    assert np.isfinite(row_max).all()
    assert_equals_the_oracle(scores, values, splits)


@pytest.mark.parametrize("by", [-1e30, -1e4, -200.0, 200.0, 1e4, 1e30])
def test_online_softmax_with_extreme_scores_equals_oracle(by):
    scores, values = drawn()
    scores[:, :, ::2] += by
    assert_equals_the_oracle(scores, values, [4, 8], 1e-4)


@pytest.mark.parametrize("size", [1.0, 1e38, -3.4e38, 1e-30])
def test_online_softmax_of_largest_values_is_their_mean(size):
    scores, values = drawn()
    values = np.clip(values, -1, 1) * size
    assert_equals_the_oracle(scores, values, [4, 8])
    same = np.full_like(values, size)
    np.testing.assert_allclose(pooled(0 * scores, same, [4, 8])[0] / size, 1.0, 1e-5)


def test_online_softmax_nan_stays_in_its_row():
    scores, values = drawn()
    scores[1, 2, 3, 5] = np.nan
    output, *_ = pooled(scores, values, [4, 8])
    assert np.isnan(output[1, 2, 3]).all() and np.isnan(output).sum() == WIDTH


# By how much the scores of a query are moved.
MOVES = (
    np.zeros(T),
    np.full(T, 100.0),
    np.full(T, -150.0),
    np.resize([0.0, -120.0, 30.0, 95.0, -25.0, 60.0, -8.0], T),  # each query by its own
)
RULES = {
    "causal": masks.causal(),
    "some see nothing": masks.explicit(np.arange(T)[:, None] % 3 > 0) & masks.padding([17, 5]),
}


def of_tokens(found):
    """Without the gradients of the features of `moved`: sums of large numbers that cancel."""
    output, query, key, *rest = found
    return [output, query[..., :-1], key[..., :-1], *rest]


@functools.cache
def compiled(rule, **options):
    """Both passes of a dot product, for any scores."""
    score = score_functions.dot_product
    return tf.function(lambda arguments: both_ways(score, arguments, RULES[rule], **options))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_streamed_extreme_scores_equal_dense(rule):
    function, (query, key, value) = problem(37, "dot", heads=(2, 2))
    for move in MOVES:
        arguments = [*moved(query, key, move), value]
        found = of_tokens(compiled(rule)(arguments))
        assert_close(found, of_tokens(both_ways(function, wide(arguments), RULES[rule], "dense")))
        if rule == "some see nothing":
            assert all((x.numpy()[:, :, ::3] == 0).all() for x in found[:2])


@pytest.mark.slow
def test_streamed_query_of_large_scores_changes_no_bit_of_others():
    _, (query, key, value) = problem(43, "dot", heads=(2, 2))
    others = np.arange(T) != 6
    plain, beside = (
        compiled("causal")([*moved(query, key, by), value])[0].numpy()[:, :, others]
        for by in (np.zeros(T), np.where(others, 0.0, 100.0))
    )
    np.testing.assert_array_equal(beside, plain)


@pytest.mark.slow
def test_streamed_values_of_any_size_equal_dense():
    function, (query, key, value) = problem(47, "dot", heads=(2, 2))
    for size, by in ((1e-30, 0), (1e15, 0), (1e38, 0), (1e-28, -8), (1e-31, -20), (1e30, 60)):
        arguments = [*moved(query, key, np.full(T, by)), tf.clip_by_value(value, -3.0, 3.0) * size]
        here = compiled("causal")(arguments)[0]
        there = both_ways(function, wide(arguments), masks.causal(), "dense")[0]
        np.testing.assert_allclose(here / size, there / size, 2e-4, 2e-5)


def test_streamed_sum_that_overflows_alone_is_exact():
    query, key = moved(
        tf.zeros((1, 1, 4, 3)), tf.zeros((1, 1, 9, 3)), np.full(4, 88.5)
    )  # exp(88.5) is 0.8 of the most
    value = tf.fill((1, 1, 9, 2), 0.01)
    output = attend(query, value, key=key, score=score_functions.dot_product, path="streamed")
    np.testing.assert_allclose(output, np.full((1, 1, 4, 2), 0.01), 1e-5)


@pytest.mark.slow
def test_streamed_extreme_scores_drop_the_same_weights():
    _, (query, key, value) = problem(53, "dot", heads=(2, 2))
    dropping = compiled("causal", dropout=0.4, seed=3)
    here, there = (
        dropping([*moved(query, key, by), value]) for by in (np.zeros(T), np.full(T, 100.0))
    )
    assert_close(of_tokens(here), of_tokens(there))
    kept = compiled("causal")([*moved(query, key, np.zeros(T)), value])
    assert np.abs(here[0] - kept[0]).max() > 0.1
