"""Biases that depend on distance alone: one number a diagonal of the rectangle, and not one a pair.

A rectangle of t × s pairs has t + s − 1 diagonals. What is looked up or computed is computed for
these, and copied to the pairs; of a gradient the sum over each diagonal is left.
"""

from keras import ops

from tfattn._types import Size, Tensor
from tfattn.core.masks.grid import Grid

__all__ = ["along_diagonals", "distances"]


def distances(grid: Grid) -> Tensor:
    """Position of the key less that of the query on each diagonal, `(t + s − 1,)`, from the lower
    left corner to the upper right one.
    """
    lowest = grid.key_start - grid.last_position()
    count = _some(grid.queries) + _some(grid.keys) - 1
    return ops.arange(count, dtype="int32") + lowest


def along_diagonals(numbers: Tensor, queries: Size, keys: Size) -> Tensor:
    """`(H, t + s − 1)`, a number a diagonal, to `(H, t, s)`.

    By copies of the whole: of rows of t + s numbers, read on as rows of t + s − 1, each begins one
    number earlier than the one above it. A gather of each pair takes four times as long, and its
    gradient ten times; so does the gradient of `x[:, :n]`, but not that of `ops.slice`.
    """
    if not all(isinstance(size, int) or ops.is_tensor(size) for size in (queries, keys)):
        # JAX's unknown sizes, of which only shapes are computed, cannot be sliced by.
        places = ops.arange(keys)[None] - ops.arange(queries)[:, None] + queries - 1
        return ops.take(numbers, places, axis=1)
    wanted = queries, keys
    queries, keys = _some(queries), _some(keys)
    heads, length = numbers.shape[0], queries + keys
    # Row 0 first; then a number that no pair gets; then what stands left of it in the rows below.
    ring = ops.concatenate(
        [numbers[:, queries - 1 :], numbers[:, :1], numbers[:, : queries - 1]], axis=-1
    )
    rows = ops.broadcast_to(ring[:, None], (heads, queries, length))
    flat = ops.reshape(rows, (heads, queries * length))
    flat = ops.slice(flat, (0, 0), (heads, queries * (length - 1)))
    rows = ops.reshape(flat, (heads, queries, length - 1))
    return ops.slice(rows, (0, 0, 0), (heads, *wanted))


def _some(size: Size) -> Size:
    """At least one: the diagonals of no pairs are those of one."""
    return ops.maximum(size, 1) if ops.is_tensor(size) else max(size, 1)
