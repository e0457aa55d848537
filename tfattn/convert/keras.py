"""Converters for Keras's attention layers."""

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn.convert import blocks, weights
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.attention.scores import DotProductScore
from tfattn.layers.attention.single_head import (
    AdditiveAttention,
    Attention,
    DotProductAttention,
)

# Features that `blocks.check_attention` allows for both of Keras's layers with heads, and for
# `MultiHeadAttention` alone. The signatures tell which version has a gate, axes or a window.
_OF_BOTH = {"num_key_value_heads", "use_gate", "sliding_window", "attention_axes"}
_OF_BOTH |= {"use_bias", "key_dim"}
_OF_MULTI_HEAD = {"value_dim", "output_shape"}


def from_keras(layer: keras.layers.Layer) -> MultiHeadAttention | Attention:
    """Converts an attention layer of Keras to an equivalent layer of tfattn.

        MultiHeadAttention, GroupQueryAttention  →  MultiHeadAttention
        Attention (score_mode "dot")             →  DotProductAttention
        Attention ("concat"), AdditiveAttention  →  AdditiveAttention

    Sizes, dropout, regularizers, names and dtypes are kept. With fewer queries than keys, causal
    masks and windows are aligned at the last key in tfattn, at the first key in Keras.

    `Attention` and `AdditiveAttention` of Keras take a list, `[query, value, key]`, and layers of
    tfattn take separate arguments. The only weight of these layers of Keras is a scale. It becomes
    a constant in `DotProductAttention`, and a weight in `AdditiveAttention`, besides two matrices
    initialized to the identity (times the scale, for "concat").

    Args:
        layer: a built layer of one of these classes, not of a subclass.
    Returns:
        A built layer with the same weights.
    Raises:
        ValueError: another class; a layer that is not built; an argument that tfattn does not
            support; a scale of `Attention` that is not above 0.
    Example:
        >>> tokens = np.ones((2, 7, 16), "float32")
        >>> layer = keras.layers.MultiHeadAttention(num_heads=4, key_dim=4)
        >>> output = layer(query=tokens, value=tokens)
        >>> own = tfattn.convert.from_keras(layer)
        >>> difference = keras.ops.max(keras.ops.abs(own(query=tokens, value=tokens) - output))
        >>> bool(difference < 1e-5)
        True
    """
    weights.check_built("from_keras", "layer", layer, _FROM)
    return _FROM[type(layer)]("from_keras", layer)


def to_keras(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Converts an attention layer of tfattn to an equivalent layer of Keras.

    The inverse of `from_keras`. A `MultiHeadAttention` with shared key heads becomes a
    `keras.layers.GroupQueryAttention`. Both matrices of an `AdditiveAttention` must be the same
    multiple of the identity, since Keras's layers have no matrices.

    Args:
        layer: a built `MultiHeadAttention`, `DotProductAttention`, `AdditiveAttention`, or an
            `Attention` with the dot product.
    Returns:
        A built layer of Keras with the same weights.
    Raises:
        ValueError: another class; a layer that is not built; a feature that Keras's layer does not
            have, by name: another score, positions, matrices of a score.
    Example:
        >>> tokens = np.ones((2, 7, 16), "float32")
        >>> layer = MultiHeadAttention(num_heads=4, key_dim=4, num_key_value_heads=2)
        >>> output = layer(query=tokens, value=tokens)
        >>> type(tfattn.convert.to_keras(layer)).__name__
        'GroupedQueryAttention'
    """
    weights.check_built("to_keras", "layer", layer, _TO)
    return _TO[type(layer)]("to_keras", layer)


def multi_head_from_keras(who: str, layer: keras.layers.Layer) -> MultiHeadAttention:
    """Converts Keras's layers with heads, or an equivalent subclass."""
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


def multi_head_to_keras(who: str, layer: MultiHeadAttention) -> keras.layers.Layer:
    """Converts to one of Keras's two layers with heads."""
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


def _single_head_from_keras(who: str, layer: keras.layers.Layer) -> Attention:
    config, found = layer.get_config(), weights.arrays(layer)
    use_scale = config.pop("use_scale")
    mode = config.pop("score_mode", "additive")
    query, value, *others = map(tuple, layer.get_build_config()["input_shape"])
    key = others[0] if others else value
    scale: Any = found.get("scale", np.float32(1.0))
    if mode == "dot":
        scale = float(scale)
        config["scale"] = _checks.positive_number(who, "scale", scale) if use_scale else 1.0
        own = DotProductAttention(**config)
        own.build(query, value, key)
        return own
    width = query[-1]
    own = AdditiveAttention(units=width, **config)
    own.build(query, value, key)
    matrix, column = np.eye(width, dtype="float32"), scale
    if mode == "concat":
        matrix, column = matrix * scale, found["concat_score_weight"]
    column = np.broadcast_to(np.reshape(column, (-1, 1)), (width, 1))
    state = {"query_kernel": matrix, "key_kernel": matrix, "score_kernel": column}
    weights.load(who, own, state)
    return own


def _dot_to_keras(who: str, layer: Attention) -> keras.layers.Layer:
    score = layer.score
    other = type(score) is not DotProductScore
    weights.refuse(who, "score", other, "Keras supports only the dot product")
    scale = score.scale
    if scale is None:
        scale = _build_shapes(layer)["query_shape"][-1] ** -0.5
    return _single_head_to_keras(
        who, layer, keras.layers.Attention, {"scale": np.float32(scale)}, use_scale=True
    )


def _additive_to_keras(who: str, layer: AdditiveAttention) -> keras.layers.Layer:
    found = weights.arrays(layer)
    matrix, column = found["query_kernel"], found["score_kernel"][:, 0]
    factor = matrix[0, 0]
    multiple = np.array_equal(matrix, factor * np.eye(*matrix.shape, dtype=matrix.dtype))
    same = multiple and np.array_equal(matrix, found["key_kernel"])
    reason = "both must be the same multiple of the identity: Keras's layers have no matrices"
    weights.refuse(who, "query_kernel, key_kernel", not same, reason)
    if factor == 1.0:
        cls, state = keras.layers.AdditiveAttention, {"scale": column}
        return _single_head_to_keras(who, layer, cls, state)
    different = bool(np.any(column != column[0]))
    reason = "with other matrices than the identity, Keras has a single number"
    weights.refuse(who, "score_kernel", different, reason)
    state = {"scale": factor, "concat_score_weight": column[0]}
    options = {"use_scale": True, "score_mode": "concat"}
    return _single_head_to_keras(who, layer, keras.layers.Attention, state, **options)


def _single_head_to_keras(
    who: str, layer: Attention, cls: type[keras.layers.Layer], state: dict[str, Any], **options: Any
) -> keras.layers.Layer:
    """Keras's layer with this state, and with the name, dtype and dropout of ours."""
    only = "Keras supports only the softmax"
    weights.refuse(who, "normalizer", layer.normalizer is not None, only)
    config = layer.get_config()
    shared = {name: config[name] for name in ("name", "trainable", "dtype", "dropout", "seed")}
    other = cls(**shared, **options)
    other.build(list(_build_shapes(layer).values()))
    weights.load(who, other, state)
    return other


def _build_shapes(layer: keras.layers.Layer) -> dict[str, Any]:
    """The arguments of the layer's `build`."""
    return {name: tuple(s) for name, s in layer.get_build_config()["shapes_dict"].items() if s}


_FROM: dict[type, Callable[..., Any]] = {
    keras.layers.MultiHeadAttention: multi_head_from_keras,
    keras.layers.GroupQueryAttention: multi_head_from_keras,
    keras.layers.Attention: _single_head_from_keras,
    keras.layers.AdditiveAttention: _single_head_from_keras,
}
_TO: dict[type, Callable[..., Any]] = {
    MultiHeadAttention: multi_head_to_keras,
    Attention: _dot_to_keras,
    DotProductAttention: _dot_to_keras,
    AdditiveAttention: _additive_to_keras,
}
