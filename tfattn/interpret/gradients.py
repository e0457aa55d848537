"""Gradients with respect to the outputs of a model's heads, before the output map."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor


class HeadCall(NamedTuple):
    """One call of an attention layer.

    Attributes:
        outputs: `(B, T, H, V)`, the outputs of the heads, before the output map.
        gradient: `(B, T, H, V)`, the gradient with respect to `outputs`.
    """

    outputs: np.ndarray
    gradient: np.ndarray


def output_map(layer: keras.layers.Layer) -> Any:
    """The output map of an attention layer, here and in Keras; None without one."""
    return getattr(layer, "output_dense", getattr(layer, "_output_dense", None))


def calls_of_heads(
    who: str,
    layers: Sequence[keras.layers.Layer],
    model: keras.layers.Layer,
    inputs: Any,
    objective: Callable[[Any], Tensor],
) -> list[list[HeadCall]]:
    """For each of these layers its calls in a run of the model.

    The model runs twice: once for the outputs of the heads, and once with zeros added to them,
    for the gradients.
    """
    recorders = [_Recorder() for _ in layers]
    with contextlib.ExitStack() as stack:
        for layer, recorder in zip(layers, recorders, strict=True):
            stack.enter_context(_computed(output_map(layer), recorder))
        model(inputs, training=False)
    outputs = [each.inputs for each in recorders]

    def total(zeros: list[Tensor]) -> Tensor:
        remaining = iter(zeros)
        with contextlib.ExitStack() as stack:
            for layer, calls in zip(layers, outputs, strict=True):
                adding = _Adding([next(remaining) for _ in calls])
                stack.enter_context(_computed(output_map(layer), adding))
            result = objective(model(inputs, training=False))
        if not ops.is_tensor(result) or len(result.shape) > 1:
            expected = "return a tensor of shape () or (B,), by keras.ops"
            shape = getattr(result, "shape", None)
            _checks.fail(who, "objective", expected, result if shape is None else tuple(shape))
        return ops.sum(ops.cast(result, "float32"))

    zeros = [ops.zeros_like(x) for calls in outputs for x in calls]
    gradients = iter(_gradients(who, total, zeros))
    return [
        [HeadCall(_array(call), _array(next(gradients))) for call in calls] for calls in outputs
    ]


class _Recorder:
    """Records the inputs of the calls of a linear map."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []

    def __call__(self, call: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        self.inputs.append(inputs)
        return call(inputs)


class _Adding:
    """Adds to the inputs of the calls of a linear map, one tensor a call."""

    def __init__(self, added: list[Tensor]):
        self.added = iter(added)

    def __call__(self, call: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        return call(inputs + next(self.added))


@contextlib.contextmanager
def _computed(layer: keras.layers.Layer, function: Callable[..., Tensor]) -> Iterator[None]:
    """Has `function(call, inputs)` compute the calls of a layer."""
    call = layer.call

    def computed(inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(lambda x: call(x, *args, **kwargs), inputs)

    vars(layer)["call"] = computed  # not by setattr, which Keras tracks
    try:
        yield
    finally:
        del vars(layer)["call"]


def _gradients(who: str, function: Callable[[list[Any]], Any], tensors: list[Any]) -> list[Any]:
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
    if backend == "torch":
        import torch

        with torch.enable_grad():
            tensors = [x.detach().requires_grad_() for x in tensors]
            total = function(tensors)
        zeros = [torch.zeros_like(x) for x in tensors]
        if not total.requires_grad:
            return zeros
        found = torch.autograd.grad(total, tensors, allow_unused=True)
        return [zero if x is None else x for zero, x in zip(zeros, found, strict=True)]
    raise ValueError(f"{who}: no gradients on {backend}; use TensorFlow, JAX or PyTorch")


def _array(tensor: Tensor) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))
