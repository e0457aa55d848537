"""Gradients of one's own, which do not outlive the graph that they belong to."""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

__all__ = ["custom_gradient", "is_pushed_forward", "is_pushed_through_graph"]


def custom_gradient(function: Callable) -> Callable:
    """`keras.ops.custom_gradient`. On TensorFlow, what it makes goes with the graph it is made in.

    TensorFlow itself keeps the gradient for as long as the process lives, and with it the graph and
    all of its constants: a program that builds one model after the other would hold them all.

    Args:
        function: of tensors, to (outputs, the function of their gradients), see
            `keras.ops.custom_gradient`.
    """
    differentiated = ops.custom_gradient(function)
    if keras.backend.backend() != "tensorflow":
        return differentiated
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert
    @functools.wraps(function)
    def within_its_graph(*tensors: Any) -> Any:
        outputs = differentiated(*tensors)
        if not tf.executing_eagerly():
            _give_to_graph(keras.tree.flatten(outputs)[0].op)
        return outputs

    return within_its_graph


def is_pushed_forward(tensors: Sequence[Any]) -> bool:
    """Whether a `tf.autodiff.ForwardAccumulator` pushes a derivative forward through the tensors.

    In a graph it does not ask for a gradient of one's own, but goes through what computes the
    outputs.
    """
    from tensorflow.python.eager import forwardprop_util

    tensors = [ops.convert_to_tensor(x) for x in tensors]
    return bool(forwardprop_util.pack_tangents(tensors).tangents)


def is_pushed_through_graph(tensors: Sequence[Any]) -> bool:
    """Whether that happens while a graph is built: TensorFlow cannot go through loops there."""
    import tensorflow as tf

    return not tf.executing_eagerly() and is_pushed_forward(tensors)


def _give_to_graph(operation: Any) -> None:
    """Has the graph of an operation keep its gradient, in place of TensorFlow's registry."""
    import tensorflow as tf
    from tensorflow.python.framework import ops as framework

    # Its public face adds to the registry, and takes nothing from it. Where a TensorFlow keeps it
    # in another place, gradients stay there.
    registered = getattr(getattr(framework, "gradient_registry", None), "_registry", None)
    name = operation.get_attr("_gradient_op_type").decode()
    if registered is None or name not in registered:
        return
    gradient = framework.gradient_registry.lookup(name)
    graph = operation.graph
    graph._tfattn_gradients = getattr(graph, "_tfattn_gradients", {})
    graph._tfattn_gradients[name] = gradient
    of_graph = weakref.ref(graph)

    def found(operation: Any, *upstream: Any) -> Any:
        return of_graph()._tfattn_gradients[name](operation, *upstream)

    del registered[name]
    tf.RegisterGradient(name)(found)
