"""Attention weights of all layers of a model, from one call."""

import contextlib
import functools
import inspect
import warnings
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn.layers.attention.base import AttentionLayer, as_array, record, recorded_weights
from tfattn.layers.attention.scores import Score
from tfattn.layers.base import WRAPPING, flat_layers, wrapped

# Keras's layers that return their weights on request, and their attributes to reset meanwhile.
REQUESTED = (
    keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention,
    keras.layers.Attention,
)
FLAGS = ("_flash_attention", "_return_attention_scores")


def attention_weights(model: keras.layers.Layer, *inputs: Any, **kwargs: Any) -> dict[str, Any]:
    """Runs a model once and returns the attention weights of every layer in it, by path.

    Works for any Keras model or layer, on all backends, and leaves it as it was. The weights are
    those of attention layers of this package, and of Keras's (`MultiHeadAttention`,
    `GroupQueryAttention`, `Attention`, `AdditiveAttention`), also where they have
    `flash_attention`. A model with layers that are not built runs twice. Calls in several threads
    wait for each other.

    Args:
        model: a `keras.Model` or layer.
        *inputs: positional arguments of the call.
        **kwargs: keyword arguments of the call. `training` defaults to False.
    Returns:
        dict from a layer's path to its weights, a NumPy array `(B, T, S)` or `(B, H, T, S)`, in the
        order of the calls. Later calls of a layer, or of another with the same path, are `path:1`,
        `path:2` and so on. Inputs with several token axes have weights `(B, F…, H, A…, A…)`, see
        `MultiHeadAttention`; reshape these to `(B, H, T, S)` for `tfattn.plot.viewer` and
        `tfattn.interpret`.
    Raises:
        ValueError: the model has no such layer, or none ran eagerly.
    Warns:
        UserWarning: names the attention layers whose weights are not in the result.
    Example:
        >>> layer = DotProductAttention(name="attention")
        >>> query, value = np.ones((1, 2, 4), "float32"), np.ones((1, 3, 4), "float32")
        >>> print(attention_weights(layer, query=query, value=value)["attention"].shape)
        (1, 2, 3)
    """
    if not isinstance(model, keras.layers.Layer):
        _checks.fail("attention_weights", "model", "be a Keras model or layer", model)
    kwargs.setdefault("training", False)
    with WRAPPING:
        if not all(layer.built for layer in flat_layers(model)):
            model(*inputs, **kwargs)  # layers may create others when they are built
        with _asked_for_weights(model), recorded_weights() as weights:
            model(*inputs, **kwargs)
    hidden = ", ".join(f"{x.path or x.name} ({type(x).__name__})" for x in _hidden(model, weights))
    if not weights:
        expected = "hold attention layers of this package or of Keras"
        if hidden or any(isinstance(layer, Score) for layer in flat_layers(model)):
            expected += ", and run them eagerly (a `call` under tf.function hides them)"
        if hidden:
            expected += f"; these layers hide their weights: {hidden}"
        _checks.fail("attention_weights", "model", expected, model)
    if hidden:
        warnings.warn(
            "attention_weights: these layers did not run eagerly, or compute their weights where "
            f"they cannot be seen: {hidden}",
            stacklevel=2,
        )
    return weights


def _hidden(model: keras.layers.Layer, weights: dict[str, np.ndarray]) -> list[keras.layers.Layer]:
    """The attention layers without recorded weights of their own, a sublayer or an outer layer."""
    layers, kinds = flat_layers(model), (AttentionLayer, *REQUESTED)
    seen = [layer for layer in layers if layer.path in weights]
    covered = {id(part) for layer in seen for part in flat_layers(layer)}
    return [
        layer
        for layer in layers
        if isinstance(layer, kinds) or "attention" in type(layer).__name__.lower()
        if covered.isdisjoint(map(id, flat_layers(layer)))
    ]


def _asked_for_weights(model: keras.layers.Layer) -> contextlib.AbstractContextManager[None]:
    """Has Keras's attention layers of this model record their weights, for the threads that do."""
    return wrapped(
        (layer, functools.partial(_observed, layer))
        for layer in flat_layers(model)
        if isinstance(layer, REQUESTED)
        if "return_attention_scores" in inspect.signature(layer.call).parameters
    )


def _observed(layer: keras.layers.Layer, call: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the layer, asks for the weights and records them, unless it is traced."""
    tensors = [x for x in keras.tree.flatten((args, kwargs)) if hasattr(x, "shape")]
    if tensors and as_array(tensors[0]) is None:
        return call(*args, **kwargs)
    bound = inspect.signature(call).bind(*args, **kwargs)
    wanted = bound.arguments.get("return_attention_scores", False)
    bound.arguments["return_attention_scores"] = True
    flags = {name: value for name, value in vars(layer).items() if name in FLAGS}
    vars(layer).update(dict.fromkeys(flags, False))
    try:
        result = call(*bound.args, **bound.kwargs)
    finally:
        vars(layer).update(flags)
    # A subclass may compute no weights.
    output, weights, *cache = result if isinstance(result, tuple) else (result, None)
    if weights is not None:
        record(layer.path, weights)
    return result if wanted else (output, *cache) if cache else output
