"""An array as a bias, and the sum of two biases."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.biases.base import OPERATORS, Bias, registered
from tfattn.core.masks.base import Mask
from tfattn.core.masks.grid import Grid
from tfattn.core.tensors import (
    SHAPES,
    check_shape,
    floating,
    given_parameter,
    known_sizes,
    only_shapes_are_computed,
    with_heads,
)


@registered
class explicit(Bias):
    """An array as a bias. It gets a gradient.

    Args:
        bias: tensor or variable of numbers `(T, S)`, `(B, T, S)` or `(B, H, T, S)`; axes of size 1
            broadcast.
    Example:
        >>> bias = biases.explicit(np.array([[0.0, -1.0, -2.0]])) + np.ones((2, 1))
        >>> print(np.asarray(bias.dense(2, 3)))
        [[ 1.  0. -1.]
         [ 1.  0. -1.]]
    """

    def __init__(self, bias: Any):
        bias = _numbers("biases.explicit", bias, SHAPES[4])
        _checks.rank("biases.explicit", "bias", bias.shape, (2, 3, 4), SHAPES[4])
        self.bias = bias

    @property
    def differs_by_head(self) -> bool:  # type: ignore[override]
        return len(self.bias.shape) == 4 and self.bias.shape[1] != 1

    def check(self, who: str, argument: str, shape: Shape) -> None:
        super().check(who, argument, shape)
        check_shape(who, argument, self.bias.shape, shape)

    def parameters(self) -> tuple[Tensor, ...]:
        return (floating(self.bias),)

    def on(self, grid: Grid, bias: Tensor) -> Tensor:
        bias = bias if len(bias.shape) == 2 else grid.batch_of(bias)
        return grid.columns_of(grid.rows_of(bias, -2), -1)

    def _state(self) -> dict[str, Any]:
        return {"bias": self.parameters()[0]}


@registered
class _Sum(Bias):
    """The sum of two biases, with the parameters of the left, then of the right bias."""

    def __init__(self, left: Bias, right: Bias):
        self.left = left
        self.right = right
        # Counted once: `on` runs inside gradients, where no variable may be read.
        self.num_left = len(left.parameters())
        self.differs_by_head = left.differs_by_head or right.differs_by_head
        self.splits_by_head = all(x.splits_by_head or not x.differs_by_head for x in (left, right))
        self.is_of_distance = left.is_of_distance and right.is_of_distance

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"

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
        left, right = (with_heads(ops.cast(side, dtype), rank) for side in (left, right))
        return left + right

    def has_factors(self, grid: Grid) -> bool | Tensor:
        left, right = self.left.has_factors(grid), self.right.has_factors(grid)
        # False, not a tensor, where a side defines no `factors`: the engine would trace them.
        return False if left is False or right is False else left & right

    def factors(self, grid: Grid, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        left, of_left = self.left.factors(grid, *parameters[: self.num_left])
        right, of_right = self.right.factors(grid, *parameters[self.num_left :])
        dtype = keras.backend.result_type(left.dtype, right.dtype, "float32")
        shape = (max(left.shape[0], right.shape[0]), *ops.shape(left)[1:-1])
        both = [
            ops.broadcast_to(ops.cast(side, dtype), (*shape, side.shape[-1]))
            for side in (left, right)
        ]
        of_both = [ops.cast(side, dtype) for side in (of_left, of_right)]
        return ops.concatenate(both, axis=-1), ops.concatenate(of_both, axis=-1)


def _as_bias(bias: Any) -> Bias:
    return bias if isinstance(bias, Bias) else explicit(bias)


OPERATORS["+"] = lambda left, right: _Sum(_as_bias(left), _as_bias(right))


def _numbers(who: str, bias: Any, letters: str) -> Tensor | keras.Variable:
    bias = given_parameter(who, "bias", bias, letters)
    if keras.backend.standardize_dtype(bias.dtype) == "bool":
        expected = "hold numbers that are added to the scores (a bool is a mask)"
        _checks.fail(who, "bias", expected, "bool")
    return bias


def checked(who: str, bias: Any, scores_shape: Sequence[int | None]) -> Bias | None:
    """`bias` as a bias object, if it fits scores of this static shape; None where only shapes are
    computed, from placeholder sizes that the bias's arrays need not have.
    """
    scores_shape = known_sizes(scores_shape)
    if isinstance(bias, Mask):
        _checks.fail(who, "bias", "be numbers or a bias object (pass a mask as the mask)", bias)
    if not isinstance(bias, Bias):
        bias = _numbers(who, bias, SHAPES[len(scores_shape)])
        check_shape(who, "bias", bias.shape, scores_shape)
        bias = explicit(bias)
    bias.check(who, "bias", scores_shape)
    return None if only_shapes_are_computed() else bias
