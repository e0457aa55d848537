"""Names of weights, and the error that lists all that do not fit."""

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.parity import close, randomized
from tfattn import MultiHeadAttention, TransformerEncoderBlock
from tfattn.convert import weights


def built(layer, width):
    layer.build((None, None, width))
    return randomized(layer)


def test_weights_arrays_are_named_by_their_paths_below_the_layer():
    names = list(weights.arrays(built(TransformerEncoderBlock(num_heads=2, hidden_dim=3), 4)))
    assert names[:2] == ["self_attention/query/kernel", "self_attention/query/bias"]
    assert names[-1] == "feed_forward_norm/norm/beta"
    assert list(weights.arrays(built(keras.layers.Dense(3, use_bias=False), 2))) == ["kernel"]


def test_weights_load_lists_all_mismatched_weights_in_one_error():
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


def test_weights_to_state_are_outputs_with_heads_side_by_side():
    layer = MultiHeadAttention(num_heads=2, key_dim=3, value_dim=5, output_shape=11)
    layer.build((None, None, 7), (None, None, 13))
    randomized(layer)
    own = weights.arrays(layer)
    names = ("query", "key", "value", "attention_output")
    parts = [("", layer, {f"{name}.": (name,) for name in names})]
    rows = weights.to_state(parts)
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
    for variable in layer.weights:
        variable.assign(keras.ops.zeros(variable.shape))
    weights.load_state(parts, rows)
    for name, array in weights.arrays(layer).items():
        np.testing.assert_array_equal(array, own[name])


def adapted(layer):
    """The layer with LoRA in each of its maps, and numbers in it."""
    for part in layer._flatten_layers():
        if hasattr(part, "enable_lora"):
            part.enable_lora(2)
    return randomized(layer)


def test_weights_arrays_with_lora_have_it_in_the_matrix():
    layer = adapted(built(keras.layers.Dense(3), 5))
    found = weights.arrays(layer)
    assert list(found) == ["kernel", "bias"]
    inputs = np.random.default_rng(0).normal(size=(2, 5)).astype("float32")
    np.testing.assert_allclose(inputs @ found["kernel"] + found["bias"], layer(inputs), rtol=1e-5)
    words = keras.layers.Embedding(7, 5)
    words.build((None, None))
    found = weights.arrays(adapted(words))
    assert list(found) == ["embeddings"]
    np.testing.assert_allclose(found["embeddings"], words(np.arange(7)), rtol=1e-5)


def test_from_keras_with_lora_computes_the_same():
    theirs = keras.layers.MultiHeadAttention(2, 3)
    rng = np.random.default_rng(0)
    query, value = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 11, 7))
    theirs(query, value)
    close(tfattn.convert.from_keras(adapted(theirs))(query, value), theirs(query, value))


def test_to_torch_with_lora_computes_the_same_and_goes_back():
    layer = adapted(built(TransformerEncoderBlock(num_heads=2, hidden_dim=3), 4))
    tokens = np.random.default_rng(0).normal(size=(2, 5, 4))
    back = tfattn.convert.from_torch(tfattn.convert.to_torch(layer), num_heads=2)
    close(back(tokens), layer(tokens))


@pytest.mark.parametrize(
    ("convert", "mode"), [(tfattn.convert.to_torch, "int8"), (tfattn.convert.to_keras, "int4")]
)
def test_converters_refuse_quantized_weights_by_name(convert, mode):
    layer = MultiHeadAttention(num_heads=2, key_dim=2)
    layer.build((None, None, 4), (None, None, 4))
    layer.value_dense.quantize(mode)
    expected = f"{convert.__name__}: `quantize` cannot be converted: value is {mode}"
    with pytest.raises(ValueError, match=expected):
        convert(layer)
