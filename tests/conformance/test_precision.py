"""Half precision equals float32 up to rounding; outputs have the compute dtype."""

import keras
import numpy as np
import pytest

from tests.conformance.policies import numbers
from tests.conformance.table import ROWS, Regressor, first_of_each_class

# Spacing of the numbers around 1: 2^-10 in float16, 2^-7 in bfloat16.
SPACING = {"mixed_float16": 2.0**-10, "mixed_bfloat16": 2.0**-7}
OF_A_CLASS = [row for row in ROWS if row in first_of_each_class()]


def pair(row, policy):
    """The same weights under float32 and under `policy`."""
    exact, mixed = row.shared(), row.shared(policy)
    mixed.set_weights([np.asarray(weight.value) for weight in exact.weights])
    return exact, mixed


def close(mixed, exact, policy):
    # A few rounding errors of the largest summand.
    tolerance = 16 * SPACING[policy] * max(1.0, np.abs(exact).max())
    np.testing.assert_allclose(mixed, exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "row, policy",
    [
        pytest.param(row, policy, id=f"{row.name}-{policy}")
        for policy in SPACING
        for row in (ROWS if policy == "mixed_float16" else OF_A_CLASS)
    ],
)
def test_half_precision_agrees_with_float32(row, policy):
    exact, mixed = pair(row, policy)
    dtypes = {keras.backend.standardize_dtype(w.dtype) for w in mixed.trainable_weights}
    assert dtypes <= {"float32"}
    inputs = row.arrays()
    output = row.call(mixed, inputs)
    # Scores may be float32, like the softmax.
    wider = {"float32"} if row.kind == "score" else set()
    assert keras.backend.standardize_dtype(output.dtype) in {mixed.compute_dtype} | wider
    close(numbers(output), numbers(row.call(exact, inputs)), policy)
    if row.weights:
        results = zip(
            row.call(mixed, inputs, return_attention_scores=True)[1:],
            row.call(exact, inputs, return_attention_scores=True)[1:],
            strict=True,
        )
        for got, wanted in results:
            close(numbers(got), numbers(wanted), policy)
            close(numbers(got).sum(-1), numbers(wanted).sum(-1), policy)
    if row.kind == "attention":
        large = numbers(row.call(mixed, [30 * x for x in inputs]))
        assert np.isfinite(large).all()


@pytest.mark.slow
@pytest.mark.parametrize("policy", SPACING)
def test_regressor_in_half_precision_agrees_with_float32(policy):
    exact, mixed = Regressor.fitted(), Regressor.fitted(dtype=policy)
    mixed.set_weights([np.asarray(weight.value) for weight in exact.weights])
    points = Regressor.points()
    close(numbers(mixed(points)), numbers(exact(points)), policy)
