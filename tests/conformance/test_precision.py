"""Half precision agrees with float32 within its rounding, and gives the compute dtype."""

import keras
import numpy as np
import pytest

from tests.conformance.table import ALL, ATTENTION, ROWS, WITH_WEIGHTS, Regressor, named

# Spacing of the numbers around 1: 2^-10 in float16, 2^-7 in bfloat16.
SPACING = {"mixed_float16": 2.0**-10, "mixed_bfloat16": 2.0**-7}
POLICIES = list(SPACING)


def numbers(tensor):
    return np.asarray(keras.ops.cast(tensor, "float32"))


def pair(row, policy):
    """The same weights under float32 and under `policy`."""
    exact, mixed = row.shared(), row.shared(policy)
    mixed.set_weights([np.asarray(weight.value) for weight in exact.weights])
    return exact, mixed


def close(mixed, exact, policy):
    # A few roundings, of numbers as large as the largest one that is summed.
    tolerance = 16 * SPACING[policy] * max(1.0, np.abs(exact).max())
    np.testing.assert_allclose(mixed, exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(**named(ROWS))
def test_half_precision_agrees_with_float32(row, policy):
    exact, mixed = pair(row, policy)
    inputs = row.arrays()
    output = row.call(mixed, inputs)
    # A score is for the softmax, which is computed in float32, and may be that wide already.
    wider = {"float32"} if row.kind == "score" else set()
    assert keras.backend.standardize_dtype(output.dtype) in {mixed.compute_dtype} | wider
    close(numbers(output), numbers(row.call(exact, inputs)), policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(**named(WITH_WEIGHTS))
def test_half_precision_weights_agree_with_float32_and_sum_to_one(row, policy):
    exact, mixed = pair(row, policy)
    inputs = row.arrays()
    results = zip(
        row.call(mixed, inputs, return_attention_scores=True)[1:],
        row.call(exact, inputs, return_attention_scores=True)[1:],
        strict=True,
    )
    for got, wanted in results:
        close(numbers(got), numbers(wanted), policy)
        close(numbers(got).sum(-1), numbers(wanted).sum(-1), policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(**named(ROWS))
def test_weights_stay_float32_under_a_mixed_policy(row, policy):
    assert {
        keras.backend.standardize_dtype(w.dtype) for w in row.shared(policy).trainable_weights
    } <= {"float32"}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(**named(ATTENTION))
def test_large_scores_do_not_overflow_half_precision(row, policy):
    exact, mixed = pair(row, policy)
    inputs = [30 * x for x in row.arrays()]
    output = numbers(row.call(mixed, inputs))
    assert np.isfinite(output).all()


@pytest.fixture(scope="module")
def exact_regressor():
    return Regressor.fitted()


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_regressor_in_half_precision_agrees_with_float32(policy, exact_regressor):
    exact, mixed = exact_regressor, Regressor.fitted(dtype=policy)
    mixed.set_weights([np.asarray(weight.value) for weight in exact.weights])
    points = Regressor.points()
    close(numbers(mixed(points)), numbers(exact(points)), policy)


def test_every_row_takes_a_policy_object():
    for row in ALL:
        assert row.make(dtype=keras.DTypePolicy("mixed_float16")).compute_dtype == "float16"
