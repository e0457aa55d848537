"""The Transformer's two halves: token ids to one vector a token."""

import keras
from keras import ops

from tfattn import _checks
from tfattn._past import Past
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.attention.single_head import checked_score
from tfattn.layers.dropout import Dropout
from tfattn.layers.parts import (
    copy_of,
    deserialized,
    padding_mask,
    part_seed,
    serialized,
    without_broken_padding,
)
from tfattn.layers.positions.added import SinusoidalPositionalEncoding
from tfattn.layers.transformer.decoder_block import TransformerDecoderBlock
from tfattn.layers.transformer.encoder_block import TransformerEncoderBlock
from tfattn.layers.transformer.norm import LayerNormalization

__all__ = ["TransformerDecoder", "TransformerEncoder"]


class _Stack(keras.layers.Layer):
    """Embedding, positions, and blocks one above the other: what encoder and decoder share."""

    block_class = None

    def __init__(
        self,
        vocabulary_size,
        num_layers=6,
        width=512,
        num_heads=8,
        hidden_dim=2048,
        dropout=0.1,
        attention_dropout=0.0,
        norm_first=False,
        score=None,
        positions=None,
        embedding=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        who = type(self).__name__
        self.vocabulary_size = _checks.positive_int(who, "vocabulary_size", vocabulary_size)
        self.num_layers = _checks.positive_int(who, "num_layers", num_layers)
        self.width = _checks.positive_int(who, "width", width)
        self.num_heads = _checks.positive_int(who, "num_heads", num_heads)
        _checks.divides(who, "num_heads", self.num_heads, "width", self.width)
        self.hidden_dim = _checks.positive_int(who, "hidden_dim", hidden_dim)
        self.dropout = _checks.probability(who, "dropout", dropout)
        self.attention_dropout = _checks.probability(who, "attention_dropout", attention_dropout)
        self.norm_first = _checks.boolean(who, "norm_first", norm_first)
        self.score = checked_score(who, score)
        self.seed = seed
        self.embedding = checked_layer(who, "embedding", embedding)
        if embedding is None:
            self.embedding = token_embedding(self.vocabulary_size, self.width, self.dtype_policy)
        elif getattr(embedding, "output_dim", self.width) != self.width:
            _checks.fail(
                who, "embedding", f"have `width`={self.width} features", embedding.output_dim
            )
        self.positions = checked_layer(who, "positions", positions)
        if positions is None:
            self.positions = SinusoidalPositionalEncoding(
                input_scale=self.width**0.5, dtype=self.dtype_policy, name="positions"
            )
        self.input_dropout = Dropout(
            self.dropout,
            seed=part_seed(seed, "input_dropout"),
            dtype=self.dtype_policy,
            name="input_dropout",
        )
        attention = None
        if score is not None:
            attention = MultiHeadAttention(
                num_heads=self.num_heads,
                key_dim=self.width // self.num_heads,
                dropout=self.attention_dropout,
                score=copy_of(score),
                kernel_initializer=keras.initializers.VarianceScaling(0.5, "fan_avg", "uniform"),
                output_kernel_initializer="glorot_uniform",
            )
        self.blocks = [
            self.block_class(
                num_heads=self.num_heads,
                hidden_dim=self.hidden_dim,
                dropout=self.dropout,
                attention_dropout=self.attention_dropout,
                norm_first=self.norm_first,
                attention=attention,
                seed=part_seed(seed, f"block_{i}"),
                dtype=self.dtype_policy,
                name=f"block_{i}",
            )
            for i in range(self.num_layers)
        ]
        # Under pre-norm nothing normalises the sum that leaves the last block.
        self.final_norm = None
        if self.norm_first:
            self.final_norm = LayerNormalization(
                epsilon=1e-5, dtype=self.dtype_policy, name="final_norm"
            )

    def build_parts(self, ids_shape, *other_shapes):
        shape = (*ids_shape, self.width)
        if not self.embedding.built:
            self.embedding.build(ids_shape)
        self.positions.build(shape)
        for block in self.blocks:
            block.build(shape, *other_shapes)
        if self.final_norm is not None:
            self.final_norm.build(shape)

    def embed(self, ids, training, **start):
        x = self.positions(self.embedding(ids), **start)  # (B, T, D), the ids' mask on it
        return self.input_dropout(x, training=training)

    @property
    def max_length(self):
        """Most tokens that the positions reach, or None where they reach any."""
        return getattr(self.positions, "max_length", None)

    def finish(self, x):
        return x if self.final_norm is None else self.final_norm(x)

    def compute_mask(self, ids, previous_mask=None):
        return padding_mask(ids)

    def get_config(self):
        names = (
            "vocabulary_size",
            "num_layers",
            "width",
            "num_heads",
            "hidden_dim",
            "dropout",
            "attention_dropout",
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in (*names, "norm_first", "seed")},
            "score": serialized(self.score),
            "positions": serialized(self.positions),
            "embedding": serialized(self.embedding),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "score", "positions", "embedding"))


@keras.saving.register_keras_serializable("tfattn")
class TransformerEncoder(_Stack):
    """Token ids to one vector a token: embedding, positions, and a stack of encoder blocks.

        x = dropout(embedding(ids) · √width + positions)
        x = block_N(… block_1(x))

    Args:
        vocabulary_size: positive int, number of ids, padding included.
        num_layers: positive int N, blocks.
        width: positive int D, features of a token.
        num_heads: positive int that divides `width`.
        hidden_dim: positive int, inner width of the position-wise networks.
        dropout: probability in [0, 1) on the embeddings and on each sublayer's output.
        attention_dropout: the same on attention weights.
        norm_first: pre-norm, with the final norm that it needs, instead of the paper's post-norm.
        score: a score layer that each attention copies; the scaled dot product where it is not
            given.
        positions: a positional encoding layer, which scales the embeddings too:
            `LearnedPositionalEncoding(max_length, input_scale=width**0.5)`, say; sinusoids with
            that scale where it is not given.
        embedding: a `keras.layers.Embedding` to share inside of one model class, as `Transformer`
            does (Keras cannot load a functional model in which two layers share one); one of its
            own where it is not given.
        seed: int, for the dropouts.
    Call arguments:
        ids: integers `(B, T)`; id 0 is padding, and no attention looks at it.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the mask of the ids.
    Raises:
        ValueError: a size is no positive int; `num_heads` does not divide `width`.
    Example:
        >>> encoder = TransformerEncoder(vocabulary_size=11, num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> encoder(np.array([[3, 5, 0]])).shape
        TensorShape([1, 3, 8])

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1 and 3.4; the defaults are its base
    model's.
    """

    block_class = TransformerEncoderBlock

    def build(self, ids_shape):
        self.build_parts(ids_shape)

    def call(self, ids, training=None):
        mask = padding_mask(ids)
        x = self.embed(ids, training)
        for block in self.blocks:
            x = block(x, mask=mask, training=training)
        return self.finish(x)

    def compute_output_shape(self, ids_shape):
        return (*ids_shape, self.width)


@keras.saving.register_keras_serializable("tfattn")
class TransformerDecoder(_Stack):
    """Target ids and the encoder's output to one vector a target token; no position looks at a
    later one.

    Args: those of `TransformerEncoder`.
    Call arguments:
        ids: integers `(B, T)`, the target so far; id 0 is padding.
        memory: float `(B, S, Dm)`, the encoder's output.
        memory_mask: bool `(B, S)`, True = real token; arrives by itself where Keras carries it on
            `memory`.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the mask of the ids.
    Raises:
        ValueError: a size is no positive int; `num_heads` does not divide `width`.
    Example:
        >>> decoder = TransformerDecoder(vocabulary_size=11, num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> decoder(np.array([[2, 5, 0]]), np.ones((1, 4, 8), "float32")).shape
        TensorShape([1, 3, 8])

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1 and 3.4.
    """

    block_class = TransformerDecoderBlock

    def build(self, ids_shape, memory_shape):
        self.build_parts(ids_shape, memory_shape)

    def call(self, ids, memory, memory_mask=None, training=None):
        mask = padding_mask(ids)
        x = self.embed(ids, training)
        for block in self.blocks:
            x = block(x, memory, inputs_mask=mask, memory_mask=memory_mask, training=training)
        return self.finish(x)

    def new_caches(self, memory, memory_mask, max_length):
        """What `step` keeps between the positions: a cache for each block.

        Args:
            memory: float `(B, S, Dm)`.   memory_mask: bool `(B, S)`.
            max_length: positive int L, positions that there is room for.
        Returns:
            a list of the blocks' caches, see `TransformerDecoderBlock.new_cache`, with keys and
            values as a `Past`.
        Raises:
            ValueError: `max_length` is beyond the learned positions.
        """
        if self.max_length is not None and max_length > self.max_length:
            expected = f"be at most {self.max_length}, which the positions reach"
            _checks.fail("TransformerDecoder", "max_length", expected, max_length)
        # nothing broken is left under the mask
        memory = ops.where(memory_mask[..., None], memory, 0.0)
        return [_as_past(block.new_cache(memory, max_length)) for block in self.blocks]

    def step(self, ids, position, caches, memory_mask):
        """The call for one position, over the cached keys and values of those before.

        Args:
            ids: integers `(B, T)`, the target up to `position` and anything after it; T is at most
                `max_length`.
            position: scalar integer.
            caches: of `new_caches`, or of the step before; a `Past` may have only the positions up
                to `position`.
            memory_mask: bool `(B, S)`.
        Returns:
            `(B, 1, D)`, and the caches.
        Raises:
            ValueError: `ids` is longer than the caches.
        """
        position = ops.cast(position, "int32")
        caches = [_as_tensors(cache) for cache in caches]
        known, given = caches[0]["keys"].shape[2], ids.shape[1]
        at = ops.arange(ops.shape(caches[0]["keys"])[2], dtype="int32")
        if None not in (known, given) and given > known:
            expected = f"have at most the `max_length`={known} positions of its caches"
            _checks.fail("TransformerDecoder", "ids", expected, tuple(ids.shape))
        if known is None or given != known:
            # Cut, or repeats the last one, which is hidden like all after `position`.
            ids = ops.take(ids, ops.minimum(at, ops.shape(ids)[1] - 1), axis=1)  # (B, L)
        real = padding_mask(ids)
        bias = _hiding(ops.logical_and(real, at <= position))
        memory_bias = _hiding(memory_mask)
        here = ops.reshape(position, (1,))
        # (B, 1, D)
        x = self.embed(ops.take(ids, here, axis=1), training=False, start_index=position)
        x = without_broken_padding(x, ops.take(real, here, axis=1))
        for i, block in enumerate(self.blocks):
            x, cache = block.step(x, position, caches[i], bias, memory_bias)
            caches[i] = _as_past(cache)
        return self.finish(x), caches

    def compute_output_shape(self, ids_shape, memory_shape):
        return (*ids_shape, self.width)


@keras.saving.register_keras_serializable("tfattn")
class TokenNormal(keras.initializers.RandomNormal):
    """Normal numbers for the tokens, zeros for id 0, the padding: as an answer, padding begins with
    a score of 0.
    """

    def __call__(self, shape, dtype=None):
        table = super().__call__(shape, dtype)
        return ops.where(ops.arange(shape[0])[:, None] == 0, ops.zeros_like(table), table)


def token_embedding(vocabulary_size, width, dtype):
    """Vectors of length about 1, which the factor √width brings to the size of the sinusoids."""
    return keras.layers.Embedding(
        vocabulary_size,
        width,
        embeddings_initializer=TokenNormal(stddev=width**-0.5),
        mask_zero=True,
        dtype=dtype,
        name="embedding",
    )


def checked_layer(who, argument, layer):
    if layer is not None and not isinstance(layer, keras.layers.Layer):
        _checks.fail(who, argument, "be a layer, or None", layer)
    return layer


def _as_past(cache):
    return {**cache, **{name: Past(cache[name]) for name in ("keys", "values")}}


def _as_tensors(cache):
    return {name: part.tensor if isinstance(part, Past) else part for name, part in cache.items()}


def _hiding(mask):
    """The bias that hides keys: `(B, 1, S)`, 0 where the mask `(B, S)` is True and −inf elsewhere."""
    return ops.where(mask, 0.0, -float("inf"))[:, None]
