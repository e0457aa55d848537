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
from tests.helpers.tensors import both_ways, numpy
from tests.layers.test_multi_head import assert_same, draw, pair
from tfattn.core.engine import dispatch

B, T, S = 2, 3, 7
SIZES = {"num_heads": 2, "key_dim": 5, "value_dim": 3}
QUERY, VALUE, KEY = draw(B, T, 11), draw(B, S, 5, seed=1), draw(B, S, 13, seed=2)
TOKENS = draw(B, S, 11)
KERAS_PARAMETERS = inspect.signature(keras.layers.MultiHeadAttention.__init__).parameters


def where_keras_has(*arguments):
    """A mark: the oldest Keras that is supported lacks some."""
    lacks = set(arguments) - set(KERAS_PARAMETERS)
    return pytest.mark.skipif(bool(lacks), reason=f"this Keras has no {lacks}")


# Keras's layer warns of a softmax over one key; `conformance/test_symbolic` has ours warn of none.
of_one_key = pytest.mark.filterwarnings("ignore:(?s).*using a softmax over axis")

# Options that differ from SIZES, and the token axes of query and of value.
EDGES = {
    "plain": ({}, (T,), (S,)),
    "one head": ({"num_heads": 1}, (T,), (S,)),
    "one query": ({}, (1,), (S,)),
    "one key": ({}, (T,), (1,)),
    "no biases": ({"use_bias": False}, (S,), (S,)),
    "an output of several axes": ({"output_shape": (1, 13)}, (T,), (S,)),
    "window of one": ({"sliding_window": 1}, (S,), (S,)),
    "wide window": ({"sliding_window": 11}, (S,), (S,)),
    "gate": ({"use_gate": True, "output_shape": 13}, (T,), (S,)),
    "all axes": ({}, (3, 5), (7, 2)),
    "columns first": ({"attention_axes": (2, 1)}, (3, 5), (7, 2)),
    "rows": ({"attention_axes": (1,)}, (3, 5), (7, 5)),
    "from the end": ({"attention_axes": -2}, (3, 5), (3, 7)),
    "two of three": ({"attention_axes": (1, 3)}, (3, 5, 2), (2, 5, 7)),
    "last of three": ({"attention_axes": (-2, 1)}, (3, 5, 2), (2, 5, 7)),
}


def drawn_edge(rng):
    """A case like those of EDGES."""
    options = {
        "num_heads": int(rng.integers(1, 4)),
        "key_dim": int(rng.integers(2, 6)),  # 1 is Keras's bug, see below
        "value_dim": [None, 2, 7][rng.integers(3)],
        "use_bias": bool(rng.integers(2)),
        "output_shape": [None, 13, (3, 5)][rng.integers(3)],
        "use_gate": bool(rng.integers(2)),
    }
    queries, keys = (tuple(map(int, rng.integers(1, 8, 1))) for _ in range(2))
    if rng.random() < 0.3:
        queries, keys = (tuple(map(int, rng.integers(1, 5, 2))) for _ in range(2))
        options["attention_axes"] = [None, (2, 1), (1, 2)][rng.integers(3)]
    elif rng.random() < 0.5:
        options["sliding_window"], queries = int(rng.integers(1, 8)), keys
    return options, queries, keys


def calls_of(options, query, value):
    """What both layers are called with: every mask by itself, in every shape."""
    rank, rng = query.ndim, np.random.default_rng(3)
    axes = options.get("attention_axes")
    axes = range(1, rank - 1) if axes is None else np.atleast_1d(axes)
    axes = [int(axis) % rank for axis in axes]
    rows = [query.shape[axis] for axis in range(rank - 1) if axis not in axes]
    square = [x.shape[axis] for x in (query, value) for axis in axes]
    yield {}
    # Broadcasting may leave out leading axes; a mask with heads has all of them.
    for shape in [rows[:n] for n in range(len(rows) + 1)] + [[*rows, options["num_heads"]]]:
        mask = rng.random((*shape, *square)) < 0.6
        mask[(..., *[0] * len(axes))] = True
        yield {"attention_mask": mask.astype("int32")}
    if rank == 3:
        real = rng.random(value.shape[:2]) < 0.6
        real[:, 0] = True
        yield {"value_mask": real}
        yield {"key_mask": real}
    if query.shape == value.shape[:-1] + query.shape[-1:] and rank == 3:
        yield {"use_causal_mask": True}


def assert_equals_keras(options, queries, keys):
    options = {**SIZES, **options}
    lacking = set(options) - set(KERAS_PARAMETERS)
    if any(options.pop(name) for name in lacking):
        pytest.skip(f"the oldest Keras that is supported has no {lacking}")
    arrays = draw(B, *queries, 11), draw(B, *keys, 5, seed=1), draw(B, *keys, 13, seed=2)
    ours, theirs = pair(*arrays, **options)
    for call in calls_of(options, *arrays[:2]):
        assert_same(ours, theirs, *arrays, **call)
    shapes = [x.shape for x in arrays]
    assert ours.compute_output_shape(*shapes) == ours(*arrays).shape
    gradients = []
    for layer in (ours, theirs):

        def squares(layer=layer, call=call):
            # With weights: on JAX, Keras's fused kernel fails if keys and values differ in width.
            return ops.sum(layer(*arrays, return_attention_scores=True, **call)[0] ** 2)

        gradients.append(both_ways(squares, (), variables=layer.trainable_variables)[1])
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@of_one_key
@pytest.mark.parametrize("edge", EDGES)
def test_multi_head_attention_equals_keras_at_edges(edge):
    assert_equals_keras(*EDGES[edge])


@of_one_key
@pytest.mark.slow
@pytest.mark.parametrize("cases", [20, pytest.param(1000, marks=pytest.mark.nightly)])
def test_multi_head_attention_drawn_equals_keras(cases):
    rng = np.random.default_rng(cases)
    for _ in range(cases):
        case = drawn_edge(rng)
        print(case)  # the last one that is printed fails
        assert_equals_keras(*case)


def test_multi_head_attention_initializers_regularizers_constraints_reach_every_map():
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
def test_multi_head_attention_activity_regularizer_counts_maps_as_keras(gate):
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
def test_multi_head_attention_takes_the_config_of_keras_layer(case):
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


def test_multi_head_attention_knows_every_argument_of_keras_layer():
    ours = inspect.signature(tfattn.MultiHeadAttention.__init__).parameters
    # `keras.layers.Layer` has it.
    assert set(KERAS_PARAMETERS) - set(ours) == {"activity_regularizer"}


def test_multi_head_attention_causal_queries_before_keys_see_nothing():
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
def test_attention_shapes_that_do_not_fit_are_refused(shapes):
    refused = r"(MultiHead|DotProduct)Attention: `(query|value|key)` must "
    for make in (lambda: tfattn.MultiHeadAttention(2, 3), tfattn.DotProductAttention):
        with pytest.raises(ValueError, match=refused):
            make()(*(draw(*shape) for shape in shapes))


# The sliding window


def seen(layer, *inputs, **call):
    """Where weights are above 0."""
    return np.asarray(layer(*inputs, return_attention_scores=True, **call)[1]) != 0


def test_sliding_window_lines_up_at_the_end_and_joins_masks():
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


def test_sliding_window_garbage_out_of_reach_is_in_no_gradient():
    layer, results = tfattn.MultiHeadAttention(sliding_window=2, **SIZES), []
    layer.build(QUERY.shape, VALUE.shape)
    for fill in (0.0, np.nan):
        value = VALUE.copy()
        value[:, 2] = fill  # the first query sees the keys 3 and 4
        output, gradients = both_ways(
            lambda query, value: layer(query, value, use_causal_mask=True) ** 2,
            [QUERY, value],
            variables=layer.trainable_weights,
        )
        results.append([output, *gradients])
    for clean, found in zip(*results, strict=True):
        np.testing.assert_array_equal(numpy(found), numpy(clean))


def test_sliding_window_in_cached_decoding_equals_the_call():
    layer = tfattn.MultiHeadAttention(sliding_window=3, **SIZES)
    wanted = layer(TOKENS, TOKENS, use_causal_mask=True)
    keys, values = layer.project_keys(TOKENS)
    for t in range(S):  # over a full-length cache, so that only `start` gives the position
        so_far = np.arange(S)[None, None] <= t
        output = layer.attend_projected(TOKENS[:, t : t + 1], keys, values, so_far, start=t)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)
    output = layer.attend_projected(TOKENS[:, 4:], keys, values, reference.causal(3, S))
    np.testing.assert_allclose(output, wanted[:, 4:], atol=1e-5)


def test_decoder_block_sliding_window_hides_no_memory():
    attention = tfattn.MultiHeadAttention(2, 5, sliding_window=2)
    block = tfattn.TransformerDecoderBlock(hidden_dim=7, attention=attention)
    _, over_target, over_memory = block(TOKENS, VALUE, return_attention_scores=True)
    band = reference.causal(S, S) & reference.window(2, S, S)
    np.testing.assert_array_equal(np.asarray(over_target) != 0, np.broadcast_to(band, (B, 2, S, S)))
    assert np.all(np.asarray(over_memory) != 0)


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


def test_flash_attention_argument_chooses_the_path(taken):
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
def test_flash_attention_disabled_in_keras_takes_the_dense_path(taken):
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


def test_flash_attention_with_dropout_streams_and_records_weights(taken):
    layer = tfattn.MultiHeadAttention(flash_attention=True, dropout=0.5, seed=3, **SIZES)
    assert np.any(np.asarray(layer(TOKENS, TOKENS, training=True)) != layer(TOKENS, TOKENS))
    assert taken == [True, True]
    (weights,) = tfattn.attention_weights(layer, TOKENS, TOKENS).values()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_flash_attention_that_cannot_stream_is_refused(monkeypatch):
    layer = tfattn.MultiHeadAttention(flash_attention=True, **SIZES)
    layer(TOKENS, TOKENS)
    monkeypatch.setattr("tfattn.core.engine.dispatch.STREAMING_BACKENDS", ())
    with pytest.raises(ValueError, match="`path` must be 'dense' with this backend"):
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
def test_multi_head_attention_heads_of_one_feature_equal_the_oracle(key_dim, value_dim):
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
def test_keras_heads_of_one_feature_are_still_wrong(key_dim, value_dim):
    for length in (H - 1, H, H + 1):
        tokens = draw(2, length, 11)
        theirs = keras.layers.MultiHeadAttention(H, key_dim, value_dim=value_dim)
        theirs.build(tokens.shape, tokens.shape)
        theirs.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(theirs.get_weights())])
        expected, _ = reference.multi_head(tokens, tokens, tokens, theirs.get_weights())
        off = np.abs(np.asarray(theirs(tokens, tokens)) - expected).max()
        assert (off > 0.01) == (length == H), MENDED


@on_tensorflow
def test_keras_add_of_one_feature_is_still_wrong():
    tokens, bias = np.zeros((2, H, H, 1), "float32"), np.arange(H, dtype="float32")[:, None]
    assert np.any(np.asarray(keras.ops.add(tokens, bias)) != tokens + bias), MENDED
