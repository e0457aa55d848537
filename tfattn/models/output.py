"""From a decoder's vectors to scores over the vocabulary: a matrix of their own, or the embeddings'."""

import keras
from keras import ops

from tfattn import _checks
from tfattn._factors import Factors
from tfattn.core import products


def check_shared(who, source_vocabulary_size, target_vocabulary_size):
    """Refuses one matrix for two vocabularies."""
    if source_vocabulary_size != target_vocabulary_size:
        expected = f"be `source_vocabulary_size`={source_vocabulary_size} where embeddings are shared"
        _checks.fail(who, "target_vocabulary_size", expected, target_vocabulary_size)


def logits(x, dense, embedding):
    """`(..., width)` to `(..., V)`: by the layer `dense`, or where that is None by the matrix of `embedding`.

    In float32 with their `Factors` on them, by which `MaskedCrossentropy` does without them.
    """
    if dense is None:
        vectors = ops.cast(embedding.embeddings, x.dtype)  # (V, width)
        scores = products.matmul_shared(x, ops.transpose(vectors))
        factors = Factors(x, vectors)
    else:
        flat = dense(ops.reshape(x, (-1, x.shape[-1])))  # one plain product and not a batched one
        scores = ops.reshape(flat, (*ops.shape(x)[:-1], dense.units))
        factors = _factors_of_dense(x, dense)
    if factors is None or keras.backend.standardize_dtype(scores.dtype) != "float32":
        return scores
    return factors.on(scores)


def _factors_of_dense(x, dense):
    """Those of a linear layer; None where it does something else as well."""
    if dense.activation is not keras.activations.linear or dense.quantization_mode is not None:
        return None
    vectors = ops.transpose(ops.cast(dense.kernel, x.dtype))
    return Factors(x, vectors, None if dense.bias is None else ops.cast(dense.bias, x.dtype))
