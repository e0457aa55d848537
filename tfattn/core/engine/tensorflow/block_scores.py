"""Scores of one block of pairs, and their gradients.

`scores` computes a block, and `vjp` carries the gradient of a block back to its operands and
`parameters`. Blocks of queries, already multiplied by `scale`, are `(c, G, R, X)`, of keys
`(c, G, s, X)`, of scores `(c, G, R, s)`. `most_pairs` is the most in a block of all heads.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfattn import _checks
from tfattn.core.engine import sizes
from tfattn.core.engine.tensorflow.tiling import Tiling


class Product:
    """A product of the operands, or cap · tanh(product / cap)."""

    parameters: Sequence[tf.Tensor] = ()

    def __init__(self, scaled: bool, cap: float | None = None):
        self.scaled = scaled
        self.cap = cap
        self.is_product = cap is None  # so that more columns of the operands add to the scores

    def most_pairs(self, bounds: sizes.Blocks, query: tf.Tensor) -> int:
        return bounds.shared_numbers

    def scale(self, query: tf.Tensor) -> float:
        return (query.shape[-1] ** -0.5 if self.scaled else 1.0) / (self.cap or 1.0)

    def scores(self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        scores = tf.matmul(query, key, transpose_b=True)  # (c, G, R, s)
        return scores if self.cap is None else self.cap * tf.tanh(scores)

    def vjp(
        self, tiling: Tiling, query: tf.Tensor, key: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        if self.cap is not None:
            gradient *= self.cap * (1 - tf.square(self.scores(tiling, query, key) / self.cap))
        return tf.matmul(gradient, key), tf.matmul(gradient, query, transpose_a=True), []


class AnyScore:
    """Any score function, differentiated block by block."""

    is_product = False

    def __init__(
        self, score: Callable[..., tf.Tensor], rank: int, parameters: Sequence[tf.Tensor] = ()
    ):
        _refuse_captured(score)
        self.score = score
        self.rank = rank
        self.parameters = list(parameters)

    def most_pairs(self, bounds: sizes.Blocks, query: tf.Tensor) -> int:
        # The memory of a score per pair is unknown; the width of its operands is a fair guess.
        return bounds.shared_numbers // (query.shape[-1] or 64)

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
