"""A recurrent encoder."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.layers.recurrent.stack import RecurrentStack, loop
from tfattn.layers.tokens import padding_mask


@keras.saving.register_keras_serializable("tfattn")
class RecurrentEncoder(RecurrentStack):
    """A recurrent network from token ids to one vector per token, and its last states.

        h_s = cell(embedding(ids_s), h_{s−1})

    A bidirectional encoder also runs backwards, and concatenates both vectors. Padding, on either
    side, changes no state: the last state is the state after the last real token, or, backwards,
    after the first.

    Args:
        vocabulary_size: positive int, number of ids, padding included.
        width: positive int, features of an embedding.
        units: positive int, features of a state.
        num_layers: positive int, recurrent layers one above the other.
        cell: class of the cells: `keras.layers.GRUCell`, `keras.layers.LSTMCell`, or another class
            with the constructor `cell(units, dtype=..., name=...)`, registered with Keras.
        bidirectional: whether each layer has a second cell that runs backwards.
        dropout: probability in [0, 1) on the embeddings and between layers.
        embedding: a `keras.layers.Embedding` of this width, which layers of a subclassed model may
            share, as in `BahdanauSeq2Seq`. Defaults to a new one.
        seed: int, for the dropouts.
    Call arguments:
        ids: integers `(B, S)`; id 0 is padding.
        return_state: whether to return the last states too.
        training: whether dropout is active.
    Returns:
        `(B, S, units)`, or `(B, S, 2 · units)` if bidirectional: 0 at padding, with the mask of the
        ids. With `return_state=True` also the last states: a list with one entry per layer, each a
        list of the cell's states, `(B, units)` or, if bidirectional, `(B, 2 · units)`.
    Example:
        >>> encoder = RecurrentEncoder(vocabulary_size=11, width=4, units=8, bidirectional=True)
        >>> outputs, [[state]] = encoder(np.array([[3, 5, 0]]), return_state=True)
        >>> tuple(outputs.shape), tuple(state.shape)
        ((1, 3, 16), (1, 16))

    Source: Bahdanau, Cho, Bengio 2015, arXiv:1409.0473, section 3.2 and appendix A.2.1; the default
    sizes are the paper's. Differs from it in the GRU, whose reset gate acts after the recurrent
    product, as in Keras.
    """

    call_axes = {"ids": "BT"}

    def __init__(
        self,
        vocabulary_size: int,
        width: int = 620,
        units: int = 1000,
        num_layers: int = 1,
        cell: type[keras.layers.Layer] = keras.layers.GRUCell,
        bidirectional: bool = False,
        dropout: float = 0.0,
        embedding: keras.layers.Layer | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            vocabulary_size, width, units, num_layers, cell, dropout, embedding, seed, **kwargs
        )
        self.bidirectional = _checks.boolean("RecurrentEncoder", "bidirectional", bidirectional)

    @property
    def output_width(self) -> int:
        """Features of an output, and of each state."""
        return 2 * self.units if self.bidirectional else self.units

    def build(self, ids_shape: Shape) -> None:
        if not self.embedding.built:
            self.embedding.build(ids_shape)
        self.forward_cells = self._make_cells("forward_cell", self.width, self.output_width)
        self.backward_cells = []
        if self.bidirectional:
            self.backward_cells = self._make_cells("backward_cell", self.width, self.output_width)

    def call(
        self, ids: Tensor, return_state: bool = False, training: bool | None = None
    ) -> Tensor | tuple[Tensor, list[list[Tensor]]]:
        x, mask, finals = self.embed(ids, training), padding_mask(ids), []
        for i, forward in enumerate(self.forward_cells):
            if i:
                x = self.layer_dropout(x, training=training)
            directions = [self._run(forward, x, mask)]
            if self.bidirectional:
                directions.append(self._run(self.backward_cells[i], x, mask, go_backwards=True))
            outputs, states = zip(*directions, strict=True)
            x = _concatenated(outputs)  # (B, S, units) or (B, S, 2 · units)
            finals.append([_concatenated(pair) for pair in zip(*states, strict=True)])
        return (x, finals) if return_state else x

    def _run(
        self, cell: keras.layers.Layer, x: Tensor, mask: Tensor, go_backwards: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """One cell over the whole sentence: (outputs, last states)."""
        start = self._zero_states(cell, ops.shape(x)[0])
        return loop(cell, x, start, self.dtype_policy, mask, go_backwards)

    def compute_output_shape(self, ids_shape: Shape) -> Shape:
        return (*ids_shape, self.output_width)


def _concatenated(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else ops.concatenate(tensors, axis=-1)
