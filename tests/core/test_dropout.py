"""Dropout from few random bits, against the guarantees of Keras's dropout."""

import keras
import numpy as np
import pytest

from tests.helpers.tensors import both_ways, dtype_of, numpy, tf
from tfattn.layers.dropout import Dropout

ONES = np.ones((101, 103, 97), "float32")


@pytest.mark.parametrize("rate", [0.1, 0.001, 0.15, 0.5, 0.999])
def test_dropout_meets_rate_and_keeps_expected_sum(rate):
    output = np.asarray(Dropout(rate, seed=3)(ONES, training=True))
    dropped, kept = np.mean(output == 0), output[output != 0]
    # To within a fiftieth, and what chance adds to a million features.
    tolerance = min(rate, 1 - rate) / 50 + 5 * np.sqrt(rate * (1 - rate) / ONES.size)
    assert abs(dropped - rate) < tolerance
    assert len(np.unique(kept)) == 1
    np.testing.assert_allclose(kept[0], 1 / (1 - rate), rtol=0.021)
    assert abs(output.mean() - 1) < 5 * np.sqrt(rate / (1 - rate) / ONES.size)


def test_dropout_of_features_is_independent():
    rate = 0.3
    dropped = np.asarray(Dropout(rate, seed=5)(ONES, training=True)).reshape(-1) == 0
    # Neighbors come out of one random word.
    for distance in (1, 2, 3, 4, 97):
        both = np.mean(dropped[:-distance] & dropped[distance:])
        assert abs(both - dropped.mean() ** 2) < 5 * np.sqrt(0.09 * 0.91 / dropped.size)


def test_dropout_differs_by_call_and_repeats_by_seed():
    first, again = Dropout(0.3, seed=7), Dropout(0.3, seed=7)
    outputs = [np.asarray(first(ONES[0], training=True)) for _ in range(2)]
    assert np.any(outputs[0] != outputs[1])
    for output in outputs:
        np.testing.assert_array_equal(again(ONES[0], training=True), output)


def test_dropout_gradient_equals_output_of_ones():
    output, (gradient,) = both_ways(lambda x: Dropout(0.3)(x, training=True), [ONES[0]])
    np.testing.assert_array_equal(gradient, output)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_dropout_of_unknown_shape_under_xla_keeps_sizes():
    layer = Dropout(0.3, seed=1)
    run = tf.function(
        lambda x: layer(x, training=True),
        jit_compile=True,
        input_signature=[tf.TensorSpec((None, None, 5))],
    )
    for shape in ((2, 3, 5), (1, 1, 5), (7, 11, 5)):
        output = np.asarray(run(np.ones(shape, "float32")))
        assert output.shape == shape
        assert set(np.unique(output)) <= {0.0, np.float32(256 / 179)}
    assert np.any(output == 0) and np.any(output != 0)


def test_dropout_in_bfloat16_stays_bfloat16():
    output = Dropout(0.5, dtype="mixed_bfloat16")(ONES[0], training=True)
    assert dtype_of(output) == "bfloat16"
    assert set(np.unique(numpy(output))) == {0.0, 2.0}


def test_dropout_otherwise_equals_keras():
    layer = Dropout(0.3)
    np.testing.assert_array_equal(layer(ONES[0]), ONES[0])
    np.testing.assert_array_equal(Dropout(0.0)(ONES[0], training=True), ONES[0])
    output = np.asarray(Dropout(0.5, noise_shape=(None, 1, None))(ONES[:5], training=True))
    np.testing.assert_array_equal(output, np.broadcast_to(output[:, :1], output.shape))
    assert isinstance(layer, keras.layers.Dropout)


def test_dropout_at_rate_one_is_zero():
    try:
        keras.layers.Dropout(1.0)(ONES[0], training=True)
    except ValueError:
        pytest.skip("about newer versions of Keras, which take such a rate in a call")
    assert not np.any(Dropout(1.0)(ONES[0], training=True))


def test_dropped_nan_is_zero():
    found = numpy(Dropout(0.5, seed=1)(np.nan * ONES[0], training=True))
    assert 0.45 < np.mean(found == 0) < 0.55 and np.isnan(found[found != 0]).all()
