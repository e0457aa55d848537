"""Leaks of models: people's cases, each found at its layer, and right models, in which is none."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.tensors import numpy
from tfattn.interpret import Leak, assert_no_leaks, find_leaks

B, T, S, V, D = 3, 7, 5, 20, 8
L = keras.layers
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(1, V, (B, T))
PADDED = np.where(np.arange(T) < np.array([[T], [4], [6]]), IDS, 0)
AT_THE_START = PADDED[:, ::-1].copy()
SOURCE = np.where(np.arange(S) < np.array([[3], [S], [2]]), IDS[:, :S], 0)
X = RANDOM.normal(size=(B, T, D)).astype("float32")
LENGTHS = np.array([T, 4, 6])
MASK = np.arange(T) < LENGTHS[:, None]


class Block(L.Layer):
    """Attention and a residual connection, subclassed; `options` of the attention's call."""

    def __init__(self, attention, use_causal_mask=True, **kwargs):
        super().__init__(**kwargs)
        self.attention, self.use_causal_mask = attention, use_causal_mask

    def call(self, x):
        return x + self.attention(x, x, use_causal_mask=self.use_causal_mask)


def causal(x):
    """Which step `(T, T)` may see which."""
    steps = ops.arange(ops.shape(x)[1])
    return steps[:, None] >= steps


def mha(**kwargs):
    return L.MultiHeadAttention(2, 4, name="attention", **kwargs)


def language_model(*layers, mask_zero=True, length=None, out=V):
    """A functional model from ids through layers to logits."""
    ids = keras.Input((length,), dtype="int32")
    x = L.Embedding(V, D, mask_zero=mask_zero)(ids)
    for layer in layers:
        x = layer(x)
    return keras.Model(ids, L.Dense(out)(x))


def of_floats(*layers, length=None):
    """A functional model from floats through layers."""
    x = inputs = keras.Input((length, D))
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


class Dropped(Block):
    """Has no causal mask as soon as it has dropout: keras-team/keras#23038."""

    def call(self, x, training=None):
        mask = None if self.attention.dropout else causal(x)
        return x + self.attention(x, x, attention_mask=mask, training=training)


class Inverted(Block):
    """Takes True for "hidden": tensorflow/text#894."""

    def call(self, x):
        return x + self.attention(x, x, attention_mask=ops.logical_not(causal(x)))


class Decoder(keras.Model):
    """A decoder whose cross-attention has a mask of the source, or of the target."""

    def __init__(self, of_target):
        super().__init__(name="decoder")
        self.embedding, self.of_target = L.Embedding(V, D), of_target
        self.self_attention = L.MultiHeadAttention(2, 4, name="self_attention")
        self.cross_attention = L.MultiHeadAttention(2, 4, name="cross_attention")

    def call(self, inputs):
        source, target = inputs["encoder_inputs"], inputs["decoder_inputs"]
        y, memory = self.embedding(target), self.embedding(source)
        y += self.self_attention(y, y, use_causal_mask=True)
        mask = (target if self.of_target else source) != 0
        return y + self.cross_attention(y, memory, attention_mask=mask[:, None])


class Recommender(keras.Model):
    """Items of a user, padded at the start, with a mask of padding."""

    def __init__(self, causal):
        super().__init__(name="recommender")
        self.items, self.causal = L.Embedding(V, D), causal
        self.places = tfattn.LearnedPositionalEncoding(T)
        self.attention = L.MultiHeadAttention(2, 4, name="attention")

    def call(self, ids):
        real = ids != 0
        x = self.places(self.items(ids))
        mask = ops.broadcast_to(real[:, None], (*real.shape, real.shape[1]))
        x = self.attention(x, x, attention_mask=mask, use_causal_mask=self.causal)
        return ops.matmul(x, ops.transpose(self.items.embeddings))


class Forgetful(L.Layer):
    """Supports no masks, and so passes none on."""

    def call(self, x):
        return 2.0 * x


class Mean(L.Layer):
    """A mean of floats `(B, T, D)` over all steps, or over the real ones."""

    supports_masking = True

    def __init__(self, masked, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking, self.masked = True, masked

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, x, mask=None):
        if not self.masked:
            return ops.mean(x, axis=1)
        real = ops.cast(mask, x.dtype)[..., None]
        return ops.sum(x * real, axis=1) / ops.sum(real, axis=1)


def mean_loss(inputs, masked):
    """The loss of each row: sums over real steps, divided by all steps or by the real ones."""
    labels, logits = inputs
    real = ops.cast(labels != 0, "float32")
    each = ops.sum(keras.losses.sparse_categorical_crossentropy(labels, logits, True) * real, 1)
    return each / (ops.sum(real, 1) if masked else labels.shape[1])


def functional_decoder(attention):
    memory, y = keras.Input((None, D)), keras.Input((None, D))
    return keras.Model([memory, y], attention(y, memory))


BOTH = {"encoder_inputs": np.where(PADDED[[1, 2, 0]], IDS, 0), "decoder_inputs": PADDED}
LOSS = (PADDED, RANDOM.normal(size=(B, T, V)).astype("float32"))
ENCODER, IS_PADDED = {"causal": False, "padding": 0}, {"padding": 0}
LOST = "ignore:Layer 'forgetful' .* was passed an input with a mask"

# name: (model, inputs, options, kind, from, to, first layer)
CASES = {
    "keras#23038: no causal mask under dropout": (
        lambda: language_model(Dropped(mha(dropout=0.1), name="block")),
        *(IDS, {}, "future", "position 1 of the input", "at position 0", "block/attention"),
    ),
    "keras#21284: a causal mask never passed on": (
        lambda: language_model(Block(mha(), False, name="block")),
        *(PADDED, IS_PADDED, "future", "position 1", "at position 0", "block/attention"),
    ),
    "tensorflow/text#894: an inverted mask": (
        lambda: language_model(Inverted(mha(), name="block"), mask_zero=False),
        *(IDS, {}, "future", "position 1", "at position 0", "block/attention"),
    ),
    "keras-io#1964: the target's padding in cross-attention": (
        lambda: Decoder(of_target=True),
        *(BOTH, {"causal": "decoder_inputs", "padding": 0}, "padding"),
        *("input 'encoder_inputs'", "the output", "decoder/cross_attention"),
    ),
    "RecLearn#81: a recommender without a causal mask": (
        lambda: Recommender(causal=False),
        *(AT_THE_START, IS_PADDED, "future", "position", "position", "recommender/attention"),
    ),
    "a mask lost on its way": (
        lambda: language_model(Forgetful(name="forgetful"), L.GlobalAveragePooling1D(name="pool")),
        *(PADDED, ENCODER, "padding", "under the padding", "in row 1", "pool"),
    ),
    "a mean over padded steps": (
        lambda: language_model(Mean(masked=False, name="mean")),
        *(PADDED, ENCODER, "padding", "under the padding", "in row 1", "mean"),
    ),
    "a mean over padded steps, an operation": (
        lambda: language_model(lambda x: keras.ops.mean(x, axis=1)),
        *(PADDED, ENCODER, "padding", "under the padding", "in row 1", "mean"),
    ),
    "a convolution without causal padding": (
        lambda: of_floats(L.Conv1D(D, 3, padding="same", name="convolution")),
        *(X, {}, "future", "position 1", "at position 0", "convolution"),
    ),
    "d2l-en#2076: a loss that divides by padding": (
        lambda: functools.partial(mean_loss, masked=False),
        *(LOSS, ENCODER, "padding", "the amount of padding of input 0", "in row 1", None),
    ),
    "a dilated convolution": (
        lambda: of_floats(L.Conv1D(D, 3, dilation_rate=2, padding="same", name="convolution")),
        *(X, {}, "future", "position 2", "at position 0", "convolution"),
    ),
    "a bidirectional language model": (
        lambda: language_model(L.Bidirectional(L.GRU(4, return_sequences=True), name="both")),
        *(PADDED, IS_PADDED, "future", "position 1", "at position 0", "backward"),
    ),
    "time and batch exchanged": (
        lambda: of_floats(
            lambda x: ops.transpose(x, (1, 0, 2)), Block(mha()), lambda x: ops.transpose(x, (1, 0, 2))
        ),
        *(X, {}, "rows", "row 1", "in row 0", "transpose"),
    ),
    "a norm over time": (
        lambda: of_floats(L.LayerNormalization(axis=(1, 2), name="norm"), length=T),
        *(X, {}, "future", "position 1", "at position 0", "norm"),
    ),
    "a mask that only weakens": (
        lambda: of_floats(Weakened(name="weakened")),
        *(X, {}, "future", "position 1", "at position 0", "weakened"),
    ),
}


class Weakened(L.Layer):
    """Subtracts 10 from the scores of later keys."""

    def call(self, x):
        scores = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        return ops.matmul(ops.softmax(ops.where(causal(x), scores, scores - 10.0)), x)


@pytest.mark.filterwarnings(LOST)
@pytest.mark.parametrize("case", CASES)
def test_leak_is_found_with_its_layer(case):
    build, inputs, options, kind, source, output, layer = CASES[case]
    leaks = find_leaks(build(), inputs, **options)
    print(*leaks, sep="\n")
    assert {leak.kind for leak in leaks} >= {kind}
    leak = next(leak for leak in leaks if leak.kind == kind)
    assert source in leak.source and output in leak.output
    assert leak.layer is None if layer is None else (leak.layer or "").endswith(layer)
    assert leak.size > 0
