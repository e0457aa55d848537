"""attention_weights of models whose layers are Keras's, KerasHub's, or written by hand; files of
weights of Keras's layers.
"""

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

try:
    import keras_hub
except ImportError:
    keras_hub = None

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


SIZES = {
    "vocabulary_size": 10,
    "num_layers": 1,
    "hidden_dim": D,
    "intermediate_dim": 11,
}
HEADS = {"num_heads": 2}
GROUPS = {"num_query_heads": 4, "num_key_value_heads": 2}
LENGTH = {"max_sequence_length": S}
PADDED = {"token_ids": IDS, "padding_mask": (IDS > 0).astype("int32")}
PAIR = {
    f"{side}_{name}": array for side in ("encoder", "decoder") for name, array in PADDED.items()
}


def bert():
    model = keras_hub.models.BertBackbone(**SIZES, **HEADS, **LENGTH)
    return model, {**PADDED, "segment_ids": np.zeros_like(IDS)}


def gpt2():
    return keras_hub.models.GPT2Backbone(**SIZES, **HEADS, **LENGTH), PADDED


def bart():
    return keras_hub.models.BartBackbone(**SIZES, **HEADS, **LENGTH), PAIR


def t5():
    return keras_hub.models.T5Backbone(**SIZES, **HEADS, key_value_dim=4), PAIR


def llama():
    return keras_hub.models.LlamaBackbone(**SIZES, **GROUPS), PADDED


def gemma():
    return keras_hub.models.GemmaBackbone(**SIZES, **GROUPS, head_dim=4), PADDED


def esm():
    return keras_hub.models.ESMBackbone(**SIZES, **HEADS, **LENGTH), {"token_ids": IDS}


MODELS = [functional, sequential, subclassed, additive, over_axes]
HUB_MODELS = [bert, gpt2, bart, t5, llama, gemma, esm]

# The maps of values and of outputs, in the layers that return no weights.
MAPS = {
    "T5MultiHeadAttention": ("value_projector", "output_projector"),
    "LlamaAttention": ("_value_dense", "_output_dense"),
    "CachedGemmaAttention": ("value_dense", "output_dense"),
    "EsmSelfAttention": ("v_dense", "o_dense"),
}


@contextlib.contextmanager
def asked(layer, kept):
    """Keeps (layer, arguments, result) of each call, with the weights if they can be asked for."""
    call = layer.call

    def keeping(*args, return_attention_scores=False, **kwargs):
        if isinstance(layer, KERAS):
            result = call(*args, **kwargs, return_attention_scores=True)
        else:
            result = call(*args, **kwargs)
        kept.append((layer, args, kwargs, result))
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


def output_by(weights, layer, args, kwargs):
    """The output of a layer, from its weights and its own maps."""
    value_map, output_map = (getattr(layer, name) for name in MAPS[type(layer).__name__])
    kernel = numpy(output_map.kernel).reshape(-1, D)  # (H·Dv, D)
    heads = weights.shape[1]
    tokens = [*args, *kwargs.values()][0]
    memory = kwargs.get("key_value_states")
    value = numpy(value_map(tokens if memory is None else memory))
    value = value.reshape(B, S, -1, len(kernel) // heads)  # (B, S, K, Dv)
    value = value.repeat(heads // value.shape[2], axis=2)
    return np.einsum("bhts,bshd->bthd", weights, value).reshape(B, S, -1) @ kernel


@pytest.mark.filterwarnings(
    "ignore:.*does not support masking:UserWarning"
)  # T5 as KerasHub has it
@pytest.mark.parametrize(
    "make",
    MODELS
    + [
        pytest.param(make, marks=pytest.mark.skipif(keras_hub is None, reason="no keras_hub"))
        for make in HUB_MODELS
    ],
)
def test_weights_are_those_that_the_layers_compute(make):
    model, *inputs = make()
    calls = attention_calls(model, inputs)
    found = tfattn.attention_weights(model, *inputs)
    assert len(found) == len(calls) > 0
    for (path, weights), (layer, args, kwargs, result) in zip(found.items(), calls, strict=True):
        assert path.split(":")[0] == layer.path
        if isinstance(layer, KERAS):
            np.testing.assert_allclose(weights, numpy(result[1]), atol=1e-6)
            continue
        output = numpy(result[0] if isinstance(result, tuple) else result)
        assert weights.shape[2:] == (S, S)
        np.testing.assert_allclose(output_by(weights, layer, args, kwargs), output, atol=1e-5)


class TutorialAttention(keras.layers.Layer):
    """Attention pooling as tutorials write it, with the softmax that is passed."""

    def __init__(self, softmax):
        super().__init__(name="pooling")
        self.softmax = softmax
        self.score = keras.layers.Dense(1)

    def call(self, x):
        weights = self.softmax(self.score(x))  # (B, S, 1)
        return ops.sum(weights * x, axis=1), weights


def written_out(scores):
    powers = ops.exp(scores)
    return powers / ops.sum(powers, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "softmax",
    [lambda scores: ops.softmax(scores, axis=1), keras.layers.Softmax(axis=1)],
    ids=["function", "layer"],
)
def test_the_keys_of_a_layer_written_by_hand_are_in_the_last_axis(softmax):
    layer = TutorialAttention(softmax)
    _, expected = layer(TOKENS)
    (weights,) = tfattn.attention_weights(layer, TOKENS).values()
    np.testing.assert_array_equal(weights, numpy(expected).swapaxes(1, 2))


def test_other_softmaxes_are_not_attention():
    x = keras.Input((S, D))
    y = keras.layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    model = keras.Model(x, keras.layers.Softmax()(keras.layers.Dense(3, "softmax")(y)))
    assert list(tfattn.attention_weights(model, TOKENS)) == ["attention"]


class Mean(keras.layers.MultiHeadAttention):
    def _compute_attention(self, query, key, value, *args, **kwargs):
        return ops.mean(value, axis=1, keepdims=True) + 0 * query, None


def test_layers_whose_weights_cannot_be_seen_are_named():
    layer = TutorialAttention(written_out)
    x = keras.Input((S, D))
    y = keras.layers.MultiHeadAttention(2, 3, name="seen")(x, x)
    model = keras.Model(x, layer(Mean(2, 3, name="mean")(y, y)))
    named = r"mean \(Mean\), pooling \(TutorialAttention\)$"
    with pytest.warns(UserWarning, match=f"attention_weights: these layers .*: {named}"):
        assert list(tfattn.attention_weights(model, TOKENS)) == ["seen"]
    with pytest.raises(ValueError, match=r"hide their weights: pooling \(TutorialAttention\)"):
        tfattn.attention_weights(layer, TOKENS)


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


def functions():
    softmaxes = [ops.softmax, ops.nn.softmax]
    return [
        keras.layers.Layer.__call__,
        *softmaxes,
        ops.dot_product_attention,
        ops.nn.dot_product_attention,
    ]


def test_nothing_is_left_on_layers_or_in_keras_not_after_an_error_either():
    layer = keras.layers.GroupQueryAttention(4, 4, 2)
    layer(TOKENS, TOKENS)
    layer._flash_attention = True  # with which a call on a CPU is an error
    before = vars(layer).copy(), functions()
    tfattn.attention_weights(layer, TOKENS, TOKENS)
    assert (vars(layer), functions()) == before
    with pytest.raises(Exception, match="pe"):  # "shape" or "type", by backend
        tfattn.attention_weights(layer, TOKENS, TOKENS, attention_mask=np.ones((B, 4, 5), bool))
    assert (vars(layer), functions()) == before


def test_threads_get_their_own_weights():
    entered, released = threading.Event(), threading.Event()

    class Waiting(keras.layers.Layer):
        def call(self, x):
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                released.wait(20)
            return x

    model = keras.Sequential([Waiting(), Block()])
    output, before = numpy(model(TOKENS)), functions()
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
    assert functions() == before


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
