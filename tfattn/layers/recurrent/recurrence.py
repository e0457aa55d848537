"""Recurrence: Keras's cells in two parts, and one loop over time.

As a score does, a cell splits its work: what is known of a token before the loop begins (its share
of the input's product, and the bias) is one flat product over all tokens; the loop does what waits
for the state.
"""

import keras
from keras import ops

from tfattn import _checks
from tfattn.core import products

__all__ = ["cell_class", "cell_name", "checked_cell", "loop", "state_sizes", "steps_of"]


class Steps:
    """A cell for the time of one call. This one takes any cell, and does all of its work at the
    step.

    Args:
        cell: a built Keras cell.
        known: int, features of its input that `prepare` is given; the rest of the input arrives at
            the step.
    """

    def __init__(self, cell, known):
        self.cell = cell

    def prepare(self, inputs):
        """What can be computed of the known features before the loop: `(..., known)` to `(..., N)`."""
        return inputs

    def step(self, prepared, rest, states):
        """One step: (output, new states).

        Args:
            prepared: `(B, N)`, one token of `prepare`.   rest: `(B, D - known)`, or None where all
                is known.
            states: list of `(B, units)`.
        """
        inputs = prepared if rest is None else ops.concatenate([prepared, rest], axis=-1)
        return self.cell(inputs, states)


class _SplitSteps(Steps):
    """A cell whose input meets one kernel: its rows for the known features before the loop, the
    others inside.
    """

    def __init__(self, cell, known):
        super().__init__(cell, known)
        kernel = ops.convert_to_tensor(cell.kernel)
        # Sliced here and not at each step, where the gradient of a slice would be as large as the
        # whole.
        self.known_kernel, self.rest_kernel = kernel[:known], kernel[known:]
        self.recurrent_kernel = ops.convert_to_tensor(cell.recurrent_kernel)
        self.bias = ops.convert_to_tensor(cell.bias)

    def prepare(self, inputs):
        return products.matmul_shared(inputs, self.known_kernel) + self.input_bias()

    def input_bias(self):
        return self.bias

    def joined(self, prepared, rest):
        return prepared if rest is None else prepared + ops.matmul(rest, self.rest_kernel)


class _GRUSteps(_SplitSteps):
    """`keras.layers.GRUCell`, whose reset gate acts on what the state has become by its product."""

    def input_bias(self):
        return self.bias[0]

    def step(self, prepared, rest, states):
        [state], cell = states, self.cell
        recurrent = ops.matmul(state, self.recurrent_kernel) + self.bias[1]
        update, reset, candidate = ops.split(self.joined(prepared, rest), 3, axis=-1)
        recurrent_update, recurrent_reset, recurrent_candidate = ops.split(recurrent, 3, axis=-1)
        update = cell.recurrent_activation(update + recurrent_update)
        reset = cell.recurrent_activation(reset + recurrent_reset)
        candidate = cell.activation(candidate + reset * recurrent_candidate)
        state = update * state + (1 - update) * candidate
        return state, [state]


class _LSTMSteps(_SplitSteps):
    """`keras.layers.LSTMCell`."""

    def step(self, prepared, rest, states):
        (state, carry), cell = states, self.cell
        gates = self.joined(prepared, rest) + ops.matmul(state, self.recurrent_kernel)
        write, forget, candidate, read = ops.split(gates, 4, axis=-1)
        carry = cell.recurrent_activation(forget) * carry
        carry = carry + cell.recurrent_activation(write) * cell.activation(candidate)
        state = cell.recurrent_activation(read) * cell.activation(carry)
        return state, [state, carry]


_SPLIT = {keras.layers.GRUCell: _GRUSteps, keras.layers.LSTMCell: _LSTMSteps}


def steps_of(cell, known):
    """The cell in its two parts; a cell of any other class, which may compute anything, stays
    whole.
    """
    return _SPLIT.get(type(cell), Steps)(cell, known)


class _LoopCell:
    """What `keras.layers.RNN` asks of a cell, around a function that lives for one call."""

    def __init__(self, step, state_size, compute_dtype):
        self.step, self.state_size, self.compute_dtype = step, state_size, compute_dtype

    def call(self, inputs, states):
        return self.step(inputs, list(states))

    __call__ = call


def loop(step, inputs, states, dtype, mask=None, go_backwards=False):
    """Runs a step over time: in a graph as one compiled loop, for lengths known or not.

    `keras.ops.scan` would be shorter; on TensorFlow its gradient does not compile under XLA.

    Args:
        step: function of `(B, D)` of the inputs and a list of states to (`(B, N)`, new states).
        inputs: float `(B, T, D)`.
        states: list of `(B, units)`, as they are before the first step.
        dtype: the policy of the layer that calls.
        mask: bool `(B, T)`; where it is False the states stay as they were, and the output is 0.
        go_backwards: whether to begin with the last token; the outputs keep the order of the
            inputs.
    Returns:
        (outputs `(B, T, N)`, states after the last step).
    """
    if inputs.shape[1] == 1:
        # A step of decoding stands in the loop of a search, and needs none of its own.
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


def state_sizes(cell):
    """Widths of a cell's states."""
    size = cell.state_size
    return [size] if isinstance(size, int) else list(size)


def checked_cell(who, cell):
    """The class itself, if it may be one of cells: a layer, but not the loop over one, as
    `keras.layers.LSTM` is.
    """
    is_layer = isinstance(cell, type) and issubclass(cell, keras.layers.Layer)
    if not is_layer or issubclass(cell, keras.layers.RNN):
        _checks.fail(who, "cell", "be a class of Keras cells, such as keras.layers.LSTMCell", cell)
    return cell


def cell_name(cell):
    """A class as a config holds it: its name in `keras.layers`, or the one that it is registered
    under.
    """
    return keras.saving.get_registered_name(cell)


def cell_class(name):
    """The class of that name."""
    cell = keras.saving.get_registered_object(name) or getattr(keras.layers, name, None)
    if cell is None:
        _checks.fail(
            "cell",
            "name",
            "be a cell of keras.layers, or the name under which a class is registered",
            name,
        )
    return cell
