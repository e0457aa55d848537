"""Attention over axes of images, videos and time series: against Keras's layer, and against
sequences folded by hand.
"""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.tensors import as_tensor, both_ways, numpy, tf
from tests.test_multi_head import assert_same, draw, pair
from tfattn import masks

SIZES = {"num_heads": 2, "key_dim": 5, "value_dim": 3}
# Axes, and the sizes of query and value between the batch and the features.
GRIDS = {
    "all": (None, (3, 5), (7, 2)),
    "both": ((1, 2), (3, 5), (7, 2)),
    "columns first": ((2, 1), (3, 5), (7, 2)),
    "rows": ((1,), (3, 5), (7, 5)),
    "columns": (2, (3, 5), (3, 7)),
    "from the end": (-2, (3, 5), (3, 7)),
    "two of three": ((1, 3), (3, 5, 2), (2, 5, 7)),
    "last of three": ((-2, 1), (3, 5, 2), (2, 5, 7)),
}


def operands(grid, batch=2):
    _, queries, keys = GRIDS[grid]
    return (
        draw(batch, *queries, 11),
        draw(batch, *keys, 7, seed=1),
        draw(batch, *keys, 13, seed=2),
    )


def attended(grid):
    axes, queries, _ = GRIDS[grid]
    rank = len(queries) + 2
    axes = range(1, rank - 1) if axes is None else np.atleast_1d(axes)
    return [int(axis) % rank for axis in axes]


@pytest.mark.parametrize("grid", GRIDS)
def test_equals_keras_over_any_axes(grid):
    query, value, key = operands(grid)
    ours, theirs = pair(query, value, key, attention_axes=GRIDS[grid][0], **SIZES)
    output, weights = ours(query, value, key, return_attention_scores=True)
    expected, expected_weights = theirs(query, value, key, return_attention_scores=True)
    assert weights.shape == expected_weights.shape
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_array_equal(ours(query, value, key), output)
    assert ours.compute_output_shape(query.shape, value.shape, key.shape) == output.shape


def test_each_row_of_an_image_is_a_sequence_of_its_own():
    image = draw(2, 3, 5, 11)
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2, bias_initializer="random_normal")
    output = layer(image, image)
    for row in range(3):
        tokens = image[:, row]
        expected, _ = reference.multi_head(tokens, tokens, tokens, layer.get_weights())
        np.testing.assert_allclose(output[:, row], expected, atol=1e-5)


def test_one_axis_of_three_is_attended_too():  # Keras's softmax fails there on TensorFlow
    query, value = draw(2, 3, 5, 2, 11), draw(2, 3, 7, 2, 7, seed=1)
    layer = tfattn.MultiHeadAttention(attention_axes=2, bias_initializer="random_normal", **SIZES)
    output, weights = layer(query, value, return_attention_scores=True)
    for i, j in np.ndindex(3, 2):
        tokens, keys = query[:, i, :, j], value[:, i, :, j]
        expected = reference.multi_head(tokens, keys, keys, layer.get_weights())
        np.testing.assert_allclose(output[:, i, :, j], expected[0], atol=1e-5)
        np.testing.assert_allclose(weights[:, i, j], expected[1], atol=1e-5)


def lead(grid, query):
    """Sizes of the axes before the heads: the batch, and what is folded into it."""
    rest = [a for a in range(1, query.ndim - 1) if a not in attended(grid)]
    return [query.shape[a] for a in (0, *rest)]


def square(grid, query, value):
    return [x.shape[axis] for x in (query, value) for axis in attended(grid)]


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("grid", GRIDS)
def test_equals_keras_under_masks_of_every_rank(grid, heads):
    query, value, key = operands(grid)
    ours, theirs = pair(query, value, key, attention_axes=GRIDS[grid][0], **SIZES)
    rows = lead(grid, query)
    # Broadcasting may leave out leading axes; a mask with heads has all of them.
    shapes = [[*rows, 2]] if heads else [rows[:n] for n in range(len(rows) + 1)]
    for shape in shapes:
        mask = np.random.default_rng(3).random((*shape, *square(grid, query, value))) < 0.6
        first = (0,) * len(attended(grid))
        mask[(..., *first)] = True
        for given in (mask, mask.astype("int32")):
            call = {"attention_mask": given, "return_attention_scores": True}
            for mine, other in zip(
                ours(query, value, key, **call), theirs(query, value, key, **call), strict=True
            ):
                np.testing.assert_allclose(mine, other, atol=1e-5)


def test_a_mask_may_repeat_along_an_axis():
    query, value, _ = operands("columns")
    layer = tfattn.MultiHeadAttention(attention_axes=2, **SIZES)
    small = np.random.default_rng(3).random((1, 3, 1, 7)) < 0.5
    whole = np.broadcast_to(small, (2, 3, 5, 7))
    np.testing.assert_array_equal(
        layer(query, value, attention_mask=small), layer(query, value, attention_mask=whole)
    )


def test_a_bias_has_the_shapes_of_a_mask():
    query, value, _ = operands("rows")
    layer = tfattn.MultiHeadAttention(attention_axes=1, **SIZES)
    mask = np.random.default_rng(3).random((2, 5, 2, 3, 7)) < 0.5
    mask[..., 0] = True
    bias = np.where(mask, 0.0, -1e9).astype("float32")
    np.testing.assert_allclose(
        layer(query, value, bias=bias), layer(query, value, attention_mask=mask), atol=1e-6
    )


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


@pytest.mark.parametrize(
    "unknown",
    [False, pytest.param(True, marks=pytest.mark.tensorflow)],
    ids=["known sizes", "unknown sizes"],
)
@pytest.mark.parametrize(
    "shape", [(1, 3, 5), (2, 1, 5), (2, 3, 1), (1, 1, 5), (1, 3, 1), (2, 1, 1), (1, 3), (2, 1)]
)
def test_lengths_repeat_along_each_axis_of_one(shape, unknown):
    query, value = draw(2, 3, 5, 11), draw(2, 3, 7, 11, seed=1)
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    lengths = np.random.default_rng(0).integers(0, 8, size=shape)
    whole = lengths if len(shape) == 3 else lengths[..., None]
    visible = np.arange(7) < np.broadcast_to(whole, (2, 3, 5))[..., None]
    expected = layer(query, value, attention_mask=visible)
    call = layer
    if unknown:
        spec = tf.TensorSpec((None, None, None, 11))
        of_lengths = tf.TensorSpec([None] * len(shape), "int64")

        @tf.function(input_signature=[spec, spec, of_lengths])
        def call(query, value, valid_lens):
            return layer(query, value, valid_lens=valid_lens)

    np.testing.assert_allclose(call(query, value, valid_lens=lengths), expected, atol=1e-6)


# Of an entry a row: a mask object, and the same as an array of all pairs.
ROWS = {
    "padding": lambda rows: masks.padding(np.arange(rows) % 6),
    "segments": lambda rows: masks.segments(np.arange(rows * 5).reshape(rows, 5) // 3),
    "explicit": lambda rows: masks.explicit(draw(rows, 5, 5) > 0),
    "joined": lambda rows: masks.causal() & masks.padding(1 + np.arange(rows) % 5),
}


@pytest.mark.parametrize("name", ROWS)
def test_mask_objects_count_the_rows_of_the_folded_batch(name):
    image = draw(2, 3, 5, 11)
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    mask = ROWS[name](6)
    visible = np.broadcast_to(mask.dense(5, 5), (6, 5, 5)).reshape(2, 3, 5, 5)
    np.testing.assert_allclose(
        layer(image, image, attention_mask=mask),
        layer(image, image, attention_mask=visible),
        atol=1e-6,
    )
    for rows in (2, 3):  # those of the batch alone, and those of the folded axis
        with pytest.raises(ValueError, match=r"`attention_mask` must have shape.*here \(6,"):
            layer(image, image, attention_mask=ROWS[name](rows))


@pytest.mark.tensorflow
@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("path", ["dense", "streamed"])
@pytest.mark.parametrize("name", ROWS)
def test_other_rows_of_a_mask_object_fail_where_sizes_are_unknown(name, path, rows):
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2, flash_attention=path == "streamed")
    mask = ROWS[name](rows)
    spec = tf.TensorSpec((None, None, 5, 11))

    @tf.function(input_signature=[spec])
    def run(image):
        return layer(image, image, attention_mask=mask)

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        run(draw(2, 3, 5, 11))


def test_several_axes_are_read_row_by_row():
    image = draw(2, 3, 5, 11)
    layer, plain = (tfattn.MultiHeadAttention(2, 5) for _ in range(2))
    layer.build(image.shape, image.shape)
    plain.build((2, 15, 11), (2, 15, 11))
    plain.set_weights(layer.get_weights())
    tokens = image.reshape(2, 15, 11)
    for call in ({"use_causal_mask": True}, {"valid_lens": np.array([4, 9])}):
        np.testing.assert_allclose(
            layer(image, image, **call),
            numpy(plain(tokens, tokens, **call)).reshape(2, 3, 5, 11),
            atol=1e-6,
        )


def test_padding_has_an_entry_a_token():
    image = draw(2, 3, 5, 11)
    real = np.random.default_rng(4).random((2, 3, 5)) < 0.6
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=(1, 2))
    _, weights = layer(image, image, key_mask=real, return_attention_scores=True)
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


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_hidden_reaches_no_output_and_no_gradient(broken):
    image = draw(2, 3, 5, 11)
    image[:, :, 4] = broken
    real = np.ones((2, 3, 5), bool)
    real[:, :, 4] = False
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2)
    layer(image, image, query_mask=real, key_mask=real)

    def squares():
        output = layer(image, image, query_mask=real, key_mask=real)[:, :, :4]
        return ops.sum(output**2), output

    (_, output), gradients = both_ways(
        squares, (), variables=layer.trainable_variables, has_aux=True
    )
    assert np.isfinite(output).all()
    for gradient in gradients:
        assert np.isfinite(gradient).all()


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_sizes_may_be_unknown(jit):
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=(1, 3))
    query, value, _ = operands("two of three")
    value = draw(2, 2, 5, 7, 11, seed=1)
    expected = layer(query, value, use_causal_mask=True, valid_lens=np.array([3, 9]))
    shape = tf.TensorSpec((None, None, None, None, 11))

    @tf.function(jit_compile=jit, input_signature=[shape, shape])
    def run(query, value):
        return layer(query, value, use_causal_mask=True, valid_lens=as_tensor([3, 9]))

    np.testing.assert_allclose(run(query, value), expected, atol=1e-5)


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
    image = draw(2, 3, 5, 11)
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=2, name="rows")
    _, weights = layer(image, image, return_attention_scores=True)
    recorded = tfattn.attention_weights(layer, image, image)
    assert list(recorded) == ["rows"]
    np.testing.assert_array_equal(recorded["rows"], weights)


def test_a_model_over_axes_comes_back_from_a_file(tmp_path):
    x = keras.Input((3, None, 11))
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=(2, 1), output_shape=(3, 4))
    model, image = keras.Model(x, layer(x, x)), draw(2, 3, 5, 11)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(image), model(image))
    assert loaded.layers[-1].attention_axes == (2, 1)


@pytest.mark.parametrize("output_shape", [(3, 2), [3, 2], (1, 13), (2, 3, 5)])
def test_an_output_of_several_axes_equals_keras(output_shape):
    tokens = draw(2, 7, 11)
    ours, theirs = pair(tokens, tokens, output_shape=output_shape, **SIZES)
    assert_same(ours, theirs, tokens, tokens)
    assert ours.compute_output_shape(tokens.shape, tokens.shape) == (2, 7, *output_shape)
    again = tfattn.MultiHeadAttention.from_config(ours.get_config())
    assert again.get_config()["output_shape"] == tuple(output_shape)


def test_a_block_asks_for_one_width():
    attention = tfattn.MultiHeadAttention(2, 5, output_shape=(3, 11))
    with pytest.raises(ValueError, match=r"`attention` must give back the width .*\(3, 11\)"):
        tfattn.TransformerEncoderBlock(hidden_dim=7, attention=attention)(draw(2, 3, 11))


WRONG = [
    ({"attention_axes": 3}, (2, 3, 5, 11), None, "attention_axes", "name axes between"),
    ({"attention_axes": (1, -3)}, (2, 3, 5, 11), None, "attention_axes", "name axes between"),
    ({"attention_axes": 2}, (2, 3, 11), None, "attention_axes", "name axes between"),
    (
        {"attention_axes": 2},
        (2, 3, 5, 11),
        (2, 7, 5, 11),
        "value",
        "be as long as `query` on axis 1",
    ),
    (
        {"attention_axes": 2},
        (2, 3, 5, 11),
        (3, 3, 5, 11),
        "value",
        "be as long as `query` on axis 0",
    ),
    ({}, (2, 3, 5, 11), (2, 3, 11), "value", "have as many axes as `query`, 4"),
    ({"sliding_window": 2}, (2, 3, 5, 11), None, "sliding_window", "be None where attention goes"),
]


@pytest.mark.parametrize("options, query, value, argument, expected", WRONG)
def test_axes_that_do_not_fit_are_refused(options, query, value, argument, expected):
    value = query if value is None else value
    pattern = f"MultiHeadAttention: `{argument}` must {expected}"
    for act in (
        lambda layer: layer(draw(*query), draw(*value)),
        lambda layer: layer.build(query, value),
        lambda layer: layer.compute_output_shape(query, value),
    ):
        with pytest.raises(ValueError, match=pattern):
            act(tfattn.MultiHeadAttention(2, 5, **options))


def test_a_key_that_does_not_fit_the_value_is_refused():
    layer = tfattn.MultiHeadAttention(2, 5, attention_axes=(1, 2))
    with pytest.raises(ValueError, match="`key` must be as long as `value` on axis 2, 5"):
        layer(draw(2, 3, 5, 11), draw(2, 3, 5, 11), draw(2, 3, 7, 11))


@pytest.mark.parametrize(
    "name, array",
    [
        ("attention_mask", np.ones((5, 3), bool)),
        ("attention_mask", np.ones((2, 2, 2, 3, 5, 5), bool)),
        ("bias", np.ones((2, 4, 5, 5), "float32")),
        ("key_mask", np.ones((2, 5), bool)),
        ("query_mask", np.ones((2, 3, 7), bool)),
        ("valid_lens", np.ones((2, 4), int)),
        ("valid_lens", np.ones((2, 3, 5, 1), int)),
        ("valid_lens", np.ones((2, 1, 7), int)),
        ("valid_lens", np.ones((3, 3, 5), int)),
    ],
)
def test_what_does_not_fit_the_axes_is_refused(name, array):
    layer, image = tfattn.MultiHeadAttention(2, 5, attention_axes=2), draw(2, 3, 5, 11)
    with pytest.raises(ValueError, match=f"MultiHeadAttention: `{name}` must have shape"):
        layer(image, image, **{name: array})
