"""Exact attention in linear memory, on TensorFlow.

The T × S square of scores is never held. It is cut into blocks (`blocks`); the forward pass walks
over the blocks of a row (`walk`) and adds up exp(score) · value and exp(score), as they are. Where
that would overflow or vanish it walks again, and keeps the pooled values of the keys seen so far,
the highest of their scores and the sum of exp(score − highest), which it rescales when a block adds
to them (`pooling`). The backward pass walks too and computes each block anew: with two numbers a
query at hand, `top` and `total`, a weight is exp(score − top) / total. Blocks that the mask rules
out are skipped, and blocks that it leaves open are not masked (`reach`); those that a window leaves
are taken in runs (`band`), and those that a causal mask cuts through are pooled in strips, ahead of
the walk forward (`edge`).

This package is the one place in `core` that imports TensorFlow.

A score's gradient is weight · (∂weight − Σ weight · ∂weight), and here the sum is added up in
another order than its parts: where both are equal, a float32's rounding is left, and the slope of
the score multiplies it. At the edge of a kernel's support, where that slope has no bound, the dense
path is the more exact one.

Source: Rabe, Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135 (FlashAttention).
Here in matrix products large enough for a CPU, and for any score function.
"""

from typing import NamedTuple

import keras
import tensorflow as tf

from tfattn import _checks
from tfattn.core import masks
from tfattn.core.paths.blockwise.band import Band
from tfattn.core.paths.blockwise.block_dropout import Dropout
from tfattn.core.paths.blockwise.block_scores import block_score
from tfattn.core.paths.blockwise.blocks import Square, size
from tfattn.core.paths.blockwise.form import Form
from tfattn.core.paths.blockwise.layouts import Plain
from tfattn.core.paths.blockwise.shield import shield, unshield
from tfattn.core.paths.blockwise.walk import Walk

__all__ = ["attend", "choose", "drawn"]


def attend(
    query,
    value,
    key,
    score,
    parameters=(),
    mask=None,
    bias=None,
    dropout=0.0,
    seed=None,
    block=None,
    shared=False,
):
    """`core.attend` by blocks, once its arguments are checked.

    Args:
        mask: a mask object, or None.
        bias: `(B or 1, H or 1, T or 1, S or 1)`, of three axes where `query` has three; or None.
        dropout: a rate, or a `Dropout` with the random numbers drawn already.
        block: `(t, s)`, the queries and keys of a block, where others than the measured sizes are
            wanted.
        shared: whether all calls of one kind and shape call the same two functions, traced once.
            For graphs that hold this path beside the dense one, where a layer would pay a second of
            tracing for what it may never run. Score functions of `core.scores` and masks of the
            collection are shared. What may hold anything is not: a score or mask of one's own, and
            a score that is made anew for each layer, as a kernel's is.
    Returns:
        `(B, T, Dv)` or `(B, H, T, Dv)`.
    """
    rank, dtype = len(query.shape), value.dtype
    operands = [query, key, value]
    compute = keras.backend.result_type(
        *(keras.backend.standardize_dtype(x.dtype) for x in operands), "float32"
    )
    operands = [tf.cast(x, compute) for x in operands]
    parameters = [tf.convert_to_tensor(x) for x in parameters]
    parameters = [tf.cast(x, compute) if x.dtype.is_floating else x for x in parameters]
    if rank == 3:
        operands = [x[:, None] for x in operands]  # (B, 1, T, D)
    batch, queries, keys = size(operands[0], 0), size(operands[0], 2), size(operands[1], 2)
    visible = None
    if mask is not None:
        visible = tf.convert_to_tensor(mask.on(_Fitting(queries, keys, 0, 0, 1, 1, 0, batch)))
    bias = None if bias is None else tf.convert_to_tensor(bias)
    # What differs by head is cut for all heads at once: each on its own would copy the others' part
    # for nothing.
    apart = block_score(score, parameters, rank).heads_apart and not any(
        map(_by_head, (visible, bias))
    )
    if bias is not None:
        bias = _bias(bias, operands)
    form, tensors = Form.of(operands, bias, parameters, mask, drawn(dropout, seed))
    walks = _Walks(score, rank, block, apart, form)
    both = walks.compiled(tensors) if shared else (walks.forward, walks.backward)
    # Tensors of the graph that this is called in: what a function captures belongs to the graph
    # outside.
    output = _unrecorded(walks, *both)(*map(tf.identity, tensors))
    return tf.cast(output[:, 0] if rank == 3 else output, dtype)


def choose(streams, dense, streamed):
    """What one of two functions without arguments gives, where the bool tensor `streams` tells
    which.

    By `tf.switch_case`: of a choice that the sizes make XLA compiles the branch that is taken, and
    of a `tf.cond` both, to whose gradients sizes then come as numbers that only the run knows. The
    streamed branch is a function's call, since TensorFlow restores a saved `tf.custom_gradient`
    within a function, and fails with it directly in a branch.
    """
    return tf.switch_case(tf.cast(streams, tf.int32), [dense, lambda: _compiled(streamed)()])


class _Walks(NamedTuple):
    """The walks forward and backward, each a function of a call's tensors.

    Each cuts the square anew, from the shapes of its own arguments: sizes that one function has
    found are unknown to XLA in another. Both find the same, since an argument has the same static
    shape in both.
    """

    score: object
    rank: int
    block: object
    apart: bool
    form: object

    def forward(self, *tensors, recorded=False):
        """The output, and what the way back needs of this one; `recorded` where a tape looks on."""
        walk, operands, guard = self._begin(tensors, recorded)
        operands, shielded = shield(*guard, *operands)
        output, softmax = walk.forward(*operands)
        return output, (operands, shielded, output, softmax)

    def backward(self, tensors, kept, upstream):
        """The gradients of those tensors that have one."""
        walk, *_ = self._begin(tensors)
        operands, shielded, output, softmax = kept
        of_query, of_key, of_value, *rest = walk.backward(*operands, output, softmax, upstream)
        return *unshield(shielded, of_query, of_key, of_value), *rest

    def _begin(self, tensors, recorded=False):
        query, key, value, bias, parameters, mask, dropout = self.form.parts(tensors)
        score = block_score(self.score, parameters, self.rank)
        square = Square.cut(query, key, score, mask, self.block, self.apart)
        # A bias is cut by the plain square's blocks, and a band has the same mask and no bias for
        # all blocks.
        banded = self.apart and bias is None
        layout = (Band.of(query, key, value, mask, self.block) if banded else None) or Plain(
            square, mask
        )
        return (
            Walk(layout, score, dropout, bias, parameters, recorded),
            (query, key, value),
            (square, mask),
        )

    def compiled(self, tensors):
        """Both as functions that all calls of this kind share, where another call of it does the
        same.
        """
        module = getattr(self.score, "__module__", None) or ""
        if (
            not module.startswith("tfattn.core.")
            or "<" in self.score.__qualname__
            or not self.form.shareable
        ):
            return self.forward, self.backward
        kind = (self, *((x.dtype, tuple(x.shape)) for x in tensors))
        if kind not in _shared:
            while len(_shared) >= _MOST_SHARED:
                del _shared[next(iter(_shared))]  # the oldest; who calls it keeps it
            _shared[kind] = _compiled(self.forward), _compiled(self.backward)
        return _shared[kind]


_shared = {}
_MOST_SHARED = (
    # more kinds of calls than a model has; a process that builds one after the other would keep all
    # of them
    64
)


def _compiled(function):
    # Inlined, what many call would be optimised once for each call.
    return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})


def drawn(dropout, seed):
    """The rate `dropout` as a `Dropout`, or None where nothing is dropped."""
    if isinstance(dropout, Dropout):
        return dropout
    return Dropout.draw(dropout, seed) if dropout else None


def _unrecorded(walks, forward, backward):
    """`forward` with `backward` as its gradient, unseen by the tapes of the caller.

    `tf.custom_gradient` lets the tapes record what happens inside, and so hold every block; two of
    them, one within the other, have a graph build the gradients of every loop. Nothing that comes
    from `tf.stop_gradient` is recorded. What no tape has seen cannot be differentiated a second
    time, so that second derivatives do both walks again, recorded.

    Args:
        forward, backward: those of `walks`, or their compiled forms, which no second derivative is
            taken of.
    """

    @tf.custom_gradient
    def function(*tensors):
        output, kept = forward(*map(tf.stop_gradient, tensors))

        @tf.custom_gradient
        def pulled(upstream, *tensors):
            def second(*of_gradients):
                # Each a tensor of its own: of one that came twice, as query and as key, a tape
                # knows but the sum.
                inputs = [tf.identity(x) for x in (upstream, *tensors)]
                sources = [x for x in inputs if x.dtype.is_floating]
                with tf.GradientTape() as tape:
                    tape.watch(sources)
                    upstream_here, *here = inputs
                    _, kept = walks.forward(*here, recorded=True)
                    gradients = walks.backward(here, kept, upstream_here)
                found = iter(
                    tape.gradient(gradients, sources, of_gradients, tf.UnconnectedGradients.ZERO)
                )
                return [next(found) if x.dtype.is_floating else None for x in inputs]

            upstream, *tensors = map(tf.stop_gradient, (upstream, *tensors))
            return backward(tensors, kept, upstream), second

        def gradients(upstream):
            # Of a gather the gradient is `tf.IndexedSlices`. And each a tensor of the graph that
            # this gradient is in: of those of the graph before, the gradient of a branch knows
            # nothing when it is differentiated in its turn.
            inputs = [tf.identity(tf.convert_to_tensor(x)) for x in (upstream, *tensors)]
            found = [*pulled(*inputs), *[None] * (len(tensors) - walks.form.num_differentiable)]
            return [
                of_x if x.dtype.is_floating else None
                for x, of_x in zip(tensors, found, strict=True)
            ]

        return output, gradients

    return function


def _by_head(x):
    """Whether a mask or bias, or None, may differ from head to head."""
    return x is not None and (x.shape.rank is None or (x.shape.rank == 4 and x.shape[1] != 1))


class _Fitting(masks.Grid):
    """One pair of each row of the batch; what a rule cuts for it must be as long as the square, or
    repeat.

    For arrays and squares whose lengths the run alone can tell. Asked once, before the loops: a
    block would take the rows of an array that is too short or too long as they come.
    """

    def batch_of(self, tensor):
        self._check(tensor, 0, self.batch)
        return tensor

    def rows_of(self, tensor, axis):
        return self._first(tensor, axis, self.num_queries)

    def columns_of(self, tensor, axis):
        return self._first(tensor, axis, self.num_keys)

    def _first(self, tensor, axis, whole):
        axis %= len(tensor.shape)
        self._check(tensor, axis, whole)
        sizes = [
            tf.minimum(1, size(tensor, axis)) if at == axis else -1
            for at in range(len(tensor.shape))
        ]
        return tf.slice(tensor, [0] * len(sizes), sizes)

    def _check(self, tensor, axis, whole):
        length = size(tensor, axis)
        if isinstance(length, int) and isinstance(whole, int):
            if length not in (1, whole):
                _checks.fail(
                    "attend",
                    "mask",
                    f"have the length {whole} or 1 on axis {axis}",
                    tuple(tensor.shape),
                )
        elif length is not whole:
            fits = tf.equal(length, whole) | tf.equal(length, 1)
            tf.debugging.Assert(
                fits, ["attend: a mask must have the length", whole, "or 1. Received:", length]
            )


def _bias(bias, operands):
    """The bias as `(B or 1, H or 1, T or 1, S or 1)`."""
    if len(bias.shape) == 2:
        bias = bias[None]
    if len(bias.shape) == 3:
        bias = bias[:, None]
    query, key, _ = operands
    wanted = (*(size(query, axis) for axis in range(3)), size(key, 2))
    if None in bias.shape:
        # A size that is not known yet may turn out to be 1, and its gradient needs to know.
        known = zip(tf.unstack(tf.shape(bias)), bias.shape, wanted, strict=True)
        bias = _broadcast(bias, [full if static is None else now for now, static, full in known])
    return bias


def _broadcast(x, shape):
    """`tf.broadcast_to`, whose own gradient asks for the shape that was given: XLA does not know it
    any more by then.
    """

    @tf.custom_gradient
    def function(x):
        def pull(upstream):
            _, repeated = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(upstream), s1=tf.shape(x))
            return tf.reshape(tf.reduce_sum(upstream, repeated), tf.shape(x))

        return tf.broadcast_to(x, shape), pull

    return function(tf.identity(x))  # a tensor of this graph, as in `attend`
