"""The entry point of the blockwise path."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfattn.core import biases
from tfattn.core.biases import Bias
from tfattn.core.masks import Mask
from tfattn.core.paths.blockwise.block_bias import ArrayBias
from tfattn.core.paths.blockwise.block_dropout import BlockDropout
from tfattn.core.paths.blockwise.call_spec import CallSpec
from tfattn.core.paths.blockwise.differentiation import Differentiated, compiled
from tfattn.core.paths.blockwise.lengths import check_lengths
from tfattn.core.paths.blockwise.loops import Block

__all__ = ["attend", "choose", "drawn"]


def attend(
    query: tf.Tensor,
    value: tf.Tensor,
    key: tf.Tensor,
    score: Callable[..., tf.Tensor],
    parameters: Sequence[tf.Tensor] = (),
    mask: Mask | None = None,
    bias: Bias | None = None,
    dropout: float | BlockDropout | None = 0.0,
    seed=None,
    block: Block = None,
    shared: bool = False,
    return_log_sum_exp: bool = False,
):
    """`core.attend` by blocks, once its arguments are checked.

    A score's gradient is weight · (∂weight − Σ weight · ∂weight), and the sum is added up in
    another order than its parts: where both are equal, a float32's rounding is left, and the slope
    of the score multiplies it. At the edge of a kernel's support, where that slope has no bound,
    the dense path is the more exact one.

    Args:
        mask: a mask object, or None.
        bias: a bias object, or None.
        dropout: a rate, or a `BlockDropout` whose random numbers are drawn already.
        block: `(t, s)`, the queries and keys of a block, where others than the measured sizes are
            wanted.
        shared: whether all calls of one kind and shape call the same two functions, traced once.
            For graphs that hold this path beside the dense one, where a layer would pay a second of
            tracing for what it may never run. What may hold anything is not shared: a score or mask
            of one's own, and a score that is made anew for each layer, as a kernel's is.
        return_log_sum_exp: whether to return the log of the sum of the exponentials too.
    Returns:
        `(B, T, Dv)` or `(B, H, T, Dv)`; on request also `(B, T)` or `(B, H, T)`, in float32 or
        wider.
    """
    rank, dtype = len(query.shape), value.dtype
    operands = [query, key, value]
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in operands]
    compute = keras.backend.result_type(*dtypes, "float32")
    operands = [tf.cast(x, compute) for x in operands]
    parameters = [tf.convert_to_tensor(x) for x in parameters]
    parameters = [tf.cast(x, compute) if x.dtype.is_floating else x for x in parameters]
    if rank == 3:
        operands = [x[:, None] for x in operands]  # (B, 1, T, D)
    mask_by_head = False
    if mask is not None:
        pair = check_lengths(mask, *operands[:2])
        mask_by_head = pair.shape.rank is None or (pair.shape.rank == 4 and pair.shape[1] != 1)
    by_head = mask_by_head
    if bias is not None:
        by_head = by_head or (bias.differs_by_head and not bias.splits_by_head)
    if isinstance(bias, biases.explicit):
        bias = biases.explicit(ArrayBias.expanded(*bias.parameters(), *operands[:2]))
    spec, tensors = CallSpec.of(
        operands,
        score,
        parameters,
        mask,
        bias,
        drawn(dropout, seed),
        rank,
        block,
        by_head,
        return_log_sum_exp,
    )
    found = Differentiated(spec, shared)(*tensors)
    output, *sums = [x[:, 0] for x in found] if rank == 3 else found
    output = tf.cast(output, dtype)
    if not return_log_sum_exp:
        return output
    return output, tf.cast(sums[0][..., 0], keras.backend.result_type(*dtypes[:2], "float32"))


def choose(streams: tf.Tensor, dense: Callable, streamed: Callable):
    """What one of two functions without arguments gives, as the bool tensor `streams` tells.

    By `tf.switch_case`: of a choice that the sizes make XLA compiles the branch that is taken, and
    of a `tf.cond` both, to whose gradients sizes then come as numbers that only the run knows. The
    streamed branch is a function's call, since TensorFlow restores a saved `tf.custom_gradient`
    within a function, and fails with it directly in a branch.
    """
    return tf.switch_case(tf.cast(streams, tf.int32), [dense, lambda: compiled(streamed)()])


def drawn(dropout: BlockDropout | None, seed):
    """The rate `dropout` as a `BlockDropout`, or None where nothing is dropped."""
    if isinstance(dropout, BlockDropout):
        return dropout
    return BlockDropout.draw(dropout, seed) if dropout else None
