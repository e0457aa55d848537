"""The two ways to pool on the way forward: plain sums of exponentials, and merges, for the queries
whose sums would not do.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.streaming import T, assert_close, problem, pulled, wide
from tfattn import masks
from tfattn.core import scores as score_functions
from tfattn.core.paths.blockwise import attend as streamed
from tfattn.core.paths.blockwise import block_scores

# By how much the scores of a query are moved: a softmax does not change, its exponentials overflow
# or vanish.
MOVES = {
    "none": np.zeros(T),
    "up": np.full(T, 100.0),
    "far down": np.full(T, -150.0),
    "each query by its own": np.resize([0.0, -120.0, 30.0, 95.0, -25.0, 60.0, -8.0], T),
}
RULES = {
    "none": lambda: None,
    "causal": masks.causal,
    "some see nothing": lambda: (
        masks.explicit(np.arange(T)[:, None] % 3 > 0) & masks.padding([17, 5])
    ),
}


def moved(arguments, by):
    """Queries and keys of one more number, whose product is `by` for each query."""
    query, key, *rest = arguments
    by = tf.broadcast_to(tf.constant(by, query.dtype)[:, None], (*query.shape[:-1], 1))
    return [tf.concat([query, by], -1), tf.concat([key, tf.ones_like(key[..., :1])], -1), *rest]


def of_tokens(found):
    """Without the gradients of what `moved` has put there: sums of large numbers that cancel."""
    output, query, key, *rest = found
    return [output, query[..., :-1], key[..., :-1], *rest]


@pytest.mark.parametrize(
    ("move", "rule", "jit"),
    [
        *((move, rule, False) for move in MOVES for rule in RULES),
        ("each query by its own", "some see nothing", True),
    ],
)
def test_scores_of_any_size_give_the_dense_result_and_gradients(move, rule, jit):
    function, arguments = problem(37, "dot", dtype="float64" if jit else "float32")
    arguments = moved(arguments, MOVES[move])
    run = tf.function(
        lambda arguments: pulled(function, arguments, RULES[rule](), "streamed"), jit_compile=jit
    )
    found = of_tokens(run(arguments))
    assert_close(found, of_tokens(pulled(function, wide(arguments), RULES[rule](), "dense")))
    if rule == "some see nothing":
        assert (found[0].numpy()[:, :, ::3] == 0).all() and (found[1].numpy()[:, :, ::3] == 0).all()


def test_a_block_is_computed_again_where_the_sums_of_a_query_would_not_do(monkeypatch):
    calls, scores = [], block_scores.Dot.scores

    def counted(*arguments):
        calls.append(1)
        return scores(*arguments)

    def counted_kernel(query, key):
        calls.append(1)
        return score_functions.dot_product(query, key)

    monkeypatch.setattr(block_scores.Dot, "scores", counted)

    def blocks(by, mask=None, score=score_functions.dot_product):
        calls.clear()
        _, (query, key, value) = problem(41, "dot", heads=(1, 1))
        query, key = moved([query[:1, :, :12], key[:1, :, :12]], by)
        streamed.attend(query, value[:1, :, :12], key, score, mask=mask, block=(4, 4))
        return len(calls)

    assert blocks(np.zeros(12)) == 9
    assert blocks(np.full(12, 100.0)) == 18
    assert blocks(np.where(np.arange(12) == 5, -100.0, 0.0)) == 12
    # No keys is no reason: that their sum is 0 is right.
    assert blocks(np.zeros(12), masks.explicit(np.arange(12)[:, None] > 1)) == 9
    assert (
        blocks(
            np.where(np.arange(12) == 5, -100.0, 0.0), masks.explicit(np.arange(12)[:, None] > 1)
        )
        == 12
    )
    # A score of which nothing is known, as a kernel's far from its keys, is merged at once.
    assert blocks(np.full(12, -100.0), score=counted_kernel) == 9


def test_a_query_of_large_scores_changes_no_bit_of_its_neighbours():
    function, arguments = problem(43, "dot")
    others = np.arange(T) != 6
    plain, beside = (
        pulled(function, moved(arguments, by), None, "streamed")[0].numpy()[:, :, others]
        for by in (np.zeros(T), np.where(others, 0.0, 100.0))
    )
    np.testing.assert_array_equal(beside, plain)


@pytest.mark.parametrize(
    ("size", "by"), [(1e-30, 0), (1e15, 0), (1e38, 0), (1e-28, -8), (1e-31, -20), (1e30, 60)]
)
def test_values_of_any_size_neither_vanish_nor_overflow(size, by):
    function, (query, key, value) = problem(47, "dot")
    arguments = [*moved([query, key], np.full(T, by)), tf.clip_by_value(value, -3.0, 3.0) * size]
    here = pulled(function, arguments, masks.causal(), "streamed")[0]
    there = pulled(function, wide(arguments), masks.causal(), "dense")[0]
    np.testing.assert_allclose(here / size, there / size, 2e-4, 2e-5)


def test_a_sum_that_overflows_where_no_exponential_and_no_pooled_value_does():
    query, key = moved(
        [tf.zeros((1, 1, 4, 3)), tf.zeros((1, 1, 9, 3))], np.full(4, 88.5)
    )  # exp(88.5) is 0.8 of the most
    output = streamed.attend(query, tf.fill((1, 1, 9, 2), 0.01), key, score_functions.dot_product)
    np.testing.assert_allclose(output, np.full((1, 1, 4, 2), 0.01), 1e-5)


def test_both_ways_drop_the_same_weights():
    function, arguments = problem(53, "dot")
    here, there = (
        pulled(function, moved(arguments, by), masks.causal(), "streamed", dropout=0.4, seed=3)
        for by in (np.zeros(T), np.full(T, 100.0))
    )
    assert_close(of_tokens(here), of_tokens(there))
    kept = pulled(function, moved(arguments, np.zeros(T)), masks.causal(), "streamed")
    assert np.abs(here[0] - kept[0]).max() > 0.1
