"""Masks on their way through blocks and models."""

import keras
import numpy as np
import pytest

import tfattn
from tests.conformance.policies import POLICIES, numbers
from tests.helpers.tensors import as_tensor, both_ways


def ids_and_memory():
    ids = np.array([[3, 5, 7, 0, 0], [2, 4, 6, 8, 9]])
    return ids, ids != 0


def embedded(ids):
    keras.utils.set_random_seed(0)
    return keras.layers.Embedding(11, 10, mask_zero=True)(ids)


def without_mask(tensor):
    return as_tensor(np.asarray(tensor))


BLOCKS = {"post_norm": {}, "pre_norm": {"norm_first": True}}


@pytest.mark.parametrize("norm", BLOCKS)
def test_padding_travels_through_positions_and_blocks(norm):
    ids, mask = ids_and_memory()
    positions = tfattn.SinusoidalPositionalEncoding(input_scale=10**0.5)
    blocks = [
        tfattn.TransformerEncoderBlock(num_heads=5, hidden_dim=11, **BLOCKS[norm]) for _ in range(3)
    ]
    x = embedded(ids)
    explicit = positions(without_mask(x))
    x = positions(x)
    for block in blocks:
        x, explicit = block(x), block(explicit, mask=mask)
        explicit = without_mask(explicit)
    np.testing.assert_array_equal(x, explicit)
    np.testing.assert_array_equal(x._keras_mask, mask)


EXTRAS = {
    "attention_mask_array": {"attention_mask": np.tri(5, dtype=bool)},
    "attention_mask_tensor": {"attention_mask": as_tensor(np.tri(5, dtype=bool))},
    "mask_object": {"attention_mask": tfattn.masks.window(2)},
    "valid_lens": {"valid_lens": np.array([4, 4])},
    "bias": {"bias": np.ones((5, 5), "float32")},
    "causal": {"use_causal_mask": True},
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_encoder_block_keeps_the_implicit_mask_beside_other_masks(extra):
    ids, mask = ids_and_memory()
    block = tfattn.TransformerEncoderBlock(num_heads=5, hidden_dim=11)
    x = embedded(ids)
    wanted = block(without_mask(x), mask=mask, **EXTRAS[extra])
    output = block(x, **EXTRAS[extra])
    np.testing.assert_array_equal(output, wanted)
    np.testing.assert_array_equal(output._keras_mask, mask)


@pytest.mark.parametrize("extra", [name for name in EXTRAS if name not in ("bias", "causal")])
def test_decoder_block_keeps_the_implicit_masks_beside_other_masks(extra):
    ids, mask = ids_and_memory()
    block = tfattn.TransformerDecoderBlock(num_heads=5, hidden_dim=11)
    x, memory = embedded(ids), embedded(ids[::-1])
    options = EXTRAS[extra]
    wanted = block(
        without_mask(x), without_mask(memory), inputs_mask=mask, memory_mask=mask[::-1], **options
    )
    output = block(x, memory, **options)
    np.testing.assert_array_equal(output, wanted)
    np.testing.assert_array_equal(output._keras_mask, mask)


def test_decoder_block_looks_at_no_padding_of_the_memory():
    ids, mask = ids_and_memory()
    block = tfattn.TransformerDecoderBlock(num_heads=5, hidden_dim=11)
    x, memory = np.ones((2, 3, 10), "float32"), np.asarray(embedded(ids))
    broken = np.where(mask[..., None], memory, np.nan)
    np.testing.assert_array_equal(
        block(x, broken, memory_mask=mask), block(x, memory, memory_mask=mask)
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("norm", BLOCKS)
def test_blocks_with_rows_of_nothing_but_padding_stay_finite(norm, policy):
    options = {"num_heads": 5, "hidden_dim": 11, "dtype": policy, **BLOCKS[norm]}
    encoder, decoder = (
        tfattn.TransformerEncoderBlock(**options),
        tfattn.TransformerDecoderBlock(**options),
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 10)).astype("float32")
    mask = np.array([[False] * 3, [True] * 3])
    encoder(x), decoder(x, x)

    def run(x):
        memory = encoder(x, mask=mask)
        return decoder(x, memory, inputs_mask=mask, memory_mask=mask)

    weights = encoder.trainable_weights + decoder.trainable_weights
    output, gradients = both_ways(run, [x], variables=weights)
    assert np.isfinite(numbers(output)).all()
    assert all(np.isfinite(numbers(gradient)).all() for gradient in gradients)
