"""Attention over axes of images, videos and time series, compared to Keras's layer and to folded
sequences.
"""

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
from tests.helpers.tensors import as_tensor, numpy, tf
from tests.layers.test_multi_head import assert_same, draw, pair
from tfattn import masks

SIZES = {"num_heads": 2, "key_dim": 5, "value_dim": 3}
IMAGE = draw(2, 3, 5, 11)
# Axes, and the sizes of the token axes of query and value.
GRIDS = {
    "all": (None, (3, 5), (7, 2)),
    "columns first": ((2, 1), (3, 5), (7, 2)),
    "rows": ((1,), (3, 5), (7, 5)),
    "from the end": (-2, (3, 5), (3, 7)),
    "two of three": ((1, 3), (3, 5, 2), (2, 5, 7)),
    "last of three": ((-2, 1), (3, 5, 2), (2, 5, 7)),
}


def operands(grid):
    """Query, value and key, and which of their axes attend."""
    axes, queries, keys = GRIDS[grid]
    rank = len(queries) + 2
    axes = range(1, rank - 1) if axes is None else np.atleast_1d(axes)
    arrays = draw(2, *queries, 11), draw(2, *keys, 7, seed=1), draw(2, *keys, 13, seed=2)
    return arrays, [int(axis) % rank for axis in axes]


@pytest.mark.parametrize("grid", GRIDS)
def test_equals_keras_over_any_axes(grid):
    arrays, _ = operands(grid)
    ours, theirs = pair(*arrays, attention_axes=GRIDS[grid][0], **SIZES)
    assert_same(ours, theirs, *arrays)
    shapes = [x.shape for x in arrays]
    assert ours.compute_output_shape(*shapes) == ours(*arrays).shape


@pytest.mark.parametrize("grid", GRIDS)
def test_equals_keras_under_masks_of_every_rank(grid):
    (query, value, key), attended = operands(grid)
    ours, theirs = pair(query, value, key, attention_axes=GRIDS[grid][0], **SIZES)
    rows = [query.shape[a] for a in range(query.ndim - 1) if a not in attended]
    square = [x.shape[axis] for x in (query, value) for axis in attended]
    # Broadcasting may leave out leading axes; a mask with heads has all of them.
    for shape in [rows[:n] for n in range(len(rows) + 1)] + [[*rows, 2]]:
        mask = np.random.default_rng(3).random((*shape, *square)) < 0.6
        mask[(..., *[0] * len(attended))] = True
        assert_same(ours, theirs, query, value, key, attention_mask=mask.astype("int32"))


def test_one_axis_of_three_is_attended_too():  # Keras's softmax fails there on TensorFlow
    query, value = draw(2, 3, 5, 2, 11), draw(2, 3, 7, 2, 7, seed=1)
    layer = tfattn.MultiHeadAttention(attention_axes=2, bias_initializer="random_normal", **SIZES)
    output, weights = layer(query, value, return_attention_scores=True)
    for i, j in np.ndindex(3, 2):
        tokens, keys = query[:, i, :, j], value[:, i, :, j]
        expected = reference.multi_head(tokens, keys, keys, layer.get_weights())
        np.testing.assert_allclose(output[:, i, :, j], expected[0], atol=1e-5)
        np.testing.assert_allclose(weights[:, i, j], expected[1], atol=1e-5)


@pytest.mark.slow
def test_causal_lengths_and_positions_count_along_the_axis():
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


def test_several_axes_are_read_row_by_row():
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


def test_padding_has_an_entry_a_token():
    real = np.random.default_rng(4).random((2, 3, 5)) < 0.6
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=(1, 2))
    _, weights = layer(IMAGE, IMAGE, key_mask=real, return_attention_scores=True)
    assert weights.shape == (2, 2, 3, 5, 3, 5)
    for b, h, t, u in np.ndindex(2, 2, 3, 5):
        np.testing.assert_array_equal(np.asarray(weights)[b, h, t, u] != 0, real[b])


def test_a_mask_that_a_tensor_carries_hides_and_travels_on():
    ids = np.random.default_rng(5).integers(0, 3, (2, 3, 5))
    symbol = keras.Input((3, 5), dtype="int32")
    embedded = keras.layers.Embedding(7, 11, mask_zero=True)(symbol)
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    output, weights = layer(embedded, embedded, return_attention_scores=True)
    model = keras.Model(symbol, [output, weights])
    output, weights = model(ids)
    np.testing.assert_array_equal(output._keras_mask, ids != 0)
    hidden = np.broadcast_to((ids == 0)[:, :, None, None, :], weights.shape)
    assert np.all(np.asarray(weights)[hidden] == 0)


def test_a_mask_may_repeat_along_an_axis_and_a_bias_has_its_shapes():
    query, value = draw(2, 3, 5, 11), draw(2, 3, 7, 7, seed=1)
    layer = tfattn.MultiHeadAttention(attention_axes=2, **SIZES)
    small = np.random.default_rng(3).random((1, 3, 1, 7)) < 0.5
    small[..., 0] = True
    whole = np.broadcast_to(small, (2, 3, 5, 7))
    output = layer(query, value, attention_mask=small)
    np.testing.assert_array_equal(layer(query, value, attention_mask=whole), output)
    bias = np.where(np.repeat(whole[:, :, None], 2, axis=2), 0.0, -1e9).astype("float32")
    np.testing.assert_allclose(layer(query, value, bias=bias), output, atol=1e-6)


@pytest.mark.parametrize(
    "unknown",
    [False, pytest.param(True, marks=pytest.mark.tensorflow)],
    ids=["known sizes", "unknown sizes"],
)
def test_lengths_repeat_along_each_axis_of_one(unknown):
    query, value = draw(2, 3, 5, 11), draw(2, 3, 7, 11, seed=1)
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    shapes = [(1, 3, 5), (2, 1, 5), (2, 3, 1), (1, 1, 5), (1, 3), (2, 1)]
    for shape in shapes[::2] if unknown else shapes:
        lengths = np.random.default_rng(0).integers(0, 8, size=shape)
        whole = lengths if len(shape) == 3 else lengths[..., None]
        visible = np.arange(7) < np.broadcast_to(whole, (2, 3, 5))[..., None]
        expected, call = layer(query, value, attention_mask=visible), layer
        if unknown:
            spec = tf.TensorSpec((None, None, None, 11))
            of_lengths = tf.TensorSpec([None] * len(shape), "int64")

            @tf.function(input_signature=[spec, spec, of_lengths])
            def call(query, value, valid_lens):
                return layer(query, value, valid_lens=valid_lens)

        np.testing.assert_allclose(call(query, value, valid_lens=lengths), expected, atol=1e-6)


@pytest.mark.tensorflow
@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (1, 3, 1, 7), (2, 3, 2, 5, 7)])
def test_masks_and_biases_may_have_unknown_sizes(shape):
    query, value = draw(2, 3, 5, 11), draw(2, 3, 7, 11, seed=1)
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    bias = draw(*shape, seed=2)
    expected = layer(query, value, attention_mask=bias > 0, bias=bias)
    tokens, pairs = tf.TensorSpec((None, None, None, 11)), tf.TensorSpec([None] * len(shape))

    @tf.function(input_signature=[tokens, tokens, pairs])
    def call(query, value, bias):
        return layer(query, value, attention_mask=bias > 0, bias=bias)

    np.testing.assert_allclose(call(query, value, bias), expected, atol=1e-6)


def rules(rows):
    """Mask objects with entries per row."""
    return masks.causal() & masks.padding(1 + np.arange(rows) % 5), masks.explicit(
        draw(rows, 5, 5) > 0
    )


def test_mask_objects_count_the_rows_of_the_folded_batch():
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
def test_other_rows_of_a_mask_object_fail_where_sizes_are_unknown(rows, flash):
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2, flash_attention=flash)
    for mask in rules(rows):

        @tf.function(input_signature=[tf.TensorSpec((None, None, 5, 11))])
        def run(image, mask=mask):
            return layer(image, image, attention_mask=mask)

        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            run(IMAGE)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_sizes_may_be_unknown():
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=(1, 3))
    query, value = draw(2, 3, 5, 2, 11), draw(2, 2, 5, 7, 11, seed=1)
    shape = tf.TensorSpec((None, None, None, None, 11))

    def run(query, value):
        return layer(query, value, use_causal_mask=True, valid_lens=as_tensor([3, 9]))

    found = tf.function(run, jit_compile=True, input_signature=[shape, shape])(query, value)
    np.testing.assert_allclose(found, run(query, value), atol=1e-5)


def test_symbolic_shapes_are_those_that_come():
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2, output_shape=(3, 4))
    x, y = keras.Input((3, None, 11)), keras.Input((3, None, 7))
    output, weights = layer(x, y, return_attention_scores=True)
    assert output.shape == (None, 3, None, 3, 4)
    assert weights.shape == (None, 3, 2, None, None)
    model = keras.Model([x, y], [output, weights])
    output, weights = model([draw(2, 3, 5, 11), draw(2, 3, 7, 7)])
    assert output.shape == (2, 3, 5, 3, 4) and weights.shape == (2, 3, 2, 5, 7)


def test_weights_are_recorded_as_they_are_returned():
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2, name="rows")
    _, weights = layer(IMAGE, IMAGE, return_attention_scores=True)
    recorded = tfattn.attention_weights(layer, IMAGE, IMAGE)
    assert list(recorded) == ["rows"]
    np.testing.assert_array_equal(recorded["rows"], weights)


def test_an_output_of_several_axes_equals_keras():
    tokens = draw(2, 7, 11)
    for output_shape in ((1, 13), [2, 3, 5]):
        ours, theirs = pair(tokens, tokens, output_shape=output_shape, **SIZES)
        assert_same(ours, theirs, tokens, tokens)
        assert ours.compute_output_shape(tokens.shape, tokens.shape) == (2, 7, *output_shape)
        assert ours.get_config()["output_shape"] == tuple(output_shape)


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
def test_axes_that_do_not_fit_are_refused(options, query, value, expected):
    value = query if value is None else value
    for act in (
        lambda layer: layer(draw(*query), draw(*value)),
        lambda layer: layer.build(query, value),
        lambda layer: layer.compute_output_shape(query, value),
    ):
        with pytest.raises(ValueError, match=f"MultiHeadAttention: {expected}"):
            act(tfattn.MultiHeadAttention(2, 5, **options))


def test_a_key_that_does_not_fit_the_value_is_refused():
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=(1, 2))
    with pytest.raises(ValueError, match="`key` must be as long as `value` on axis 2, 5"):
        layer(IMAGE, IMAGE, draw(2, 3, 7, 11))


@pytest.mark.parametrize(
    "name, shapes",
    [
        ("attention_mask", [(5, 3), (2, 2, 2, 3, 5, 5)]),
        ("bias", [(2, 4, 5, 5)]),
        ("key_mask", [(2, 5)]),
        ("query_mask", [(2, 3, 7)]),
        ("valid_lens", [(2, 4), (2, 3, 5, 1), (2, 1, 7), (3, 3, 5)]),
    ],
)
def test_what_does_not_fit_the_axes_is_refused(name, shapes):
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    for shape in shapes:
        array = np.ones(shape, "float32" if name == "bias" else int)
        with pytest.raises(ValueError, match=f"MultiHeadAttention: `{name}` must have shape"):
            layer(IMAGE, IMAGE, **{name: array})
