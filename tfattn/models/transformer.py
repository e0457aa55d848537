"""The Transformer: token ids in, scores over the next token out."""

import keras
from keras import ops

from tfattn import _checks
from tfattn.core import products
from tfattn.layers.attention import checked_score
from tfattn.layers.decoder_block import TransformerDecoderBlock
from tfattn.layers.encoder_block import TransformerEncoderBlock
from tfattn.layers.parts import copy_of, deserialized, part_seed, serialized
from tfattn.layers.positional import SinusoidalPositionalEncoding

__all__ = ["Transformer", "TransformerDecoder", "TransformerEncoder"]


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
        self.embedding = _checked_layer(who, "embedding", embedding)
        if embedding is None:
            self.embedding = token_embedding(self.vocabulary_size, self.width, self.dtype_policy)
        elif getattr(embedding, "output_dim", self.width) != self.width:
            _checks.fail(who, "embedding", f"have `width`={self.width} features", embedding.output_dim)
        self.positions = _checked_layer(who, "positions", positions)
        if positions is None:
            self.positions = SinusoidalPositionalEncoding(
                input_scale=self.width**0.5, dtype=self.dtype_policy, name="positions"
            )
        self.input_dropout = keras.layers.Dropout(
            self.dropout, seed=part_seed(seed, "input_dropout"), dtype=self.dtype_policy, name="input_dropout"
        )
        self.blocks = [
            self.block_class(
                num_heads=self.num_heads,
                hidden_dim=self.hidden_dim,
                dropout=self.dropout,
                attention_dropout=self.attention_dropout,
                norm_first=self.norm_first,
                score=score,
                seed=part_seed(seed, f"block_{i}"),
                dtype=self.dtype_policy,
                name=f"block_{i}",
            )
            for i in range(self.num_layers)
        ]
        # Under pre-norm nothing normalises the sum that leaves the last block.
        self.final_norm = None
        if self.norm_first:
            self.final_norm = keras.layers.LayerNormalization(epsilon=1e-5, dtype=self.dtype_policy, name="final_norm")

    def build_parts(self, ids_shape, *other_shapes):
        shape = (*ids_shape, self.width)
        if not self.embedding.built:
            self.embedding.build(ids_shape)
        self.positions.build(shape)
        for block in self.blocks:
            block.build(shape, *other_shapes)
        if self.final_norm is not None:
            self.final_norm.build(shape)

    def embed(self, ids, training):
        x = self.positions(self.embedding(ids))  # (B, T, D), the ids' mask on it
        return self.input_dropout(x, training=training)

    def finish(self, x):
        return x if self.final_norm is None else self.final_norm(x)

    def compute_mask(self, ids, previous_mask=None):
        return padding_mask(ids)

    def get_config(self):
        names = ("vocabulary_size", "num_layers", "width", "num_heads", "hidden_dim", "dropout", "attention_dropout")
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
        score: a score layer that each attention copies; the scaled dot product where it is not given.
        positions: a positional encoding layer, which scales the embeddings too: `LearnedPositionalEncoding(max_length,
            input_scale=width**0.5)`, say; sinusoids with that scale where it is not given.
        embedding: a `keras.layers.Embedding` to share inside of one model class, as `Transformer` does (Keras cannot load
            a functional model in which two layers share one); one of its own where it is not given.
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

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1 and 3.4; the defaults are its base model's.
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
    """Target ids and the encoder's output to one vector a target token; no position looks at a later one.

    Args: those of `TransformerEncoder`.
    Call arguments:
        ids: integers `(B, T)`, the target so far; id 0 is padding.
        memory: float `(B, S, Dm)`, the encoder's output.
        memory_mask: bool `(B, S)`, True = real token; arrives by itself where Keras carries it on `memory`.
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

    def compute_output_shape(self, ids_shape, memory_shape):
        return (*ids_shape, self.width)


@keras.saving.register_keras_serializable("tfattn")
class Transformer(keras.Model):
    """The encoder–decoder Transformer, with the paper's base model as defaults.

        model.compile(optimizer, MaskedCrossentropy()); model.fit(batches)      batches of ((source, target_in), target_out)

    Padding (id 0) is masked in every attention. Target position t sees the target up to t: `target_in` begins with the
    begin token, and `target_out` is the same sentence one token further.

    Args:
        source_vocabulary_size: positive int, number of source ids, padding included.
        target_vocabulary_size: the same for the target; the source's where it is not given.
        num_layers: positive int, blocks of the encoder, and of the decoder.
        width, num_heads, hidden_dim, dropout, attention_dropout, norm_first, score, seed: see `TransformerEncoder`.
        positions: likewise; encoder and decoder each have a copy.
        share_embeddings: whether one matrix serves both embeddings and the output projection, as in the paper; source
            and target then share one vocabulary.
    Call arguments:
        inputs: (source, target_in), integers `(B, S)` and `(B, T)`.
        training: whether dropout is active.
    Returns:
        Scores before softmax (logits) over the target vocabulary, `(B, T, target_vocabulary_size)`.
    Raises:
        ValueError: a size is no positive int; `num_heads` does not divide `width`; shared embeddings with vocabularies
            of two sizes.
    Example:
        >>> model = Transformer(11, 13, num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> model((np.array([[3, 5, 0]]), np.array([[2, 4]]))).shape
        TensorShape([1, 2, 13])

    Source: Vaswani et al. 2017, arXiv:1706.03762. Embeddings are normal with standard deviation 1/√width. Differs from it
    in the biases of the attention's linear maps, and, unless the embeddings are shared, in an output map of its own.
    """

    def __init__(
        self,
        source_vocabulary_size,
        target_vocabulary_size=None,
        num_layers=6,
        width=512,
        num_heads=8,
        hidden_dim=2048,
        dropout=0.1,
        attention_dropout=0.0,
        norm_first=False,
        share_embeddings=False,
        score=None,
        positions=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        _checks.positive_int("Transformer", "source_vocabulary_size", source_vocabulary_size)
        if target_vocabulary_size is None:
            target_vocabulary_size = source_vocabulary_size
        sizes = {"target_vocabulary_size": target_vocabulary_size, "num_layers": num_layers, "width": width}
        for name, size in {**sizes, "num_heads": num_heads, "hidden_dim": hidden_dim}.items():
            _checks.positive_int("Transformer", name, size)
        self.source_vocabulary_size = source_vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.num_layers = num_layers
        self.width = width
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.norm_first = norm_first
        self.share_embeddings = _checks.boolean("Transformer", "share_embeddings", share_embeddings)
        self.score = checked_score("Transformer", score)
        self.positions = _checked_layer("Transformer", "positions", positions)
        self.seed = seed
        shared = None
        if share_embeddings:
            if source_vocabulary_size != target_vocabulary_size:
                expected = f"be `source_vocabulary_size`={source_vocabulary_size} where embeddings are shared"
                _checks.fail("Transformer", "target_vocabulary_size", expected, target_vocabulary_size)
            shared = token_embedding(source_vocabulary_size, width, self.dtype_policy)
        options = {
            "num_layers": num_layers,
            "width": width,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "norm_first": norm_first,
            "score": score,
            "embedding": shared,
            "dtype": self.dtype_policy,
        }

        def stack(cls, vocabulary_size, name):
            own = {"positions": copy_of(positions), "seed": part_seed(seed, name), "name": name}
            return cls(vocabulary_size, **own, **options)

        self.encoder = stack(TransformerEncoder, source_vocabulary_size, "encoder")
        self.decoder = stack(TransformerDecoder, target_vocabulary_size, "decoder")
        self.output_dense = None
        if not share_embeddings:
            self.output_dense = keras.layers.Dense(target_vocabulary_size, dtype=self.dtype_policy, name="output")

    def build(self, input_shape):
        source_shape, target_shape = input_shape
        self.encoder.build(source_shape)
        self.decoder.build(target_shape, (*source_shape, self.width))
        if self.output_dense is not None:
            self.output_dense.build((None, self.width))

    def call(self, inputs, training=None):
        source, target = inputs
        memory = self.encoder(source, training=training)
        x = self.decoder(target, memory, memory_mask=padding_mask(source), training=training)
        return self.logits(x)

    def logits(self, x):
        """Scores over the vocabulary from the decoder's vectors: `(..., width)` to `(..., vocabulary)`."""
        if self.output_dense is None:
            matrix = ops.transpose(ops.cast(self.decoder.embedding.embeddings, x.dtype))  # (D, V)
            return products.matmul_shared(x, matrix)
        flat = self.output_dense(ops.reshape(x, (-1, self.width)))  # (B·T, V)
        return ops.reshape(flat, (*ops.shape(x)[:-1], self.target_vocabulary_size))

    def encode(self, source):
        """What decoding needs of the source sentences: the state of `step`. `source` is integers `(B, S)`."""
        mask = padding_mask(source)
        return {"memory": self.encoder(source, training=False), "memory_mask": mask}

    def step(self, tokens, position, state):
        """Scores of the token after `position`, the contract of `tfattn.decoding`.

        Args:
            tokens: integers `(B, L)`, the target so far; what lies after `position` is not looked at.
            position: scalar integer.
            state: of `encode`.
        Returns:
            logits `(B, V)`, and the state.
        """
        x = self.decoder(tokens, state["memory"], memory_mask=state["memory_mask"], training=False)
        return self.logits(ops.take(x, position, axis=1)), state

    def compute_output_shape(self, input_shape):
        return (*input_shape[1], self.target_vocabulary_size)

    def get_config(self):
        names = ("source_vocabulary_size", "target_vocabulary_size", "num_layers", "width", "num_heads", "hidden_dim")
        options = ("dropout", "attention_dropout", "norm_first", "share_embeddings", "seed")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in (*names, *options)},
            "score": serialized(self.score),
            "positions": serialized(self.positions),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "score", "positions"))


def token_embedding(vocabulary_size, width, dtype):
    """Vectors of length about 1, which the factor √width brings to the size of the sinusoids."""
    return keras.layers.Embedding(
        vocabulary_size,
        width,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
        mask_zero=True,
        dtype=dtype,
        name="embedding",
    )


def _checked_layer(who, argument, layer):
    if layer is not None and not isinstance(layer, keras.layers.Layer):
        _checks.fail(who, argument, "be a layer, or None", layer)
    return layer


def padding_mask(ids):
    """True where a token is real: `(B, T)` of ids `(B, T)`."""
    return ops.not_equal(ids, 0)
