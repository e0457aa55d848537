"""A model of one's own decodes with a cache: its steps are its whole pass, in every search."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.searches import IDS
from tests.helpers.tensors import numpy
from tfattn import decoding, masks

V, D, HEADS = 13, 12, 4
B, S, T, L = 3, 6, 9, 14


def attending(causal=True, mask=None, **options):
    """A function of the number of a layer to a sublayer: causal attention with these options."""

    def sublayer(i):
        layer = tfattn.MultiHeadAttention(HEADS, D // HEADS, name=f"attention_{i}", **options)
        return lambda x: layer(query=x, value=x, use_causal_mask=causal, attention_mask=mask)

    return sublayer


def each(layer):
    """The same for a layer that is called with the tokens alone."""
    return lambda i: layer()


def language_model(sublayer, positions=None, mask_zero=True, depth=2):
    x = ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, D, mask_zero=mask_zero)(x)
    x = x if positions is None else positions(x)
    for i in range(depth):
        x = keras.layers.Add()([x, sublayer(i)(keras.layers.LayerNormalization()(x))])
    return drawn(keras.Model(ids, keras.layers.Dense(V)(x)))


def translator(over_source=None):
    """An encoder and a decoder of blocks; with a layer over the source."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    positions = tfattn.SinusoidalPositionalEncoding(input_scale=2.0)
    # A convolution would lose the mask.
    memory = positions(keras.layers.Embedding(V, D, mask_zero=over_source is None)(source))
    memory = tfattn.TransformerEncoderBlock(HEADS, 16)(memory)
    memory = memory if over_source is None else over_source(memory)
    x = positions(keras.layers.Embedding(V, D, mask_zero=True)(target))
    for _ in range(2):
        x = tfattn.TransformerDecoderBlock(HEADS, 16)(x, memory)
    return drawn(keras.Model([source, target], keras.layers.Dense(V)(x)))


def with_vectors(x):
    """Four vectors before the encoder's states: as many tokens as the target has in the check."""
    return tfattn.TransformerEncoderBlock(HEADS, 16)(keras.layers.ZeroPadding1D((4, 0))(x))


class Subclassed(keras.Model):
    """One-headed attention over the target and over the source."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(V, D)
        self.positions = tfattn.LearnedPositionalEncoding(max_length=L)
        self.source_positions = tfattn.LearnedPositionalEncoding(max_length=8)
        self.target_attention = tfattn.AdditiveAttention(5)
        self.source_attention = tfattn.Attention()
        self.dense = keras.layers.Dense(V)

    def call(self, inputs):
        source, target = inputs
        memory = self.source_positions(self.embedding(source))
        x = self.positions(self.embedding(target))
        x = x + self.target_attention(query=x, value=x, use_causal_mask=True)
        seen = ops.not_equal(source, 0)
        return self.dense(x + self.source_attention(query=x, value=memory, key_mask=seen))


class Conditioned(keras.Model):
    """A language model whose tokens all depend on the mean of a source."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(V, D)
        self.attention = tfattn.MultiHeadAttention(HEADS, D // HEADS)
        self.dense = keras.layers.Dense(V)

    def call(self, inputs):
        source, target = inputs
        x = self.embedding(target)
        x = x + self.attention(query=x, value=x, use_causal_mask=True)
        return self.dense(x + ops.mean(self.embedding(source), axis=1, keepdims=True))


def drawn(model, *shapes):
    """The model, called on ids of these shapes, with random weights and biases."""
    ids = [np.ones(shape, "int32") for shape in shapes]
    if ids:
        model(ids if len(ids) > 1 else ids[0])
    rng = np.random.default_rng(5)
    for weight in model.trainable_variables:
        # Small vectors of tokens, so that attention decides.
        scale = 0.1 if "embedding" in weight.path else 0.5
        weight.assign(rng.normal(size=weight.shape) * scale)
    return model


class Own(keras.Model):
    """Causal attention by a mask of its own, and what `between` does to the tokens."""

    def __init__(self, between=lambda x: x, mask=None):
        super().__init__()
        self.embedding = keras.layers.Embedding(V, D)
        self.attention = tfattn.MultiHeadAttention(HEADS, D // HEADS, name="own_attention")
        self.dense = keras.layers.Dense(V)
        self.between, self.mask = between, mask

    def call(self, ids):
        x = self.embedding(ids)
        mask = None if self.mask is None else self.mask(ops.shape(ids)[1])
        x = self.attention(query=x, value=x, use_causal_mask=True, attention_mask=mask)
        return self.dense(self.between(x))


EVERYTHING = {"num_key_value_heads": 2, "use_gate": True, "sliding_window": 4, "value_dim": 5}
MODELS = {
    "plain": lambda: language_model(attending(), mask_zero=False),
    "window": lambda: language_model(attending(sliding_window=3)),
    "mask object": lambda: language_model(attending(False, masks.causal() & masks.chunks(4))),
    "alibi": lambda: language_model(attending(positions=tfattn.AlibiPositions())),
    "rotary": lambda: language_model(attending(positions=tfattn.RotaryPositions(rotary_dim=2))),
    "T5": lambda: language_model(
        attending(positions=tfattn.RelativePositionBias(8, 6, bidirectional=False))
    ),
    "grouped heads": lambda: language_model(attending(num_key_value_heads=2)),
    "gates": lambda: language_model(attending(use_gate=True)),
    "all of these": lambda: language_model(
        attending(**EVERYTHING, positions=tfattn.RotaryPositions(rotary_dim=2))
    ),
    "sinusoids": lambda: language_model(attending(), tfattn.SinusoidalPositionalEncoding(2.0)),
    "sinks": lambda: language_model(attending(normalizer=tfattn.AttentionSinks())),
    "blocks": lambda: language_model(each(lambda: tfattn.TransformerDecoderBlock(HEADS, 16))),
    "CausalLM": lambda: drawn(
        tfattn.CausalLM(V, num_layers=2, width=D, num_heads=HEADS, hidden_dim=16), (1, 2)
    ),
    "encoder, decoder": translator,
    "subclassed": lambda: drawn(Subclassed(), (1, 2), (1, 2)),
    "conditioned": lambda: drawn(Conditioned(), (1, 2), (1, 2)),
    "Transformer": lambda: drawn(
        tfattn.Transformer(V, num_layers=1, width=D, num_heads=HEADS, hidden_dim=16), (1, 2), (1, 2)
    ),
    # An encoder that needs several tokens, and attention of others over the memory.
    "convolved source": lambda: translator(keras.layers.Conv1D(D, 3, padding="valid")),
    "source and four vectors more": lambda: translator(with_vectors),
}
NEED_ALL = {"convolved source", "source and four vectors more"}  # tokens of the source
HAVE_SOURCE = {"encoder, decoder", "subclassed", "conditioned", "Transformer"} | NEED_ALL
QUICK = {"all of these", "encoder, decoder"}


def whole(model, source, target):
    return model(target if source is None else [source, target], training=False)


def sentences(has_source):
    """Source and target ids with padding, the target's inside too; without a source, no prompts."""
    rng = np.random.default_rng(2)
    source, target = rng.integers(1, V, (B, S)), rng.integers(1, V, (B, T))
    source[0, 4:], target[1, 3], target[2, 0] = 0, 0, 0
    return (source if has_source else None), target


def slow_but(quick, names):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_but(QUICK, MODELS))
def test_stepper_gives_the_logits_of_the_whole_pass(name):
    model = MODELS[name]()
    source, target = sentences(name in HAVE_SOURCE)
    wanted = numpy(whole(model, source, target))
    stepper = decoding.Stepper(model)
    state = stepper.encode(np.zeros((B, 1), "int32") if source is None else source, L)
    if source is not None and name not in NEED_ALL:
        assert state["source"].shape == (B, S if name == "conditioned" else 1)
    for position in range(T):
        tokens = np.where(np.arange(T) <= position, target, 9)  # later tokens are not read
        logits, state = stepper.step(tokens, position, state)
        np.testing.assert_allclose(
            numpy(logits), wanted[:, position], atol=1e-5 * np.abs(wanted).max()
        )
    assert not any("call" in vars(layer) for layer in model._flatten_layers())


def plain_step(model, has_source):
    """The step that computes all positions again."""

    def step(tokens, position, state):
        logits = whole(model, state["source"] if has_source else None, tokens)
        return ops.take(logits, position, axis=1), state

    return step


@pytest.mark.slow
@pytest.mark.parametrize("name, jit", [("all of these", True), ("encoder, decoder", False)])
def test_stepper_in_beams_follows_the_hypotheses(name, jit):
    model, has_source = MODELS[name](), name in HAVE_SOURCE
    source = sentences(True)[0].astype("int32")
    stepper = decoding.Stepper(model)
    search = decoding.BeamSearch(num_beams=4, num_results=3, jit_compile=jit)
    found = search(
        stepper.step, stepper.encode(source if has_source else 0 * source, L), B, L, **IDS
    )
    wanted = search(plain_step(model, has_source), {"source": source}, B, L, **IDS)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4)


@pytest.mark.slow
def test_stepper_continues_prompts_as_a_causal_lm_does():
    model = MODELS["CausalLM"]()
    prompts = np.array([[4, 7, 5], [0, 6, 0], [0, 0, 0]])
    stepper = decoding.Stepper(model)
    found, wanted = (
        decoding.GreedySearch()(each.step, each.encode(prompts, L), B, L, **IDS)
        for each in (stepper, model)
    )
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(numpy(found)[0, :3], prompts[0])
    for steps in stepper, model:
        with pytest.raises(ValueError, match="must have at most `max_length`=2 tokens"):
            steps.encode(prompts, 2)
        with pytest.raises(ValueError, match="must hold ids of the vocabulary, 0 to 12"):
            steps.encode(prompts + 6, L)
    streamed = list(
        decoding.GreedySearch().stream(stepper.step, stepper.encode(prompts[:1], L), L, **IDS)
    )
    assert streamed == [token for token in numpy(wanted)[0].tolist() if token]


@pytest.mark.slow
def test_stepper_in_half_precision_agrees():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = language_model(attending(positions=tfattn.RotaryPositions(rotary_dim=2)))
    finally:
        keras.config.set_dtype_policy("float32")
    stepper = decoding.Stepper(model)
    state = stepper.encode(np.zeros((B, 1), "int32"), L)
    keys = state["caches"][0][0].tensor
    assert keras.backend.standardize_dtype(keys.dtype) == "bfloat16"


@pytest.mark.slow
def test_stepper_knows_how_far_positions_reach_and_translates():
    stepper = decoding.Stepper(MODELS["subclassed"]())
    assert (stepper.max_source_length, stepper.max_target_length) == (8, L)
    with pytest.raises(ValueError, match="Stepper: `max_length` must be at most 14"):
        stepper.encode(np.ones((1, 2), "int32"), L + 1)
    words = tfattn.data.Vocabulary([f"w{i}" for i in range(V - 4)])
    assert len(words) == V
    lines = ["w1 w2", "", "w3 w4 w5"]
    found = tfattn.translate(stepper, lines, words, words, max_length=L)
    wanted = tfattn.translate(Plain(stepper.model), lines, words, words, max_length=L)
    assert found == wanted and found[1] == ""


class Plain:
    """`encode` and `step` of a model of a source and a target, without a cache."""

    def __init__(self, model):
        self.model, self.step = model, plain_step(model, True)

    def encode(self, source, max_length):
        return {"source": source}


class RunningSum(keras.layers.Layer):
    def call(self, x):
        return ops.cumsum(x, axis=1)


class CountedPositions(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(20, shape[-1]), initializer="random_normal")

    def call(self, x):
        return x + self.table[: ops.shape(x)[1]]

    def compute_output_shape(self, shape):
        return shape


def pooled(i):
    pooling, shape = tfattn.AttentionPooling(name="pooling"), keras.layers.Reshape((1, D))
    return lambda x: shape(pooling(x))


def of_keras(i):
    layer = keras.layers.MultiHeadAttention(HEADS, 3, name="theirs")
    return lambda x: layer(x, x, use_causal_mask=True)


def beside_one_vector(x):
    """Adds a vector that all tokens have."""
    return x + keras.layers.Embedding(1, D)(ops.zeros_like(x[..., 0], dtype="int32"))


def in_the_batch(i):
    """Heads in the axis of the batch, as in torch code of books."""
    layer = tfattn.Attention()

    def sublayer(x):
        heads = ops.reshape(x, (-1, ops.shape(x)[1], HEADS, D // HEADS))
        heads = ops.reshape(ops.swapaxes(heads, 1, 2), (-1, ops.shape(x)[1], D // HEADS))
        heads = layer(query=heads, value=heads, use_causal_mask=True)
        heads = ops.reshape(heads, (-1, HEADS, ops.shape(x)[1], D // HEADS))
        return ops.reshape(ops.swapaxes(heads, 1, 2), (-1, ops.shape(x)[1], D))

    return sublayer


def named_inputs():
    source, target = (keras.Input((None,), dtype="int32", name=name) for name in ("read", "write"))
    x = keras.layers.Embedding(V, D)(target) + keras.layers.Embedding(V, D)(source)[:, :1]
    return keras.Model({"read": source, "write": target}, keras.layers.Dense(V)(x))


def tril(length):
    return ops.tril(ops.ones((length, length), "bool"))


GIVES = "gives other numbers for single tokens"


def plain_model(sublayer, positions=None):
    return language_model(sublayer, positions, mask_zero=False, depth=1)


REFUSED = {
    "causal convolution": (
        lambda: plain_model(each(lambda: keras.layers.Conv1D(D, 3, padding="causal", name="c"))),
        rf"layer `c` \(Conv1D\) {GIVES}",
    ),
    "convolution of several tokens": (
        lambda: drawn(Own(keras.layers.Conv1D(D, 3, padding="valid", name="c")), (1, 4)),
        r"compute single tokens; layer `c` \(Conv1D\) raises",
    ),
    # The attention within the pooling.
    "pooling": (lambda: plain_model(pooled), rf"layer `attention` \(Attention\) {GIVES}"),
    "someone else's attention": (lambda: plain_model(of_keras), rf"layer `theirs` .* {GIVES}"),
    "someone else's attention beside one vector": (
        lambda: plain_model(of_keras, beside_one_vector),
        rf"layer `theirs` .* {GIVES}",
    ),
    "heads in the batch": (
        lambda: drawn(Own(in_the_batch(0)), (1, 4)),
        "keep the batch as the first axis in attention",
    ),
    "inputs by name": (
        named_inputs,
        r"take integers \[\(B, S\), \(B, T\)\] alone; layer .* raises",
    ),
    "not causal": (
        lambda: plain_model(attending(False)),
        rf"layer `attention_0` \(MultiHeadAttention\) {GIVES}",
    ),
    "recurrent": (
        lambda: plain_model(each(lambda: keras.layers.GRU(D, return_sequences=True, name="g"))),
        rf"layer `g` \(GRU\) {GIVES}",
    ),
    "a sum over tokens": (
        lambda: plain_model(each(lambda: RunningSum(name="s"))),
        rf"layer `s` \(RunningSum\) {GIVES}",
    ),
    "positions of one's own": (
        lambda: plain_model(attending(), CountedPositions(name="p")),
        rf"layer `p` \(CountedPositions\) {GIVES}",
    ),
    "an operation of the model": (
        lambda: drawn(Own(lambda x: x - ops.mean(x, axis=1, keepdims=True)), (1, 4)),
        rf"layer `own.*` \(Own\) {GIVES}",
    ),
    "an array as mask": (
        lambda: drawn(Own(mask=tril), (1, 4)),
        "`attention_mask or bias` must be an object without arrays",
    ),
    "lengths": (
        lambda: drawn(Own(mask=lambda length: masks.padding(np.array([2, 2]))), (2, 4)),
        "`attention_mask or bias` must be an object without arrays",
    ),
    "one class for a text": (
        lambda: keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                keras.layers.Embedding(V, D),
                keras.layers.GlobalMaxPooling1D(),
            ]
        ),
        rf"layer `.*` \(GlobalMaxPooling1D\) {GIVES}",
    ),
    "several outputs": (
        lambda: keras.Model(*(lambda x: (x, {"logits": x}))(keras.Input((None,), dtype="int32"))),
        r"must return logits \(B, T, V\) alone",
    ),
    "a model that is not built": (lambda: Own(), "be a keras.Model that is built"),
}


@pytest.mark.parametrize(
    "name", slow_but({"causal convolution", "an array as mask", "not causal"}, REFUSED)
)
def test_stepper_refuses_by_name_what_mixes_tokens(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        decoding.Stepper(make())
