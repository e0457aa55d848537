"""MultiHeadAttention against the oracle; see `test_keras_arguments` for Keras's layer."""

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
from tests.helpers.tensors import as_tensor, both_ways, numpy, tf

B, T, S = 2, 3, 7


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def names_of(layer):
    return ["/".join(weight.path.split("/")[1:]) for weight in layer.weights]


def pair(query, value, key=None, **arguments):
    """(our layer, Keras's layer), with one set of weights."""
    shapes = [query.shape, value.shape] + ([] if key is None else [key.shape])
    theirs = keras.layers.MultiHeadAttention(bias_initializer="random_normal", **arguments)
    theirs.build(*shapes)
    ours = tfattn.MultiHeadAttention(**arguments)
    ours.build(*shapes)
    ours.set_weights(theirs.get_weights())
    assert names_of(ours) == names_of(theirs)
    return ours, theirs


def assert_same(ours, theirs, *inputs, **call):
    output, weights = ours(*inputs, return_attention_scores=True, **call)
    expected, expected_weights = theirs(*inputs, return_attention_scores=True, **call)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_array_equal(ours(*inputs, **call), output)


@pytest.mark.parametrize("groups", [3, 1])
def test_multi_head_attention_grouped_heads_equal_the_oracle(groups):
    query, value = draw(B, T, 11), draw(B, S, 11, seed=1)
    layer = tfattn.MultiHeadAttention(
        6, 5, num_key_value_heads=groups, bias_initializer="random_normal"
    )
    lengths, of_heads = np.array([0, 4]), draw(B, 6, T, S, seed=2) < 0
    shared = of_heads[:1, :1]
    for call, mask in (
        ({}, None),
        ({"use_causal_mask": True}, reference.causal(T, S)),
        ({"valid_lens": lengths}, reference.padding(lengths, S)[:, None]),
        ({"attention_mask": of_heads}, of_heads),
        ({"attention_mask": shared}, shared),
    ):
        output, weights = layer(query, value, return_attention_scores=True, **call)
        expected = reference.multi_head(query, value, value, layer.get_weights(), mask)
        np.testing.assert_allclose(output, expected[0], atol=2e-5)
        np.testing.assert_allclose(weights, expected[1], atol=2e-5)


def test_multi_head_attention_additive_score_has_weights_per_head():
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


def test_multi_head_attention_bias_is_added_and_has_a_gradient():
    query, value = draw(B, T, 11), draw(B, S, 5, seed=1)
    layer = tfattn.MultiHeadAttention(3, 5)
    bias = draw(1, 3, T, S, seed=2)

    def weights_of(bias):
        return layer(query, value, bias=bias, return_attention_scores=True)[1]

    weights, (gradient,) = both_ways(weights_of, [bias], draw(B, 3, T, S))
    expected = reference.multi_head(
        query,
        value,
        value,
        layer.get_weights(),
        score=lambda q, k: reference.dot_product(q, k) + bias,
    )
    np.testing.assert_allclose(weights, expected[1], atol=1e-5)
    assert np.any(numpy(gradient) != 0)


def test_multi_head_attention_maps_have_initial_weights_of_their_own():
    glorot = keras.initializers.GlorotUniform()
    layer = tfattn.MultiHeadAttention(
        2, 5, kernel_initializer=glorot, output_kernel_initializer="zeros"
    )
    layer = tfattn.MultiHeadAttention.from_config(layer.get_config())
    layer.build((None, None, 11), (None, None, 11))
    kernels = [layer.query_dense.kernel, layer.key_dense.kernel, layer.value_dense.kernel]
    assert len({float(numpy(k)[0, 0, 0]) for k in kernels}) == 3
    assert np.all(numpy(layer.output_dense.kernel) == 0)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_multi_head_attention_graph_has_one_operation_per_projection():
    layer = tfattn.MultiHeadAttention(4, 8)
    tokens = as_tensor(draw(B, S, 32))
    layer(tokens, tokens)
    graph = (
        tf.function(lambda x: layer(x, x, use_causal_mask=True)).get_concrete_function(tokens).graph
    )
    types = [op.type for op in graph.get_operations()]
    assert types.count("MatMul") == 4 + 2  # projections, and tests of keys and of values for NaN
    assert types.count("BatchMatMulV2") == 2 + 1  # scores, output, and queries that see NaN
    assert "Einsum" not in types
    assert max(t.shape.rank or 0 for op in graph.get_operations() for t in op.outputs) <= 4


def test_attend_projected_equals_the_call():
    query, value, key = draw(B, T, 11), draw(B, S, 5, seed=1), draw(B, S, 13, seed=2)
    layer = tfattn.MultiHeadAttention(
        6, 5, value_dim=3, num_key_value_heads=2, score=tfattn.AdditiveScore(units=3)
    )
    mask, bias = reference.padding([3, 6], S), draw(1, 6, T, S, seed=3)
    options = {"attention_mask": mask, "bias": bias}
    wanted = layer(query, value, key, **options)
    keys, values = layer.project_keys(value, key)
    assert keys.shape == (B, 2, S, 5) and values.shape == (B, 2, S, 3)
    found = layer.attend_projected(query, keys, values, mask, bias)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("`mask` must have shape", {"mask": np.ones((7, 4), bool)}),
        ("`bias` must have shape", {"bias": np.zeros((7, 4), "float32")}),
        ("`bias` must", {"bias": tfattn.biases.alibi(4)}),
    ],
)
def test_attend_projected_refuses_what_does_not_fit_the_keys(said, options):
    layer = tfattn.MultiHeadAttention(2, 4)
    tokens = np.ones((2, 7, 8), "float32")
    layer(tokens, tokens)
    keys, values = layer.project_keys(tokens)
    with pytest.raises(ValueError, match=f"MultiHeadAttention: {said}"):
        layer.attend_projected(tokens, keys, values, **options)


def test_attention_unknown_engine_path_is_refused():
    layer = tfattn.Attention()
    layer.engine_path = "stream"
    with pytest.raises(ValueError, match="`path` must be None, 'dense' or 'streamed'"):
        layer(np.ones((1, 2, 3), "float32"), np.ones((1, 2, 3), "float32"))


@pytest.mark.parametrize("output_shape", [(), []])
def test_multi_head_attention_output_of_no_axis_is_refused(output_shape):
    with pytest.raises(ValueError, match="`output_shape` must be a positive integer or several"):
        tfattn.MultiHeadAttention(2, 4, output_shape=output_shape)


def test_multi_head_attention_mask_with_an_entry_per_feature_is_refused_by_its_name():
    tokens = draw(B, T, 8)
    with pytest.raises(ValueError, match="`key_mask` must have shape"):
        tfattn.MultiHeadAttention(2, 4)(tokens, tokens, key_mask=np.ones(tokens.shape, bool))


def test_functional_model_is_built_without_a_trace_of_the_engine(monkeypatch):
    traced = []
    attend = tfattn.MultiHeadAttention._attend_heads
    monkeypatch.setattr(
        tfattn.MultiHeadAttention,
        "_attend_heads",
        lambda self, *call: traced.append(self.name) or attend(self, *call),
    )
    x, tokens = keras.Input((None, 11)), draw(B, T, 11)
    for options in ({}, {"output_shape": (2, 3)}, {"dtype": "mixed_bfloat16"}, {"use_gate": True}):
        layer = tfattn.MultiHeadAttention(2, 3, name="plain", **options)
        for call in ({}, {"use_causal_mask": True}):
            spec = layer(x, x, **call)
            assert traced == []
            output = layer(tokens, tokens, **call)
            assert tuple(spec.shape) == (None, None, *output.shape[2:])
            assert spec.dtype == keras.backend.standardize_dtype(output.dtype)
            traced.clear()
    # Parts that may refuse the call are traced, and so is a call that returns weights.
    tfattn.MultiHeadAttention(2, 4, positions=tfattn.RotaryPositions(), name="rotary")(x, x)
    tfattn.MultiHeadAttention(2, 3, score=tfattn.AdditiveScore(3), name="additive")(x, x)
    tfattn.MultiHeadAttention(2, 3, name="weights")(x, x, return_attention_scores=True)
    type("Own", (tfattn.MultiHeadAttention,), {})(2, 3, name="own")(x, x)
    assert {*traced} == {"rotary", "additive", "weights", "own"}


def test_functional_model_has_the_dtype_of_the_output_projection():
    policies = {"mha/attention_output": keras.dtype_policies.DTypePolicy("float32")}
    policy = keras.dtype_policies.DTypePolicyMap("mixed_bfloat16", policies)
    layer, x = tfattn.MultiHeadAttention(2, 3, name="mha", dtype=policy), keras.Input((None, 11))
    tokens = draw(B, T, 11)
    assert keras.backend.standardize_dtype(layer(tokens, tokens).dtype) == layer(x, x).dtype
    assert layer(x, x).dtype == "float32"
