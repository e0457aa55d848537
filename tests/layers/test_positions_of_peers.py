"""Rotary positions and biases against those of transformers and KerasHub, where they are there."""

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers import positions_of_transformers as theirs
from tests.helpers.processes import printed
from tfattn import biases, masks, scalings

SCALINGS = {
    "linear": scalings.linear(4.0),
    "dynamic": scalings.dynamic(3.0, 2048),
    "yarn": scalings.yarn(8.0, 2048),
    "yarn, not truncated": scalings.yarn(
        8.0, 512, 16.0, 2.0, attention_factor=1.25, truncate=False
    ),
    "llama3": scalings.llama3(8.0, original_length=2048),
}


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    """What `theirs` writes."""
    if not theirs.is_there():
        pytest.skip("needs torch and transformers")
    path = tmp_path_factory.mktemp("transformers") / "found.npz"
    printed("-m", "tests.helpers.positions_of_transformers", path)
    return np.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_has_the_frequencies_of_transformers(transformers, name):
    for base, part, length in theirs.CASES:
        *wanted, magnitude = transformers[f"frequencies {name} {base} {part} {length}"]
        found = SCALINGS[name].frequencies(base, int(theirs.P * part), length)
        np.testing.assert_allclose(found, wanted, rtol=2e-5)
        assert SCALINGS[name].magnitude == pytest.approx(magnitude)


@pytest.mark.slow
@pytest.mark.parametrize("name", theirs.SCALINGS)
def test_heads_turn_as_those_of_llama_in_transformers(transformers, name):
    positions = tfattn.RotaryPositions(scaling=SCALINGS.get(name))
    found = positions.turn(theirs.heads(), theirs.START)
    np.testing.assert_allclose(found, transformers[f"turned {name}"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_relative_bias_is_that_of_t5_in_transformers(transformers, bidirectional):
    for num_buckets, max_distance in theirs.BUCKETS:
        bias = biases.relative(theirs.table(num_buckets), bidirectional, max_distance)
        grid = masks.Grid.whole(1, theirs.LONG, offset=theirs.LONG // 2)
        found = bias.on(grid, *bias.parameters())
        np.testing.assert_array_equal(found, transformers[f"bias {num_buckets} {bidirectional}"])


def test_heads_turn_as_those_of_keras_hub():
    keras_hub = pytest.importorskip("keras_hub")
    layer = keras_hub.layers.RotaryEmbedding(max_wavelength=5_000.0, sequence_axis=2)
    wanted = layer(theirs.heads(), start_index=theirs.START)
    found = tfattn.RotaryPositions(base=5_000.0).turn(theirs.heads(), theirs.START)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_alibi_of_a_causal_attention_is_that_of_keras_hub():
    keras_hub, num_heads = pytest.importorskip("keras_hub"), 6  # not a power of two
    scores = np.random.default_rng(2).normal(size=(2, num_heads, 61, 61)).astype("float32")
    hidden = np.where(np.tri(61, dtype=bool), 0.0, -np.inf).astype("float32")
    wanted = keras.ops.softmax(keras.ops.add(keras_hub.layers.AlibiBias()(scores), hidden))
    added = keras.ops.add(scores + hidden, biases.alibi(num_heads).dense(61, 61))
    found = keras.ops.softmax(added)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
