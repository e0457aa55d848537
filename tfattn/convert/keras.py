"""Converters for Keras's attention layers."""

import inspect
from typing import Any

import keras

from tfattn.convert import blocks, weights
from tfattn.layers.attention.multi_head import MultiHeadAttention

# Features that `blocks.check_attention` allows for both of Keras's layers with heads, and for
# `MultiHeadAttention` alone. The signatures tell which version has a gate, axes or a window.
_OF_BOTH = {"num_key_value_heads", "use_gate", "sliding_window", "attention_axes"}
_OF_BOTH |= {"use_bias", "key_dim"}
_OF_MULTI_HEAD = {"value_dim", "output_shape"}
_LAYERS = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


def from_keras(layer: keras.layers.Layer) -> MultiHeadAttention:
    """Converts an attention layer with heads of Keras to an equivalent `MultiHeadAttention`.

    Sizes, dropout, regularizers, names and dtypes are kept. With fewer queries than keys, causal
    masks and windows are aligned at the last key in tfattn, at the first key in Keras.

    Args:
        layer: a built `keras.layers.MultiHeadAttention` or `GroupQueryAttention`, not of a
            subclass. Keras's `Attention` and `AdditiveAttention` have at most a scale as weights.
    Returns:
        A built layer with the same weights.
    Raises:
        ValueError: another class; a layer that is not built; an argument that tfattn does not
            support.
    Example:
        >>> tokens = np.ones((2, 7, 16), "float32")
        >>> layer = keras.layers.MultiHeadAttention(num_heads=4, key_dim=4)
        >>> output = layer(query=tokens, value=tokens)
        >>> own = tfattn.convert.from_keras(layer)
        >>> difference = keras.ops.max(keras.ops.abs(own(query=tokens, value=tokens) - output))
        >>> bool(difference < 1e-5)
        True
    """
    who = "from_keras"
    weights.check_built(who, "layer", layer, _LAYERS)
    config = layer.get_config()
    if "num_query_heads" in config:
        config["num_heads"] = config.pop("num_query_heads")
        config["key_dim"] = config.pop("head_dim")
    shapes = _build_shapes(layer)
    if config.get("attention_axes") == tuple(range(1, len(shapes["query_shape"]) - 1)):
        del config["attention_axes"]  # the default, which only a built layer spells out
    own = MultiHeadAttention.from_config(config)
    own.build(**shapes)
    weights.load(who, own, weights.arrays(layer))
    return own


def to_keras(layer: MultiHeadAttention) -> keras.layers.Layer:
    """Converts a `MultiHeadAttention` to an equivalent layer of Keras.

    The inverse of `from_keras`. With shared key heads it becomes a
    `keras.layers.GroupQueryAttention`.

    Args:
        layer: a built `MultiHeadAttention`.
    Returns:
        A built layer of Keras with the same weights.
    Raises:
        ValueError: another class; a layer that is not built; a feature that Keras's layer does not
            have, by name: another score, positions.
    Example:
        >>> tokens = np.ones((2, 7, 16), "float32")
        >>> layer = MultiHeadAttention(num_heads=4, key_dim=4, num_key_value_heads=2)
        >>> output = layer(query=tokens, value=tokens)
        >>> type(tfattn.convert.to_keras(layer)).__name__
        'GroupedQueryAttention'
    """
    who = "to_keras"
    weights.check_built(who, "layer", layer, (MultiHeadAttention,))
    shared = layer.num_key_value_heads != layer.num_heads
    blocks.check_attention(who, layer, _OF_BOTH if shared else _OF_BOTH | _OF_MULTI_HEAD)
    # Arguments that Keras lacks or that a built layer no longer needs.
    own = ("score", "num_key_value_heads", "positions", "normalizer", "output_kernel_initializer")
    config = {name: value for name, value in layer.get_config().items() if name not in own}
    shapes = _build_shapes(layer)
    cls = keras.layers.MultiHeadAttention
    if shared:
        cls = keras.layers.GroupQueryAttention
        del config["value_dim"], config["output_shape"]
        config["num_query_heads"] = config.pop("num_heads")
        config["head_dim"] = config.pop("key_dim")
        config["num_key_value_heads"] = layer.num_key_value_heads
    taken = {*inspect.signature(cls.__init__).parameters, "name", "trainable", "dtype"}
    for name in set(config) - taken:
        given = config.pop(name) not in (None, False)
        reason = f"keras.layers.{cls.__name__} has no such argument"
        weights.refuse(who, name, given, reason)
    other = cls.from_config(config)
    other.build(**shapes)
    weights.load(who, other, weights.arrays(layer))
    return other


def _build_shapes(layer: keras.layers.Layer) -> dict[str, Any]:
    """The arguments of the layer's `build`."""
    return {name: tuple(s) for name, s in layer.get_build_config()["shapes_dict"].items() if s}
