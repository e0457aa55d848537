"""Exact attention in linear memory on JAX and PyTorch, for any score, mask and bias.

An online softmax runs over the blocks of s keys of each row of t queries, and the backend
differentiates it; with `keras.remat` it keeps only the inputs of each row and block, and computes
the rest again. Blocks that the mask hides are skipped. On JAX calls of one structure share a
compiled function, since a loop is compiled again for each new body.

Source: Rabe, Staats 2021, arXiv:2112.05682 (the algorithm and its checkpoints); Milakov,
Gimelshein 2018, arXiv:1805.02867 (the online softmax).
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn._types import Size, Tensor
from tfattn.core import masks, objects, softmax
from tfattn.core.call import AttentionCall
from tfattn.core.engine import devices, fused, sizes
from tfattn.core.guard import attends_by_blocks, guard
from tfattn.core.masks import ranges
from tfattn.core.scores import facts_of
from tfattn.core.tensors import matmul, with_heads


def run(
    call: AttentionCall, by_kernel: bool = False, block: tuple[int, int] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """The result of `core.attend` for at least one query and key; `block` is a `(t, s)` to take."""
    learned = () if call.bias is None else call.bias.parameters()
    changes = {
        # Read once, since a loop must not read variables.
        "parameters": tuple(map(ops.convert_to_tensor, call.parameters)),
        "learned": tuple(map(ops.convert_to_tensor, learned)),
        "dropout": float(call.dropout),
        "return_log_sum_exp": bool(call.return_log_sum_exp),
        "seed": None,
        "path": None,
    }
    blocks = _Blocks(
        **{**vars(call), **changes},
        drawn=_drawn(call.seed) if call.dropout else None,
        tiling=_Tiling.of(call.query, call.key, call.score, block),
        by_kernel=by_kernel,
    )
    tensors, structure = objects.flatten(blocks)
    if keras.backend.backend() == "jax" and objects.is_shareable(structure):
        return _compiled(structure)(tensors)
    return _computed(structure, tensors)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Blocks(AttentionCall):
    """A call by blocks."""

    is_pure = True
    drawn: Any  # random words that seed the dropout, or None
    tiling: "_Tiling"
    by_kernel: bool


@functools.lru_cache(sizes.SHARED_CALLS)
def _compiled(structure: objects.Structure) -> Callable[[list[Tensor]], Any]:
    import jax

    return jax.jit(functools.partial(_computed, structure))


def _computed(
    structure: objects.Structure, tensors: list[Tensor]
) -> Tensor | tuple[Tensor, Tensor]:
    """The result of `run`, from the tensors of a call."""
    call: _Blocks = objects.unflatten(structure, tensors)
    query, key, value = call.query, call.key, call.value
    mask, given = call.mask, value.dtype
    sums_dtype = keras.backend.result_type(query.dtype, key.dtype, "float32")
    wide = keras.backend.result_type(query.dtype, key.dtype, value.dtype, "float32")

    def by_blocks(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        output, sums = _rows(call, *(ops.cast(x, wide) for x in (query, key, value)))
        return ops.cast(output, given), sums

    if mask is not None:
        none = ops.zeros((*query.shape[:-1], 1), "bool")

        def attends_to(finite: Tensor) -> Tensor:
            # Usually all tokens are finite, and the mask is not evaluated.
            seen = functools.partial(attends_by_blocks, mask, query, finite)
            return ops.cond(ops.all(finite), lambda: none, seen)

        query, key, value = guard(query, key, value, attends_to)
    if call.by_kernel:
        options = {"recompute": lambda *operands: by_blocks(*operands)[0]}
        return fused.run(query, value, key, call.score, mask, **options)
    output, sums = by_blocks(query, key, value)
    if mask is not None and keras.backend.backend() == "torch":
        output = _connected(output, query, key, value)
    return (output, ops.cast(sums, sums_dtype)) if call.return_log_sum_exp else output


def _connected(output: Tensor, *operands: Tensor) -> Tensor:
    """The output, with zero gradients where the mask hides all keys: it is a constant there."""
    nothing = ops.zeros((1,), "bool")
    zeros = [ops.where(nothing, ops.reshape(x, (-1,))[:1], 0.0) for x in operands]
    return output + ops.cast(ops.sum(ops.concatenate(zeros)), output.dtype)


class _Tiling(NamedTuple):
    """The matrix and the sizes of its blocks."""

    queries: int  # T
    keys: int  # S
    t: int
    s: int

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        score: Callable[..., Tensor],
        block: tuple[int, int] | None,
    ) -> "_Tiling":
        limits = devices.entry(sizes.SCAN, query)
        numbers = limits.numbers
        if not facts_of(score).is_product:
            numbers //= query.shape[-1]
        batch, *heads = query.shape[:-2]
        rows = batch if isinstance(batch, int) else sizes.UNKNOWN_BATCH
        side = math.isqrt(numbers // max(1, math.prod((rows, *heads))))
        side = min(max(side, limits.least), limits.most)
        sides = block or (side, side)
        lengths = query.shape[-2], key.shape[-2]
        # Spread evenly, for as little padding as possible.
        even = [-(-n // -(-n // most)) for n, most in zip(lengths, sides, strict=True)]
        return cls(*lengths, *even)

    @property
    def rows(self) -> int:
        return -(-self.queries // self.t)

    @property
    def columns(self) -> int:
        return -(-self.keys // self.s)

    def grid(self, i: Size, j: Size) -> masks.Grid:
        start = i * self.t, j * self.s
        return masks.Grid(self.queries, self.keys, *start, self.t, self.s, aligned=True)


_State = tuple[Tensor, Tensor, Tensor]  # pooled values, row_max and row_sum


def _rows(call: _Blocks, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output `(..., T, Dv)`, and the log of the sums `(..., T)`."""
    tiling, width = call.tiling, value.shape[-1]
    # Values are divided by the number of keys before the sum: a sum of numbers near the largest
    # float overflows where their mean does not.
    blocks = _parts(*(_split(x, tiling.columns, tiling.s) for x in (key, value / tiling.keys)))

    @keras.remat
    def row(i: Size, query: Tensor) -> tuple[Tensor, Tensor]:
        is_seen = _seen_in_row(call, i)

        def over_keys(state: _State, j: Size, block: Any) -> tuple[_State, Any]:
            with_block = keras.remat(functools.partial(_with_block, call, i, j))
            return _if(is_seen(j), lambda: with_block(*state, query, *block), lambda: state), ()

        zero = ops.zeros_like(query[..., :1])  # (..., t, 1)
        start = (ops.repeat(zero, width, axis=-1), zero + softmax.least(zero), zero)
        (pooled, row_max, row_sum), _ = _each(tiling.columns, over_keys, start, blocks)
        is_empty = ops.equal(row_sum, 0)
        row_sum = ops.where(is_empty, 1.0, row_sum)
        sums = ops.where(is_empty, -float("inf"), row_max + ops.log(row_sum))
        return pooled / row_sum, sums

    def over_queries(state: Any, i: Size, query: Any) -> tuple[Any, Any]:
        return state, row(i, *query)

    _, found = _each(tiling.rows, over_queries, (), _parts(_split(query, tiling.rows, tiling.t)))
    output, sums = (_merge(x, tiling.queries) for x in found)
    return output * float(tiling.keys), sums[..., 0]


def _with_block(call: _Blocks, i: Size, j: Size, *tensors: Tensor) -> _State:
    """The state of the online softmax with one more block of keys."""
    pooled, row_max, row_sum, query, key, value = tensors
    scores, visible = _scores(call, query, key, i, j)  # (..., t, s)
    # The result does not depend on the maximum, so the maximum needs no derivative.
    new_max = ops.maximum(row_max, ops.max(scores, axis=-1, keepdims=True))
    new_max = ops.stop_gradient(new_max)
    rescale = ops.exp(row_max - new_max)
    weights = ops.exp(scores - new_max)
    if visible is not None:  # a row without a visible key so far has exp(0) here
        weights = ops.where(visible, weights, 0.0)
    row_sum = row_sum * rescale + ops.sum(weights, axis=-1, keepdims=True)
    if call.dropout:
        seed = _seed_of(call.drawn, i * call.tiling.columns + j)
        weights = keras.random.dropout(weights, call.dropout, seed=seed)
    return pooled * rescale + matmul(weights, value), new_max, row_sum


def _scores(
    call: _Blocks, query: Tensor, key: Tensor, i: Size, j: Size
) -> tuple[Tensor, Tensor | None]:
    """Scores of a block, and the visible pairs: bool, or None where all are visible."""
    tiling, visible = call.tiling, None
    grid = tiling.grid(i, j)
    scores = ops.cast(call.score(query, key, *call.parameters), query.dtype)
    if call.bias is not None:
        bias = ops.cast(call.bias.on(grid, *call.learned), scores.dtype)
        scores = scores + with_heads(bias, call.rank)
    if call.mask is not None:
        visible = with_heads(call.mask.on(grid), call.rank)
    if tiling.columns * tiling.s != tiling.keys:
        inside = grid.key_positions() < tiling.keys
        visible = inside if visible is None else ops.logical_and(visible, inside)
    if call.bias is not None or not facts_of(call.score).always_finite:
        visible = softmax.not_hidden(scores, visible)
        scores = softmax.bounded(scores)
    return scores if visible is None else ops.where(visible, scores, softmax.least(scores)), visible


def _seen_in_row(call: _Blocks, i: Size) -> Callable[[Size], bool | Tensor]:
    """Function of j: whether some query of row i may see some key of block j, by the hooks."""
    if call.mask is None:
        return lambda j: True
    tiling = call.tiling
    grid = tiling.grid(i, 0)._replace(keys=tiling.keys)
    seen = ranges.Bounds.of(call.mask, grid).seen

    def is_seen(j: Size) -> bool | Tensor:
        start, end = j * tiling.s, (j + 1) * tiling.s
        return functools.reduce(operator.or_, [(start < high) & (end > low) for low, high in seen])

    return is_seen


def _parts(*xs: Tensor) -> Any:
    """Tensors `(count, ...)` in the form that `_each` takes."""
    # On PyTorch unstacked once, since the gradient of each `x[n]` is as large as `x`.
    return xs if keras.backend.backend() == "jax" else list(zip(*map(ops.unstack, xs), strict=True))


def _each(count: int, body: Callable[..., tuple[Any, Any]], state: Any, xs: Any = ()) -> Any:
    """The last state and the stacked outputs of `body(state, n, parts)` for each n, with the n-th
    parts of the tensors of `_parts`; on PyTorch n is an int.
    """
    if keras.backend.backend() == "jax":
        numbers = ops.arange(count, dtype="int32")
        return ops.scan(lambda state, x: body(state, *x), state, (numbers, xs))
    found = []
    for n, parts in enumerate(xs or [()] * count):
        state, more = body(state, n, parts)
        found.append(more)
    return state, keras.tree.map_structure(lambda *parts: ops.stack(parts), *found)


def _if(condition: bool | Tensor, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    if isinstance(condition, bool):
        return yes() if condition else no()
    return ops.cond(condition, yes, no)


def _split(x: Tensor, blocks: int, size: int) -> Tensor:
    """`(..., N, D)` as blocks `(blocks, ..., size, D)`, padded with copies of the last token."""
    more = blocks * size - x.shape[-2]
    if more:
        x = ops.concatenate([x, ops.repeat(x[..., -1:, :], more, axis=-2)], axis=-2)
    x = ops.reshape(x, (*x.shape[:-2], blocks, size, x.shape[-1]))
    return ops.moveaxis(x, -3, 0)


def _merge(x: Tensor, length: int) -> Tensor:
    """The inverse of `_split`, without the padding."""
    x = ops.moveaxis(x, 0, -3)  # (..., blocks, size, D)
    x = ops.reshape(x, (*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1]))
    return x[..., :length, :]


def _drawn(seed: Any) -> Tensor | list[int]:
    """Two random words of the caller's generator, from which every block's seed is derived."""
    words = keras.random.randint((2,), 0, 2**31 - 1, dtype="int32", seed=seed)
    return words if keras.backend.backend() == "jax" else [int(word) for word in words]


def _seed_of(drawn: Any, number: Any) -> Any:
    """The seed of a block for `keras.random`, the same whenever the block is computed."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.random.fold_in(ops.cast(drawn, "uint32"), number)
    return int(np.random.SeedSequence([*drawn, number]).generate_state(1)[0] >> 1)
