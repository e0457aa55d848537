"""Attention over axes of images, videos and time series, compared to folded sequences.

`test_keras_arguments` compares it to Keras's layer.
"""

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
from tests.helpers.tensors import numpy, tf
from tests.layers.test_multi_head import draw
from tfattn import masks

SIZES = {"num_heads": 2, "key_dim": 5, "value_dim": 3}
IMAGE = draw(2, 3, 5, 11)


def test_attention_axes_one_of_three_equals_the_oracle():
    """Keras's softmax fails there on TensorFlow."""
    query, value = draw(2, 3, 5, 2, 11), draw(2, 3, 7, 2, 7, seed=1)
    layer = tfattn.MultiHeadAttention(attention_axes=2, bias_initializer="random_normal", **SIZES)
    output, weights = layer(query, value, return_attention_scores=True)
    for i, j in np.ndindex(3, 2):
        tokens, keys = query[:, i, :, j], value[:, i, :, j]
        expected = reference.multi_head(tokens, keys, keys, layer.get_weights())
        np.testing.assert_allclose(output[:, i, :, j], expected[0], atol=1e-5)
        np.testing.assert_allclose(weights[:, i, j], expected[1], atol=1e-5)


@pytest.mark.slow
def test_attention_axes_masks_and_positions_count_along_the_axis():
    video = draw(2, 7, 5, 11)  # time, place
    layer = tfattn.MultiHeadAttention(2, 4, attention_axes=1, positions=tfattn.AlibiPositions())
    plain = tfattn.MultiHeadAttention(2, 4, positions=tfattn.AlibiPositions())
    layer.build(video.shape, video.shape)
    plain.build((2, 7, 11), (2, 7, 11))
    plain.set_weights(layer.get_weights())
    per_place = np.array([[1, 2, 3, 4, 5], [7, 6, 5, 4, 3]])
    for one, many in (
        ({"use_causal_mask": True},) * 2,
        ({"valid_lens": np.array([3, 5])},) * 2,
        ({"valid_lens": lambda place: per_place[:, place]}, {"valid_lens": per_place}),
        ({"attention_mask": masks.window(2)},) * 2,
        ({"bias": tfattn.biases.alibi(2)},) * 2,
    ):
        output = layer(video, video, **many)
        for place in range(5):
            tokens = video[:, :, place]
            call = {k: v(place) if callable(v) and k == "valid_lens" else v for k, v in one.items()}
            np.testing.assert_allclose(
                output[:, :, place], plain(tokens, tokens, **call), atol=1e-5
            )


def test_attention_axes_several_are_read_row_by_row():
    layer, plain = (tfattn.MultiHeadAttention(2, 5) for _ in range(2))
    layer.build(IMAGE.shape, IMAGE.shape)
    plain.build((2, 15, 11), (2, 15, 11))
    plain.set_weights(layer.get_weights())
    tokens = IMAGE.reshape(2, 15, 11)
    for call in ({"use_causal_mask": True}, {"valid_lens": np.array([4, 9])}):
        np.testing.assert_allclose(
            layer(IMAGE, IMAGE, **call),
            numpy(plain(tokens, tokens, **call)).reshape(2, 3, 5, 11),
            atol=1e-6,
        )


def test_attention_axes_implicit_mask_has_an_entry_per_token_and_travels_on():
    ids = np.random.default_rng(5).integers(0, 3, (2, 3, 5))
    symbol = keras.Input((3, 5), dtype="int32")
    embedded = keras.layers.Embedding(7, 11, mask_zero=True)(symbol)
    for axes, where in ((2, (2, 3, 1, 1, 5)), ((1, 2), (2, 1, 1, 1, 3, 5))):
        layer = tfattn.MultiHeadAttention(2, 5, attention_axes=axes)
        outputs = layer(embedded, embedded, return_attention_scores=True)
        output, weights = keras.Model(symbol, outputs)(ids)
        np.testing.assert_array_equal(output._keras_mask, ids != 0)
        real = np.broadcast_to((ids != 0).reshape(where), weights.shape)
        np.testing.assert_array_equal(np.asarray(weights) != 0, real)


def test_attention_axes_mask_and_bias_broadcast_along_an_axis():
    query, value = draw(2, 3, 5, 11), draw(2, 3, 7, 7, seed=1)
    layer = tfattn.MultiHeadAttention(attention_axes=2, **SIZES)
    small = np.random.default_rng(3).random((1, 3, 1, 7)) < 0.5
    small[..., 0] = True
    whole = np.broadcast_to(small, (2, 3, 5, 7))
    output = layer(query, value, attention_mask=small)
    np.testing.assert_array_equal(layer(query, value, attention_mask=whole), output)
    bias = np.where(np.repeat(whole[:, :, None], 2, axis=2), 0.0, -1e9).astype("float32")
    np.testing.assert_allclose(layer(query, value, bias=bias), output, atol=1e-6)


def test_attention_axes_lengths_repeat_along_each_axis_of_one():
    query, value = draw(2, 3, 5, 11), draw(2, 3, 7, 11, seed=1)
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    for shape in ((1, 3, 5), (2, 1, 5), (2, 3, 1), (1, 1, 5), (1, 3), (2, 1)):
        lengths = np.random.default_rng(0).integers(0, 8, size=shape)
        whole = lengths if len(shape) == 3 else lengths[..., None]
        visible = np.arange(7) < np.broadcast_to(whole, (2, 3, 5))[..., None]
        expected = layer(query, value, attention_mask=visible)
        np.testing.assert_allclose(layer(query, value, valid_lens=lengths), expected, atol=1e-6)


# Axes, shapes of a mask with its bias and of lengths, and options of the compiler.
UNKNOWN = [
    ((1, 2), (3, 5, 3, 7), (2,), {"jit_compile": True}),
    (2, (5, 7), (2, 3, 1), {}),
    (2, (1, 3, 1, 7), (1, 3, 5), {}),
    (2, (2, 3, 2, 5, 7), (2, 1), {}),
]


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.usefixtures("dense_path")
@pytest.mark.parametrize(("axes", "shape", "lengths", "options"), UNKNOWN)
def test_attention_axes_sizes_unknown_to_a_graph_equal_eager(axes, shape, lengths, options):
    inputs = [
        draw(2, 3, 5, 11),
        draw(2, 3, 7, 11, seed=1),
        draw(*shape, seed=2),
        np.random.default_rng(0).integers(0, 8, lengths).astype("int32"),
    ]
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=axes)

    def run(query, value, bias, valid_lens):
        return layer(query, value, attention_mask=bias > 0, bias=bias, valid_lens=valid_lens)

    spec = [tf.TensorSpec((*[None] * (x.ndim - 1), 11), x.dtype) for x in inputs[:2]]
    spec += [tf.TensorSpec([None] * x.ndim, x.dtype) for x in inputs[2:]]
    expected = run(*inputs)
    found = tf.function(run, input_signature=spec, **options)(*inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def rules(rows):
    """Mask objects with entries per row."""
    return masks.causal() & masks.padding(1 + np.arange(rows) % 5), masks.explicit(
        draw(rows, 5, 5) > 0
    )


def test_attention_axes_mask_objects_count_folded_rows():
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    for mask in rules(6):
        visible = np.broadcast_to(mask.dense(5, 5), (6, 5, 5)).reshape(2, 3, 5, 5)
        output = layer(IMAGE, IMAGE, attention_mask=mask)
        expected = layer(IMAGE, IMAGE, attention_mask=visible)
        np.testing.assert_allclose(output, expected, atol=1e-6)
    for mask in (*rules(2), *rules(3)):  # per row, and per row and folded axis
        with pytest.raises(ValueError, match=r"`attention_mask` must have shape.*here \(6,"):
            layer(IMAGE, IMAGE, attention_mask=mask)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(("rows", "flash"), [(2, False), (3, True)])
def test_attention_axes_mask_object_of_other_rows_fails_in_a_graph(rows, flash):
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2, flash_attention=flash)
    mask = rules(rows)[flash]

    @tf.function(input_signature=[tf.TensorSpec((None, None, 5, 11))])
    def run(image):
        return layer(image, image, attention_mask=mask)

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        run(IMAGE)


def test_attention_axes_symbolic_shapes_equal_eager_shapes():
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2, output_shape=(3, 4))
    x, y = keras.Input((3, None, 11)), keras.Input((3, None, 7))
    output, weights = layer(x, y, return_attention_scores=True)
    assert output.shape == (None, 3, None, 3, 4)
    assert weights.shape == (None, 3, 2, None, None)
    model = keras.Model([x, y], [output, weights])
    output, weights = model([draw(2, 3, 5, 11), draw(2, 3, 7, 7)])
    assert output.shape == (2, 3, 5, 3, 4) and weights.shape == (2, 3, 2, 5, 7)


def test_attention_axes_recorded_weights_equal_returned_ones():
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2, name="rows")
    _, weights = layer(IMAGE, IMAGE, return_attention_scores=True)
    recorded = tfattn.attention_weights(layer, IMAGE, IMAGE)
    assert list(recorded) == ["rows"]
    np.testing.assert_array_equal(recorded["rows"], weights)


# Options, shapes of query and value, and the error.
ROWS = {"attention_axes": 2}
WRONG = [
    ({"attention_axes": 3}, (2, 3, 5, 11), None, "`attention_axes` must name axes between"),
    ({"attention_axes": (1, -3)}, (2, 3, 5, 11), None, "`attention_axes` must name axes between"),
    ({"attention_axes": 2}, (2, 3, 11), None, "`attention_axes` must name axes between"),
    (ROWS, (2, 3, 5, 11), (2, 7, 5, 11), "`value` must be as long as `query` on axis 1"),
    (ROWS, (2, 3, 5, 11), (3, 3, 5, 11), "`value` must be as long as `query` on axis 0"),
    ({}, (2, 3, 5, 11), (2, 3, 11), "`value` must have as many axes as `query`, 4"),
    ({"sliding_window": 2}, (2, 3, 5, 11), None, "`sliding_window` must be None with several"),
]


@pytest.mark.parametrize("options, query, value, expected", WRONG)
def test_attention_axes_that_do_not_fit_are_refused(options, query, value, expected):
    value = query if value is None else value
    with pytest.raises(ValueError, match=f"MultiHeadAttention: {expected}"):
        tfattn.MultiHeadAttention(2, 5, **options)(draw(*query), draw(*value))


@pytest.mark.parametrize(
    "name, shapes",
    [
        ("attention_mask", [(2, 2, 2, 3, 5, 5)]),
        ("key_mask", [(2, 5)]),
        ("query_mask", [(2, 3, 7)]),
        ("valid_lens", [(2, 3, 5, 1)]),
    ],
)
def test_attention_axes_arguments_that_do_not_fit_are_refused(name, shapes):
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    for shape in shapes:
        array = np.ones(shape, "float32" if name == "bias" else int)
        with pytest.raises(ValueError, match=f"MultiHeadAttention: `{name}` must have shape"):
            layer(IMAGE, IMAGE, **{name: array})
    with pytest.raises(ValueError, match="`key` must be as long as `value` on axis 2, 5"):
        layer(IMAGE, IMAGE, draw(2, 3, 7, 11))
