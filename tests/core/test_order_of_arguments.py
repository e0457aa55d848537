"""Query, value, key: Keras's order, where much that is written says queries, keys, values; and
where weights are found. What docstrings say of both: `test_public_face.py`.
"""

import re

import keras
import numpy as np
import pytest

import tfattn
from tests.layers.test_multi_head import draw

B, T, S, D = 2, 1, 10, 2
QUERY, KEY, VALUE = draw(B, T, D), draw(B, S, D, seed=1), draw(B, S, 4, seed=2)
LAYERS = {
    "MultiHeadAttention": lambda: tfattn.MultiHeadAttention(2, 3),
    "Attention": tfattn.Attention,
    "DotProductAttention": tfattn.DotProductAttention,
    "AdditiveAttention": lambda: tfattn.AdditiveAttention(units=8),
    "BilinearAttention": tfattn.BilinearAttention,
    "NadarayaWatson": tfattn.NadarayaWatson,
}
ORDER = "the order is query, value, key; lengths are passed as `valid_lens=`"
each = pytest.mark.parametrize("name", LAYERS)


@each
def test_layer_lengths_as_third_argument_are_told_from_a_key(name):
    for lengths in (np.array([2, 6]), np.array([[2], [6]])):
        shape = re.escape(str(lengths.shape))
        pattern = rf"{name}: `key` must .*{ORDER}\). Received: key={shape}"
        with pytest.raises(ValueError, match=pattern):
            LAYERS[name]()(QUERY, KEY, lengths)
        symbols = [keras.KerasTensor(x.shape, x.dtype.name) for x in (QUERY, KEY, lengths)]
        with pytest.raises(ValueError, match=pattern):
            LAYERS[name]()(*symbols)


@pytest.mark.parametrize("name", ["MultiHeadAttention", "AdditiveAttention", "BilinearAttention"])
def test_layer_lengths_as_fourth_argument_are_told_from_a_mask(name):
    with pytest.raises(ValueError, match=rf"{name}: `query_mask` must .*{ORDER}"):
        LAYERS[name]()(QUERY, KEY, VALUE, np.array([2, 6]))
    with pytest.raises(ValueError, match=rf"{name}: `query_mask` must be boolean, or hold 0 and 1"):
        LAYERS[name]()(QUERY, KEY, VALUE, np.array([[2], [6]]))


def test_attend_takes_a_key_by_name_only():
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        tfattn.attend(QUERY, KEY, VALUE)


@each
def test_layer_arguments_by_name_give_what_is_meant(name):
    layer, value = LAYERS[name](), VALUE if name != "NadarayaWatson" else VALUE[..., :1]
    call = {"valid_lens": np.array([2, 6]), "return_attention_scores": True}
    output, weights = layer(query=QUERY, key=KEY, value=value, **call)
    assert np.all(np.asarray(weights)[0, ..., 2:] == 0)
    assert np.all(np.asarray(weights)[1, ..., 6:] == 0)
    if name != "MultiHeadAttention":
        assert output.shape == (B, T, value.shape[-1])


@each
def test_layer_asked_for_its_weights_says_where_they_are(name):
    layer = LAYERS[name]()
    pattern = f"{name}: .*`return_attention_scores=True`.*`tfattn.attention_weights"
    with pytest.raises(AttributeError, match=pattern):
        layer.attention_weights  # noqa: B018
    assert not hasattr(layer, "attention_weights")
