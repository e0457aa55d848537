"""All T × S scores at once."""

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from tfattn._types import Tensor
from tfattn.core import softmax
from tfattn.core.call import AttentionCall
from tfattn.core.engine import devices
from tfattn.core.guard import guard
from tfattn.core.masks import Grid, explicit
from tfattn.core.scores import facts_of
from tfattn.core.tensors import matmul, with_heads


def run(
    call: AttentionCall, drop: Callable[[Tensor], Tensor] | None = None
) -> Tensor | tuple[Tensor, ...]:
    """The result of `core.attend`; `drop` is the function that drops weights, if not Keras's."""
    query, key, value = call.query, call.key, call.value
    grid, rank, visible = Grid.whole(*call.lengths), len(query.shape), None
    if call.mask is not None:
        visible = with_heads(call.mask.on(grid), rank)

        def attends_to(finite: Tensor) -> Tensor:
            # A product: `any` over pairs would be an array of all scores' size.
            pairs, broken = (ops.cast(x, "float32") for x in (visible, ops.logical_not(finite)))
            if pairs.shape[-1] is None and type(call.mask) is explicit:  # perhaps 1, for every key
                pairs = ops.broadcast_to(pairs, (*ops.shape(pairs)[:-1], ops.shape(broken)[-2]))
            if pairs.shape[-1] == 1:  # every key, or none
                broken = ops.max(broken, axis=-2, keepdims=True, initial=0.0)
            return ops.matmul(pairs, broken) > 0

        if not _known_finite(key, value):
            query, key, value = guard(query, key, value, attends_to)
    always_finite = facts_of(call.score).always_finite
    scores = call.score(query, key, *call.parameters)  # (..., T, S)
    # float32 or wider up to the weights: half precision has too few digits for an exponent.
    scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
    if call.bias is not None:
        bias = ops.cast(call.bias.on(grid, *call.bias.parameters()), scores.dtype)
        scores = scores + with_heads(bias, rank)
    largest = None
    if call.bias is not None or not always_finite:
        visible = softmax.not_hidden(scores, visible)
        if call.normalizer is None:
            scores, largest = softmax.shifted(scores, visible)
        else:
            scores = softmax.bounded(scores)
    weights = (call.normalizer or softmax.normalize)(scores, visible)
    weights = kept = ops.cast(weights, value.dtype)
    if drop is not None:
        kept = drop(weights)
    elif call.dropout:
        kept = keras.random.dropout(weights, call.dropout, seed=call.seed)
    found = [matmul(kept, value)]  # (..., T, Dv)
    if call.return_weights:
        found.append(weights)
    if call.return_log_sum_exp:
        wide = keras.backend.result_type(query.dtype, key.dtype, "float32")
        sums = softmax.log_sum_exp(scores, visible)
        if largest is not None:
            sums = sums + largest[..., 0]
        found.append(ops.cast(sums, wide))
    return tuple(found) if len(found) > 1 else found[0]


def _known_finite(*tokens: Tensor) -> bool:
    """Whether all tokens are finite, if that is quickly read: in eager TensorFlow on a CPU."""
    if keras.backend.backend() != "tensorflow" or devices.kind(tokens[0]) != "cpu":
        return False
    try:
        return all(np.isfinite(ops.convert_to_numpy(x)).all() for x in tokens)
    except NotImplementedError:  # symbolic
        return False
