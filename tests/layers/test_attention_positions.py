"""Positions that attention sees: one table of kinds, on each path, in caches and in searches."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.helpers import paths
from tests.helpers.tensors import FLOAT64, as_tensor, both_ways, dtype_of, numpy, tf
from tests.layers.test_multi_head import draw
from tfattn import biases, masks, scalings
from tfattn.layers.positions.base import HeadPositions

B, T, S, D = 2, 5, 7, 11
H, G, P = 4, 2, 6  # heads of queries, heads of keys, width of a head
BLOCK = (3, 2)  # queries and keys of a streamed block: no divisors of T and S

BUCKETS, FAR = 8, 5


@keras.saving.register_keras_serializable("test_attention_positions")
class Together(HeadPositions):
    """Heads that turn, and the sum of two biases."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rotary = tfattn.RotaryPositions()
        self.relative = tfattn.RelativePositionBias(BUCKETS, FAR)

    def build(self, query_shape, key_shape):
        assert (query_shape[1], query_shape[3]) == (H, P) and (key_shape[1], key_shape[3]) == (G, P)
        self.rotary.build(query_shape, key_shape)
        self.relative.build(query_shape, key_shape)

    def rotate(self, heads, start):
        return self.rotary.rotate(heads, start)

    def bias(self):
        return biases.alibi(H) + self.relative.bias()


class Kind(NamedTuple):
    """A constructor of positions, and the scores in NumPy from queries `(B, H, T, P)`, keys
    `(B, H, S, P)` and any table.
    """

    make: Callable
    score: Callable


def turning(speeds=lambda num_keys: None, **options):
    def score(queries, keys, table):
        options_here = {"speeds": speeds(keys.shape[2]), **options}
        first = keys.shape[2] - queries.shape[2]
        queries = reference.turned(queries, first, **options_here)
        return reference.dot_product(queries, reference.turned(keys, 0, **options_here))

    return score


def biased(bias):
    def score(queries, keys, table):
        return reference.dot_product(queries, keys) + bias(queries.shape[2], keys.shape[2], table)

    return score


def rotary(**options):
    return lambda: tfattn.RotaryPositions(**options)


def relative(queries, keys, table):
    return reference.relative(table, queries, keys, FAR)


KINDS = {
    "rotary": Kind(rotary(), turning()),
    "rotary of neighbors": Kind(
        rotary(base=37.0, interleaved=True),
        turning(lambda _: reference.frequencies(P, 37.0), interleaved=True),
    ),
    "rotary of some features": Kind(
        rotary(rotary_dim=4), turning(lambda _: reference.frequencies(4))
    ),
    "rotary, scaled": Kind(
        rotary(base=50.0, scaling=scalings.llama3(3.0, original_length=13)),
        turning(lambda _: reference.llama3_frequencies(P, 50.0, 3.0, 1.0, 4.0, 13)),
    ),
    "alibi": Kind(tfattn.AlibiPositions, biased(lambda t, s, _: reference.alibi(H, t, s))),
    "relative": Kind(lambda: tfattn.RelativePositionBias(BUCKETS, FAR), biased(relative)),
    "relative, one side": Kind(
        lambda: tfattn.RelativePositionBias(BUCKETS, FAR, bidirectional=False),
        biased(lambda t, s, table: reference.relative(table, t, s, FAR, bidirectional=False)),
    ),
    "together": Kind(
        Together,
        lambda queries, keys, table: (
            turning()(queries, keys, table)
            + reference.alibi(H, queries.shape[2], keys.shape[2])
            + relative(queries.shape[2], keys.shape[2], table)
        ),
    ),
}


def on(path):
    """A context in which layers take that path, in blocks that fill neither side evenly."""
    return paths.dense() if path == "dense" else paths.streamed(BLOCK)


def attention(kind, **options):
    positions = KINDS[kind].make() if kind in KINDS else None
    sizes = {"num_key_value_heads": G, "positions": positions}
    return tfattn.MultiHeadAttention(H, P, **{**sizes, **options})


def built(layer, *shapes, seed=7):
    """The layer with weights far from those it begins with."""
    layer.build(*shapes)
    for i, weight in enumerate(layer.weights):
        weight.assign(draw(*weight.shape, seed=seed + i) * 0.5)
    return layer


def table_of(layer):
    """The weight of a layer's positions as float64, or None."""
    found = layer.positions.weights if layer.positions else []
    return np.asarray(found[0], "float64") if found else None


def expected(kind, layer, query, value, mask, table=None, added=0.0):
    """(output, weights) of the oracle."""
    table = table_of(layer) if table is None else table
    of_positions = {w.path for w in (layer.positions.weights if layer.positions else [])}
    maps = [np.asarray(w) for w in layer.weights if w.path not in of_positions]
    score = KINDS[kind].score
    return reference.multi_head(
        query, value, value, maps, mask, score=lambda q, k: score(q, k, table) + added
    )


# What a path has to know: that heads turn, that a bias is added, and both.
FORMS = ["rotary", "rotary, scaled", "together"]
CASES = [(kind, "dense") for kind in KINDS] + [(kind, "streamed") for kind in FORMS[1:]]


@pytest.mark.parametrize(("kind", "path"), CASES)
def test_positions_on_each_path_equal_the_formula(kind, path):
    """Causal self-attention, and fewer queries than keys, aligned at the end."""
    tokens, query = draw(B, S, D), draw(B, T, D, seed=1)
    layer = built(attention(kind), tokens.shape, tokens.shape)
    for queries, causal, mask in ((tokens, True, reference.causal(S, S)), (query, False, None)):
        wanted = expected(kind, layer, queries, tokens, mask)
        with on(path):
            output = layer(queries, tokens, use_causal_mask=causal)
        np.testing.assert_allclose(output, wanted[0], atol=1e-5)
        if path == "dense":
            _, weights = layer(
                queries, tokens, use_causal_mask=causal, return_attention_scores=True
            )
            np.testing.assert_allclose(weights, wanted[1], atol=1e-5)
    if kind == "together":  # with a bias of the call, by row and by head
        for bias in (draw(B, T, S, seed=2), draw(1, H, 1, S, seed=2)):
            with on(path):
                output = layer(query, tokens, bias=bias)
            added = bias[:, None] if bias.ndim == 3 else bias
            wanted = expected(kind, layer, query, tokens, None, added=added)
            np.testing.assert_allclose(output, wanted[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_positions_dense_and_streamed_have_the_same_gradients():
    query, value, upstream = draw(B, T, D), draw(B, S, D, seed=1), draw(B, T, D, seed=2)
    layer = built(attention("together"), query.shape, value.shape)
    found = {}
    for path in paths.PATHS:
        with on(path):
            _, found[path] = both_ways(
                lambda query, value: layer(query, value, valid_lens=np.array([S, 4])),
                (query, value),
                upstream,
                layer.weights,
            )
    for dense, streamed in zip(found["dense"], found["streamed"], strict=True):
        np.testing.assert_allclose(streamed, dense, rtol=1e-4, atol=1e-5)


def test_relative_position_bias_table_gets_the_gradient_of_the_formula():
    query, upstream = draw(B, S, D), draw(B, S, D, seed=2)
    layer = built(attention("relative"), query.shape, query.shape)
    mask = reference.causal(S, S)

    def functional(table):
        return (expected("relative", layer, query, query, mask, table)[0] * upstream).sum()

    (wanted,) = reference.slopes(functional, table_of(layer))
    _, (found,) = both_ways(
        lambda: layer(query, query, use_causal_mask=True), (), upstream, [layer.positions.table]
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert np.abs(wanted).max() > 0.1


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMS[1:])
def test_positions_in_a_graph_of_unknown_lengths_equal_eager(kind):
    layer = built(attention(kind), (B, S, D), (B, S, D))
    spec = tf.TensorSpec((None, None, D))
    weights = [w.value for w in layer.weights] if kind == "together" else []

    def loss(query, value):
        return ops.sum(ops.square(layer(query, value)))

    @tf.function(jit_compile=kind == "together", input_signature=[spec, spec])
    def run(query, value):
        total = loss(query, value)
        return [total, *map(tf.convert_to_tensor, tf.gradients(total, weights))]

    with on("streamed"):
        for queries, keys in ((S, S), (T, S)):
            query, value = draw(B, queries, D), draw(B, keys, D, seed=1)
            found = run(query, value)
            with on("dense"), tf.GradientTape() as tape:
                total = loss(query, value)
            wanted = [total, *map(tf.convert_to_tensor, tape.gradient(total, weights))]
            for ours, theirs in zip(found, wanted, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", FORMS)
def test_positions_of_pieces_and_single_queries_equal_the_call(kind):
    """What caches do."""
    tokens = draw(B, T, D)
    layer = built(attention(kind), tokens.shape, tokens.shape)
    wanted = np.asarray(layer(tokens, tokens, use_causal_mask=True))
    pieces = [layer.project_keys(tokens[:, a:b], start=a) for a, b in ((0, 2), (2, 3), (3, T))]
    keys, values = (np.concatenate(parts, axis=2) for parts in zip(*pieces, strict=True))
    for t in range(T):  # over all keys, so that only `start` gives the query's position
        start = t if t % 2 else as_tensor(t)
        seen = np.arange(T)[None, None] <= t
        one = layer.attend_projected(tokens[:, t : t + 1], keys, values, seen, start=start)
        np.testing.assert_allclose(one[:, 0], wanted[:, t], atol=1e-5)


VOCABULARY, LONGEST = 13, 11


def model_of(name, kind):
    """A model with positions within its attention, or learned ones that are added."""
    added = keras.layers.Identity()
    if kind == "learned":
        added = tfattn.LearnedPositionalEncoding(LONGEST)
    block = tfattn.TransformerEncoderBlock(attention=attention(kind), hidden_dim=7)
    model = getattr(tfattn, name)(VOCABULARY, num_layers=1, width=D, block=block, positions=added)
    model.build_for_any()
    for i, weight in enumerate(model.trainable_weights):
        weight.assign(draw(*weight.shape, seed=i) * 0.5)
    return model


def inputs_of(model):
    """(what a call takes, what `encode` takes)."""
    rng = np.random.default_rng(3)
    source, target = rng.integers(4, VOCABULARY, (B, S)), rng.integers(4, VOCABULARY, (B, T))
    source[0, 4:], target[1, 3:] = 0, 0
    if isinstance(model, tfattn.CausalLM):
        return target, target[:, :2]
    return (source, target), source


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [("CausalLM", "rotary"), ("Transformer", "learned"), ("Transformer", "together")],
)
def test_positions_cached_logits_equal_those_of_a_call(name, kind):
    model = model_of(name, kind)
    inputs, begin = inputs_of(model)
    target = inputs if name == "CausalLM" else inputs[1]
    wanted = np.asarray(model(inputs))
    assert np.abs(wanted).max() > 1.0  # 1e-5 is a tight tolerance here
    if name == "Transformer":
        assert model.encoder.positions is not model.decoder.positions
    beginning = np.zeros((B, 0), "int32") if name == "CausalLM" else begin
    state = model.encode(beginning, max_length=LONGEST)
    for position in range(T):
        logits, state = model.step(target, position, state)
        np.testing.assert_allclose(logits, wanted[:, position], atol=1e-5)


@pytest.mark.slow
def test_beam_search_with_cached_positions_equals_the_uncached_one():
    model = model_of("CausalLM", "together")
    _, begin = inputs_of(model)
    search = tfattn.BeamSearch(num_beams=3)
    cached, uncached = (
        search(model.step, state, B, LONGEST)
        for state in (model.encode(begin, max_length=LONGEST), model.encode(begin))
    )
    np.testing.assert_array_equal(cached.tokens, uncached.tokens)
    np.testing.assert_allclose(cached.scores, uncached.scores, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_copy_from_a_config_has_the_same_config(kind):
    layer = attention(kind)
    copy = type(layer).from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    assert copy.positions is not layer.positions


@pytest.mark.slow
def test_positions_in_half_precision_streamed_are_within_its_rounding(monkeypatch):
    tokens, tables = draw(B, S, D), []
    wide = built(attention("together"), tokens.shape, tokens.shape)
    layer = attention("together", dtype="mixed_bfloat16")
    layer.build(tokens.shape, tokens.shape)
    layer.set_weights(wide.get_weights())
    bias = tfattn.RelativePositionBias.bias

    def watched(positions):
        tables.append(dtype_of(bias(positions).parameters()[0]))
        return bias(positions)

    monkeypatch.setattr(tfattn.RelativePositionBias, "bias", watched)
    with on("streamed"):
        output, (gradient,) = both_ways(
            lambda: layer(tokens, tokens, use_causal_mask=True),
            (),
            variables=[layer.positions.relative.table],
        )
    assert dtype_of(output) == layer.compute_dtype
    wanted = np.asarray(wide(tokens, tokens, use_causal_mask=True))
    assert np.abs(numpy(output) - wanted).max() < 0.06 * np.abs(wanted).max()
    # A table is as wide as its weights: half precision would lose most of a sum over many pairs.
    assert tables[0] == dtype_of(gradient) == "float32" and np.abs(numpy(gradient)).max() > 0.1


def test_positions_of_packed_sequences_equal_those_apart():
    """Attention sees distances alone, which a place further back in a row leaves as they are."""
    first, second = draw(1, T, D), draw(1, S, D, seed=1)
    layer = built(attention("together"), first.shape, first.shape)
    row, segments = np.concatenate([first, second], axis=1), np.array([[1] * T + [2] * S])
    mask = masks.segments(segments, segments) & masks.causal()
    packed = layer(row, row, attention_mask=mask)
    for part, alone in ((packed[:, :T], first), (packed[:, T:], second)):
        wanted = layer(alone, alone, use_causal_mask=True)
        np.testing.assert_allclose(part, wanted, atol=1e-5)


# Rotary.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", FLOAT64])
def test_rotary_positions_far_angles_are_exact_in_every_dtype(dtype):
    """In bfloat16 position 60,001 would be 59,904: nothing of an angle would be left."""
    heads, start = ops.cast(draw(1, 1, 3, P), dtype), 60_000
    found = tfattn.RotaryPositions().rotate(heads, start)
    assert found.dtype == heads.dtype
    wanted = reference.turned(numpy(heads).astype("float64"), start)
    rounding = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 6e-3)
    np.testing.assert_allclose(numpy(found), wanted, atol=rounding)


def test_rotary_positions_start_of_each_row_equals_single_rows():
    positions = tfattn.RotaryPositions()
    heads, starts = draw(3, H, T, P), [0, 2, 9]
    found = positions.rotate(heads, np.array(starts))
    for row, start in enumerate(starts):
        for given in (start, as_tensor(start)):
            one = positions.rotate(heads[row : row + 1], given)
            np.testing.assert_allclose(found[row : row + 1], one, atol=1e-5)


# A scaling, and its frequencies in NumPy by width and base.
SCALED = {
    "linear": (scalings.linear(4.0), lambda w, b: reference.frequencies(w, b) / 4.0),
    "llama3": (
        scalings.llama3(8.0, original_length=2048),
        lambda w, b: reference.llama3_frequencies(w, b, 8.0, 1.0, 4.0, 2048),
    ),
}


@pytest.mark.parametrize("name", SCALED)
def test_scaling_frequencies_equal_the_formula(name):
    scaling, formula = SCALED[name]
    for base, width in itertools.product((10_000.0, 500_000.0), (2, 6, 64, 128)):
        wanted = formula(width, base)
        np.testing.assert_allclose(scaling.frequencies(base, width), wanted, rtol=1e-12)


def test_scaling_comes_back_from_its_config():
    for scaling, _ in SCALED.values():
        config = keras.saving.serialize_keras_object(scaling)
        assert config["registered_name"] == f"tfattn>scalings.{type(scaling).__name__}"
        copy = keras.saving.deserialize_keras_object(config)
        assert type(copy) is type(scaling) and copy.get_config() == scaling.get_config()


def test_relative_position_bias_tables_of_a_stack_differ():
    block = tfattn.TransformerDecoderBlock(attention=attention("relative"), hidden_dim=7)
    model = tfattn.CausalLM(VOCABULARY, num_layers=2, width=D, block=block)
    model.build_for_any()
    tables = [np.asarray(block.self_attention.positions.table) for block in model.decoder.blocks]
    assert tables[0].shape == (BUCKETS, H) and not np.allclose(*tables)


def built_heads(key_dim, **options):
    positions = tfattn.RotaryPositions(**options)
    return built(tfattn.MultiHeadAttention(H, key_dim, positions=positions), (B, T, D), (B, T, D))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tfattn.RotaryPositions(base=1.0), "RotaryPositions: `base` must be above 1"),
        (lambda: tfattn.RotaryPositions(rotary_dim=3), "`rotary_dim` must be even"),
        (
            lambda: built_heads(5),
            "`key_dim of the attention` must be even: pairs of features rotate. Received: .*=5",
        ),
        (
            lambda: built_heads(4, rotary_dim=6),
            "`rotary_dim` must be at most the heads' width, 4. Received: rotary_dim=6",
        ),
        (lambda: scalings.llama3(2.0, 4.0, 4.0), "`low_freq_factor` must be below"),
        (
            lambda: tfattn.RelativePositionBias(num_buckets=7),
            "RelativePositionBias: `num_buckets` must be an even number of at least 4, one per b",
        ),
        (
            lambda: tfattn.RelativePositionBias(1, bidirectional=False),
            "`num_buckets` must be at least 2",
        ),
        (lambda: tfattn.RelativePositionBias(max_distance=8), "`max_distance` must be above 8"),
    ],
)
def test_positions_invalid_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_functional_model_with_mask_and_bias_objects_learns_as_the_layer(monkeypatch):
    """JAX traces every argument as an array: objects must be kept out of the trace."""
    traced, trace = [], keras.Operation.compute_output_spec

    def watched(operation, *args, **kwargs):
        traced.extend([*args, *kwargs.values()])
        return trace(operation, *args, **kwargs)

    monkeypatch.setattr(keras.Operation, "compute_output_spec", watched)
    rules = {"bias": biases.alibi(H), "attention_mask": masks.window(2) & ~masks.prefix(1)}
    layer = attention("relative")
    query, value = keras.Input((3, D)), keras.Input((S, D))
    model = keras.Model([query, value], layer(query, value, use_causal_mask=True, **rules))
    assert traced and not any(isinstance(x, (biases.Bias, masks.Mask)) for x in traced)
    for i, weight in enumerate(layer.weights):
        weight.assign(draw(*weight.shape, seed=i) * 0.5)
    inputs, wanted = [draw(B, 3, D), draw(B, S, D, seed=1)], draw(B, 3, D, seed=3)

    def loss(query, value):
        output = layer(query, value, use_causal_mask=True, **rules)
        return ops.mean(ops.square(output - wanted)), output

    (_, output), gradients = both_ways(loss, inputs, variables=layer.weights, has_aux=True)
    before = layer.get_weights()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    np.testing.assert_allclose(model.predict_on_batch(inputs), output, atol=1e-5)
    model.train_on_batch(inputs, wanted)
    for old, new, gradient in zip(before, layer.get_weights(), gradients[2:], strict=True):
        np.testing.assert_allclose(new, old - 0.1 * numpy(gradient), rtol=1e-4, atol=1e-5)
