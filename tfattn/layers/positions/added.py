"""Positional encodings: attention itself does not depend on the order of its tokens."""

import numbers
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.tensors import given_tensor, known_size, known_values
from tfattn.layers.base import CheckedCall, spec_of_call
from tfattn.layers.stepping import stepping
from tfattn.layers.tokens import nan_outside


class _PositionalEncoding(CheckedCall, keras.layers.Layer):
    """Adds a vector for each position to scaled inputs; a subclass defines `encode`.

    Attributes:
        max_length: the number of positions, from 0 on; None if there is no limit.
    """

    max_length: int | None = None
    call_axes = {"inputs": "BTD"}

    def __init__(self, input_scale: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.input_scale = _checks.positive_number(type(self).__name__, "input_scale", input_scale)
        self.supports_masking = True

    def encode(self, positions: Tensor, width: int) -> Tensor:
        """Vectors `(..., width)` of int32 positions `(...)`, in float32 or the weights' dtype."""
        raise NotImplementedError

    def call(self, inputs: Tensor, start_index: Any = 0, positions: Tensor | None = None) -> Tensor:
        who = type(self).__name__
        # Keras casts inputs in `__call__` only, not in `compute_output_spec`.
        inputs = ops.cast(inputs, self.compute_dtype) if self.autocast else inputs
        if isinstance(start_index, numbers.Number):
            _checks.non_negative_int(who, "start_index", start_index)
        run = None if positions is not None else stepping.get()
        if run is not None and run.role(inputs.shape[1], limit=self.max_length) == "self":
            start_index = start_index + (0 if run.position is None else run.position)
        _, length, width = inputs.shape
        start = _integers(who, "start_index", start_index, "() or (B,)", inputs.shape[:1])
        start = start[:, None] if len(start.shape) == 1 else start  # (B, 1)
        most, is_int = 0, isinstance(start_index, numbers.Integral)
        if positions is not None:
            tokens = _integers(who, "positions", positions, "(T,) or (B, T)", inputs.shape[:2])
        else:
            tokens = ops.arange(ops.shape(inputs)[1], dtype="int32")
            if is_int and known_size(length) is not None:
                most = int(start_index) + length
        positions = start + tokens  # (T,) or (B, T)
        if self.max_length is not None:
            values = known_values(positions)
            if values is not None and values.size:
                most = max(most, int(np.max(values)) + 1)
                if np.min(values) < 0:
                    _checks.fail(who, "positions", "be at least 0", int(np.min(values)))
            if most > self.max_length:
                expected = f"have at most `max_length`={self.max_length} positions, counted from 0"
                _checks.fail(who, "inputs", expected, most)
        vectors = ops.cast(self.encode(positions, width), inputs.dtype)  # (T, D) or (B, T, D)
        return inputs * self.input_scale + vectors

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return tuple(inputs_shape)

    compute_output_spec = spec_of_call


def _integers(who: str, argument: str, value: Any, letters: str, shape: Shape) -> Tensor:
    """`value` as an int32 tensor with as many axes as `letters` show, which repeats to `shape`."""
    tensor = given_tensor(who, argument, value, letters)
    _checks.integer_dtype(who, argument, keras.backend.standardize_dtype(tensor.dtype))
    _checks.rank(who, argument, tensor.shape, (len(shape) - 1, len(shape)), letters)
    _checks.broadcasts(who, argument, tensor.shape, shape, letters)
    return ops.cast(tensor, "int32")


@keras.saving.register_keras_serializable("tfattn")
class SinusoidalPositionalEncoding(_PositionalEncoding):
    """Adds sines and cosines of the position, at frequencies that fall along the width.

        p(i, 2j)   = sin(i / max_wavelength^(2j/D))
        p(i, 2j+1) = cos(i / max_wavelength^(2j/D))
        output     = input_scale · input + p

    Any length works. p(i + δ) is a rotation of p(i), the same for every i. Angles, in radians, are
    computed in float32 under every dtype policy.

    Args:
        input_scale: positive number by which the inputs are multiplied first, √D in the
            Transformer. A product outside the layer would lose the implicit mask of an embedding.
        max_wavelength: positive number; wavelengths run from 2π to 2π · max_wavelength.
    Call arguments:
        inputs: float `(B, T, D)`; odd widths end with a sine.
        start_index: position of the first token, for decoding step by step: an int, or an integer
            tensor `()` or `(B,)`.
        positions: integers `(T,)` or `(B, T)`, the position of each token, counted from
            `start_index`. Defaults to 0, 1, 2, ... For documents packed in a row:
            `tfattn.masks.positions_in_segments(ids)`.
    Returns:
        `(B, T, D)`, with the inputs' mask.
    Example:
        >>> tokens = np.zeros((1, 2, 4), "float32")
        >>> print(np.asarray(SinusoidalPositionalEncoding()(tokens)[0]).round(4))
        [[0.     1.     0.     1.    ]
         [0.8415 0.5403 0.01   1.    ]]

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """

    def __init__(self, input_scale: float = 1.0, max_wavelength: float = 10_000.0, **kwargs: Any):
        super().__init__(input_scale=input_scale, **kwargs)
        self.max_wavelength = _checks.positive_number(
            "SinusoidalPositionalEncoding", "max_wavelength", max_wavelength
        )

    def encode(self, positions: Tensor, width: int) -> Tensor:
        pairs = (width + 1) // 2
        # Constants, computed in float64 at tracing time.
        frequencies = ops.convert_to_tensor(
            self.max_wavelength ** (-2.0 * np.arange(pairs) / width), dtype="float32"
        )
        angles = ops.cast(positions, "float32")[..., None] * frequencies  # (..., ⌈D/2⌉)
        both = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (..., ⌈D/2⌉, 2)
        flat = ops.reshape(both, (*ops.shape(positions), 2 * pairs))
        return flat[..., :width]  # (..., D)


@keras.saving.register_keras_serializable("tfattn")
class LearnedPositionalEncoding(_PositionalEncoding):
    """Adds a learned vector for each position.

        output = input_scale · input + E[position]

    Args:
        max_length: positive int; positions 0 to max_length − 1 can be encoded.
        input_scale: positive number by which the inputs are multiplied first.
        initializer: initializer of the vectors. Defaults to a normal distribution with standard
            deviation 0.02.
    Call arguments, Returns: those of `SinusoidalPositionalEncoding`.
    Raises:
        ValueError: a position is known to be `max_length` or more, or below 0. In a graph the
            vector of such a position is NaN.
    Example:
        >>> tuple(LearnedPositionalEncoding(max_length=10)(np.zeros((1, 7, 4), "float32")).shape)
        (1, 7, 4)

    Source: Gehring et al. 2017, arXiv:1705.03122, section 3.1.
    """

    def __init__(
        self,
        max_length: int,
        input_scale: float = 1.0,
        initializer: str | keras.initializers.Initializer | None = None,
        **kwargs: Any,
    ):
        _checks.positive_int("LearnedPositionalEncoding", "max_length", max_length)
        super().__init__(input_scale=input_scale, **kwargs)
        self.max_length = max_length
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = keras.initializers.get(initializer)

    def build(self, inputs_shape: Shape) -> None:
        _checks.known_width(type(self).__name__, "inputs", inputs_shape)
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, inputs_shape[-1]),
            initializer=self.initializer,
        )

    def encode(self, positions: Tensor, width: int) -> Tensor:
        return nan_outside(ops.take(self.embeddings, positions, axis=0), positions, self.max_length)
