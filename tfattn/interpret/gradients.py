"""Gradients with respect to gates on the heads of a model, before the output map."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.layers.base import wrapped

Layers = Mapping[str, keras.layers.Layer]


def output_map(layer: keras.layers.Layer) -> Any:
    """The output map of an attention layer, here and in Keras; None without one."""
    return getattr(layer, "output_dense", getattr(layer, "_output_dense", None))


def of_gates(
    who: str, layers: Layers, model: Any, inputs: Any, objective: Callable[[Any], Tensor]
) -> dict[str, Tensor]:
    """∂ objective / ∂ gates, float32 `(B, H)`, of the layers that a run of the model calls."""
    gates: dict[str, Tensor] = {}

    def record(path: str, heads: Tensor) -> Tensor:
        gates[path] = ops.ones((heads.shape[0], heads.shape[-2]), "float32")
        return heads

    with _changed(layers, record):
        model(inputs, training=False)

    def total(gates: dict[str, Tensor]) -> Tensor:
        def gated(path: str, heads: Tensor) -> Tensor:
            batch, *between, num_heads, _ = heads.shape  # (B, ..., H, V)
            gate = ops.reshape(gates[path], (batch, *(1 for _ in between), num_heads, 1))
            return ops.cast(ops.cast(heads, "float32") * gate, heads.dtype)

        with _changed(layers, gated):
            result = objective(model(inputs, training=False))
        if not ops.is_tensor(result) or len(result.shape) > 1:
            expected = "return a tensor of shape () or (B,), by keras.ops"
            received = tuple(getattr(result, "shape", ())) or result
            _checks.fail(who, "objective", expected, received)
        return ops.sum(ops.cast(result, "float32"))

    return _gradients(total, gates)


def _changed(
    layers: Layers, change: Callable[[str, Tensor], Tensor]
) -> contextlib.AbstractContextManager[None]:
    """Has the output map of each layer compute from `change(path, heads)` instead of `heads`."""

    def changed(path: str, call: Any, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return call(change(path, inputs), *args, **kwargs)

    maps = {path: output_map(layer) for path, layer in layers.items()}
    return wrapped((x, functools.partial(changed, path)) for path, x in maps.items())


def _gradients(function: Callable[[Any], Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """The gradients of a scalar function of tensors."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tensors)
            total = function(tensors)
        return tape.gradient(total, tensors, unconnected_gradients="zero")
    if backend == "jax":
        import jax

        with keras.StatelessScope():  # no state of a trace stays in the model
            return jax.grad(function)(tensors)
    import torch

    with torch.enable_grad():
        tensors = {path: x.requires_grad_() for path, x in tensors.items()}
        total = function(tensors)
    if total.requires_grad:
        total.backward(inputs=list(tensors.values()))
    return {path: torch.zeros_like(x) if x.grad is None else x.grad for path, x in tensors.items()}
