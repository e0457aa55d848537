"""Batches for several processes, each with its own rows."""

import functools

import keras
import numpy as np

from tfattn import _checks
from tfattn.data.arrays import mapped
from tfattn.data.epochs import Dataset


def shard_batches(
    batches: Dataset, num_shards: int, shard: int, row_multiple: int = 1
) -> Dataset | keras.utils.PyDataset:
    """Selects the rows of one process from each batch.

    All processes create the same `batches`, as `token_batches` does from one seed, and each keeps
    its own rows. `tokens_per_batch` thus applies to all processes together, and the run is the same
    on any number of processes: the same pairs in each update, padded to the same lengths. Rows are
    assigned to the shards in order. If the rows cannot be divided equally, rows of zeros, which are
    padding, are appended. `MaskedCrossentropy` and `MaskedAccuracy` ignore them; other losses would
    count them.

    Args:
        batches: A `tf.data.Dataset`, or a `keras.utils.PyDataset`, of nested arrays, the batch as
            first axis.
        num_shards: positive int, the number of processes.
        shard: int from 0, the number of this process, as in `keras.distribution.initialize`.
        row_multiple: positive int; the number of rows of a shard is a multiple of it. Pass the
            number of devices of a process. Defaults to 1.
    Returns:
        A dataset of the same type and cardinality. Pass it to `fit` under
        `keras.distribution.DataParallel(auto_shard_dataset=False)`.
    Raises:
        ValueError: `batches` is of another type; a number is not an int in its range.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "b"])
        >>> pairs = [("a", "b"), ("b", "a"), ("a b", "b")]
        >>> batches = tfattn.data.translation_batches(pairs, words, words, 3, length_multiple=1)
        >>> for shard in range(2):
        ...     [((source, _), _)] = shard_batches(batches, 2, shard).as_numpy_iterator()
        ...     print(source)
        [[4 3 0]
         [5 3 0]]
        [[4 5 3]
         [0 0 0]]
    """
    who = "shard_batches"
    _checks.positive_int(who, "num_shards", num_shards)
    _checks.non_negative_int(who, "shard", shard)
    if shard >= num_shards:
        _checks.fail(who, "shard", f"be below `num_shards`={num_shards}", shard)
    _checks.positive_int(who, "row_multiple", row_multiple)
    if not isinstance(batches, keras.utils.PyDataset) and not hasattr(batches, "element_spec"):
        expected = "be a tf.data.Dataset or a keras.utils.PyDataset"
        _checks.fail(who, "batches", expected, batches)
    rows = functools.partial(_rows, num_shards=num_shards, shard=shard, row_multiple=row_multiple)
    return mapped(batches, rows)


def _rows(array: np.ndarray, num_shards: int, shard: int, row_multiple: int) -> np.ndarray:
    """The rows of one shard."""
    array = np.asarray(array)
    size = -(-len(array) // (num_shards * row_multiple)) * row_multiple
    missing = [[0, num_shards * size - len(array)]]
    padded = np.pad(array, missing + [[0, 0]] * (array.ndim - 1))
    return padded[shard * size : (shard + 1) * size]
