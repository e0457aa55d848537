"""KerasHub's layers: Transformer blocks and positions."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras

from tfattn import _checks, _optional
from tfattn.convert import blocks, weights
from tfattn.convert.keras import multi_head_from_keras
from tfattn.layers.positions import scalings
from tfattn.layers.positions.added import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from tfattn.layers.positions.rotary import RotaryPositions
from tfattn.layers.transformer.block import TransformerBlock
from tfattn.layers.transformer.decoder_block import TransformerDecoderBlock
from tfattn.layers.transformer.encoder_block import TransformerEncoderBlock

# Path of each part below a block to its path below KerasHub's layer.
_ENCODER = {
    "self_attention": "self_attention_layer",
    "self_attention_norm/norm": "self_attention_layer_norm",
    "feed_forward/inner": "feedforward_intermediate_dense",
    "feed_forward/outer": "feedforward_output_dense",
    "feed_forward_norm/norm": "feedforward_layer_norm",
}
_DECODER = {
    **_ENCODER,
    "self_attention": "self_attention",
    "cross_attention": "cross_attention",
    "cross_attention_norm/norm": "cross_attention_layer_norm",
}

# KerasHub's names of the arguments of `scalings.yarn` after its factor.
_YARN = ("original_max_position_embeddings", "beta_fast", "beta_slow")


def from_keras_hub(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Converts a layer of KerasHub to an equivalent layer of tfattn.

        TransformerEncoder         →  TransformerEncoderBlock
        TransformerDecoder         →  TransformerDecoderBlock
        CachedMultiHeadAttention   →  MultiHeadAttention
        SinePositionEncoding       →  SinusoidalPositionalEncoding
        RotaryEmbedding            →  RotaryPositions
        PositionEmbedding          →  LearnedPositionalEncoding
        TokenAndPositionEmbedding  →  keras.Sequential of an Embedding and the latter

    KerasHub's position layers return the encoding; layers of tfattn add it to their inputs:
    `inputs + hub_layer(inputs)` equals `layer(inputs)`. `RotaryPositions` are the `positions` of a
    `MultiHeadAttention`. KerasHub's masks `padding_mask`, `decoder_padding_mask` and
    `encoder_padding_mask` are `mask`, `inputs_mask` and `memory_mask` in tfattn.

    Args:
        layer: a built layer of one of these classes.
    Returns:
        A built layer with the same weights. Sinusoids and learned positions keep name and dtype.
    Raises:
        ImportError: KerasHub is not installed.
        ValueError: another class; a layer that is not built; a `TokenAndPositionEmbedding` with two
            matrices for tokens; a `RotaryEmbedding` with a `denominator_dim` or with "dynamic"
            scaling, which in KerasHub does not depend on the length.
    """
    who, hub = "from_keras_hub", _keras_hub("from_keras_hub")
    functions: dict[type, Callable[..., Any]] = {
        hub.layers.TransformerEncoder: _encoder_from_hub,
        hub.layers.TransformerDecoder: _decoder_from_hub,
        hub.layers.CachedMultiHeadAttention: multi_head_from_keras,
        hub.layers.SinePositionEncoding: _sinusoids_from_hub,
        hub.layers.RotaryEmbedding: _rotary_from_hub,
        hub.layers.PositionEmbedding: _learned_from_hub,
        hub.layers.TokenAndPositionEmbedding: _tokens_from_hub,
    }
    weights.check_type(who, "layer", layer, functions)
    weights.check_built(who, layer)
    return functions[type(layer)](who, layer)


def to_keras_hub(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Converts a layer of tfattn to an equivalent layer of KerasHub.

    The inverse of `from_keras_hub`, for blocks and positions.

    Args:
        layer: a built `TransformerEncoderBlock`, `TransformerDecoderBlock`,
            `SinusoidalPositionalEncoding`, `RotaryPositions`, `LearnedPositionalEncoding`, or a
            `keras.Sequential` of an Embedding and learned positions.
    Returns:
        A built layer of KerasHub with the same weights.
    Raises:
        ImportError: KerasHub is not installed.
        ValueError: another class; a layer that is not built; a feature that KerasHub's layer does
            not have, by name: another attention, network or norm, a scale of the inputs.
    """
    who, hub = "to_keras_hub", _keras_hub("to_keras_hub")
    functions: dict[type, Callable[..., Any]] = {
        TransformerEncoderBlock: _block_to_hub,
        TransformerDecoderBlock: _block_to_hub,
        SinusoidalPositionalEncoding: _sinusoids_to_hub,
        RotaryPositions: _rotary_to_hub,
        LearnedPositionalEncoding: _learned_to_hub,
        keras.Sequential: _tokens_to_hub,
    }
    weights.check_type(who, "layer", layer, functions)
    if not isinstance(layer, SinusoidalPositionalEncoding | RotaryPositions):  # no weights
        weights.check_built(who, layer)
    return functions[type(layer)](who, layer, hub)


def _keras_hub(who: str) -> ModuleType:
    return _optional.find("keras_hub", "hub", f"tfattn.convert.{who}")


def _encoder_from_hub(who: str, layer: Any) -> TransformerEncoderBlock:
    return _block_from_hub(who, layer, TransformerEncoderBlock, _ENCODER)


def _decoder_from_hub(who: str, layer: Any) -> TransformerDecoderBlock:
    return _block_from_hub(who, layer, TransformerDecoderBlock, _DECODER)


def _block_from_hub(who: str, layer: Any, cls: type, names: dict[str, str]) -> TransformerBlock:
    found = weights.arrays(layer)
    query = found[f"{names['self_attention']}/query/kernel"]  # (D, H, P)
    memory = found.get("cross_attention/key/kernel")  # (Dm, H, P)
    sizes = blocks.BlockSpec(
        width=query.shape[0],
        num_heads=layer.num_heads,
        key_dim=query.shape[2],
        hidden_dim=layer.intermediate_dim,
        activation=layer.activation,
        epsilon=layer.layer_norm_epsilon,
        norm_first=layer.normalize_first,
        dropout=layer.dropout,
        attention_dropout=layer.dropout,
        memory_width=None if memory is None else memory.shape[0],
    )
    block = blocks.from_spec(cls, sizes, name=layer.name, dtype=layer.dtype_policy)
    inverse = {hub_name: name for name, hub_name in names.items()}
    weights.load(who, block, _renamed(found, inverse))
    return block


def _block_to_hub(who: str, block: TransformerBlock, hub: ModuleType) -> Any:
    sizes = blocks.to_spec(who, block)
    same = sizes.attention_dropout == sizes.dropout
    inner = sizes.inner_dropout > 0
    reason = "the width of a head must be the width of the inputs / num_heads in KerasHub"
    weights.refuse(who, "attention_dropout", not same, "KerasHub uses the block's `dropout`")
    weights.refuse(
        who, "dropout of the feed_forward", inner, "KerasHub has none after the inner layer"
    )
    weights.refuse(who, "key_dim", sizes.key_dim != sizes.width // sizes.num_heads, reason)
    decodes = type(block) is TransformerDecoderBlock
    layer = (hub.layers.TransformerDecoder if decodes else hub.layers.TransformerEncoder)(
        sizes.hidden_dim,
        sizes.num_heads,
        dropout=sizes.dropout,
        activation=sizes.activation,
        layer_norm_epsilon=sizes.epsilon,
        normalize_first=sizes.norm_first,
        name=block.name,
        dtype=block.dtype_policy,
    )
    tokens = (None, None, sizes.width)
    if sizes.memory_width is None:
        layer.build(tokens)
    else:
        layer.build(tokens, (None, None, sizes.memory_width))
    names = _DECODER if decodes else _ENCODER
    weights.load(who, layer, _renamed(weights.arrays(block), names))
    return layer


def _renamed(state: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The state with other prefixes of its names."""
    result = {}
    for name, array in state.items():
        known = [part for part in names if name.startswith(f"{part}/")]
        result[names[known[0]] + name[len(known[0]) :] if known else name] = array
    return result


def _sinusoids_from_hub(who: str, layer: Any) -> SinusoidalPositionalEncoding:
    own = SinusoidalPositionalEncoding(max_wavelength=layer.max_wavelength, **_named(layer))
    own.built = True  # it has no weights
    return own


def _sinusoids_to_hub(who: str, layer: SinusoidalPositionalEncoding, hub: ModuleType) -> Any:
    _refuse_scale(who, layer)
    wavelength = layer.max_wavelength
    return hub.layers.SinePositionEncoding(max_wavelength=wavelength, **_named(layer))


def _rotary_from_hub(who: str, layer: Any) -> RotaryPositions:
    config = layer.get_config()
    kind, factor = config["rope_type"], config["scaling_factor"]
    denominator = config.get("denominator_dim") is not None
    reason = "its scaling is constant in KerasHub, but depends on the length in tfattn"
    weights.refuse(who, "rope_type", kind not in ("linear", "yarn"), reason)
    weights.refuse(
        who,
        "denominator_dim",
        denominator,
        "tfattn derives the frequencies from the rotated features",
    )
    scaling: scalings.Scaling | None = None if factor == 1.0 else scalings.linear(factor)
    if kind == "yarn":
        length, fast, slow = (config[name] for name in _YARN)
        scaling = scalings.yarn(factor, length, fast, slow, truncate=config["truncate"])
    return RotaryPositions(float(config["max_wavelength"]), scaling=scaling, **_named(layer))


def _rotary_to_hub(who: str, layer: RotaryPositions, hub: ModuleType) -> Any:
    scaling: Any = layer.scaling
    options: dict[str, Any] = {}
    known = type(scaling) in (type(None), scalings.linear, scalings.yarn)
    if type(scaling) is scalings.linear:
        options = {"scaling_factor": scaling.factor}
    elif type(scaling) is scalings.yarn:
        known = scaling.attention_factor is None
        numbers = (scaling.original_length, scaling.beta_fast, scaling.beta_slow)
        options = {"rope_type": "yarn", "scaling_factor": scaling.factor}
        options |= {**dict(zip(_YARN, numbers, strict=True)), "truncate": scaling.truncate}
    weights.refuse(
        who, "rotary_dim", layer.rotary_dim is not None, "KerasHub rotates all features of a head"
    )
    weights.refuse(who, "interleaved", layer.interleaved, "KerasHub's pairs are half a head apart")
    weights.refuse(
        who, "scaling", not known, "KerasHub has linear scaling, and YaRN with its default factor"
    )
    return hub.layers.RotaryEmbedding(max_wavelength=layer.base, **options, **_named(layer))


def _learned_from_hub(who: str, layer: Any) -> LearnedPositionalEncoding:
    found = weights.arrays(layer)
    own = LearnedPositionalEncoding(
        layer.sequence_length, initializer=layer.initializer, **_named(layer)
    )
    own.build((None, None, found["embeddings"].shape[1]))
    weights.load(who, own, found)
    return own


def _learned_to_hub(who: str, layer: LearnedPositionalEncoding, hub: ModuleType) -> Any:
    _refuse_scale(who, layer)
    found = weights.arrays(layer)
    other = hub.layers.PositionEmbedding(
        layer.max_length, initializer=layer.initializer, **_named(layer)
    )
    other.build((None, None, found["embeddings"].shape[1]))
    weights.load(who, other, found)
    return other


def _tokens_from_hub(who: str, layer: Any) -> keras.Sequential:
    tokens, positions = layer.token_embedding, layer.position_embedding
    reason = "an Embedding of Keras has one matrix"
    weights.refuse(who, "tie_weights=False", not tokens.tie_weights, reason)
    embedding = keras.layers.Embedding(
        tokens.input_dim, tokens.output_dim, mask_zero=tokens.mask_zero, **_named(tokens)
    )
    own = keras.Sequential([embedding, _learned_from_hub(who, positions)], name=layer.name)
    own.build((None, None))
    weights.load(who, embedding, weights.arrays(tokens))
    return own


def _tokens_to_hub(who: str, model: keras.Sequential, hub: ModuleType) -> Any:
    types = [type(layer) for layer in model.layers]
    if types != [keras.layers.Embedding, LearnedPositionalEncoding]:
        expected = "hold an Embedding and a LearnedPositionalEncoding"
        _checks.fail(who, "layer", expected, [layer.name for layer in model.layers])
    embedding, positions = model.layers
    _refuse_scale(who, positions)
    other = hub.layers.TokenAndPositionEmbedding(
        embedding.input_dim,
        positions.max_length,
        embedding.output_dim,
        mask_zero=embedding.mask_zero,
        name=model.name,
        dtype=embedding.dtype_policy,
    )
    other.build((None, None))
    weights.load(who, other.token_embedding, weights.arrays(embedding))
    weights.load(who, other.position_embedding, weights.arrays(positions))
    return other


def _named(layer: Any) -> dict[str, Any]:
    return {"name": layer.name, "dtype": layer.dtype_policy, "trainable": layer.trainable}


def _refuse_scale(who: str, layer: Any) -> None:
    weights.refuse(
        who, "input_scale", layer.input_scale != 1.0, "KerasHub does not scale the inputs"
    )
