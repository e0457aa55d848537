"""A recurrent translation model with attention: from token ids to logits of the next token."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.layers.attention.scores import Score
from tfattn.layers.recurrent.decoder import RecurrentDecoder
from tfattn.layers.recurrent.encoder import RecurrentEncoder
from tfattn.layers.recurrent.stack import checked_cell, state_sizes, word_embedding
from tfattn.layers.tokens import given_ids, padding_mask
from tfattn.models.base import TokenModel


@keras.saving.register_keras_serializable("tfattn")
class BahdanauSeq2Seq(TokenModel):
    """A recurrent encoder and a recurrent decoder with attention, for translation.

        model.compile(optimizer, MaskedCrossentropy())
        model.fit(batches)                                  # of ((source, target_in), target_out)

    Args:
        source_vocabulary_size, target_vocabulary_size, share_embeddings: as for `Transformer`.
        width: positive int, features of an embedding.
        units: positive int, features of a state.
        num_layers: positive int, recurrent layers of the encoder, and of the decoder.
        cell, dropout, seed: see `RecurrentEncoder`.
        bidirectional: whether the encoder also runs backwards.
        score: see `RecurrentDecoder`; the memory has `units` features, or 2 · `units` if the
            encoder is bidirectional.
    Call arguments, Returns: those of `Transformer`.
    Example:
        >>> model = BahdanauSeq2Seq(11, 13, width=4, units=8, name="translator")
        >>> source, target = np.array([[3, 5, 0]]), np.array([[2, 4]])
        >>> tuple(model((source, target)).shape)
        (1, 2, 13)
        >>> alignments = attention_weights(model, (source, target))
        >>> print(alignments["translator/decoder"].shape)
        (1, 2, 3)

    Source: Bahdanau, Cho, Bengio 2015, arXiv:1409.0473. Differs from it as `RecurrentDecoder` does,
    and in the decoder's initial state: tanh of a linear map of both last states of a bidirectional
    encoder; the paper uses only the backward state.
    """

    decoder: RecurrentDecoder

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        width: int = 620,
        units: int = 1000,
        num_layers: int = 1,
        cell: type[keras.layers.Layer] = keras.layers.GRUCell,
        bidirectional: bool = True,
        score: Score | None = None,
        dropout: float = 0.0,
        share_embeddings: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = "BahdanauSeq2Seq"
        self._keep_vocabularies(source_vocabulary_size, target_vocabulary_size, share_embeddings)
        self.width = _checks.positive_int(who, "width", width)
        self.units = _checks.positive_int(who, "units", units)
        self.num_layers = _checks.positive_int(who, "num_layers", num_layers)
        self.cell = checked_cell(who, cell)
        self.bidirectional = _checks.boolean(who, "bidirectional", bidirectional)
        self.dropout = _checks.probability(who, "dropout", dropout)
        self.seed = _checks.seed(who, seed)
        self.output_dense = self._make_output(self.target_vocabulary_size, share_embeddings)
        shared = None
        if share_embeddings:
            shared = word_embedding(source_vocabulary_size, width, self.dtype_policy)
        options: dict[str, Any] = {
            "width": width,
            "units": units,
            "num_layers": num_layers,
            "cell": cell,
            "dropout": dropout,
            "embedding": shared,
        }
        self.encoder = RecurrentEncoder(
            source_vocabulary_size,
            bidirectional=bidirectional,
            **options,
            **self._part_options("encoder"),
        )
        self.decoder = RecurrentDecoder(
            self.target_vocabulary_size,
            score=score,
            **options,
            **self._part_options("decoder"),
        )

    @property
    def score(self) -> Score:
        """The decoder's score layer."""
        return self.decoder.score

    def build(self, input_shape: tuple[Shape, Shape]) -> None:
        source_shape, target_shape = input_shape
        self.encoder.build(source_shape)
        self.decoder.build(target_shape, (*source_shape, self.encoder.output_width))
        self.bridges = []  # from both last encoder states to each initial decoder state
        if self.bidirectional:
            sizes = [size for cell in self.decoder.cells for size in state_sizes(cell)]
            for i, size in enumerate(sizes):
                bridge = keras.layers.Dense(
                    size, activation="tanh", dtype=self.dtype_policy, name=f"initial_state_{i}"
                )
                bridge.build((None, 2 * size))
                self.bridges.append(bridge)
        if self.output_dense is not None:
            self.output_dense.build((None, self.width))

    def call(self, inputs: tuple[Tensor, Tensor], training: bool | None = None) -> Tensor:
        source, target = inputs
        memory, states = self.encoder(source, return_state=True, training=training)
        x = self.decoder(
            target,
            memory,
            memory_mask=padding_mask(source),
            initial_state=self._initial_state(states),
            training=training,
        )
        return self.logits(x)

    def _initial_state(self, states: list[list[Tensor]]) -> list[list[Tensor]]:
        if not self.bridges:
            return states
        bridged = zip(self.bridges, keras.tree.flatten(states), strict=True)
        mapped = [bridge(state) for bridge, state in bridged]
        return keras.tree.pack_sequence_as(states, mapped)

    def encode(
        self, source: Tensor, max_length: int | None = None, alignments: bool = False
    ) -> dict[str, Any]:
        """The initial state of `step` for source sentences.

        Args:
            source: integers `(B, S)`.
            max_length: positive int L, maximum number of tokens, for `alignments` only.
            alignments: whether to keep the attention weights. `state["alignments"]` is then
                `(B, L, S)`; row `position` has the weights of the token at `position + 1`.
        Returns:
            dict of tensors with the batch as first axis, or lists of such tensors.
        """
        self.build_for_any()
        who = "BahdanauSeq2Seq"
        if _checks.boolean(who, "alignments", alignments) or max_length is not None:
            _checks.positive_int(who, "max_length", max_length)
        source = given_ids(type(self).__name__, "source", source, "(B, S)")
        memory, states = self.encoder(source, return_state=True, training=False)
        mask = padding_mask(source)
        memory, keys = self.decoder.prepare(memory, mask)
        state = {
            "memory": memory,
            "keys": keys,
            "memory_mask": mask,
            "hidden": self._initial_state(states),
        }
        if alignments:
            batch, length, _ = ops.shape(memory)
            state["alignments"] = ops.zeros((batch, max_length, length), memory.dtype)
        return state

    def step(
        self, tokens: Tensor, position: int | Tensor, state: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Logits of the token after `position`: the step function of `tfattn.decoding`.

        A step costs the same at every position. Arguments and results are those of
        `Transformer.step`; of `tokens` only that at `position` is read, since the state represents
        the earlier tokens.
        """
        x, alignments, hidden = self.decoder(
            ops.take(tokens, position, axis=1)[:, None],
            state["memory"],
            memory_mask=state["memory_mask"],
            keys=state["keys"],
            initial_state=state["hidden"],
            return_attention_scores=True,
            return_state=True,
            training=False,
        )
        state = {**state, "hidden": hidden}
        if "alignments" in state:
            # Not with `ops.slice_update`, which TensorFlow compiles again for each number of rows.
            here = ops.arange(ops.shape(state["alignments"])[1], dtype="int32") == position
            state["alignments"] = ops.where(here[:, None], alignments, state["alignments"])
        return self.logits(x)[:, 0], state

    def compute_output_shape(self, input_shape: tuple[Shape, Shape]) -> Shape:
        return (*input_shape[1], self.target_vocabulary_size)
