"""Rotary positions and biases against those of transformers and KerasHub.

Beside TensorFlow the PyTorch of transformers does not load, so its numbers are recorded in
`positions_of_transformers.json`: what `ROPE_INIT_FUNCTIONS` give for a head of 64 features, a base
and a part of the features that turns; what
`apply_rotary_pos_emb` gives for the last token of `HEADS[1, 2]`; and from which key on
`T5Attention.compute_bias` has which bucket, for a query in the middle of 1201 keys.
"""

import json
import pathlib

import keras
import numpy as np
import pytest

import tfattn
from tfattn import biases, masks, scalings

RECORDED = json.loads(
    pathlib.Path(__file__).with_name("positions_of_transformers.json").read_text(encoding="utf-8")
)
START, FEATURES, KEYS = 17, 64, 1201
HEADS = np.random.default_rng(0).normal(size=(2, 3, 61, FEATURES)).astype("float32")
SCALINGS = {
    "default": None,
    "linear": scalings.linear(4.0),
    "llama3": scalings.llama3(8.0, original_length=2048),
}


@pytest.mark.parametrize("case", RECORDED["frequencies"])
def test_scaling_frequencies_equal_those_of_transformers(case):
    name, base, part = case.rsplit(" ", 2)
    width = int(FEATURES * float(part))
    found = SCALINGS[name].frequencies(float(base), width)
    np.testing.assert_allclose(found, RECORDED["frequencies"][case], rtol=2e-5)


@pytest.mark.parametrize("name", RECORDED["turned"])
def test_rotary_positions_equal_those_of_llama_in_transformers(name):
    found = tfattn.RotaryPositions(scaling=SCALINGS[name]).rotate(HEADS, START)
    np.testing.assert_allclose(found[1, 2, -1], RECORDED["turned"][name], atol=1e-4)


@pytest.mark.parametrize("case", RECORDED["buckets"])
def test_relative_bias_buckets_equal_those_of_t5_in_transformers(case):
    num_buckets, bidirectional = case.split()
    max_distance = {32: 128, 16: 100, 64: 1000}[int(num_buckets)]
    table = np.arange(float(num_buckets), dtype="float32")[:, None]
    bias = biases.relative(table, bidirectional == "True", max_distance)
    found = bias.on(masks.Grid.whole(1, KEYS, offset=KEYS // 2), *bias.parameters())
    starts, buckets = zip(*RECORDED["buckets"][case], strict=True)
    wanted = np.repeat(buckets, np.diff([*starts, KEYS]))
    np.testing.assert_array_equal(np.reshape(found, -1), wanted)


def test_rotary_positions_equal_those_of_keras_hub():
    keras_hub = pytest.importorskip("keras_hub")
    layer = keras_hub.layers.RotaryEmbedding(max_wavelength=5_000.0, sequence_axis=2)
    wanted = layer(HEADS, start_index=START)
    found = tfattn.RotaryPositions(base=5_000.0).rotate(HEADS, START)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_alibi_bias_in_causal_attention_equals_that_of_keras_hub():
    keras_hub, num_heads = pytest.importorskip("keras_hub"), 6  # not a power of two
    scores = np.random.default_rng(2).normal(size=(2, num_heads, 61, 61)).astype("float32")
    hidden = np.where(np.tri(61, dtype=bool), 0.0, -np.inf).astype("float32")
    wanted = keras.ops.softmax(keras.ops.add(keras_hub.layers.AlibiBias()(scores), hidden))
    added = keras.ops.add(scores + hidden, biases.alibi(num_heads).dense(61, 61))
    found = keras.ops.softmax(added)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
