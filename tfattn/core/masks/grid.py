"""Rectangles of the T × S square of pairs: what a mask is asked about."""

from typing import NamedTuple

from keras import ops


class Grid(NamedTuple):
    """A rectangle of the T × S square of query–key pairs.

    `num_queries` (T) and `num_keys` (S) are the sides of the whole square; the rectangle begins at
    `query_start`, `key_start` and has `queries` rows and `keys` columns; it is taken for `batch`
    rows of the batch from `batch_start` on, all of them where that is None. Each is an int or a
    scalar integer tensor. The rectangle may reach beyond the square: what a rule says there means
    nothing. In an `aligned` one each start is a multiple of its side.
    """

    num_queries: object
    num_keys: object
    query_start: object
    key_start: object
    queries: object
    keys: object
    batch_start: object = 0
    batch: object = None
    aligned: bool = False

    @classmethod
    def whole(cls, num_queries, num_keys):
        return cls(num_queries, num_keys, 0, 0, num_queries, num_keys)

    def query_rows(self):
        """Index of each query among the T queries, `(t, 1)`."""
        return ops.expand_dims(ops.arange(self.queries, dtype="int32") + self.query_start, -1)

    def query_positions(self):
        """Position of each query on the keys' axis, `(t, 1)`: the last query meets the last key."""
        return self.query_rows() + (self.num_keys - self.num_queries)

    def first_position(self):
        return self.query_start + (self.num_keys - self.num_queries)

    def last_position(self):
        return self.first_position() + self.queries - 1

    def key_positions(self):
        """Position of each key, `(1, s)`."""
        return ops.expand_dims(ops.arange(self.keys, dtype="int32") + self.key_start, 0)

    def batch_of(self, tensor):
        """Cuts this rectangle's rows of the batch out of `tensor`, unless its first axis repeats
        one.
        """
        return tensor if self.batch is None else self._cut(tensor, 0, self.batch_start, self.batch)

    def rows_of(self, tensor, axis):
        """Cuts the queries of this rectangle out of `tensor`, unless `axis` repeats one row."""
        if self.queries is self.num_queries and _is_zero(self.query_start):
            return tensor
        return self._cut(tensor, axis, self.query_start, self.queries)

    def columns_of(self, tensor, axis):
        """Cuts the keys of this rectangle out of `tensor`, unless `axis` repeats one column."""
        if self.keys is self.num_keys and _is_zero(self.key_start):
            return tensor
        return self._cut(tensor, axis, self.key_start, self.keys)

    def _cut(self, tensor, axis, start, size):
        total, axis = tensor.shape[axis], axis % len(tensor.shape)
        known = isinstance(size, int) and total is not None and size <= total
        if total == 1 or (known and total == size and (self.aligned or _is_zero(start))):
            return tensor
        if not known:
            last = ops.shape(tensor)[axis] - 1  # an axis that turns out to have one row repeats it
            return ops.take(
                tensor, ops.minimum(ops.arange(size, dtype="int32") + start, last), axis=axis
            )
        # A slice is quicker than a gather, along the last axis by much. Where it would reach beyond
        # the tensor it is taken further up, and rolled back to its place.
        inside = ops.minimum(start, total - size)
        starts = [inside if at == axis else 0 for at in range(len(tensor.shape))]
        shape = [size if at == axis else length for at, length in enumerate(ops.shape(tensor))]
        piece = ops.slice(tensor, starts, shape)
        if (self.aligned and total % size == 0) or (
            isinstance(start, int) and start <= total - size
        ):
            return piece
        return ops.roll(piece, inside - start, axis=axis)


def _is_zero(start):
    return isinstance(start, int) and start == 0
