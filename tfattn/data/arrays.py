"""Batches of NumPy arrays, for `fit` on every backend."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn.data.epochs import Dataset, EpochCounter

FlatSides = Sequence[tuple[np.ndarray, np.ndarray]]  # ids of all rows in one array, lengths of rows
BatchAt = Callable[[int], Any]  # from the index of a batch in an epoch to the batch


class ArrayBatches(keras.utils.PyDataset):
    """Batches of arrays, computed for each pass.

    `for batch in batches` is a pass, also if it breaks off, and so is an epoch of `fit`. Keras
    inspects one batch before the training: a pass by index that ends after the first of several
    batches is not counted.

    Args:
        num_batches: number of batches of each pass.
        epoch_batches: function from the number of an epoch to its batches.
        counter: counter of epochs, called at the beginning of a pass.
    """

    def __init__(
        self, num_batches: int, epoch_batches: Callable[[int], BatchAt], counter: EpochCounter
    ):
        super().__init__()
        self._num_batches, self._epoch_batches, self._counter = num_batches, epoch_batches, counter
        self._epoch, self._read = 0, 0
        self._batch_at: Any = None  # a `BatchAt` within an epoch

    def __len__(self) -> int:
        return self._num_batches

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            expected = f"be at least 0 and below the number of batches, {len(self)}"
            _checks.fail(type(self).__name__, "index", expected, index, error=IndexError)
        if self._batch_at is None:
            self.on_epoch_begin()
        self._read = max(self._read, index + 1)
        return self._batch_at(index)

    def __iter__(self) -> Iterator[Any]:
        batch_at = self._epoch_batches(self._counter.count())
        return map(batch_at, range(len(self)))

    as_numpy_iterator = __iter__

    def on_epoch_begin(self) -> None:
        self._epoch, self._read = self._counter.count(), 0
        self._batch_at = self._epoch_batches(self._epoch)

    def on_epoch_end(self) -> None:
        if self._read == 1 < len(self):
            self._counter.on_epoch_begin(self._epoch)
        self._batch_at, self._read = None, 0


class _Mapped(keras.utils.PyDataset):
    """`change` applied to each batch."""

    def __init__(self, batches: keras.utils.PyDataset, change: Callable[[Any], Any]):
        super().__init__(
            workers=batches.workers,
            use_multiprocessing=batches.use_multiprocessing,
            max_queue_size=batches.max_queue_size,
        )
        self._batches, self._change = batches, change

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def num_batches(self) -> int | None:
        return self._batches.num_batches

    def __getitem__(self, index: int) -> Any:
        return self._change(self._batches[index])

    def __iter__(self) -> Iterator[Any]:
        # An iteration by index would repeat one epoch.
        return map(self._change, self._batches)

    as_numpy_iterator = __iter__

    def on_epoch_begin(self) -> None:
        self._batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._batches.on_epoch_end()


def mapped(batches: Dataset, change: Callable[[Any], Any]) -> Dataset:
    """The batches, with `change` applied to each array."""

    def of_array(array: Any) -> Any:
        return None if array is None else change(array)  # Keras's sample weights may be None

    of_batch = functools.partial(keras.tree.map_structure, of_array)
    if isinstance(batches, keras.utils.PyDataset):
        return _Mapped(batches, of_batch)
    import tensorflow as tf

    is_tuple = isinstance(batches.element_spec, tuple)  # whose members `map` passes one by one

    def changed(*given: Any) -> Any:
        batch = given if is_tuple else given[0]
        tensors = tf.nest.flatten(batch)

        def flat(*arrays: np.ndarray) -> list[np.ndarray]:
            return [of_array(array) for array in arrays]

        found = tf.numpy_function(flat, tensors, [tensor.dtype for tensor in tensors])
        for new, old in zip(found, tensors, strict=True):
            new.set_shape((None, *old.shape[1:]))
        return tf.nest.pack_sequence_as(batch, found)

    return batches.map(changed, num_parallel_calls=tf.data.AUTOTUNE)


def gathered(flat_sides: FlatSides, rows: Sequence[np.ndarray], length_multiple: int) -> BatchAt:
    """The batches with these rows of `flat_sides`: ((source, target_in), target_out)."""
    sides = [(ids, np.cumsum(lengths) - lengths, lengths) for ids, lengths in flat_sides]

    def batch_at(index: int) -> Any:
        here = rows[index]
        source, target_in, target_out = (
            _padded(ids, starts[here], lengths[here], length_multiple)
            for ids, starts, lengths in sides
        )
        return (source, target_in), target_out

    return batch_at


def _padded(
    ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, length_multiple: int
) -> np.ndarray:
    """The rows with these starts and lengths, `(B, T)`, padded with 0."""
    width = -(-int(lengths.max()) // length_multiple) * length_multiple
    columns = np.arange(width)
    is_real = columns < lengths[:, None]
    places = np.where(is_real, starts[:, None] + columns, 0)
    return np.where(is_real, ids[places], 0).astype("int32")
