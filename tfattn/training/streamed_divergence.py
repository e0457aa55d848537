"""The divergence of two predictions, without an array of all logits. TensorFlow only.

The logits of both predictions are computed for one block of tokens at a time, and the same pass
accumulates the gradients, as in `streamed`.
"""

from typing import Any

import tensorflow as tf

from tfattn._gradients import custom_gradient
from tfattn.training import streamed


def weighted_divergence(
    p_tokens: tf.Tensor, q_tokens: tf.Tensor, weights: tf.Tensor, *rows: tf.Tensor
) -> tf.Tensor:
    """Σ weights · KL(p ‖ q), with p = softmax(tokens · vectorsᵀ + bias), and q likewise.

    Args:
        p_tokens, q_tokens: float32 `(..., W)`.
        weights: float32 `(...)`. Tokens of weight 0 are ignored; if all are 0, no block is
            computed.
        rows: the vectors `(V, W)`, and the bias `(V,)` or None.
    Returns:
        A scalar, with gradients with respect to all arguments.
    """

    @custom_gradient
    def weighted_sum(weights: tf.Tensor, *factors: tf.Tensor) -> tuple[tf.Tensor, Any]:
        divergences, *grads = _divergences_and_grads(weights, *factors)

        def vjp(upstream: tf.Tensor) -> list[tf.Tensor]:
            return [upstream * grad for grad in (divergences, *grads)]

        return tf.reduce_sum(divergences * weights), vjp

    weights, width = tf.reshape(weights, (-1,)), p_tokens.shape[-1]
    tokens = [
        tf.where(weights[:, None] == 0, 0.0, tf.reshape(side, (-1, width)))
        for side in (p_tokens, q_tokens)
    ]
    # `identity` copies tensors into this graph, since `weighted_sum` would capture outer tensors.
    return weighted_sum(weights, *tokens, *[tf.identity(row) for row in rows if row is not None])


def _softmax(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The softmax of rows `(R, V)`, and log Σ exp `(R, 1)`."""
    row_max = tf.reduce_max(logits, -1, keepdims=True)
    exponentials = tf.exp(logits - row_max)
    row_sum = tf.reduce_sum(exponentials, -1, keepdims=True)
    return exponentials / row_sum, row_max + tf.math.log(row_sum)


def _divergences_and_grads(
    weights: tf.Tensor, p_tokens: tf.Tensor, q_tokens: tf.Tensor, *rows: tf.Tensor
) -> list[tf.Tensor]:
    """Divergences `(N,)`, and their weighted sum's gradients for tokens, vectors and bias."""
    vectors, *bias = rows
    length = tf.shape(weights)[0]
    # Twice the vocabulary: each token has two rows of logits.
    num_blocks, size = streamed._block_sizes(length, 2 * vectors.shape[0])
    added = num_blocks * size - length
    weights, p_tokens, q_tokens = (
        streamed._append_zeros(x, added) for x in (weights, p_tokens, q_tokens)
    )

    def block(x: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        return tf.slice(x, [at * size, *[0] * (len(x.shape) - 1)], [size, *x.shape[1:]])

    def body(at: tf.Tensor, grad_rows: tf.Tensor, *arrays: tf.TensorArray) -> tuple[Any, ...]:
        w, p_block, q_block = (block(x, at) for x in (weights, p_tokens, q_tokens))
        p_logits, q_logits = (streamed._logits(x, vectors, *bias) for x in (p_block, q_block))
        p, p_normalizer = _softmax(p_logits)  # (R, V), (R, 1)
        q, q_normalizer = _softmax(q_logits)
        # log p − log q without the normalizers. Where p is 0, the term is 0.
        ratio = tf.where(p > 0, p_logits - q_logits, 0.0)
        mean = tf.reduce_sum(p * ratio, -1, keepdims=True)
        by_p, by_q = p * (ratio - mean), q - p
        found = (
            (mean - p_normalizer + q_normalizer)[:, 0],
            tf.matmul(by_p, vectors) * w[:, None],
            tf.matmul(by_q, vectors) * w[:, None],
        )
        for grad, side in ((by_p, p_block), (by_q, q_block)):
            weighted = streamed._append_ones(side, *bias) * w[:, None]
            grad_rows += tf.matmul(grad, weighted, transpose_a=True)
        written = [array.write(at, x) for array, x in zip(arrays, found, strict=True)]
        return at + 1, grad_rows, *written

    width = vectors.shape[1]
    arrays = [
        tf.TensorArray(tf.float32, num_blocks, element_shape=[None, *shape]).unstack(
            tf.zeros((num_blocks, size, *shape))
        )
        for shape in [(), (width,), (width,)]
    ]
    read = tf.where(tf.reduce_any(weights != 0), num_blocks, 0)
    _, grad_rows, *arrays = tf.while_loop(
        lambda at, *_: at < read,
        body,
        (0, tf.zeros((vectors.shape[0], width + len(bias))), *arrays),
        parallel_iterations=1,
    )
    found = [tf.reshape(x.stack(), (num_blocks * size, *x.element_shape[1:])) for x in arrays]
    return [
        *(x[:length] for x in found),
        grad_rows[:, :width],
        *([grad_rows[:, width]] if bias else []),
    ]
