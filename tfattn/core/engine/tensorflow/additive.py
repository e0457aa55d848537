"""The additive score of a block, compiled."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfattn.core import scores as score_functions
from tfattn.core.engine import devices, sizes
from tfattn.core.engine.tensorflow.block_scores import AnyScore
from tfattn.core.engine.tensorflow.loops import size
from tfattn.core.engine.tensorflow.tiling import Tiling


class Additive(AnyScore):
    """weight · tanh(query + key), compiled, so that the tanh of a block is never held as a whole.

        tanh(q + k) = 1 − 2 r,        r = 1 / (1 + exp(2q) · exp(2k))

    The exponentials are computed once per token of a block, and a pair costs a product and a
    reciprocal. They overflow for operands far beyond a trained layer's; a block with such a token
    uses r = sigmoid(−2 (q + k)) instead.

    XLA runs a kernel on one core. So the queries of a block are cut into strips, one kernel each:
    in the forward pass one per core, and `ADDITIVE_STRIPS` in the backward pass, whose kernels hold
    r or the slope for all pairs of a strip.
    """

    def __init__(self, parameters: Sequence[tf.Tensor] = ()):
        super().__init__(score_functions.additive, rank=4, parameters=parameters)

    def block_numbers(self, bounds: sizes.Blocks) -> int:
        return bounds.compiled_numbers

    def scores(self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        query, key, weight = _matrices(tiling, query, key, *self.parameters)
        scores = _with_sigmoid(_scores_by_strips, query, key, weight)
        return tf.reshape(scores, [tiling.chunk, tiling.groups, -1, tiling.columns])

    def vjp(
        self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        left, right, weight = _matrices(tiling, query, key, *self.parameters)
        gradient = tf.reshape(gradient, [-1, tiling.rows, tiling.columns])  # (N, t, s)
        grad_left, grad_right, grad_weight = _with_sigmoid(
            _vjp_by_strips, left, right, weight, gradient
        )
        grad_right = tf.reshape(
            grad_right, [tiling.chunk, tiling.groups, -1, tiling.columns, query.shape[-1]]
        )
        return (
            tf.reshape(grad_left, tf.shape(query)),
            tf.reduce_sum(grad_right, 2),  # over the heads that share a key head
            [tf.reshape(grad_weight, self.parameters[0].shape)],
        )


def _matrices(
    tiling: Tiling, query: tf.Tensor, key: tf.Tensor, weight: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Operands `(N, t, U)` and `(N, s, U)`, N = c·H, and the weight `(1, U)` or `(H, U)`."""
    units = weight.shape[-2]
    if tiling.heads != tiling.groups:
        key = tf.repeat(key, tiling.heads // tiling.groups, axis=1)
    left = tf.reshape(query, [tiling.chunk * tiling.heads, tiling.rows, units])
    right = tf.reshape(key, [tiling.chunk * tiling.heads, tiling.columns, units])
    return left, right, tf.reshape(weight, [-1, units])


def _strips(x: tf.Tensor, count: int) -> list[tf.Tensor]:
    """`x` in `count` strips of nearly equal size, or fewer of 8 rows, if these are known."""
    rows = size(x, 1)
    if isinstance(rows, int):
        count = max(1, min(count, rows // 8))
    ends = [rows * i // count for i in range(count + 1)]
    return [x[:, start:end] for start, end in zip(ends, ends[1:], strict=False)]


def _cores() -> int:
    """The cores that this process may use: in a container often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _with_sigmoid(
    strips: Callable[..., Any], left: tf.Tensor, right: tf.Tensor, *more: tf.Tensor
) -> Any:
    """Calls `strips` with the exponentials, or with the operands where exponentials overflow."""
    is_moderate = (tf.reduce_max(tf.abs(left)) < 40.0) & (tf.reduce_max(tf.abs(right)) < 40.0)
    return tf.cond(
        is_moderate,
        lambda: strips(_sigmoid_of_exponentials, tf.exp(2 * left), tf.exp(2 * right), *more),
        lambda: strips(_sigmoid, left, right, *more),
    )


def _sigmoid(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.sigmoid(-2 * (left[:, :, None] + right[:, None]))  # (N, t, s, U)


def _sigmoid_of_exponentials(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.math.reciprocal(1 + left[:, :, None] * right[:, None])  # (N, t, s, U)


def _scores_by_strips(
    sigmoid: Callable[..., tf.Tensor], left: tf.Tensor, right: tf.Tensor, weight: tf.Tensor
) -> tf.Tensor:
    count = _cores() if devices.kind(left) == "cpu" else sizes.ADDITIVE_STRIPS
    strips = _strips(left, min(sizes.ADDITIVE_STRIPS, count))
    return tf.concat([_compiled_scores(sigmoid, strip, right, weight) for strip in strips], 1)


def _vjp_by_strips(
    sigmoid: Callable[..., tf.Tensor],
    left: tf.Tensor,
    right: tf.Tensor,
    weight: tf.Tensor,
    gradient: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    grad_left, grad_right, grad_weight = [], [], []
    for strip, grad_strip in zip(
        _strips(left, sizes.ADDITIVE_STRIPS),
        _strips(gradient, sizes.ADDITIVE_STRIPS),
        strict=True,
    ):
        arguments = (sigmoid, strip, right, weight, grad_strip)
        # Two kernels in sequence: a single kernel, or two in parallel, would hold r and the slope
        # at once.
        grad_operands = _compiled_operand_vjp(*arguments)
        with tf.control_dependencies(grad_operands):
            grad_weight.append(_compiled_weight_vjp(*arguments))
        grad_left.append(grad_operands[0])
        grad_right.append(grad_operands[1])
    return tf.concat(grad_left, 1), tf.add_n(grad_right), tf.add_n(grad_weight)


@tf.function(jit_compile=True)
def _compiled_scores(
    sigmoid: Callable[..., tf.Tensor], left: tf.Tensor, right: tf.Tensor, weight: tf.Tensor
) -> tf.Tensor:
    r = sigmoid(left, right)  # (N, t, s, U)
    shape, units, heads = tf.shape(r), weight.shape[1], weight.shape[0]
    if heads == 1:
        sums = tf.matmul(tf.reshape(r, [-1, units]), weight, transpose_b=True)
    else:
        sums = tf.matmul(tf.reshape(r, [-1, heads, shape[1] * shape[2], units]), weight[..., None])
    # (N, 1, 1): the score with every tanh at 1
    whole = _per_matrix(tf.reduce_sum(weight, 1), left)
    return whole - 2 * tf.reshape(sums, shape[:3])  # (N, t, s)


@tf.function(jit_compile=True)
def _compiled_operand_vjp(
    sigmoid: Callable[..., tf.Tensor],
    left: tf.Tensor,
    right: tf.Tensor,
    weight: tf.Tensor,
    gradient: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    r = sigmoid(left, right)  # (N, t, s, U)
    # The slope of tanh is 4 (r − r²).
    slope = gradient[..., None] * (r - tf.square(r))
    weight = 4 * _per_matrix(weight, left)[:, 0]  # (N, 1, U)
    return weight * tf.reduce_sum(slope, 2), weight * tf.reduce_sum(slope, 1)


@tf.function(jit_compile=True)
def _compiled_weight_vjp(
    sigmoid: Callable[..., tf.Tensor],
    left: tf.Tensor,
    right: tf.Tensor,
    weight: tf.Tensor,
    gradient: tf.Tensor,
) -> tf.Tensor:
    r = sigmoid(left, right)  # (N, t, s, U)
    sums = tf.reduce_sum(tf.matmul(gradient[:, :, None], r)[:, :, 0], 1)  # (N, U)
    grad_weight = tf.reduce_sum(gradient, [1, 2])[:, None] - 2 * sums
    return tf.reduce_sum(tf.reshape(grad_weight, [-1, *weight.shape]), 0)  # (1 or H, U)


def _per_matrix(by_head: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """`(1 or H, ...)` to `(N, 1, 1, ...)`, N = c·H: each head's part repeated for its matrices."""
    repeated = tf.tile(
        by_head, [like.shape[0] // by_head.shape[0]] + [1] * (len(by_head.shape) - 1)
    )
    return repeated[:, None, None]
