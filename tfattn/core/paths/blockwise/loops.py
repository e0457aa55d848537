"""Loops, and sums that they add to block by block."""

import tensorflow as tf

from tfattn.core.paths.blockwise.blocks import size

__all__ = ["add", "loop", "zeros"]


def loop(start, stop, body, *state, at_once=1):
    """`state` after body(i, *state) for each i from start to stop: one after the other, or at most
    so many at once.
    """

    def step(i, state):
        after = tuple(body(i, *state))
        tf.nest.map_structure(_keep_shape, state, after)
        return i + 1, after

    start = tf.convert_to_tensor(start, tf.int32)
    _, state = tf.while_loop(
        lambda i, _: i < stop, step, (start, state), parallel_iterations=at_once
    )
    return state


def _keep_shape(before, after):
    if isinstance(after, tf.Tensor):
        after.set_shape(before.shape)


def zeros(x):
    """An array of zeros, one for each of the first axis of x, to be added to."""
    array = tf.TensorArray(x.dtype, size(x, 0), element_shape=x.shape[1:], clear_after_read=False)
    return array.unstack(tf.zeros_like(x))


def add(array, at, x):
    return array.write(at, array.read(at) + x)
