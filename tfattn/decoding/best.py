"""The k best tokens of each row, fast for large vocabularies."""

import keras
from keras import ops

from tfattn._types import Tensor

_LARGE = 2048  # vocabulary size from which the search by blocks is faster


def best_token(logits: Tensor) -> Tensor:
    """The best token of each row of `(R, V)`, int32 `(R,)`; the lowest id among equals."""
    return ops.cast(_top_k(logits, 1)[1], "int32")[:, 0]


def best_tokens(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best scores of each row of float32 `(R, V)`, and their ids, `(R, k)`, the best first,
    lower ids first among equals. If k > V, the last scores are -inf and their ids meaningless.
    """
    missing = k - (scores.shape[-1] or 0)  # k if the size of the vocabulary is dynamic
    if missing > 0:
        scores = ops.pad(scores, [[0, 0], [0, missing]], constant_values=float("-inf"))
    best, ids = _top_k(scores, k)
    return best, ops.cast(ids, "int32")


def log_probabilities(logits: Tensor, given: Tensor) -> Tensor:
    """Log-probabilities normalized by the given scores, so that forbidding a token makes no other
    token likelier.
    """
    logits, given = ops.cast(logits, "float32"), ops.cast(given, "float32")
    greatest = ops.max(given, axis=-1, keepdims=True)
    none = greatest == -float("inf")  # -inf − -inf is NaN
    greatest = ops.where(none, 0.0, greatest)
    # The rounded sum is at least 1: no log-probability is above 0.
    total = ops.sum(ops.exp(given - greatest), axis=-1, keepdims=True)
    return logits - greatest - ops.log(ops.where(none, 1.0, total))


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`ops.top_k` that keeps the order of equal values on every backend."""
    if keras.backend.backend() != "torch":
        return ops.top_k(values, k)
    indices = ops.argsort(-values, axis=-1)[:, :k]  # torch.topk is not stable
    return ops.take_along_axis(values, indices, axis=-1), indices


def _top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`top_k`; for a large vocabulary by the maxima of blocks of tokens, several times faster.

    The k blocks with the greatest maxima contain the k best. They stay in the order of their ids,
    and so do equal values.
    """
    rows, size = ops.shape(logits)[0], logits.shape[-1] or 0
    # The divisor nearest to 32: without a remainder the scores are not copied. 32 if none divides.
    block = min(
        (divisor for divisor in range(16, 65) if size % divisor == 0),
        key=lambda divisor: abs(divisor - 32),
        default=32,
    )
    if size < max(_LARGE, block * k):
        return top_k(logits, k)
    count = size // block
    covered = count * block
    blocks = logits if covered == size else logits[:, :covered]
    blocks = ops.reshape(blocks, (-1, block))  # (R·count, block)
    greatest = ops.reshape(ops.max(blocks, axis=-1), (-1, count))  # (R, count)
    chosen = ops.sort(ops.cast(top_k(greatest, k)[1], "int32"), axis=-1)  # (R, k)
    first = ops.arange(rows, dtype="int32")[:, None] * count  # (R, 1)
    values = ops.reshape(ops.take(blocks, chosen + first, axis=0), (-1, k * block))
    ids = ops.reshape(chosen[..., None] * block + ops.arange(block, dtype="int32"), (-1, k * block))
    if covered < size:
        rest = ops.broadcast_to(ops.arange(covered, size, dtype="int32"), (rows, size - covered))
        values = ops.concatenate([values, logits[:, covered:]], axis=1)
        ids = ops.concatenate([ids, rest], axis=1)
    best, indices = top_k(values, k)
    return best, ops.take_along_axis(ids, ops.cast(indices, "int32"), axis=1)
