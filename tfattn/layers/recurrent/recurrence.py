"""Recurrence: Keras's cells in two parts, and one loop over time.

Like a score, a cell has two parts. The part that depends on tokens only (input matrix and bias) is
one product over all tokens, before the loop. The loop computes the part that depends on the state.
"""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core import products


class SplitCell:
    """A cell in two parts, for one call. This base class takes any cell and prepares nothing.

    Args:
        cell: a built Keras cell.
        known: int, number of input features that are known before the loop, for `prepare`; the
            other features are arguments of the step.
    """

    def __init__(self, cell: keras.layers.Layer, known: int):
        self.cell = cell

    def prepare(self, inputs: Tensor) -> Tensor:
        """The part before the loop: from known features `(..., known)` to `(..., N)`."""
        return inputs

    def step(
        self, prepared: Tensor, rest: Tensor | None, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """One step: (output, new states).

        Args:
            prepared: `(B, N)`, one token of `prepare`.
            rest: `(B, D - known)`, or None if all features are known.
            states: each `(B, units)`.
        """
        inputs = prepared if rest is None else ops.concatenate([prepared, rest], axis=-1)
        return self.cell(inputs, states)


class _KernelCell(SplitCell):
    """A cell with one input kernel, whose rows for known features are applied in `prepare`."""

    def __init__(self, cell: keras.layers.Layer, known: int):
        super().__init__(cell, known)
        kernel = ops.convert_to_tensor(cell.kernel)
        # Sliced outside of the loop, since the gradient of a slice is as large as the kernel.
        self.known_kernel, self.rest_kernel = kernel[:known], kernel[known:]
        self.recurrent_kernel = ops.convert_to_tensor(cell.recurrent_kernel)
        self.input_bias = ops.convert_to_tensor(cell.bias)

    def prepare(self, inputs: Tensor) -> Tensor:
        return products.matmul_shared(inputs, self.known_kernel) + self.input_bias

    def from_input(self, prepared: Tensor, rest: Tensor | None) -> Tensor:
        """The product of the whole input and its kernel, with the bias."""
        return prepared if rest is None else prepared + ops.matmul(rest, self.rest_kernel)


class _GRU(_KernelCell):
    """`keras.layers.GRUCell`, with the reset gate after the recurrent product."""

    def __init__(self, cell: keras.layers.Layer, known: int):
        super().__init__(cell, known)
        self.input_bias, self.recurrent_bias = self.input_bias[0], self.input_bias[1]

    def step(
        self, prepared: Tensor, rest: Tensor | None, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        [state], cell = states, self.cell
        recurrent = ops.matmul(state, self.recurrent_kernel) + self.recurrent_bias
        update, reset, candidate = ops.split(self.from_input(prepared, rest), 3, axis=-1)
        recurrent_update, recurrent_reset, recurrent_candidate = ops.split(recurrent, 3, axis=-1)
        update = cell.recurrent_activation(update + recurrent_update)
        reset = cell.recurrent_activation(reset + recurrent_reset)
        candidate = cell.activation(candidate + reset * recurrent_candidate)
        state = update * state + (1 - update) * candidate
        return state, [state]


class _LSTM(_KernelCell):
    """`keras.layers.LSTMCell`."""

    def step(
        self, prepared: Tensor, rest: Tensor | None, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        (state, carry), cell = states, self.cell
        gates = self.from_input(prepared, rest) + ops.matmul(state, self.recurrent_kernel)
        write, forget, candidate, read = ops.split(gates, 4, axis=-1)
        carry = cell.recurrent_activation(forget) * carry
        carry = carry + cell.recurrent_activation(write) * cell.activation(candidate)
        state = cell.recurrent_activation(read) * cell.activation(carry)
        return state, [state, carry]


def split_cell(cell: keras.layers.Layer, known: int) -> SplitCell:
    """A GRU or LSTM cell in two parts; cells of other classes cannot be split."""
    split = {keras.layers.GRUCell: _GRU, keras.layers.LSTMCell: _LSTM}
    return split.get(type(cell), SplitCell)(cell, known)


class _LoopCell:
    """The cell interface of `keras.layers.RNN` around the step function of one call."""

    def __init__(
        self,
        step: Callable[..., tuple[Tensor, list[Tensor]]],
        state_size: list[int],
        compute_dtype: str,
    ):
        self.step, self.state_size, self.compute_dtype = step, state_size, compute_dtype

    def call(self, inputs: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return self.step(inputs, list(states))

    __call__ = call


def loop(
    step: Callable[[Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]],
    inputs: Tensor,
    states: list[Tensor],
    dtype: keras.DTypePolicy,
    mask: Tensor | None = None,
    go_backwards: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Runs a step over time; in a graph, as one compiled loop for any length.

    `keras.ops.scan` would be shorter, but on TensorFlow its gradient does not compile under XLA.

    Args:
        step: function of `(B, D)` of the inputs and the states to (`(B, N)`, new states).
        inputs: float `(B, T, D)`.
        states: each `(B, units)`, before the first step.
        dtype: the policy of the calling layer.
        mask: bool `(B, T)`; where it is False, the states do not change and the output is 0.
        go_backwards: whether to begin with the last token; outputs are in the order of the inputs.
    Returns:
        (outputs `(B, T, N)`, states after the last step).
    """
    if inputs.shape[1] == 1:
        # A single token, as in a step of decoding, needs no loop.
        output, after = step(inputs[:, 0], states)
        if mask is not None:
            output = ops.where(mask, output, 0.0)
            after = [ops.where(mask, new, old) for new, old in zip(after, states, strict=True)]
        return output[:, None], after
    rnn = keras.layers.RNN(
        _LoopCell(step, [state.shape[-1] for state in states], dtype.compute_dtype),
        return_sequences=True,
        return_state=True,
        go_backwards=go_backwards,
        zero_output_for_mask=True,
        dtype=dtype,
        name="loop",
    )
    outputs, *states = rnn(inputs, initial_state=list(states), mask=mask)
    return (ops.flip(outputs, axis=1) if go_backwards else outputs), states


def state_sizes(cell: keras.layers.Layer) -> list[int]:
    """Widths of a cell's states."""
    size = cell.state_size
    return [size] if isinstance(size, int) else list(size)


def checked_cell(who: str, cell: type) -> type[keras.layers.Layer]:
    """`cell`, if it is a class of cells, and not of recurrent layers like LSTM."""
    is_layer = isinstance(cell, type) and issubclass(cell, keras.layers.Layer)
    if not is_layer or issubclass(cell, keras.layers.RNN):
        _checks.fail(who, "cell", "be a class of Keras cells, such as keras.layers.LSTMCell", cell)
    return cell


def cell_class(who: str, name: str) -> type[keras.layers.Layer]:
    """The cell class with this name in `keras.layers`, or with this registered name."""
    cell = keras.saving.get_registered_object(name) or getattr(keras.layers, name, None)
    if cell is None:
        expected = "be a cell of keras.layers, or the registered name of a class"
        _checks.fail(who, "cell", expected, name)
    return cell
