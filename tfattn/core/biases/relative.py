"""A learned number for each distance; large distances share buckets."""

import bisect
import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.biases.base import Bias, registered
from tfattn.core.biases.diagonals import along_diagonals, distances
from tfattn.core.floats import floating, given_parameter
from tfattn.core.masks.grid import Grid


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
        ValueError: the table is not of rank 2; it has too few buckets, or an odd number of them
            with `bidirectional`; `max_distance` lies in a bucket of a single distance; the scores
            have another number of heads.
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

    @property
    def differs_by_head(self) -> bool:  # type: ignore[override]
        return self.table.shape[1] != 1

    def check(self, who: str, argument: str, shape: Shape) -> None:
        if isinstance(self.table, keras.KerasTensor):
            expected = "hold no symbolic tensor inside of a bias object"
            _checks.fail(who, argument, expected, self.table)
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

    def get_config(self) -> dict[str, Any]:
        array = ops.convert_to_numpy(self.table)
        return {**super().get_config(), "table": keras.saving.serialize_keras_object(array)}


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
    """The bucket of each distance from −max_distance to max_distance, int32, without logarithms,
    which rounded may put the first distance of a bucket into the bucket before.
    """
    per_side = num_buckets // 2 if bidirectional else num_buckets
    exact = per_side // 2
    wide = per_side - exact

    def reaches(distance: int, k: int) -> bool:
        # distance ≥ exact · (max_distance / exact)^(k / wide)
        return distance**wide * exact**k >= max_distance**k * exact**wide

    distances = range(max_distance + 1)
    starts = [
        bisect.bisect_left(distances, True, key=functools.partial(reaches, k=k))
        for k in range(1, wide)
    ]
    before = [d if d < exact else exact + bisect.bisect_right(starts, d) for d in distances]
    after = [d + per_side if d else 0 for d in before] if bidirectional else [0] * len(before)
    # Distance 0 is the last entry of `before[::-1]`, so `after` starts at distance 1.
    return np.array([*before[::-1], *after[1:]], "int32")
