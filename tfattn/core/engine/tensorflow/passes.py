"""The forward and the backward pass over the blocks of the matrix.

Both loop over the steps of a `Tiling`, over the blocks of queries of a step, and over the visible
blocks of keys. Two steps run at a time, so that one keeps the cores busy while the other waits; the
inner loops are serial, so memory holds the blocks of two steps. Shape letters are from `tiling`.

The backward pass computes every block again. With weight = exp(score − row_max) / row_sum,

    ∂value = Σ_queries weight · ∂output
    ∂score = weight · (∂output · value − delta)
    delta  = Σ_keys weight · ∂output · value − ∂log_sum_exp

and the sum over keys is ∂output · output, known before the pass begins (Dao et al. 2022,
arXiv:2205.14135, appendix B).

Operands may be bfloat16, for processors that multiply it faster. Then ∂value, ∂query and ∂key of a
block are products in bfloat16; scores, softmax and all sums over blocks stay in float32.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfattn._types import Size
from tfattn.core.engine import devices, sizes
from tfattn.core.engine.tensorflow.block_bias import BlockBias
from tfattn.core.engine.tensorflow.block_dropout import BlockDropout
from tfattn.core.engine.tensorflow.block_scores import BlockScore
from tfattn.core.engine.tensorflow.loops import add, loop, size, sums_dtype, wide, zeros
from tfattn.core.engine.tensorflow.online_softmax import HIDDEN, OnlineSoftmax, log_of_sums
from tfattn.core.engine.tensorflow.tiling import Tiling, VisibleKeys
from tfattn.core.masks import Mask
from tfattn.core.tensors import with_heads


@dataclasses.dataclass(frozen=True, eq=False)
class BlockwisePasses:
    """The forward and the backward pass, with their arguments besides the operands.

    Attributes:
        tiling: a `Tiling`.   score: a block form of `block_scores`.   mask: a mask object, or None.
        bias: a block form of `block_bias`, or None.   dropout: a `BlockDropout`, or None.
        log_sum_exp: whether `forward` returns the log of the sums too.
    """

    tiling: Tiling
    score: BlockScore
    mask: Mask | None
    bias: BlockBias | None
    dropout: BlockDropout | None
    log_sum_exp: bool

    def forward(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None, list[tf.Tensor]]:
        """The output `(B, H, T, Dv)`, the log of the sums `(B, H, T, 1)` or None, and row_max and
        row_sum for `backward`.
        """
        tiling, steps = self.tiling, self.tiling.steps
        operands = [tiling.split_steps(x) for x in (query, key, value)]

        def over_steps(m: Size, *arrays: tf.TensorArray) -> list[tf.TensorArray]:
            output, *softmax = self._forward_step(m, *self._blocks(m, *operands))
            parts = [tiling.merge_queries(output), *softmax]
            return [array.write(m, part) for array, part in zip(arrays, parts, strict=True)]

        shapes = [[*operands[0].shape[1:-1], value.shape[-1]], None, None]
        dtype = sums_dtype(query.dtype)
        arrays = [tf.TensorArray(dtype, steps, element_shape=shape) for shape in shapes]
        arrays = loop(0, steps, over_steps, *arrays, at_once=sizes.STEPS_AT_ONCE)
        output, row_max, row_sum = [array.stack() for array in arrays]
        if query.dtype == tf.bfloat16:
            # Weights without a divisor: `backward` would round ∂output / row_sum.
            row_max, row_sum = row_max + tf.math.log(row_sum), tf.ones_like(row_sum)
        sums = None
        if self.log_sum_exp:
            sums = tiling.merge_steps(tiling.merge_rows(log_of_sums(row_max, row_sum)), query)
        # row_max and row_sum: (steps, blocks, c, G, R, 1).
        return tiling.merge_steps(output, query), sums, [row_max, row_sum]

    def _blocks(
        self, m: Size, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Blocks of step m: queries `(blocks, c, G, R, X)`, keys and values
        `(blocks, c, G, s, ...)`.
        """
        tiling = self.tiling
        return (
            wide(tiling.split_queries(query[m], copies=True)) * self.score.scale(query),
            tiling.split_keys(key[m], copies=True),
            tiling.split_keys(value[m]),
        )

    def _forward_step(
        self, m: Size, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor
    ) -> list[tf.Tensor]:
        """Blocks of outputs `(blocks, c, G, R, Dv)`, of row_max and of row_sum
        `(blocks, c, G, R, 1)`.
        """
        softmax = OnlineSoftmax(self.tiling.keys, self.dropout)
        keys, prepared = wide(keys), softmax.prepared(wide(values))

        def over_queries(i: Size, *arrays: tf.TensorArray) -> list[tf.TensorArray]:
            query, visible = queries[i], VisibleKeys.of(self.mask, self.tiling, m, i)

            def over_keys(
                n: Size, pooled: tf.Tensor, row_max: tf.Tensor, row_sum: tf.Tensor
            ) -> tuple[tf.Tensor, ...]:
                j = visible.at(n)
                scores = self._scores(query, keys[j], m, i, j, visible)
                number = self._number(m, i, j)
                return softmax.update(pooled, row_max, row_sum, scores, prepared[j], number)

            state = loop(
                visible.first,
                visible.end,
                over_keys,
                *softmax.start(query, size(values, -1)),
                most=self.tiling.key_blocks,
            )
            found = softmax.result(*state)
            return [array.write(i, x) for array, x in zip(arrays, found, strict=True)]

        blocks, steps = self.tiling.query_blocks, self.tiling.steps
        shapes = [[*queries.shape[1:-1], width] for width in (values.shape[-1], 1, 1)]
        arrays = [tf.TensorArray(queries.dtype, blocks, element_shape=shape) for shape in shapes]
        # With a single step, blocks of queries run in parallel instead.
        at_once = sizes.STEPS_AT_ONCE if isinstance(steps, int) and steps == 1 else 1
        return [array.stack() for array in loop(0, blocks, over_queries, *arrays, at_once=at_once)]

    def backward(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        softmax: Sequence[tf.Tensor],
        grad_output: tf.Tensor,
        delta: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """Gradients of query, key, value, the bias's parameters and the score's parameters.

        Args:
            delta: `(B, H, T, 1)`, subtracted from ∂output · value in the gradient of a score.
        """
        tiling, steps = self.tiling, self.tiling.steps
        operands = [tiling.split_steps(x) for x in (query, key, value)]
        gradients = [tiling.split_steps(x) for x in (grad_output, delta)]

        def over_steps(
            m: Size,
            grad_query: tf.TensorArray,
            grad_key: tf.TensorArray,
            grad_value: tf.TensorArray,
            grad_bias: Any,
            grad_parameters: list[tf.Tensor],
        ) -> tuple[Any, ...]:
            # Sums of its own: steps that run at once would wait for each other's.
            sums = [tf.zeros_like(x) for x in grad_parameters]
            of_step = () if self.bias is None else self.bias.of_step(grad_bias)
            blocks = self._blocks(m, *operands)
            blocks += tuple(x[m] for x in softmax)
            blocks += tuple(tiling.split_queries(x[m]) for x in gradients)
            blocks += (of_step, sums)
            queries, keys, values, of_step, sums = self._backward_step(m, *blocks)
            return (
                grad_query.write(m, tiling.merge_queries(queries) * self.score.scale(query)),
                grad_key.write(m, tiling.merge_keys(keys)),
                grad_value.write(m, tiling.merge_keys(values)),
                () if self.bias is None else self.bias.add_step(grad_bias, of_step, m),
                [a + b for a, b in zip(grad_parameters, sums, strict=True)],
            )

        dtype = sums_dtype(query.dtype)
        arrays = [tf.TensorArray(dtype, steps, element_shape=x.shape[1:]) for x in operands]
        grad_bias = () if self.bias is None else self.bias.zeros(dtype)
        grad_parameters = [tf.zeros_like(x) for x in self.score.parameters]
        *arrays, grad_bias, grad_parameters = loop(
            0,
            steps,
            over_steps,
            *arrays,
            grad_bias,
            grad_parameters,
            at_once=sizes.STEPS_AT_ONCE,
        )
        found = [
            tiling.merge_steps(x.stack(), like)
            for x, like in zip(arrays, (query, key, value), strict=True)
        ]
        grad_bias = [] if self.bias is None else self.bias.gradients(grad_bias)
        return *found, *grad_bias, *grad_parameters

    def _backward_step(
        self,
        m: Size,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        row_max: tf.Tensor,
        row_sum: tf.Tensor,
        grad_outputs: tf.Tensor,
        deltas: tf.Tensor,
        grad_bias: Any,
        grad_parameters: list[tf.Tensor],
    ) -> tuple[Any, ...]:
        """Gradients of the step's blocks of queries, keys and values, and the sums after it."""
        wide_keys, wide_values = wide(keys), wide(values)
        # A column more subtracts row_max; not on GPUs, which round it, nor of a bias that may hide.
        in_product = self.score.is_product and devices.kind(queries) == "cpu"
        in_product &= self.bias is None or getattr(self.bias.bias, "is_of_distance", False)
        shifted = tf.concat([queries, -row_max], -1) if in_product else queries
        if in_product:
            wide_keys = tf.concat([wide_keys, tf.ones_like(wide_keys[..., :1])], -1)

        def over_queries(i: Size, grad_queries: tf.TensorArray, *state: Any) -> tuple[Any, ...]:
            query, visible = queries[i], VisibleKeys.of(self.mask, self.tiling, m, i)
            # Divided per token and not per pair, since tokens are fewer.
            grad_output, delta = grad_outputs[i] / row_sum[i], deltas[i] / row_sum[i]
            narrow_query = tf.cast(query, keys.dtype)
            narrow_output = tf.cast(grad_output, values.dtype)

            def over_keys(
                n: Size,
                grad_query: tf.Tensor,
                grad_keys: tf.TensorArray,
                grad_values: tf.TensorArray,
                grad_bias: Any,
                grad_parameters: list[tf.Tensor],
            ) -> tuple[Any, ...]:
                j = visible.at(n)
                scores = self._scores(shifted[i], wide_keys[j], m, i, j, visible)
                scores = scores if in_product else scores - row_max[i]
                kept = weights = tf.exp(scores)  # times row_sum
                grad_weights = tf.matmul(grad_output, wide_values[j], transpose_b=True)
                if self.dropout is not None:
                    keep = self.dropout.keep(
                        self._number(m, i, j), tf.shape(weights), weights.dtype
                    )
                    keep *= self.dropout.scale
                    kept, grad_weights = weights * keep, grad_weights * keep
                # A hidden pair, of weight 0, gets 0 even where its value overflows the product.
                grad_scores = tf.math.multiply_no_nan(grad_weights - delta, weights)
                grad_scores = tf.cast(grad_scores, keys.dtype)
                kept = tf.cast(kept, values.dtype)
                grad_value = tf.matmul(kept, narrow_output, transpose_a=True)
                if self.bias is None:
                    found = self.score.vjp(self.tiling, narrow_query, keys[j], grad_scores)
                else:
                    found, grad_bias = self.bias.vjp(
                        self.score, narrow_query, keys[j], grad_scores, grad_bias, m, i, j
                    )
                more_query, grad_key, more_parameters = found
                return (
                    grad_query + wide(more_query),
                    add(grad_keys, j, grad_key),
                    add(grad_values, j, grad_value),
                    grad_bias,
                    [a + b for a, b in zip(grad_parameters, more_parameters, strict=True)],
                )

            grad_query, *after = loop(
                visible.first,
                visible.end,
                over_keys,
                tf.zeros_like(queries[i]),
                *state,
                most=self.tiling.key_blocks,
            )
            return grad_queries.write(i, grad_query), *after

        blocks = self.tiling.query_blocks
        grad_queries = tf.TensorArray(queries.dtype, blocks, element_shape=queries.shape[1:])
        grad_queries, grad_keys, grad_values, *sums = loop(
            0,
            blocks,
            over_queries,
            grad_queries,
            zeros(keys),
            zeros(values),
            grad_bias,
            grad_parameters,
        )
        return grad_queries.stack(), grad_keys.stack(), grad_values.stack(), *sums

    def _scores(
        self, query: tf.Tensor, key: tf.Tensor, m: Size, i: Size, j: Size, visible: VisibleKeys
    ) -> tf.Tensor:
        """Scores of a block, with `HIDDEN` for keys that the mask hides and for padding."""
        tiling = self.tiling
        if self.bias is None:
            scores = self.score.scores(tiling, query, key)
        else:
            scores = self.bias.scores(self.score, query, key, m, i, j)
        if self.mask is None and not tiling.padded:
            return scores

        def partial() -> tf.Tensor:
            grid = tiling.grid(m, i, j)
            inside = grid.key_positions() < tiling.keys  # (1, s)
            if self.mask is None:
                seen = inside
            else:
                seen = with_heads(self.mask.on(grid), 4)  # broadcastable to (c, H, t, s)
                seen = seen & inside if tiling.padded else seen
            scores_by_head = tiling.by_head(scores)
            return tiling.by_group(tf.where(seen, scores_by_head, HIDDEN))

        full = visible.is_full(j)
        if isinstance(full, bool):
            return scores if full else partial()
        return tf.cond(full, lambda: scores, partial)

    def _number(self, m: Size, i: Size, j: Size) -> Size:
        """The index of a block among the blocks of all steps, which seeds its dropout."""
        return (m * self.tiling.query_blocks + i) * self.tiling.key_blocks + j
