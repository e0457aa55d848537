"""Losses and predictions over a vocabulary, without its logits. TensorFlow only.

The logits of N tokens are N × V numbers, of a few sentences and a common vocabulary hundreds of megabytes, and their softmax
and its gradient are as large. Here a block of tokens at a time gets its logits. A weighted sum of losses is linear in each
token's loss, so that the walk which finds the losses can add up both gradients as well, but for one factor: no product is
done twice, and what a block holds stays in the cache.

Source: Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009, whose second walk for
the gradients is not needed here.
"""

import tensorflow as tf

__all__ = ["best_ids", "pays", "weighted_loss"]

# Logits of a block, 40 MB. Blocks of a quarter of it, two at a time, took a training step 1.03 times as long.
_NUMBERS = 10_000_000
_LEAST_ROWS = 32  # of which a matrix product is still a quick one
# Of exponentials as they are: what vanishes beside the least has a weight below 1e-33, and at the most no product with
# vectors of trained sizes overflows.
_LEAST_TOTAL, _MOST_TOTAL = 1e-4, 1e25


def pays():
    """Whether the logits are worth avoiding on this machine. A GPU, not measured, may like larger blocks, or none."""
    return not tf.config.list_physical_devices("GPU")


def weighted_loss(factors, target, weights, smoothing):
    """Σ weights · loss, with the loss of `MaskedCrossentropy`.

    Args:
        factors: `Factors` in float32, of logits `(..., V)`.
        target: int32, `(...)`. What is none of the vocabulary's ids has a loss of NaN, and no gradient.
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
    fits = "MaskedCrossentropy: `y_true` must have the shape of the tokens"  # flat ones would be paired all the same
    tf.debugging.assert_equal(tf.shape(target), tf.shape(tokens)[:-1], fits)
    target, weights = tf.reshape(target, (-1,)), tf.reshape(weights, (-1,))
    # Each a tensor of the graph that this is called in: what a function captures belongs to the graph outside.
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
    """Losses `(N,)`, and the gradients of their weighted sum: `(N, W)`, `(V, W)`, and `(V,)` where there is a bias."""
    size, width = vectors.shape
    word = (target >= 0) & (target < size)
    target = tf.where(word, target, 0)
    tokens = tf.where((weights != 0)[:, None], tokens, 0.0)
    pulling = tf.where(word, weights, 0.0)[:, None]  # (N, 1); of a NaN, no gradient

    def with_one(tokens):
        """What the rows of vectors and bias are multiplied with."""
        return tf.concat([tokens, tf.ones_like(tokens[:, :1])], -1) if bias else tokens

    # The softmax's part of all gradients, block by block. What is left are few numbers, and none for each pair.
    def body(at, normalisers, at_targets, of_tokens, of_rows):
        block = blocks[at]  # (R, W)
        logits = _logits(block, vectors, *bias)  # (R, V)
        at_target = tf.gather(logits, targets[at], batch_dims=1)
        # Nobody else reads the logits by then: what follows is done in their place, without memory of its own.
        with tf.control_dependencies([at_target]):
            exponentials = tf.exp(logits)
        total = tf.reduce_sum(exponentials, -1, keepdims=True)  # (R, 1)

        def less_largest():
            logits = _logits(block, vectors, *bias)
            largest = tf.reduce_max(logits, -1, keepdims=True)
            exponentials = tf.exp(logits - largest)
            return exponentials, tf.reduce_sum(exponentials, -1, keepdims=True), largest

        # As the logits are, exponentials may overflow or vanish. In training they do not, and two passes are saved.
        well = tf.reduce_all((total > _LEAST_TOTAL) & (total < _MOST_TOTAL))
        as_they_are = exponentials, total, tf.zeros_like(total)
        exponentials, total, largest = tf.cond(well, lambda: as_they_are, less_largest)
        scale = pulls[at] / total
        return (
            at + 1,
            normalisers.write(at, (largest + tf.math.log(total))[:, 0]),
            at_targets.write(at, at_target),
            of_tokens.write(at, tf.matmul(exponentials, vectors) * scale),
            of_rows + tf.matmul(exponentials, with_one(block) * scale, transpose_a=True),
        )

    blocks, pulls, targets = (_blocks(x, vectors) for x in (tokens, pulling, target))
    count = tf.shape(blocks)[0]
    arrays = [tf.TensorArray(tf.float32, count, element_shape=shape) for shape in ([None], [None], [None, width])]
    state = (0, *arrays, tf.zeros((size, width + len(bias))))
    _, *arrays, of_rows = tf.while_loop(lambda at, *_: at < count, body, state, parallel_iterations=1)
    known = tf.shape(target)[0]
    normaliser, at_target = (tf.reshape(array.stack(), (-1,))[:known] for array in arrays[:2])
    of_tokens = tf.reshape(arrays[2].stack(), (-1, width))[:known]

    losses = normaliser - (1.0 - smoothing) * at_target
    wanted = (1.0 - smoothing) * tf.gather(vectors, target)  # what the softmax's mean of the vectors is to become
    pulled = pulling * with_one(tokens)
    of_rows -= (1.0 - smoothing) * tf.math.unsorted_segment_sum(pulled, target, size)
    if smoothing:
        mean = tf.reduce_mean(vectors, 0)  # (W,)
        losses -= smoothing * (tf.linalg.matvec(tokens, mean) + sum(map(tf.reduce_mean, bias)))
        wanted += smoothing * mean
        of_rows -= smoothing / size * tf.reduce_sum(pulled, 0)
    losses = tf.where(word, losses, float("nan"))
    return losses, of_tokens - pulling * wanted, of_rows[:, :width], *([of_rows[:, width]] if bias else [])


def _logits(tokens, vectors, *bias):
    logits = tf.matmul(tokens, vectors, transpose_b=True)
    return logits + bias[0] if bias else logits


def _given(factors):
    return [x for x in factors if x is not None]


def _flat(tokens):
    return tf.reshape(tokens, (-1, tokens.shape[-1]))


def _blocks(x, vectors):
    """`(N, ...)` as `(blocks, R, ...)`, filled up with zeros."""
    most = max(_NUMBERS // vectors.shape[0], _LEAST_ROWS)
    length = tf.shape(x)[0]
    count = tf.maximum(-(-length // most), 1)
    rows = -(-length // count)
    padding = [[0, count * rows - length], *[[0, 0]] * (len(x.shape) - 1)]
    return tf.reshape(tf.pad(x, padding), (count, rows, *x.shape[1:]))
