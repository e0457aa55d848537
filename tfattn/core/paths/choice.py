"""Which path a call of `attend` takes: the one place that chooses."""

import math
from collections.abc import Callable

import keras
from keras import ops

from tfattn import _checks
from tfattn.core.paths import STREAMING_BACKENDS, devices, scope, thresholds
from tfattn.core.scores import facts_of

__all__ = ["streams"]


def streams(
    path,
    query,
    key,
    score,
    return_weights,
    normalizer=None,
    has_kernel: Callable[[], bool] = lambda: False,
):
    """Whether a call goes block by block: a bool, or a bool tensor where only the run can tell.

    Args:
        path: "dense" or "streamed" as the caller wants it, or None: as the scope has it.
        query, key: `(B, T, D)` or `(B, H, T, D)`, with S for T.
        normalizer: what takes the place of the softmax, or None.
        has_kernel: tells whether the backend has a kernel of its own for the call. It is asked
            where the sizes are known.
    Raises:
        ValueError: an unknown path, or one that this call cannot take.
    """
    scope.checked("attend", path)
    if path == "streamed" and normalizer is not None:
        expected = "be 'dense' with a `normalizer`, which needs all scores of a query at once"
        _checks.fail("attend", "path", expected, path)
    able = keras.backend.backend() in STREAMING_BACKENDS
    able = able and not return_weights and normalizer is None
    if path == "streamed" and not able:
        expected = "be 'dense' with this backend, or where the weights are wanted"
        _checks.fail("attend", "path", expected, path)
    if path is None and able:
        path = scope.wanted()
    if _is_abstract(query, key):
        return False
    if path is not None or not able:
        return path == "streamed"
    least = devices.chosen(thresholds.LEAST, query)
    if math.prod((query.shape[-2] or 0, key.shape[-2] or 0)) >= least.fused_pairs and has_kernel():
        return True
    return _is_long(query, key, score, least)


def _is_abstract(query, key):
    """Whether only shapes are asked for, of sizes that are not known."""
    if isinstance(query, keras.KerasTensor):
        return True
    # Keras has JAX trace such sizes as symbols, and PyTorch tensors that have no numbers. The
    # number of rows may be a symbol.
    if keras.backend.backend() == "jax":
        return not all(isinstance(size, int) for size in (*query.shape[1:], *key.shape[1:]))
    return keras.backend.backend() == "torch" and query.device.type == "meta"


def _is_long(query, key, score, least):
    batch, *heads, queries, width = ops.shape(query)
    lengths = (queries, ops.shape(key)[-2])
    known = [length for length in lengths if isinstance(length, int)]
    if known and min(known) < least.tokens:
        return False
    # A batch of unknown size is seldom a single row.
    rows = batch if len(known) < 2 or isinstance(batch, int) else thresholds.UNKNOWN_BATCH
    numbers, in_all = 1, least.scores
    facts = facts_of(score)
    if not facts.is_product and facts.cap is None:
        numbers, in_all = width, least.wide_numbers
    # Floats, since the product of tensors of sizes would overflow 32 bits where it matters most.
    pairs = _product(*lengths, numbers)
    return (pairs >= least.pairs) & (_product(pairs, rows, *heads) >= in_all)


def _product(*sizes):
    return math.prod(
        size if isinstance(size, (int, float)) else ops.cast(size, "float32") for size in sizes
    )
