"""The entry point of streamed attention on TensorFlow."""

import dataclasses
import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfattn import _checks
from tfattn._types import Size
from tfattn.core import biases, objects
from tfattn.core.call import AttentionCall
from tfattn.core.engine import devices, sizes
from tfattn.core.engine.tensorflow.block_bias import ArrayBias
from tfattn.core.engine.tensorflow.block_dropout import BlockDropout
from tfattn.core.engine.tensorflow.differentiation import BlockwiseCall, compiled, differentiated
from tfattn.core.engine.tensorflow.loops import Block, in_xla_context, size
from tfattn.core.guard import attends_by_blocks, guard
from tfattn.core.masks import Grid, Mask
from tfattn.core.scores import facts_of

# From the structure and the shapes of a call to its traced function, the oldest first.
_shared: dict[tuple[Any, ...], Callable[..., Any]] = {}
_lock = threading.Lock()


def run(
    call: AttentionCall,
    dropout: BlockDropout | None = None,
    block: Block = None,
    shared: bool = False,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """The result of `core.attend`.

    ∂weight and Σ weight · ∂weight round differently, and the slope of a score multiplies the error:
    at the edge of a kernel's support, where it is unbounded, the dense path is more exact.

    If `shared`, all calls of one kind and shape use the same function, traced once: for graphs,
    where both passes cost a second for each layer, and memory for thousands of operations.
    """
    learned = () if call.bias is None else call.bias.parameters()
    prepared = BlockwiseCall(
        **{**vars(call), "seed": None, "return_log_sum_exp": bool(call.return_log_sum_exp)}
        | {"learned": [*map(tf.convert_to_tensor, learned)]}
        | {"parameters": [*map(tf.convert_to_tensor, call.parameters)]}
        | {"draws": dropout, "given_rank": call.rank, "block": block}
    )
    return _traced(prepared) if shared else _run(prepared)


def _traced(call: BlockwiseCall) -> Any:
    """`_run` in a traced function of the call's tensors, one for each shareable kind."""
    tensors, structure = objects.flatten(call)
    tensors = [tf.convert_to_tensor(x) for x in tensors]  # variables of a bias are read here

    def function(*tensors: tf.Tensor) -> Any:
        return _run(objects.unflatten(structure, tensors))

    # XLA inlines by itself, and fails at unknown lengths where TensorFlow has done so.
    is_small = math.prod(n or 1 for n in call.query.shape) < sizes.INLINED_NUMBERS
    noinline = is_small or in_xla_context()
    if not objects.is_shareable(structure):
        return compiled(function, noinline)(*tensors)
    kind = (structure, in_xla_context(), *((x.dtype, tuple(x.shape)) for x in tensors))
    with _lock:
        if kind not in _shared:
            while len(_shared) >= sizes.SHARED_CALLS:
                del _shared[next(iter(_shared))]  # the oldest; its callers keep a reference
            _shared[kind] = compiled(function, noinline)
        shared = _shared[kind]
    return shared(*tensors)


def _run(call: BlockwiseCall) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    given = call.query, call.key, call.value
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in given]
    compute = keras.backend.result_type(*dtypes, "float32")
    narrow = set(dtypes) == {"bfloat16"} and _stays_in_bfloat16(call)
    query, key, value = given if narrow else (tf.cast(x, compute) for x in given)
    if call.given_rank == 3:
        query, key, value = (x[:, None] for x in (query, key, value))  # (B, 1, T, D)
    heads_together, bias, learned = False, call.bias, call.learned
    if call.mask is not None:
        pair = _check_lengths(call.mask, query, key)
        heads_together = pair.shape.rank is None or (pair.shape.rank == 4 and pair.shape[1] != 1)
        query, key, value = _guarded(call.mask, query, key, value)
    if bias is not None:
        heads_together = heads_together or (bias.differs_by_head and not bias.splits_by_head)
    if type(bias) is biases.explicit:
        learned = [ArrayBias.expanded(learned[0], query, key)]
        bias = biases.explicit(*learned)
    prepared = dataclasses.replace(
        call,
        **{"query": query, "key": key, "value": value, "learned": learned, "bias": bias},
        parameters=[tf.cast(x, compute) if x.dtype.is_floating else x for x in call.parameters],
        heads_together=heads_together,
    )
    found = differentiated(prepared)
    output, *sums = [x[:, 0] for x in found] if call.given_rank == 3 else found
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
        return tensor[(slice(None),) * axis + (slice(1),)]

    def _check(self, tensor: tf.Tensor, axis: int, wanted: Size | None) -> None:
        length = size(tensor, axis)
        if isinstance(length, int) and isinstance(wanted, int):
            if length not in (1, wanted):
                expected = f"have the length {wanted} or 1 on axis {axis}"
                _checks.fail("attend", "mask", expected, tuple(tensor.shape))
        elif length is not wanted:
            message = ["attend: a mask must have the length", wanted, "or 1. Received:", length]
            tf.debugging.Assert(tf.equal(length, wanted) | tf.equal(length, 1), message)


def _stays_in_bfloat16(call: AttentionCall) -> bool:
    """Whether the gradients of blocks are products in bfloat16, which are slower under XLA."""
    is_product = facts_of(call.score).is_product and call.bias is None
    is_fast = is_product and devices.multiplies_bfloat16(call.query)
    return is_fast and not in_xla_context()


def choose(streams: tf.Tensor, dense: Callable[[], Any], streamed: Callable[[], Any]) -> Any:
    """The result of `streamed()` if the bool tensor `streams` is True, otherwise of `dense()`."""
    # XLA compiles both branches of a `tf.cond`, whose gradients get sizes unknown until run time,
    # and only the one that runs of this. `streamed` has to call a function: TensorFlow restores a
    # saved `tf.custom_gradient` there, but not directly in a branch.
    return tf.switch_case(tf.cast(streams, tf.int32), [dense, streamed])
