"""Exact attention in linear memory on JAX and PyTorch, for any score, mask and bias.

The T × S scores are cut into blocks, of t queries and s keys. Each row of blocks goes over the keys
with an online softmax, and the backend differentiates it. `keras.remat` has it keep no more than
what goes into a row, and into a block, and compute the rest again on the way back (gradient
checkpointing). Blocks that the mask hides are skipped. On JAX calls of one kind share a compiled
function: a loop is compiled each time that its body is another function.

TensorFlow has `engine.tensorflow`, where both passes are written out.

Source: Rabe, Staats 2021, arXiv:2112.05682 (the algorithm and its checkpoints); Milakov,
Gimelshein 2018, arXiv:1805.02867 (the online softmax).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn._types import Size, Tensor
from tfattn.core import masks, pairs, products, softmax, trees
from tfattn.core.biases import Bias
from tfattn.core.call import AttentionCall
from tfattn.core.engine import devices, fused, sizes
from tfattn.core.guard import guard
from tfattn.core.masks import Mask, hooks
from tfattn.core.scores import facts_of

__all__ = ["run"]


def run(
    call: AttentionCall, by_kernel: bool = False, block: tuple[int, int] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """What `core.attend` returns, of at least one query and one key.

    Args:
        by_kernel: whether the backend's own kernel takes the call, see `fused`.
        block: `(t, s)`, where others than the measured sizes are wanted.
    """
    bias = call.bias
    mask_arrays, mask = trees.flatten(call.mask)
    bias_arrays, of_bias = trees.flatten(bias)
    kind = _Kind(
        _Squares.of(call.query, call.key, call.score, block),
        call.rank,
        call.score,
        mask,
        of_bias,
        call.dropout,
        call.return_log_sum_exp,
        by_kernel,
    )
    tensors = _Tensors(
        [call.query, call.key, call.value],
        [ops.convert_to_tensor(x) for x in call.parameters],
        mask_arrays,
        bias_arrays,
        # Read once: a variable is not for a loop to read.
        [] if bias is None else [ops.convert_to_tensor(x) for x in bias.parameters()],
        _drawn(call.seed) if call.dropout else None,
    )
    if keras.backend.backend() == "jax" and kind.is_shareable:
        return _compiled(kind)(tensors)
    return _computed(kind, tensors)


class _Tensors(NamedTuple):
    """The tensors of a call."""

    operands: list  # query, key, value
    parameters: list  # of the score
    mask: list
    bias: list
    learned: list  # the parameters of the bias
    drawn: Any  # what the noise of dropout is drawn from, or None


class _Kind(NamedTuple):
    """What a call holds besides its tensors; hashable."""

    squares: "_Squares"
    rank: int
    score: Callable[..., Tensor]
    mask: trees.Structure  # taken apart, as is the bias
    bias: trees.Structure
    dropout: float
    return_log_sum_exp: bool
    by_kernel: bool

    @property
    def is_shareable(self):
        """Whether two calls of one kind do the same: not where an own object may differ."""
        return facts_of(self.score).is_pure and all(map(trees.is_shareable, (self.mask, self.bias)))


@functools.lru_cache(sizes.SHARED_CALLS)
def _compiled(kind):
    import jax

    return jax.jit(functools.partial(_computed, kind))


def _computed(kind, tensors):
    """What `run` returns, of the tensors of a call."""
    query, key, value = tensors.operands
    given = value.dtype
    of_sums = keras.backend.result_type(query.dtype, key.dtype, "float32")
    wide = keras.backend.result_type(query.dtype, key.dtype, value.dtype, "float32")
    mask = trees.unflatten(kind.mask, tensors.mask)
    call = _Call(
        kind.squares,
        kind.rank,
        kind.score,
        tensors.parameters,
        mask,
        trees.unflatten(kind.bias, tensors.bias),
        tensors.learned,
        kind.dropout,
        tensors.drawn,
    )

    def by_blocks(query, key, value):
        output, sums = _rows(call, *(ops.cast(x, wide) for x in (query, key, value)))
        return ops.cast(output, given), sums

    if mask is not None:
        query, key, value, *_ = guard(query, key, value, lambda broken: _sees(call, query, broken))
    if kind.by_kernel:
        options = {"again": lambda *operands: by_blocks(*operands)[0]}
        return fused.run(query, value, key, kind.score, mask, **options)
    output, sums = by_blocks(query, key, value)
    if mask is not None and keras.backend.backend() == "torch":
        output = _differentiable(output, query, key, value)
    return (output, ops.cast(sums, of_sums)) if kind.return_log_sum_exp else output


def _differentiable(output, *operands):
    """The output, with gradients of zero where the mask hides all: it would be a constant there."""
    nothing = ops.zeros((1,), "bool")
    zeros = [ops.where(nothing, ops.reshape(x, (-1,))[:1], 0.0) for x in operands]
    return output + ops.cast(ops.sum(ops.concatenate(zeros)), output.dtype)


class _Squares(NamedTuple):
    """How the matrix is cut."""

    queries: int  # T
    keys: int  # S
    t: int
    s: int

    @classmethod
    def of(cls, query, key, score, block):
        limits = devices.chosen(sizes.SCAN, query)
        numbers = limits.numbers
        if not facts_of(score).is_product:
            numbers //= query.shape[-1]
        batch, *heads = query.shape[:-2]
        rows = batch if isinstance(batch, int) else sizes.UNKNOWN_BATCH
        side = math.isqrt(numbers // max(1, math.prod((rows, *heads))))
        side = min(max(side, limits.least), limits.most)
        sides = block or (side, side)
        lengths = query.shape[-2], key.shape[-2]
        # Spread evenly, so that as little as can be is padding.
        even = [-(-n // -(-n // most)) for n, most in zip(lengths, sides, strict=True)]
        return cls(*lengths, *even)

    @property
    def rows(self):
        return -(-self.queries // self.t)

    @property
    def columns(self):
        return -(-self.keys // self.s)

    def grid(self, i: Size, j: Size):
        start = i * self.t, j * self.s
        return masks.Grid(self.queries, self.keys, *start, self.t, self.s, aligned=True)

    def split_queries(self, x: Tensor):
        return _split(x, self.rows, self.t)

    def split_keys(self, x: Tensor):
        return _split(x, self.columns, self.s)


class _Call(NamedTuple):
    """What a block needs besides its operands."""

    squares: _Squares
    rank: int
    score: Callable[..., Tensor]
    parameters: list
    mask: Mask | None
    bias: Bias | None
    bias_parameters: list
    dropout: float
    drawn: Any


def _rows(call, query, key, value):
    """Output `(..., T, Dv)`, and the log of the sums `(..., T)`."""
    squares, width = call.squares, value.shape[-1]
    # Values are divided by the number of keys before they are summed up: a sum of numbers near the
    # largest float overflows where their mean does not.
    blocks = _parts((squares.split_keys(key), squares.split_keys(value / squares.keys)))

    @keras.remat
    def row(i, query):
        is_seen = _seen_in_row(call, i)

        def over_keys(state, j, block):
            def seen():
                return _with_block(call, state, query, i, j, *block)

            return _if(is_seen(j), seen, lambda: state), ()

        zero = ops.zeros_like(query[..., :1])  # (..., t, 1)
        start = (ops.repeat(zero, width, axis=-1), zero + softmax.least(zero), zero)
        (pooled, row_max, row_sum), _ = _each(squares.columns, over_keys, start, blocks)
        nothing = ops.equal(row_sum, 0)
        row_sum = ops.where(nothing, 1.0, row_sum)
        sums = ops.where(nothing, -float("inf"), row_max + ops.log(row_sum))
        return pooled / row_sum, sums

    def over_queries(state, i, query):
        return state, row(i, query)

    _, found = _each(squares.rows, over_queries, (), _parts(squares.split_queries(query)))
    output, sums = (_merge(x, squares.queries) for x in found)
    return output * float(squares.keys), sums[..., 0]


def _with_block(call, state, query, i, j, key, value):
    """The state of the online softmax with one more block of keys."""

    @keras.remat
    def function(pooled, row_max, row_sum, query, key, value):
        scores, visible = _scores(call, query, key, i, j)  # (..., t, s)
        # The result does not depend on the maximum, so that no derivative goes through it.
        new_max = ops.maximum(row_max, ops.max(scores, axis=-1, keepdims=True))
        new_max = ops.stop_gradient(new_max)
        rescale = ops.exp(row_max - new_max)
        weights = ops.exp(scores - new_max)
        if visible is not None:  # exp(0) of a row that has seen nothing yet is no weight
            weights = ops.where(visible, weights, 0.0)
        row_sum = row_sum * rescale + ops.sum(weights, axis=-1, keepdims=True)
        if call.dropout:
            seed = _seed_of(call.drawn, i * call.squares.columns + j)
            weights = keras.random.dropout(weights, call.dropout, seed=seed)
        return pooled * rescale + products.matmul(weights, value), new_max, row_sum

    return function(*state, query, key, value)


def _scores(call, query, key, i, j):
    """Scores of a block, and which of them are visible: bool, or None for all."""
    grid, visible = call.squares.grid(i, j), None
    scores = ops.cast(call.score(query, key, *call.parameters), query.dtype)
    if call.mask is not None:
        visible = pairs.with_heads(call.mask.on(grid), call.rank)
    if call.squares.columns * call.squares.s != call.squares.keys:
        inside = grid.key_positions() < call.squares.keys
        visible = inside if visible is None else ops.logical_and(visible, inside)
    if call.bias is not None:
        bias = call.bias.on(grid, *call.bias_parameters)
        scores = scores + pairs.with_heads(ops.cast(bias, scores.dtype), call.rank)
    if call.bias is not None or not facts_of(call.score).always_finite:
        visible = softmax.not_hidden(scores, visible)
        scores = softmax.bounded(scores)
    return scores if visible is None else ops.where(visible, scores, softmax.least(scores)), visible


def _seen_in_row(call, i):
    """Function of j: whether some query of row i may see some key of block j, as far as is told."""
    if call.mask is None:
        return lambda j: True
    squares = call.squares
    grid = squares.grid(i, 0)._replace(keys=squares.keys)
    low, high = hooks.key_bounds(call.mask, grid)
    blocks = hooks.seen_blocks(call.mask, grid, squares.s)

    def is_seen(j):
        seen = (j * squares.s < high) & ((j + 1) * squares.s > low)
        return seen if blocks is None else seen & ops.take(blocks, j)

    return is_seen


def _sees(call, query, broken):
    """Which queries may see one of the `broken` keys `(B, S)` or `(B, 1, S)`: `(..., T, 1)`."""
    squares = call.squares

    def rows():
        def over_queries(state, i, _):
            def over_keys(found, j, broken):
                grid = squares.grid(i, j)
                visible = pairs.with_heads(call.mask.on(grid), call.rank)
                # A rule answers anything beyond the matrix, where padding repeats the last key.
                visible = ops.logical_and(visible, grid.key_positions() < squares.keys)
                some = ops.logical_and(visible, ops.swapaxes(broken, -1, -2))  # (..., t, s)
                return ops.logical_or(found, ops.any(some, axis=-1, keepdims=True)), ()

            return state, _each(squares.columns, over_keys, nothing, blocks)[0]

        blocks = _parts(squares.split_keys(broken[..., None]))  # (blocks, ..., s, 1)
        return _merge(_each(squares.rows, over_queries, (), ())[1], squares.queries)

    nothing = ops.zeros((*query.shape[:-2], squares.t, 1), "bool")
    none = ops.zeros((*query.shape[:-1], 1), "bool")
    # As a rule nothing is broken, and no block has to be asked for.
    return ops.cond(ops.any(broken), rows, lambda: none)


def _parts(xs):
    """What `_each` takes of tensors `(count, ...)`.

    On PyTorch lists, made once: the gradient of `xs[n]` is a tensor of zeros as large as `xs`.
    """
    if keras.backend.backend() == "jax":
        return xs
    return keras.tree.map_structure(_Parts, xs)


class _Parts:
    """No list, which `keras.tree` would look into."""

    def __init__(self, x):
        self.of = ops.unstack(x)


def _each(count, body, state, xs):
    """`body(state, n, xs[n])` for each n: the last state, and what else it gives, stacked.

    Traced once on JAX. On PyTorch a loop, in which n is an int.

    Args:
        xs: from `_parts`.
    """
    if keras.backend.backend() == "jax":
        numbers = ops.arange(count, dtype="int32")
        return ops.scan(lambda state, x: body(state, *x), state, (numbers, xs))
    found = []
    for n in range(count):
        part = keras.tree.map_structure(lambda x, n=n: x.of[n], xs)
        state, more = body(state, n, part)
        found.append(more)
    return state, keras.tree.map_structure(lambda *parts: ops.stack(parts), *found)


def _if(condition, yes, no):
    if isinstance(condition, bool):
        return yes() if condition else no()
    return ops.cond(condition, yes, no)


def _split(x, blocks, size):
    """`(..., N, D)` as blocks `(blocks, ..., size, D)`, padded with copies of the last token: a
    score of one's own may have no value, or no slope, at zero.
    """
    more = blocks * size - x.shape[-2]
    if more:
        x = ops.concatenate([x, ops.repeat(x[..., -1:, :], more, axis=-2)], axis=-2)
    x = ops.reshape(x, (*x.shape[:-2], blocks, size, x.shape[-1]))
    return ops.moveaxis(x, -3, 0)


def _merge(x, length):
    """And back, without the padding."""
    x = ops.moveaxis(x, 0, -3)  # (..., blocks, size, D)
    x = ops.reshape(x, (*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1]))
    return x[..., :length, :]


def _drawn(seed):
    """Two words of the caller's generator, which the noise of all blocks is drawn from."""
    words = keras.random.randint((2,), 0, 2**31 - 1, dtype="int32", seed=seed)
    return words if keras.backend.backend() == "jax" else [int(word) for word in words]


def _seed_of(drawn, number):
    """The seed of a block, for `keras.random`: the same each time that the block is computed."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.random.fold_in(ops.cast(drawn, "uint32"), number)
    return int(np.random.SeedSequence([*drawn, number]).generate_state(1)[0] >> 1)
