"""attention_weights of models whose layers are Keras's; files of weights of Keras's layers."""

import concurrent.futures
import contextlib
import threading

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.tensors import numpy, tf
from tests.layers.test_multi_head import draw

B, S, D = 3, 6, 8
TOKENS = draw(B, S, D)
IDS = np.array(
    [[5, 3, 8, 2, 0, 0], [4, 9, 7, 1, 6, 3], [2, 0, 0, 0, 0, 0]], "int32"
)  # 0 is padding
KERAS = (
    keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention,
    keras.layers.Attention,
)


def functional():
    ids = keras.Input((S,), dtype="int32")
    x = keras.layers.Embedding(10, D, mask_zero=True)(ids)
    layer = keras.layers.MultiHeadAttention(2, 3, dropout=0.1)
    return keras.Model(ids, layer(layer(x, x), x, use_causal_mask=True)), IDS


class Block(keras.layers.Layer):
    """Attention and more of it, made where it is built."""

    def build(self, shape):
        self.attention = keras.layers.GroupQueryAttention(4, 4, 2, name="grouped")
        self.attention.build(shape, shape)

    def call(self, x):
        return x + self.attention(x, x, use_causal_mask=True)


def sequential():
    layers = [keras.layers.Embedding(10, D), Block(name="first"), Block(name="second")]
    return keras.Sequential(layers), IDS


class Reader(keras.Model):
    """Asks one of its layers for the weights by itself."""

    def __init__(self):
        super().__init__()
        self.luong = keras.layers.Attention(use_scale=True, score_mode="concat")
        self.heads = keras.layers.MultiHeadAttention(2, 4)

    def call(self, query, value):
        x = self.luong([query, value], mask=[None, ops.any(value > 0, -1)])
        x, weights = self.heads(x, value, return_attention_scores=True)
        return x, weights


def subclassed():
    return Reader(), TOKENS[:, :4], TOKENS


def additive():
    query, value = keras.Input((None, D)), keras.Input((None, D))
    x = keras.layers.Masking()(value)
    x = keras.layers.AdditiveAttention()([query, x], use_causal_mask=True)
    value_of_padding = TOKENS * (IDS > 0)[..., None]
    return keras.Model([query, value], x), [TOKENS, value_of_padding]


def over_axes():
    image = keras.Input((3, 4, D))
    x = keras.layers.MultiHeadAttention(2, 4, attention_axes=(1, 2))(image, image)
    return keras.Model(image, x), draw(B, 3, 4, D)


MODELS = [functional, sequential, subclassed, additive, over_axes]


@contextlib.contextmanager
def asked(layer, kept):
    """Keeps (layer, result) of each call, with the weights if they can be asked for."""
    call = layer.call

    def keeping(*args, return_attention_scores=False, **kwargs):
        if isinstance(layer, KERAS):
            result = call(*args, **kwargs, return_attention_scores=True)
        else:
            result = call(*args, **kwargs)
        kept.append((layer, result))
        return result[0] if isinstance(layer, KERAS) and not return_attention_scores else result

    vars(layer)["call"] = keeping
    yield
    del vars(layer)["call"]


def attention_calls(model, inputs):
    kept = []
    model(*inputs)
    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers():
            if "Attention" in type(layer).__name__:
                stack.enter_context(asked(layer, kept))
        model(*inputs)
    return kept


@pytest.mark.parametrize("make", MODELS)
def test_weights_are_those_that_the_layers_compute(make):
    model, *inputs = make()
    calls = attention_calls(model, inputs)
    found = tfattn.attention_weights(model, *inputs)
    assert len(found) == len(calls) > 0
    for (path, weights), (layer, result) in zip(found.items(), calls, strict=True):
        assert path.split(":")[0] == layer.path
        np.testing.assert_allclose(weights, numpy(result[1]), atol=1e-6)


class TutorialAttention(keras.layers.Layer):
    """Attention pooling as tutorials write it."""

    def __init__(self):
        super().__init__(name="pooling")
        self.score = keras.layers.Dense(1)

    def call(self, x):
        return ops.sum(ops.softmax(self.score(x), axis=1) * x, axis=1)


def test_other_softmaxes_are_not_attention():
    x = keras.Input((S, D))
    y = keras.layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    model = keras.Model(x, keras.layers.Softmax()(keras.layers.Dense(3, "softmax")(y)))
    assert list(tfattn.attention_weights(model, TOKENS)) == ["attention"]


class Mean(keras.layers.MultiHeadAttention):
    def _compute_attention(self, query, key, value, *args, **kwargs):
        return ops.mean(value, axis=1, keepdims=True) + 0 * query, None


def test_layers_whose_weights_cannot_be_seen_are_named():
    layer = TutorialAttention()
    x = keras.Input((S, D))
    y = keras.layers.MultiHeadAttention(2, 3, name="seen")(x, x)
    model = keras.Model(x, layer(Mean(2, 3, name="mean")(y, y)))
    named = r"mean \(Mean\), pooling \(TutorialAttention\)$"
    with pytest.warns(UserWarning, match=f"attention_weights: these layers .*: {named}"):
        assert list(tfattn.attention_weights(model, TOKENS)) == ["seen"]
    with pytest.raises(ValueError, match=r"hide their weights: pooling \(TutorialAttention\)"):
        tfattn.attention_weights(layer, TOKENS)
    said = "^attention_weights: `model` must hold attention layers of this package or of Keras"
    with pytest.raises(ValueError, match=said):
        tfattn.attention_weights(keras.layers.Dense(3), TOKENS)


def test_attention_layers_of_keras_hub_are_named():
    model = pytest.importorskip("keras_hub").models.LlamaBackbone(
        vocabulary_size=10,
        num_layers=1,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=D,
        intermediate_dim=11,
    )
    with pytest.raises(ValueError, match=r"hide their weights: .* \(LlamaAttention\)\. Received"):
        tfattn.attention_weights(model, {"token_ids": IDS, "padding_mask": IDS > 0})


@pytest.mark.tensorflow
def test_a_compiled_call_is_named_and_compiled_as_ever():
    heads = keras.layers.MultiHeadAttention(2, 3, name="heads")
    heads.build(TOKENS.shape, TOKENS.shape)

    class Compiled(keras.Model):
        def __init__(self):
            super().__init__()
            self.heads = heads
            self.run = tf.function(lambda x: self.heads(x, x))

        def call(self, x):
            return self.run(x)

    def operations(model):
        graph = model.run.get_concrete_function(tf.constant(TOKENS)).graph
        return [operation.type for operation in graph.get_operations()]

    model = Compiled()
    with pytest.raises(ValueError, match=r"hide their weights: \S*heads \(MultiHeadAttention\)"):
        tfattn.attention_weights(model, TOKENS)
    untouched = Compiled()
    untouched(TOKENS)
    assert operations(model) == operations(untouched)


def test_nothing_is_left_on_layers_not_after_an_error_either():
    layer = keras.layers.GroupQueryAttention(4, 4, 2)
    layer(TOKENS, TOKENS)
    layer._flash_attention = True  # with which a call on a CPU is an error
    before = vars(layer).copy()
    tfattn.attention_weights(layer, TOKENS, TOKENS)
    assert vars(layer) == before
    with pytest.raises(Exception, match="pe"):  # "shape" or "type", by backend
        tfattn.attention_weights(layer, TOKENS, TOKENS, attention_mask=np.ones((B, 4, 5), bool))
    assert vars(layer) == before


def test_threads_get_their_own_weights():
    entered, released = threading.Event(), threading.Event()

    class Waiting(keras.layers.Layer):
        def call(self, x):
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                released.wait(20)
            return x

    model = keras.Sequential([Waiting(), Block()])
    output = numpy(model(TOKENS))
    expected = tfattn.attention_weights(model, TOKENS)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = [pool.submit(tfattn.attention_weights, model, TOKENS) for _ in range(2)]
        entered.wait(20)
        np.testing.assert_array_equal(model(TOKENS), output)  # while another thread records
        released.set()
    for result in results:
        assert result.result().keys() == expected.keys()
        np.testing.assert_array_equal(
            *[next(iter(one.values())) for one in (result.result(), expected)]
        )


def test_figures_take_the_weights():
    layer = keras.layers.MultiHeadAttention(2, 3, dtype="bfloat16", name="attention")
    weights = tfattn.attention_weights(layer, TOKENS, TOKENS)
    words = list("abcdef")
    assert "attention" in tfattn.plot.viewer(weights, words).page
    figure = tfattn.plot.head_grid({path: one[0] for path, one in weights.items()}, words, words)
    assert len(figure.axes) >= 2


class Holder(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.attention = layer

    def call(self, x):
        return self.attention(x, x)


@pytest.mark.slow
@pytest.mark.parametrize(
    "theirs, groups",
    [
        (keras.layers.GroupQueryAttention(4, 4, 2, use_gate=True), 2),
        (keras.layers.MultiHeadAttention(4, 4, use_gate=True), None),
    ],
    ids=["GroupQueryAttention", "MultiHeadAttention"],
)
def test_weights_file_of_keras_layer_loads(theirs, groups, tmp_path):
    old = Holder(theirs)
    new = Holder(tfattn.MultiHeadAttention(4, 4, use_gate=True, num_key_value_heads=groups))
    old(TOKENS), new(TOKENS)
    rng = np.random.default_rng(7)
    old.set_weights([rng.normal(size=w.shape) for w in old.get_weights()])
    old.save_weights(tmp_path / "old.weights.h5")
    new.load_weights(tmp_path / "old.weights.h5")
    np.testing.assert_allclose(numpy(new(TOKENS)), numpy(old(TOKENS)), atol=2e-5)
