"""MultiHeadAttention against Keras's layer and the oracle; and where Keras's is wrong, that this
one is right.
"""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import tfattn
from tests import reference
from tests.tensors import as_tensor, both_ways, dtype_of, numpy, tf
from tfattn.layers.positions.base import HeadPositions

B, T, S = 2, 3, 7


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def pair(query, value, key=None, **arguments):
    """(our layer, Keras's layer), with one set of weights."""
    shapes = [query.shape, value.shape] + ([] if key is None else [key.shape])
    theirs = keras.layers.MultiHeadAttention(bias_initializer="random_normal", **arguments)
    theirs.build(*shapes)
    ours = tfattn.MultiHeadAttention(**arguments)
    ours.build(*shapes)
    ours.set_weights(theirs.get_weights())
    return ours, theirs


def assert_same(ours, theirs, *inputs, rows=slice(None), **call):
    output, weights = ours(*inputs, return_attention_scores=True, **call)
    expected, expected_weights = theirs(*inputs, return_attention_scores=True, **call)
    np.testing.assert_allclose(np.asarray(output)[rows], np.asarray(expected)[rows], atol=1e-5)
    where = (
        np.moveaxis(np.asarray(weights), 2, 1)[rows],
        np.moveaxis(np.asarray(expected_weights), 2, 1)[rows],
    )
    np.testing.assert_allclose(*where, atol=1e-5)
    np.testing.assert_array_equal(ours(*inputs, **call), output)


SIZES = {
    "even": {"num_heads": 4, "key_dim": 8},
    "odd": {"num_heads": 3, "key_dim": 5},
    "one head": {"num_heads": 1, "key_dim": 7},
    "value_dim": {"num_heads": 3, "key_dim": 5, "value_dim": 11},
    "output_shape": {"num_heads": 2, "key_dim": 5, "value_dim": 3, "output_shape": 13},
}


@pytest.mark.parametrize("size", SIZES)
def test_equals_keras_in_self_attention(size):
    tokens = draw(B, S, 11)
    ours, theirs = pair(tokens, tokens, **SIZES[size])
    assert_same(ours, theirs, tokens, tokens)
    assert_same(ours, theirs, tokens, tokens, use_causal_mask=True)


@pytest.mark.parametrize("size", SIZES)
def test_equals_keras_in_cross_attention(size):
    query, value, key = draw(B, T, 11), draw(B, S, 5, seed=1), draw(B, S, 13, seed=2)
    ours, theirs = pair(query, value, key, **SIZES[size])
    assert_same(ours, theirs, query, value, key)


def test_equals_keras_without_biases():
    tokens = draw(B, S, 11)
    ours, theirs = pair(tokens, tokens, num_heads=3, key_dim=5, use_bias=False)
    assert_same(ours, theirs, tokens, tokens)


def test_equals_keras_with_padding():
    query, value = draw(B, T, 11), draw(B, S, 5, seed=1)
    mask = reference.padding([3, 6], S)[:, 0]
    ours, theirs = pair(query, value, num_heads=3, key_dim=5)
    assert_same(ours, theirs, query, value, value_mask=mask)
    assert_same(ours, theirs, query, value, key_mask=mask)


def test_equals_keras_in_padded_self_attention_at_every_real_token():
    ids = np.array([[3, 1, 4, 1, 0, 0, 0], [5, 9, 2, 6, 5, 3, 5]])
    tokens = keras.layers.Embedding(11, 13, mask_zero=True)(ids)
    ours, theirs = pair(tokens, tokens, num_heads=3, key_dim=5)
    mask = tokens._keras_mask
    output = np.asarray(ours(tokens, tokens))
    tokens._keras_mask = mask
    expected = np.asarray(theirs(tokens, tokens))
    np.testing.assert_allclose(output[ids != 0], expected[ids != 0], atol=1e-5)


def test_equals_keras_with_a_mask_of_three_axes():
    query, value = draw(B, T, 11), draw(B, S, 5, seed=1)
    mask = np.random.default_rng(2).random((B, T, S)) < 0.6
    mask[:, :, 0] = True
    ours, theirs = pair(query, value, num_heads=3, key_dim=5)
    assert_same(ours, theirs, query, value, attention_mask=mask)


def test_equals_keras_in_gradients():
    tokens = draw(B, S, 11)
    layers = pair(tokens, tokens, num_heads=3, key_dim=5)
    gradients = []
    for layer in layers:

        def squares(layer=layer):
            return ops.sum(layer(tokens, tokens, use_causal_mask=True) ** 2)

        gradients.append(both_ways(squares, (), variables=layer.trainable_variables)[1])
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_equals_keras_as_saved_weights_in_order():
    tokens = draw(B, S, 11)
    ours, theirs = pair(tokens, tokens, num_heads=3, key_dim=5)
    names = ["/".join(w.path.split("/")[1:]) for w in ours.weights]
    assert names == ["/".join(w.path.split("/")[1:]) for w in theirs.weights]


# Where Keras's layer is wrong.


def test_one_masked_memory_feeds_many_layers():
    ids = np.array([[3, 1, 4, 0, 0], [5, 9, 2, 6, 5]])
    memory = keras.layers.Embedding(11, 13, mask_zero=True)(ids)
    layers = [tfattn.MultiHeadAttention(num_heads=3, key_dim=5) for _ in range(3)]
    for layer in layers:
        _, weights = layer(memory, memory, return_attention_scores=True)
        assert np.all(np.asarray(weights)[0, :, :, 3:] == 0)
    np.testing.assert_array_equal(memory._keras_mask, ids != 0)


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_fully_masked_query_gives_the_output_bias_on_every_path(scores, dropout):
    query, value = draw(B, T, 11), draw(B, S, 5, seed=1)
    layer = tfattn.MultiHeadAttention(3, 5, dropout=dropout, bias_initializer="random_normal")
    mask = np.ones((T, S), bool)
    mask[1] = False
    result = layer(query, value, attention_mask=mask, return_attention_scores=scores)
    output = result[0] if scores else result
    bias = np.broadcast_to(layer.output_dense.bias, (B, 11))
    np.testing.assert_array_equal(np.asarray(output)[:, 1], bias)


def test_float_mask_is_refused_and_not_inverted():
    query, value = draw(B, T, 11), draw(B, S, 5)
    mask = np.where(reference.causal(T, S), 0.0, -1e9).astype("float32")
    with pytest.raises(
        ValueError, match=r"MultiHeadAttention: `attention_mask` must be boolean.*goes into `bias`"
    ):
        tfattn.MultiHeadAttention(3, 5)(query, value, attention_mask=mask)
    layer = tfattn.MultiHeadAttention(3, 5)
    expected = layer(query, value, attention_mask=reference.causal(T, S))
    np.testing.assert_allclose(layer(query, value, bias=mask), expected, atol=1e-6)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e30])
def test_broken_padding_reaches_no_output_and_no_gradient(broken):
    tokens = draw(B, S, 11)
    clean = tokens.copy()
    tokens[:, 5:] = broken
    lengths = np.array([5, 3])
    query_mask = reference.padding([5, 5], S)[:, 0]
    layer = tfattn.MultiHeadAttention(3, 5)
    expected = np.asarray(layer(clean, clean, valid_lens=lengths))

    def squares():
        output = layer(tokens, tokens, query_mask=query_mask, valid_lens=lengths)[:, :5]
        return ops.sum(output**2), output

    (_, output), gradients = both_ways(
        squares, (), variables=layer.trainable_variables, has_aux=True
    )
    np.testing.assert_array_equal(output, expected[:, :5])
    for gradient in gradients:
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    "score", [None, tfattn.CosineScore(), tfattn.KernelScore(trainable_bandwidth=True)]
)
@pytest.mark.parametrize("broken", [np.nan, np.inf, 3e38])
def test_keys_that_an_attention_mask_hides_from_all_reach_no_gradient(broken, score):
    query, value = draw(B, T, 11), draw(B, S, 5, seed=1)
    value[:, 5:] = broken
    mask = np.ones((B, 1, S), bool)
    mask[:, :, 5:] = False
    layer = tfattn.MultiHeadAttention(3, 5, score=score)
    layer(query, value)
    total, gradients = both_ways(
        lambda: ops.sum(layer(query, value, attention_mask=mask) ** 2),
        (),
        variables=layer.trainable_variables,
    )
    assert np.isfinite(total)
    for gradient in gradients:
        assert np.isfinite(gradient).all()


def test_causal_outputs_do_not_depend_on_later_tokens_with_dropout_set():
    tokens = draw(B, S, 11)
    changed = tokens.copy()
    changed[:, 4] += 1.0
    layer = tfattn.MultiHeadAttention(3, 5, dropout=0.5)
    for scores in (True, False):
        before, after = (
            layer(x, x, use_causal_mask=True, return_attention_scores=scores)
            for x in (tokens, changed)
        )
        before, after = (np.asarray(r[0] if scores else r) for r in (before, after))
        np.testing.assert_array_equal(before[:, :4], after[:, :4])
        assert (before[:, 4:] != after[:, 4:]).any()


# What Keras's layer does not have.


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    heads=st.sampled_from([(6, 6), (6, 3), (6, 1)]),
    masked=st.sampled_from(["nothing", "causal", "lengths", "heads"]),
)
def test_grouped_heads_equal_the_oracle(seed, heads, masked):
    rng = np.random.default_rng(seed)
    query, value = (rng.normal(size=(B, n, 11)).astype("float32") for n in (T, S))
    layer = tfattn.MultiHeadAttention(
        heads[0], 5, num_key_value_heads=heads[1], bias_initializer="random_normal"
    )
    lengths = rng.integers(0, S + 1, B)
    of_heads = rng.random((B, heads[0], T, S)) < 0.5
    call, mask = {
        "nothing": ({}, None),
        "causal": ({"use_causal_mask": True}, reference.causal(T, S)),
        "lengths": ({"valid_lens": lengths}, reference.padding(lengths, S)[:, None]),
        "heads": ({"attention_mask": of_heads}, of_heads),
    }[masked]
    output, weights = layer(query, value, return_attention_scores=True, **call)
    expected = reference.multi_head(query, value, value, layer.get_weights(), mask)
    np.testing.assert_allclose(output, expected[0], atol=2e-5)
    np.testing.assert_allclose(weights, expected[1], atol=2e-5)


def test_additive_score_has_weights_of_its_own_for_each_head():
    query, value = draw(B, T, 11), draw(B, S, 5, seed=1)
    layer = tfattn.MultiHeadAttention(3, 5, score=tfattn.AdditiveScore(units=7))
    _, weights = layer(query, value, return_attention_scores=True)
    w_q, w_k, w_v, *projections = layer.get_weights()
    assert (w_q.shape, w_k.shape, w_v.shape) == ((3, 5, 7), (3, 5, 7), (3, 7, 1))

    def score(q, k):
        q, k = np.einsum("bhtp,hpu->bhtu", q, w_q), np.einsum("bhsp,hpu->bhsu", k, w_k)
        return np.stack(
            [reference.additive(q[:, h], k[:, h], w_v[h, :, 0]) for h in range(3)], axis=1
        )

    expected = reference.multi_head(query, value, value, projections, score=score)
    np.testing.assert_allclose(weights, expected[1], atol=1e-5)


def test_first_weights_follow_the_two_dimensional_matrix():
    layer = tfattn.MultiHeadAttention(8, 64)
    layer.build((None, None, 512), (None, None, 512))
    bound = np.sqrt(6 / (512 + 512))
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense):
        largest = np.abs(numpy(dense.kernel)).max()
        assert 0.99 * bound < largest < 1.001 * bound


def test_query_key_and_value_begin_differently():
    layer = tfattn.MultiHeadAttention(2, 5, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build((None, None, 11), (None, None, 11))
    kernels = [layer.query_dense.kernel, layer.key_dense.kernel, layer.value_dense.kernel]
    assert len({float(numpy(k)[0, 0, 0]) for k in kernels}) == 3


def test_bias_shifts_the_scores_and_has_a_gradient():
    query, value = draw(B, T, 11), draw(B, S, 5, seed=1)
    layer = tfattn.MultiHeadAttention(3, 5)
    layer(query, value)
    bias = draw(1, 3, T, S, seed=2)

    def squares(bias):
        output, weights = layer(query, value, bias=bias, return_attention_scores=True)
        return ops.sum(output**2), weights

    (_, weights), (gradient,) = both_ways(squares, [bias], has_aux=True)

    def score(q, k):
        return reference.dot_product(q, k) + bias

    expected = reference.multi_head(query, value, value, layer.get_weights(), score=score)
    np.testing.assert_allclose(weights, expected[1], atol=1e-5)
    assert np.any(numpy(gradient) != 0)


@pytest.mark.tensorflow
def test_one_product_a_projection_and_no_einsum():
    layer = tfattn.MultiHeadAttention(4, 8)
    tokens = as_tensor(draw(B, S, 32))
    layer(tokens, tokens)
    graph = (
        tf.function(lambda x: layer(x, x, use_causal_mask=True)).get_concrete_function(tokens).graph
    )
    types = [op.type for op in graph.get_operations()]
    assert types.count("MatMul") == 4
    assert types.count("BatchMatMulV2") == 2
    assert "Einsum" not in types
    assert max(t.shape.rank or 0 for op in graph.get_operations() for t in op.outputs) <= 4


@pytest.mark.parametrize("score", [tfattn.DotProductScore, lambda: tfattn.AdditiveScore(units=3)])
@pytest.mark.parametrize("groups", [6, 2])
def test_a_call_is_keys_projected_once_and_attention_over_them(groups, score):
    query, value, key = draw(B, T, 11), draw(B, S, 5, seed=1), draw(B, S, 13, seed=2)
    layer = tfattn.MultiHeadAttention(
        6,
        5,
        value_dim=3,
        num_key_value_heads=groups,
        score=score(),
        bias_initializer="random_normal",
    )
    mask, bias = reference.padding([3, 6], S), draw(6, T, S, seed=3)[None]
    options = {"attention_mask": mask, "bias": bias}
    wanted = layer(query, value, key, return_attention_scores=True, **options)
    keys, values = layer.project_keys(value, key)
    assert keys.shape == (B, groups, S, 5) and values.shape == (B, groups, S, 3)
    for ours, theirs in zip(
        layer.attend_projected(query, keys, values, mask, bias, return_weights=True),
        wanted,
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    output, weights = layer.attend_projected(query, keys, values, mask, bias)
    np.testing.assert_array_equal(output, wanted[0])
    assert weights is None


def test_keys_are_projected_from_the_values_where_no_key_is_given():
    tokens = draw(B, S, 11)
    layer = tfattn.MultiHeadAttention(3, 5)
    layer.build(tokens.shape, tokens.shape)
    for ours, theirs in zip(
        layer.project_keys(tokens), layer.project_keys(tokens, tokens), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_the_output_map_may_begin_in_another_way():
    layer = tfattn.MultiHeadAttention(
        3, 5, kernel_initializer="ones", output_kernel_initializer="zeros"
    )
    layer = tfattn.MultiHeadAttention.from_config(layer.get_config())
    layer.build((None, None, 11), (None, None, 11))
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense):
        assert np.all(numpy(dense.kernel) == 1)
    assert np.all(numpy(layer.output_dense.kernel) == 0)


# Positions within attention.


def turning(**options):
    sizes = {"num_heads": 4, "key_dim": 6, "num_key_value_heads": 2}
    return tfattn.MultiHeadAttention(**{**sizes, "positions": tfattn.RotaryPositions(), **options})


def turned_score(queries, keys):
    """The dot product of turned heads; the last query meets the last key."""
    queries = reference.turned(queries, keys.shape[2] - queries.shape[2])
    return reference.dot_product(queries, reference.turned(keys, 0))


@pytest.mark.parametrize("queries", [S, T])
@pytest.mark.parametrize("causal", [False, True])
def test_positions_turn_queries_and_keys_and_line_up_at_the_end(queries, causal):
    layer = turning(bias_initializer="random_normal")
    query, value = draw(B, queries, 11), draw(B, S, 5, seed=1)
    output, weights = layer(query, value, use_causal_mask=causal, return_attention_scores=True)
    mask = reference.causal(queries, S) if causal else None
    expected = reference.multi_head(
        query, value, value, layer.get_weights(), mask, score=turned_score
    )
    np.testing.assert_allclose(output, expected[0], atol=1e-5)
    np.testing.assert_allclose(weights, expected[1], atol=1e-5)
    without = turning(positions=None)
    without.build(query.shape, value.shape)
    without.set_weights(layer.get_weights())
    assert np.abs(output - without(query, value, use_causal_mask=causal)).max() > 0.01


def test_turned_heads_are_cached_at_their_positions():
    layer, tokens = turning(), draw(B, S, 11)
    wanted = np.asarray(layer(tokens, tokens, use_causal_mask=True))
    pieces = [layer.project_keys(tokens[:, a:b], start=a) for a, b in ((0, 2), (2, 3), (3, S))]
    keys, values = (np.concatenate(parts, axis=2) for parts in zip(*pieces, strict=True))
    whole = layer.project_keys(tokens)
    np.testing.assert_allclose(keys, whole[0], atol=1e-6)
    np.testing.assert_allclose(values, whole[1], atol=1e-6)
    for t in range(S):  # over all keys, so that only `start` can tell where the query stands
        seen = np.arange(S)[None, None] <= t
        output, _ = layer.attend_projected(tokens[:, t : t + 1], keys, values, seen, start=t)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_a_position_may_be_a_tensor_and_lengths_unknown(jit):
    layer, tokens = turning(), draw(B, S, 11)
    wanted = np.asarray(layer(tokens, tokens, use_causal_mask=True))

    @tf.function(
        jit_compile=jit,
        input_signature=[tf.TensorSpec((None, None, 11)), tf.TensorSpec((), "int32")],
    )
    def run(tokens, position):
        keys, values = layer.project_keys(tokens)
        query, seen = (
            tokens[:, position : position + 1],
            ops.arange(ops.shape(tokens)[1]) <= position,
        )
        one, _ = layer.attend_projected(query, keys, values, seen[None, None], start=position)
        return one, layer(tokens, tokens, use_causal_mask=True)

    for t in (0, 4):
        one, all_of_them = run(tokens, t)
        np.testing.assert_allclose(one[:, 0], wanted[:, t], atol=1e-5)
        np.testing.assert_allclose(all_of_them, wanted, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_turned_heads_keep_the_compute_type(policy):
    layer, wide = turning(dtype=policy), turning()
    tokens = draw(B, S, 11)
    output = layer(tokens, tokens)
    wide(tokens, tokens)
    wide.set_weights(layer.get_weights())
    assert dtype_of(output) == layer.compute_dtype
    np.testing.assert_allclose(np.asarray(output, "float32"), wide(tokens, tokens), atol=0.05)


def test_positions_come_back_from_a_file(tmp_path):
    layer = turning(positions=tfattn.RotaryPositions(base=17.0))
    x = keras.Input((None, 11))
    model, tokens = keras.Model(x, layer(x, x)), draw(B, S, 11)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), model(tokens))
    assert loaded.layers[-1].positions.base == 17.0


class Scaled(HeadPositions):
    """Positions with a weight."""

    def build(self, query_shape, key_shape):
        assert query_shape[1:] == (4, None, 6) and key_shape[1:] == (2, None, 6)
        self.factor = self.add_weight(name="factor", shape=(), initializer="ones")

    def turn(self, heads, start):
        return heads * self.factor


def test_weights_of_positions_are_the_layers_and_get_a_gradient():
    layer, tokens = turning(positions=Scaled()), draw(B, S, 11)
    layer.build((None, None, 11), (None, None, 11))
    (factor,) = (w for w in layer.trainable_weights if w.path.endswith("factor"))
    _, (slope,) = both_ways(lambda: ops.sum(layer(tokens, tokens) ** 2), (), variables=[factor])
    assert np.isfinite(slope) and slope != 0


def test_the_base_of_positions_changes_nothing():
    layer, tokens = turning(positions=HeadPositions()), draw(B, S, 11)
    plain = turning(positions=None)
    plain.build(tokens.shape, tokens.shape)
    layer.build(tokens.shape, tokens.shape)
    plain.set_weights(layer.get_weights())
    np.testing.assert_array_equal(layer(tokens, tokens), plain(tokens, tokens))
