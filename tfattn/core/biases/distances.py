"""Biases of distance: a number for each of the t + s − 1 diagonals of a rectangle."""

import functools
from typing import Any

import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Size, Tensor
from tfattn.core.biases.base import Bias, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.tensors import floating, given_parameter


@registered
class alibi(Bias):
    """Attention with linear biases: the score of a pair falls with its distance.

        bias[h] = −slope[h] · |position of the query − position of the key|

    If H is a power of two, head h (from 1 to H) has the slope 2^(−8h/H). Otherwise let P be the
    greatest power of two below H: the first P heads have the slopes of P heads, and the other heads
    take every second slope of 2P heads, from the first on.

    There are no learned parameters. The bias is computed in float32.

    Args:
        num_heads: positive int, H, as many as the scores have.
    Example:
        >>> print(np.asarray(biases.alibi(8).dense(2, 3)[0, 0]))
        [[-0.5 -0.  -0.5]
         [-1.  -0.5 -0. ]]

    Source: Press, Smith, Lewis 2022, arXiv:2108.12409, section 3; for an H that is not a power of
    two, the rule of the authors' code. Differs from the paper in that keys after the query have a
    bias too, by their distance: the paper's models are causal.
    """

    def __init__(self, num_heads: int):
        self.num_heads = _checks.positive_int("biases.alibi", "num_heads", num_heads)

    splits_by_head = True
    is_of_distance = True

    @property
    def differs_by_head(self) -> bool:  # type: ignore[override]
        return self.num_heads > 1

    def check(self, who: str, argument: str, shape: Shape) -> None:
        heads = shape[1] if len(shape) == 4 else 1
        if heads not in (None, self.num_heads):
            expected = f"have as many heads as the scores, {heads}"
            _checks.fail(who, argument, expected, f"alibi({self.num_heads})")

    def on(self, grid: Grid) -> Tensor:
        distance = ops.cast(ops.abs(distances(grid)), "float32")  # (t + s − 1,)
        numbers = -self._slopes(grid) * distance  # (h, t + s − 1)
        bias = along_diagonals(numbers, grid.queries, grid.keys)  # (h, t, s)
        return bias[0] if self.num_heads == 1 else bias[None]  # (t, s) also fits scores of rank 3

    def has_factors(self, grid: Grid) -> bool | Tensor:
        """Whether no key is after a query, or none before."""
        last_key = grid.key_start + grid.keys - 1
        return (grid.first_position() >= last_key) | (grid.key_start >= grid.last_position())

    def factors(self, grid: Grid) -> tuple[Tensor, Tensor]:
        # The distance is query to nearest key plus nearest key to key: on one side of the diagonal
        # both terms have the same sign, so no digits cancel.
        first_key, last_key = grid.key_start, grid.key_start + grid.keys - 1
        is_after = ops.convert_to_tensor(first_key >= grid.last_position())
        nearest = ops.where(is_after, first_key, last_key)
        sign = ops.cast(ops.where(is_after, -1, 1), "float32")
        of_queries = sign * ops.cast(grid.query_positions() - nearest, "float32")  # (t, 1)
        of_keys = sign * ops.cast(nearest - grid.key_positions(), "float32")  # (1, s)
        left = ops.concatenate([of_queries, ops.ones_like(of_queries)], axis=-1)  # (t, 2)
        right = ops.stack([ops.ones_like(of_keys[0]), of_keys[0]], axis=-1)  # (s, 2)
        return -self._slopes(grid)[..., None] * left, right

    def _slopes(self, grid: Grid) -> Tensor:
        slopes = ops.convert_to_tensor(self.slopes(), "float32")[:, None]
        return grid.heads_of(slopes, 0)  # (h, 1)

    def slopes(self) -> list[float]:
        """The slope of each head."""
        power = 1 << (self.num_heads.bit_length() - 1)
        exponents = [8 * h / power for h in range(1, power + 1)]
        exponents += [4 * (2 * j + 1) / power for j in range(self.num_heads - power)]
        return [2.0**-exponent for exponent in exponents]


@registered
class relative(Bias):
    """T5's relative position bias: a learned number for each head and each bucket of distances.

        bias[h] = table[bucket(position of the key − position of the query), h]

    The first n/2 of n buckets hold one distance each, 0, 1, … n/2 − 1; the other buckets widen by
    a constant factor up to `max_distance`, and the last bucket has all distances beyond. With
    `bidirectional`, keys before and after the query have n = num_buckets / 2 buckets each; without,
    n = num_buckets, and keys after the query, which a causal mask should hide, share bucket 0.

    The table is the only parameter of this bias, and gets a gradient.

    Args:
        table: float tensor or variable `(num_buckets, H)`, or `(num_buckets, 1)` for all heads.
        bidirectional: whether keys after the query have separate buckets.
        max_distance: positive int, in tokens: all distances from here on share one bucket.
    Raises:
        ValueError: the table has too few buckets, or an odd number of them with `bidirectional`;
            `max_distance` lies in a bucket of a single distance.
    Example:
        >>> table = np.arange(4.0)[:, None]  # four buckets, one head
        >>> bias = biases.relative(table, bidirectional=False, max_distance=5)
        >>> print(np.asarray(bias.dense(1, 7)))
        [[3. 3. 3. 2. 2. 1. 0.]]

    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1; buckets as in the authors' code.
    """

    def __init__(self, table: Tensor, bidirectional: bool = True, max_distance: int = 128):
        who = "biases.relative"
        table = given_parameter(who, "table", table, "(num_buckets, H)")
        _checks.array(who, "table", table, "(num_buckets, H)")
        _checks.rank(who, "table", table.shape, (2,), "(num_buckets, H)")
        _checks.has_width(who, "table", table.shape)
        self.table = table
        self.bidirectional = _checks.boolean(who, "bidirectional", bidirectional)
        self.max_distance = _checks.positive_int(who, "max_distance", max_distance)
        check_buckets(who, "table rows", table.shape[0], bidirectional, max_distance)

    splits_by_head = True
    is_of_distance = True

    @property
    def differs_by_head(self) -> bool:  # type: ignore[override]
        return self.table.shape[1] != 1

    def check(self, who: str, argument: str, shape: Shape) -> None:
        super().check(who, argument, shape)
        heads = shape[1] if len(shape) == 4 else 1
        if self.differs_by_head and heads not in (None, self.table.shape[1]):
            expected = f"have as many heads as the scores, {heads}"
            _checks.fail(who, argument, expected, f"relative{tuple(self.table.shape)}")

    def parameters(self) -> tuple[Tensor, ...]:
        return (floating(self.table),)

    def on(self, grid: Grid, table: Tensor) -> Tensor:
        num_buckets, num_heads = self.table.shape
        most = self.max_distance
        indices = ops.clip(distances(grid), -most, most) + most
        of_distance = buckets(num_buckets, self.bidirectional, most)
        table = grid.heads_of(table, 1)  # (num_buckets, h)
        numbers = ops.take(table, ops.take(of_distance, indices), axis=0)  # (t + s − 1, h)
        bias = along_diagonals(ops.transpose(numbers), grid.queries, grid.keys)  # (h, t, s)
        return bias[0] if num_heads == 1 else bias[None]

    def has_factors(self, grid: Grid) -> bool | Tensor:
        """Whether all pairs are known to share one bucket."""
        after = grid.key_start - grid.last_position()
        before = grid.first_position() - (grid.key_start + grid.keys - 1)
        # Without `bidirectional` all keys after the query are in one bucket.
        least = self.max_distance if self.bidirectional else 0
        return (before >= self.max_distance) | (after >= least)

    def factors(self, grid: Grid, table: Tensor) -> tuple[Tensor, Tensor]:
        one = ops.reshape(self.on(grid._replace(queries=1, keys=1), table), (-1, 1, 1))
        return one * ops.ones((grid.queries, 1), one.dtype), ops.ones((grid.keys, 1), one.dtype)

    def _state(self) -> dict[str, Any]:
        return {**vars(self), "table": self.parameters()[0]}


def check_buckets(
    who: str, argument: str, num_buckets: int | None, bidirectional: bool, max_distance: int
) -> None:
    """Raises unless this number of buckets is possible, and some bucket has several distances."""
    sides = 2 if bidirectional else 1
    if num_buckets is None or num_buckets < 2 * sides or num_buckets % sides:
        expected = "be an even number of at least 4" if bidirectional else "be at least 2"
        _checks.fail(who, argument, f"{expected}, one per bucket", num_buckets)
    exact = num_buckets // sides // 2
    if max_distance <= exact:
        expected = f"be above {exact}, the number of distances with their own bucket"
        _checks.fail(who, "max_distance", expected, max_distance)


@functools.lru_cache(maxsize=64)
def buckets(num_buckets: int, bidirectional: bool, max_distance: int) -> np.ndarray:
    """The bucket of each distance from −max_distance to max_distance, int32."""
    per_side = num_buckets // 2 if bidirectional else num_buckets
    exact = per_side // 2
    distances = np.arange(max_distance + 1)
    growth = np.log(np.maximum(distances, exact) / exact) / np.log(max_distance / exact)
    # 1e-9: a rounded logarithm may put the first distance of a bucket into the bucket before.
    wide = np.floor(growth * (per_side - exact) + 1e-9)
    before = np.where(distances < exact, distances, np.minimum(exact + wide, per_side - 1))
    after = before + per_side if bidirectional else 0 * before
    # Distance 0 is the last entry of `before[::-1]`, so `after` starts at distance 1.
    return np.concatenate([before[::-1], after[1:]]).astype("int32")


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
