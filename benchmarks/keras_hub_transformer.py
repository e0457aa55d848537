"""The peer of `translation.py`: a Transformer made of KerasHub's layers, and its beam search."""

from collections.abc import Callable
from typing import Any

import keras
import keras_hub
import tensorflow as tf
from keras import ops

layers = keras_hub.layers
Tensor = Any


class KerasHubTransformer(keras.Model):
    """A `tfattn.Transformer` of KerasHub's layers, with the same weights.

    It has shared embeddings and sinusoids. All masks are given, since the scaling of embeddings
    would lose theirs.
    """

    def __init__(self, ours: keras.Model):
        super().__init__()
        self.width, self.num_heads = ours.width, ours.num_heads
        self.embedding = layers.ReversibleEmbedding(ours.source_vocabulary_size, ours.width)
        self.positions = layers.SinePositionEncoding()
        self.input_dropout = keras.layers.Dropout(ours.dropout)
        sizes = ours.hidden_dim, ours.num_heads, ours.dropout
        self.encoder_blocks = [layers.TransformerEncoder(*sizes) for _ in range(ours.num_layers)]
        self.decoder_blocks = [layers.TransformerDecoder(*sizes) for _ in range(ours.num_layers)]
        self((tf.ones((1, 2), "int32"), tf.ones((1, 2), "int32")))  # builds
        self.embedding.set_weights(ours.decoder.embedding.get_weights())
        for block, our_block in zip(self.encoder_blocks, ours.encoder.blocks, strict=True):
            weights = our_block.get_weights()
            # KerasHub's block has its last norm before the feed-forward network.
            block.set_weights([*weights[:10], *weights[14:], *weights[10:14]])
        for block, our_block in zip(self.decoder_blocks, ours.decoder.blocks, strict=True):
            block.set_weights(our_block.get_weights())

    def call(self, inputs: tuple[Tensor, Tensor], training: bool | None = None) -> Tensor:
        source, target = inputs
        memory, memory_mask = self.encode(source, training)
        x, mask = self.embed(target, training=training), target != 0
        for block in self.decoder_blocks:
            x = block(
                x,
                memory,
                decoder_padding_mask=mask,
                encoder_padding_mask=memory_mask,
                training=training,
            )
        return self.embedding(x, reverse=True)

    def encode(self, source: Tensor, training: bool | None = False) -> tuple[Tensor, Tensor]:
        """The memory and its mask."""
        x, mask = self.embed(source, training=training), source != 0
        for block in self.encoder_blocks:
            x = block(x, padding_mask=mask, training=training)
        return x, mask

    def embed(
        self, ids: Tensor, start_index: Tensor | int = 0, training: bool | None = False
    ) -> Tensor:
        x = self.embedding(ids) * self.width**0.5
        return self.input_dropout(x + self.positions(x, start_index=start_index), training=training)

    def step(
        self,
        tokens: Tensor,
        position: Tensor | int,
        memory: Tensor,
        memory_mask: Tensor,
        caches: list[Tensor],
        memory_caches: list[Tensor],
        memory_is_new: bool = False,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits `(B, V)` after tokens `(B, 1)`, and both kinds of caches.

        Where the memory is new, its caches are filled.
        """
        x, caches, memory_caches = self.embed(tokens, position), list(caches), list(memory_caches)
        for i, block in enumerate(self.decoder_blocks):
            x, caches[i], memory_caches[i] = block(
                x,
                memory,
                encoder_padding_mask=memory_mask,
                self_attention_cache=caches[i],
                self_attention_cache_update_index=position,
                cross_attention_cache=memory_caches[i],
                cross_attention_cache_update_index=0 if memory_is_new else None,
                training=False,
            )
        return self.embedding(x, reverse=True)[:, 0], caches, memory_caches

    def empty_caches(self, batch: int, length: Tensor | int) -> list[Tensor]:
        shape = (batch, 2, length, self.num_heads, self.width // self.num_heads)
        return [ops.zeros(shape) for _ in self.decoder_blocks]


class BeamTranslator:
    """Beam search in one compiled function, as in KerasHub's sequence-to-sequence models.

    There the sampler tiles the memory and its caches too, and reorders them with the beams in every
    step. Here they are tiled once and stay, since the beams of a sentence share them.

    Args:
        model: `KerasHubTransformer`.
        num_beams, begin_id, end_id: ints.
        adjust: function of logits, the length with their token, and `rows`, that returns logits.
        jit: whether XLA compiles the function.
    Call arguments:
        source: int32 `(B, S)`.
        rows: tensor, batch first, for `adjust`.
        max_length: int, tokens to write at most.
    Returns:
        tokens `(B, max_length)` and scores `(B,)`, sums of log-probabilities.
    """

    def __init__(
        self,
        model: KerasHubTransformer,
        num_beams: int,
        begin_id: int,
        end_id: int,
        adjust: Callable[[Tensor, Tensor, Tensor], Tensor],
        jit: bool,
    ):
        self.model, self.num_beams, self.adjust = model, num_beams, adjust
        self.begin_id, self.end_id = begin_id, end_id
        self.sampler = keras_hub.samplers.BeamSampler(num_beams, return_all_beams=True)
        self.compiled = tf.function(self.translate, jit_compile=jit)

    def __call__(self, source: Tensor, rows: Tensor, max_length: int) -> tuple[Any, Any]:
        tokens, scores = self.compiled(source, rows, max_length)
        return tokens[:, 0, 1:].numpy(), scores[:, 0].numpy()

    def translate(self, source: Tensor, rows: Tensor, max_length: int) -> tuple[Tensor, Tensor]:
        model, (batch, source_length) = self.model, source.shape
        memory, memory_mask = model.encode(source)
        begin = ops.full((batch, 1), self.begin_id)
        caches, memory_caches = (
            model.empty_caches(batch, max_length),
            model.empty_caches(batch, source_length),
        )
        _, caches, memory_caches = model.step(
            begin, 0, memory, memory_mask, caches, memory_caches, memory_is_new=True
        )

        def tiled(x):
            return ops.repeat(x, self.num_beams, axis=0)

        memory, memory_mask, rows, *memory_caches = map(
            tiled, (memory, memory_mask, rows, *memory_caches)
        )

        def step(prompt, caches, index):
            token = ops.slice(prompt, (0, index - 1), (batch * self.num_beams, 1))
            logits, caches, _ = model.step(
                token, index - 1, memory, memory_mask, caches, memory_caches
            )
            return self.adjust(logits, index, rows), None, caches

        prompt = ops.concatenate([begin, ops.zeros((batch, max_length), "int32")], axis=1)
        return self.sampler(
            step,
            prompt,
            caches,
            index=1,
            mask=prompt != 0,
            stop_token_ids=[self.end_id],
            model=model,
        )


class GreedyTranslator(BeamTranslator):
    """The same with KerasHub's greedy sampler; there are no scores."""

    def __init__(
        self,
        model: KerasHubTransformer,
        begin_id: int,
        end_id: int,
        adjust: Callable[[Tensor, Tensor, Tensor], Tensor],
        jit: bool,
    ):
        super().__init__(model, 1, begin_id, end_id, adjust, jit)
        self.sampler = keras_hub.samplers.GreedySampler()

    def __call__(self, source: Tensor, rows: Tensor, max_length: int) -> tuple[Any, None]:
        return self.compiled(source, rows, max_length)[:, 1:].numpy(), None
