"""Round trips of Keras's attention layers with heads, and equal outputs."""

import inspect

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.parity import close, randomized, refused, same_weights, tokens
from tests.layers.test_keras_arguments import where_keras_has
from tfattn.convert import from_keras, to_keras

B, T, S = 2, 5, 7
DQ, DV, DK = 11, 13, 17

HEADS = {
    "plain": {"num_heads": 3, "key_dim": 2},
    "value_dim": {"num_heads": 3, "key_dim": 2, "value_dim": 5},
    "no bias": {"num_heads": 3, "key_dim": 2, "use_bias": False},
    "output_shape": {"num_heads": 3, "key_dim": 2, "output_shape": 19, "dropout": 0.2},
    "gate": {"num_heads": 3, "key_dim": 2, "use_gate": True},
}
GROUPS = {
    "two groups": {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2},
    "one group": {"head_dim": 3, "num_query_heads": 2, "num_key_value_heads": 1, "use_bias": False},
    "gate and groups": {
        "head_dim": 3,
        "num_query_heads": 4,
        "num_key_value_heads": 2,
        "use_gate": True,
    },
}


def operands():
    return tokens(B, T, DQ), tokens(B, S, DV, seed=2), tokens(B, S, DK, seed=3)


def with_heads(name):
    cls = keras.layers.MultiHeadAttention if name in HEADS else keras.layers.GroupQueryAttention
    options = {**HEADS, **GROUPS}[name]
    if not set(options) <= set(inspect.signature(cls.__init__).parameters):
        pytest.skip("the oldest Keras that is supported has no gate")
    layer = cls(**options)
    # Asked for the weights too: on JAX it hands values of another width than the keys' to a kernel
    # that does not take them.
    layer(*operands(), return_attention_scores=True)
    return randomized(layer)


def close_both(found, wanted):
    """The outputs, and the weights."""
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


REAL = np.arange(S) < np.array([[S - 2], [S]])


@pytest.mark.parametrize("name", [*HEADS, *GROUPS])
def test_from_keras_of_heads_computes_the_same_and_goes_back(name):
    theirs, (query, value, key) = with_heads(name), operands()
    ours = from_keras(theirs)
    assert (ours.name, ours.dropout) == (theirs.name, theirs.get_config()["dropout"])
    assert type(ours) is tfattn.MultiHeadAttention
    back = to_keras(ours)
    assert type(back) is type(theirs)
    same_weights(back, theirs)
    same_weights(from_keras(back), ours)
    for masks in ({}, {"value_mask": REAL}):
        call = {"return_attention_scores": True, **masks}
        wanted = theirs(query, value, key, **call)
        close_both(ours(query=query, value=value, key=key, **call), wanted)
        np.testing.assert_array_equal(back(query, value, key, **call)[0], wanted[0])


@pytest.mark.parametrize("axes", [None, (2,)])
def test_from_keras_of_attention_axes_computes_the_same_and_goes_back(axes):
    theirs = keras.layers.MultiHeadAttention(3, 2, attention_axes=axes, output_shape=(5, 2))
    x = tokens(B, T, S, DQ)
    theirs(x, x)
    ours = from_keras(randomized(theirs))
    close(ours(query=x, value=x), theirs(x, x))
    back = to_keras(ours)
    same_weights(back, theirs)
    np.testing.assert_array_equal(back(x, x), theirs(x, x))


@where_keras_has("sliding_window")
def test_from_keras_of_a_sliding_window_computes_the_same():
    theirs, x = keras.layers.MultiHeadAttention(3, 2, sliding_window=3), tokens(B, S, DQ)
    theirs(x, x)
    ours = from_keras(randomized(theirs))
    close(ours(query=x, value=x, use_causal_mask=True), theirs(x, x, use_causal_mask=True))
    assert to_keras(ours).get_config()["sliding_window"] == 3


def test_from_keras_keeps_regularizers_and_dtypes():
    theirs = keras.layers.MultiHeadAttention(2, 3, kernel_regularizer="l2", dtype="mixed_bfloat16")
    theirs(*operands())
    ours = from_keras(theirs)
    assert ours.dtype_policy.name == "mixed_bfloat16"
    assert to_keras(ours).get_config() == theirs.get_config()


def made(layer, width=DQ):
    layer(query=tokens(B, T, width), value=tokens(B, S, width, seed=2))
    return randomized(layer)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("score", tfattn.MultiHeadAttention(2, 3, score=tfattn.CosineScore())),
        ("score", tfattn.MultiHeadAttention(2, 3, score=tfattn.DotProductScore(scale=2.0))),
        ("positions", tfattn.MultiHeadAttention(2, 3, positions=tfattn.AlibiPositions())),
        ("value_dim", tfattn.MultiHeadAttention(2, 3, value_dim=5, num_key_value_heads=1)),
        ("output_shape", tfattn.MultiHeadAttention(2, 3, output_shape=5, num_key_value_heads=1)),
        ("normalizer", tfattn.MultiHeadAttention(2, 3, normalizer=tfattn.AttentionSinks())),
    ],
)
def test_to_keras_names_what_keras_has_not(name, layer):
    with refused(name):
        to_keras(made(layer))


def test_from_keras_and_to_keras_refuse_other_layers_and_unbuilt_ones():
    for convert in (from_keras, to_keras):
        with pytest.raises(ValueError, match=f"{convert.__name__}: `layer` must be one of"):
            convert(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="from_keras: `layer` must be built"):
        from_keras(keras.layers.MultiHeadAttention(2, 3))
    with pytest.raises(ValueError, match="to_keras: `layer` must be built"):
        to_keras(tfattn.MultiHeadAttention(2, 3))
