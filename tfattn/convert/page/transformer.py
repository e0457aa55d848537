"""A `Transformer` for the page, as `model.js` reads it."""

from typing import Any

import keras
import numpy as np

from tfattn.convert import blocks, weights
from tfattn.convert.page.weights import embeddings_and_output, rows
from tfattn.layers.positions.added import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from tfattn.models.transformer import Transformer

_ACTIVATIONS = ("relu", "gelu", "silu", "tanh")
_SIDES = ("encoder", "decoder")


def settings(who: str, model: Transformer) -> dict[str, Any]:
    """The model's settings; raises for features that the page does not have."""
    of_blocks = [blocks.to_spec(who, b) for side in _SIDES for b in getattr(model, side).blocks]
    spec = of_blocks[0]
    names = {getattr(keras.activations, name): name for name in _ACTIVATIONS}
    reason = f"the page has {', '.join(_ACTIVATIONS)}"
    weights.refuse(who, "activation", spec.activation not in names, reason)
    return {
        "kind": "transformer",
        "numLayers": model.num_layers,
        "numHeads": spec.num_heads,
        "width": model.width,
        "normFirst": spec.norm_first,
        "epsilon": spec.epsilon,
        "activation": names[spec.activation],
        "positions": {side: _positions(who, getattr(model, side).positions) for side in _SIDES},
        "maxLength": {"encoder": model.max_source_length, "decoder": model.max_target_length},
    }


def _positions(who: str, layer: keras.layers.Layer) -> dict[str, float | None]:
    kinds = (SinusoidalPositionalEncoding, LearnedPositionalEncoding, keras.layers.Identity)
    weights.check_type(who, "positions", layer, kinds)
    return {
        "scale": getattr(layer, "input_scale", 1.0),
        "wavelength": getattr(layer, "max_wavelength", None),  # of sinusoids
    }


def arrays(model: Transformer) -> dict[str, np.ndarray]:
    """All weights by name; matrices have a row for each output or token."""
    found = embeddings_and_output(model)
    for side in _SIDES:
        stack = getattr(model, side)
        if isinstance(stack.positions, LearnedPositionalEncoding):
            found |= {f"{side}/positions": weights.arrays(stack.positions)["embeddings"]}
        for block in stack.blocks:
            found |= rows(block, f"{side}/{block.name}")
        if stack.final_norm is not None:
            found |= rows(stack.final_norm, f"{side}/final_norm")
    return found
