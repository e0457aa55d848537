"""Masks of 0 and 1, which Keras's users pass as often as booleans."""

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.refusals import message
from tests.helpers.tensors import as_tensor, tf
from tests.layers.test_multi_head import draw
from tfattn import masks

B, T, S, D = 2, 3, 7, 5
QUERY, VALUE = draw(B, T, D), draw(B, S, D, seed=1)
LAYERS = {"MultiHeadAttention": lambda: tfattn.MultiHeadAttention(2, 3, seed=1)}
LAYERS["DotProductAttention"] = tfattn.DotProductAttention
SEEN = np.random.default_rng(2).random((B, T, S)) < 0.5
REAL = np.random.default_rng(3).random((B, S)) < 0.5
EXPECTED = "be boolean, or hold 0 and 1, with 1 where attention is allowed"

ARGUMENTS = {
    "attention_mask": SEEN,
    "key_mask": REAL,
    "value_mask": REAL,
    "query_mask": REAL[:, :T],
}


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("name", LAYERS)
def test_ones_and_zeros_are_true_and_false(name, argument):
    layer, mask = LAYERS[name](), ARGUMENTS[argument]
    expected = layer(QUERY, VALUE, **{argument: mask})
    arrays = [mask.astype(dtype) for dtype in ("int32", "int64", "uint8", "int8")]
    for given in (*arrays, as_tensor(arrays[0])):
        output = layer(QUERY, VALUE, **{argument: given})
        np.testing.assert_array_equal(output, expected)
    if argument == "query_mask":
        assert keras.backend.standardize_dtype(output._keras_mask.dtype) == "bool"


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("name", LAYERS)
def test_other_integers_are_refused(name, argument):
    mask = ARGUMENTS[argument].astype("int32")
    for wrong in (2, -1, 10_000):
        mask[-1, -1] = wrong
        pattern = message(name, argument, EXPECTED, wrong)
        with pytest.raises(ValueError, match=pattern):
            LAYERS[name]()(QUERY, VALUE, **{argument: mask})


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_floats_are_refused_even_zeros_and_ones(argument):
    mask = as_tensor(ARGUMENTS[argument].astype("float32"))
    with pytest.raises(ValueError, match=f"`{argument}` must be boolean, True where attention is"):
        tfattn.DotProductAttention()(QUERY, VALUE, **{argument: mask})


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_in_a_graph_whatever_is_not_zero_is_true(jit):
    layer = tfattn.MultiHeadAttention(2, 3)
    layer.build(QUERY.shape, VALUE.shape)

    @tf.function(jit_compile=jit)
    def run(mask):
        return layer(QUERY, VALUE, attention_mask=mask)

    expected = layer(QUERY, VALUE, attention_mask=SEEN)
    for mask in (SEEN.astype("int32"), 3 * SEEN.astype("int32")):
        np.testing.assert_allclose(run(mask), expected, atol=1e-6)


def test_a_symbolic_mask_may_be_of_integers():
    query, value = keras.Input((T, D)), keras.Input((S, D))
    mask = keras.Input((T, S), dtype="int32")
    layer = tfattn.MultiHeadAttention(2, 3)
    model = keras.Model([query, value, mask], layer(query, value, attention_mask=mask))
    output = model([QUERY, VALUE, SEEN.astype("int32")])
    np.testing.assert_allclose(output, layer(QUERY, VALUE, attention_mask=SEEN), atol=1e-6)


def test_the_engine_and_mask_objects_take_them_too():
    ints = SEEN.astype("int32")
    expected = tfattn.attend(QUERY, VALUE, mask=SEEN)
    np.testing.assert_array_equal(tfattn.attend(QUERY, VALUE, mask=ints), expected)
    np.testing.assert_array_equal(tfattn.attend(QUERY, VALUE, mask=masks.explicit(ints)), expected)
    scores = draw(B, T, S)
    np.testing.assert_array_equal(
        tfattn.masked_softmax(scores, mask=ints), tfattn.masked_softmax(scores, mask=SEEN)
    )
    joined = masks.causal() & ints
    np.testing.assert_array_equal(joined.dense(T, S), (masks.causal() & SEEN).dense(T, S))
    for wrong in (
        lambda: tfattn.attend(QUERY, VALUE, mask=2 * ints),
        lambda: masks.explicit(2 * ints),
        lambda: tfattn.masked_softmax(scores, mask=2 * ints),
    ):
        with pytest.raises(ValueError, match=f"`mask` must {EXPECTED}. Received: mask=2"):
            wrong()


def test_an_empty_mask_is_no_error():
    empty = np.zeros((0, T, S), "int32")
    output = tfattn.attend(QUERY[:0], VALUE[:0], mask=empty)
    assert output.shape == (0, T, D)


@pytest.mark.slow
def test_blocks_and_recurrent_decoders_take_them_too():
    block, real = tfattn.TransformerEncoderBlock(5, 7), REAL[:, :T].astype("int32")
    np.testing.assert_array_equal(block(QUERY, mask=real), block(QUERY, mask=real != 0))
    decoder = tfattn.RecurrentDecoder(vocabulary_size=17, width=5, units=11)
    ids, memory_mask = np.array([[3, 4], [5, 6]]), REAL.astype("int32")
    expected = decoder(ids, VALUE, memory_mask=REAL)
    np.testing.assert_array_equal(decoder(ids, VALUE, memory_mask=memory_mask), expected)
