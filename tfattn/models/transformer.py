"""The Transformer: token ids in, scores over the next token out."""

import keras
from keras import ops

from tfattn import _checks
from tfattn.layers.attention.single_head import checked_score
from tfattn.layers.parts import copy_of, deserialized, padding_mask, part_seed, serialized
from tfattn.models import output
from tfattn.models.base import TranslationModel
from tfattn.models.stacks import (
    TransformerDecoder,
    TransformerEncoder,
    checked_layer,
    token_embedding,
)

__all__ = ["Transformer", "TransformerDecoder", "TransformerEncoder"]


@keras.saving.register_keras_serializable("tfattn")
class Transformer(TranslationModel):
    """The encoder–decoder Transformer, with the paper's base model as defaults.

        model.compile(optimizer, MaskedCrossentropy()); model.fit(batches)      batches of ((source, target_in), target_out)

    Padding (id 0) is masked in every attention. Target position t sees the target up to t:
    `target_in` begins with the begin token, and `target_out` is the same sentence one token
    further.

    Args:
        source_vocabulary_size: positive int, number of source ids, padding included.
        target_vocabulary_size: the same for the target; the source's where it is not given.
        num_layers: positive int, blocks of the encoder, and of the decoder.
        width, num_heads, hidden_dim, dropout, attention_dropout, norm_first, score, seed: see
            `TransformerEncoder`.
        positions: likewise; encoder and decoder each have a copy.
        share_embeddings: whether one matrix serves both embeddings and the output projection, as in
            the paper; source and target then share one vocabulary.
    Call arguments:
        inputs: (source, target_in), integers `(B, S)` and `(B, T)`.
        training: whether dropout is active.
    Returns:
        Scores before softmax (logits) over the target vocabulary, `(B, T, target_vocabulary_size)`.
    Raises:
        ValueError: a size is no positive int; `num_heads` does not divide `width`; shared
            embeddings with vocabularies of two sizes.
    Example:
        >>> model = Transformer(11, 13, num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> model((np.array([[3, 5, 0]]), np.array([[2, 4]]))).shape
        TensorShape([1, 2, 13])

    Source: Vaswani et al. 2017, arXiv:1706.03762. Embeddings are normal with standard deviation
    1/√width. Differs from it in the biases of the attention's linear maps, and, unless the
    embeddings are shared, in an output map of its own.
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
        sizes = {
            "target_vocabulary_size": target_vocabulary_size,
            "num_layers": num_layers,
            "width": width,
        }
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
        self.positions = checked_layer("Transformer", "positions", positions)
        self.seed = seed
        shared = None
        if share_embeddings:
            output.check_shared("Transformer", source_vocabulary_size, target_vocabulary_size)
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
            self.output_dense = keras.layers.Dense(
                target_vocabulary_size, dtype=self.dtype_policy, name="output"
            )

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
        """Scores over the vocabulary from the decoder's vectors: `(..., width)` to
        `(..., vocabulary)`.
        """
        return output.logits(x, self.output_dense, self.decoder.embedding)

    @property
    def max_source_length(self):
        """Most tokens of a source, as far as the encoder's positions reach; None where nothing
        limits them.
        """
        return self.encoder.max_length

    @property
    def max_target_length(self):
        """Most tokens that the decoder's positions reach, or None where they reach any."""
        return self.decoder.max_length

    def encode(self, source, max_length=None):
        """What decoding needs of the source sentences: the state of `step`.

        Args:
            source: integers `(B, S)`.
            max_length: positive int L, positions to decode at most. The state then has room for the
                keys and values of the target, and `step` computes each position once; without it
                `step` runs over all of them every time.
        Returns:
            dict of tensors with the batch as first axis. With `max_length`, `step` returns all but
            the target's keys and values as the very same objects; these are each a
            `tfattn.decoding.Past`.
        Raises:
            ValueError: `max_length` is no positive int, or beyond the learned positions.
        """
        self.build_for_any()
        source = ops.convert_to_tensor(source)
        mask = padding_mask(source)
        memory = self.encoder(source, training=False)
        if max_length is None:
            return {"memory": memory, "memory_mask": mask}
        _checks.positive_int("Transformer", "max_length", max_length)
        return {"caches": self.decoder.new_caches(memory, mask, max_length), "memory_mask": mask}

    def step(self, tokens, position, state):
        """Scores of the token after `position`, the contract of `tfattn.decoding`.

        Args:
            tokens: integers `(B, L)`, the target so far; what lies after `position` is not looked
                at.
            position: scalar integer; with caches, the positions before it have been stepped over.
            state: of `encode`.
        Returns:
            logits `(B, V)`, and the state.
        Raises:
            ValueError: there are more tokens than the state has room for.
        """
        if "caches" not in state:
            x = self.decoder(
                tokens, state["memory"], memory_mask=state["memory_mask"], training=False
            )
            return self.logits(ops.take(x, position, axis=1)), state
        x, caches = self.decoder.step(tokens, position, state["caches"], state["memory_mask"])
        return self.logits(x[:, 0]), {**state, "caches": caches}

    def compute_output_shape(self, input_shape):
        return (*input_shape[1], self.target_vocabulary_size)

    def get_config(self):
        names = (
            "source_vocabulary_size",
            "target_vocabulary_size",
            "num_layers",
            "width",
            "num_heads",
            "hidden_dim",
        )
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
