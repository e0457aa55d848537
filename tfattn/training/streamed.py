"""Losses and predictions over a vocabulary, without its logits. TensorFlow only.

The logits of N tokens are N × V numbers, of a few sentences and a common vocabulary hundreds of
megabytes, and their softmax and its gradient are as large. Here a block of tokens at a time gets
its logits. A weighted sum of losses is linear in each token's loss, so that the walk which finds
the losses can add up both gradients as well, but for one factor: no product is done twice, and what
a block holds stays in the cache. The loss leaves out tokens that count for nothing, padding above
all.

Source: Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models",
arXiv:2411.09009, whose second walk for the gradients is not needed here.
"""

import tensorflow as tf

__all__ = ["best_ids", "pays", "weighted_loss"]

# Logits of a block, 40 MB. Blocks of a quarter of it, two at a time, took a training step 1.03
# times as long.
_NUMBERS = 10_000_000
_LEAST_ROWS = 32  # of which a matrix product is still a quick one
# Of exponentials as they are: what vanishes beside the least has a weight below 1e-33, and at the
# most no product with vectors of trained sizes overflows.
_LEAST_TOTAL, _MOST_TOTAL = 1e-4, 1e25


def pays():
    """Whether the logits are worth avoiding on this machine. A GPU, not measured, may like larger
    blocks, or none.
    """
    return not tf.config.list_physical_devices("GPU")


def weighted_loss(factors, target, weights, smoothing):
    """Σ weights · loss, with the loss of `MaskedCrossentropy`.

    Args:
        factors: `Factors` in float32, of logits `(..., V)`.
        target: int32, `(...)`. What is none of the vocabulary's ids has a loss of NaN, and no
            gradient.
        weights: float32, `(...)`. Where they are 0, target and token may be anything.
        smoothing: ε in [0, 1).
    Returns:
        A scalar.
    """

    @tf.custom_gradient
    def total(weights, *factors):
        losses, *of_factors = _losses(target, weights, smoothing, *factors)
        losses = tf.where(weights == 0, 0.0, losses)

        def gradient(upstream):
            return [upstream * x for x in (losses, *of_factors)]

        return tf.reduce_sum(losses * weights), gradient

    tokens, *others = _given(factors)
    # flat ones would be paired all the same
    fits = "MaskedCrossentropy: `y_true` must have the shape of the tokens"
    tf.debugging.assert_equal(tf.shape(target), tf.shape(tokens)[:-1], fits)
    target, weights = tf.reshape(target, (-1,)), tf.reshape(weights, (-1,))
    # Each a tensor of the graph that this is called in: what a function captures belongs to the
    # graph outside.
    return total(weights, _flat(tokens), *map(tf.identity, others))


def best_ids(factors):
    """The id with the highest logit, the lowest of equal ones: int32 `(...)`."""
    tokens, *others = map(tf.stop_gradient, _given(factors))
    blocks = _blocks(_flat(tokens), others[0])

    def body(at, ids):
        best = tf.math.top_k(_logits(blocks[at], *others), 1).indices  # (R, 1)
        return at + 1, ids.write(at, best[:, 0])

    count = tf.shape(blocks)[0]
    ids = tf.TensorArray(tf.int32, count, element_shape=[None])
    _, ids = tf.while_loop(lambda at, _: at < count, body, (0, ids), parallel_iterations=1)
    shape = tf.shape(tokens)[:-1]
    return tf.reshape(tf.reshape(ids.stack(), (-1,))[: tf.reduce_prod(shape)], shape)


def _losses(target, weights, smoothing, tokens, vectors, *bias):
    """Losses `(N,)`, and the gradients of their weighted sum: `(N, W)`, `(V, W)`, and `(V,)` where
    there is a bias.
    """
    size, width = vectors.shape
    word, counted = (target >= 0) & (target < size), weights != 0
    target = tf.where(word, target, 0)
    tokens = tf.where(counted[:, None], tokens, 0.0)
    pulling = tf.where(word, weights, 0.0)[:, None]  # (N, 1); of a NaN, no gradient

    # The softmax's part of all gradients, block by block. What is left are few numbers, and none
    # for each pair.
    normaliser, at_target, of_tokens, of_rows = _softmax_part(
        counted, tokens, pulling, target, vectors, *bias
    )
    losses = normaliser - (1.0 - smoothing) * at_target
    # what the softmax's mean of the vectors is to become
    wanted = (1.0 - smoothing) * tf.gather(vectors, target)
    pulled = pulling * _with_one(tokens, *bias)
    of_rows -= (1.0 - smoothing) * tf.math.unsorted_segment_sum(pulled, target, size)
    if smoothing:
        mean = tf.reduce_mean(vectors, 0)  # (W,)
        losses -= smoothing * (tf.linalg.matvec(tokens, mean) + sum(map(tf.reduce_mean, bias)))
        wanted += smoothing * mean
        of_rows -= smoothing / size * tf.reduce_sum(pulled, 0)
    losses = tf.where(word, losses, float("nan"))
    return (
        losses,
        of_tokens - pulling * wanted,
        of_rows[:, :width],
        *([of_rows[:, width]] if bias else []),
    )


def _softmax_part(counted, tokens, pulling, target, vectors, *bias):
    """log Σ exp(logits) and the target's logit, `(N,)`, and of Σ pulling · log Σ exp(logits) the
    gradients of the tokens, `(N, W)`, and of the rows that are multiplied with `_with_one` of them;
    zeros for tokens that do not count.

    Those come last, and no block has them: whole blocks of tokens that count, and then smaller ones
    for the rest of these.
    """
    order, places, number = _counted_first(counted)
    length = tf.shape(target)[0]
    count, rows = _cut(length, vectors.shape[0])
    few = tf.minimum(tf.maximum(-(-rows // 4), _LEAST_ROWS), rows)
    laid = [
        _padded(tf.gather(x, order), count * rows + few - length) for x in (tokens, pulling, target)
    ]
    of_rows, whole = tf.zeros((vectors.shape[0], vectors.shape[1] + len(bias))), number // rows
    of_rows, found = _walked(of_rows, laid, 0, rows, whole, count, vectors, *bias)
    rest = -(-(number - whole * rows) // few)
    of_rows, more = _walked(of_rows, laid, whole * rows, few, rest, -(-rows // few), vectors, *bias)
    both = [_padded(tf.concat(parts, 0), 1) for parts in zip(found, more, strict=True)]
    places = tf.where(places < whole * rows, places, places + (count - whole) * rows)
    places = tf.where(counted, places, tf.shape(both[0])[0] - 1)
    return *(tf.gather(x, places) for x in both), of_rows


def _walked(of_rows, laid, start, rows, stop, most, vectors, *bias):
    """`stop` of at most `most` blocks from token `start` on: what they add to `of_rows`, and what
    each token has.
    """

    def body(at, of_rows, *arrays):
        # (R, W), (R, 1), (R,)
        block, pulls, targets = (_cut_out(x, start + at * rows, rows) for x in laid)
        logits = _logits(block, vectors, *bias)  # (R, V)
        at_target = tf.gather(logits, targets, batch_dims=1)
        # Nobody else reads the logits by then: what follows is done in their place, without memory
        # of its own.
        with tf.control_dependencies([at_target]):
            exponentials = tf.exp(logits)
        total = tf.reduce_sum(exponentials, -1, keepdims=True)  # (R, 1)

        def less_largest():
            logits = _logits(block, vectors, *bias)
            largest = tf.reduce_max(logits, -1, keepdims=True)
            exponentials = tf.exp(logits - largest)
            return exponentials, tf.reduce_sum(exponentials, -1, keepdims=True), largest

        # As the logits are, exponentials may overflow or vanish. In training they do not, and two
        # passes are saved.
        well = tf.reduce_all((total > _LEAST_TOTAL) & (total < _MOST_TOTAL))
        as_they_are = exponentials, total, tf.zeros_like(total)
        exponentials, total, largest = tf.cond(well, lambda: as_they_are, less_largest)
        scale = pulls / total
        found = (
            (largest + tf.math.log(total))[:, 0],
            at_target,
            tf.matmul(exponentials, vectors) * scale,
        )
        of_rows += tf.matmul(exponentials, _with_one(block, *bias) * scale, transpose_a=True)
        return (
            at + 1,
            of_rows,
            *(array.write(at, x) for array, x in zip(arrays, found, strict=True)),
        )

    arrays = [_zeros(most, rows), _zeros(most, rows), _zeros(most, rows, vectors.shape[1])]
    state = (0, of_rows, *arrays)
    _, of_rows, *arrays = tf.while_loop(
        lambda at, *_: at < stop, body, state, parallel_iterations=1
    )
    return of_rows, [tf.reshape(x.stack(), (most * rows, *x.element_shape[1:])) for x in arrays]


def _with_one(tokens, *bias):
    """What the rows of vectors and bias are multiplied with."""
    return tf.concat([tokens, tf.ones_like(tokens[:, :1])], -1) if bias else tokens


def _logits(tokens, vectors, *bias):
    logits = tf.matmul(tokens, vectors, transpose_b=True)
    return logits + bias[0] if bias else logits


def _given(factors):
    return [x for x in factors if x is not None]


def _flat(tokens):
    return tf.reshape(tokens, (-1, tokens.shape[-1]))


def _blocks(x, vectors):
    """`(N, ...)` as `(blocks, R, ...)`, filled up with zeros."""
    length = tf.shape(x)[0]
    count, rows = _cut(length, vectors.shape[0])
    return tf.reshape(_padded(x, count * rows - length), (count, rows, *x.shape[1:]))


def _cut(length, size):
    """How many blocks so many tokens are cut into, and the tokens of each, for a vocabulary of that
    size.
    """
    most = max(_NUMBERS // size, _LEAST_ROWS)
    count = tf.maximum(-(-length // most), 1)
    return count, tf.maximum(-(-length // count), 1)


def _cut_out(x, first, rows):
    """So many rows from the first on: by `tf.slice`, of which XLA must know the size alone, and of
    an index both ends.
    """
    return tf.slice(x, [first, *[0] * (len(x.shape) - 1)], [rows, *x.shape[1:]])


def _padded(x, rows):
    """With so many rows of zeros more."""
    return tf.pad(x, [[0, rows], *[[0, 0]] * (len(x.shape) - 1)])


def _counted_first(counted):
    """The order `(N,)` in which tokens that count come before the others, the place of each in it,
    and how many they are.
    """
    up_to = tf.cumsum(tf.cast(counted, tf.int32))  # (N,)
    number, at = tf.reduce_sum(tf.cast(counted, tf.int32)), tf.range(tf.shape(counted)[0])
    places = tf.where(counted, up_to - 1, number + at - up_to)
    return tf.scatter_nd(places[:, None], at, tf.shape(at)), places, number


def _zeros(count, *shape):
    """An array of so many tensors, of which not all may be written to."""
    array = tf.TensorArray(tf.float32, count, element_shape=[None, *shape[1:]])
    return array.unstack(tf.zeros((count, *shape)))
