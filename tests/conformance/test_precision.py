"""Half precision equals float32 up to rounding; outputs have the compute dtype."""

import keras
import numpy as np
import pytest

from tests.conformance.table import NUMERIC, OF_A_CLASS, numbers

# Spacing of the numbers around 1: 2^-10 in float16, 2^-7 in bfloat16.
SPACING = {"mixed_float16": 2.0**-10, "mixed_bfloat16": 2.0**-7}
ROWS = {
    "mixed_float16": [*OF_A_CLASS, *(row for row in NUMERIC if row not in OF_A_CLASS)],
    "mixed_bfloat16": [row for row in OF_A_CLASS if row.kind in ("attention", "score")],
}


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
        for policy, rows in ROWS.items()
        for row in rows
    ],
)
def test_layer_in_half_precision_agrees_with_float32(row, policy):
    exact, mixed = pair(row, policy)
    dtypes = {keras.backend.standardize_dtype(w.dtype) for w in mixed.trainable_weights}
    assert dtypes <= {"float32"}
    inputs = row.arrays()
    asked = {"return_attention_scores": True} if row.weights else {}
    found, wanted = (
        keras.tree.flatten(row.call(layer, inputs, **asked)) for layer in (mixed, exact)
    )
    # Scores may be float32, like the softmax.
    wider = {"float32"} if row.kind == "score" else set()
    assert keras.backend.standardize_dtype(found[0].dtype) in {mixed.compute_dtype} | wider
    for got, expected in zip(map(numbers, found), map(numbers, wanted), strict=True):
        close(got, expected, policy)
    for got, expected in zip(map(numbers, found[1:]), map(numbers, wanted[1:]), strict=True):
        close(got.sum(-1), expected.sum(-1), policy)
    if row.kind == "attention":
        large = numbers(row.call(mixed, [30 * x for x in inputs]))
        assert np.isfinite(large).all()
