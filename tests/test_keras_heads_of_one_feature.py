"""Heads of one feature: Keras's layer is wrong on TensorFlow where there are as many tokens as
heads, and this one is not.

Keras adds the bias of a map by `keras.ops.add`, which has a short cut on TensorFlow: a second
operand with one axis longer than 1 is taken for a bias over channels, and added along the *second*
axis of the first where the sizes agree. A bias `(H, 1)` so goes along the tokens of `(B, T, H, 1)`
where T = H.
"""

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
from tests.test_multi_head import draw

H = 3
MENDED = (
    "Keras computes heads of one feature as it should now: say so on the page `coming-from-keras` "
    "and drop this test"
)
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")


def layers(key_dim, value_dim, tokens):
    theirs = keras.layers.MultiHeadAttention(
        H, key_dim, value_dim=value_dim, bias_initializer="random_normal", seed=1
    )
    theirs.build(tokens.shape, tokens.shape)
    ours = tfattn.MultiHeadAttention(H, key_dim, value_dim=value_dim)
    ours.build(tokens.shape, tokens.shape)
    ours.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(theirs.get_weights())])
    theirs.set_weights(ours.get_weights())
    return ours, theirs


SIZES = [(1, 1), (1, 5), (5, 1)]


@pytest.mark.parametrize("key_dim, value_dim", SIZES)
@pytest.mark.parametrize("length", [H - 1, H, H + 1])
@pytest.mark.parametrize("scores", [False, True])
def test_heads_of_one_feature_equal_the_oracle(key_dim, value_dim, length, scores):
    tokens = draw(2, length, 11)
    ours, _ = layers(key_dim, value_dim, tokens)
    output = ours(tokens, tokens, return_attention_scores=scores)
    output = output[0] if scores else output
    expected, _ = reference.multi_head(tokens, tokens, tokens, ours.get_weights())
    np.testing.assert_allclose(output, expected, atol=1e-4)


@on_tensorflow
@pytest.mark.parametrize("key_dim, value_dim", SIZES)
def test_keras_is_still_wrong_there(key_dim, value_dim):
    for length in (H - 1, H, H + 1):
        tokens = draw(2, length, 11)
        _, theirs = layers(key_dim, value_dim, tokens)
        expected, _ = reference.multi_head(tokens, tokens, tokens, theirs.get_weights())
        off = np.abs(np.asarray(theirs(tokens, tokens)) - expected).max()
        assert (off > 0.01) == (length == H), MENDED


@on_tensorflow
def test_it_is_the_addition_that_is_wrong():
    tokens, bias = np.zeros((2, H, H, 1), "float32"), np.arange(H, dtype="float32")[:, None]
    assert np.any(np.asarray(keras.ops.add(tokens, bias)) != tokens + bias), MENDED
