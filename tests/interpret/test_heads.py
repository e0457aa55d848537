"""Heads of a model: gates on them, gradients, and heads switched off."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.tensors import numpy
from tests.interpret import oracle
from tfattn.interpret import head_importance, without_heads

B, T, D, H, P = 2, 3, 5, 4, 2
TOKENS = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")

LAYERS = {
    "of this package": lambda name: tfattn.MultiHeadAttention(H, P, name=name),
    "with shared keys": lambda name: tfattn.MultiHeadAttention(
        H, P, num_key_value_heads=2, name=name
    ),
    "with a gate": lambda name: tfattn.MultiHeadAttention(H, P, use_gate=True, name=name),
    "of Keras": lambda name: keras.layers.MultiHeadAttention(H, P, name=name),
    "of Keras, with shared keys": lambda name: keras.layers.GroupQueryAttention(P, H, 2, name=name),
}


@functools.cache
def stack(kind="of this package", length=2):
    """A model of layers x + attention(x), and the layers: one for all tests, which leave it as it
    was. `stack.__wrapped__` makes another.
    """
    layers = [LAYERS[kind](f"layer_{number}") for number in range(length)]
    x = tokens = keras.Input((None, D))
    for layer in layers:
        x = x + layer(x, x)
    random = np.random.default_rng(1)
    for layer in layers:  # with biases that are not 0
        layer.set_weights([random.normal(size=w.shape) / 2 for w in layer.get_weights()])
    return keras.Model(tokens, x), layers


def objective(output):
    """`(B,)`, and no linear function."""
    return ops.sum(ops.square(output[:, :2]), axis=(1, 2))


def oracle_of(layers, **changes):
    output = oracle.stack(TOKENS.astype("float64"), [*map(oracle.weights_of, layers)], **changes)
    return np.square(output[:, :2]).sum(axis=(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYERS)
def test_head_importance_equals_finite_difference_in_the_gate(kind):
    model, layers = stack(kind)

    def total(moved):
        return oracle_of(layers, gates=1.0 + moved).sum()

    slopes = oracle.slopes(total, (2, B, H))  # rows do not meet, so their sum has each one's slope
    found = head_importance(model, TOKENS, objective)
    assert list(found) == ["layer_0", "layer_1"]
    for layer, slope in zip(found.values(), slopes, strict=True):
        np.testing.assert_allclose(layer, np.abs(slope).mean(axis=0), rtol=1e-4, atol=1e-4)
    summed = head_importance(model, TOKENS, lambda output: ops.sum(objective(output)))
    np.testing.assert_allclose(summed["layer_1"], found["layer_1"])


@pytest.mark.slow
def test_head_importance_of_a_layer_called_twice_gates_both_calls():
    layer = LAYERS["of this package"]("shared")
    x = tokens = keras.Input((None, D))
    for _ in range(2):
        x = x + layer(x, x)
    model = keras.Model(tokens, x)

    def total(moved):
        return oracle_of([layer, layer], gates=[1.0 + moved] * 2).sum()

    slopes = oracle.slopes(total, (B, H))
    found = head_importance(model, TOKENS, objective)
    np.testing.assert_allclose(found["shared"], np.abs(slopes).mean(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_head_importance_ignores_dropout_and_changes_no_output():
    layer = tfattn.MultiHeadAttention(H, P, dropout=0.5, name="layer")
    tokens = keras.Input((None, D))
    model = keras.Model(tokens, layer(tokens, tokens))
    before = numpy(model(TOKENS))
    first, again = (head_importance(model, TOKENS, objective)["layer"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(numpy(model(TOKENS)), before)
    assert not any("call" in vars(each) for each in model._flatten_layers())


def test_head_importance_error_leaves_the_model_as_it_was():
    model, _ = stack(length=1)
    before = numpy(model(TOKENS))

    def raises(output):
        raise RuntimeError("of the objective")

    with pytest.raises(RuntimeError, match="of the objective"):
        head_importance(model, TOKENS, raises)
    np.testing.assert_array_equal(numpy(model(TOKENS)), before)
    assert not any("call" in vars(each) for each in model._flatten_layers())


def test_head_importance_of_layers_with_more_axes_is_by_head():
    layer = tfattn.MultiHeadAttention(H, P, attention_axes=2, name="layer")
    tokens = keras.Input((T, 7, D))
    model = keras.Model(tokens, layer(tokens, tokens))
    x = np.random.default_rng(2).normal(size=(B, T, 7, D)).astype("float32")
    found = head_importance(model, x, lambda output: ops.sum(output[:, 0], axis=(1, 2)))
    assert found["layer"].shape == (H,) and (found["layer"] > 0).all()


@pytest.mark.parametrize("kind", LAYERS)
def test_without_heads_equals_zero_rows_of_the_output_map(kind):
    model, layers = stack(kind)
    before, weights = numpy(model(TOKENS)), model.get_weights()
    zeroed = layers[1].get_weights()
    zeroed[-2][[0, 2]] = 0.0
    layers[1].set_weights(zeroed)
    wanted = numpy(model(TOKENS))
    model.set_weights(weights)
    with without_heads(model, {"layer_1": np.array([0, 2])}):
        np.testing.assert_array_equal(numpy(model(TOKENS)), wanted)
        gates = np.ones((2, B, H))
        gates[1][:, [0, 2]] = 0.0
        np.testing.assert_allclose(objective(numpy(model(TOKENS))), oracle_of(layers), rtol=1e-4)
    assert not np.allclose(wanted, before)
    np.testing.assert_array_equal(numpy(model(TOKENS)), before)
    for now, then in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(now, then)
    np.testing.assert_allclose(objective(wanted), oracle_of(layers, gates=gates), rtol=1e-4)


@pytest.mark.slow
def test_without_heads_restores_after_errors_and_nested_scopes():
    model, _ = stack()
    before = numpy(model(TOKENS))
    with pytest.raises(RuntimeError, match="inside"), without_heads(model, {"layer_0": 1}):
        raise RuntimeError("inside")
    np.testing.assert_array_equal(numpy(model(TOKENS)), before)
    with without_heads(model, {"layer_0": [0, 1]}):
        both = numpy(model(TOKENS))
    with without_heads(model, {"layer_0": 1}):
        one = numpy(model(TOKENS))
        with without_heads(model, {"layer_0": 0}):
            np.testing.assert_array_equal(numpy(model(TOKENS)), both)
        np.testing.assert_array_equal(numpy(model(TOKENS)), one)
    with without_heads(model, {}):
        np.testing.assert_array_equal(numpy(model(TOKENS)), before)


@pytest.mark.slow
def test_without_heads_is_seen_by_compiled_functions():
    model, _ = stack(length=1)
    before = model.predict(TOKENS, verbose=0)
    with without_heads(model, {"layer_0": range(H)}):
        off = model.predict(TOKENS, verbose=0)
        np.testing.assert_allclose(off, numpy(model(TOKENS)), rtol=1e-5)
    assert not np.allclose(off, before)
    np.testing.assert_array_equal(model.predict(TOKENS, verbose=0), before)


@pytest.mark.slow
def test_without_heads_blinds_a_search_of_a_transformer():
    model = tfattn.Transformer(11, num_layers=1, width=8, num_heads=2, hidden_dim=16)
    ids = np.array([[2, 3, 5, 0]])
    model((ids, ids))
    words = tfattn.data.Vocabulary(list("abcdefg"))
    paths = head_importance(model, (ids, ids), lambda output: output[:, 0, 0])
    assert sorted(path.rpartition("/")[2] for path in paths) == [
        *("cross_attention", "self_attention", "self_attention")
    ]
    before = numpy(model((ids, ids)))
    sentences = ["a b c d", "c a"]
    translations = tfattn.translate(model, sentences, words, words, max_length=5)
    with without_heads(model, {path: [0, 1] for path in paths}):  # blind for the source
        np.testing.assert_array_equal(numpy(model((ids[:, ::-1], ids))), numpy(model((ids, ids))))
        blind = tfattn.translate(model, sentences, words, words, max_length=5)
        assert blind[0] == blind[1]
    np.testing.assert_array_equal(numpy(model((ids, ids))), before)
    assert tfattn.translate(model, sentences, words, words, max_length=5) == translations


@pytest.mark.slow
def test_heads_of_keras_hub_are_gated():
    models = pytest.importorskip("keras_hub").models
    sizes = {"vocabulary_size": 11, "num_layers": 1, "num_query_heads": 2}
    model = models.LlamaBackbone(**sizes, hidden_dim=8, intermediate_dim=16, num_key_value_heads=1)
    ids = np.array([[2, 3, 5, 7]])
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    before = numpy(model(inputs))

    def first(output):
        return ops.sum(output[:, -1, :2], axis=-1)

    (path,) = found = head_importance(model, inputs, first)
    assert found[path].shape == (2,) and (found[path] > 0).all()
    with without_heads(model, {path: 0}):
        assert not np.allclose(numpy(model(inputs)), before)
    np.testing.assert_array_equal(numpy(model(inputs)), before)


def changed(change):
    """A model whose output map is changed."""
    model, (layer,) = stack.__wrapped__(length=1)
    change(layer.output_dense)
    return model


def of_one_head():
    tokens = keras.Input((None, D))
    return keras.Model(tokens, tfattn.DotProductAttention(name="single")(tokens, tokens))


def enter(heads, model=None):
    with without_heads(model or stack()[0], heads):
        raise AssertionError("the scope was entered")


def importance(objective, model=None):
    return head_importance(model or stack()[0], TOKENS, objective)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: importance(objective, of_one_head()),
            r"head_importance: `model` must be built, with a layer like MultiHeadAttention, "
            r".* Received: model=\['single'\]",
        ),
        (
            lambda: importance(objective, changed(lambda layer: layer.quantize("int8"))),
            r"without LoRA and not quantized\. Received: model=\['layer_0'\]",
        ),
        (
            lambda: enter({"layer_0": 0}, changed(lambda layer: layer.enable_lora(2))),
            r"Received: model=\['layer_0'\]",
        ),
        (
            lambda: enter({"layer_7": 0}),
            r"without_heads: `heads` must hold layer paths from \['layer_0', 'layer_1'\]\."
            " Received: heads='layer_7'",
        ),
        (
            lambda: enter({"layer_0": 4}),
            r"`heads\['layer_0'\]` must be at least 0 and below 4\. Received: .*=\[4\]",
        ),
        (lambda: enter({"layer_0": -1}), r"must be at least 0 and below 4"),
        (lambda: enter({"layer_0": 0.5}), r"`heads\['layer_0'\]` must hold integers"),
        (lambda: enter(["layer_0"]), r"`heads` must be a dict with names as keys"),
        (
            lambda: importance(lambda output: output),
            r"head_importance: `objective` must return a tensor of shape \(\) or \(B,\), .*"
            r"Received: objective=\(\d, \d, \d\)$",
        ),
        (
            lambda: importance(lambda output: 1.0),
            r"`objective` must return a tensor of shape \(\) or \(B,\), by keras\.ops",
        ),
    ],
)
def test_heads_that_cannot_be_gated_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
