"""A penalty that grows with distance, steeper in some heads than in others."""

from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.biases.base import Bias, registered
from tfattn.core.biases.diagonals import along_diagonals, distances
from tfattn.core.masks.grid import Grid


@registered
class alibi(Bias):
    """Attention with linear biases: the score of a pair falls with its distance.

        bias[h] = −slope[h] · |position of the query − position of the key|

    If H is a power of two, head h (from 1 to H) has the slope 2^(−8h/H). Otherwise let P be the
    greatest power of two below H: the first P heads have the slopes of P heads, and the other heads
    take every second slope of 2P heads, from the first on.

    There are no learned parameters. The bias is computed in float32.

    Args:
        num_heads: Positive int, H.
    Raises:
        ValueError: `num_heads` is not a positive integer; the scores have another number of heads.
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

    @property
    def differs_by_head(self) -> bool:  # type: ignore[override]
        return self.num_heads > 1

    def check(self, who: str, argument: str, shape: Shape) -> None:
        heads = shape[1] if len(shape) == 4 else 1
        if heads not in (None, self.num_heads):
            expected = f"have as many heads as the scores, {heads}"
            _checks.fail(who, argument, expected, f"alibi({self.num_heads})")

    def on(self, grid: Grid) -> Tensor:
        slopes = grid.heads_of(ops.convert_to_tensor(self.slopes(), "float32"), 0)  # (h,)
        distance = ops.cast(ops.abs(distances(grid)), "float32")  # (t + s − 1,)
        bias = along_diagonals(-slopes[:, None] * distance, grid.queries, grid.keys)  # (h, t, s)
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
        slopes = grid.heads_of(ops.convert_to_tensor(self.slopes(), "float32"), 0)[:, None, None]
        left = ops.concatenate([of_queries, ops.ones_like(of_queries)], axis=-1)  # (t, 2)
        return -slopes * left, ops.stack([ops.ones_like(of_keys[0]), of_keys[0]], axis=-1)

    def slopes(self) -> list[float]:
        """The slope of each head."""
        power = 1 << (self.num_heads.bit_length() - 1)
        exponents = [8 * h / power for h in range(1, power + 1)]
        exponents += [4 * (2 * j + 1) / power for j in range(self.num_heads - power)]
        return [2.0**-exponent for exponent in exponents]
