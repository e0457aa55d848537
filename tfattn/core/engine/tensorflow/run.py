"""The entry point of streamed attention on TensorFlow."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfattn import _checks
from tfattn._types import Size
from tfattn.core import biases
from tfattn.core.call import AttentionCall
from tfattn.core.engine import devices
from tfattn.core.engine.tensorflow.block_bias import ArrayBias
from tfattn.core.engine.tensorflow.block_dropout import BlockDropout
from tfattn.core.engine.tensorflow.differentiation import BlockwiseCall, compiled, differentiated
from tfattn.core.engine.tensorflow.loops import Block, in_xla_context, size
from tfattn.core.guard import attends_by_blocks, guard
from tfattn.core.masks import Grid, Mask
from tfattn.core.scores import facts_of


def run(
    call: AttentionCall,
    dropout: BlockDropout | None = None,
    block: Block = None,
    shared: bool = False,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """The result of `core.attend`.

    ∂weight and Σ weight · ∂weight round differently, and the slope of a score multiplies the error:
    at the edge of a kernel's support, where it is unbounded, the dense path is more exact.

    If `shared`, all calls of one kind and shape use the same functions, traced once: for graphs,
    where tracing both passes costs a second for each layer.
    """
    given = call.query, call.key, call.value
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in given]
    compute = keras.backend.result_type(*dtypes, "float32")
    narrow = set(dtypes) == {"bfloat16"} and _stays_in_bfloat16(call)
    query, key, value = given if narrow else (tf.cast(x, compute) for x in given)
    if call.rank == 3:
        query, key, value = (x[:, None] for x in (query, key, value))  # (B, 1, T, D)
    heads_together, bias = False, call.bias
    if call.mask is not None:
        pair = _check_lengths(call.mask, query, key)
        heads_together = pair.shape.rank is None or (pair.shape.rank == 4 and pair.shape[1] != 1)
    if bias is not None:
        heads_together = heads_together or (bias.differs_by_head and not bias.splits_by_head)
    if type(bias) is biases.explicit:
        bias = biases.explicit(ArrayBias.expanded(bias.parameters()[0], query, key))
    parameters = [tf.convert_to_tensor(x) for x in call.parameters]
    parameters = [tf.cast(x, compute) if x.dtype.is_floating else x for x in parameters]
    if call.mask is not None:
        query, key, value = _guarded(call.mask, query, key, value)
    prepared = BlockwiseCall(
        query=query,
        key=key,
        value=value,
        learned=[] if bias is None else list(map(tf.convert_to_tensor, bias.parameters())),
        parameters=parameters,
        bias=bias,
        mask=call.mask,
        score=call.score,
        return_log_sum_exp=bool(call.return_log_sum_exp),
        draws=dropout,
        given_rank=call.rank,
        block=block,
        heads_together=heads_together,
    )
    found = differentiated(prepared, shared)
    output, *sums = [x[:, 0] for x in found] if call.rank == 3 else found
    output = tf.cast(output, call.value.dtype)
    if not call.return_log_sum_exp:
        return output
    return output, tf.cast(sums[0][..., 0], keras.backend.result_type(*dtypes[:2], "float32"))


def _guarded(mask: Mask, *operands: tf.Tensor) -> Any:
    """Query, key and value after `core.guard`."""
    query, key, value = operands
    attends_to = functools.partial(attends_by_blocks, mask, query)
    # A finite sum of squares proves the tokens finite, without a test of each.
    clean = tf.math.is_finite(tf.nn.l2_loss(key) + tf.nn.l2_loss(value))
    clean |= tf.equal(size(query, 2), 0)  # no query sees them
    return tf.cond(clean, lambda: operands, lambda: guard(query, key, value, attends_to))


def _check_lengths(mask: Mask, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """The mask on one pair of each row of the batch, after a check of the lengths of its arrays, of
    which a block would silently cut its rows; unknown lengths are asserted in the graph.
    """
    batch, queries, keys = size(query, 0), size(query, 2), size(key, 2)
    return tf.convert_to_tensor(mask.on(_OnePair(queries, keys, 0, 0, 1, 1, 0, batch)))


class _OnePair(Grid):
    def batch_of(self, tensor: tf.Tensor) -> tf.Tensor:
        self._check(tensor, 0, self.batch)
        return tensor

    def rows_of(self, tensor: tf.Tensor, axis: int) -> tf.Tensor:
        return self._first(tensor, axis, self.num_queries)

    def columns_of(self, tensor: tf.Tensor, axis: int) -> tf.Tensor:
        return self._first(tensor, axis, self.num_keys)

    def _first(self, tensor: tf.Tensor, axis: int, wanted: Size) -> tf.Tensor:
        axis %= len(tensor.shape)
        self._check(tensor, axis, wanted)
        sizes = [-1] * len(tensor.shape)
        sizes[axis] = tf.minimum(1, size(tensor, axis))
        return tf.slice(tensor, [0] * len(sizes), sizes)

    def _check(self, tensor: tf.Tensor, axis: int, wanted: Size | None) -> None:
        length = size(tensor, axis)
        if isinstance(length, int) and isinstance(wanted, int):
            if length not in (1, wanted):
                expected = f"have the length {wanted} or 1 on axis {axis}"
                _checks.fail("attend", "mask", expected, tuple(tensor.shape))
        elif length is not wanted:
            fits = tf.equal(length, wanted) | tf.equal(length, 1)
            message = ["attend: a mask must have the length", wanted, "or 1. Received:", length]
            tf.debugging.Assert(fits, message)


def _stays_in_bfloat16(call: AttentionCall) -> bool:
    """Whether the gradients of blocks are products in bfloat16, which are slower under XLA."""
    is_product = facts_of(call.score).is_product and call.bias is None
    is_fast = is_product and devices.multiplies_bfloat16(call.query)
    return is_fast and not in_xla_context()


def choose(streams: tf.Tensor, dense: Callable[[], Any], streamed: Callable[[], Any]) -> Any:
    """The result of `streamed()` if the bool tensor `streams` is True, otherwise of `dense()`."""
    # XLA compiles both branches of a `tf.cond`, whose gradients get sizes unknown until run time,
    # and only the one that runs of this. A function in the branch, since TensorFlow restores a
    # saved `tf.custom_gradient` there, but not directly in a branch.
    return tf.switch_case(tf.cast(streams, tf.int32), [dense, lambda: compiled(streamed)()])
