"""From a decoder's vectors to scores over the vocabulary: a matrix of their own, or the embeddings'."""

from keras import ops

from tfattn import _checks
from tfattn.core import products


def check_shared(who, source_vocabulary_size, target_vocabulary_size):
    """Refuses one matrix for two vocabularies."""
    if source_vocabulary_size != target_vocabulary_size:
        expected = f"be `source_vocabulary_size`={source_vocabulary_size} where embeddings are shared"
        _checks.fail(who, "target_vocabulary_size", expected, target_vocabulary_size)


def logits(x, dense, embedding):
    """`(..., width)` to `(..., V)`: by the layer `dense`, or where that is None by the matrix of `embedding`."""
    if dense is None:
        matrix = ops.transpose(ops.cast(embedding.embeddings, x.dtype))  # (width, V)
        return products.matmul_shared(x, matrix)
    flat = dense(ops.reshape(x, (-1, x.shape[-1])))  # one plain product and not a batched one
    return ops.reshape(flat, (*ops.shape(x)[:-1], dense.units))
