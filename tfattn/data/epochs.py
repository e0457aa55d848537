"""Epochs of batches: their number, the rows of each batch, and a dataset for `fit`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from tfattn import _checks

Dataset = Any  # a tf.data.Dataset or a keras.utils.PyDataset: TensorFlow is imported only when used
IdPairs = Sequence[Sequence[Sequence[int]]]  # (source, target), each a row of ids


class EpochCounter(keras.callbacks.Callback):
    """Counts epochs for `token_batches`, also in a resumed run: see `training.Backup`.

    Each pass over a dataset counts as one epoch. As a callback of `fit` the counter uses `fit`'s
    number of the epoch instead. A run that `training.Backup` resumes in its fifth epoch then has
    the fifth epoch's order, and other passes between epochs have no effect. Each dataset needs its
    own counter. An epoch of `fit` must be a full pass: with `steps_per_epoch`, the two numbers
    would differ.

    Example:
        >>> counter = EpochCounter()
        >>> print(counter.count(), counter.count())
        0 1
        >>> counter.on_epoch_begin(2)  # as `fit` does
        >>> print(counter.count())
        2
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._next = epoch

    def count(self) -> int:
        """Returns the number of the current epoch, and advances to the next."""
        self._next += 1
        return self._next - 1


class BatchPlan(NamedTuple):
    """An assignment of pairs to batches. Rows of a group may be permuted."""

    order: Any  # (N,), the row numbers
    groups: Any  # (N,), of each row in `order`
    starts: Any  # (batches,), the index in `order` of each batch's first row

    @classmethod
    def for_rows(cls, pairs: IdPairs, tokens_per_batch: int, length_multiple: int) -> "BatchPlan":
        """The longest rows first; a group has equal padded lengths on both sides."""
        # In multiples, including begin or end token.
        sizes = np.array([[len(source), len(target)] for source, target in pairs]).T
        lengths = sizes // length_multiple + 1  # (2, N)
        longer = lengths.max(axis=0)
        width = longer.max() * length_multiple
        if width > tokens_per_batch:
            expected = (
                f"be at least {width}, for the longest pair, unless `max_length` leaves it out"
            )
            _checks.fail("token_batches", "tokens_per_batch", expected, tokens_per_batch)
        order = np.lexsort((lengths[0] - lengths[1], -longer))
        changes = np.any(lengths[:, order[1:]] != lengths[:, order[:-1]], axis=0)
        groups = np.concatenate([[0], np.cumsum(changes)])
        # The first row of a batch is the longest, and determines its width.
        widths, starts = longer[order] * length_multiple, [0]
        while (end := starts[-1] + tokens_per_batch // widths[starts[-1]]) < len(widths):
            starts.append(int(end))
        return cls(order, groups, np.array(starts))

    @classmethod
    def in_order(cls, num_rows: int, batch_size: int) -> "BatchPlan":
        """Rows in their order, all in one group."""
        starts = np.arange(0, num_rows, batch_size)
        return cls(np.arange(num_rows), np.zeros(num_rows, int), starts)

    def split_into(self, num_batches: int) -> "BatchPlan":
        """The plan with at least `num_batches` batches, by halving the largest batches."""
        starts = list(self.starts)
        while len(starts) < num_batches:
            sizes = np.diff([*starts, len(self.order)])
            largest = int(np.argmax(sizes))
            starts.insert(largest + 1, starts[largest] + int(sizes[largest]) // 2)
        return self._replace(starts=np.array(starts))

    def rows(self, seed: int | None, epoch: int) -> list[np.ndarray]:
        """The row numbers of each batch, in the order of the plan, or shuffled for an epoch."""
        if seed is None:
            return np.split(self.order, self.starts[1:])
        generator = np.random.default_rng((seed, epoch))
        places = np.lexsort((generator.random(len(self.order)), self.groups))
        batches = np.split(self.order[places], self.starts[1:])
        return [batches[i] for i in generator.permutation(len(batches))]


# From the number of an epoch to its rows, and the number of batches of each epoch.
Rows = tuple[Callable[[int], tuple[IdPairs, BatchPlan]], int]


class PairBatches(keras.utils.PyDataset):
    """Batches of pairs, computed for each pass from the number of its epoch.

    `for batch in batches` is a pass, and so is an epoch of `fit`. Keras inspects one batch before
    the training: a pass by index that ends after the first of several batches is not counted.
    """

    def __init__(
        self,
        rows: Rows,
        vocabularies: tuple[Any, Any],
        seed: int | None,
        counter: EpochCounter,
        length_multiple: int,
    ):
        super().__init__()
        self._epoch_rows, self._num_batches = rows
        self._source_end = vocabularies[0].end_id
        self._target_begin, self._target_end = vocabularies[1].begin_id, vocabularies[1].end_id
        self._seed, self._counter, self._length_multiple = seed, counter, length_multiple
        self._epoch, self._read = 0, 0
        self._pairs: Any = None  # of each batch, within an epoch

    def __len__(self) -> int:
        return self._num_batches

    def __getitem__(self, index: int) -> Any:
        if self._pairs is None:
            self.on_epoch_begin()
        self._read = max(self._read, index + 1)
        return self._arrays(self._pairs[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self._arrays, self._pairs_of(self._counter.count()))

    as_numpy_iterator = __iter__

    def on_epoch_begin(self) -> None:
        self._epoch, self._read = self._counter.count(), 0
        self._pairs = self._pairs_of(self._epoch)

    def on_epoch_end(self) -> None:
        if self._read == 1 < len(self):
            self._counter.on_epoch_begin(self._epoch)
        self._pairs, self._read = None, 0

    def _pairs_of(self, epoch: int) -> list[IdPairs]:
        ids, plan = self._epoch_rows(epoch)
        return [[ids[i] for i in rows] for rows in plan.rows(self._seed, epoch)]

    def _arrays(self, pairs: IdPairs) -> Any:
        source = [[*source, self._source_end] for source, _ in pairs]
        target_in = [[self._target_begin, *target] for _, target in pairs]
        target_out = [[*target, self._target_end] for _, target in pairs]
        return (self._padded(source), self._padded(target_in)), self._padded(target_out)

    def _padded(self, rows: list[list[int]]) -> np.ndarray:
        """The rows, `(B, T)`, padded with 0."""
        length = -(-max(map(len, rows)) // self._length_multiple) * self._length_multiple
        padded = np.zeros((len(rows), length), dtype="int32")
        for padded_row, row in zip(padded, rows, strict=True):
            padded_row[: len(row)] = row
        return padded

    def for_fit(self) -> Dataset:
        """The batches as `fit` takes them on this backend.

        On TensorFlow, Keras would read the shapes of a `PyDataset` from its first two batches, and
        fail on a batch of another length.
        """
        if keras.backend.backend() != "tensorflow":
            return self
        import tensorflow as tf

        rows = tf.TensorSpec((None, None), tf.int32)
        signature = ((rows, rows), rows)
        dataset = tf.data.Dataset.from_generator(self.__iter__, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        return dataset.prefetch(tf.data.AUTOTUNE)
