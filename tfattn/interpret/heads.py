"""Heads of a model: how much depends on them, and the model without some of them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.interpret.gradients import of_gates, output_map
from tfattn.layers.base import flat_layers


@contextlib.contextmanager
def without_heads(
    model: keras.layers.Layer, heads: Mapping[str, int | Sequence[int]]
) -> Iterator[None]:
    """A scope in which some heads of a model are switched off.

        with tfattn.interpret.without_heads(model, {"decoder/block_0/cross_attention": [2]}):
            translations = tfattn.translate(model, sentences, source, target)

    Their rows of the output map are 0 in the scope, also for compiled functions such as `predict`
    and for other threads; do not train in it. The model is restored, also after an error. It works
    for `MultiHeadAttention`, for those of Keras, and for layers of KerasHub with such a map.

    Args:
        model: a built model or layer, without LoRA and not quantized in these maps.
        heads: dict from the path of a layer, as in `tfattn.attention_weights`, to heads, from 0.
    Raises:
        ValueError: there is no such layer, or its heads can't be switched off, or no such head.
    Example:
        >>> model = TransformerEncoderBlock(num_heads=2, hidden_dim=8, name="block")
        >>> tokens = np.ones((1, 3, 4), "float32")
        >>> output = model(tokens)
        >>> with tfattn.interpret.without_heads(model, {"block/self_attention": 1}):
        ...     changed = model(tokens)
        >>> difference = keras.ops.max(keras.ops.abs(output - changed))
        >>> bool(difference > 0), bool(keras.ops.all(output == model(tokens)))
        (True, True)

    Source: Michel, Levy and Neubig 2019, arXiv:1905.10650.
    """
    who = "without_heads"
    layers = _layers_with_heads(who, model)
    _checks.mapping(who, "heads", heads)
    with contextlib.ExitStack() as stack:
        for path, numbers in heads.items():
            if path not in layers:
                _checks.fail(who, "heads", f"hold layer paths from {list(layers)}", path)
            kernel = output_map(layers[path]).kernel
            numbers = numbers if isinstance(numbers, Sequence | np.ndarray) else [numbers]
            numbers = _checks.integers(who, f"heads[{path!r}]", numbers)
            if not all(0 <= number < kernel.shape[0] for number in numbers):
                expected = f"be at least 0 and below {kernel.shape[0]}"
                _checks.fail(who, f"heads[{path!r}]", expected, numbers)
            # A copy: on PyTorch the array would share the memory of the kernel.
            whole = np.array(ops.convert_to_numpy(kernel))
            stack.callback(kernel.assign, whole)
            rest = whole.copy()
            rest[numbers] = 0
            kernel.assign(rest)
        yield


def head_importance(
    model: keras.layers.Layer, inputs: Any, objective: Callable[[Any], Tensor]
) -> dict[str, np.ndarray]:
    """How much an objective depends on each head: the gradient of its gate.

        importance_h = mean over rows of |∂ objective / ∂ gate_h|

    at gates of 1, where gate_h multiplies the output of head h.

    To first order it is the change of the objective without the head. Where two heads do the same
    work, the model may do as well without one of them: see `deletion_test`. Not thread-safe.

    Args:
        model: a model or layer as in `without_heads`, called with `training=False`, three times.
        inputs: the inputs of the model.
        objective: function from the output of the model to `(B,)`, a number for each row, such as
            its loss, or to their sum. A mean over the rows would divide the importance by B.
    Returns:
        dict from the path of each layer to `(H,)`, float32.
    Raises:
        ValueError: the model has no such layer, or the objective returns no tensor of this shape.
    Example:
        >>> model = TransformerEncoderBlock(num_heads=2, hidden_dim=8, name="block")
        >>> tokens = np.ones((1, 3, 4), "float32")
        >>> importance = tfattn.interpret.head_importance(
        ...     model, tokens, lambda output: keras.ops.sum(output[..., 0], axis=1)
        ... )
        >>> {path: heads.shape for path, heads in importance.items()}
        {'block/self_attention': (2,)}

    Source: Michel, Levy and Neubig 2019, arXiv:1905.10650, section 4.1, without the norm by layer.
    """
    who = "head_importance"
    layers = _layers_with_heads(who, model, inputs)
    gradients = of_gates(who, layers, model, inputs, objective)
    return {path: np.abs(ops.convert_to_numpy(x)).mean(axis=0) for path, x in gradients.items()}


def _layers_with_heads(who: str, model: Any, *inputs: Any) -> dict[str, keras.layers.Layer]:
    """The attention layers whose heads meet in one output map, by path; inputs build the model."""
    if not isinstance(model, keras.layers.Layer):
        _checks.fail(who, "model", "be a Keras model or layer", model)
    for each in inputs:
        model(each, training=False)
    layers = {}
    for layer in flat_layers(model):
        if _joins_heads(output_map(layer)):
            if layer.path in layers:
                _checks.fail(who, "model", "have a path of its own for each layer", layer.path)
            layers[layer.path] = layer
    if not layers:
        expected = "be built, with a layer like MultiHeadAttention, without LoRA and not quantized"
        names = [x.path for x in flat_layers(model) if "attention" in type(x).__name__.lower()]
        _checks.fail(who, "model", expected, names or model)
    return layers


def _joins_heads(layer: Any) -> bool:
    """Whether this maps `(..., H, V)` to `(..., E)` by an unquantized `(H, V, E)` without LoRA."""
    if not isinstance(layer, keras.layers.EinsumDense) or not layer.built:
        return False
    inputs, kernel, _ = layer.equation.replace("->", ",").split(",")
    is_plain = layer.quantization_mode is None and isinstance(layer.kernel, keras.Variable)
    return is_plain and kernel.startswith(inputs[-2:]) and len(kernel) > 2
