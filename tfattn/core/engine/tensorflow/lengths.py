"""A check at run time that the arrays of a mask fit the matrix."""

import tensorflow as tf

from tfattn import _checks
from tfattn._types import Size
from tfattn.core import masks
from tfattn.core.engine.tensorflow.loops import size
from tfattn.core.masks import Mask


def check_lengths(mask: Mask, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """The mask on one pair of each row of the batch, after a check of the lengths of its arrays.

    Called once, before the loops: a block would silently cut its rows out of an array that is too
    short or too long.

    Raises:
        ValueError: an array has a wrong length. A length unknown until run time is asserted in the
            graph.
    """
    batch, queries, keys = size(query, 0), size(query, 2), size(key, 2)
    return tf.convert_to_tensor(mask.on(_OnePair(queries, keys, 0, 0, 1, 1, 0, batch)))


class _OnePair(masks.Grid):
    def batch_of(self, tensor: tf.Tensor) -> tf.Tensor:
        self._check(tensor, 0, self.batch)
        return tensor

    def rows_of(self, tensor: tf.Tensor, axis: int) -> tf.Tensor:
        return self._first(tensor, axis, self.num_queries)

    def columns_of(self, tensor: tf.Tensor, axis: int) -> tf.Tensor:
        return self._first(tensor, axis, self.num_keys)

    def _first(self, tensor: tf.Tensor, axis: int, wanted: Size) -> tf.Tensor:
        axis %= len(tensor.shape)
        self._check(tensor, axis, wanted)
        sizes = [-1] * len(tensor.shape)
        sizes[axis] = tf.minimum(1, size(tensor, axis))
        return tf.slice(tensor, [0] * len(sizes), sizes)

    def _check(self, tensor: tf.Tensor, axis: int, wanted: Size | None) -> None:
        length = size(tensor, axis)
        if isinstance(length, int) and isinstance(wanted, int):
            if length not in (1, wanted):
                expected = f"have the length {wanted} or 1 on axis {axis}"
                _checks.fail("attend", "mask", expected, tuple(tensor.shape))
        elif length is not wanted:
            fits = tf.equal(length, wanted) | tf.equal(length, 1)
            message = ["attend: a mask must have the length", wanted, "or 1. Received:", length]
            tf.debugging.Assert(fits, message)
