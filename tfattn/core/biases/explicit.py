"""An array as a bias."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import pairs, symbolic
from tfattn.core.biases.base import Bias, registered
from tfattn.core.floats import floating, given_parameter
from tfattn.core.masks.base import Mask
from tfattn.core.masks.grid import Grid


@registered
class explicit(Bias):
    """An array as a bias.

    The array is the only parameter of this bias, and gets a gradient.

    Args:
        bias: tensor or variable of numbers `(T, S)`, `(B, T, S)` or `(B, H, T, S)`; axes of size 1
            broadcast.
    Raises:
        ValueError: `bias` is boolean, or its rank is not 2, 3 or 4.
    Example:
        >>> bias = biases.explicit(np.array([[0.0, -1.0, -2.0]])) + np.ones((2, 1))
        >>> print(np.asarray(bias.dense(2, 3)))
        [[ 1.  0. -1.]
         [ 1.  0. -1.]]
    """

    def __init__(self, bias: Any):
        bias = _numbers("biases.explicit", bias, pairs.SHAPES[4])
        _checks.rank("biases.explicit", "bias", bias.shape, (2, 3, 4), pairs.SHAPES[4])
        self.bias = bias

    @property
    def differs_by_head(self) -> bool:  # type: ignore[override]
        return len(self.bias.shape) == 4 and self.bias.shape[1] != 1

    def check(self, who: str, argument: str, shape: Shape) -> None:
        if isinstance(self.bias, keras.KerasTensor):
            expected = "hold no symbolic tensor inside of a bias object: pass the tensor itself"
            _checks.fail(who, argument, expected, self.bias)
        pairs.check_shape(who, argument, self.bias.shape, shape)

    def parameters(self) -> tuple[Tensor, ...]:
        return (floating(self.bias),)

    def on(self, grid: Grid, bias: Tensor) -> Tensor:
        bias = bias if len(bias.shape) == 2 else grid.batch_of(bias)
        return grid.columns_of(grid.rows_of(bias, -2), -1)

    def _state(self) -> dict[str, Any]:
        return {"bias": self.parameters()[0]}

    def get_config(self) -> dict[str, Any]:
        array = ops.convert_to_numpy(self.bias)
        return {"bias": keras.saving.serialize_keras_object(array)}


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
    scores_shape = symbolic.known_sizes(scores_shape)
    if isinstance(bias, Mask):
        _checks.fail(who, "bias", "be numbers or a bias object (pass a mask as the mask)", bias)
    if not isinstance(bias, Bias):
        bias = _numbers(who, bias, pairs.SHAPES[len(scores_shape)])
        pairs.check_shape(who, "bias", bias.shape, scores_shape)
        bias = explicit(bias)
    bias.check(who, "bias", scores_shape)
    return None if symbolic.only_shapes_are_computed() else bias
