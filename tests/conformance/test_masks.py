"""The contract of masks, for every attention layer."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.conformance.policies import POLICIES, numbers
from tests.conformance.table import ATTENTION, SIZES, first_of_each_class, named
from tests.helpers.tensors import as_tensor, both_ways, compiled

OF_A_CLASS = [row for row in ATTENTION if row in first_of_each_class()]
LENGTHS = np.array([5, 2])
KEY_MASK = np.arange(SIZES["S"]) < LENGTHS[:, None]  # (B, S)


def padded(row, fill=0.0):
    """Inputs with `fill` in padding, and the query mask: the second row ends with padding."""
    query, value, key = row.arrays()
    value[~KEY_MASK], key[~KEY_MASK] = fill, fill
    query_mask = np.ones(query.shape[:2], bool)
    query_mask[1, -1] = False
    query[~query_mask] = 0.0
    return [query, value, key], query_mask


def masking(tensors):
    return [keras.layers.Masking()(x) for x in tensors]


@pytest.mark.parametrize(**named(ATTENTION))
def test_implicit_mask_equals_explicit_mask(row):
    layer = row.shared()
    inputs, _ = padded(row)
    wanted = row.call(layer, inputs, key_mask=KEY_MASK)
    assert not np.allclose(row.call(layer, inputs), wanted, atol=1e-3)
    output = row.call(layer, masking([as_tensor(x) for x in inputs]))
    np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(**named(OF_A_CLASS))
def test_implicit_mask_is_kept_in_models_and_compiled_functions(row):
    layer = row.shared()
    inputs, _ = padded(row)
    wanted = row.call(layer, inputs, key_mask=KEY_MASK)
    symbols = row.symbols()
    model = keras.Model(symbols, row.call(layer, masking(symbols)))
    function = compiled(lambda inputs: row.call(layer, masking(inputs)))
    tensors = [as_tensor(x) for x in inputs]
    for output in (model(inputs), model.predict(inputs, verbose=0), function(tensors)):
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(**named(ATTENTION))
def test_padding_masks_and_lengths_mean_the_same(row):
    layer = row.shared()
    inputs, _ = padded(row)
    queries = inputs[0].shape[1]
    wanted = row.call(layer, inputs, key_mask=KEY_MASK)
    for same in (
        {"value_mask": KEY_MASK},
        {"valid_lens": LENGTHS},
        {"valid_lens": np.repeat(LENGTHS[:, None], queries, axis=1)},
        {"attention_mask": np.repeat(KEY_MASK[:, None], queries, axis=1)},
        {"attention_mask": tfattn.masks.padding(LENGTHS)},
        {
            "key_mask": np.arange(7) < np.array([[5], [7]]),
            "value_mask": np.arange(7) < np.array([[7], [2]]),
        },
    ):
        np.testing.assert_array_equal(row.call(layer, inputs, **same), wanted)


@pytest.mark.parametrize(**named(OF_A_CLASS))
def test_one_tensor_feeds_two_layers_and_keeps_its_mask(row):
    inputs, query_mask = padded(row)
    tensors = masking([as_tensor(x) for x in inputs])
    for layer in (row.new(1), row.new(2)):
        output = row.call(layer, tensors)
        np.testing.assert_array_equal(output, row.call(layer, inputs, key_mask=KEY_MASK))
        for tensor, mask in zip(tensors, (query_mask, KEY_MASK, KEY_MASK), strict=True):
            np.testing.assert_array_equal(tensor._keras_mask, mask)


@pytest.mark.parametrize(**named(ATTENTION))
def test_query_mask_is_carried_on_and_hides_no_key(row):
    layer = row.shared()
    inputs, query_mask = padded(row)
    tensors = masking([as_tensor(x) for x in inputs])
    output = row.call(layer, tensors)
    with_weights, _ = row.call(layer, tensors, return_attention_scores=True)
    np.testing.assert_array_equal(output._keras_mask, query_mask)
    np.testing.assert_array_equal(with_weights._keras_mask, query_mask)
    np.testing.assert_array_equal(
        row.call(layer, inputs, query_mask=query_mask), row.call(layer, inputs)
    )


IN_PRECISIONS = [
    pytest.param(row, policy, id=f"{row.name}-{policy}")
    for policy in POLICIES
    for row in (OF_A_CLASS if policy == "mixed_bfloat16" else ATTENTION)
]


def gradients(row, layer, inputs, **options):
    """Output, and the gradients of every float input and of every trainable weight."""

    def sines(*inputs):
        output = row.call(layer, inputs, **options)
        return ops.sum(ops.sin(ops.cast(output, "float32"))), output

    weights = layer.trainable_weights
    (_, output), found = both_ways(sines, inputs, variables=weights, has_aux=True)
    sources = [*inputs, *weights]
    return numbers(output), [
        np.zeros(x.shape) if gradient is None else numbers(gradient)
        for x, gradient in zip(sources, found, strict=True)
    ]


def empty_output(layer):
    """The output of a fully masked query: 0, or the bias of an output map."""
    bias = layer.output_dense.bias if isinstance(layer, tfattn.MultiHeadAttention) else None
    return 0.0 if bias is None else numbers(keras.ops.cast(bias, layer.compute_dtype))


@pytest.mark.parametrize("row, policy", IN_PRECISIONS)
def test_fully_masked_rows_are_exactly_zero_with_finite_gradients(row, policy):
    layer = row.shared(policy)
    inputs = row.arrays()
    shape = (inputs[0].shape[1], SIZES["S"])
    for empty in (
        {"valid_lens": np.array([0, 5])},
        {"key_mask": np.arange(7) < np.array([[0], [5]])},
        {"attention_mask": np.stack([np.zeros(shape, bool), np.ones(shape, bool)])},
    ):
        output, found = gradients(row, layer, inputs, **empty)
        np.testing.assert_array_equal(
            output[0], np.broadcast_to(empty_output(layer), output[0].shape)
        )
        assert np.isfinite(output).all()
        assert all(np.isfinite(gradient).all() for gradient in found)
        assert any((gradient != 0).any() for gradient in found)
        _, weights = row.call(layer, inputs, return_attention_scores=True, **empty)
        np.testing.assert_array_equal(numbers(weights)[0], 0.0)


@pytest.mark.parametrize("row, policy", IN_PRECISIONS)
def test_a_batch_that_is_masked_from_end_to_end_has_gradients_of_zero(row, policy):
    layer = row.shared(policy)
    output, found = gradients(row, layer, row.arrays(), attention_mask=np.zeros((1, 1), bool))
    np.testing.assert_array_equal(output, np.broadcast_to(empty_output(layer), output.shape))
    assert all(np.isfinite(gradient).all() for gradient in found)
    inputs = found[:3]
    assert all((gradient == 0).all() for gradient in inputs)


# NaN, and numbers whose squares or sums overflow.
GARBAGE = [
    ("float32", np.nan, ATTENTION),
    ("mixed_float16", 6e4, ATTENTION),
    ("float32", np.inf, OF_A_CLASS),
    ("float32", 3.4e38, OF_A_CLASS),
    ("mixed_bfloat16", -np.inf, OF_A_CLASS),
]


@pytest.mark.parametrize(
    "row, policy, fill",
    [
        pytest.param(row, policy, fill, id=f"{row.name}-{policy}-{fill}")
        for policy, fill, rows in GARBAGE
        for row in rows
    ],
)
def test_garbage_under_the_padding_changes_no_output_and_no_gradient(row, policy, fill):
    layer = row.shared(policy)
    clean, broken = padded(row)[0], padded(row, np.float32(fill))[0]
    for hidden in ({"key_mask": KEY_MASK}, {"valid_lens": LENGTHS}):
        wanted, wanted_gradients = gradients(row, layer, clean, **hidden)
        output, found = gradients(row, layer, broken, **hidden)
        np.testing.assert_array_equal(output, wanted)
        for gradient, wanted_gradient in zip(found, wanted_gradients, strict=True):
            np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(**named(ATTENTION))
def test_future_garbage_does_not_reach_earlier_outputs(row):
    layer = row.shared()
    query, value, key = row.arrays()
    broken_value, broken_key = value.copy(), key.copy()
    broken_value[:, -1] = broken_key[:, -1] = np.nan

    for scores in (False, True):

        def output(value, key, scores=scores):
            options = {"use_causal_mask": True, "return_attention_scores": scores}
            result = row.call(layer, [query, value, key], **options)
            return np.asarray(result[0] if scores else result)

        wanted = output(value, key)[:, :-1]
        np.testing.assert_array_equal(output(broken_value, broken_key)[:, :-1], wanted)


@pytest.mark.parametrize(**named(ATTENTION))
def test_causal_mask_of_fewer_queries_than_keys_lines_up_at_the_end(row):
    inputs = row.arrays()
    queries, keys = inputs[0].shape[1], SIZES["S"]
    _, weights = row.call(row.shared(), inputs, use_causal_mask=True, return_attention_scores=True)
    _, unmasked = row.call(row.shared(), inputs, return_attention_scores=True)
    visible = np.tri(queries, keys, keys - queries, dtype=bool)
    np.testing.assert_array_equal(np.asarray(weights)[..., ~visible], 0.0)
    if getattr(row.shared().normalizer, "function", None) is not None:
        return  # with fewer visible keys, other keys have weights of 0
    # Outside the support of a kernel, weights are 0 without a mask too.
    np.testing.assert_array_equal(
        (np.asarray(weights) > 0)[..., visible], (np.asarray(unmasked) > 0)[..., visible]
    )


@pytest.mark.parametrize(**named(ATTENTION))
def test_asking_for_the_weights_changes_no_bit_of_the_output(row):
    layer, inputs = row.shared(), row.arrays()
    for mask in ({}, {"use_causal_mask": True}, {"valid_lens": np.array([0, 5])}):
        with_weights, _ = row.call(layer, inputs, return_attention_scores=True, **mask)
        np.testing.assert_array_equal(with_weights, row.call(layer, inputs, **mask))


@pytest.mark.parametrize(**named(ATTENTION))
def test_dropout_rate_changes_no_bit_at_inference(row):
    layer, inputs = row.shared(), row.arrays()
    config = layer.get_config()
    results = []
    for rate in (0.0, 0.9):
        other = row.cls.from_config({**config, "dropout": rate})
        row.call(other, inputs)
        for weight, value in zip(_without_seeds(other), _without_seeds(layer), strict=True):
            weight.assign(value.value)
        results.append(np.asarray(row.call(other, inputs, training=False)))
    np.testing.assert_array_equal(*results)
    assert not np.allclose(results[1], row.call(other, inputs, training=True))


def _without_seeds(layer):
    return [weight for weight in layer.weights if "seed" not in weight.path]
