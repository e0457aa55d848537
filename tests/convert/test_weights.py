"""Names of weights, and the error that lists all that do not fit."""

import keras
import numpy as np
import pytest

from tests.convert.parity import randomised
from tfattn import MultiHeadAttention, TransformerEncoderBlock
from tfattn.convert import weights


def built(layer, width):
    layer.build((None, None, width))
    return randomised(layer)


def test_weights_are_named_by_their_paths_below_the_layer():
    names = list(weights.arrays(built(TransformerEncoderBlock(num_heads=2, hidden_dim=3), 4)))
    assert names[:2] == ["self_attention/query/kernel", "self_attention/query/bias"]
    assert names[-1] == "feed_forward_norm/norm/beta"


def test_a_layer_with_one_weight_keeps_its_name():
    assert list(weights.arrays(built(keras.layers.Dense(3, use_bias=False), 2))) == ["kernel"]


def test_one_error_lists_every_weight_that_does_not_fit():
    layer = MultiHeadAttention(num_heads=2, key_dim=3)
    layer.build((None, None, 5), (None, None, 7))
    before, state = weights.arrays(layer), weights.arrays(layer)
    state["query/kernel"] = np.zeros((11, 2, 3))
    state["value/bias"] = np.zeros((13,))
    del state["key/bias"]
    state["gate/kernel"] = np.zeros((17,))
    with pytest.raises(ValueError, match="who: the weights must have these shapes") as error:
        weights.load("who", layer, state)
    assert str(error.value).splitlines()[1:] == [
        "  query/kernel: expected (5, 2, 3), found (11, 2, 3)",
        "  key/bias: expected (2, 3), found none",
        "  value/bias: expected (2, 3), found (13,)",
        "  gate/kernel: expected none, found (17,)",
    ]
    for name, array in weights.arrays(layer).items():
        np.testing.assert_array_equal(array, before[name])


def test_rows_of_pytorch_are_outputs_with_heads_side_by_side():
    layer = MultiHeadAttention(num_heads=2, key_dim=3, value_dim=5, output_shape=11)
    layer.build((None, None, 7), (None, None, 13))
    randomised(layer)
    modules = {name: name for name in ("query", "key", "value", "attention_output")}
    rows, own = weights.to_rows(layer, modules), weights.arrays(layer)
    assert rows["query.weight"].shape == (6, 7)
    assert rows["value.weight"].shape == (10, 13)
    assert rows["attention_output.weight"].shape == (11, 10)
    query = np.random.default_rng(0).normal(size=7)
    heads = np.einsum("d,dhp->hp", query, own["query/kernel"]) + own["query/bias"]
    found = rows["query.weight"] @ query + rows["query.bias"]
    np.testing.assert_allclose(found, heads.reshape(-1), rtol=1e-5)
    pooled = np.random.default_rng(1).normal(size=(2, 5))
    wanted = np.einsum("hp,hpe->e", pooled, own["attention_output/kernel"])
    found = rows["attention_output.weight"] @ pooled.reshape(-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    back = weights.from_rows(layer, modules, rows)
    for name, array in own.items():
        np.testing.assert_array_equal(back[name], array)
