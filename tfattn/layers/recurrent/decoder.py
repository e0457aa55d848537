"""A recurrent decoder that attends to an encoder's output before each token."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import softmax
from tfattn.core.tensors import matmul
from tfattn.layers.attention.base import record
from tfattn.layers.attention.scores import AdditiveScore, Score, split_score
from tfattn.layers.configs import build_part
from tfattn.layers.recurrent.stack import RecurrentStack, loop, state_sizes
from tfattn.layers.tokens import checked_padding, mask_of_tokens, padding_mask


@keras.saving.register_keras_serializable("tfattn")
class RecurrentDecoder(RecurrentStack):
    """A recurrent network over the target that attends to an encoder's output at every step.

        α_t = softmax over s of score(h_{t−1}, memory_s)
        c_t = Σ_s α_ts · memory_s
        h_t = cell([embedding(ids_t); c_t], h_{t−1})
        o_t = tanh(W [h_t; c_t; embedding(ids_t)])

    The query h_{t−1} is the previous state of the top layer. The inputs of a layer above the first
    are the outputs of the layer below it. The keys are projected once per sentence.

    Args:
        vocabulary_size: positive int, number of target ids, padding included.
        width: positive int, features of an embedding and of an output vector.
        units, num_layers, cell, seed: as for `RecurrentEncoder`.
        score: a score layer, not shared with another layer. Defaults to Bahdanau's,
            `AdditiveScore(units)`. Luong's are `BilinearScore()` (general) and, for a memory as
            wide as `units`, `DotProductScore(scale=1.0)` (dot).
        dropout: probability in [0, 1) on the embeddings, between layers and on the output.
        embedding: a `keras.layers.Embedding`, which layers of a subclassed model may share.
            Defaults to a new one.
    Call arguments:
        ids: integers `(B, T)`, the target so far, begin token first; id 0 is padding.
        memory: float `(B, S, Dm)`, the encoder's output.
        memory_mask: bool `(B, S)`, True = real token. Keras passes the implicit mask of `memory`
            here.
        keys: keys from `prepare`, together with its memory. By default the call prepares both.
        initial_state: a list with one entry per layer, each a list of the cell's states
            `(B, units)`. Defaults to zeros.
        return_attention_scores: whether to return the alignments too.
        return_state: whether to return the last states too, in the form of `initial_state`.
        training: whether dropout is active.
    Returns:
        `(B, T, width)`, with the mask of the ids. With `return_attention_scores=True` also the
        alignments `(B, T, S)`: each row sums to 1, or to 0 where the whole memory is masked and at
        padding. With `return_state=True` also the states after the last real token.
    Example:
        >>> decoder = RecurrentDecoder(vocabulary_size=11, width=4, units=8)
        >>> outputs = decoder(ids=np.array([[2, 5, 0]]), memory=np.ones((1, 7, 6), "float32"))
        >>> tuple(outputs.shape)
        (1, 3, 4)

    Source: Bahdanau, Cho, Bengio 2015, arXiv:1409.0473, section 3.1 and appendix A.2.2; the default
    sizes are the paper's. Differs from it in the GRU, whose reset gate acts after the recurrent
    product, as in Keras, and in the output: a tanh over the new state as in Luong, Pham, Manning
    2015, arXiv:1508.04025, equation 5, where Bahdanau's paper has a maxout over the old state.
    """

    call_axes = {"ids": "BT", "memory": "BSE", "memory_mask": "BS"}

    def __init__(
        self,
        vocabulary_size: int,
        width: int = 620,
        units: int = 1000,
        num_layers: int = 1,
        cell: type[keras.layers.Layer] = keras.layers.GRUCell,
        score: Score | None = None,
        dropout: float = 0.0,
        embedding: keras.layers.Layer | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            vocabulary_size, width, units, num_layers, cell, dropout, embedding, seed, **kwargs
        )
        if score is None:
            score = AdditiveScore(self.units, dtype=self.dtype_policy, name="score")
        self.score = split_score("RecurrentDecoder", score)
        self.output_dropout = self._make_dropout("output_dropout")

    def build(self, ids_shape: Shape, memory_shape: Shape) -> None:
        if not self.embedding.built:
            self.embedding.build(ids_shape)
        memory_width: Any = memory_shape[-1]
        self.cells = self._make_cells("cell", self.width + memory_width, self.units)
        query, memory = (None, 1, self.units), (None, None, memory_width)
        build_part(self, self.score, query, memory)
        self.readout = keras.layers.Dense(
            self.width, activation="tanh", dtype=self.dtype_policy, name="readout"
        )
        self.readout.build((None, self.units + memory_width + self.width))

    def prepare(self, memory: Tensor, memory_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(Memory `(B, S, Dm)`, 0 at padding, keys `(B, S, ...)`), computed once per sentence."""
        memory = ops.cast(memory, self.compute_dtype)
        if memory_mask is not None:
            # Despite a weight of 0, NaN in padding would reach the gradient: 0 · NaN is NaN.
            memory_mask = checked_padding("RecurrentDecoder", "memory_mask", memory_mask, memory)
            real = ops.expand_dims(memory_mask, -1)
            memory = ops.where(real, memory, 0.0)
        return memory, self.score.prepare_key(memory)

    def call(
        self,
        ids: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        keys: Tensor | None = None,
        initial_state: list[list[Tensor]] | None = None,
        return_attention_scores: bool = False,
        return_state: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Any, ...]:
        memory_mask = mask_of_tokens(memory, memory_mask)
        if keys is None:
            memory, keys = self.prepare(memory, memory_mask)
        elif memory_mask is not None:
            memory_mask = checked_padding("RecurrentDecoder", "memory_mask", memory_mask, memory)
        embedded = self.embed(ids, training)  # (B, T, width)
        start = self._initial_states(initial_state, ops.shape(ids)[0])
        inputs, dropped = embedded, 0
        if training and self.layer_dropout.rate and self.num_layers > 1:
            # Drawn for all tokens at once, so that the loop has no random state.
            dropped = (self.num_layers - 1) * self.units
            ones = ops.ones((*ops.shape(embedded)[:2], dropped), embedded.dtype)
            inputs = ops.concatenate([self.layer_dropout(ones, training=True), embedded], axis=-1)
        step = self._step_over(memory, keys, memory_mask, start, dropped)
        states = keras.tree.flatten(start)
        outputs, states = loop(step, inputs, states, self.dtype_policy, mask=padding_mask(ids))
        width = self.units + memory.shape[-1]
        vectors = outputs[..., :width]  # (B, T, units + Dm)
        alignments = outputs[..., width:]  # (B, T, S)
        record(self.path, alignments)
        # One flat product for all tokens.
        x = ops.concatenate([vectors, embedded], axis=-1)
        flat = self.readout(ops.reshape(x, (-1, self.readout.kernel.shape[0])))  # (B·T, width)
        x = self.output_dropout(ops.reshape(flat, ops.shape(embedded)), training=training)
        results = [x]
        if return_attention_scores:
            results.append(alignments)
        if return_state:
            results.append(keras.tree.pack_sequence_as(start, states))
        return tuple(results) if len(results) > 1 else results[0]

    def _step_over(
        self, memory: Tensor, keys: Tensor, mask: Tensor | None, start: Any, dropped: int
    ) -> Callable[[Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]:
        """The step function of one call: (token, states) to ([h; c; α], new states). A token begins
        with `dropped` dropout factors, for the inputs of the layers above the first.
        """
        parameters = self.score.parameters()
        seen = None if mask is None else ops.expand_dims(mask, 1)  # (B, 1, S)

        def step(inputs: Tensor, states: list[Any]) -> tuple[Tensor, list[Tensor]]:
            states, after = keras.tree.pack_sequence_as(start, states), []
            query = self.score.prepare_query(states[-1][0][:, None])  # (B, 1, ...)
            scores = self.score.pairwise(query, keys, *parameters)  # (B, 1, S)
            scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
            visible = softmax.not_hidden(scores, seen)
            weights = softmax.normalize(softmax.bounded(scores), visible)
            weights = ops.cast(weights, memory.dtype)
            context = matmul(weights, memory)[:, 0]  # (B, Dm)
            x = ops.concatenate([inputs[:, dropped:], context], axis=-1)
            for i, cell in enumerate(self.cells):
                if i and dropped:
                    x = x * inputs[:, (i - 1) * self.units : i * self.units]
                x, state = cell(x, states[i])
                after.append(state)
            return ops.concatenate([x, context, weights[:, 0]], axis=-1), keras.tree.flatten(after)

        return step

    def _initial_states(
        self, initial_state: list[list[Tensor]] | None, batch: int | Tensor
    ) -> list[list[Tensor]]:
        zeros = [self._zero_states(cell, batch) for cell in self.cells]
        if initial_state is None:
            return zeros
        wanted = [[size] for cell in self.cells for size in state_sizes(cell)]
        letters = "(B, units), in a list per layer"
        for state in keras.tree.flatten(initial_state):
            _checks.array("RecurrentDecoder", "initial_state", state, letters)
        given = [list(state.shape[1:]) for state in keras.tree.flatten(initial_state)]
        if given != wanted:
            states = f"states (B, size) of sizes {state_sizes(self.cells[0])}"
            expected = f"hold, for each of {self.num_layers} layers, {states}"
            shapes = keras.tree.map_structure(lambda state: tuple(state.shape), initial_state)
            _checks.fail("RecurrentDecoder", "initial_state", expected, shapes)
        return keras.tree.pack_sequence_as(zeros, keras.tree.flatten(initial_state))

    def compute_output_shape(self, ids_shape: Shape, memory_shape: Shape) -> Shape:
        return (*ids_shape, self.width)
