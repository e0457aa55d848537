"""Attention weights of all layers of a model, from one call."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor

# The weights by path, while a call of `attention_weights` runs.
_recorded = contextvars.ContextVar("tfattn_recorded", default=None)


def attention_weights(model: keras.layers.Layer, *inputs: Any, **kwargs: Any) -> dict[str, Any]:
    """Runs a model once and returns the attention weights of every layer in it, by path.

    Works for any Keras model or layer, new or loaded, that contains attention layers of this
    package.

    Args:
        model: a `keras.Model` or layer.
        *inputs: positional arguments of the call.
        **kwargs: keyword arguments of the call. `training` defaults to False.
    Returns:
        dict from a layer's path to its weights, a NumPy array `(B, T, S)` or `(B, H, T, S)`, in the
        order of the calls. Where a layer is called more than once, its later calls are `path:1`,
        `path:2` and so on.
    Raises:
        ValueError: no attention layer of this package ran eagerly.
    Example:
        >>> layer = DotProductAttention(name="attention")
        >>> query, value = np.ones((1, 2, 4), "float32"), np.ones((1, 3, 4), "float32")
        >>> print(attention_weights(layer, query=query, value=value)["attention"].shape)
        (1, 2, 3)
    """
    if not isinstance(model, keras.layers.Layer):
        _checks.fail("attention_weights", "model", "be a Keras model or layer", model)
    kwargs.setdefault("training", False)
    weights: dict[str, np.ndarray] = {}
    token = _recorded.set(weights)
    try:
        model(*inputs, **kwargs)
    finally:
        _recorded.reset(token)
    if not weights:
        raise ValueError(
            "attention_weights: `model` must run attention layers of this collection eagerly (a "
            f"`call` under tf.function hides them). Received: model={model!r}"
        )
    return weights


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Suspends recording within the context."""
    token = _recorded.set(None)
    try:
        yield
    finally:
        _recorded.reset(token)


def active() -> bool:
    """Whether weights are being recorded."""
    return _recorded.get() is not None


def note(path: str, weights: Tensor) -> None:
    """Records the weights of one call of the layer at `path`, if recording is active."""
    recorded = _recorded.get()
    if recorded is None:
        return
    try:
        weights = ops.convert_to_numpy(weights)
    except (NotImplementedError, TypeError):
        # Symbolic weights: some models are traced once to be built, before they run.
        return
    again = sum(1 for known in recorded if known == path or known.startswith(f"{path}:"))
    recorded[f"{path}:{again}" if again else path] = weights
