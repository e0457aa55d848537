"""masked_softmax against the oracle."""

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.helpers.paths import PATHS
from tests.helpers.tensors import FLOATS, both_ways, numpy
from tfattn import attend, masked_softmax, masks, normalizers


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


EPSILON = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-14}


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_under_any_mask_equals_oracle(dtype):
    rng = np.random.default_rng(0)
    for rank, mask_shape, share, scale in (
        (3, None, None, 1.0),
        (3, (5, 7), 0.8, 100.0),
        (3, (3, 5, 7), 0.3, 1.0),
        (4, (5, 7), 0.3, 1.0),
        (4, (2, 5, 7), 0.8, 1.0),
        (4, (2, 3, 5, 7), 0.3, 100.0),
        (4, (2, 3, 5, 7), 0.0, 1.0),
        (4, (2, 1, 1, 7), 1.0, 1.0),
    ):
        shape = (2, 3, 5, 7)[4 - rank :]
        scores = ops.cast(rng.normal(size=shape) * scale, dtype)
        mask = None if mask_shape is None else rng.random(mask_shape) < share
        spread = mask[:, None] if mask is not None and mask.ndim == 3 and rank == 4 else mask
        expected = reference.softmax(numpy(scores).astype("float64"), spread)
        weights = masked_softmax(scores, mask=mask)
        assert keras.backend.standardize_dtype(weights.dtype) == dtype
        np.testing.assert_allclose(numpy(weights), expected, atol=EPSILON[dtype])
        if mask is not None:
            assert np.all(numpy(weights)[~np.broadcast_to(spread, shape)] == 0)


def test_softmax_lengths_of_rows_or_queries_repeat_for_the_heads():
    scores = draw(2, 3, 2, 4)
    for lengths in ([2, 3], [0, 3], [[1, 3], [2, 4]]):
        visible, lengths = reference.padding(lengths, 4), np.array(lengths)
        weights = masked_softmax(scores, valid_lens=lengths)
        np.testing.assert_allclose(weights, reference.softmax(scores, visible[:, None]), atol=1e-6)
        weights = masked_softmax(scores[:, 0], valid_lens=lengths)
        np.testing.assert_allclose(weights, reference.softmax(scores[:, 0], visible), atol=1e-6)
    weights = masked_softmax(scores, valid_lens=np.array([3, 1]), mask=masks.causal())
    visible = reference.causal(2, 4) & reference.padding([3, 1], 4)[:, None]
    np.testing.assert_allclose(weights, reference.softmax(scores, visible), atol=1e-6)


def test_softmax_hidden_score_reaches_neither_weights_nor_gradient():
    for broken in (np.nan, np.inf, -np.inf, 1e38):
        scores = np.zeros((1, 2, 4), "float32")
        scores[..., 2:] = broken

        def squares(scores):
            weights = masked_softmax(scores, valid_lens=np.array([2]))
            return ops.sum(weights**2), weights

        (_, weights), (gradient,) = both_ways(squares, [scores], has_aux=True)
        np.testing.assert_array_equal(weights, [[[0.5, 0.5, 0, 0]] * 2])
        np.testing.assert_array_equal(gradient, np.zeros((1, 2, 4)))


def test_softmax_visible_nan_stays_nan():
    scores = np.array([[[0.0, np.nan, 0.0]]], "float32")
    weights = np.asarray(masked_softmax(scores, valid_lens=np.array([2])))
    assert np.isnan(weights[0, 0, 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_fully_masked_is_zero_with_zero_gradient(dtype):
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


def test_softmax_score_of_minus_infinity_counts_as_masked():
    scores = np.array([[[-np.inf, 0.0, 0.0], [-np.inf] * 3]], "float32")
    np.testing.assert_array_equal(masked_softmax(scores), [[[0, 0.5, 0.5], [0, 0, 0]]])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"mask": np.zeros((3, 4), bool)},
            r"`mask` must .* or \(B, T, S\), here \(2, 4\)",
        ),
        ({"mask": np.zeros((1, 1, 2, 4), bool)}, "`mask` must have shape"),
        ({"valid_lens": np.array([1, 2, 3])}, r"`valid_lens` must .* \(B, T\), here \(5,\)"),
        ({"scores": np.zeros((2, 4))}, r"`scores` must .* \(B, T, S\) or \(B, H, T, S\)"),
    ],
)
def test_softmax_arguments_of_wrong_shape_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"masked_softmax: {message}"):
        masked_softmax(**{"scores": np.zeros((5, 2, 4), "float32"), **arguments})


def test_softmax_only_key_gets_all_the_weight_without_a_warning():
    np.testing.assert_array_equal(
        masked_softmax(np.array([[[-3.0], [5.0]]], "float32")), [[[1], [1]]]
    )
    np.testing.assert_array_equal(
        masked_softmax(np.zeros((1, 2, 1), "float32"), valid_lens=np.array([[0, 1]])), [[[0], [1]]]
    )


LOW = float(np.finfo("float32").min)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("low", [[LOW, LOW], [-3e38, -3e38], [-3.2e38, LOW]], ids=str)
def test_softmax_no_finite_bias_lifts_a_hidden_key(low, path):
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
