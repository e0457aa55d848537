"""Rotary positions: rotations of queries and keys by their positions."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Size, Tensor
from tfattn.layers.positions.base import HeadPositions
from tfattn.layers.positions.scalings import Scaling, unscaled_frequencies


@keras.saving.register_keras_serializable("tfattn")
class RotaryPositions(HeadPositions):
    """Rotary positions: pairs of features of queries and keys rotate by angles ∝ position.

        rotate(x, i)[j]       = x[j] · cos(i · f_j) − x[j + R/2] · sin(i · f_j)
        rotate(x, i)[j + R/2] = x[j + R/2] · cos(i · f_j) + x[j] · sin(i · f_j)
        f_j = base^(−2j/R), j from 0 to R/2 − 1

    The product of a rotated query and a rotated key depends on their distance only. Nothing is
    learned or added to the inputs.

    Args:
        base: number above 1; the longest period is nearly 2π · base tokens.
        rotary_dim: even int R, at most the heads' width: the first R features of each head rotate,
            the others do not change. Defaults to all, in even number.
        scaling: one of `tfattn.scalings`, for sequences longer than in training. Defaults to none.
        interleaved: whether pairs are adjacent features, 2j and 2j + 1, as in the paper. Defaults
            to False: features j and j + R/2, as in the weights of Llama and KerasHub.
    Example: in an attention layer, and in each block of a model.
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=4, positions=RotaryPositions())
        >>> block = TransformerDecoderBlock(hidden_dim=16, attention=attention)
        >>> nothing_added = keras.layers.Identity()
        >>> sizes = {"num_layers": 2, "width": 8}
        >>> model = CausalLM(11, **sizes, block=block, positions=nothing_added)
        >>> tuple(model(np.array([[2, 4, 7]])).shape)
        (1, 3, 11)

    Source: Su et al. 2021, arXiv:2104.09864, section 3.2. Differs from it in the pairs, unless
    `interleaved`.
    """

    def __init__(
        self,
        base: float = 10_000.0,
        rotary_dim: int | None = None,
        scaling: Scaling | None = None,
        interleaved: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = "RotaryPositions"
        self.base = _checks.positive_number(who, "base", base)
        if self.base <= 1.0:
            _checks.fail(who, "base", "be above 1", base)
        if rotary_dim is not None:
            _even(who, "rotary_dim", _checks.positive_int(who, "rotary_dim", rotary_dim))
        self.rotary_dim = rotary_dim
        if scaling is not None and not isinstance(scaling, Scaling):
            expected = "be a scaling, such as tfattn.scalings.linear(2.0), or None"
            _checks.fail(who, "scaling", expected, scaling)
        self.scaling = scaling
        self.interleaved = _checks.boolean(who, "interleaved", interleaved)

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        width: Any = query_shape[-1]
        if self.rotary_dim is None:
            _even("RotaryPositions", "key_dim of the attention", width)
        elif self.rotary_dim > width:
            expected = f"be at most the heads' width, {width}"
            _checks.fail("RotaryPositions", "rotary_dim", expected, self.rotary_dim)

    def rotate(self, heads: Tensor, start: Any) -> Tensor:
        """Heads rotated by their positions; `start` may be `(B,)` too."""
        total, tokens = heads.shape[-1], ops.shape(heads)[2]
        width = total if self.rotary_dim is None else self.rotary_dim
        dtype = keras.backend.result_type(heads.dtype, "float32")
        cos, sin = (ops.cast(x, dtype) for x in self._cos_and_sin(width, tokens, start))
        rotating, unchanged = heads, []
        if width < total:
            rotating, *unchanged = ops.split(heads, [width], axis=-1)
        first, second = self._pairs(ops.cast(rotating, dtype))
        rotated = self._unpaired(first * cos - second * sin, second * cos + first * sin)
        rotated = ops.cast(rotated, heads.dtype)
        return ops.concatenate([rotated, *unchanged], axis=-1) if unchanged else rotated

    def _cos_and_sin(self, width: int, tokens: Size, start: Any) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the angles, `(1, 1, T, R/2)`, or `(B, 1, T, R/2)`."""
        if self.scaling is None:
            frequencies = unscaled_frequencies(self.base, width)
        else:
            frequencies = self.scaling.frequencies(self.base, width)
        start = ops.reshape(ops.cast(start, "int32"), (-1, 1, 1))
        at = ops.cast(ops.arange(tokens, dtype="int32") + start, "float32")  # (1 or B, 1, T)
        angles = at[..., None] * ops.cast(frequencies, "float32")  # (1 or B, 1, T, R/2)
        return ops.cos(angles), ops.sin(angles)

    def _pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first and the second feature of each pair, both `(B, H, T, R/2)`."""
        if not self.interleaved:
            return tuple(ops.split(x, 2, axis=-1))
        x = ops.reshape(x, (*ops.shape(x)[:3], x.shape[-1] // 2, 2))
        return x[..., 0], x[..., 1]

    def _unpaired(self, first: Tensor, second: Tensor) -> Tensor:
        """The inverse of `_pairs`: `(B, H, T, R)`."""
        if not self.interleaved:
            return ops.concatenate([first, second], axis=-1)
        shape = (*ops.shape(first)[:3], 2 * first.shape[-1])
        return ops.reshape(ops.stack([first, second], axis=-1), shape)


def _even(who: str, argument: str, value: int) -> None:
    if value % 2:
        _checks.fail(who, argument, "be even: pairs of features rotate", value)
