"""Attention weights of all layers of a model, from one call."""

import contextlib
import contextvars
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.layers.attention import recording
from tfattn.layers.attention.base import AttentionLayer
from tfattn.layers.attention.scores import Score

# Keras's layers that return their weights on request, and their attributes to reset meanwhile.
REQUESTED = (
    keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention,
    keras.layers.Attention,
)
FLAGS = ("_flash_attention", "_return_attention_scores")

# The functions of Keras that are replaced belong to all threads.
_lock = threading.RLock()

# The layer whose own softmax is recorded.
_running: contextvars.ContextVar[keras.layers.Layer | None] = contextvars.ContextVar(
    "tfattn_running", default=None
)


def attention_weights(model: keras.layers.Layer, *inputs: Any, **kwargs: Any) -> dict[str, Any]:
    """Runs a model once and returns the attention weights of every layer in it, by path.

    Works for any Keras model or layer, new or loaded, on all backends, and leaves it as it was:

    - attention layers of this package, and of Keras (`MultiHeadAttention`, `GroupQueryAttention`,
      `Attention`, `AdditiveAttention`): the weights that they return on request, also where they
      have `flash_attention`;
    - other layers, such as KerasHub's, if "Attention" is part of the name of their class: the
      results of `keras.layers.Softmax` and `keras.ops.softmax` in their `call`, and the weights
      behind `keras.ops.dot_product_attention`.

    Calls in several threads wait for each other.

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
        ValueError: there is no attention layer, none ran eagerly, or none has weights that can be
            seen.
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
    with _observed(), recording.started() as weights:
        model(*inputs, **kwargs)
    hidden = ", ".join(f"{x.path or x.name} ({type(x).__name__})" for x in _hidden(model, weights))
    if not weights and not hidden and not _has_score(model):
        expected = (
            "hold an attention layer of this package or of Keras, or another with "
            '"Attention" in the name of its class'
        )
        _checks.fail("attention_weights", "model", expected, model)
    if not weights:
        raise ValueError(
            "attention_weights: `model` must run attention layers eagerly (a `call` under "
            f"tf.function hides them). Received: model={model!r}"
            + (f", whose layers hide their weights: {hidden}" if hidden else "")
        )
    if hidden:
        warnings.warn(
            "attention_weights: these layers did not run eagerly, or compute their weights where "
            f"they cannot be seen: {hidden}",
            stacklevel=2,
        )
    return weights


def _hidden(model: keras.layers.Layer, weights: dict[str, np.ndarray]) -> list[keras.layers.Layer]:
    """The attention layers without recorded weights of their own, a sublayer or an outer layer."""
    layers = model._flatten_layers()
    seen = [layer for layer in layers if layer.path in weights]
    covered = {id(part) for layer in seen for part in layer._flatten_layers()}
    return [
        layer
        for layer in layers
        if isinstance(layer, AttentionLayer) or _is_foreign(layer)
        if covered.isdisjoint(map(id, layer._flatten_layers()))
    ]


def _has_score(model: keras.layers.Layer) -> bool:
    """Whether another layer of this package attends, as a recurrent decoder does."""
    return any(isinstance(layer, Score) for layer in model._flatten_layers())


def _is_foreign(layer: keras.layers.Layer) -> bool:
    """Whether this is an attention layer of another library."""
    kind = type(layer)
    is_ours = isinstance(layer, AttentionLayer) or kind.__module__.startswith("tfattn.")
    is_attention = isinstance(layer, REQUESTED) or "attention" in kind.__name__.lower()
    return is_attention and not is_ours


@contextlib.contextmanager
def _observed() -> Iterator[None]:
    """Has Keras's functions record weights, for the threads that are recording."""
    if recording.active():  # in a nested call
        yield
        return
    replaced: list[tuple[Any, str, Callable[..., Any]]]
    replaced = [(keras.layers.Layer, "__call__", _observing_call)]
    for module in (ops, ops.nn):
        replaced.append((module, "softmax", _observing_softmax))
        replaced.append((module, "dot_product_attention", _observing_product))
    with _lock, contextlib.ExitStack() as stack:
        for owner, name, observing in replaced:
            function = getattr(owner, name)
            stack.callback(setattr, owner, name, function)
            setattr(owner, name, functools.wraps(function)(observing(function)))
        yield


def _observing_call(call: Callable[..., Any]) -> Callable[..., Any]:
    def observed(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        if not recording.active():
            return call(layer, *args, **kwargs)
        holder = _running.get()
        computes = _is_foreign(layer) and _is_eager((args, kwargs))
        requested = computes and _takes_request(layer)
        token = _running.set(layer if computes and not requested else None)
        try:
            if requested:
                return _call_for_weights(call, layer, *args, **kwargs)
            output = call(layer, *args, **kwargs)
        finally:
            _running.reset(token)
        if isinstance(layer, keras.layers.Softmax):
            _note(holder, output, layer.axis)
        return output

    return observed


def _observing_softmax(softmax: Callable[..., Any]) -> Callable[..., Any]:
    def observed(x: Tensor, axis: Any = -1) -> Tensor:
        weights = softmax(x, axis)
        _note(_running.get(), weights, axis)
        return weights

    return observed


def _observing_product(attention: Callable[..., Any]) -> Callable[..., Any]:
    def observed(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if _running.get() is not None and _is_eager(query):
            _note(_running.get(), _product_weights(attention, query, key, *args, **kwargs), -1)
        return attention(query, key, value, *args, **kwargs)

    return observed


def _is_eager(arguments: Any) -> bool:
    tensors = [x for x in keras.tree.flatten(arguments) if hasattr(x, "shape")]
    return all(recording.as_array(x) is not None for x in tensors[:1])


def _takes_request(layer: keras.layers.Layer) -> bool:
    arguments = inspect.signature(layer.call).parameters
    return isinstance(layer, REQUESTED) and "return_attention_scores" in arguments


def _call_for_weights(
    call: Callable[..., Any], layer: keras.layers.Layer, *args: Any, **kwargs: Any
) -> Any:
    """The result of a call, which is made with a request for the weights."""
    bound = inspect.signature(layer.call).bind(*args, **kwargs)
    wanted = bound.arguments.get("return_attention_scores", False)
    bound.arguments["return_attention_scores"] = True
    flags = {name: value for name, value in vars(layer).items() if name in FLAGS}
    vars(layer).update(dict.fromkeys(flags, False))
    try:
        result = call(layer, *bound.args, **bound.kwargs)
    finally:
        vars(layer).update(flags)
    # A subclass may compute no weights.
    output, weights, *cache = result if isinstance(result, tuple) else (result, None)
    if weights is not None:
        recording.note(layer.path, weights)
    if wanted:
        return result
    return (output, *cache) if cache else output


def _product_weights(
    attention: Callable[..., Any], query: Tensor, key: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """The weights of `keras.ops.dot_product_attention`, `(B, H, T, S)`.

    They are its result for an identity matrix as values, one part of its columns at a time: some
    kernels need values of the keys' width.
    """
    length, width = key.shape[1], key.shape[-1]
    identity = np.eye(length, -(-length // width) * width)[:, None]  # (S, 1, n·D)
    columns = np.split(identity, identity.shape[-1] // width, axis=-1)
    values = [ops.broadcast_to(ops.cast(part, key.dtype), key.shape) for part in columns]
    kwargs["flash_attention"] = False
    parts = [attention(query, key, value, *args, **kwargs) for value in values]  # (B, T, H, D)
    return ops.swapaxes(ops.concatenate(parts, axis=-1)[..., :length], 1, 2)


def _note(layer: keras.layers.Layer | None, weights: Tensor, axis: Any) -> None:
    """Records weights that a layer computes by itself, with one axis of heads."""
    if layer is None or (array := recording.as_array(weights)) is None:
        return
    if isinstance(axis, int):
        array = np.moveaxis(array, axis, -1)
    if array.ndim > 4:  # of grouped heads
        array = array.reshape(len(array), -1, *array.shape[-2:])
    recording.note(layer.path, array)
