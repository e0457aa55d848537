"""All T × S scores at once."""

import keras
from keras import ops

from tfattn.core import pairs, products, softmax
from tfattn.core.guard import guard
from tfattn.core.scores import facts_of

__all__ = ["attend"]


def attend(
    query,
    value,
    key,
    score,
    parameters,
    mask,
    bias,
    drop=None,
    return_weights=False,
    return_log_sum_exp=False,
    normalizer=None,
):
    """`core.attend`, once its arguments are checked; `drop` is the function that drops weights."""
    rank, visible = len(query.shape), None
    if mask is not None:
        visible = mask.dense(ops.shape(query)[-2], ops.shape(key)[-2])
        visible = pairs.with_heads(visible, rank)

        def sees(broken):
            some = ops.logical_and(visible, ops.expand_dims(broken, -2))
            return ops.any(some, axis=-1, keepdims=True)

        query, key, value, *_ = guard(query, key, value, sees)
    scores = score(query, key, *parameters)  # (..., T, S)
    # float32 or wider until the weights are there: half precision has too few digits for an
    # exponent.
    scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
    if bias is not None:
        bias = bias.dense(ops.shape(query)[-2], ops.shape(key)[-2])
        scores = scores + pairs.with_heads(ops.cast(bias, scores.dtype), rank)
    largest = None
    if bias is not None or not facts_of(score).always_finite:
        visible = softmax.not_hidden(scores, visible)
        if normalizer is None:
            scores, largest = softmax.shifted(scores, visible)
        else:
            scores = softmax.bounded(scores)
    weights = (normalizer or softmax.normalise)(scores, visible)
    weights = ops.cast(weights, value.dtype)
    kept = drop(weights) if drop else weights
    output = products.matmul(kept, value)  # (..., T, Dv)
    found = (output,)
    found += (weights,) if return_weights else ()
    if return_log_sum_exp:
        wide = keras.backend.result_type(query.dtype, key.dtype, "float32")
        sums = softmax.log_sum_exp(scores, visible)
        if largest is not None:
            sums = sums + largest[..., 0]
        found += (ops.cast(sums, wide),)
    return found if len(found) > 1 else output
