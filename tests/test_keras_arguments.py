"""Arguments that `keras.layers.MultiHeadAttention` has too: what they mean there they mean here."""

import inspect

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
from tests.tensors import numpy
from tests.test_multi_head import assert_same, draw, pair
from tfattn.core.paths import choice

B, T, S = 2, 3, 7
SIZES = {"num_heads": 2, "key_dim": 5, "value_dim": 3}


def where_keras_has(*arguments):
    """A mark: the oldest Keras that is supported lacks some."""
    theirs = inspect.signature(keras.layers.MultiHeadAttention.__init__).parameters
    lacks = set(arguments) - set(theirs)
    return pytest.mark.skipif(bool(lacks), reason=f"this Keras has no {lacks}")


# sliding_window


@where_keras_has("sliding_window")
@pytest.mark.parametrize("size", [1, 2, 3, 11])
@pytest.mark.parametrize("causal", [False, True])
def test_a_sliding_window_equals_keras(size, causal):
    tokens = draw(B, S, 11)
    ours, theirs = pair(tokens, tokens, sliding_window=size, **SIZES)
    assert_same(ours, theirs, tokens, tokens, use_causal_mask=causal)


@pytest.mark.parametrize("queries, keys", [(T, S), (S, T)])
def test_a_sliding_window_lines_up_at_the_end_as_the_causal_mask_does(queries, keys):
    query, value = draw(B, queries, 11), draw(B, keys, 5, seed=1)
    layer = tfattn.MultiHeadAttention(sliding_window=2, **SIZES)
    _, weights = layer(query, value, return_attention_scores=True)
    mask = np.broadcast_to(reference.window(2, queries, keys), weights.shape)
    np.testing.assert_array_equal(np.asarray(weights) != 0, mask)


def test_a_sliding_window_goes_with_every_other_mask():
    tokens = draw(B, S, 11)
    layer = tfattn.MultiHeadAttention(sliding_window=3, **SIZES)
    more = np.random.default_rng(2).random((S, S)) < 0.7
    call = {"attention_mask": more, "valid_lens": np.array([3, 6]), "use_causal_mask": True}
    _, weights = layer(tokens, tokens, return_attention_scores=True, **call)
    mask = more & reference.padding([3, 6], S) & reference.causal(S, S) & reference.window(3, S, S)
    mask = np.broadcast_to(mask[:, None], weights.shape)
    np.testing.assert_array_equal(np.asarray(weights) != 0, mask)


def test_a_sliding_window_moves_with_cached_decoding():
    layer, tokens = tfattn.MultiHeadAttention(sliding_window=3, **SIZES), draw(B, S, 11)
    wanted = layer(tokens, tokens, use_causal_mask=True)
    keys, values = layer.project_keys(tokens)
    for t in range(S):  # over a cache with room for all, so that only `start` tells the place
        seen = np.arange(S)[None, None] <= t
        output, _ = layer.attend_projected(tokens[:, t : t + 1], keys, values, seen, start=t)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)
    output, _ = layer.attend_projected(tokens[:, 4:], keys, values, reference.causal(3, S))
    np.testing.assert_allclose(output, wanted[:, 4:], atol=1e-5)


def test_a_decoder_of_windows_has_them_over_its_target_alone():
    attention = tfattn.MultiHeadAttention(2, 5, sliding_window=2)
    block = tfattn.TransformerDecoderBlock(hidden_dim=7, attention=attention)
    target, memory = draw(B, 5, 11), draw(B, S, 11, seed=1)
    _, over_target, over_memory = block(target, memory, return_attention_scores=True)
    band = reference.causal(5, 5) & reference.window(2, 5, 5)
    np.testing.assert_array_equal(np.asarray(over_target) != 0, np.broadcast_to(band, (B, 2, 5, 5)))
    assert np.all(np.asarray(over_memory) != 0)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_no_window_reaches_stays_out_of_outputs(broken):
    query, value = draw(B, T, 11), draw(B, S, 5, seed=1)
    value[:, :2] = broken  # the queries are at 4, 5 and 6
    layer = tfattn.MultiHeadAttention(sliding_window=3, **SIZES)
    assert np.isfinite(layer(query, value, use_causal_mask=True)).all()


# use_gate


@where_keras_has("use_gate")
@pytest.mark.parametrize(
    "options", [{}, {"use_bias": False}, {"output_shape": 13}], ids=["plain", "bare", "width"]
)
def test_a_gate_equals_keras(options):
    query, value, key = draw(B, T, 11), draw(B, S, 5, seed=1), draw(B, S, 13, seed=2)
    ours, theirs = pair(query, value, key, use_gate=True, **SIZES, **options)
    assert_same(ours, theirs, query, value, key)
    names = ["/".join(w.path.split("/")[1:]) for w in ours.weights]
    assert names == ["/".join(w.path.split("/")[1:]) for w in theirs.weights]


@where_keras_has("use_gate")
def test_a_gate_of_shared_key_heads_equals_keras():
    tokens = draw(B, S, 11)
    theirs = keras.layers.GroupQueryAttention(5, 6, 2, use_gate=True)
    ours = tfattn.MultiHeadAttention(6, 5, num_key_value_heads=2, use_gate=True)
    expected = theirs(tokens, tokens)
    ours(tokens, tokens)
    ours.set_weights(theirs.get_weights())
    np.testing.assert_allclose(ours(tokens, tokens), expected, atol=1e-5)


def test_a_gate_opens_each_feature_of_each_head_by_the_query():
    query, value = draw(B, T, 11), draw(B, S, 5, seed=1)
    layer = tfattn.MultiHeadAttention(use_gate=True, bias_initializer="random_normal", **SIZES)
    output = layer(query, value)
    wq, bq, wk, bk, wg, bg, wv, bv, wo, bo = layer.get_weights()
    gates = 1 / (1 + np.exp(-reference.split_heads(query, wg, bg)))
    q, k, v = (
        reference.split_heads(x, w, b)
        for x, w, b in ((query, wq, bq), (value, wk, bk), (value, wv, bv))
    )
    pooled, _ = reference.attention(reference.dot_product(q, k), v)
    np.testing.assert_allclose(output, reference.join_heads(gates * pooled, wo, bo), atol=1e-5)


def test_a_gate_opens_in_cached_decoding_too():
    layer, tokens = tfattn.MultiHeadAttention(use_gate=True, **SIZES), draw(B, S, 11)
    wanted = layer(tokens, tokens, use_causal_mask=True)
    keys, values = layer.project_keys(tokens)
    output, _ = layer.attend_projected(tokens[:, 4:], keys, values, reference.causal(3, S))
    np.testing.assert_allclose(output, wanted[:, 4:], atol=1e-5)


# flash_attention


@pytest.fixture
def taken(monkeypatch):
    """What `tfattn.attend` answered to the question of the path, call by call."""
    answers, ask = [], choice.streams

    def noted(*args):
        answers.append(ask(*args))
        return answers[-1]

    monkeypatch.setattr(choice, "streams", noted)
    return answers


def test_flash_attention_chooses_the_path(taken):
    tokens, outputs = draw(B, S, 11), []
    for flash in (None, True, False):
        layer = tfattn.MultiHeadAttention(flash_attention=flash, seed=1, **SIZES)
        layer.build(tokens.shape, tokens.shape)
        layer.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(layer.weights)])
        outputs.append(layer(tokens, tokens, use_causal_mask=True))
    assert taken == [False, True, False]
    for output in outputs[1:]:
        np.testing.assert_allclose(output, outputs[0], atol=1e-5)


def test_flash_attention_is_off_where_keras_is_told_so(taken):
    long = draw(1, 2048, 8)
    layer = tfattn.MultiHeadAttention(2, 4)
    layer(long, long)
    keras.config.disable_flash_attention()
    try:
        layer(long, long)
    finally:
        keras.config.enable_flash_attention()
    layer(long, long)
    assert taken == [True, False, True]


def test_a_streamed_layer_trains_with_dropout_which_keras_refuses(taken):
    tokens = draw(B, S, 11)
    layer = tfattn.MultiHeadAttention(flash_attention=True, dropout=0.5, seed=3, **SIZES)
    assert np.any(np.asarray(layer(tokens, tokens, training=True)) != layer(tokens, tokens))
    assert taken == [True, True]


def test_flash_attention_says_where_it_cannot_stream(monkeypatch):
    tokens = draw(B, S, 11)
    layer = tfattn.MultiHeadAttention(flash_attention=True, **SIZES)
    with pytest.raises(
        ValueError, match="MultiHeadAttention: `flash_attention` must be None or False where the we"
    ):
        layer(tokens, tokens, return_attention_scores=True)
    layer(tokens, tokens)
    monkeypatch.setattr("tfattn.core.paths.STREAMING_BACKENDS", ())
    with pytest.raises(
        ValueError, match="`flash_attention` must be None or False with the backend"
    ):
        layer(tokens, tokens)


def test_weights_of_a_streamed_layer_are_recorded_all_the_same():
    tokens = draw(B, S, 11)
    layer = tfattn.MultiHeadAttention(flash_attention=True, name="flash", **SIZES)
    (weights,) = tfattn.attention_weights(layer, tokens, tokens).values()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


# activity_regularizer


@where_keras_has("use_gate")
@pytest.mark.parametrize("gate", [False, True])
def test_an_activity_regularizer_counts_the_output_of_each_map_as_in_keras(gate):
    tokens = draw(B, S, 11)
    ours, theirs = pair(tokens, tokens, activity_regularizer="l2", use_gate=gate, **SIZES)
    ours(tokens, tokens), theirs(tokens, tokens, return_attention_scores=True)
    assert len(ours.losses) == 5 if gate else 4
    np.testing.assert_allclose(*(list(map(numpy, x.losses)) for x in (ours, theirs)), rtol=1e-5)
    again = tfattn.MultiHeadAttention.from_config(ours.get_config())
    again(tokens, tokens)
    assert len(again.losses) == len(ours.losses)


# Keras's own configs


KERAS = {
    "plain": {},
    "gate": {"use_gate": True, "sliding_window": 3},
    "output": {"output_shape": (3, 5), "attention_axes": 1},
    "others": {"use_bias": False, "dropout": 0.2, "seed": 5, "kernel_regularizer": "l2"},
}


@where_keras_has("use_gate", "sliding_window")
@pytest.mark.parametrize("case", KERAS)
def test_the_config_of_keras_layer_is_taken_built_or_not(case):
    tokens = draw(B, S, 11)
    theirs = keras.layers.MultiHeadAttention(**SIZES, **KERAS[case])
    before = theirs.get_config()
    # With the weights, for else Keras fails on JAX where values are of another width than keys.
    expected, _ = theirs(tokens, tokens, return_attention_scores=True)
    for config in (before, theirs.get_config()):
        ours = tfattn.MultiHeadAttention.from_config(config)
        ours(tokens, tokens)
        ours.set_weights(theirs.get_weights())
        np.testing.assert_allclose(ours(tokens, tokens), expected, atol=1e-5)
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
    model, tokens = keras.Model(x, layer(x, x)), draw(B, S, 11)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), model(tokens))
    assert loaded.layers[-1].get_config() == layer.get_config()


# Shapes


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
@pytest.mark.parametrize(
    "make", [lambda: tfattn.MultiHeadAttention(2, 3), tfattn.DotProductAttention], ids=["H", "1"]
)
def test_shapes_are_refused_wherever_they_are_met(make, shapes):
    refused = r"(MultiHead|DotProduct)Attention: `(query|value|key)` must "
    for act in (
        lambda layer: layer(*(draw(*shape) for shape in shapes)),
        lambda layer: layer.build(*shapes),
        lambda layer: layer.compute_output_shape(*shapes),
    ):
        with pytest.raises(ValueError, match=refused):
            act(make())


def test_causal_queries_before_the_first_key_see_nothing():
    query, value = draw(B, S, 11), draw(B, T, 5, seed=1)
    layer = tfattn.MultiHeadAttention(bias_initializer="random_normal", **SIZES)
    output, weights = layer(query, value, use_causal_mask=True, return_attention_scores=True)
    np.testing.assert_array_equal(np.asarray(weights)[:, :, : S - T], 0)
    np.testing.assert_array_equal(
        np.asarray(output)[:, : S - T], np.broadcast_to(layer.output_dense.bias, (B, S - T, 11))
    )
    assert np.all(np.asarray(weights)[:, :, S - T, 0] == 1)
