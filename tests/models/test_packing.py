"""Documents packed in a row train as each of them would alone."""

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
from tests.helpers.blockwise import blocks_of
from tests.helpers.tensors import as_tensor, both_ways, numpy
from tests.layers.test_positional import sinusoids
from tfattn import (
    AlibiPositions,
    HeadPositions,
    LearnedPositionalEncoding,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryPositions,
    SinusoidalPositionalEncoding,
    TransformerEncoderBlock,
    masks,
)

LENGTHS, WIDTH = ((5, 3, 7), (2, 11, 0)), 6  # two rows of documents; the second ends with padding
T = sum(LENGTHS[0])
IDS = np.array([np.repeat([1, 2, 3], (5, 3, 7)), np.repeat([4, 5, 0], (2, 11, 2))])
DRAW = np.random.default_rng(3)
TOKENS = DRAW.normal(size=(2, T, WIDTH)).astype("float32")
UPSTREAM = DRAW.normal(size=(2, T, WIDTH)).astype("float32") * (IDS != 0)[..., None]


@keras.saving.register_keras_serializable("packing")
class Turned(HeadPositions):
    """A rotation of the first two features by one radian a token."""

    def rotate(self, heads, start):
        tokens = keras.ops.arange(keras.ops.shape(heads)[2]) + start
        angle = keras.ops.cast(tokens, "float32")[:, None]
        a, b, rest = heads[..., :1], heads[..., 1:2], heads[..., 2:]
        cos, sin = keras.ops.cos(angle), keras.ops.sin(angle)
        return keras.ops.concatenate([a * cos - b * sin, a * sin + b * cos, rest], axis=-1)


# Positions that are added, and positions within attention.
POSITIONS = {
    "sinusoids, alibi": (SinusoidalPositionalEncoding, AlibiPositions),
    "learned, relative": (
        lambda: LearnedPositionalEncoding(11),
        lambda: RelativePositionBias(6, 5, initializer=keras.initializers.RandomNormal(seed=3)),
    ),
    "rotary": (lambda: None, lambda: RotaryPositions(base=3.0, rotary_dim=2)),
    "rotations": (lambda: None, Turned),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("sinusoids, alibi", "dense"),
        ("sinusoids, alibi", "streamed"),
        ("learned, relative", "streamed"),
        ("rotary", "streamed"),
        ("rotations", "dense"),
    ],
)
def test_packed_row_equals_its_documents_alone_and_so_do_all_gradients(kind, path):
    with blocks_of((4, 6)), tfattn.attention_path(path):
        check_packing(kind)


def check_packing(kind):
    added, inside = (make() for make in POSITIONS[kind])
    attention = MultiHeadAttention(num_heads=2, key_dim=3, positions=inside, seed=1)
    block = TransformerEncoderBlock(attention=attention, hidden_dim=13, seed=2)

    def trained(tokens, upstream, mask, **positions):
        """Output, and the gradients of tokens and of weights."""

        def run(tokens):
            x = added(tokens, **positions) if added else tokens
            return block(x, attention_mask=mask, use_causal_mask=True)

        run(as_tensor(tokens))  # builds the layers
        weights = [*block.trainable_variables, *(added.trainable_variables if added else [])]
        output, found = both_ways(run, [tokens], upstream, weights)
        return numpy(output), numpy(found[0]), [numpy(x) for x in found[1:]]

    positions = masks.positions_in_segments(IDS)
    packed = trained(TOKENS, UPSTREAM, masks.segments(IDS), positions=positions)
    summed = [np.zeros(x.shape) for x in packed[2]]
    for row, lengths in enumerate(LENGTHS):
        ends = np.cumsum(lengths)
        for here in (slice(end - n, end) for n, end in zip(lengths, ends, strict=True) if n):
            alone = trained(TOKENS[row, here][None], UPSTREAM[row, here][None], None)
            for whole, part in zip(packed[:2], alone[:2], strict=True):
                np.testing.assert_allclose(whole[row, here], part[0], 1e-5, 1e-5)
            summed = [x + y for x, y in zip(summed, alone[2], strict=True)]
    for whole, parts in zip(packed[2], summed, strict=True):
        np.testing.assert_allclose(whole, parts, 1e-4, 1e-5)
    if kind == "sinusoids, alibi":  # the positions of each document must begin at 0
        other = trained(TOKENS, UPSTREAM, masks.segments(IDS))
        assert np.abs(other[0] - packed[0])[0, 5:].max() > 1e-2


@pytest.mark.parametrize(
    "ids", [IDS, [[7, 7, 8, 7, 7, 7]], np.zeros((2, 1), "int64"), np.zeros((3, 0), int)]
)
def test_positions_in_segments_count_from_0_wherever_the_id_changes(ids):
    found = masks.positions_in_segments(ids)
    np.testing.assert_array_equal(found, reference.positions_in_segments(ids))
    assert keras.backend.standardize_dtype(found.dtype) == "int32"


def test_positions_in_segments_of_symbolic_ids_are_those_of_the_run():
    ids, tokens = keras.Input((None,), dtype="int32"), keras.Input((None, WIDTH))
    positions = masks.positions_in_segments(ids)
    model = keras.Model([ids, tokens], SinusoidalPositionalEncoding()(tokens, positions=positions))
    output = model([IDS, np.zeros((2, T, WIDTH), "float32")])
    for row, at in enumerate(reference.positions_in_segments(IDS)):
        np.testing.assert_allclose(output[row], sinusoids(at, WIDTH), atol=2e-6)


def test_positions_given_are_counted_from_the_start_index():
    layer, tokens = LearnedPositionalEncoding(11), np.zeros((2, 3, WIDTH), "float32")
    here = layer(tokens, start_index=np.array([4, 0]), positions=np.array([2, 0, 6]))
    table = np.asarray(layer.embeddings)
    np.testing.assert_array_equal(here, [table[[6, 4, 10]], table[[2, 0, 6]]])


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (np.zeros((2, 3)), "`positions` must hold integers"),
        (np.zeros((2, 3, 1), int), r"`positions` must have shape \(T,\) or \(B, T\)"),
        (np.zeros(4, int), r"`positions` must have shape \(T,\) or \(B, T\)"),
    ],
)
def test_positions_given_of_another_kind_are_refused(positions, message):
    with pytest.raises(ValueError, match=message):
        SinusoidalPositionalEncoding()(np.zeros((2, 3, WIDTH), "float32"), positions=positions)
