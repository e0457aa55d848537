"""The bias of one block of pairs, and its gradients."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfattn._types import Size
from tfattn.core.biases import Bias
from tfattn.core.engine.tensorflow.block_scores import BlockScore
from tfattn.core.engine.tensorflow.gradients import custom_gradient
from tfattn.core.engine.tensorflow.loops import add, size, zeros
from tfattn.core.engine.tensorflow.tiling import Tiling
from tfattn.core.tensors import with_heads


class _BlockBias:
    tiling: Tiling
    of_block: Callable[..., tf.Tensor]  # the bias, broadcastable to (c, H, t, s)
    add_gradient: Callable[..., Any]

    def scores(
        self, score: BlockScore, query: tf.Tensor, key: tf.Tensor, *place: Size
    ) -> tf.Tensor:
        """The scores of the block (m, i, j) plus their bias."""
        scores = self.tiling.by_head(score.scores(self.tiling, query, key))
        return self.tiling.by_group(scores + tf.cast(self.of_block(*place), scores.dtype))

    def of_step(self, sums: Any) -> Any:
        """The sums with which a step begins: `sums`, or zeros, so that it waits for no other."""
        return sums

    def add_step(self, sums: Any, of_step: Any, m: Size) -> Any:
        """`sums` with those that step m has returned."""
        return of_step

    def vjp(
        self,
        score: BlockScore,
        query: tf.Tensor,
        key: tf.Tensor,
        gradient: tf.Tensor,
        sums: Any,
        *place: Size,
    ) -> tuple[tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]], Any]:
        """`score.vjp`, and `sums` with the gradient of the bias."""
        found = score.vjp(self.tiling, query, key, gradient)
        return found, self.add_gradient(sums, gradient, *place)


class ObjectBias(_BlockBias):
    """Any bias object, differentiated block by block; under a plain product, in blocks where the
    bias has `factors`, these are more columns of the operands.

    A bias of the distance alone is the same in all blocks along a diagonal. If few diagonals have
    no factors, their matrices are made once, and their gradients are added up first.
    """

    def __init__(
        self, bias: Bias, parameters: Sequence[tf.Tensor], tiling: Tiling, by_factors: bool
    ):
        self.bias = bias
        self.parameters = list(parameters)
        self.tiling = tiling
        self.by_factors = by_factors
        self.learned = [x for x in parameters if x.dtype.is_floating]
        self.diagonals = _kept_diagonals(bias, tiling) if by_factors else []
        self.kept: Any = self._matrices() if self.diagonals else None

    def of_block(self, m: Size, i: Size, j: Size) -> tf.Tensor:
        if self.kept is not None:
            return self.kept[m % self._places(), i - j - self.diagonals[0]]
        return with_heads(self.bias.on(self.tiling.grid(m, i, j), *self.parameters), 4)

    def _places(self) -> int:
        """In how many steps of a row of the batch the bias is another."""
        return self.tiling.head_steps if self.bias.differs_by_head else 1

    def _matrices(self) -> tf.Tensor:
        """The biases of the blocks along `diagonals`, `(places, diagonals, H or 1, t, s)`."""
        tiling, parts = self.tiling, []
        heads = tiling.heads if self.bias.differs_by_head else 1
        for d in self.diagonals:
            grid = tiling.grid(0, max(d, 0), max(-d, 0))._replace(heads=None)
            bias = self.bias.on(grid, *self.parameters)
            # `on` may return `(t, s)` where the bias has one head.
            shape = [self._places(), heads, tiling.rows, tiling.columns]
            parts.append(tf.reshape(bias, shape))
        return tf.stack(parts, axis=1)

    def zeros(self, dtype: tf.DType) -> tuple[list[tf.Tensor], Any]:
        """Zero gradients of the parameters, and of `kept` by places."""
        # In the dtype of the scores: a sum of many blocks in half precision would stall.
        dtypes = [dtype if x.dtype.is_floating else x.dtype for x in self.parameters]
        sums = [tf.zeros(tf.shape(x), to) for x, to in zip(self.parameters, dtypes, strict=True)]
        has_matrices = self.learned and self.diagonals
        return sums, zeros(tf.cast(self.kept, dtype)) if has_matrices else ()

    def of_step(self, sums: tuple[list[tf.Tensor], Any]) -> tuple[list[tf.Tensor], Any]:
        of_parameters, matrices = sums
        step = zeros(tf.cast(self.kept[0], matrices.dtype)) if matrices else ()
        return [tf.zeros_like(x) for x in of_parameters], step

    def add_step(
        self, sums: tuple[list[tf.Tensor], Any], of_step: tuple[list[tf.Tensor], Any], m: Size
    ) -> tuple[list[tf.Tensor], Any]:
        (before, matrices), (more, of_diagonals) = sums, of_step
        if matrices:
            matrices = add(matrices, m % self._places(), of_diagonals.stack())
        return [a + b for a, b in zip(before, more, strict=True)], matrices

    def add_gradient(
        self, sums: tuple[list[tf.Tensor], Any], grad_scores: tf.Tensor, m: Size, i: Size, j: Size
    ) -> tuple[list[tf.Tensor], Any]:
        if not self.learned:
            return sums
        of_parameters, matrices = sums
        grad_scores = self.tiling.by_head(grad_scores)
        if self.diagonals:
            repeats = [0] if self.bias.differs_by_head else [0, 1]
            gradient = tf.reduce_sum(grad_scores, repeats, keepdims=True)[0]
            return of_parameters, add(matrices, i - j - self.diagonals[0], gradient)

        def bias() -> tf.Tensor:
            found = tf.cast(self.of_block(m, i, j), grad_scores.dtype)
            return tf.zeros_like(grad_scores) + found

        return self._plus(of_parameters, bias, grad_scores), matrices

    def _plus(
        self, sums: list[tf.Tensor], function: Callable[[], tf.Tensor], gradient: tf.Tensor
    ) -> list[tf.Tensor]:
        """`sums` with the gradients of the parameters, from that of the result of `function`."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.learned)
            target = function()
        found = tape.gradient(target, self.learned, gradient, tf.UnconnectedGradients.ZERO)
        # The gradient of a gather is `tf.IndexedSlices`.
        found = iter([tf.convert_to_tensor(x) for x in found])
        return [x + tf.cast(next(found), x.dtype) if x.dtype.is_floating else x for x in sums]

    def gradients(self, sums: tuple[list[tf.Tensor], Any]) -> list[tf.Tensor]:
        of_parameters, matrices = sums
        if self.learned and self.diagonals:
            found = matrices.stack()
            of_parameters = self._plus(
                of_parameters, lambda: tf.cast(self._matrices(), found.dtype), found
            )
        both = zip(of_parameters, self.parameters, strict=True)
        return [tf.cast(x, parameter.dtype) for x, parameter in both]

    def scores(
        self, score: BlockScore, query: tf.Tensor, key: tf.Tensor, *place: Size
    ) -> tf.Tensor:
        by_pairs = functools.partial(super().scores, score, query, key, *place)

        def by_factors() -> tf.Tensor:
            left, right = self._factors(query, key, *place)
            operands = tf.concat([query, left], -1), tf.concat([key, right], -1)
            return score.scores(self.tiling, *operands)

        return self._choose(place, by_factors, by_pairs)

    def vjp(
        self,
        score: BlockScore,
        query: tf.Tensor,
        key: tf.Tensor,
        gradient: tf.Tensor,
        sums: tuple[list[tf.Tensor], Any],
        *place: Size,
    ) -> tuple[tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]], Any]:
        by_pairs = functools.partial(super().vjp, score, query, key, gradient, sums, *place)

        def by_factors() -> Any:
            _, right = self._factors(query, key, *place)
            keys = tf.concat([key, right], -1)
            both, grad_key, parameters = score.vjp(self.tiling, query, keys, gradient)
            grad_query, grad_left = tf.split(both, [query.shape[-1], -1], -1)
            more = self._plus(sums[0], lambda: self._factors(query, key, *place)[0], grad_left)
            return (grad_query, grad_key, parameters), (more, sums[1])

        return self._choose(place, by_factors, by_pairs) if self.learned else by_pairs()

    def _choose(
        self, place: tuple[Size, ...], by_factors: Callable[[], Any], by_pairs: Callable[[], Any]
    ) -> Any:
        known = self.by_factors and self.bias.has_factors(self.tiling.grid(*place))
        if isinstance(known, bool):
            return by_factors() if known else by_pairs()
        return tf.cond(known, by_factors, by_pairs)

    def _factors(
        self, query: tf.Tensor, key: tf.Tensor, *place: Size
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The factors `(c, G, R, f)` and `(c, G, s, f)`."""
        tiling = self.tiling
        left, right = self.bias.factors(tiling.grid(*place), *self.parameters)
        left, right = tf.cast(left, query.dtype), tf.cast(right, key.dtype)
        features = left.shape[-1]
        left = tf.broadcast_to(left, [tiling.chunk, tiling.heads, tiling.rows, features])
        keys = [tiling.chunk, tiling.groups, tiling.columns, features]
        return tiling.by_group(left), tf.broadcast_to(right, keys)


def _kept_diagonals(bias: Bias, tiling: Tiling) -> list[int]:
    """The diagonals i − j of square blocks without factors, if they are few and adjacent."""
    sides = tiling.queries, tiling.keys, tiling.rows, tiling.columns
    is_known = all(isinstance(side, int) for side in sides)
    if not (bias.is_of_distance and is_known and tiling.rows == tiling.columns):
        return []
    blocks: tuple[Any, Any] = tiling.query_blocks, tiling.key_blocks
    diagonals = range(1 - blocks[1], blocks[0])
    grids = {d: tiling.grid(0, max(d, 0), max(-d, 0)) for d in diagonals}
    found = [d for d, grid in grids.items() if bias.has_factors(grid) is False]
    few = 0 < len(found) <= 3 and len(found) < len(diagonals)
    return found if few and found[-1] - found[0] < len(found) else []


class ArrayBias(_BlockBias):
    """An array `(B or 1, H or 1, T or 1, S or 1)`; its gradient is held in blocks too."""

    def __init__(self, bias: tf.Tensor, tiling: Tiling):
        self.bias = bias
        self.tiling = tiling

    @staticmethod
    def expanded(bias: tf.Tensor, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """`bias` with 2 to 4 axes as an array with 4, whose sizes are 1 or the matrix's."""
        if len(bias.shape) == 2:
            bias = bias[None]
        if len(bias.shape) == 3:
            bias = bias[:, None]
        if None not in bias.shape:
            return bias
        # An unknown size may be 1 at run time, but the gradient depends on the axes of size 1.
        wanted = (*(size(query, axis) for axis in range(3)), size(key, 2))
        known = zip(tf.unstack(tf.shape(bias)), bias.shape, wanted, strict=True)
        return _broadcast(bias, [full if static is None else now for now, static, full in known])

    def of_block(self, m: Size, i: Size, j: Size) -> tf.Tensor:
        grid = self.tiling.grid(m, i, j)
        return grid.columns_of(grid.rows_of(grid.batch_of(self.bias), 2), 3)

    def zeros(self, dtype: tf.DType) -> tf.TensorArray:
        """Blocks of a zero gradient, to which `add_gradient` adds."""
        tiling = self.tiling
        full = (tiling.chunk, tiling.heads, tiling.rows, tiling.columns)
        shape = [1 if now == 1 else block for now, block in zip(self.bias.shape, full, strict=True)]
        chunks, rows, columns = self._counts()
        return zeros(tf.zeros([chunks * rows * columns, *shape], dtype))

    def add_gradient(
        self, blocks: tf.TensorArray, grad_scores: tf.Tensor, m: Size, i: Size, j: Size
    ) -> tf.TensorArray:
        grad_scores = self.tiling.by_head(grad_scores)
        repeats = [axis for axis in range(4) if self.bias.shape[axis] == 1]
        places = ((0, m // self.tiling.head_steps), (2, i), (3, j))
        chunk, i, j = (0 if axis in repeats else at for axis, at in places)
        _, rows, columns = self._counts()
        place = (chunk * rows + i) * columns + j
        return add(blocks, place, tf.reduce_sum(grad_scores, repeats, keepdims=True))

    def gradients(self, blocks: tf.TensorArray) -> list[tf.Tensor]:
        """The gradient of the whole array, joined from its blocks."""
        blocks = blocks.stack()  # (blocks, c or 1, H or 1, t or 1, s or 1)
        chunks, rows, columns = self._counts()
        c, heads, t, s = (size(blocks, axis) for axis in range(1, 5))
        blocks = tf.reshape(blocks, [chunks, rows, columns, c, heads, t, s])
        blocks = tf.transpose(blocks, [0, 3, 4, 1, 5, 2, 6])
        joined = tf.reshape(blocks, [chunks * c, heads, rows * t, columns * s])
        queries, keys = size(self.bias, 2), size(self.bias, 3)
        return [tf.cast(joined[:, :, :queries, :keys], self.bias.dtype)]

    def _counts(self) -> list[Size]:
        """Blocks of the gradient over the batch, the queries and the keys; 1 where it repeats."""
        tiling = self.tiling
        chunks = tiling.batch // tiling.chunk
        counts = ((0, chunks), (2, tiling.query_blocks), (3, tiling.key_blocks))
        return [1 if self.bias.shape[axis] == 1 else count for axis, count in counts]


BlockBias = ObjectBias | ArrayBias


def _broadcast(x: tf.Tensor, shape: Sequence[Size]) -> tf.Tensor:
    """`tf.broadcast_to`, whose own gradient needs `shape`, unknown to XLA in the backward pass."""

    @custom_gradient
    def function(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        def vjp(grad: tf.Tensor) -> tf.Tensor:
            _, repeated = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(grad), s1=tf.shape(x))
            return tf.reshape(tf.reduce_sum(grad, repeated), tf.shape(x))

        return tf.broadcast_to(x, shape), vjp

    return function(tf.identity(x))  # a tensor of this graph
