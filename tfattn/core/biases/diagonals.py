"""Biases that depend on distance alone: a number for each of the t + s − 1 diagonals."""

from keras import ops

from tfattn._types import Size, Tensor
from tfattn.core.masks.grid import Grid


def distances(grid: Grid) -> Tensor:
    """Position of the key less position of the query on each diagonal, `(t + s − 1,)`, from the
    lower left corner to the upper right corner.
    """
    lowest = grid.key_start - grid.last_position()
    count = _at_least_one(grid.queries) + _at_least_one(grid.keys) - 1
    return ops.arange(count, dtype="int32") + lowest


def along_diagonals(numbers: Tensor, queries: Size, keys: Size) -> Tensor:
    """`(H, t + s − 1)`, a number per diagonal, to `(H, t, s)`."""
    # Copies of t + s numbers are reshaped to rows of t + s − 1, so that each row starts one number
    # earlier than the row above. A gather takes four times as long, and its gradient ten times;
    # the gradient of `x[:, :n]` is as slow, that of `ops.slice` is not.
    if not all(isinstance(size, int) or ops.is_tensor(size) for size in (queries, keys)):
        # JAX's unknown sizes, in computations of shapes, cannot be sizes of a slice.
        indices = ops.arange(keys)[None] - ops.arange(queries)[:, None] + queries - 1
        return ops.take(numbers, indices, axis=1)
    wanted = queries, keys
    queries, keys = _at_least_one(queries), _at_least_one(keys)
    heads, length = numbers.shape[0], queries + keys
    # Row 0 first, then an unused number, then the numbers left of row 0 in the rows below. One
    # slice for all three, since the last may be empty, and LiteRT has no empty slices.
    twice = ops.concatenate([numbers, numbers[:, :1], numbers], axis=-1)
    ring = ops.slice(twice, (0, queries - 1), (heads, length))
    rows = ops.broadcast_to(ring[:, None], (heads, queries, length))
    flat = ops.reshape(rows, (heads, queries * length))
    flat = ops.slice(flat, (0, 0), (heads, queries * (length - 1)))
    rows = ops.reshape(flat, (heads, queries, length - 1))
    return ops.slice(rows, (0, 0, 0), (heads, *wanted))


def _at_least_one(size: Size) -> Size:
    """An empty rectangle is computed like a rectangle of one row or column."""
    return ops.maximum(size, 1) if ops.is_tensor(size) else max(size, 1)
