"""Scores of one block of pairs, and their gradients.

`scores` computes a block; `shifted_scores` subtracts a number for each query from it, given the
operands of `shifted_query` and `shifted_keys`; `vjp` carries the gradient of a block back to its
operands and `parameters`. Blocks of queries are `(c, G, R, X)`, of keys `(c, G, s, X)`, of scores
`(c, G, R, s)`. For the tiling, `work` is how many numbers are held for each pair, and
`block_numbers(bounds)` the most in a block of all heads.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfattn import _checks
from tfattn.core.engine import sizes
from tfattn.core.engine.tensorflow.loops import size
from tfattn.core.engine.tensorflow.tiling import Tiling


def append_shift(left: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    """`left` `(..., R, D)`, whose product with `append_ones(right)` is left · rightᵀ − shift."""
    # A column of a product costs less than a pass over the block. A shift in float32 becomes three
    # columns in bfloat16, whose sum has all its digits.
    parts, rest = [left], -shift
    for _ in range(_shift_columns(left)):
        parts.append(tf.cast(rest, left.dtype))
        rest -= tf.cast(parts[-1], rest.dtype)
    return tf.concat(parts, -1)


def append_ones(right: tf.Tensor) -> tf.Tensor:
    shape = [size(right, axis) for axis in range(len(right.shape) - 1)]
    return tf.concat([right, tf.ones([*shape, _shift_columns(right)], right.dtype)], -1)


def _shift_columns(x: tf.Tensor) -> int:
    return 3 if x.dtype == tf.bfloat16 else 1


class _ShiftedAfter:
    """Subtracts the shift from each score, for scores that are no plain product."""

    scores: Callable[..., tf.Tensor]

    def shifted_query(self, query: tf.Tensor, shift: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return query, shift

    def shifted_keys(self, keys: tf.Tensor) -> tf.Tensor:
        return keys

    def shifted_scores(
        self, tiling: Tiling, query: tuple[tf.Tensor, tf.Tensor], key: tf.Tensor
    ) -> tf.Tensor:
        query, shift = query
        return self.scores(tiling, query, key) - shift


class Product:
    """A product of the operands; the scale multiplies the queries, once per token."""

    parameters: Sequence[tf.Tensor] = ()

    def __init__(self, scaled: bool):
        self.scaled = scaled

    def work(self, query: tf.Tensor) -> int:
        return 1

    def block_numbers(self, bounds: sizes.Blocks) -> int:
        return bounds.shared_numbers

    def scale(self, query: tf.Tensor) -> float:
        return query.shape[-1] ** -0.5 if self.scaled else 1.0

    def scores(self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return tf.matmul(query, key, transpose_b=True)  # (c, G, R, s)

    def shifted_query(self, query: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
        return append_shift(query, shift)

    def shifted_keys(self, keys: tf.Tensor) -> tf.Tensor:
        return append_ones(keys)

    def shifted_scores(self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return tf.matmul(query, key, transpose_b=True)

    def vjp(
        self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        return tf.matmul(gradient, key), tf.matmul(gradient, query, transpose_a=True), []


class CappedProduct(_ShiftedAfter, Product):
    """cap · tanh(product / cap); 1/cap multiplies the queries too."""

    def __init__(self, scaled: bool, cap: float):
        super().__init__(scaled)
        self.cap = cap

    def scale(self, query: tf.Tensor) -> float:
        return super().scale(query) / self.cap

    def scores(self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return self.cap * tf.tanh(tf.matmul(query, key, transpose_b=True))

    def vjp(
        self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        slope = 1 - tf.square(tf.tanh(tf.matmul(query, key, transpose_b=True)))
        return super().vjp(tiling, query, key, gradient * (self.cap * slope))


class AnyScore(_ShiftedAfter):
    """Any score function, differentiated block by block."""

    def __init__(
        self, score: Callable[..., tf.Tensor], rank: int, parameters: Sequence[tf.Tensor] = ()
    ):
        _refuse_captured(score)
        self.score = score
        self.rank = rank
        self.parameters = list(parameters)

    def work(self, query: tf.Tensor) -> int:
        # The memory of a score per pair is unknown; the width of its operands is a fair guess.
        return query.shape[-1] or 64

    def block_numbers(self, bounds: sizes.Blocks) -> int:
        return bounds.shared_numbers

    def scale(self, query: tf.Tensor) -> float:
        return 1.0

    def scores(self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        query = tf.reshape(query, [tiling.chunk, tiling.heads, tiling.rows, query.shape[-1]])
        if self.rank == 3:
            query, key = query[:, 0], key[:, 0]
        scores = self.score(query, key, *self.parameters)  # (c, t, s) or (c, H, t, s)
        return tf.reshape(scores, [tiling.chunk, tiling.groups, -1, tiling.columns])

    def vjp(
        self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        sources = [query, key, *self.parameters]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            scores = self.scores(tiling, query, key)
        found = tape.gradient(scores, sources, gradient, tf.UnconnectedGradients.ZERO)
        return found[0], found[1], found[2:]


BlockScore = Product | AnyScore


def _refuse_captured(score: Callable[..., tf.Tensor]) -> None:
    """Raises where a score closes over a float tensor, which would get no custom gradient."""
    names = getattr(getattr(score, "__code__", None), "co_freevars", ())
    cells = getattr(score, "__closure__", None) or ()
    for name, cell in zip(names, cells, strict=False):
        # An empty cell has no contents: a name that is not bound yet.
        held = getattr(cell, "cell_contents", None)
        if held is not None and tf.is_tensor(held) and tf.as_dtype(held.dtype).is_floating:
            expected = (
                f"take `{name}` from `parameters`: closed over, it would get no gradient "
                "when streamed"
            )
            _checks.fail("attend", "score", expected, score)
    if hasattr(score, "__wrapped__"):
        _refuse_captured(score.__wrapped__)
