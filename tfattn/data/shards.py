"""Batches for several processes, each with its own rows."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tfattn import _checks
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
    rows = functools.partial(_rows, num_shards=num_shards, shard=shard, row_multiple=row_multiple)
    if isinstance(batches, keras.utils.PyDataset):
        return _Shards(batches, rows)
    if not hasattr(batches, "element_spec"):
        expected = "be a tf.data.Dataset or a keras.utils.PyDataset"
        _checks.fail(who, "batches", expected, batches)
    import tensorflow as tf

    def tensor_rows(tensor: Any) -> Any:
        found = tf.numpy_function(rows, [tensor], tensor.dtype)
        return tf.ensure_shape(found, (None, *tensor.shape[1:]))

    def batch_rows(*batch: Any) -> Any:  # `map` passes the members of a tuple one by one
        is_tuple = isinstance(batches.element_spec, tuple)
        return tf.nest.map_structure(tensor_rows, batch if is_tuple else batch[0])

    return batches.map(batch_rows, num_parallel_calls=tf.data.AUTOTUNE)


class _Shards(keras.utils.PyDataset):
    """`rows` of each array."""

    def __init__(self, batches: keras.utils.PyDataset, rows: Callable[[Any], Any]):
        super().__init__(
            workers=batches.workers,
            use_multiprocessing=batches.use_multiprocessing,
            max_queue_size=batches.max_queue_size,
        )
        self._batches, self._rows = batches, rows

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def num_batches(self) -> int | None:
        return self._batches.num_batches

    def __getitem__(self, index: int) -> Any:
        return self._shard(self._batches[index])

    def __iter__(self) -> Iterator[Any]:
        # An iteration by index would repeat one epoch.
        return map(self._shard, self._batches)

    as_numpy_iterator = __iter__

    def _shard(self, batch: Any) -> Any:
        return keras.tree.map_structure(self._rows, batch, none_is_leaf=False)

    def on_epoch_begin(self) -> None:
        self._batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._batches.on_epoch_end()


def _rows(array: np.ndarray, num_shards: int, shard: int, row_multiple: int) -> np.ndarray:
    """The rows of one shard."""
    array = np.asarray(array)
    size = -(-len(array) // (num_shards * row_multiple)) * row_multiple
    missing = [[0, num_shards * size - len(array)]]
    padded = np.pad(array, missing + [[0, 0]] * (array.ndim - 1))
    return padded[shard * size : (shard + 1) * size]
