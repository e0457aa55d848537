"""`MultiHeadAttention` has the arguments, weights and outputs of Keras's layer, except its bugs.

For other layers see `convert/test_keras`, for axes `test_attention_axes`.
"""

import inspect

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.helpers.tensors import BACKEND, both_ways, numpy
from tests.layers.test_multi_head import assert_same, draw, pair
from tfattn.core.engine import dispatch

B, T, S = 2, 3, 7
SIZES = {"num_heads": 2, "key_dim": 5, "value_dim": 3}
QUERY, VALUE, KEY = draw(B, T, 11), draw(B, S, 5, seed=1), draw(B, S, 13, seed=2)
TOKENS = draw(B, S, 11)
PADDING = reference.padding([3, 6], S)[:, 0]


def where_keras_has(*arguments):
    """A mark: the oldest Keras that is supported lacks some."""
    theirs = inspect.signature(keras.layers.MultiHeadAttention.__init__).parameters
    lacks = set(arguments) - set(theirs)
    return pytest.mark.skipif(bool(lacks), reason=f"this Keras has no {lacks}")


# MultiHeadAttention

FORMS = {
    "plain": {},
    "one head": {"num_heads": 1},
    "output_shape": {"output_shape": 13},
    "no biases": {"use_bias": False},
}
PAIRS = np.random.default_rng(2).random((B, T, S)) < 0.6
PAIRS[:, :, 0] = True
MASKS = [{}, {"value_mask": PADDING}, {"key_mask": PADDING}, {"attention_mask": PAIRS}]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_equals_keras(form):
    options = {**SIZES, **FORMS[form]}
    ours, theirs = pair(QUERY, VALUE, KEY, **options)
    for masks in MASKS:
        assert_same(ours, theirs, QUERY, VALUE, KEY, **masks)
    ours, theirs = pair(TOKENS, TOKENS, **options)
    for causal in (False, True):
        assert_same(ours, theirs, TOKENS, TOKENS, use_causal_mask=causal)


def test_equals_keras_in_gradients():
    # On JAX, Keras's layer fails if keys and values differ in width.
    sizes = {**SIZES, "value_dim": None} if BACKEND == "jax" else SIZES
    gradients = []
    for layer in pair(TOKENS, TOKENS, **sizes):

        def squares(layer=layer):
            return ops.sum(layer(TOKENS, TOKENS, use_causal_mask=True) ** 2)

        gradients.append(both_ways(squares, (), variables=layer.trainable_variables)[1])
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_initializers_regularizers_and_constraints_reach_every_map():
    layer = tfattn.MultiHeadAttention(
        use_gate=True,
        kernel_initializer="ones",
        bias_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(0.5),
        bias_regularizer=keras.regularizers.L2(0.25),
        kernel_constraint="non_neg",
        bias_constraint="non_neg",
        **SIZES,
    )
    layer(QUERY, VALUE, KEY)
    for weight in layer.weights:
        assert np.all(numpy(weight) == 1)
        assert isinstance(weight.constraint, keras.constraints.NonNeg)
        strength = 0.25 if weight.name == "bias" else 0.5
        penalty = numpy(weight.regularizer(weight))
        assert penalty == pytest.approx(strength * np.prod(weight.shape))
    assert len(layer.losses) == 10


@where_keras_has("use_gate")
@pytest.mark.parametrize("gate", [False, True])
def test_an_activity_regularizer_counts_the_output_of_each_map_as_in_keras(gate):
    ours, theirs = pair(TOKENS, TOKENS, activity_regularizer="l2", use_gate=gate, **SIZES)
    ours(TOKENS, TOKENS), theirs(TOKENS, TOKENS, return_attention_scores=True)
    assert len(ours.losses) == 5 if gate else 4
    np.testing.assert_allclose(*(list(map(numpy, x.losses)) for x in (ours, theirs)), rtol=1e-5)
    again = tfattn.MultiHeadAttention.from_config(ours.get_config())
    again(TOKENS, TOKENS)
    assert len(again.losses) == len(ours.losses)


KERAS = {
    "plain": {},
    "gate": {"use_gate": True, "sliding_window": 3},
    "output": {"output_shape": (3, 5), "attention_axes": 1},
    "others": {"use_bias": False, "dropout": 0.2, "seed": 5, "kernel_regularizer": "l2"},
}


@where_keras_has("use_gate", "sliding_window")
@pytest.mark.parametrize("case", KERAS)
def test_the_config_of_keras_layer_is_taken_built_or_not(case):
    theirs = keras.layers.MultiHeadAttention(**SIZES, **KERAS[case])
    before = theirs.get_config()
    # With weights: Keras's fused path on JAX fails if keys and values differ in width.
    expected, _ = theirs(TOKENS, TOKENS, return_attention_scores=True)
    for config in (before, theirs.get_config()):
        ours = tfattn.MultiHeadAttention.from_config(config)
        ours(TOKENS, TOKENS)
        ours.set_weights(theirs.get_weights())
        np.testing.assert_allclose(ours(TOKENS, TOKENS), expected, atol=1e-5)
        assert ours.name == theirs.name


def test_every_argument_of_keras_layer_is_known():
    theirs = set(inspect.signature(keras.layers.MultiHeadAttention.__init__).parameters)
    ours = set(inspect.signature(tfattn.MultiHeadAttention.__init__).parameters)
    assert theirs - ours == {"activity_regularizer"}  # `keras.layers.Layer` has it


@pytest.mark.slow
def test_a_model_with_all_of_them_comes_back_from_a_file(tmp_path):
    x = keras.Input((None, 11))
    layer = tfattn.MultiHeadAttention(
        sliding_window=3,
        use_gate=True,
        flash_attention=True,
        attention_axes=(1,),
        output_shape=(3, 5),
        activity_regularizer="l2",
        **SIZES,
    )
    model = keras.Model(x, layer(x, x))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(TOKENS), model(TOKENS))
    assert loaded.layers[-1].get_config() == layer.get_config()


def test_causal_queries_before_the_first_key_see_nothing():
    layer = tfattn.MultiHeadAttention(bias_initializer="random_normal", **SIZES)
    value = draw(B, T, 5, seed=1)
    output, weights = layer(TOKENS, value, use_causal_mask=True, return_attention_scores=True)
    np.testing.assert_array_equal(np.asarray(weights)[:, :, : S - T], 0)
    np.testing.assert_array_equal(
        np.asarray(output)[:, : S - T], np.broadcast_to(layer.output_dense.bias, (B, S - T, 11))
    )
    # One key is visible; its weight is 1, up to one bit.
    np.testing.assert_allclose(np.asarray(weights)[:, :, S - T, 0], 1, rtol=2e-7)


@pytest.mark.parametrize(
    "shapes",
    [
        [(B, S), (B, S, 5)],
        [(B, S, 5), (5,)],
        [(5,), (B, S, 5)],
        [(B, S, 5), (B, S, 5), (B, T, 5)],
        [(B, S, 5), (3, S, 5)],
        [(B, S, 5), (B, S, 5), (B,)],
    ],
)
def test_shapes_are_refused_wherever_they_are_met(shapes):
    refused = r"(MultiHead|DotProduct)Attention: `(query|value|key)` must "
    for make in (lambda: tfattn.MultiHeadAttention(2, 3), tfattn.DotProductAttention):
        for act in (
            lambda layer: layer(*(draw(*shape) for shape in shapes)),
            lambda layer: layer.build(*shapes),
            lambda layer: layer.compute_output_shape(*shapes),
        ):
            with pytest.raises(ValueError, match=refused):
                act(make())


# sliding_window


def seen(layer, *inputs, **call):
    """Where weights are above 0."""
    return np.asarray(layer(*inputs, return_attention_scores=True, **call)[1]) != 0


@where_keras_has("sliding_window")
@pytest.mark.parametrize("size", [1, 3, 11])
def test_a_sliding_window_equals_keras(size):
    ours, theirs = pair(TOKENS, TOKENS, sliding_window=size, **SIZES)
    for causal in (False, True):
        assert_same(ours, theirs, TOKENS, TOKENS, use_causal_mask=causal)


def test_a_sliding_window_lines_up_at_the_end_and_goes_with_every_other_mask():
    layer = tfattn.MultiHeadAttention(sliding_window=2, **SIZES)
    for query, value in ((QUERY, TOKENS), (TOKENS, QUERY)):
        found = seen(layer, query, value)
        mask = reference.window(2, query.shape[1], value.shape[1])
        np.testing.assert_array_equal(found, np.broadcast_to(mask, found.shape))
    more = np.random.default_rng(2).random((S, S)) < 0.7
    call = {"attention_mask": more, "valid_lens": np.array([3, 6]), "use_causal_mask": True}
    found = seen(layer, TOKENS, TOKENS, **call)
    mask = more & reference.padding([3, 6], S) & reference.causal(S, S) & reference.window(2, S, S)
    np.testing.assert_array_equal(found, np.broadcast_to(mask[:, None], found.shape))


def test_a_sliding_window_moves_with_cached_decoding():
    layer = tfattn.MultiHeadAttention(sliding_window=3, **SIZES)
    wanted = layer(TOKENS, TOKENS, use_causal_mask=True)
    keys, values = layer.project_keys(TOKENS)
    for t in range(S):  # over a full-length cache, so that only `start` gives the position
        so_far = np.arange(S)[None, None] <= t
        output, _ = layer.attend_projected(TOKENS[:, t : t + 1], keys, values, so_far, start=t)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)
    output, _ = layer.attend_projected(TOKENS[:, 4:], keys, values, reference.causal(3, S))
    np.testing.assert_allclose(output, wanted[:, 4:], atol=1e-5)


def test_a_decoder_of_windows_has_them_over_its_target_alone():
    attention = tfattn.MultiHeadAttention(2, 5, sliding_window=2)
    block = tfattn.TransformerDecoderBlock(hidden_dim=7, attention=attention)
    _, over_target, over_memory = block(TOKENS, VALUE, return_attention_scores=True)
    band = reference.causal(S, S) & reference.window(2, S, S)
    np.testing.assert_array_equal(np.asarray(over_target) != 0, np.broadcast_to(band, (B, 2, S, S)))
    assert np.all(np.asarray(over_memory) != 0)


# use_gate


@where_keras_has("use_gate")
@pytest.mark.parametrize("options", [{}, {"use_bias": False, "output_shape": 13}])
def test_a_gate_equals_keras(options):
    ours, theirs = pair(QUERY, VALUE, KEY, use_gate=True, **SIZES, **options)
    assert_same(ours, theirs, QUERY, VALUE, KEY)


# flash_attention


@pytest.fixture
def taken(monkeypatch):
    """What `tfattn.attend` answered to the question of the path, call by call."""
    answers, ask = [], dispatch.streams

    def noted(*args):
        answers.append(ask(*args))
        return answers[-1]

    monkeypatch.setattr(dispatch, "streams", noted)
    return answers


def test_flash_attention_chooses_the_path(taken):
    outputs = []
    for flash in (None, True, False):
        layer = tfattn.MultiHeadAttention(flash_attention=flash, seed=1, **SIZES)
        layer.build(TOKENS.shape, TOKENS.shape)
        layer.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(layer.weights)])
        outputs.append(layer(TOKENS, TOKENS, use_causal_mask=True))
    assert taken == [False, True, False]
    for output in outputs[1:]:
        np.testing.assert_allclose(output, outputs[0], atol=1e-5)


@pytest.mark.slow
def test_flash_attention_is_off_where_keras_is_told_so(taken):
    inputs = {"query": draw(1, 2048, 8), "use_causal_mask": True}
    layer = tfattn.MultiHeadAttention(2, 4)
    layer(value=inputs["query"], **inputs)
    keras.config.disable_flash_attention()
    try:
        layer(value=inputs["query"], **inputs)
    finally:
        keras.config.enable_flash_attention()
    layer(value=inputs["query"], **inputs)
    assert taken == [True, False, True]


def test_a_streamed_layer_has_dropout_and_weights_to_record_which_keras_refuses(taken):
    layer = tfattn.MultiHeadAttention(flash_attention=True, dropout=0.5, seed=3, **SIZES)
    assert np.any(np.asarray(layer(TOKENS, TOKENS, training=True)) != layer(TOKENS, TOKENS))
    assert taken == [True, True]
    (weights,) = tfattn.attention_weights(layer, TOKENS, TOKENS).values()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_flash_attention_says_where_it_cannot_stream(monkeypatch):
    layer = tfattn.MultiHeadAttention(flash_attention=True, **SIZES)
    with pytest.raises(
        ValueError, match="MultiHeadAttention: `flash_attention` must be None or False to return we"
    ):
        layer(TOKENS, TOKENS, return_attention_scores=True)
    layer(TOKENS, TOKENS)
    monkeypatch.setattr("tfattn.core.engine.STREAMING_BACKENDS", ())
    with pytest.raises(
        ValueError, match="`flash_attention` must be None or False with the backend"
    ):
        layer(TOKENS, TOKENS)


# Heads of one feature. Keras adds biases by `keras.ops.add`, which on TensorFlow treats a second
# operand with a single axis longer than 1 as a channel bias, and adds it along the *second* axis
# of the first if the sizes are equal. So with T = H, a bias `(H, 1)` is added along the tokens of
# `(B, T, H, 1)`.

H = 3
MENDED = (
    "Keras computes heads of one feature as it should now: say so on the page `coming-from-keras` "
    "and drop this test"
)
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
each_size = pytest.mark.parametrize("key_dim, value_dim", [(1, 1), (1, 5), (5, 1)])


@each_size
def test_heads_of_one_feature_equal_the_oracle(key_dim, value_dim):
    for length in (H, H + 1):
        tokens = draw(2, length, 11)
        layer = tfattn.MultiHeadAttention(
            H, key_dim, value_dim=value_dim, bias_initializer="random_normal"
        )
        output, _ = layer(tokens, tokens, return_attention_scores=True)
        expected, _ = reference.multi_head(tokens, tokens, tokens, layer.get_weights())
        np.testing.assert_allclose(output, expected, atol=1e-4)
        np.testing.assert_allclose(layer(tokens, tokens), expected, atol=1e-4)


@on_tensorflow
@each_size
def test_keras_is_still_wrong_there(key_dim, value_dim):
    for length in (H - 1, H, H + 1):
        tokens = draw(2, length, 11)
        theirs = keras.layers.MultiHeadAttention(H, key_dim, value_dim=value_dim)
        theirs.build(tokens.shape, tokens.shape)
        theirs.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(theirs.get_weights())])
        expected, _ = reference.multi_head(tokens, tokens, tokens, theirs.get_weights())
        off = np.abs(np.asarray(theirs(tokens, tokens)) - expected).max()
        assert (off > 0.01) == (length == H), MENDED


@on_tensorflow
def test_it_is_the_addition_that_is_wrong():
    tokens, bias = np.zeros((2, H, H, 1), "float32"), np.arange(H, dtype="float32")[:, None]
    assert np.any(np.asarray(keras.ops.add(tokens, bias)) != tokens + bias), MENDED
