"""From a decoder's vectors to scores over the vocabulary: a matrix of their own, or the
embeddings'.
"""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._factors import Factors
from tfattn.core import products


def check_shared(who: str, source_vocabulary_size: int, target_vocabulary_size: int) -> None:
    """Refuses one matrix for two vocabularies."""
    if source_vocabulary_size != target_vocabulary_size:
        expected = (
            f"be `source_vocabulary_size`={source_vocabulary_size} where embeddings are shared"
        )
        _checks.fail(who, "target_vocabulary_size", expected, target_vocabulary_size)


def logits(x: Any, dense: keras.layers.Dense | None, embedding: keras.layers.Embedding) -> Any:
    """`(..., width)` to `(..., V)`: by the layer `dense`, or where that is None by the matrix of
    `embedding`.

    In float32 with their `Factors` on them, by which `MaskedCrossentropy` does without them.
    """
    if dense is None:
        vectors = _vectors(embedding, x.dtype)
        scores = products.matmul_shared(x, ops.transpose(vectors))
    else:
        flat = dense(ops.reshape(x, (-1, x.shape[-1])))  # one plain product and not a batched one
        scores = ops.reshape(flat, (*ops.shape(x)[:-1], dense.units))
    dtypes = {keras.backend.standardize_dtype(tensor.dtype) for tensor in (x, scores)}
    if not Factors.fit_on(scores) or dtypes != {"float32"}:
        return scores
    if dense is None:
        return Factors(x, vectors).on(scores)
    return _factors_of_dense(x, dense).on(scores) if _is_linear(dense) else scores


def _vectors(embedding, dtype):
    """The matrix of all words, `(V, width)`."""
    if embedding.quantization_mode is None:
        return ops.cast(embedding.embeddings, dtype)
    # Its matrix holds integers then, which mean what a lookup makes of them.
    return ops.cast(embedding(ops.arange(embedding.input_dim)), dtype)


def _is_linear(dense):
    """Whether this is Keras's own layer, and as it comes: another may do something else as well."""
    plain = type(dense) is keras.layers.Dense and dense.quantization_mode is None
    return plain and dense.activation is keras.activations.linear


def _factors_of_dense(x, dense):
    # By `cast`, which reads a variable: as such it would be read by whoever uses it, after an
    # optimizer's step even.
    kernel, bias = (
        part if part is None else ops.cast(part, x.dtype) for part in (dense.kernel, dense.bias)
    )
    return Factors(x, ops.transpose(kernel), bias)
