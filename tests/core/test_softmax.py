"""masked_softmax against the oracle."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from tests import reference
from tests.helpers.paths import PATHS
from tests.helpers.tensors import FLOATS, both_ways, numpy
from tfattn import attend, masked_softmax, masks, normalizers


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


EPSILON = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-14}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rank=st.sampled_from([3, 4]),
    dtype=st.sampled_from(FLOATS),
    mask_rank=st.sampled_from([None, 2, 3, 4]),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    scale=st.sampled_from([1.0, 100.0]),
)
def test_equals_the_oracle(seed, rank, dtype, mask_rank, share, scale):
    rng = np.random.default_rng(seed)
    shape = (2, 3, 5, 7)[4 - rank :]
    scores = keras.ops.cast(rng.normal(size=shape) * scale, dtype)
    mask = None
    if mask_rank is not None and mask_rank <= rank:
        mask = (
            rng.random(shape[rank - mask_rank :] if mask_rank != 3 else (shape[0], *shape[-2:]))
            < share
        )
    spread = mask[:, None] if mask is not None and mask.ndim == 3 and rank == 4 else mask
    expected = reference.softmax(numpy(scores).astype("float64"), spread)
    weights = masked_softmax(scores, mask=mask)
    assert keras.backend.standardize_dtype(weights.dtype) == dtype
    np.testing.assert_allclose(numpy(weights), expected, atol=EPSILON[dtype])
    if mask is not None:
        assert np.all(np.asarray(weights)[~np.broadcast_to(spread, shape)] == 0)


@pytest.mark.parametrize("lengths", [[2, 3], [0, 3], [[1, 3], [2, 4]]], ids=str)
def test_lengths_of_rows_or_queries_repeat_for_the_heads(lengths):
    scores, visible = draw(2, 3, 2, 4), reference.padding(lengths, 4)
    weights = masked_softmax(scores, valid_lens=np.array(lengths))
    np.testing.assert_allclose(weights, reference.softmax(scores, visible[:, None]), atol=1e-6)
    weights = masked_softmax(scores[:, 0], valid_lens=np.array(lengths))
    np.testing.assert_allclose(weights, reference.softmax(scores[:, 0], visible), atol=1e-6)


def test_lengths_and_mask_join():
    scores = np.zeros((1, 4, 4), "float32")
    weights = masked_softmax(scores, valid_lens=np.array([3]), mask=masks.causal())
    expected = reference.softmax(scores, reference.causal(4, 4) & reference.padding([3], 4))
    np.testing.assert_allclose(weights, expected, atol=1e-6)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 1e38])
def test_what_lies_under_the_mask_reaches_neither_weights_nor_gradient(broken):
    scores = np.zeros((1, 2, 4), "float32")
    scores[..., 2:] = broken

    def squares(scores):
        weights = masked_softmax(scores, valid_lens=np.array([2]))
        return ops.sum(weights**2), weights

    (_, weights), (gradient,) = both_ways(squares, [scores], has_aux=True)
    np.testing.assert_array_equal(weights, [[[0.5, 0.5, 0, 0]] * 2])
    np.testing.assert_array_equal(gradient, np.zeros((1, 2, 4)))


def test_visible_nan_is_not_hidden():
    scores = np.array([[[0.0, np.nan, 0.0]]], "float32")
    weights = np.asarray(masked_softmax(scores, valid_lens=np.array([2])))
    assert np.isnan(weights[0, 0, 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_row_without_keys_is_exactly_zero_with_zero_gradient(dtype):
    scores = ops.cast(np.random.default_rng(0).normal(size=(1, 2, 4)), dtype)

    def functional(scores):
        weights = masked_softmax(scores, valid_lens=np.array([[0, 4]]))
        return ops.sum(ops.cast(weights, "float32") * ops.arange(4, dtype="float32")), weights

    (_, weights), (gradient,) = both_ways(functional, [scores], has_aux=True)
    assert np.all(numpy(weights)[0, 0] == 0)
    gradient = numpy(gradient)
    assert np.all(gradient[0, 0] == 0)
    assert np.all(np.isfinite(gradient))
    assert np.any(gradient[0, 1] != 0)


def test_score_of_minus_infinity_counts_as_masked():
    scores = np.array([[[-np.inf, 0.0, 0.0], [-np.inf] * 3]], "float32")
    np.testing.assert_array_equal(masked_softmax(scores), [[[0, 0.5, 0.5], [0, 0, 0]]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"mask": np.zeros((3, 4), bool)},
            r"`mask` must have shape \(T, S\) or \(B, T, S\), here \(2, 4\)",
        ),
        ({"mask": np.zeros((1, 1, 2, 4), bool)}, "`mask` must have shape"),
        (
            {"valid_lens": np.array([1, 2, 3])},
            r"`valid_lens` must have shape \(B,\) or \(B, T\), here \(5,\)",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        masked_softmax(np.zeros((5, 2, 4), "float32"), **arguments)


def test_scores_of_another_rank_are_refused():
    with pytest.raises(
        ValueError, match=r"masked_softmax: `scores` must have shape \(B, T, S\) or \(B, H, T, S\)"
    ):
        masked_softmax(np.zeros((2, 4), "float32"))


def test_the_only_key_gets_all_the_weight_without_a_warning():
    np.testing.assert_array_equal(
        masked_softmax(np.array([[[-3.0], [5.0]]], "float32")), [[[1], [1]]]
    )
    np.testing.assert_array_equal(
        masked_softmax(np.zeros((1, 2, 1), "float32"), valid_lens=np.array([[0, 1]])), [[[0], [1]]]
    )


LOW = float(np.finfo("float32").min)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("low", [[LOW, LOW], [-3e38, -3e38], [-3.2e38, LOW]], ids=str)
def test_no_finite_bias_lifts_a_hidden_key(low, path):
    query, value = np.zeros((1, 1, 2), "float32"), np.array([[[1.0], [3.0], [9.0]]], "float32")
    bias, mask = np.array([[*low, 0.0]], "float32"), np.array([[True, True, False]])
    expected = 2.0 if low[0] == low[1] else 1.0
    options = {"mask": mask, "bias": bias, "path": path, "return_log_sum_exp": True}
    output, sums = attend(query, value, key=np.zeros((1, 3, 2), "float32"), **options)
    assert numpy(output).ravel().tolist() == [expected]
    assert numpy(sums).ravel() == pytest.approx(low[0])
    if path == "dense":
        weights = [masked_softmax(bias[None], mask=mask), normalizers.sparsemax(bias, mask)]
        for found in (*weights, normalizers.top_k(2)(bias, mask)):
            assert numpy(found).ravel()[0] == (0.5 if expected == 2.0 else 1.0)
