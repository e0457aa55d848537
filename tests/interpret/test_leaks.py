"""Leaks of models: people's cases, each found at its layer, and right models, in which is none."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tfattn.interpret import assert_no_leaks, find_leaks

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
        self.supports_masking = True
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
        *(IDS, {}, "future", "position 1 of input 0", "at position 0", "block/attention"),
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
        *(PADDED, IS_PADDED, "future", "position 1", "at position 0", "both"),
    ),
    "attention over the batch": (
        lambda: of_floats(AcrossRows(name="across")),
        *(X, {}, "rows", "row 0", "in row 1", "across"),
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


class AcrossRows(L.Layer):
    """Takes the first axis for time, as of inputs (T, B, D)."""

    def call(self, x):
        x = ops.transpose(x, (1, 0, 2))
        weights = ops.softmax(ops.matmul(x, ops.transpose(x, (0, 2, 1))))
        return ops.transpose(ops.matmul(weights, x), (1, 0, 2))


class Weakened(L.Layer):
    """Subtracts 10 from the scores of later keys."""

    def call(self, x):
        scores = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        return ops.matmul(ops.softmax(ops.where(causal(x), scores, scores - 10.0)), x)


@pytest.mark.filterwarnings(LOST, "ignore:find_leaks. not tested with less padding")
@pytest.mark.parametrize("case", CASES)
def test_leak_is_found_with_its_layer(case):
    build, inputs, options, kind, source, output, layer = CASES[case]
    leaks = find_leaks(build(), inputs, **options)
    (leak,) = [leak for leak in leaks if leak.kind == kind]
    assert source in leak.source and output in leak.output
    assert leak.layer is None if layer is None else (leak.layer or "").endswith(layer)
    assert leak.size > 0


def stack(dtype, attention=tfattn.MultiHeadAttention, **kwargs):
    """A pre-norm stack in mixed precision."""
    x = inputs = keras.Input((None, D))
    for number in range(2):
        y = L.LayerNormalization(dtype=dtype)(x)
        layer = attention(2, 4, dtype=dtype, name=f"attention_{number}", **kwargs)
        x = x + layer(y, y, use_causal_mask=True)
        y = L.LayerNormalization(dtype=dtype)(x)
        x = x + L.Dense(D, dtype=dtype)(L.Dense(2 * D, activation="relu", dtype=dtype)(y))
    return keras.Model(inputs, x)


def causal_attention(mask=None, **kwargs):
    x = keras.Input((None, D))
    layer = tfattn.MultiHeadAttention(4, 2, **kwargs)
    return keras.Model(x, layer(x, x, attention_mask=mask, use_causal_mask=True))


def with_lengths():
    x, lengths = keras.Input((None, D)), keras.Input((), dtype="int32")
    y = tfattn.MultiHeadAttention(2, 4)(query=x, value=x, valid_lens=lengths)
    return keras.Model([x, lengths], y)


def with_second_text():
    """A mean over the real tokens of one text, added to the states of a text that sees itself."""
    x, y = keras.Input((None, D)), keras.Input((None, D))
    lengths = keras.Input((), dtype="int32")
    pooled = tfattn.MultiHeadAttention(2, 4)(query=y, value=x, valid_lens=lengths)
    outputs = L.Add()([pooled, tfattn.MultiHeadAttention(2, 4)(query=y, value=y)])
    return keras.Model([x, lengths, y], L.GlobalAveragePooling1D()(outputs))


class NamedEmbedding(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = L.Embedding(V, D, mask_zero=True)
        self.gru = L.GRU(4, return_sequences=True)

    def call(self, ids):
        return self.gru(self.embedding(inputs=ids))


def keras_hub():
    return pytest.importorskip("keras_hub", reason="about models of KerasHub, extra `bench`")


def of_keras_hub(kind):
    x, mask = keras.Input((None, D), name="x"), keras.Input((None,), dtype="int32", name="mask")
    layer = getattr(keras_hub().layers, kind)(intermediate_dim=16, num_heads=2)
    mask_name = "padding_mask" if kind == "TransformerEncoder" else "decoder_padding_mask"
    return keras.Model({"x": x, "mask": mask}, layer(x, **{mask_name: mask}))


HUB_SIZES = {"vocabulary_size": V, "num_layers": 1, "hidden_dim": D, "intermediate_dim": 16}


def llama():
    return keras_hub().models.LlamaBackbone(**HUB_SIZES, num_query_heads=2, num_key_value_heads=1)


def bart():
    return keras_hub().models.BartBackbone(**HUB_SIZES, num_heads=2, max_sequence_length=T)


SIZES = {"num_layers": 1, "width": D, "num_heads": 2, "hidden_dim": 16}
TWO = {"x": X, "mask": MASK.astype("int32")}
LLAMA = {"token_ids": IDS, "padding_mask": MASK.astype("int32")}
BART = {
    "encoder_token_ids": SOURCE,
    "encoder_padding_mask": (SOURCE != 0).astype("int32"),
    "decoder_token_ids": PADDED,
    "decoder_padding_mask": (PADDED != 0).astype("int32"),
}
BART_PADDING = {
    f"{side}_token_ids": BART[f"{side}_padding_mask"] for side in ("encoder", "decoder")
}

# name: (model, inputs, options)
RIGHT = {
    "rotary positions and grouped heads": (
        lambda: causal_attention(positions=tfattn.RotaryPositions(), num_key_value_heads=2),
        *(X, {}),
    ),
    "ALiBi under a window": (
        lambda: causal_attention(tfattn.masks.window(3), positions=tfattn.AlibiPositions()),
        *(X, {}),
    ),
    "dropout in training": (
        lambda: tfattn.CausalLM(V, dropout=0.3, **SIZES),
        *(PADDED, {**IS_PADDED, "training": True}),
    ),
    "batch normalization in evaluation": (
        lambda: of_floats(L.Conv1D(D, 3, padding="causal"), L.BatchNormalization()),
        *(X, {}),
    ),
    "a masked mean": (lambda: language_model(L.GlobalAveragePooling1D()), PADDED, ENCODER),
    "a masked mean of one's own": (lambda: language_model(Mean(masked=True)), PADDED, ENCODER),
    "a causal convolution": (lambda: of_floats(L.Conv1D(D, 3, padding="causal")), X, {}),
    "dilated causal convolutions": (
        lambda: of_floats(
            *(
                L.Conv1D(D, 2, padding="causal", dilation_rate=2**n, activation="relu")
                for n in (0, 1)
            )
        ),
        *(X, {}),
    ),
    "an LSTM": (lambda: language_model(L.LSTM(4, return_sequences=True)), PADDED, IS_PADDED),
    "a Sequential GRU of floats, padded at the start": (
        lambda: keras.Sequential([L.Masking(), L.GRU(4, return_sequences=True), L.Dense(3)]),
        *(np.where(MASK[:, ::-1, None], X, 0), {"padding": 0.0}),
    ),
    "a bidirectional encoder": (
        lambda: language_model(L.Bidirectional(L.LSTM(4, return_sequences=True))),
        *(PADDED, ENCODER),
    ),
    "Transformer": (
        lambda: tfattn.Transformer(V, **SIZES),
        (SOURCE, PADDED),
        {"causal": 1, "padding": 0},
    ),
    "Transformer, dropout in training": (
        lambda: tfattn.Transformer(V, dropout=0.3, **SIZES),
        *((SOURCE, PADDED), {"causal": 1, "padding": 0, "training": True}),
    ),
    "an encoder-decoder of one's own": (
        lambda: Decoder(of_target=False),
        *({**BOTH, "encoder_inputs": SOURCE}, {"causal": "decoder_inputs", "padding": 0}),
    ),
    "CausalLM": (lambda: tfattn.CausalLM(V, **SIZES), PADDED, IS_PADDED),
    "BahdanauSeq2Seq": (
        lambda: tfattn.BahdanauSeq2Seq(V, width=D, units=4),
        *((SOURCE, PADDED), {"causal": 1, "padding": 0}),
    ),
    "TransformerEncoder": (lambda: tfattn.TransformerEncoder(V, **SIZES), PADDED, ENCODER),
    "lengths": (with_lengths, [X, LENGTHS], {"causal": False, "padding": LENGTHS}),
    "KerasHub's encoder": (
        lambda: of_keras_hub("TransformerEncoder"),
        *(TWO, {"causal": False, "padding": TWO["mask"]}),
    ),
    "KerasHub's decoder": (
        lambda: of_keras_hub("TransformerDecoder"),
        *(TWO, {"causal": "x", "padding": TWO["mask"]}),
    ),
    "KerasHub's Llama": (llama, LLAMA, {"padding": LLAMA["padding_mask"]}),
    "KerasHub's BART": (bart, BART, {"causal": "decoder_token_ids", "padding": BART_PADDING}),
    "a pre-norm stack in mixed_float16": (lambda: stack("mixed_float16"), X, {}),
    "a pre-norm stack in mixed_bfloat16": (lambda: stack("mixed_bfloat16"), X, {}),
    "Keras's attention in mixed_float16": (
        lambda: stack("mixed_float16", L.MultiHeadAttention, dropout=0.1),
        X,
        {},
    ),
    "Keras's attention after an Embedding": (
        lambda: language_model(Block(mha(dropout=0.1))),
        PADDED,
        {**IS_PADDED, "training": True},
    ),
    # Without dropout it shares a hidden query's weight among all keys, however many there are.
    "Keras's attention where no row is full": (
        lambda: language_model(lambda x: mha()(x, x)),
        *(np.where(np.arange(T) < T - 1, PADDED, 0), ENCODER),
    ),
    "rows that mix, one of them full": (
        lambda: language_model(Mean(masked=True), L.Lambda(lambda x: x - ops.mean(x, 0))),
        *(PADDED, {**ENCODER, "rows": False}),
    ),
    "lengths that only the test has": (
        lambda: tfattn.TransformerEncoder(V, **SIZES),
        *(PADDED, {"causal": False, "padding": LENGTHS}),
    ),
    "a second text as long, without padding": (
        with_second_text,
        *([X, LENGTHS, X[::-1].copy()], {"causal": False, "padding": {0: LENGTHS}}),
    ),
    "an Embedding called by name": (NamedEmbedding, PADDED, IS_PADDED),
    "Keras's grouped attention": (lambda: of_floats(Block(L.GroupQueryAttention(4, 2, 1))), X, {}),
    "Keras's additive attention": (
        lambda: of_floats(lambda x: L.AdditiveAttention()([x, x], use_causal_mask=True)),
        X,
        {},
    ),
    "a recommender": (lambda: Recommender(causal=True), AT_THE_START, IS_PADDED),
    "a loss": (lambda: functools.partial(mean_loss, masked=True), LOSS, ENCODER),
}


@pytest.mark.parametrize("case", RIGHT)
def test_right_model_has_no_leak(case):
    build, inputs, options = RIGHT[case]
    assert_no_leaks(build(), inputs, **options)


def named_in(model, inputs=X, **options):
    """The layer of the one leak."""
    (leak,) = find_leaks(model, inputs, **options)
    return leak.layer


def test_layer_is_named_in_sequential_nested_and_subclassed_models():
    block = Block(mha(), use_causal_mask=False, name="block")
    inner = keras.Sequential([L.Dense(D), block], name="inner")

    class Outer(keras.Model):
        def __init__(self):
            super().__init__(name="outer")
            self.parts = [L.Dense(D), inner]

        def call(self, x):
            for part in self.parts:
                x = part(x)
            return x

    for model in (keras.Sequential([inner, L.Dense(D)]), of_floats(L.Dense(D), inner), Outer()):
        assert named_in(model).endswith("block/attention")
    assert named_in(lambda x: ops.flip(x, 1)) is None


def test_leak_is_described_by_where_it_comes_from_and_goes():
    class Ahead(L.Layer):
        def call(self, x):  # step 2 of row 1 sees step 5
            changed = np.zeros((B, T, 1), "float32")
            changed[1, 2] = 0.5
            return x + ops.convert_to_tensor(changed) * x[:, 5:6]

    model = keras.Sequential([Ahead(name="ahead")])
    (leak,) = find_leaks(model, X)
    assert leak.kind == "future" and leak.layer.endswith("ahead")
    assert leak.source == "position 5 of input 0"
    assert leak.output == "the output in row 1 at position 2"
    assert str(leak).startswith("future: position 5 of input 0 changes the output in row 1 at pos")
    with pytest.raises(AssertionError, match="^future: position 5 .* first in layer .*ahead'$"):
        assert_no_leaks(model, X)
    assert find_leaks(model, X, causal=False) == []


def test_tolerance_is_a_share_of_the_largest_output():
    def model(x):
        return x + 1e-9 * ops.roll(x, -1, axis=1)

    x = X.astype("float64") * 1e4
    assert find_leaks(model, x) == []
    (leak,) = find_leaks(model, x, tolerance=1e-9)
    assert 1e-9 < leak.size < 1e-5


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_leak_in_mixed_precision_is_found(dtype):
    policy = keras.dtype_policies.DTypePolicy(dtype)
    model = of_floats(
        L.Dense(D, dtype=policy), L.Conv1D(D, 3, padding="same", dtype=policy, name="c")
    )
    assert named_in(model) == "c"


def test_rows_that_mix_are_reported_unless_that_is_asked_for():
    model = keras.Sequential([AcrossRows(name="across")])
    assert [leak.kind for leak in find_leaks(model, X)] == ["rows"]
    assert find_leaks(model, X, rows=False) == []


def test_padding_of_one_length_is_tested_by_its_embedding():
    flipped = L.Lambda(lambda x: x + ops.flip(x, 1), name="flipped")
    model = language_model(flipped, mask_zero=False, length=T)
    (leak,) = find_leaks(model, PADDED, causal=False, padding=0)
    assert "what stands under the padding" in leak.source and leak.layer == "flipped"
    right = language_model(L.Dense(D), mask_zero=False, length=T)
    with pytest.warns(UserWarning, match="not tested with less padding"):
        assert_no_leaks(right, PADDED, padding=0)


def test_padding_that_reaches_no_embedding_is_said_to_be_not_tested():
    ids = keras.Input((None,), dtype="int32")
    x = L.Embedding(V + 1, D)(ids + 1)
    model = keras.Model(ids, L.Dense(V)(x))
    with pytest.warns(UserWarning, match="under the padding of input 0, which no Embedding"):
        assert_no_leaks(model, PADDED, padding=0)


def test_padding_of_inputs_with_lengths_of_their_own():
    """The source's padding leaks, the target's does not."""
    x, y = keras.Input((None, D)), keras.Input((None, D))
    source, target = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    z = tfattn.MultiHeadAttention(2, 4)(query=y, value=y, valid_lens=target)
    z = tfattn.MultiHeadAttention(2, 4, name="cross")(query=z, value=x)
    model = keras.Model([x, source, y, target], z)
    lengths = np.array([S, 3, 2])
    inputs = [X[:, :S], lengths, X, LENGTHS]
    padding = {0: lengths, 2: LENGTHS}
    (leak,) = find_leaks(model, inputs, causal=False, padding=padding)
    assert leak.kind == "padding" and "of input 0" in leak.source and leak.layer == "cross"
    assert find_leaks(model, inputs, causal=False, padding={2: LENGTHS}) == []


def test_batch_normalization_in_training_is_said_to_mix_rows_and_is_no_leak():
    layers = [L.BatchNormalization(name="bn"), L.Conv1D(D, 3, padding="same", name="ahead")]
    with pytest.warns(UserWarning, match=r"batch normalization in training mixes .*\['bn'\]"):
        assert find_leaks(of_floats(layers[0]), X, training=True) == []
    with pytest.warns(UserWarning, match="batch normalization"):
        assert named_in(of_floats(*layers), training=True) == "ahead"
    layers[0].trainable = False  # Keras's own way to freeze it
    assert named_in(of_floats(*layers), training=True) == "ahead"


class Fails(L.Layer):
    """Raises an error at the fourth call, which is the first that is recorded."""

    calls_left = None

    def call(self, x):
        if self.calls_left is not None:
            self.calls_left -= 1
            if not self.calls_left:
                raise RuntimeError("inside")
        return x


def test_model_is_left_as_it_was(tmp_path):
    fails = Fails()
    layers = L.Dropout(0.2), L.BatchNormalization(), L.SpectralNormalization(L.Dense(D)), fails
    model = of_floats(*layers, L.Conv1D(3, 3, padding="same"))
    model.compile("sgd", "mse")
    state = [np.array(ops.convert_to_numpy(v)) for v in model.variables]
    attributes = [{*vars(layer)} for layer in model._flatten_layers()]
    with pytest.warns(UserWarning, match="batch normalization"):
        assert find_leaks(model, X, training=True)
    fails.calls_left = 4
    with pytest.raises(RuntimeError, match="inside"):
        find_leaks(model, X)
    assert not fails.calls_left
    del fails.calls_left
    for variable, value in zip(model.variables, state, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)
    for layer, before in zip(model._flatten_layers(), attributes, strict=True):
        assert {*vars(layer)} == before and "call" not in vars(layer)
    model.fit(X, X[..., :3], verbose=0)
    model.save(tmp_path / "model.keras")


class Unseeded(L.Layer):
    def call(self, x):
        return x + np.random.normal()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: find_leaks("model", X), "`model` must be a Keras model, a layer or a function"),
        (lambda: find_leaks(of_floats(), X.tolist()), r"`inputs\[0\]` must be a tensor of numbers"),
        (
            lambda: find_leaks(of_floats(), [X, X[:2]]),
            r"`inputs\[1\]` must have shape \(B, \.\.\.\)",
        ),
        (lambda: find_leaks(of_floats(), X[:1]), "`inputs` must have 2 rows, or pass `rows=False`"),
        (
            lambda: find_leaks(functional_decoder(mha()), [X, X]),
            r"`causal` must be False, or name one of \[0, 1\]. Received: causal=True",
        ),
        (lambda: find_leaks(of_floats(), X, causal=1), r"`causal` must be False, or name one of"),
        (
            lambda: find_leaks(of_floats(L.GlobalAveragePooling1D()), X),
            "`causal` must be False: no output has 7 positions",
        ),
        (lambda: find_leaks(of_floats(), X, padding=0.0), "`padding` must hide a part of input 0"),
        (
            lambda: find_leaks(of_floats(), X, padding={1: 0.0}),
            "`padding` must hide a part of input 1",
        ),
        (
            lambda: find_leaks(tfattn.Transformer(V, **SIZES), (IDS, PADDED), causal=1, padding=0),
            "`padding` must hide a part of input 0",
        ),
        (
            lambda: find_leaks(
                lambda x: x["ids"], {"ids": PADDED, "kinds": 0 * IDS}, causal=False, padding=0
            ),
            "`padding` must hide a part of input 'kinds'",
        ),
        (
            lambda: find_leaks(of_floats(), X, padding=MASK[:, :3]),
            r"`padding` must have shape \(3,\) or \(3, 7\). Received: padding=\(3, 3\)",
        ),
        (lambda: find_leaks(of_floats(), []), r"`inputs` must have one array or more. .*=\[\]"),
        (
            lambda: find_leaks(of_floats(), X, causal=False, rows=False),
            "`causal` must be True or an input, without `padding` and `rows`",
        ),
        (
            lambda: find_leaks(language_model(L.Dense(D)), 0 * IDS + 1),
            r"`inputs\[0\]` must hold different numbers",
        ),
        (
            lambda: find_leaks(
                tfattn.Transformer(V, **SIZES), (IDS[:, :S], np.ones_like(IDS)), causal=1
            ),
            r"`inputs\[1\]` must hold different numbers",
        ),
        (lambda: find_leaks(lambda x: x * np.nan, X), "`model` must return no NaN. .*=<function"),
        (
            lambda: find_leaks(of_floats(L.Dense(D), Unseeded(name="noise")), X),
            "`model` must return the same numbers again, from a seed .'noise'.",
        ),
        (lambda: find_leaks(lambda x: ops.zeros((B, T)), X), "`model` must depend on its inputs"),
        (lambda: find_leaks(of_floats(), X, tolerance=-1.0), "`tolerance` must be"),
    ],
)
def test_argument_that_leaves_nothing_to_test_is_refused(call, message):
    with pytest.raises(ValueError, match=f"^find_leaks: {message}"):
        call()
