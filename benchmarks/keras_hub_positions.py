"""Keras's attention with KerasHub's positions in it, as its users build them: peers of a benchmark.

The bias of T5 is built as KerasHub's T5 builds it, a number looked up for each pair.
"""

import keras
import keras_hub
from keras import ops
from keras_hub.src.models.t5.t5_multi_head_attention import T5MultiHeadAttention

__all__ = ["LAYERS"]


class Rotary(keras.layers.MultiHeadAttention):
    """Queries and keys are turned before Keras's own attention."""

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.rotary = keras_hub.layers.RotaryEmbedding(sequence_axis=1)

    def _compute_attention(self, query, key, value, *masks, **options):
        query, key = self.rotary(query), self.rotary(key)
        return super()._compute_attention(query, key, value, *masks, **options)


class Biased(keras.layers.MultiHeadAttention):
    """Scores are biased between Keras's own product and its softmax."""

    def biased(self, scores):
        raise NotImplementedError

    def _compute_attention(self, query, key, value, mask, *others, use_causal_mask=False):
        scores = ops.einsum(self._dot_product_equation, key, query * self._inverse_sqrt_key_dim)
        mask = self._compute_causal_mask(query, value) if use_causal_mask else mask
        weights = self._masked_softmax(self.biased(scores), mask)
        return ops.einsum(self._combine_equation, weights, value), None


class Alibi(Biased):
    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.alibi = keras_hub.layers.AlibiBias()

    def biased(self, scores):
        return self.alibi(scores)


class T5(Biased):
    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.table = self.add_weight(shape=(32, self._num_heads), name="table")

    def biased(self, scores):
        queries, keys = ops.shape(scores)[2:]
        distances = ops.arange(keys)[None] - ops.arange(queries)[:, None]
        buckets = T5MultiHeadAttention._relative_position_bucket(distances, bidirectional=False)
        bias = ops.take(self.table, buckets, axis=0)  # (T, S, H)
        return scores + ops.transpose(bias, (2, 0, 1))[None]


LAYERS = {"rotary": Rotary, "alibi": Alibi, "t5 bias": T5}
