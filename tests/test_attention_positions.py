"""Positions that attention sees: each kind on each path, in calls, caches, searches and files."""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import paths, reference
from tests.processes import printed
from tests.tensors import FLOAT64, as_tensor, both_ways, dtype_of, numpy, tf
from tfattn import biases, masks, scalings
from tfattn.layers.positions.base import HeadPositions

B, T, S, D = 2, 5, 7, 11
H, G, P = 4, 2, 6  # heads of queries, heads of keys, width of a head
BLOCK = (3, 2)  # queries and keys of a block where attention streams: neither divides T or S

BUCKETS, FAR = 8, 5


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@keras.saving.register_keras_serializable("test_attention_positions")
class Together(HeadPositions):
    """Heads that turn, and the sum of two biases."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rotary = tfattn.RotaryPositions()
        self.relative = tfattn.RelativePositionBias(BUCKETS, FAR)

    def build(self, query_shape, key_shape):
        self.rotary.build(query_shape, key_shape)
        self.relative.build(query_shape, key_shape)

    def turn(self, heads, start):
        return self.rotary.turn(heads, start)

    def bias(self):
        return biases.alibi(H) + self.relative.bias()


class Slope(biases.Bias):
    """A bias of one's own, which stays whole: a number for each head, times the distance."""

    differs_by_head = True

    def __init__(self, slopes):
        self.slopes = slopes

    def parameters(self):
        return (self.slopes + 0.0,)

    def on(self, grid, slopes):
        distance = ops.cast(grid.key_positions() - grid.query_positions(), "float32")
        return slopes[:, None, None] * distance[None, None]


@keras.saving.register_keras_serializable("test_attention_positions")
class Sloping(HeadPositions):
    """Positions of one's own."""

    def build(self, query_shape, key_shape):
        self.table = self.add_weight(name="table", shape=(query_shape[1],), autocast=False)

    def bias(self):
        return Slope(self.table)


class Kind(NamedTuple):
    """How to make the positions, and their scores in NumPy: of queries `(B, H, T, P)`, keys
    `(B, H, S, P)` and the table where there is one.
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


def sloping(queries, keys, table):
    distance = np.arange(keys) - np.arange(keys - queries, keys)[:, None]
    return table[:, None, None] * distance


KINDS = {
    "none": Kind(lambda: None, turning(lambda _: [])),
    "rotary": Kind(rotary(), turning()),
    "rotary of neighbours": Kind(
        rotary(base=37.0, interleaved=True),
        turning(lambda _: reference.frequencies(P, 37.0), interleaved=True),
    ),
    "rotary of some features": Kind(
        rotary(rotary_dim=4), turning(lambda _: reference.frequencies(4))
    ),
    "rotary, linear": Kind(
        rotary(scaling=scalings.linear(2.5)), turning(lambda _: reference.frequencies(P) / 2.5)
    ),
    "rotary, dynamic": Kind(
        rotary(scaling=scalings.dynamic(2.0, 5)),
        turning(lambda keys: reference.dynamic_frequencies(P, 10_000.0, 2.0, 5, keys)),
    ),
    "rotary, yarn": Kind(
        rotary(base=50.0, scaling=scalings.yarn(3.0, 13, beta_fast=2.0, beta_slow=0.2)),
        turning(
            lambda _: reference.yarn_frequencies(P, 50.0, 3.0, 13, 2.0, 0.2),
            magnitude=0.1 * np.log(3.0) + 1.0,
        ),
    ),
    "rotary, llama3": Kind(
        rotary(base=50.0, scaling=scalings.llama3(3.0, 0.2, 2.0, 13)),
        turning(lambda _: reference.llama3_frequencies(P, 50.0, 3.0, 0.2, 2.0, 13)),
    ),
    "alibi": Kind(tfattn.AlibiPositions, biased(lambda t, s, _: reference.alibi(H, t, s))),
    "relative": Kind(lambda: tfattn.RelativePositionBias(BUCKETS, FAR), biased(relative)),
    "relative, one side": Kind(
        lambda: tfattn.RelativePositionBias(BUCKETS, FAR, bidirectional=False),
        biased(lambda t, s, table: reference.relative(table, t, s, FAR, bidirectional=False)),
    ),
    "of one's own": Kind(Sloping, biased(sloping)),
    "together": Kind(
        Together,
        lambda queries, keys, table: (
            turning()(queries, keys, table)
            + reference.alibi(H, queries.shape[2], keys.shape[2])
            + relative(queries.shape[2], keys.shape[2], table)
        ),
    ),
}
LEARNED = ["relative", "relative, one side", "of one's own", "together"]
CACHED = [kind for kind in KINDS if kind != "rotary, dynamic"]
SEARCHED = ["rotary", "together", "learned"]  # one of each way into a cache

each_kind = pytest.mark.parametrize("kind", KINDS)
each_path = pytest.mark.parametrize("path", paths.PATHS)


def on(path):
    """A context in which layers take that path, in blocks that fill neither side evenly."""
    return paths.dense() if path == "dense" else paths.streamed(BLOCK)


def attention(kind, **options):
    sizes = {"num_key_value_heads": G, "positions": KINDS[kind].make()}
    return tfattn.MultiHeadAttention(H, P, **{**sizes, **options})


def built(layer, *shapes, seed=7):
    """The layer with weights far from those it begins with."""
    layer.build(*shapes)
    for i, weight in enumerate(layer.weights):
        weight.assign(draw(*weight.shape, seed=seed + i) * 0.5)
    return layer


def table_of(layer):
    """The table of a layer's positions as float64, or None."""
    found = [w for w in layer.weights if w.path.endswith("table")]
    return np.asarray(found[0], "float64") if found else None


def expected(kind, layer, query, value, mask, table=None, added=0.0):
    """(output, weights) of the oracle."""
    table = table_of(layer) if table is None else table
    maps = [np.asarray(w) for w in layer.weights if not w.path.endswith("table")]
    score = KINDS[kind].score
    return reference.multi_head(
        query, value, value, maps, mask, score=lambda q, k: score(q, k, table) + added
    )


@pytest.mark.parametrize("over", ["itself", "itself, causal", "others", "fewer"])
@each_path
@each_kind
def test_attention_with_positions_is_the_formula(kind, path, over):
    """Over itself, over as many others, and with fewer queries than keys, which line up at the end.

    The dynamic scaling is beyond its training's length with S keys.
    """
    queries = T if over == "fewer" else S
    query = draw(B, queries, D)
    value = query if over.startswith("itself") else draw(B, S, D, seed=1)
    layer = built(attention(kind), query.shape, value.shape)
    causal = over == "itself, causal"
    mask = reference.causal(queries, S) if causal else None
    wanted = expected(kind, layer, query, value, mask)
    with on(path):
        output = layer(query, value, use_causal_mask=causal)
    np.testing.assert_allclose(output, wanted[0], atol=1e-5)
    if path == "dense":
        _, weights = layer(query, value, use_causal_mask=causal, return_attention_scores=True)
        np.testing.assert_allclose(weights, wanted[1], atol=1e-5)


@each_path
@pytest.mark.parametrize("shape", [(B, T, S), (1, H, 1, S)], ids=["by row", "by head"])
@pytest.mark.parametrize("kind", ["rotary", "alibi", "relative", "of one's own"])
def test_a_bias_of_the_call_is_added_to_that_of_the_positions(kind, shape, path):
    query, value, bias = draw(B, T, D), draw(B, S, D, seed=1), draw(*shape, seed=2)
    layer = built(attention(kind), query.shape, value.shape)
    added = bias[:, None] if bias.ndim == 3 else bias
    with on(path):
        output = layer(query, value, bias=bias)
    wanted = expected(kind, layer, query, value, None, added=added)
    np.testing.assert_allclose(output, wanted[0], atol=1e-5)


@pytest.mark.tensorflow
@each_kind
def test_both_paths_have_the_same_gradients(kind):
    query, value, upstream = draw(B, T, D), draw(B, S, D, seed=1), draw(B, T, D, seed=2)
    layer = built(attention(kind), query.shape, value.shape)
    found = {}
    for path in ("dense", "streamed"):
        with on(path):
            _, found[path] = both_ways(
                lambda query, value: layer(query, value, valid_lens=np.array([S, 4])),
                (query, value),
                upstream,
                layer.weights,
            )
    for dense, streamed in zip(found["dense"], found["streamed"], strict=True):
        np.testing.assert_allclose(streamed, dense, rtol=1e-4, atol=1e-5)


@each_path
@pytest.mark.parametrize("kind", LEARNED)
def test_the_table_gets_the_gradient_of_the_formula(kind, path):
    query, upstream = draw(B, S, D), draw(B, S, D, seed=2)
    layer = built(attention(kind), query.shape, query.shape)
    mask = reference.causal(S, S)

    def functional(table):
        return (expected(kind, layer, query, query, mask, table)[0] * upstream).sum()

    (wanted,) = reference.slopes(functional, table_of(layer))
    tables = [w for w in layer.weights if w.path.endswith("table")]
    with on(path):
        _, (found,) = both_ways(
            lambda: layer(query, query, use_causal_mask=True), (), upstream, tables
        )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert np.abs(wanted).max() > 0.1


@pytest.mark.tensorflow
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
@pytest.mark.parametrize("kind", ["relative", "rotary, dynamic", "together"])
def test_lengths_may_be_unknown_when_a_graph_is_traced(kind, jit):
    layer = built(attention(kind), (B, S, D), (B, S, D))
    spec = tf.TensorSpec((None, None, D))
    weights = [w.value for w in layer.weights]

    def loss(query, value):
        return ops.sum(ops.square(layer(query, value)))

    @tf.function(jit_compile=jit, input_signature=[spec, spec])
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


@each_kind
def test_pieces_of_keys_and_single_queries_are_the_call(kind):
    """What caches do. The dynamic scaling is within its training's length here."""
    tokens = draw(B, T, D)
    layer = built(attention(kind), tokens.shape, tokens.shape)
    wanted = np.asarray(layer(tokens, tokens, use_causal_mask=True))
    pieces = [layer.project_keys(tokens[:, a:b], start=a) for a, b in ((0, 2), (2, 3), (3, T))]
    keys, values = (np.concatenate(parts, axis=2) for parts in zip(*pieces, strict=True))
    for t in range(T):  # over all keys, so that only `start` can tell where the query stands
        for start in (t, as_tensor(t)):
            seen = np.arange(T)[None, None] <= t
            one, _ = layer.attend_projected(tokens[:, t : t + 1], keys, values, seen, start=start)
            np.testing.assert_allclose(one[:, 0], wanted[:, t], atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("kind", CACHED)
def test_steps_of_a_decoder_block_are_the_call(kind, memory):
    block = tfattn.TransformerDecoderBlock(attention=attention(kind), hidden_dim=13)
    x, others = draw(B, S, D), [draw(B, T, 3, seed=1)] if memory else []
    built(block, x.shape, *(m.shape for m in others))
    wanted = np.asarray(block(x, *others))
    cache = block.new_cache(*others, max_length=S + 2, **({} if memory else {"batch_size": B}))
    step = tf.function(block.step, autograph=False)
    for t in range(S):
        bias = np.where(np.arange(S + 2) <= t, 0.0, -np.inf)[None, None].astype("float32")
        output, cache = step(x[:, t : t + 1], as_tensor(t), cache, bias)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)
    if memory:
        assert block.cross_attention.positions is None


VOCABULARY, LONGEST = 13, 11
MODELS = {
    "Transformer": lambda **parts: tfattn.Transformer(VOCABULARY, num_layers=1, width=D, **parts),
    "CausalLM": lambda **parts: tfattn.CausalLM(VOCABULARY, num_layers=1, width=D, **parts),
}


# Positions that are added to the inputs.
ADDED = {
    "sinusoidal": lambda: tfattn.SinusoidalPositionalEncoding(input_scale=D**0.5),
    "learned": lambda: tfattn.LearnedPositionalEncoding(LONGEST),
}


def model_of(name, kind, **options):
    added = ADDED.get(kind, keras.layers.Identity)()
    inside = attention("none" if kind in ADDED else kind)
    block = tfattn.TransformerEncoderBlock(attention=inside, hidden_dim=7)
    model = MODELS[name](block=block, positions=added, **options)
    model.build_for_any()
    for i, weight in enumerate(model.trainable_weights):
        weight.assign(draw(*weight.shape, seed=i) * 0.5)
    return model


def inputs_of(model, seed=3):
    """(what a call takes, what `encode` takes)."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(4, VOCABULARY, (B, S)), rng.integers(4, VOCABULARY, (B, T))
    source[0, 4:], target[1, 3:] = 0, 0
    if isinstance(model, tfattn.CausalLM):
        return target, target[:, :2]
    return (source, target), source


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("kind", [*CACHED, *ADDED])
@pytest.mark.parametrize("name", MODELS)
def test_cached_logits_are_those_of_a_call(name, kind):
    model = model_of(name, kind)
    inputs, begin = inputs_of(model)
    target = inputs if name == "CausalLM" else inputs[1]
    wanted = np.asarray(model(inputs))
    assert np.abs(wanted).max() > 1.0  # 1e-5 is a tight tolerance here
    beginning = np.zeros((B, 0), "int32") if name == "CausalLM" else begin
    state = model.encode(beginning, max_length=LONGEST)
    for position in range(T):
        logits, state = model.step(target, position, state)
        np.testing.assert_allclose(logits, wanted[:, position], atol=1e-5)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", SEARCHED)
@pytest.mark.parametrize("name", MODELS)
def test_cached_searches_are_the_uncached_ones(name, kind):
    model = model_of(name, kind)
    _, begin = inputs_of(model)
    cached, uncached = model.encode(begin, max_length=LONGEST), model.encode(begin)
    greedy, again = (tfattn.greedy_search(model.step, s, B, LONGEST) for s in (cached, uncached))
    np.testing.assert_array_equal(greedy, again)
    best, second = (tfattn.beam_search(model.step, s, B, LONGEST, 3) for s in (cached, uncached))
    np.testing.assert_array_equal(best.tokens, second.tokens)
    np.testing.assert_allclose(best.scores, second.scores, atol=1e-4)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_positions_come_back_from_a_file(name, kind, tmp_path):
    model = model_of(name, kind)
    inputs, _ = inputs_of(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    assert loaded.get_config() == model.get_config()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@each_path
@each_kind
def test_half_precision_is_within_its_rounding(kind, path, policy):
    tokens = draw(B, S, D)
    wide = built(attention(kind), tokens.shape, tokens.shape)
    layer = attention(kind, dtype=policy)
    layer.build(tokens.shape, tokens.shape)
    layer.set_weights(wide.get_weights())
    with on(path):
        output = layer(tokens, tokens, use_causal_mask=True)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    wanted = np.asarray(wide(tokens, tokens, use_causal_mask=True))
    off = np.abs(np.asarray(ops.cast(output, "float32")) - wanted).max() / np.abs(wanted).max()
    assert off < (0.01 if policy == "mixed_float16" else 0.06)


@each_path
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_table_and_its_gradient_are_float32_in_half_precision(policy, path, monkeypatch):
    layer, tokens = attention("relative", dtype=policy), draw(B, S, D)
    built(layer, tokens.shape, tokens.shape)
    positions, seen = layer.positions, []
    bias = type(positions).bias

    def watched(positions):
        seen.append(dtype_of(bias(positions).parameters()[0]))
        return bias(positions)

    monkeypatch.setattr(type(positions), "bias", watched)
    with on(path):
        _, (found,) = both_ways(
            lambda: ops.sum(ops.square(ops.cast(layer(tokens, tokens), "float32"))),
            (),
            variables=[positions.table],
        )
    assert seen == ["float32"]
    assert dtype_of(found) == "float32" and np.abs(numpy(found)).max() > 0.1


# Rotary.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", FLOAT64])
def test_angles_far_out_are_exact_in_every_dtype(dtype):
    """In bfloat16 position 60,001 would be 59,904: nothing of an angle would be left."""
    heads, start = ops.cast(draw(1, 1, 3, P), dtype), 60_000
    found = tfattn.RotaryPositions().turn(heads, start)
    assert found.dtype == heads.dtype
    wanted = reference.turned(numpy(heads).astype("float64"), start)
    rounding = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 6e-3)
    np.testing.assert_allclose(numpy(found), wanted, atol=rounding)


@pytest.mark.parametrize("scaling", [None, scalings.dynamic(2.0, 4)], ids=["plain", "dynamic"])
def test_each_row_may_have_a_start_of_its_own(scaling):
    positions = tfattn.RotaryPositions(scaling=scaling)
    heads, starts = draw(3, H, T, P), [0, 2, 9]
    found = positions.turn(heads, np.array(starts))
    for row, start in enumerate(starts):
        one = positions.turn(heads[row : row + 1], start)
        np.testing.assert_allclose(found[row : row + 1], one, atol=1e-5)
        again = positions.turn(heads[row : row + 1], as_tensor(start))
        np.testing.assert_allclose(again, one, atol=1e-5)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "relative", "together"])
def test_sequences_packed_in_a_row_are_those_apart(kind):
    """Attention sees distances alone, which a place further back in a row leaves as they are."""
    first, second = draw(1, T, D), draw(1, S, D, seed=1)
    layer = built(attention(kind), first.shape, first.shape)
    row, segments = np.concatenate([first, second], axis=1), np.array([[1] * T + [2] * S])
    mask = masks.segments(segments, segments) & masks.causal()
    for path in ("dense", "streamed"):
        with on(path):
            packed = layer(row, row, attention_mask=mask)
        for part, alone in ((packed[:, :T], first), (packed[:, T:], second)):
            wanted = layer(alone, alone, use_causal_mask=True)
            np.testing.assert_allclose(part, wanted, atol=1e-5)


# Width, base and arguments of a scaling, and what NumPy says of it.
SCALED = {
    "linear": (lambda w, b: reference.frequencies(w, b) / 4.0, scalings.linear(4.0)),
    "dynamic": (
        lambda w, b: reference.dynamic_frequencies(w, b, 3.0, 61, 89),
        scalings.dynamic(3.0, 61),
    ),
    "dynamic, short": (reference.frequencies, scalings.dynamic(3.0, 97)),
    "yarn": (
        lambda w, b: reference.yarn_frequencies(w, b, 8.0, 2048),
        scalings.yarn(8.0, 2048),
    ),
    "yarn, other turns": (
        lambda w, b: reference.yarn_frequencies(w, b, 8.0, 512, 16.0, 2.0),
        scalings.yarn(8.0, 512, beta_fast=16.0, beta_slow=2.0),
    ),
    "llama3": (
        lambda w, b: reference.llama3_frequencies(w, b, 8.0, 1.0, 4.0, 2048),
        scalings.llama3(8.0, original_length=2048),
    ),
}


@pytest.mark.parametrize("width", [2, 6, 64, 128])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("name", SCALED)
def test_frequencies_of_a_scaling_are_the_formula(name, base, width):
    formula, scaling = SCALED[name]
    if name == "dynamic" and width == 2:
        wanted = [1.0]  # the first pair turns as it did, and there is no other
    else:
        wanted = formula(width, base)
    np.testing.assert_allclose(scaling.frequencies(base, width, 89), wanted, rtol=1e-12)
    for length in (as_tensor(89), as_tensor([89, 89])):
        found = np.broadcast_to(scaling.frequencies(base, width, length), (2, width // 2))
        np.testing.assert_allclose(found, [wanted, wanted], rtol=1e-5)


def test_a_scaling_comes_back_from_its_config():
    for _, scaling in SCALED.values():
        config = keras.saving.serialize_keras_object(scaling)
        assert config["registered_name"] == f"tfattn>scalings.{type(scaling).__name__}"
        copy = keras.saving.deserialize_keras_object(config)
        assert type(copy) is type(scaling) and copy.get_config() == scaling.get_config()
        assert (copy.magnitude, copy.max_cache_length) == (
            scaling.magnitude,
            scaling.max_cache_length,
        )


def test_a_factor_for_the_softmax_may_be_given():
    assert scalings.yarn(8.0, 61, attention_factor=1.5).magnitude == 1.5
    assert scalings.yarn(1.0, 61).magnitude == 1.0


def test_a_cache_beyond_the_length_where_keys_turn_anew_is_refused():
    model = model_of("CausalLM", "rotary, dynamic")  # scaled from 6 keys on
    prompt = np.array([[5, 7], [4, 6]])
    assert "caches" in model.encode(prompt, max_length=5)
    with pytest.raises(ValueError, match="`max_length` must be at most 5: beyond that each step"):
        model.encode(prompt, max_length=6)
    # Uncached steps compute all keys every time, those of a call over as many tokens.
    tokens = np.random.default_rng(0).integers(4, VOCABULARY, (B, S))
    wanted = np.asarray(model(tokens))
    for position in range(2, S):
        logits, _ = model.step(tokens, position, model.encode(prompt))
        np.testing.assert_allclose(logits, wanted[:, position], atol=1e-5)


@each_kind
def test_a_copy_has_the_same_config_and_weights_of_its_own(kind):
    layer = attention(kind)
    copy = type(layer).from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    assert copy.positions is not layer.positions or kind == "none"


def test_layers_of_one_stack_begin_with_tables_of_their_own():
    block = tfattn.TransformerDecoderBlock(attention=attention("relative"), hidden_dim=7)
    model = tfattn.CausalLM(VOCABULARY, num_layers=2, width=D, block=block)
    model.build_for_any()
    tables = [np.asarray(block.self_attention.positions.table) for block in model.decoder.blocks]
    assert tables[0].shape == (BUCKETS, H) and not np.allclose(*tables)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tfattn.RotaryPositions(base=1.0), "RotaryPositions: `base` must be above 1"),
        (lambda: tfattn.RotaryPositions(base="x"), "`base` must be a positive, finite number"),
        (lambda: tfattn.RotaryPositions(rotary_dim=3), "`rotary_dim` must be even"),
        (lambda: tfattn.RotaryPositions(rotary_dim=0), "`rotary_dim` must be a positive integer"),
        (lambda: tfattn.RotaryPositions(interleaved=1), "`interleaved` must be True or False"),
        (lambda: tfattn.RotaryPositions(scaling={"type": "yarn"}), "`scaling` must be a scaling"),
        (
            lambda: tfattn.MultiHeadAttention(H, 5, positions=tfattn.RotaryPositions()).build(
                (B, T, D), (B, T, D)
            ),
            "`key_dim of the attention` must be even: features turn in pairs. Received: .*=5",
        ),
        (
            lambda: tfattn.MultiHeadAttention(
                H, 4, positions=tfattn.RotaryPositions(rotary_dim=6)
            ).build((B, T, D), (B, T, D)),
            "`rotary_dim` must be at most the heads' width, 4. Received: rotary_dim=6",
        ),
        (lambda: scalings.linear(0), "scalings.linear: `factor` must be a positive, finite"),
        (lambda: scalings.dynamic(0.5, 61), "scalings.dynamic: `factor` must be at least 1"),
        (lambda: scalings.dynamic(2.0, 0), "`original_length` must be a positive integer"),
        (lambda: scalings.yarn(0.5, 61), "scalings.yarn: `factor` must be at least 1"),
        (lambda: scalings.yarn(2.0, 61, 1.0, 1.0), "`beta_slow` must be below `beta_fast`=1.0"),
        (lambda: scalings.yarn(2.0, 61, attention_factor=0), "`attention_factor` must be a posi"),
        (lambda: scalings.yarn(2.0, 61, truncate=0), "`truncate` must be True or False"),
        (lambda: scalings.llama3(2.0, 4.0, 4.0), "`low_freq_factor` must be below"),
        (lambda: scalings.llama3(2.0, original_length=1.5), "`original_length` must be a posit"),
        (
            lambda: tfattn.RelativePositionBias(num_buckets=7),
            "RelativePositionBias: `num_buckets` must be an even number of at least 4, one a buck",
        ),
        (
            lambda: tfattn.RelativePositionBias(1, bidirectional=False),
            "`num_buckets` must be at least 2",
        ),
        (lambda: tfattn.RelativePositionBias(max_distance=8), "`max_distance` must be above 8"),
        (lambda: tfattn.RelativePositionBias(initializer="no such"), "no such"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# What each kind gives, and its weights after a step of training, on any backend.
ON_ANY_BACKEND = """
import keras, numpy as np
import tfattn
from tfattn import biases, masks, scalings

def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")

INSIDE = {
    "rotary": lambda: tfattn.RotaryPositions(),
    "yarn": lambda: tfattn.RotaryPositions(scaling=scalings.yarn(3.0, 13)),
    "dynamic": lambda: tfattn.RotaryPositions(scaling=scalings.dynamic(2.0, 5)),
    "alibi": lambda: tfattn.AlibiPositions(),
    "relative": lambda: tfattn.RelativePositionBias(8, 5),
}
CALLS = {
    "bias alibi": {"bias": biases.alibi(4)},
    "bias relative": {"bias": biases.relative(drawn(8, 4, seed=9), max_distance=5)},
    "window": {"attention_mask": masks.window(2) & ~masks.strided(3)},
}

def found():
    results = {}
    for name in (*INSIDE, *CALLS):
        query, value = keras.Input((3, 6)), keras.Input((7, 6))
        positions = INSIDE[name]() if name in INSIDE else None
        layer = tfattn.MultiHeadAttention(4, 6, num_key_value_heads=2, positions=positions)
        output = layer(query, value, use_causal_mask=True, **CALLS.get(name, {}))
        model = keras.Model([query, value], output)
        for i, weight in enumerate(model.weights):
            weight.assign(drawn(*weight.shape, seed=i))
        inputs = [drawn(2, 3, 6, seed=1), drawn(2, 7, 6, seed=2)]
        results[name] = np.array(model(inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.train_on_batch(inputs, drawn(2, 3, 6, seed=3))
        for i, weight in enumerate(model.get_weights()):
            results[f"{name} {i}"] = weight
    return results
"""


@pytest.mark.slow
def test_jax_gives_and_learns_the_same(tmp_path):
    pytest.importorskip("jax")
    here = {}
    exec(ON_ANY_BACKEND, here)
    expected = here["found"]()
    script = f"{ON_ANY_BACKEND}\nimport sys\nnp.savez(sys.argv[1], **found())"
    printed("-c", script, tmp_path / "found.npz", KERAS_BACKEND="jax")
    with np.load(tmp_path / "found.npz") as arrays:
        assert set(arrays) == set(expected)
        for name, array in arrays.items():
            np.testing.assert_allclose(array, expected[name], 1e-4, 1e-5, err_msg=name)
