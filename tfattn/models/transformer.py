"""The Transformer: from token ids to logits of the next token."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape
from tfattn.layers.configs import LayerTemplate, checked_layer
from tfattn.layers.tokens import given_ids, padding_mask
from tfattn.layers.transformer.block import TransformerBlock
from tfattn.models.base import TokenModel
from tfattn.models.stacks import TransformerDecoder, TransformerEncoder, token_embedding


@keras.saving.register_keras_serializable("tfattn")
class Transformer(TokenModel):
    """The encoder–decoder Transformer. The defaults are the paper's base model.

        model.compile(optimizer, MaskedCrossentropy())
        model.fit(batches)                                  # of ((source, target_in), target_out)

    Padding (id 0) is masked everywhere. `target_in` begins with the begin token, and `target_out`
    is the same sentence shifted by one token. See `tfattn.data.translation_batches`.

    Args:
        source_vocabulary_size: positive int, number of source ids, padding included.
        target_vocabulary_size: positive int, the same for the target. Defaults to the source's.
        num_layers: positive int, blocks of the encoder, and of the decoder.
        width, num_heads, hidden_dim, dropout, seed: see `TransformerEncoder`.
        block, positions: see `TransformerEncoder`; encoder and decoder use copies.
        share_embeddings: whether one matrix serves both embeddings and the output projection, as in
            the paper. Source and target must then share one vocabulary.
    Call arguments:
        inputs: (source, target_in), integers `(B, S)` and `(B, T)`.
        training: whether dropout is active.
    Returns:
        Scores before softmax (logits) over the target vocabulary, `(B, T, target_vocabulary_size)`.
    Example:
        >>> model = Transformer(11, 13, num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> source = np.array([[3, 5, 0]])
        >>> tuple(model((source, np.array([[2, 4]]))).shape)
        (1, 2, 13)
        >>> state = model.encode(source, max_length=6)
        >>> search = tfattn.BeamSearch(num_beams=4)
        >>> found = search(model.step, state, batch_size=1, max_length=6)
        >>> tuple(found.tokens.shape)
        (1, 1, 6)

    Source: Vaswani et al. 2017, arXiv:1706.03762. Differs from it in the biases of the attention's
    linear maps, and in an output projection of its own, unless `share_embeddings` is True.
    """

    encoder: TransformerEncoder
    decoder: TransformerDecoder

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        num_layers: int = 6,
        width: int = 512,
        num_heads: int | None = None,
        hidden_dim: int | None = None,
        dropout: float | None = None,
        block: TransformerBlock | None = None,
        positions: keras.layers.Layer | None = None,
        share_embeddings: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = "Transformer"
        self._keep_vocabularies(source_vocabulary_size, target_vocabulary_size, share_embeddings)
        self.width = _checks.positive_int(who, "width", width)
        self._positions = LayerTemplate(checked_layer(who, "positions", positions))
        self.seed = _checks.seed(who, seed)
        shared = None
        if share_embeddings:
            shared = token_embedding(source_vocabulary_size, width, self.dtype_policy)

        def stack(cls: Any, vocabulary_size: int, name: str) -> Any:
            return cls(
                vocabulary_size,
                num_layers=num_layers,
                width=width,
                num_heads=num_heads,
                hidden_dim=hidden_dim,
                dropout=dropout,
                block=block,
                positions=self._positions.copy(),
                embedding=shared,
                **self._part_options(name),
            )

        self.encoder = stack(TransformerEncoder, source_vocabulary_size, "encoder")
        self.decoder = stack(TransformerDecoder, self.target_vocabulary_size, "decoder")
        self.num_layers, self.dropout = self.encoder.num_layers, self.encoder.dropout
        self.num_heads, self.hidden_dim = self.encoder.num_heads, self.encoder.hidden_dim
        self.output_dense = self._make_output(self.target_vocabulary_size, share_embeddings)

    @property
    def block(self) -> TransformerBlock | None:
        """A copy of the block that was passed in, or None."""
        return self.encoder.block

    @property
    def positions(self) -> keras.layers.Layer | None:
        """A copy of the layer that was passed in, or None."""
        return self._positions.layer

    def build(self, input_shape: tuple[Shape, Shape]) -> None:
        source_shape, target_shape = input_shape
        self.encoder.build(source_shape)
        self.decoder.build(target_shape, (*source_shape, self.width))
        if self.output_dense is not None:
            self.output_dense.build((None, self.width))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        source, target = inputs
        memory = self.encoder(source, training=training)
        x = self.decoder(target, memory, memory_mask=padding_mask(source), training=training)
        return self.logits(x)

    @property
    def max_source_length(self) -> int | None:
        """The maximum length of a source; None if there is no limit."""
        return self.encoder.max_length

    @property
    def max_target_length(self) -> int | None:
        """The maximum length of a target; None if there is no limit."""
        return self.decoder.max_length

    def encode(self, source: Any, max_length: int | None = None) -> dict[str, Any]:
        """The initial state of `step` for source sentences.

        Args:
            source: integers `(B, S)`.
            max_length: positive int L, maximum number of positions. The state then has caches for
                keys and values, each a `tfattn.decoding.Past`, and `step` computes each position
                once. Without `max_length`, every `step` computes all positions again.
        Returns:
            dict of tensors with the batch as first axis. `step` returns those that are no `Past` as
            the very same objects.
        """
        if max_length is not None:
            _checks.positive_int("Transformer", "max_length", max_length)
        self.build_for_any()
        source = given_ids(type(self).__name__, "source", source, "(B, S)")
        mask = padding_mask(source)
        memory = self.encoder(source, training=False)
        if max_length is None:
            return {"memory": memory, "memory_mask": mask}
        caches = self.decoder.new_caches(memory, mask, max_length)
        return {"caches": caches, "memory_mask": mask}

    def step(self, tokens: Any, position: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Logits of the token after `position`: the step function of `tfattn.decoding`.

        Args:
            tokens: integers `(B, L)`, the target so far; tokens after `position` are ignored.
            position: scalar integer. With caches, `step` must have run for all positions before it.
            state: from `encode` or the previous step.
        Returns:
            logits `(B, V)`, and the state.
        """
        if "caches" not in state:
            x = self.decoder(
                tokens, state["memory"], memory_mask=state["memory_mask"], training=False
            )
            return self.logits(ops.take(x, position, axis=1)), state
        x, caches = self.decoder.step(tokens, position, state["caches"], state["memory_mask"])
        return self.logits(x[:, 0]), {**state, "caches": caches}

    def compute_output_shape(self, input_shape: tuple[Shape, Shape]) -> Shape:
        return (*input_shape[1], self.target_vocabulary_size)
