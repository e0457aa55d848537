"""Scores of one block of pairs and their gradients, for the streamed path.

Each class here is the block form of a score function, one of `core.scores` or any other. `scores`
gives a block; `shifted` gives it less a number for each query, from what `prepared_query` and
`prepared_keys` have made of the operands; `pull` carries the gradient of a block back to its
operands. Blocks of queries are `(c, G, R, X)`, R = H/G·t; of keys `(c, G, s, X)`; of scores
`(c, G, R, s)`.

And each says how it is cut: `heads_apart`, whether a head may be computed without the others;
`work`, the numbers that it has for each pair; `block_numbers`, how many of them a block may have;
`always_finite`, that finite operands never give −inf; `moderate`, that nearly always the scores of
a query are such that their exponentials can be summed up as they are.
"""

import os

import tensorflow as tf

from tfattn import _checks
from tfattn.core import scores as score_functions
from tfattn.core.paths.blockwise.blocks import size

__all__ = ["block_score"]


def block_score(score, parameters, rank):
    """The block form of a score function: a fast one for the scores that are known, an exact one
    for any other.
    """
    if score is score_functions.scaled_dot_product or score is score_functions.dot_product:
        return Dot(scaled=score is score_functions.scaled_dot_product)
    if score is score_functions.additive and parameters[0].shape.is_fully_defined():
        return Additive()
    return AnyScore(score, rank)


def less(left, shift):
    """`left` `(..., R, D)` so prepared that its product with `with_ones(right)` is left · rightᵀ −
    shift `(..., R, 1)`.

    One column more in a matrix product costs less than a pass over the block that comes out.
    """
    return tf.concat([left, -shift], -1)


def with_ones(right):
    shape = [size(right, axis) for axis in range(len(right.shape) - 1)]
    return tf.concat([right, tf.ones([*shape, 1], right.dtype)], -1)


class Dot:
    """Products of the operands; the scale moves to the queries, once a token."""

    heads_apart = True  # no head needs to know which one it is
    block_numbers = 2**20  # scores, where a mask or bias by head keeps the heads together
    always_finite = True
    moderate = True

    def __init__(self, scaled):
        self.scaled = scaled

    def work(self, query):
        return 1

    def scale(self, query):
        return query.shape[-1] ** -0.5 if self.scaled else 1.0

    def scores(self, square, query, key, parameters):
        return tf.matmul(query, key, transpose_b=True)  # (c, G, R, s)

    def prepared_query(self, query, shift):
        return less(query, shift)

    def prepared_keys(self, keys):
        return with_ones(keys)

    def shifted(self, square, query, key, parameters):
        return tf.matmul(query, key, transpose_b=True)

    def pull(self, square, query, key, parameters, gradient):
        return tf.matmul(gradient, key), tf.matmul(gradient, query, transpose_a=True), []


class AnyScore:
    """A score function as it is, differentiated block by block."""

    heads_apart = False  # its parameters may have one row a head
    block_numbers = 2**20  # `work` of them for each pair
    always_finite = False  # a kernel of compact support is −inf beyond it
    moderate = False  # and a kernel of many dimensions far below 0

    def __init__(self, score, rank):
        _refuse_captured(score)
        self.score = score
        self.rank = rank

    def work(self, query):
        # What a score holds for each pair is not known; the width of its operands is a fair guess.
        return query.shape[-1] or 64

    def scale(self, query):
        return 1.0

    def scores(self, square, query, key, parameters):
        query = tf.reshape(query, [square.chunk, square.heads, square.rows, query.shape[-1]])
        if self.rank == 3:
            query, key = query[:, 0], key[:, 0]
        scores = self.score(query, key, *parameters)  # (c, t, s) or (c, H, t, s)
        return tf.reshape(scores, [square.chunk, square.groups, -1, square.columns])

    def prepared_query(self, query, shift):
        return query, shift

    def prepared_keys(self, keys):
        return keys

    def shifted(self, square, query, key, parameters):
        query, shift = query
        return self.scores(square, query, key, parameters) - shift

    def pull(self, square, query, key, parameters, gradient):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([query, key, *parameters])
            scores = self.scores(square, query, key, parameters)
        zero = tf.UnconnectedGradients.ZERO
        of_query, of_key, *rest = tape.gradient(scores, [query, key, *parameters], gradient, zero)
        return of_query, of_key, rest


def _refuse_captured(score):
    """Raises where a score closes over a float tensor: the custom gradient of the blocks would pass
    it by in silence.
    """
    names, cells = (
        getattr(getattr(score, "__code__", None), "co_freevars", ()),
        getattr(score, "__closure__", None) or (),
    )
    for name, cell in zip(names, cells, strict=False):
        # An empty cell has no contents: a name that is not bound yet.
        captured = getattr(cell, "cell_contents", None)
        if tf.is_tensor(captured) and tf.as_dtype(captured.dtype).is_floating:
            expected = f"take `{name}` from `parameters`: closed over, it would get no gradient when streamed"
            _checks.fail("attend", "score", expected, score)


class Additive(AnyScore):
    """weight · tanh(query + key), compiled, so that the tanh of a block's pairs and units is never
    all in memory.

        tanh(q + k) = 1 − 2 r,        r = 1 / (1 + exp(2q) · exp(2k))

    The exponentials are taken once a token of a block, and a pair costs a product and a reciprocal.
    They overflow for operands far beyond any trained layer's; a block with such a token takes r =
    sigmoid(−2 (q + k)) instead.

    XLA runs such a kernel on one core. So a block is cut into strips of queries, and TensorFlow
    runs them side by side: on the way forward, where nothing of that size is held, as many as there
    are cores; on the way back, where a kernel holds the r or the slope of its strip, eight. Of a
    block's numbers an eighth is in memory then for each core at work.
    """

    block_numbers = 2**22
    always_finite = True
    moderate = True

    def __init__(self):
        super().__init__(score_functions.additive, rank=4)

    def scores(self, square, query, key, parameters):
        query, key, weight = _matrices(square, query, key, *parameters)
        scores = _by_either(_scores_by_strips, query, key, weight)
        return tf.reshape(scores, [square.chunk, square.groups, -1, square.columns])

    def pull(self, square, query, key, parameters, gradient):
        left, right, weight = _matrices(square, query, key, *parameters)
        gradient = tf.reshape(gradient, [-1, square.rows, square.columns])  # (N, t, s)
        of_left, of_right, of_weight = _by_either(_pull_by_strips, left, right, weight, gradient)
        of_right = tf.reshape(
            of_right, [square.chunk, square.groups, -1, square.columns, query.shape[-1]]
        )
        return (
            tf.reshape(of_left, tf.shape(query)),
            tf.reduce_sum(of_right, 2),  # over the heads that share a key head
            [tf.reshape(of_weight, parameters[0].shape)],
        )


def _matrices(square, query, key, weight):
    """Operands `(N, t, U)` and `(N, s, U)`, N = c·H, and the weight `(1, U)` or `(H, U)`."""
    units = weight.shape[-2]
    if square.heads != square.groups:
        key = tf.repeat(key, square.heads // square.groups, axis=1)
    left = tf.reshape(query, [square.chunk * square.heads, square.rows, units])
    right = tf.reshape(key, [square.chunk * square.heads, square.columns, units])
    return left, right, tf.reshape(weight, [-1, units])


def _strips(x, count):
    """So many parts of nearly the same size; fewer where it is known that they would have less than
    8 rows.
    """
    rows = size(x, 1)
    if isinstance(rows, int):
        count = max(1, min(count, rows // 8))
    ends = [rows * i // count for i in range(count + 1)]
    return [x[:, start:end] for start, end in zip(ends, ends[1:], strict=False)]


def _cores():
    """The cores that this process may use, where the system tells; a container has often fewer than
    the machine.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _moderate(left, right):
    """Whether no exponential overflows, and no product of two is 0 · inf."""
    return (tf.reduce_max(tf.abs(left)) < 40.0) & (tf.reduce_max(tf.abs(right)) < 40.0)


def _by_either(strips, left, right, *more):
    """`strips` of the exponentials, or of the operands themselves where these are too large for it."""
    return tf.cond(
        _moderate(left, right),
        lambda: strips(_sigmoid_of_exponentials, tf.exp(2 * left), tf.exp(2 * right), *more),
        lambda: strips(_sigmoid, left, right, *more),
    )


def _sigmoid(left, right):
    return tf.sigmoid(-2 * (left[:, :, None] + right[:, None]))  # (N, t, s, U)


def _sigmoid_of_exponentials(left, right):
    return tf.math.reciprocal(1 + left[:, :, None] * right[:, None])  # (N, t, s, U)


def _scores_by_strips(sigmoid, left, right, weight):
    strips = _strips(left, min(8, _cores()))
    return tf.concat([_compiled_scores(sigmoid, strip, right, weight) for strip in strips], 1)


def _pull_by_strips(sigmoid, left, right, weight, gradient):
    of_left, of_right, of_weight = [], [], []
    for strip, of_strip in zip(_strips(left, 8), _strips(gradient, 8), strict=True):
        arguments = (sigmoid, strip, right, weight, of_strip)
        # Two kernels, one after the other: one for all would hold r and the slope at once, and two
        # at a time would too.
        of_operands = _compiled_operand_pull(*arguments)
        with tf.control_dependencies(of_operands):
            of_weight.append(_compiled_weight_pull(*arguments))
        of_left.append(of_operands[0])
        of_right.append(of_operands[1])
    return tf.concat(of_left, 1), tf.add_n(of_right), tf.add_n(of_weight)


@tf.function(jit_compile=True)
def _compiled_scores(sigmoid, left, right, weight):
    r = sigmoid(left, right)  # (N, t, s, U)
    shape, units, heads = tf.shape(r), weight.shape[1], weight.shape[0]
    if heads == 1:
        sums = tf.matmul(tf.reshape(r, [-1, units]), weight, transpose_b=True)
    else:
        sums = tf.matmul(tf.reshape(r, [-1, heads, shape[1] * shape[2], units]), weight[..., None])
    # (N, 1, 1): what it is with every tanh at 1
    whole = _each_matrix(tf.reduce_sum(weight, 1), left)
    return whole - 2 * tf.reshape(sums, shape[:3])  # (N, t, s)


@tf.function(jit_compile=True)
def _compiled_operand_pull(sigmoid, left, right, weight, gradient):
    r = sigmoid(left, right)  # (N, t, s, U)
    # The slope of tanh is 4 (r − r²).
    slope = gradient[..., None] * (r - tf.square(r))
    weight = 4 * _each_matrix(weight, left)[:, 0]  # (N, 1, U)
    return weight * tf.reduce_sum(slope, 2), weight * tf.reduce_sum(slope, 1)


@tf.function(jit_compile=True)
def _compiled_weight_pull(sigmoid, left, right, weight, gradient):
    r = sigmoid(left, right)  # (N, t, s, U)
    sums = tf.reduce_sum(tf.matmul(gradient[:, :, None], r)[:, :, 0], 1)  # (N, U)
    of_weight = tf.reduce_sum(gradient, [1, 2])[:, None] - 2 * sums
    return tf.reduce_sum(tf.reshape(of_weight, [-1, *weight.shape]), 0)  # (1 or H, U)


def _each_matrix(of_heads, like):
    """`(1 or H, ...)` to `(N, 1, 1, ...)`, N = c·H: the head's own for each of the N matrices."""
    repeated = tf.tile(
        of_heads, [like.shape[0] // of_heads.shape[0]] + [1] * (len(of_heads.shape) - 1)
    )
    return repeated[:, None, None]
