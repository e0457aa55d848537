"""Masks of 0 and 1, which Keras's users pass as often as booleans."""

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.refusals import message
from tests.helpers.tensors import as_tensor, compiled
from tests.layers.test_multi_head import draw
from tfattn import masks

B, T, S, D = 2, 3, 7, 5
QUERY, VALUE = draw(B, T, D), draw(B, S, D, seed=1)
SEEN = np.random.default_rng(2).random((B, T, S)) < 0.5
REAL = np.random.default_rng(3).random((B, S)) < 0.5
EXPECTED = "be boolean, or hold 0 and 1, with 1 where attention is allowed"

ARGUMENTS = {
    "attention_mask": SEEN,
    "key_mask": REAL,
    "value_mask": REAL,
    "query_mask": REAL[:, :T],
}


def layer():
    return tfattn.MultiHeadAttention(2, 3, seed=1)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_layer_mask_of_ones_and_zeros_is_true_and_false(argument):
    attention, mask = layer(), ARGUMENTS[argument]
    expected = attention(QUERY, VALUE, **{argument: mask})
    arrays = [mask.astype(dtype) for dtype in ("int32", "int64", "uint8", "int8")]
    for ones in (*arrays, as_tensor(arrays[0])):
        output = attention(QUERY, VALUE, **{argument: ones})
        np.testing.assert_array_equal(output, expected)
    if argument == "query_mask":
        assert keras.backend.standardize_dtype(output._keras_mask.dtype) == "bool"


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_layer_mask_of_other_integers_or_floats_is_refused(argument):
    mask = ARGUMENTS[argument].astype("int32")
    for wrong in (2, -1, 10_000):
        mask[-1, -1] = wrong
        pattern = message("MultiHeadAttention", argument, EXPECTED, wrong)
        with pytest.raises(ValueError, match=pattern):
            layer()(QUERY, VALUE, **{argument: mask})
    floats = as_tensor(ARGUMENTS[argument].astype("float32"))
    with pytest.raises(ValueError, match=f"`{argument}` must be boolean, True where attention is"):
        tfattn.DotProductAttention()(QUERY, VALUE, **{argument: floats})


@pytest.mark.tensorflow
def test_layer_mask_of_integers_in_a_graph_is_not_zero():
    attention = layer()
    expected = attention(QUERY, VALUE, attention_mask=SEEN)
    run = compiled(lambda mask: attention(QUERY, VALUE, attention_mask=mask))
    for factor in (1, 3):
        found = run(as_tensor(factor * SEEN.astype("int32")))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_layer_mask_of_integers_may_be_symbolic():
    attention = layer()
    query, value = keras.Input((T, D)), keras.Input((S, D))
    mask = keras.Input((T, S), dtype="int32")
    model = keras.Model([query, value, mask], attention(query, value, attention_mask=mask))
    expected = attention(QUERY, VALUE, attention_mask=SEEN)
    found = model([QUERY, VALUE, SEEN.astype("int32")])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_attend_and_mask_objects_take_masks_of_integers():
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
    empty = tfattn.attend(QUERY[:0], VALUE[:0], mask=np.zeros((0, T, S), "int32"))
    assert empty.shape == (0, T, D)
    for wrong in (
        lambda: tfattn.attend(QUERY, VALUE, mask=2 * ints),
        lambda: masks.explicit(2 * ints),
        lambda: tfattn.masked_softmax(scores, mask=2 * ints),
    ):
        with pytest.raises(ValueError, match=f"`mask` must {EXPECTED}. Received: mask=2"):
            wrong()


@pytest.mark.slow
def test_blocks_and_recurrent_decoders_take_masks_of_integers():
    block, real = tfattn.TransformerEncoderBlock(5, 7), REAL[:, :T].astype("int32")
    np.testing.assert_array_equal(block(QUERY, mask=real), block(QUERY, mask=real != 0))
    decoder = tfattn.RecurrentDecoder(vocabulary_size=17, width=5, units=11)
    ids, memory_mask = np.array([[3, 4], [5, 6]]), REAL.astype("int32")
    expected = decoder(ids, VALUE, memory_mask=REAL)
    np.testing.assert_array_equal(decoder(ids, VALUE, memory_mask=memory_mask), expected)
