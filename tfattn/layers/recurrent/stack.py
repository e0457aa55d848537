"""Base of recurrent encoder and decoder, and the loop of their cells over time."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.layers.base import CheckedCall, spec_of_call
from tfattn.layers.dropout import Dropout
from tfattn.layers.tokens import checked_embedding, embedded, padding_mask


class RecurrentStack(CheckedCall, keras.layers.Layer):
    """Embedding, cells and dropout. See `RecurrentEncoder` for the arguments."""

    takes_ids = True

    def __init__(
        self,
        vocabulary_size: int,
        width: int = 620,
        units: int = 1000,
        num_layers: int = 1,
        cell: type[keras.layers.Layer] = keras.layers.GRUCell,
        dropout: float = 0.0,
        embedding: keras.layers.Layer | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = type(self).__name__
        self.vocabulary_size = _checks.positive_int(who, "vocabulary_size", vocabulary_size)
        self.width = _checks.positive_int(who, "width", width)
        self.units = _checks.positive_int(who, "units", units)
        self.num_layers = _checks.positive_int(who, "num_layers", num_layers)
        self.cell = checked_cell(who, cell)
        self.dropout = _checks.probability(who, "dropout", dropout)
        self.seed = _checks.seed(who, seed)
        self.embedding: Any = checked_embedding(who, embedding, self.width)
        if embedding is None:
            self.embedding = word_embedding(self.vocabulary_size, self.width, self.dtype_policy)
        self.input_dropout = self._make_dropout("input_dropout")
        self.layer_dropout = self._make_dropout("layer_dropout")
        self.supports_masking = True

    def _check_call(self, arguments: dict[str, Any]) -> None:
        super()._check_call(arguments)
        shape = getattr(arguments.get("ids"), "shape", (None, None))
        if shape[1] == 0:
            _checks.fail(type(self).__name__, "ids", "hold at least one token", tuple(shape))

    def _make_cells(
        self, name: str, first_width: int, other_width: int
    ) -> list[keras.layers.Layer]:
        """A built cell per layer, for inputs of these widths."""
        cells = []
        for i in range(self.num_layers):
            cell = self.cell(self.units, dtype=self.dtype_policy, name=f"{name}_{i}")
            cell.build((None, other_width if i else first_width))
            cells.append(cell)
        return cells

    def embed(self, ids: Tensor, training: bool | None) -> Tensor:
        """Embeddings of the ids, `(B, T, width)`, exactly 0 at padding."""
        x = embedded(type(self).__name__, self.embedding, ids)
        x = ops.where(ops.expand_dims(padding_mask(ids), -1), x, 0.0)
        return self.input_dropout(x, training=training)

    def _zero_states(self, cell: keras.layers.Layer, batch: int | Tensor) -> list[Tensor]:
        """The states of a cell before the first token, each `(B, units)`."""
        return [ops.zeros((batch, size), dtype=self.compute_dtype) for size in state_sizes(cell)]

    def compute_mask(self, ids: Tensor, previous_mask: Tensor | None = None) -> Tensor:
        return padding_mask(ids)

    # Not derived from shapes: flags of the call select its results.
    compute_output_spec = spec_of_call

    def _make_dropout(self, name: str) -> Dropout:
        return Dropout(self.dropout, **self._part_options(name))


def word_embedding(
    vocabulary_size: int, width: int, dtype: str | keras.DTypePolicy
) -> keras.layers.Embedding:
    """An embedding whose initial vectors have a norm of about 1."""
    return keras.layers.Embedding(
        vocabulary_size,
        width,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
        dtype=dtype,
        name="embedding",
    )


@dataclasses.dataclass(eq=False)
class _LoopCell:
    """The cell interface of `keras.layers.RNN` around the step function of one call."""

    step: Callable[..., tuple[Tensor, list[Tensor]]]
    state_size: list[int]
    compute_dtype: str

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

    The step is a function of `(B, D)` of the inputs and the states to (`(B, N)`, new states). Where
    the mask `(B, T)` is False, the states do not change and the output is 0. The results are the
    outputs `(B, T, N)`, in the order of the inputs, and the states after the last step.
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


def checked_cell(who: str, cell: Any) -> type[keras.layers.Layer]:
    """A class of cells, or the class of its name in a config; not of recurrent layers like LSTM."""
    if isinstance(cell, str):
        cell = keras.saving.get_registered_object(cell) or getattr(keras.layers, cell, None)
    is_layer = isinstance(cell, type) and issubclass(cell, keras.layers.Layer)
    if not is_layer or issubclass(cell, keras.layers.RNN):
        _checks.fail(who, "cell", "be a class of Keras cells, such as keras.layers.LSTMCell", cell)
    return cell
