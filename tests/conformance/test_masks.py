"""The contract of masks, for attention layers and for the layers that pass masks on."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.conformance.table import (
    NUMERIC,
    OF_A_CLASS,
    SIZES,
    named,
    numbers,
    row_of,
)
from tests.helpers.tensors import as_tensor, both_ways, compiled
from tfattn import masks

CLASSES = [row for row in NUMERIC if row in OF_A_CLASS]
S = SIZES["S"]
LENGTHS = np.array([5, 2])
KEY_MASK = np.arange(S) < LENGTHS[:, None]  # (B, S)


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


@pytest.mark.parametrize(**named(NUMERIC))
def test_attention_implicit_mask_equals_explicit_mask_and_stays_on_tensors(row):
    layer = row.shared()
    inputs, query_mask = padded(row)
    wanted = row.call(layer, inputs, key_mask=KEY_MASK)
    assert not np.allclose(row.call(layer, inputs), wanted, atol=1e-3)
    tensors = masking([as_tensor(x) for x in inputs])
    for _ in range(2):  # the same tensors may feed other layers
        output = row.call(layer, tensors)
        np.testing.assert_array_equal(output, wanted)
        np.testing.assert_array_equal(output._keras_mask, query_mask)
        for tensor, mask in zip(tensors, (query_mask, KEY_MASK, KEY_MASK), strict=True):
            np.testing.assert_array_equal(tensor._keras_mask, mask)


@pytest.mark.slow
@pytest.mark.parametrize(**named(CLASSES))
def test_attention_implicit_mask_is_kept_in_models_and_compiled_functions(row):
    layer = row.shared()
    inputs, _ = padded(row)
    wanted = row.call(layer, inputs, key_mask=KEY_MASK)
    symbols = row.symbols()
    model = keras.Model(symbols, row.call(layer, masking(symbols)))
    function = compiled(lambda inputs: row.call(layer, masking(inputs)))
    for output in (model(inputs), function([as_tensor(x) for x in inputs])):
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(**named(NUMERIC))
def test_attention_padding_masks_and_lengths_agree(row):
    layer = row.shared()
    inputs, _ = padded(row)
    queries = inputs[0].shape[1]
    wanted = row.call(layer, inputs, key_mask=KEY_MASK)
    for same in (
        {"value_mask": KEY_MASK},
        {"valid_lens": LENGTHS},
        {"valid_lens": np.repeat(LENGTHS[:, None], queries, axis=1)},
        {"attention_mask": np.repeat(KEY_MASK[:, None], queries, axis=1)},
        {"attention_mask": masks.padding(LENGTHS)},
        {
            "key_mask": np.arange(S) < np.array([[5], [7]]),
            "value_mask": np.arange(S) < np.array([[7], [2]]),
        },
    ):
        np.testing.assert_array_equal(row.call(layer, inputs, **same), wanted)


@pytest.mark.parametrize(**named(CLASSES))
def test_attention_query_mask_is_carried_on_and_hides_no_key(row):
    layer, inputs = row.shared(), row.arrays()
    mask = np.ones(inputs[0].shape[:2], bool)
    mask[1, -1] = False
    output = row.call(layer, inputs, query_mask=mask)
    with_weights, weights = row.call(layer, inputs, query_mask=mask, return_attention_scores=True)
    np.testing.assert_array_equal(output, row.call(layer, inputs))
    np.testing.assert_array_equal(output._keras_mask, mask)
    np.testing.assert_array_equal(with_weights._keras_mask, mask)
    assert getattr(weights, "_keras_mask", None) is None


def gradients(run, inputs, weights):
    """Output, and the gradients of every float input and of every trainable weight."""

    def sines(*inputs):
        output = run(*inputs)
        return ops.sum(ops.sin(ops.cast(output, "float32"))), output

    (_, output), found = both_ways(sines, inputs, variables=weights, has_aux=True)
    return numbers(output), [
        np.zeros(x.shape) if gradient is None else numbers(gradient)
        for x, gradient in zip([*inputs, *weights], found, strict=True)
    ]


def gradients_of(row, layer, inputs, **options):
    return gradients(
        lambda *inputs: row.call(layer, inputs, **options), inputs, layer.trainable_weights
    )


def empty_output(layer):
    """The output of a fully masked query: 0, or the bias of an output map."""
    bias = layer.output_dense.bias if isinstance(layer, tfattn.MultiHeadAttention) else None
    return 0.0 if bias is None else numbers(ops.cast(bias, layer.compute_dtype))


# Masks that hide all keys of the first row, or of all rows.
EMPTY = {
    "lengths": {"valid_lens": np.array([0, 5])},
    "key mask": {"key_mask": np.arange(S) < np.array([[0], [5]])},
    "attention mask": {"attention_mask": np.array([False, True])[:, None, None]},
    "every row": {"attention_mask": np.zeros((1, 1), bool)},
}
POLICIES = {"float32": NUMERIC, "mixed_float16": NUMERIC, "mixed_bfloat16": CLASSES}


def in_turn(rows, cases):
    """Rows, each with another one of the cases."""
    cases = list(cases)
    return [(row, cases[i % len(cases)]) for i, row in enumerate(rows)]


@pytest.mark.parametrize(
    "row, policy, form",
    [
        pytest.param(row, policy, form, id=f"{row.name}-{policy}-{form}")
        for policy, rows in POLICIES.items()
        for row, form in in_turn(rows, EMPTY)
    ]
    + [
        pytest.param(row_of("MultiHeadAttention"), "float32", form, id=f"MultiHead-{form}")
        for form in EMPTY
    ],
)
def test_attention_fully_masked_is_exactly_zero_with_finite_gradients(row, policy, form):
    layer, inputs = row.shared(policy), row.arrays()
    batch = slice(None) if form == "every row" else slice(1)
    output, found = gradients_of(row, layer, inputs, **EMPTY[form])
    np.testing.assert_array_equal(
        output[batch], np.broadcast_to(empty_output(layer), output[batch].shape)
    )
    assert np.isfinite(output).all()
    for gradient in found:
        assert np.isfinite(gradient).all()
    for gradient in found[:3]:
        np.testing.assert_array_equal(gradient[batch], 0.0)
    if form != "every row":
        assert any((gradient != 0).any() for gradient in found[:3])
    _, weights = row.call(layer, inputs, return_attention_scores=True, **EMPTY[form])
    np.testing.assert_array_equal(numbers(weights)[batch], 0.0)


# Masks that hide a key from all queries only together, or since there are fewer queries than keys:
# (how many queries they are for, the call, the key).
LAST_IS_SHORT = {"valid_lens": np.array([[7, 7, 1], [7, 7, 2]]), "use_causal_mask": True}
SEGMENTS = masks.segments([[2, 2, 3]], [[1, 1, 2, 2, 3, 3, 3]])
HIDING = {
    "lengths by query": (LAST_IS_SHORT, 6),
    "causal window": ({"attention_mask": masks.window(2), "use_causal_mask": True}, 2),
    "segments": ({"attention_mask": SEGMENTS}, 1),
    "never causal": ({"attention_mask": ~masks.causal()}, 4),
    "not or": ({"attention_mask": ~(masks.causal() | masks.padding([[5, 5, 5]] * 2))}, 4),
}
IN_TURN = [name for name in HIDING if name != "lengths by query"]
# NaN, and numbers whose squares or sums overflow.
GARBAGE = [
    ("float32", np.nan, "dense", in_turn(NUMERIC, ["lengths", "key mask"])),
    ("float32", np.nan, "dense", [(row, "lengths by query") for row in NUMERIC]),
    ("float32", np.nan, "dense", in_turn(NUMERIC, IN_TURN)),
    ("float32", np.nan, "streamed", in_turn(CLASSES, ["lengths by query", "causal window"])),
    ("mixed_float16", 6e4, "dense", in_turn(NUMERIC, ["key mask", "lengths"])),
    ("float32", np.inf, "dense", in_turn(CLASSES, ["lengths", "key mask"])),
    ("float32", 3.4e38, "dense", in_turn(CLASSES, ["key mask", "lengths"])),
    ("mixed_bfloat16", -np.inf, "dense", in_turn(CLASSES, ["lengths", "key mask"])),
]


@pytest.mark.parametrize(
    "row, form, policy, fill, path",
    [
        pytest.param(row, form, policy, fill, path, id=f"{row.name}-{form}-{policy}-{fill}-{path}")
        for policy, fill, path, rows in GARBAGE
        for row, form in rows
        # Leave-one-out has as many queries as keys.
        if form not in HIDING or "leave_one_out" not in row.name
    ],
)
def test_attention_garbage_under_masks_changes_no_output_and_no_gradient(
    row, form, policy, fill, path
):
    layer = row.shared(policy)
    if form in HIDING:
        options, place = HIDING[form]
        clean, broken = row.arrays(), row.arrays()
        for x in clean[1:]:
            x[:, place] = 0.0
        for x in broken[1:]:
            x[:, place] = fill
    else:
        options = {"valid_lens": LENGTHS} if form == "lengths" else {"key_mask": KEY_MASK}
        clean, broken = padded(row)[0], padded(row, np.float32(fill))[0]
    with tfattn.attention_path(path) if path == "streamed" else contextlib.nullcontext():
        wanted, wanted_gradients = gradients_of(row, layer, clean, **options)
        output, found = gradients_of(row, layer, broken, **options)
    np.testing.assert_array_equal(output, wanted)
    for gradient, wanted_gradient in zip(found, wanted_gradients, strict=True):
        np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(**named(NUMERIC))
def test_attention_garbage_in_the_future_reaches_only_queries_that_may_see_it(row):
    layer = row.shared()
    query, value, key = row.arrays()
    wanted = row.call(layer, [query, value, key], use_causal_mask=True)
    value[:, -1] = key[:, -1] = np.nan
    options = {"use_causal_mask": True, "return_attention_scores": True}
    output, _ = row.call(layer, [query, value, key], **options)
    np.testing.assert_array_equal(numbers(output)[:, :-1], numbers(wanted)[:, :-1])
    if "leave_one_out" not in row.name:  # where no point sees itself
        assert np.isnan(numbers(output)[:, -1]).any(-1).all()


@pytest.mark.parametrize(**named(NUMERIC))
def test_attention_causal_mask_of_fewer_queries_lines_up_at_the_end(row):
    inputs = row.arrays()
    queries = inputs[0].shape[1]
    _, weights = row.call(row.shared(), inputs, use_causal_mask=True, return_attention_scores=True)
    _, unmasked = row.call(row.shared(), inputs, return_attention_scores=True)
    visible = reference.causal(queries, S)
    np.testing.assert_array_equal(np.asarray(weights)[..., ~visible], 0.0)
    if getattr(row.shared().normalizer, "function", None) is not None:
        return  # with fewer visible keys, other keys have weights of 0
    # Outside the support of a kernel, weights are 0 without a mask too.
    np.testing.assert_array_equal(
        (np.asarray(weights) > 0)[..., visible], (np.asarray(unmasked) > 0)[..., visible]
    )


@pytest.mark.parametrize(**named(NUMERIC))
def test_attention_weights_returned_change_no_bit_of_the_output(row):
    layer, inputs = row.shared(), row.arrays()
    for mask in ({}, {"use_causal_mask": True, "valid_lens": np.array([0, 5])}):
        with_weights, _ = row.call(layer, inputs, return_attention_scores=True, **mask)
        np.testing.assert_array_equal(with_weights, row.call(layer, inputs, **mask))


@pytest.mark.parametrize(**named([*CLASSES, row_of("MultiHeadAttention[sinks]")]))
def test_attention_dropout_rate_changes_no_bit_at_inference(row):
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


# Layers that pass masks on.

# A row, which of its inputs is padded, and the argument of its mask.
PADDED = [
    ("AttentionPooling", 0, "key_mask"),
    ("TransformerEncoderBlock", 0, "mask"),
    ("TransformerEncoderBlock[pre-norm]", 0, "mask"),
    ("TransformerDecoderBlock", 0, "inputs_mask"),
    ("TransformerDecoderBlock", 1, "memory_mask"),
    ("TransformerDecoderBlock[pre-norm]", 0, "inputs_mask"),
    ("TransformerDecoderBlock[pre-norm]", 1, "memory_mask"),
    ("RecurrentDecoder", 1, "memory_mask"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, place, argument", PADDED)
def test_layer_garbage_in_padding_changes_no_output_and_no_gradient(name, place, argument):
    row = row_of(name)
    layer, results = row.shared(), []
    for fill in (0.0, np.nan, -np.inf, 3e38):
        inputs = row.arrays()
        length = inputs[place].shape[1]
        mask = np.arange(length) < np.array([[length], [1]])
        inputs[place][~mask] = fill

        def run(changed, inputs=inputs, mask=mask):
            arrays = [changed if i == place else x for i, x in enumerate(inputs)]
            output = row.call(layer, arrays, **{argument: mask})
            if argument not in ("mask", "inputs_mask"):
                return output
            np.testing.assert_array_equal(output._keras_mask, mask)
            return ops.where(mask[..., None], output, 0.0)  # what padding gets is nobody's matter

        output, found = gradients(run, [inputs[place]], layer.trainable_weights)
        results.append([output, *found])
        assert not found[0][~mask].any() and found[0][mask].any()
    for broken in results[1:]:
        for gradient, wanted in zip(broken, results[0], strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)


IDS = np.array([[3, 5, 7, 0, 0], [2, 4, 6, 8, 9]])
IDS_MASK = IDS != 0
BLOCKS = {"post-norm": {}, "pre-norm": {"norm_first": True}}


def embedded(ids):
    keras.utils.set_random_seed(0)
    return keras.layers.Embedding(11, 10, mask_zero=True)(ids)


def without_mask(tensor):
    return as_tensor(np.asarray(tensor))


@pytest.mark.parametrize("norm", BLOCKS)
def test_padding_mask_travels_through_positions_and_blocks(norm):
    positions = tfattn.SinusoidalPositionalEncoding(input_scale=10**0.5)
    blocks = [
        tfattn.TransformerEncoderBlock(num_heads=5, hidden_dim=11, **BLOCKS[norm]) for _ in range(2)
    ]
    x = embedded(IDS)
    explicit = positions(without_mask(x))
    x = positions(x)
    for block in blocks:
        x, explicit = block(x), without_mask(block(explicit, mask=IDS_MASK))
    np.testing.assert_array_equal(x, explicit)
    np.testing.assert_array_equal(x._keras_mask, IDS_MASK)


BESIDE = {
    "array and lengths": {
        "attention_mask": np.tri(5, k=1, dtype=bool),
        "valid_lens": np.array([4, 4]),
    },
    "tensor": {"attention_mask": as_tensor(np.tri(5, dtype=bool))},
    "object": {"attention_mask": masks.window(2), "use_causal_mask": True},
}


@pytest.mark.parametrize("beside", BESIDE)
def test_block_implicit_masks_join_the_other_masks(beside):
    options = BESIDE[beside]
    x, memory = embedded(IDS), embedded(IDS[::-1])
    encoder = tfattn.TransformerEncoderBlock(num_heads=5, hidden_dim=11)
    decoder = tfattn.TransformerDecoderBlock(num_heads=5, hidden_dim=11)
    plain, plain_memory = without_mask(x), without_mask(memory)
    bias = {} if beside == "object" else {"bias": np.ones((5, 5), "float32")}
    for found, wanted in (
        (encoder(x, **bias, **options), encoder(plain, mask=IDS_MASK, **bias, **options)),
        (
            decoder(x, memory, **options),
            decoder(
                plain, plain_memory, inputs_mask=IDS_MASK, memory_mask=IDS_MASK[::-1], **options
            ),
        ),
    ):
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(found._keras_mask, IDS_MASK)
    np.testing.assert_array_equal(memory._keras_mask, IDS_MASK[::-1])
    np.testing.assert_array_equal(x._keras_mask, IDS_MASK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "norm, policy",
    [("post-norm", "float32"), ("pre-norm", "mixed_float16"), ("post-norm", "mixed_bfloat16")],
)
def test_block_rows_of_nothing_but_padding_stay_finite(norm, policy):
    options = {"num_heads": 5, "hidden_dim": 11, "dtype": policy, **BLOCKS[norm]}
    encoder = tfattn.TransformerEncoderBlock(**options)
    decoder = tfattn.TransformerDecoderBlock(**options)
    x = np.random.default_rng(0).normal(size=(2, 3, 10)).astype("float32")
    mask = np.array([[False] * 3, [True] * 3])
    encoder(x), decoder(x, x)

    def run(x):
        memory = encoder(x, mask=mask)
        return decoder(x, memory, inputs_mask=mask, memory_mask=mask)

    weights = encoder.trainable_weights + decoder.trainable_weights
    output, found = gradients(run, [x], weights)
    assert np.isfinite(output).all() and all(np.isfinite(gradient).all() for gradient in found)
