"""Output projection: logits over the vocabulary from a decoder's vectors."""

import keras
from keras import ops

from tfattn import _checks
from tfattn._factors import LogitFactors
from tfattn._types import Tensor
from tfattn.core import products


def vocabulary_sizes(who: str, source: int, target: int | None, shared: bool) -> tuple[int, int]:
    """Both sizes; the target's defaults to the source's. A shared matrix needs one size."""
    source = _checks.positive_int(who, "source_vocabulary_size", source)
    target = source if target is None else target
    target = _checks.positive_int(who, "target_vocabulary_size", target)
    if shared and source != target:
        expected = f"be `source_vocabulary_size`={source} where embeddings are shared"
        _checks.fail(who, "target_vocabulary_size", expected, target)
    return source, target


def logits(
    x: Tensor, dense: keras.layers.Dense | None, embedding: keras.layers.Embedding
) -> Tensor:
    """`(..., width)` to `(..., V)` by the layer `dense`, or by `embedding` if `dense` is None.

    In float32, the logits have `LogitFactors`, from which `MaskedCrossentropy` is computed.
    """
    if dense is None:
        if embedding.quantization_mode is None:
            vectors = embedding.embeddings  # (V, width)
        else:
            # Lookups dequantize the integers of a quantized matrix.
            vectors = embedding(ops.arange(embedding.input_dim))
        vectors, bias = ops.cast(vectors, x.dtype), None
        scores = products.matmul_shared(x, ops.transpose(vectors))
    else:
        flat = dense(ops.reshape(x, (-1, x.shape[-1])))  # a flat product, not a batched product
        scores = ops.reshape(flat, (*ops.shape(x)[:-1], dense.units))
    dtypes = {keras.backend.standardize_dtype(tensor.dtype) for tensor in (x, scores)}
    if not hasattr(scores, "graph") or dtypes != {"float32"}:  # only a graph can skip the logits
        return scores
    if dense is not None:
        # Subclasses and changed layers may compute more than a linear map.
        is_linear = dense.activation is keras.activations.linear
        if type(dense) is not keras.layers.Dense or dense.quantization_mode or not is_linear:
            return scores
        # `cast` reads the variables here; a later read could follow an optimizer's step.
        vectors = ops.transpose(ops.cast(dense.kernel, x.dtype))
        bias = None if dense.bias is None else ops.cast(dense.bias, x.dtype)
    return LogitFactors(x, vectors, bias).on(scores)
