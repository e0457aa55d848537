"""The additive score of a block, compiled."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfattn.core import scores as score_functions
from tfattn.core.engine import sizes
from tfattn.core.engine.tensorflow.block_scores import AnyScore
from tfattn.core.engine.tensorflow.loops import size
from tfattn.core.engine.tensorflow.tiling import Tiling


class Additive(AnyScore):
    """weight · tanh(query + key), compiled, so that the tanh of a block is never held as a whole.

        tanh(q + k) = 1 − 2 r,        r = 1 / (1 + exp(2q) · exp(2k))

    The exponentials are computed once per token of a block, and a pair costs a product and a
    reciprocal. They overflow for operands far beyond a trained layer's; a block with such a token
    uses r = sigmoid(−2 (q + k)) instead.

    XLA runs a kernel on one core. So the queries of a block are cut into strips, one kernel each;
    more in the backward pass, where a kernel holds r and the slope for all pairs of its strip.
    """

    def __init__(self, parameters: Sequence[tf.Tensor] = ()):
        super().__init__(score_functions.additive, rank=4, parameters=parameters)

    def most_pairs(self, bounds: sizes.Blocks, query: tf.Tensor) -> int:
        return bounds.compiled_numbers // query.shape[-1]

    def scores(self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        found = _choose(_scores, *_matrices(tiling, query, key, *self.parameters))
        return tf.reshape(found, [tiling.chunk, tiling.groups, -1, tiling.columns])

    def vjp(
        self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        sources = [query, key, *self.parameters]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            operands = _matrices(tiling, *sources)
        gradient = tf.reshape(gradient, [-1, tiling.rows, tiling.columns])  # (N, t, s)
        found = tape.gradient(operands, sources, list(_choose(_vjp, *operands, gradient)))
        return found[0], found[1], found[2:]


def _matrices(
    tiling: Tiling, query: tf.Tensor, key: tf.Tensor, weight: tf.Tensor
) -> list[tf.Tensor]:
    """Operands `(N, t, U)` and `(N, s, U)` and the weights `(N, U)`, N = c·H."""
    units, count = weight.shape[-2], tiling.chunk * tiling.heads
    if tiling.heads != tiling.groups:
        key = tf.repeat(key, tiling.heads // tiling.groups, axis=1)
    weight = tf.reshape(weight, [-1, units])  # (1 or H, U)
    return [
        tf.reshape(query, [count, tiling.rows, units]),
        tf.reshape(key, [count, tiling.columns, units]),
        tf.tile(weight, [count // weight.shape[0], 1]),
    ]


def _choose(function: Callable[..., Any], left: tf.Tensor, right: tf.Tensor, *more: Any) -> Any:
    """Calls `function` with the exponentials, or with the operands where exponentials overflow."""
    is_moderate = (tf.reduce_max(tf.abs(left)) < 40.0) & (tf.reduce_max(tf.abs(right)) < 40.0)
    return tf.cond(
        is_moderate,
        lambda: function(True, tf.exp(2 * left), tf.exp(2 * right), *more),
        lambda: function(False, left, right, *more),
    )


def _scores(exponentials: bool, left: tf.Tensor, right: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    strips = [
        _strip_scores(exponentials, strip, right, weight)
        for strip in _strips(left, sizes.STEPS_AT_ONCE)
    ]
    return tf.concat(strips, 1)


def _vjp(exponentials: bool, left: Any, right: Any, weight: Any, gradient: Any) -> Any:
    count = sizes.ADDITIVE_STRIPS
    pairs = zip(_strips(left, count), _strips(gradient, count), strict=True)
    strips = [_strip_vjp(exponentials, strip, right, weight, upper) for strip, upper in pairs]
    lefts, rights, weights = zip(*strips, strict=True)
    return tf.concat(lefts, 1), tf.add_n(rights), tf.add_n(weights)


def _strips(x: tf.Tensor, count: int) -> list[tf.Tensor]:
    """`x` in strips of nearly equal size, of 8 rows at least if the rows are known."""
    rows = size(x, 1)
    if isinstance(rows, int):
        count = max(1, min(count, rows // 8))
    ends = [rows * i // count for i in range(count + 1)]
    return [x[:, start:end] for start, end in zip(ends, ends[1:], strict=False)]


def _r(exponentials: bool, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    left, right = left[:, :, None], right[:, None]
    if exponentials:
        return tf.math.reciprocal(1 + left * right)  # (N, t, s, U)
    return tf.sigmoid(-2 * (left + right))


@tf.function(jit_compile=True)
def _strip_scores(exponentials: bool, left: Any, right: Any, weight: Any) -> tf.Tensor:
    r = _r(exponentials, left, right)
    shape = tf.shape(r)
    r = tf.reshape(r, [r.shape[0], shape[1] * shape[2], r.shape[3]])
    sums = tf.reshape(tf.matmul(r, weight[..., None]), shape[:3])
    return tf.reduce_sum(weight, 1)[:, None, None] - 2 * sums  # (N, t, s)


@tf.function(jit_compile=True)
def _strip_vjp(exponentials: bool, left: Any, right: Any, weight: Any, gradient: Any) -> Any:
    r = _r(exponentials, left, right)
    # The slope of tanh is 4 (r − r²).
    slope = gradient[..., None] * (r - tf.square(r))
    sums = tf.reduce_sum(tf.matmul(gradient[:, :, None], r)[:, :, 0], 1)  # (N, U)
    grad_weight = tf.reduce_sum(gradient, [1, 2])[:, None] - 2 * sums
    weight = 4 * weight[:, None]
    return weight * tf.reduce_sum(slope, 2), weight * tf.reduce_sum(slope, 1), grad_weight
