"""Rectangles of the T × S matrix of pairs, on which masks and biases are evaluated."""

from typing import NamedTuple

from keras import ops

from tfattn._types import Size, Tensor


class Grid(NamedTuple):
    """A rectangle of the T × S matrix of query–key pairs.

        position of query t = offset + t        position of key s = s

    The rectangle may reach beyond the matrix: the engine discards values of masks and biases there.

    Args:
        num_queries, num_keys: T and S, the sides of the whole matrix.
        query_start, key_start: first row and column of the rectangle.
        queries, keys: t and s, its rows and columns.
        batch_start, batch: the `batch` rows from `batch_start` on. Defaults to all rows.
        aligned: whether each start is a multiple of its side.
        offset: position of query 0 on the keys' axis. Defaults to S − T: the last query has the
            position of the last key. Inside a longer cache, the tokens before the queries.
        head_start, heads: the `heads` heads of a bias from `head_start` on. Defaults to all heads.
    """

    num_queries: Size
    num_keys: Size
    query_start: Size
    key_start: Size
    queries: Size
    keys: Size
    batch_start: Size = 0
    batch: Size | None = None
    aligned: bool = False
    offset: Size | None = None
    head_start: Size = 0
    heads: int | None = None

    @classmethod
    def whole(cls, num_queries: Size, num_keys: Size, offset: Size | None = None) -> "Grid":
        """The whole matrix."""
        return cls(num_queries, num_keys, 0, 0, num_queries, num_keys, offset=offset)

    def query_rows(self) -> Tensor:
        """Index of each query among the T queries, `(t, 1)`."""
        return ops.expand_dims(_range(self.query_start, self.queries), -1)

    def query_positions(self) -> Tensor:
        """Position of each query on the keys' axis, `(t, 1)`."""
        return ops.expand_dims(_range(self.first_position(), self.queries), -1)

    def first_position(self) -> Size:
        """Position of the first query of the rectangle."""
        offset = self.num_keys - self.num_queries if self.offset is None else self.offset
        return self.query_start + offset

    def last_position(self) -> Size:
        """Position of the last query of the rectangle."""
        return self.first_position() + self.queries - 1

    def key_positions(self) -> Tensor:
        """Position of each key, `(1, s)`."""
        return ops.expand_dims(_range(self.key_start, self.keys), 0)

    def batch_of(self, tensor: Tensor) -> Tensor:
        """Cuts this rectangle's rows of the batch out of `tensor`, unless its first axis is 1."""
        return tensor if self.batch is None else self._cut(tensor, 0, self.batch_start, self.batch)

    def heads_of(self, tensor: Tensor, axis: int) -> Tensor:
        """Cuts this rectangle's heads out of `tensor`, unless `axis` has size 1."""
        if self.heads is None:
            return tensor
        return self._cut(tensor, axis, self.head_start, self.heads)

    def rows_of(self, tensor: Tensor, axis: int) -> Tensor:
        """Cuts the queries of this rectangle out of `tensor`, unless `axis` has size 1."""
        if self.queries is self.num_queries and _is_zero(self.query_start):
            return tensor
        return self._cut(tensor, axis, self.query_start, self.queries)

    def columns_of(self, tensor: Tensor, axis: int) -> Tensor:
        """Cuts the keys of this rectangle out of `tensor`, unless `axis` has size 1."""
        if self.keys is self.num_keys and _is_zero(self.key_start):
            return tensor
        return self._cut(tensor, axis, self.key_start, self.keys)

    def _cut(self, tensor: Tensor, axis: int, start: Size, size: Size) -> Tensor:
        total, axis = tensor.shape[axis], axis % len(tensor.shape)
        known = isinstance(size, int) and total is not None and size <= total
        if total == 1 or (known and total == size and (self.aligned or _is_zero(start))):
            return tensor
        if not known:
            last = ops.shape(tensor)[axis] - 1  # an axis that has size 1 at run time repeats
            return ops.take(tensor, ops.minimum(_range(start, size), last), axis=axis)
        # A slice is faster than a gather, above all along the last axis. A slice that would reach
        # beyond the tensor starts earlier, and is rolled back to its place.
        inside = ops.minimum(start, total - size)
        starts = [inside if at == axis else 0 for at in range(len(tensor.shape))]
        shape = [size if at == axis else length for at, length in enumerate(ops.shape(tensor))]
        piece = ops.slice(tensor, starts, shape)
        fits = isinstance(start, int) and start <= total - size
        if fits or (self.aligned and total % size == 0):
            return piece
        return ops.roll(piece, inside - start, axis=axis)


def _range(start: Size, size: Size) -> Tensor:
    numbers = ops.arange(size, dtype="int32")
    return numbers if _is_zero(start) else numbers + start


def _is_zero(start: Size) -> bool:
    return isinstance(start, int) and start == 0
