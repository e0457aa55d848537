"""The settings of a model, as `model.js` and `recurrent.js` read them."""

from typing import Any

import keras

from tfattn.convert import blocks, weights
from tfattn.layers.attention.scores import AdditiveScore
from tfattn.layers.positions.added import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from tfattn.models.seq2seq import BahdanauSeq2Seq
from tfattn.models.transformer import Transformer

_ACTIVATIONS = ("relu", "gelu", "silu", "tanh")


def of_transformer(who: str, model: Transformer) -> dict[str, Any]:
    """The model's settings; raises for features that the page does not have."""
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        blocks.check_block(who, block, allowed=("key_dim",))
    activation = block.feed_forward.activation
    names = {getattr(keras.activations, name): name for name in _ACTIVATIONS}
    reason = f"the page has {', '.join(_ACTIVATIONS)}"
    weights.refuse(who, "activation", activation not in names, reason)
    positions = {"encoder": model.encoder.positions, "decoder": model.decoder.positions}
    return {
        "kind": "transformer",
        "numLayers": model.num_layers,
        "numHeads": block.self_attention.num_heads,
        "width": model.width,
        "normFirst": block.norm_first,
        "epsilon": block.self_attention_norm.norm.epsilon,
        "activation": names[activation],
        "positions": {side: _positions(who, layer) for side, layer in positions.items()},
        "maxLength": {"encoder": model.max_source_length, "decoder": model.max_target_length},
    }


def of_recurrent(who: str, model: BahdanauSeq2Seq) -> dict[str, Any]:
    """The model's settings; raises for features that the page does not have."""
    other_cell = model.cell is not keras.layers.GRUCell
    weights.refuse(who, "cell", other_cell, "the page has only GRU cells")
    other_score = type(model.score) is not AdditiveScore
    weights.refuse(who, "score", other_score, "the page has only the additive score here")
    return {
        "kind": "recurrent",
        "numLayers": model.num_layers,
        "width": model.width,
        "units": model.units,
        "bidirectional": model.bidirectional,
        "maxLength": {"encoder": None, "decoder": None},
    }


def _positions(who: str, layer: keras.layers.Layer) -> dict[str, Any]:
    kinds = (SinusoidalPositionalEncoding, LearnedPositionalEncoding, keras.layers.Identity)
    weights.check_type(who, "positions", layer, kinds)
    return {
        "name": layer.name,  # of a learned table
        "scale": getattr(layer, "input_scale", 1.0),
        "wavelength": getattr(layer, "max_wavelength", None),  # of sinusoids
    }
