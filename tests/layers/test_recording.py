"""attention_weights: the weights of every layer of a model, in one call."""

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.tensors import tf
from tests.layers.test_multi_head import draw

INPUTS = [draw(2, 3, 5), draw(2, 7, 5)]


def model_of_two_layers():
    query, value = keras.Input((None, 5)), keras.Input((None, 5))
    first = tfattn.DotProductAttention(name="first")(query, value)
    second = tfattn.MultiHeadAttention(2, 3, name="second")(first, value, use_causal_mask=True)
    return keras.Model([query, value], second)


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_attention_weights_of_a_loaded_model_come_by_layer_and_change_no_output(tmp_path):
    model = model_of_two_layers()
    before = model(INPUTS)
    weights = tfattn.attention_weights(model, INPUTS)
    assert {name: w.shape for name, w in weights.items()} == {
        "first": (2, 3, 7),
        "second": (2, 2, 3, 7),
    }
    for w in weights.values():
        np.testing.assert_allclose(w.sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(before, model(INPUTS))
    model.save(tmp_path / "model.keras")
    loaded = tfattn.attention_weights(keras.models.load_model(tmp_path / "model.keras"), INPUTS)
    for name, array in weights.items():
        np.testing.assert_array_equal(loaded[name], array)


def test_attention_weights_of_a_layer_called_twice_appear_twice():
    layer = tfattn.DotProductAttention(name="shared")
    tokens = keras.Input((None, 5))
    model = keras.Model(tokens, layer(layer(tokens, tokens), tokens))
    assert list(tfattn.attention_weights(model, draw(2, 3, 5))) == ["shared", "shared:1"]


def test_attention_weights_outside_of_the_call_are_not_collected():
    layer = tfattn.DotProductAttention(name="alone")
    tfattn.attention_weights(layer, draw(1, 2, 3), draw(1, 2, 3))
    assert layer(draw(1, 2, 3), draw(1, 2, 3)).shape == (1, 2, 3)


def test_attention_weights_without_attention_name_what_is_missing():
    model = keras.Sequential([keras.layers.Dense(3)])
    said = r"`model` must hold attention layers of this package or of Keras\. Received: model="
    with pytest.raises(ValueError, match=said):
        tfattn.attention_weights(model, draw(2, 3, 5))


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "layer, inputs",
    [
        (tfattn.DotProductAttention(), (draw(2, 3, 5), draw(2, 7, 5))),
        (tfattn.RecurrentDecoder(7, width=2, units=3), (np.array([[1, 2]]), draw(1, 3, 5))),
    ],
)
def test_attention_weights_in_a_graph_name_the_graph(layer, inputs):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = layer

        @tf.function
        def call(self, first, second):
            return self.layer(first, second)

    with pytest.raises(ValueError, match="and run them eagerly .a `call` under tf"):
        tfattn.attention_weights(Model(), *inputs)
