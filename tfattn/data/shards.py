"""Batches for several processes, each with its own rows."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn.data.epochs import Dataset


def shard_batches(batches: Dataset, num_shards: int, shard: int, row_multiple: int = 1) -> Dataset:
    """Selects the rows of one process from each batch.

    All processes create the same `batches`, as `token_batches` does from one seed, and each keeps
    its own rows, in order: the run is the same on any number of processes. If the rows cannot be
    divided equally, rows of zeros, which are padding, are appended. `MaskedCrossentropy` and
    `MaskedAccuracy` ignore them; other losses would count them.

    Args:
        batches: `tf.data.Dataset`, or `keras.utils.PyDataset`, of tuples of arrays `(B, ...)`.
        num_shards: positive int, the number of processes.
        shard: int from 0, the number of this process, as in `keras.distribution.initialize`.
        row_multiple: positive int; the number of rows of a shard is a multiple of it. Pass the
            number of devices of a process. Defaults to 1.
    Returns:
        A dataset of the same type and cardinality. Pass it to `fit` under
        `keras.distribution.DataParallel(auto_shard_dataset=False)`.
    Raises:
        ValueError: a number is not an int in its range.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "b"])
        >>> pairs = [("a", "b"), ("b", "a"), ("a b", "b")]
        >>> batches = tfattn.data.translation_batches(pairs, words, words, 3, length_multiple=1)
        >>> [((source, _), _)] = shard_batches(batches, 2, shard=1).as_numpy_iterator()
        >>> print(source)
        [[4 5 3]
         [0 0 0]]
    """
    who = "shard_batches"
    _checks.positive_int(who, "num_shards", num_shards)
    _checks.non_negative_int(who, "shard", shard)
    if shard >= num_shards:
        _checks.fail(who, "shard", f"be below `num_shards`={num_shards}", shard)
    _checks.positive_int(who, "row_multiple", row_multiple)
    rows = functools.partial(_rows, num_shards=num_shards, shard=shard, row_multiple=row_multiple)
    if isinstance(batches, keras.utils.PyDataset):
        return _Shards(batches, rows)
    import tensorflow as tf

    def tensor_rows(tensor: Any) -> Any:
        found = tf.numpy_function(rows, [tensor], tensor.dtype)
        return tf.ensure_shape(found, (None, *tensor.shape[1:]))

    # `map` passes the members of a tuple one by one.
    return batches.map(lambda *batch: tf.nest.map_structure(tensor_rows, batch))


class _Shards(keras.utils.PyDataset):
    """`rows` of each array."""

    def __init__(self, batches: keras.utils.PyDataset, rows: Callable[[Any], Any]):
        super().__init__()
        self._batches = batches
        self._shard = functools.partial(keras.tree.map_structure, rows, none_is_leaf=False)
        self.on_epoch_begin, self.on_epoch_end = batches.on_epoch_begin, batches.on_epoch_end

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._shard(self._batches[index])

    def __iter__(self) -> Iterator[Any]:
        # An iteration by index would repeat one epoch.
        return map(self._shard, self._batches)

    as_numpy_iterator = __iter__


def _rows(array: np.ndarray, num_shards: int, shard: int, row_multiple: int) -> np.ndarray:
    """The rows of one shard."""
    size = -(-len(array) // (num_shards * row_multiple)) * row_multiple
    missing = [[0, num_shards * size - len(array)]]
    padded = np.pad(array, missing + [[0, 0]] * (array.ndim - 1))
    return padded[shard * size : (shard + 1) * size]
