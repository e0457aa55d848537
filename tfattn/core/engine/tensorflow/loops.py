"""Static or dynamic sizes, loops with states of constant shape, and arrays of sums."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from tfattn._types import Size

# `(t, s)`, queries and keys of a block, in place of the measured sizes.
Block = tuple[int, int] | None


def in_xla_context() -> bool:
    """Whether XLA compiles the graph that is being built."""
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def size(x: tf.Tensor, axis: int) -> Any:
    """The size of an axis: static where it is known, otherwise a scalar tensor."""
    return tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are known to be equal."""
    return isinstance(a, int) and isinstance(b, int) and a == b


def loop(
    start: Size,
    stop: Size,
    body: Callable[..., Any],
    *state: Any,
    at_once: int = 1,
    most: Size | None = None,
) -> Any:
    """`state` after body(i, *state) for each i from start to stop, `at_once` in parallel; `most`
    bounds the number of steps for XLA, which needs that for the gradient.
    """

    def step(i: Size, state: tuple[Any, ...]) -> tuple[Size, tuple[Any, ...]]:
        after = tuple(body(i, *state))
        tf.nest.map_structure(_keep_shape, state, after)
        return i + 1, after

    most = stop if most is None else most
    start = tf.convert_to_tensor(start, tf.int32)
    _, state = tf.while_loop(
        lambda i, _: i < stop,
        step,
        (start, state),
        parallel_iterations=at_once,
        maximum_iterations=most if isinstance(most, int) else None,
    )
    return state


def _keep_shape(before: Any, after: Any) -> None:
    if isinstance(after, tf.Tensor):
        after.set_shape(before.shape)


def sums_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype of sums: float32 where blocks are multiplied in bfloat16."""
    return tf.float32 if dtype == tf.bfloat16 else dtype


def wide(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, sums_dtype(x.dtype))


def zeros(x: tf.Tensor) -> tf.TensorArray:
    """An array of zeros in the shape of x, an element per entry of its first axis."""
    x = wide(tf.zeros_like(x))
    array = tf.TensorArray(x.dtype, size(x, 0), element_shape=x.shape[1:], clear_after_read=False)
    return array.unstack(x)


def add(array: tf.TensorArray, at: Size, x: tf.Tensor) -> tf.TensorArray:
    return array.write(at, array.read(at) + wide(x))
