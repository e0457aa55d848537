"""Dropout from few random bits, against the guarantees of Keras's dropout."""

import keras
import numpy as np
import pytest

from tests.helpers.tensors import both_ways, dtype_of, numpy, tf
from tfattn.layers.dropout import Dropout

ONES = np.ones((101, 103, 97), "float32")


@pytest.mark.parametrize("rate", [0.1, 0.001, 0.15, 0.5, 0.999])
def test_the_rate_is_met_and_the_expected_sum_stays(rate):
    output = np.asarray(Dropout(rate, seed=3)(ONES, training=True))
    dropped, kept = np.mean(output == 0), output[output != 0]
    # To within a fiftieth, and what chance adds to a million features.
    tolerance = min(rate, 1 - rate) / 50 + 5 * np.sqrt(rate * (1 - rate) / ONES.size)
    assert abs(dropped - rate) < tolerance
    assert len(np.unique(kept)) == 1
    np.testing.assert_allclose(kept[0], 1 / (1 - rate), rtol=0.021)
    assert abs(output.mean() - 1) < 5 * np.sqrt(rate / (1 - rate) / ONES.size)


def test_features_are_dropped_independently():
    rate = 0.3
    dropped = np.asarray(Dropout(rate, seed=5)(ONES, training=True)).reshape(-1) == 0
    # Neighbors come out of one random word.
    for distance in (1, 2, 3, 4, 97):
        both = np.mean(dropped[:-distance] & dropped[distance:])
        assert abs(both - dropped.mean() ** 2) < 5 * np.sqrt(0.09 * 0.91 / dropped.size)


def test_calls_differ_and_a_seed_repeats_them():
    first, again = Dropout(0.3, seed=7), Dropout(0.3, seed=7)
    outputs = [np.asarray(first(ONES[0], training=True)) for _ in range(2)]
    assert np.any(outputs[0] != outputs[1])
    for output in outputs:
        np.testing.assert_array_equal(again(ONES[0], training=True), output)


def test_the_gradient_goes_where_the_output_does():
    output, (gradient,) = both_ways(lambda x: Dropout(0.3)(x, training=True), [ONES[0]])
    np.testing.assert_array_equal(gradient, output)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_unknown_shapes_and_sizes_that_no_word_divides():
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


def test_half_precision_stays_half():
    output = Dropout(0.5, dtype="mixed_bfloat16")(ONES[0], training=True)
    assert dtype_of(output) == "bfloat16"
    assert set(np.unique(numpy(output))) == {0.0, 2.0}


def test_everything_else_is_kerass():
    layer = Dropout(0.3)
    np.testing.assert_array_equal(layer(ONES[0]), ONES[0])
    np.testing.assert_array_equal(Dropout(0.0)(ONES[0], training=True), ONES[0])
    output = np.asarray(Dropout(0.5, noise_shape=(None, 1, None))(ONES[:5], training=True))
    np.testing.assert_array_equal(output, np.broadcast_to(output[:, :1], output.shape))
    assert isinstance(layer, keras.layers.Dropout)


def test_a_rate_of_one_drops_everything():
    try:
        keras.layers.Dropout(1.0)(ONES[0], training=True)
    except ValueError:
        pytest.skip("about newer versions of Keras, which take such a rate in a call")
    assert not np.any(Dropout(1.0)(ONES[0], training=True))
