"""Losses and predictions over a vocabulary, without an array of all logits. TensorFlow only.

The logits of N tokens are N × V numbers, hundreds of megabytes for a few sentences. This module
computes them for one block of tokens at a time. The weighted sum of losses is linear in each
token's loss, so the same pass can accumulate both gradients, up to a common factor: no product is
computed twice. Tokens of weight 0, such as padding, are skipped.

Source: Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models",
arXiv:2411.09009, which computes the gradients in a second pass.
"""

from typing import Any

import tensorflow as tf

from tfattn._shared import LogitFactors
from tfattn.core.engine.tensorflow.gradients import custom_gradient

_BLOCK_LOGITS = 10_000_000  # logits of a block: 40 MB
_MIN_ROWS = 32  # fewer rows make a slow matrix product
# Row sums of exponentials in this range need no row maximum: underflowed terms have a weight below
# 1e-33, and products with vectors of trained magnitudes do not overflow.
_MIN_ROW_SUM, _MAX_ROW_SUM = 1e-4, 1e25


def saves_time() -> bool:
    """Whether to avoid the logits on this machine: only without a GPU; not measured on GPUs."""
    return not tf.config.list_physical_devices("GPU")


def weighted_loss(
    factors: LogitFactors, target: tf.Tensor, weights: tf.Tensor, smoothing: float
) -> tf.Tensor:
    """Σ weights · loss of `MaskedCrossentropy`, from factors, target and weights of one shape."""

    @custom_gradient
    def weighted_sum(weights: tf.Tensor, *factors: tf.Tensor) -> tuple[tf.Tensor, Any]:
        losses, *grad_factors = _losses_and_grads(target, weights, smoothing, *factors)
        losses = tf.where(weights == 0, 0.0, losses)

        def vjp(upstream: tf.Tensor) -> list[tf.Tensor]:
            return [upstream * grad for grad in (losses, *grad_factors)]

        return tf.reduce_sum(losses * weights), vjp

    tokens, vectors = _without_bias(factors)
    # Checked before reshaping, which would accept other shapes with as many tokens.
    message = "MaskedCrossentropy: `y_true` must have the shape of the tokens"
    tf.debugging.assert_equal(tf.shape(target), tf.shape(tokens)[:-1], message)
    target, weights = tf.reshape(target, (-1,)), tf.reshape(weights, (-1,))
    tokens = tf.reshape(tokens, (-1, tokens.shape[-1]))
    # `identity` copies a tensor into this graph, since `weighted_sum` would capture an outer one.
    return weighted_sum(weights, tokens, tf.identity(vectors))


def best_ids(factors: LogitFactors) -> tf.Tensor:
    """The id with the highest logit, the lowest id among equals: int32 `(...)`."""
    tokens, vectors = map(tf.stop_gradient, _without_bias(factors))
    shape, width = tf.shape(tokens)[:-1], tokens.shape[-1]
    tokens = tf.reshape(tokens, (-1, width))
    num_tokens = tf.shape(tokens)[0]
    num_blocks, rows = _block_sizes(num_tokens, vectors.shape[0])
    blocks = _append_zeros(tokens, num_blocks * rows - num_tokens)
    blocks = tf.reshape(blocks, (num_blocks, rows, width))

    ids = tf.map_fn(
        lambda block: tf.math.top_k(_logits(block, vectors), 1).indices[:, 0],
        blocks,
        parallel_iterations=1,
        fn_output_signature=tf.int32,
    )
    return tf.reshape(tf.reshape(ids, (-1,))[:num_tokens], shape)


def _losses_and_grads(
    target: tf.Tensor, weights: tf.Tensor, smoothing: float, tokens: tf.Tensor, vectors: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Losses `(N,)`, and the gradients of their weighted sum: `(N, W)` of tokens, `(V, W)`."""
    size = vectors.shape[0]
    is_word, is_counted = (target >= 0) & (target < size), weights != 0
    target = tf.where(is_word, target, 0)
    tokens = tf.where(is_counted[:, None], tokens, 0.0)
    grad_losses = tf.where(is_word, weights, 0.0)[:, None]  # (N, 1)

    # The gradients have two parts: the log-normalizer's, block by block, and a part for the
    # target's logit and the mean of all logits, which needs no logits.
    log_normalizer, target_logit, grad_tokens, grad_vectors = _log_normalizer_and_grads(
        is_counted, tokens, grad_losses, target, vectors
    )
    losses = log_normalizer - (1.0 - smoothing) * target_logit
    expected = (1.0 - smoothing) * tf.gather(vectors, target)  # vectors, by the smoothed target
    weighted = grad_losses * tokens
    grad_vectors -= (1.0 - smoothing) * tf.math.unsorted_segment_sum(weighted, target, size)
    if smoothing:
        mean = tf.reduce_mean(vectors, 0)  # (W,)
        losses -= smoothing * tf.linalg.matvec(tokens, mean)
        expected += smoothing * mean
        grad_vectors -= smoothing / size * tf.reduce_sum(weighted, 0)
    losses = tf.where(is_word, losses, float("nan"))
    return losses, grad_tokens - grad_losses * expected, grad_vectors


def _log_normalizer_and_grads(
    is_counted: tf.Tensor,
    tokens: tf.Tensor,
    grad_losses: tf.Tensor,
    target: tf.Tensor,
    vectors: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """log Σ exp(logits) and the target's logit, `(N,)`, zeros for tokens of weight 0; and the
    gradients of Σ grad_losses · log Σ exp(logits), of tokens and of vectors.
    """
    # Tokens that count come first, in full blocks, the remainder in smaller blocks. All other
    # tokens come last, outside of any block.
    order = tf.argsort(tf.cast(is_counted, tf.int32), direction="DESCENDING", stable=True)
    places = tf.argsort(order)
    num_counted = tf.reduce_sum(tf.cast(is_counted, tf.int32))

    length = tf.shape(target)[0]
    num_blocks, rows = _block_sizes(length, vectors.shape[0])
    small_rows = tf.minimum(tf.maximum(-(-rows // 4), _MIN_ROWS), rows)
    sorted_inputs = [
        _append_zeros(tf.gather(x, order), num_blocks * rows + small_rows - length)
        for x in (tokens, grad_losses, target)
    ]
    num_full = num_counted // rows
    num_small = -(-(num_counted - num_full * rows) // small_rows)
    grad_vectors = tf.zeros(vectors.shape)
    passes = (  # first token, tokens per block, blocks, most blocks
        (0, rows, num_full, num_blocks),
        (num_full * rows, small_rows, num_small, -(-rows // small_rows)),
    )
    results = []
    for blocks in passes:
        grad_vectors, found = _pass_over_blocks(grad_vectors, sorted_inputs, vectors, *blocks)
        results.append(found)
    both = [_append_zeros(tf.concat(parts, 0), 1) for parts in zip(*results, strict=True)]
    places = tf.where(places < num_full * rows, places, places + (num_blocks - num_full) * rows)
    places = tf.where(is_counted, places, tf.shape(both[0])[0] - 1)
    return *(tf.gather(x, places) for x in both), grad_vectors


def _pass_over_blocks(
    grad_vectors: tf.Tensor,
    inputs: list[tf.Tensor],
    vectors: tf.Tensor,
    start: tf.Tensor | int,
    rows: tf.Tensor,
    num_blocks: tf.Tensor,
    max_blocks: tf.Tensor,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """`grad_vectors` after `num_blocks` blocks of `rows` tokens from `start` on, and the results of
    the tokens of `max_blocks` blocks. `inputs` are tokens, gradients of losses and targets.
    """

    def body(at: tf.Tensor, grad_vectors: tf.Tensor, *arrays: tf.TensorArray) -> tuple[Any, ...]:
        # `tf.slice`: XLA needs only its size, but both ends of an index range.
        tokens, grad_losses, target = (  # (R, W), (R, 1), (R,)
            tf.slice(x, [start + at * rows, *[0] * (len(x.shape) - 1)], [rows, *x.shape[1:]])
            for x in inputs
        )
        logits = _logits(tokens, vectors)  # (R, V)
        target_logit = tf.gather(logits, target, batch_dims=1)
        # No later operation reads the logits, so that `exp` reuses their memory.
        with tf.control_dependencies([target_logit]):
            exponentials = tf.exp(logits)
        row_sum = tf.reduce_sum(exponentials, -1, keepdims=True)  # (R, 1)

        def with_row_max() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            logits = _logits(tokens, vectors)
            row_max = tf.reduce_max(logits, -1, keepdims=True)
            exponentials = tf.exp(logits - row_max)
            return exponentials, tf.reduce_sum(exponentials, -1, keepdims=True), row_max

        # Without the row maximum, which takes two more passes, exponentials may overflow or
        # underflow, though hardly ever in training.
        in_range = tf.reduce_all((row_sum > _MIN_ROW_SUM) & (row_sum < _MAX_ROW_SUM))
        without_row_max = exponentials, row_sum, tf.zeros_like(row_sum)
        exponentials, row_sum, row_max = tf.cond(in_range, lambda: without_row_max, with_row_max)
        scale = grad_losses / row_sum
        log_normalizer = (row_max + tf.math.log(row_sum))[:, 0]
        grad_tokens = tf.matmul(exponentials, vectors) * scale
        found = log_normalizer, target_logit, grad_tokens
        grad_vectors += tf.matmul(exponentials, tokens * scale, transpose_a=True)
        written = [array.write(at, x) for array, x in zip(arrays, found, strict=True)]
        return at + 1, grad_vectors, *written

    # Initialized to zeros, since some blocks may not be written.
    arrays = [
        tf.TensorArray(tf.float32, max_blocks, element_shape=[None, *shape]).unstack(
            tf.zeros((max_blocks, rows, *shape))
        )
        for shape in [(), (), (vectors.shape[1],)]
    ]
    _, grad_vectors, *arrays = tf.while_loop(
        lambda at, *_: at < num_blocks, body, (0, grad_vectors, *arrays), parallel_iterations=1
    )
    return grad_vectors, [
        tf.reshape(x.stack(), (max_blocks * rows, *x.element_shape[1:])) for x in arrays
    ]


def _without_bias(factors: LogitFactors) -> tuple[tf.Tensor, tf.Tensor]:
    """Tokens and vectors of the same logits; a bias becomes one more feature, a 1 of each token."""
    tokens, vectors = factors.tokens, factors.vectors
    if factors.bias is None:
        return tokens, vectors
    tokens = tf.concat([tokens, tf.ones_like(tokens[..., :1])], -1)
    return tokens, tf.concat([vectors, factors.bias[:, None]], -1)


def _logits(tokens: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tokens, vectors, transpose_b=True)


def _block_sizes(num_tokens: tf.Tensor, vocabulary_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The number of blocks for `num_tokens` tokens, and the number of tokens per block."""
    max_rows = max(_BLOCK_LOGITS // vocabulary_size, _MIN_ROWS)
    num_blocks = tf.maximum(-(-num_tokens // max_rows), 1)
    return num_blocks, tf.maximum(-(-num_tokens // num_blocks), 1)


def _append_zeros(x: tf.Tensor, rows: tf.Tensor | int) -> tf.Tensor:
    return tf.pad(x, [[0, rows], *[[0, 0]] * (len(x.shape) - 1)])
