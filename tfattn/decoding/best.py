"""The few best tokens of each row, out of a vocabulary of many."""

from keras import ops

__all__ = ["best_token", "best_tokens"]

_LARGE = 2048  # tokens from which blocks pay


def best_token(logits):
    """The best token of each row of `(R, V)`, int32 `(R,)`; of equal ones the one with the lowest
    id.
    """
    large = (logits.shape[-1] or 0) >= _LARGE
    best = _top_of_blocks(logits, 1) if large else ops.top_k(logits, 1)
    return ops.cast(best[1], "int32")[:, 0]


def best_tokens(logits, k):
    """The k best tokens of each row; of equal ones those with the lower ids.

    Args:
        logits: float32 `(R, V)`.
        k: positive int.
    Returns:
        (log-probabilities `(R, k)`, ids `(R, k)`), the best first; -inf and any id where there are
        not as many.
    """
    # all, where the number of tokens is known only in the run
    missing = k - (logits.shape[-1] or 0)
    if missing > 0:
        logits = ops.pad(logits, [[0, 0], [0, missing]], constant_values=float("-inf"))
    size = logits.shape[-1] or 0
    best, ids = (
        _top_of_blocks(logits, k) if size >= max(_LARGE, _block(size) * k) else ops.top_k(logits, k)
    )
    # -inf from -inf would be no number.
    none = best == float("-inf")
    greatest = ops.where(none[:, :1], 0.0, best[:, :1])
    # at least log 1, also when rounded
    whole = ops.log(ops.sum(ops.exp(logits - greatest), axis=-1, keepdims=True))
    return ops.where(none, best, best - greatest - whole), ops.cast(ids, "int32")


def _top_of_blocks(logits, k):
    """`ops.top_k` by way of the greatest value of each block, which a processor finds several times
    faster.

    The k blocks with the greatest maxima hold the k best. They are looked through in the order of
    their ids, so that of equal values the one with the lower id still comes first.
    """
    rows, size = ops.shape(logits)[0], logits.shape[-1]
    block = _block(size)
    count = size // block
    whole = count * block
    # (R·count, block)
    blocks = ops.reshape(logits if whole == size else logits[:, :whole], (-1, block))
    greatest = ops.reshape(ops.max(blocks, axis=-1), (-1, count))  # (R, count)
    chosen = ops.sort(ops.cast(ops.top_k(greatest, k)[1], "int32"), axis=-1)  # (R, k)
    first = ops.arange(rows, dtype="int32")[:, None] * count
    values = ops.reshape(ops.take(blocks, chosen + first, axis=0), (-1, k * block))
    ids = ops.reshape(chosen[..., None] * block + ops.arange(block, dtype="int32"), (-1, k * block))
    if whole < size:
        rest = ops.broadcast_to(ops.arange(whole, size, dtype="int32"), (rows, size - whole))
        values = ops.concatenate([values, logits[:, whole:]], axis=1)
        ids = ops.concatenate([ids, rest], axis=1)
    best, places = ops.top_k(values, k)
    return best, ops.take_along_axis(ids, ops.cast(places, "int32"), axis=1)


def _block(size):
    """Tokens in a block: the divisor of `size` nearest to 32, for to cut off a rest copies all
    scores; 32 without one.
    """
    return min(
        (block for block in range(16, 65) if size % block == 0),
        key=lambda block: abs(block - 32),
        default=32,
    )
