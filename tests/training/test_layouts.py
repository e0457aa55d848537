"""Which weights a layout of a Transformer splits. On several devices: `tests/distributed`."""

import functools
import re

import keras
import numpy as np
import pytest

import tfattn
from tfattn import training

HEADS = {"kernel": (None, "parts", None), "bias": ("parts", None)}
INNER = {"kernel": (None, "parts"), "bias": ("parts",)}
AXES = {
    **{f"{name}/{weight}": HEADS[weight] for name in ("query", "key", "value") for weight in HEADS},
    **{f"{name}/{weight}": INNER[weight] for name in ("inner", "output") for weight in INNER},
    "attention_output/kernel": ("parts", None, None),
    "outer/kernel": ("parts", None),
    "embedding/embeddings": ("parts", None),
}
BY_WIDTH = {
    "embedding/embeddings": (None, "parts"),
    "output/kernel": ("parts", None),
    "output/bias": None,
}
SIZES = {"num_layers": 1, "width": 6, "num_heads": 3, "hidden_dim": 9, "name": "model"}


def mesh():
    devices = np.array([f"cpu:{i}" for i in range(6)])
    return keras.distribution.DeviceMesh((2, 3), ("rows", "parts"), devices=devices)


def test_transformer_layout_splits_gates_like_their_factors():
    layout = training.transformer_layout(mesh(), axis="parts")
    for gate, like in (("self_attention/gate", "value"), ("feed_forward/gate", "inner")):
        peer = gate.replace("gate", like)
        for weight in ("kernel", "bias"):
            axes = layout[f"lm/decoder/block_0/{gate}/{weight}"].axes
            assert axes == layout[f"lm/decoder/block_0/{peer}/{weight}"].axes
            assert "parts" in axes


@functools.cache
def weights():
    translator, decoder = tfattn.Transformer(11, **SIZES), tfattn.CausalLM(11, **SIZES)
    translator.build(((None, None), (None, None)))
    decoder.build((None, None))
    return translator.weights + decoder.weights


@pytest.mark.parametrize("shard_vocabulary", [True, False])
@pytest.mark.parametrize("match", [re.search, re.fullmatch])  # as Keras 3.12 and 3.15 do
def test_transformer_layout_patterns_searched_or_matched_whole_are_of_each_weight(
    match, shard_vocabulary
):
    layout = training.transformer_layout(mesh(), "parts", shard_vocabulary)
    wanted = AXES if shard_vocabulary else AXES | BY_WIDTH
    for weight in weights():
        axes = wanted.get("/".join(weight.path.split("/")[-2:]))
        assert axes is None or len(axes) == len(weight.shape)
        found = [layout[pattern].axes for pattern in layout if match(pattern, weight.path)]
        assert found == ([] if axes is None else [axes]), weight.path
