"""Recurrence: Keras's cells in one loop over time."""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor


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
