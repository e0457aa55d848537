"""What keeps broken keys and values away from the queries of the streamed path that may not see
them.
"""

import tensorflow as tf

from tfattn.core import pairs
from tfattn.core.masks import hooks
from tfattn.core.paths.blockwise.loops import loop

__all__ = ["shield", "unshield"]


def shield(square, mask, query, key, value):
    """Keeps keys and values away from the queries that may not see them, whatever they hold, as the
    dense path does.

    Returns the operands, and what `unshield` needs to know of what was replaced.
    """
    if mask is None:
        return (query, key, value), ()
    # One sum of squares tells that all is well, as it nearly always is: nothing broken, nothing
    # that overflows.
    clean = tf.math.is_finite(tf.nn.l2_loss(key) + tf.nn.l2_loss(value))

    def as_they_are():
        sees = tf.zeros_like(query[..., :1], tf.bool)  # (B, H, T, 1)
        return query, key, value, sees, tf.ones_like(key[..., :1], tf.bool)

    def replaced():
        finite = tf.reduce_all(tf.math.is_finite(key), -1) & tf.reduce_all(
            tf.math.is_finite(value), -1
        )
        sees = _sees(square, mask, tf.logical_not(tf.reduce_all(finite, 1)))  # (B, H, T, 1)
        kept = finite[..., None]  # (B, G, S, 1)
        seen = hooks.seen_keys(mask, square.queries, square.keys)
        if seen is not None:
            kept = kept & seen[:, None, :, None]
        zero = tf.zeros([], key.dtype)
        return (
            tf.where(sees, zero + float("nan"), query),
            tf.where(kept, key, zero),
            tf.where(kept, value, zero),
            sees,
            kept,
        )

    query, key, value, sees, kept = tf.cond(clean, as_they_are, replaced)
    return (query, key, value), (clean, sees, kept)


def unshield(shielded, of_query, of_key, of_value):
    """The gradients of the operands as they were: none of what was replaced."""
    if not shielded:
        return of_query, of_key, of_value
    clean, sees, kept = shielded
    zero = tf.zeros([], of_key.dtype)
    return tf.cond(
        clean,
        lambda: (of_query, of_key, of_value),
        lambda: (
            tf.where(sees, zero, of_query),
            tf.where(kept, of_key, zero),
            tf.where(kept, of_value, zero),
        ),
    )


def _sees(square, mask, broken):
    """Which queries may see one of the `broken` `(B, S)` keys: `(B, H, T, 1)`."""
    heads, blocks = square.all_heads, square.query_blocks

    def block(n, seen):
        grid = square.query_grid(n // blocks, n % blocks)
        visible = pairs.with_heads(mask.on(grid), 4)  # (c or 1, H or 1, t or 1, S)
        rows = tf.reduce_any(visible & grid.batch_of(broken)[:, None, None], -1)
        return (seen.write(n, tf.broadcast_to(rows, [square.chunk, heads, square.rows])),)

    count = square.chunks * blocks
    (seen,) = loop(0, count, block, tf.TensorArray(tf.bool, count))
    seen = tf.reshape(seen.stack(), [square.chunks, blocks, square.chunk, heads, square.rows])
    seen = tf.transpose(seen, [0, 2, 3, 1, 4])  # (B/c, c, H, blocks, t)
    return tf.reshape(seen, [square.batch, heads, blocks * square.rows])[
        :, :, : square.queries, None
    ]
