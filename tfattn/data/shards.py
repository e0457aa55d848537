"""Batches for several processes: each has its rows of every batch."""

import functools

import keras
import numpy as np

from tfattn import _checks
from tfattn.data.arrays import mapped
from tfattn.data.epochs import Dataset
from tfattn.data.rows import copies_of, marked

__all__ = ["shard_batches"]


def shard_batches(
    batches: Dataset, num_shards: int, shard: int, row_multiple: int = 1
) -> Dataset | keras.utils.PyDataset:
    """Takes the rows of one process out of each batch.

    All processes make the same `batches`, as `token_batches` does from one seed, and each keeps its
    own rows. So what a batch may hold, `tokens_per_batch`, is said for all of them together, and
    the run is the same on any number of processes: the same pairs in each update, padded to the
    same lengths. Rows go to the shards in order. If their number does not divide, rows of zeros are
    appended, which are padding, and so count for nothing in `MaskedCrossentropy` and
    `MaskedAccuracy`. Other losses would count them.

    Args:
        batches: A `tf.data.Dataset`, or a `keras.utils.PyDataset`, of nested arrays, the batch as
            first axis.
        num_shards: Positive int, the number of processes.
        shard: Int from 0, the number of this one, as in `keras.distribution.initialize`.
        row_multiple: Positive int: a shard has a multiple of so many rows. Give the number of
            devices of a process. Defaults to 1.

    Returns:
        As many batches of the same kind. Pass them to `fit` under
        `keras.distribution.DataParallel(auto_shard_dataset=False)`.

    Raises:
        ValueError: `batches` is something else; a number is not an int of its range.

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
    if isinstance(batches, keras.utils.PyDataset):
        of_shard = {"num_shards": num_shards, "shard": shard, "row_multiple": row_multiple}
        of_shard["copies"] = copies_of(batches)
        return marked(mapped(batches, functools.partial(_rows, **of_shard)), is_shard=True)
    if not hasattr(batches, "element_spec"):
        expected = "be a tf.data.Dataset or a keras.utils.PyDataset"
        _checks.fail(who, "batches", expected, batches)
    import tensorflow as tf

    copies = copies_of(batches)

    def rows(array):
        parts = tf.split(array, copies)  # as `_rows` does
        size = -(-tf.shape(parts[0])[0] // (num_shards * row_multiple)) * row_multiple
        missing = [[0, num_shards * size - tf.shape(parts[0])[0]]]
        padded = [tf.pad(part, missing + [[0, 0]] * (array.shape.rank - 1)) for part in parts]
        size *= copies
        return tf.concat(padded, axis=0)[shard * size : (shard + 1) * size]

    is_tuple = isinstance(batches.element_spec, tuple)  # `map` passes its members one by one
    shards = batches.map(
        lambda *batch: tf.nest.map_structure(rows, batch if is_tuple else batch[0]),
        num_parallel_calls=tf.data.AUTOTUNE,
    ).prefetch(tf.data.AUTOTUNE)
    return marked(shards, is_shard=True)


def _rows(
    array: np.ndarray, num_shards: int, shard: int, row_multiple: int, copies: int
) -> np.ndarray:
    """The rows of one shard."""
    # Losses tell copies of the rows by their places, so each copy is padded by itself.
    parts = np.split(np.asarray(array), copies)
    size = -(-len(parts[0]) // (num_shards * row_multiple)) * row_multiple
    missing = [[0, num_shards * size - len(parts[0])]]
    padded = [np.pad(part, missing + [[0, 0]] * (part.ndim - 1)) for part in parts]
    size *= copies
    return np.concatenate(padded)[shard * size : (shard + 1) * size]
