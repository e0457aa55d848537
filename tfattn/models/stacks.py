"""Encoder and decoder of a Transformer: from token ids to one vector per token."""

import inspect
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._shared import Past
from tfattn._types import Shape, Size, Tensor
from tfattn.core.guard import zero_hidden, zero_nonfinite_padding
from tfattn.layers.base import CheckedCall
from tfattn.layers.configs import (
    LayerTemplate,
    build_part,
    checked_layer,
    copy_of,
    unshared_config,
)
from tfattn.layers.dropout import Dropout
from tfattn.layers.positions.added import SinusoidalPositionalEncoding
from tfattn.layers.positions.base import HeadPositions
from tfattn.layers.tokens import checked_embedding, embedded, mask_of_tokens, padding_mask
from tfattn.layers.transformer.block import TransformerBlock, TransformerEncoderBlock
from tfattn.layers.transformer.decoder_block import TransformerDecoderBlock


class _Stack(CheckedCall, keras.layers.Layer):
    """Base of encoder and decoder: embedding, positions and a stack of blocks."""

    takes_ids = True
    _block_class: type[TransformerBlock]
    embedding: keras.layers.Layer
    positions: keras.layers.Layer
    blocks: list[Any]
    final_norm: Any

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        width: int = 512,
        num_heads: int | None = None,
        hidden_dim: int | None = None,
        dropout: float | None = None,
        block: TransformerBlock | None = None,
        positions: keras.layers.Layer | None = None,
        embedding: keras.layers.Layer | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = type(self).__name__
        self.vocabulary_size = _checks.positive_int(who, "vocabulary_size", vocabulary_size)
        self.num_layers = _checks.positive_int(who, "num_layers", num_layers)
        self.width = _checks.positive_int(who, "width", width)
        self.seed = _checks.seed(who, seed)
        given = {"num_heads": num_heads, "hidden_dim": hidden_dim, "dropout": dropout}
        template = self._template(who, block, **given)
        self.num_heads, self.hidden_dim = template.num_heads, template.hidden_dim
        self.dropout = template.dropout
        self._block = LayerTemplate(block)
        self.embedding = checked_embedding(who, embedding, self.width)
        if embedding is None:
            self.embedding = token_embedding(self.vocabulary_size, self.width, self.dtype_policy)
        self.positions = checked_layer(who, "positions", positions)
        if isinstance(positions, HeadPositions):
            expected = (
                "be a positional encoding of the inputs; for positions within attention pass "
                "`block=...(attention=MultiHeadAttention(positions=...))`"
            )
            _checks.fail(who, "positions", expected, positions)
        if positions is None:
            self.positions = SinusoidalPositionalEncoding(
                input_scale=self.width**0.5, dtype=self.dtype_policy, name="positions"
            )
        self.input_dropout = Dropout(self.dropout, **self._part_options("input_dropout"))
        self.blocks = [
            copy_of(template, **self._part_options(f"block_{i}")) for i in range(self.num_layers)
        ]
        # The output of a pre-norm block is a sum that is not normalized.
        self.final_norm = None
        if template.norm_first:
            self.final_norm = template._make_norm("final_norm", self.dtype_policy)
            self.final_norm.supports_masking = True  # it normalizes each token by itself

    def _template(self, who: str, block: Any, **given: Any) -> TransformerBlock:
        """The block to copy. Explicit sizes must match those of a block that was passed in."""
        if block is None:
            defaults = {"num_heads": 8, "hidden_dim": 2048, "dropout": 0.1}
            own = {name: value for name, value in given.items() if value is not None}
            template = self._block_class(**{**defaults, **own}, name="block")
            _checks.divides(who, "num_heads", template.num_heads, "width", self.width)
            return template
        if not isinstance(block, TransformerBlock):
            expected = "be a block, such as tfattn.TransformerEncoderBlock(8, 2048), or None"
            _checks.fail(who, "block", expected, block)
        for name, value in given.items():
            own = getattr(block, name)
            if value not in (None, own):
                _checks.fail(who, name, f"match the value of `block`, {own}, or be omitted", value)
        if isinstance(block, self._block_class):
            return block
        return self._block_class.from_config(unshared_config(block))

    @property
    def block(self) -> TransformerBlock | None:
        """A copy of the block that was passed in, or None."""
        return self._block.layer

    def _build_parts(self, ids_shape: Shape, memory_shape: Shape | None = None) -> None:
        shape = (*ids_shape, self.width)
        if not self.embedding.built:
            self.embedding.build(ids_shape)
        build_part(self, self.positions, shape)
        for block in self.blocks:
            block.build(shape) if memory_shape is None else block.build(shape, memory_shape)
        if self.final_norm is not None:
            self.final_norm.build(shape)

    def embed(self, ids: Tensor, training: bool | None, start_index: Size = 0) -> Tensor:
        takes_start = "start_index" in inspect.signature(self.positions.call).parameters
        start = {"start_index": start_index} if takes_start else {}
        x = self.positions(embedded(type(self).__name__, self.embedding, ids), **start)  # (B, T, D)
        return self.input_dropout(x, training=training)

    @property
    def max_length(self) -> int | None:
        """The maximum number of positions; None if there is no limit."""
        return getattr(self.positions, "max_length", None)

    def finish(self, x: Tensor) -> Tensor:
        return x if self.final_norm is None else self.final_norm(x)

    def compute_mask(self, ids: Tensor, previous_mask: Tensor | None = None) -> Tensor:
        return padding_mask(ids)


@keras.saving.register_keras_serializable("tfattn")
class TransformerEncoder(_Stack):
    """A Transformer's encoder: from token ids to one vector per token.

        x = dropout(embedding(ids) · √width + positions)
        x = block_N(… block_1(x))

    Args:
        vocabulary_size: positive int, number of ids, padding included.
        num_layers: positive int N, blocks.
        width: positive int D, features of a token.
        num_heads, hidden_dim: as for the block. Default to the block's, or to 8 and 2048.
        dropout: probability in [0, 1) of dropping a feature of the embeddings or of a sublayer's
            output in training. Defaults to the block's, or to 0.1.
        block: a block of either class, which is copied for each layer. Defaults to the paper's
            post-norm block. A stack of pre-norm blocks ends with one more norm.
        positions: a positional encoding layer, such as
            `LearnedPositionalEncoding(max_length, input_scale=width**0.5)`. Defaults to sinusoids
            with that scale. If the attention has positions, `keras.layers.Identity()`.
        embedding: an embedding layer, which layers of a subclassed model may share. Defaults to a
            new one.
        seed: int, for the dropouts.
    Call arguments:
        ids: integers `(B, T)`; id 0 is padding, which is hidden in attention.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the mask of the ids.
    Example:
        >>> block = TransformerEncoderBlock(num_heads=2, hidden_dim=16, norm_first=True)
        >>> encoder = TransformerEncoder(vocabulary_size=11, num_layers=3, width=8, block=block)
        >>> tuple(encoder(np.array([[3, 5, 0]])).shape)
        (1, 3, 8)

    Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.1 and 3.4; the defaults are its base
    model's.
    """

    call_axes = {"ids": "BT"}
    _block_class = TransformerEncoderBlock

    def build(self, ids_shape: Shape) -> None:
        self._build_parts(ids_shape)

    def call(self, ids: Any, training: bool | None = None) -> Any:
        mask = padding_mask(ids)
        x = self.embed(ids, training)
        for block in self.blocks:
            x = block(x, mask=mask, training=training)
        return self.finish(x)

    def compute_output_shape(self, ids_shape: Shape) -> Shape:
        return (*ids_shape, self.width)


@keras.saving.register_keras_serializable("tfattn")
class TransformerDecoder(_Stack):
    """A Transformer's decoder: from target ids and the encoder's output to one vector per token.

    A position sees the target up to itself, and the whole memory. Without a memory, the blocks have
    causal self-attention only, as in a language model.

    Args: those of `TransformerEncoder`.
    Call arguments:
        ids: integers `(B, T)`, the target so far; id 0 is padding.
        memory: float `(B, S, Dm)`, the encoder's output; in every call or in none.
        memory_mask: bool `(B, S)`, True = real token; the implicit mask of `memory`.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the mask of the ids.
    Example:
        >>> sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16}
        >>> decoder = TransformerDecoder(vocabulary_size=11, **sizes)
        >>> tuple(decoder(ids=np.array([[2, 5, 0]]), memory=np.ones((1, 4, 8), "float32")).shape)
        (1, 3, 8)

    Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.1 and 3.4.
    """

    call_axes = {"ids": "BT", "memory": "BSE", "memory_mask": "BS"}
    _block_class = TransformerDecoderBlock

    def build(self, ids_shape: Shape, memory_shape: Shape | None = None) -> None:
        self._build_parts(ids_shape, memory_shape)

    def call(
        self,
        ids: Any,
        memory: Any = None,
        memory_mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        mask, memory_mask = padding_mask(ids), mask_of_tokens(memory, memory_mask)
        x = self.embed(ids, training)
        for block in self.blocks:
            x = block(x, memory, inputs_mask=mask, memory_mask=memory_mask, training=training)
        return self.finish(x)

    def new_caches(
        self, memory: Any, memory_mask: Any, max_length: int, batch_size: Any = None
    ) -> list[dict[str, Any]]:
        """The caches of `step`, one per block, as of `TransformerDecoderBlock.new_cache`, with keys
        and values as a `Past` of `max_length` positions; without a memory, `batch_size` is B.
        """
        if self.max_length is not None and max_length > self.max_length:
            expected = f"be at most {self.max_length}, the number of positions"
            _checks.fail("TransformerDecoder", "max_length", expected, max_length)
        if memory_mask is not None:
            memory = zero_hidden(memory, memory_mask)
        return [
            _with_past(block.new_cache(memory, max_length, batch_size)) for block in self.blocks
        ]

    def step(
        self,
        ids: Any,
        position: Any,
        caches: list[dict[str, Any]],
        memory_mask: Any = None,
    ) -> tuple[Any, list[dict[str, Any]]]:
        """The call for one position: `(B, 1, D)`, and the caches, in which a `Past` may have only
        the positions up to `position`.
        """
        position = ops.cast(position, "int32")
        caches = [_with_tensors(cache) for cache in caches]
        max_length, length = caches[0]["keys"].shape[2], ids.shape[1]
        indices = ops.arange(ops.shape(caches[0]["keys"])[2], dtype="int32")
        if None not in (max_length, length) and length > max_length:
            expected = f"have at most the `max_length`={max_length} positions of the caches"
            _checks.fail("TransformerDecoder", "ids", expected, tuple(ids.shape))
        if max_length is None or length != max_length:
            # Cut, or padded with the last id, which is hidden like all ids after `position`.
            ids = ops.take(ids, ops.minimum(indices, ops.shape(ids)[1] - 1), axis=1)  # (B, L)
        real = padding_mask(ids)
        bias = _hiding_bias(ops.logical_and(real, indices <= position))
        memory_bias = None if memory_mask is None else _hiding_bias(memory_mask)
        here = ops.reshape(position, (1,))
        # (B, 1, D)
        x = self.embed(ops.take(ids, here, axis=1), training=False, start_index=position)
        x = zero_nonfinite_padding(x, ops.take(real, here, axis=1))
        for i, block in enumerate(self.blocks):
            x, cache = block.step(x, position, caches[i], bias, memory_bias)
            caches[i] = _with_past(cache)
        return self.finish(x), caches

    def compute_output_shape(self, ids_shape: Shape, memory_shape: Shape | None = None) -> Shape:
        return (*ids_shape, self.width)


@keras.saving.register_keras_serializable("tfattn")
class TokenNormal(keras.initializers.RandomNormal):
    """Normal vectors for tokens, zeros for padding (id 0), whose initial logit is then 0."""

    def __call__(self, shape: Shape, dtype: Any = None) -> Tensor:
        table = super().__call__(shape, dtype)
        return ops.where(ops.arange(shape[0])[:, None] == 0, ops.zeros_like(table), table)


def token_embedding(
    vocabulary_size: int, width: int, dtype: str | keras.DTypePolicy
) -> keras.layers.Embedding:
    """Vectors of norm about 1, later scaled by √width; sinusoids have the norm √(width/2)."""
    return keras.layers.Embedding(
        vocabulary_size,
        width,
        embeddings_initializer=TokenNormal(stddev=width**-0.5),
        mask_zero=True,
        dtype=dtype,
        name="embedding",
    )


def _with_past(cache: dict[str, Any]) -> dict[str, Any]:
    return {**cache, **{name: Past(cache[name]) for name in ("keys", "values")}}


def _with_tensors(cache: dict[str, Any]) -> dict[str, Tensor]:
    return {name: part.tensor if isinstance(part, Past) else part for name, part in cache.items()}


def _hiding_bias(mask: Tensor) -> Tensor:
    """A bias `(B, 1, S)` that hides keys: 0 where the mask `(B, S)` is True, −inf elsewhere."""
    return ops.where(mask, 0.0, -float("inf"))[:, None]
