"""Custom gradients that are freed together with their graph, and tangents of forward mode."""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.ops.custom_gradient`; on TensorFlow the gradient is freed together with its graph.

    TensorFlow's registry would hold it, the graph and its constants until the process ends.
    """
    differentiated = ops.custom_gradient(function)
    if keras.backend.backend() != "tensorflow":
        return differentiated
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert
    @functools.wraps(function)
    def with_freed_gradient(*tensors: Any) -> Any:
        outputs = differentiated(*tensors)
        if not tf.executing_eagerly():
            _move_to_graph(keras.tree.flatten(outputs)[0].op)
        return outputs

    return with_freed_gradient


def has_tangents(tensors: Sequence[Any]) -> bool:
    """Whether a `tf.autodiff.ForwardAccumulator` has tangents for any of the tensors.

    In a graph, forward mode ignores custom gradients and differentiates the forward computation.
    """
    import tensorflow as tf
    from tensorflow.python.eager import forwardprop_util

    # `ops.convert_to_tensor` would not convert Keras variables.
    tensors = [tf.convert_to_tensor(x) for x in tensors]
    return bool(forwardprop_util.pack_tangents(tensors).tangents)


def has_tangents_in_graph(tensors: Sequence[Any]) -> bool:
    """Whether forward mode runs in a graph, where TensorFlow cannot differentiate loops."""
    import tensorflow as tf

    return not tf.executing_eagerly() and has_tangents(tensors)


def _move_to_graph(operation: Any) -> None:
    """Moves an operation's gradient from TensorFlow's registry to the operation's graph."""
    import tensorflow as tf
    from tensorflow.python.framework import ops as framework

    # The public registry removes no entries. Where a version has another registry, they stay in it.
    registered = getattr(getattr(framework, "gradient_registry", None), "_registry", None)
    name = operation.get_attr("_gradient_op_type").decode()
    if registered is None or name not in registered:
        return
    gradient = framework.gradient_registry.lookup(name)
    graph = operation.graph
    graph._tfattn_gradients = getattr(graph, "_tfattn_gradients", {})
    graph._tfattn_gradients[name] = gradient
    graph_reference: Any = weakref.ref(graph)

    def gradient_in_graph(operation: Any, *upstream: Any) -> Any:
        return graph_reference()._tfattn_gradients[name](operation, *upstream)

    del registered[name]
    tf.RegisterGradient(name)(gradient_in_graph)
