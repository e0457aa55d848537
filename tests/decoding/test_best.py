"""The best few tokens, through blocks and without, against a stable sort in float64."""

import numpy as np
import pytest
from keras import ops

from tests.helpers.tensors import tf
from tfattn.decoding.best import best_tokens, log_probabilities

ROWS = 7


def in_numpy(logits, k):
    """(log-probabilities, ids), the best first, equals in order of ids."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    best, greatest = (
        np.asarray(x, "float64")
        for x in (np.take_along_axis(logits, ids, 1), logits.max(1, keepdims=True))
    )
    with np.errstate(invalid="ignore"):  # -inf less -inf, in a row without a token
        whole = np.log(np.exp(logits - greatest).sum(axis=1, keepdims=True)) + greatest
        return np.where(best == -np.inf, -np.inf, best - whole), ids


def some_logits(size):
    """Rows of four kinds, and a row without a possible token."""
    rng = np.random.default_rng(size)
    normal = rng.normal(size=(ROWS, size), scale=3.0)
    ties = rng.poisson(0.05, size=(ROWS, size))  # many zeros, few ones, and now and then a two
    few = np.where(rng.uniform(size=(ROWS, size)) < 5 / size, normal, -np.inf)
    none = np.full((1, size), -np.inf)
    return np.concatenate([normal, ties, few, normal * 1e4, none]).astype("float32")


@pytest.mark.parametrize("size", [3, 97, 2048, 2053, 2079])
def test_best_tokens_are_those_of_a_stable_sort(size):
    logits = some_logits(size)
    for k in (1, 5, 11):
        given = ops.convert_to_tensor(logits)
        found = best_tokens(log_probabilities(given, given), k)
        scores, ids = (ops.convert_to_numpy(x) for x in found)
        wanted_scores, wanted_ids = in_numpy(logits, k)
        there = min(k, size)
        np.testing.assert_allclose(scores[:, :there], wanted_scores, rtol=1e-5, atol=1e-5)
        assert (scores[:, there:] == -np.inf).all() and (scores <= 0).all()
        finite = wanted_scores > -np.inf
        np.testing.assert_array_equal(ids[:, :there][finite], wanted_ids[finite])


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("size", [3, 2053])
def test_best_tokens_of_an_unknown_number_are_the_same(size):
    @tf.function(input_signature=[tf.TensorSpec((None, None))])
    def unknown(logits):
        return best_tokens(logits, 5)

    logits = ops.convert_to_tensor(some_logits(size))
    for found, wanted in zip(unknown(logits), best_tokens(logits, 5), strict=True):
        np.testing.assert_allclose(found[:, : min(5, size)], wanted[:, : min(5, size)], rtol=1e-6)
