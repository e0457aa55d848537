"""The sum of two biases."""

from typing import Any

import keras
from keras import ops

from tfattn._types import Shape, Tensor
from tfattn.core import pairs
from tfattn.core.biases.base import OPERATORS, Bias, registered
from tfattn.core.biases.explicit import explicit
from tfattn.core.masks.grid import Grid


@registered
class _Sum(Bias):
    """The sum of two biases, with the parameters of the left, then of the right bias."""

    def __init__(self, left: Bias, right: Bias, num_left: int | None = None):
        self.left = left
        self.right = right
        # Counted once: `on` runs inside gradients, where no variable may be read.
        self.num_left = len(left.parameters()) if num_left is None else num_left

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"

    @property
    def differs_by_head(self) -> bool:  # type: ignore[override]
        return self.left.differs_by_head or self.right.differs_by_head

    @property
    def splits_by_head(self) -> bool:  # type: ignore[override]
        sides = (self.left, self.right)
        return all(side.splits_by_head or not side.differs_by_head for side in sides)

    def check(self, who: str, argument: str, shape: Shape) -> None:
        self.left.check(who, argument, shape)
        self.right.check(who, argument, shape)

    def parameters(self) -> tuple[Tensor, ...]:
        return (*self.left.parameters(), *self.right.parameters())

    def on(self, grid: Grid, *parameters: Tensor) -> Tensor:
        left = self.left.on(grid, *parameters[: self.num_left])
        right = self.right.on(grid, *parameters[self.num_left :])
        dtype = keras.backend.result_type(left.dtype, right.dtype)
        rank = max(len(left.shape), len(right.shape))
        left, right = (pairs.with_heads(ops.cast(side, dtype), rank) for side in (left, right))
        return left + right

    def has_factors(self, grid: Grid) -> bool | Tensor:
        left, right = self.left.has_factors(grid), self.right.has_factors(grid)
        # False, not a tensor, where a side defines no `factors`: the engine would trace them.
        return False if left is False or right is False else left & right

    def factors(self, grid: Grid, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        sides = (
            self.left.factors(grid, *parameters[: self.num_left]),
            self.right.factors(grid, *parameters[self.num_left :]),
        )
        dtype = keras.backend.result_type(*(left.dtype for left, _ in sides), "float32")
        heads = max(left.shape[0] for left, _ in sides)
        lefts = [
            ops.broadcast_to(ops.cast(left, dtype), (heads, *ops.shape(left)[1:]))
            for left, _ in sides
        ]
        rights = [ops.cast(right, dtype) for _, right in sides]
        return ops.concatenate(lefts, axis=-1), ops.concatenate(rights, axis=-1)

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {"left": serialize(self.left), "right": serialize(self.right)}


def _as_bias(bias: Any) -> Bias:
    return bias if isinstance(bias, Bias) else explicit(bias)


OPERATORS["+"] = lambda left, right: _Sum(_as_bias(left), _as_bias(right))
