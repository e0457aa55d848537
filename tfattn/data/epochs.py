"""The batches of an epoch as row numbers: which pairs go together, and in which order."""

from typing import NamedTuple

import keras
import numpy as np

from tfattn import _checks

__all__ = ["EpochCounter"]


class EpochCounter(keras.callbacks.Callback):
    """Tells `token_batches` which epoch it is, so that a run that was killed goes on with the
    orders of one that was not.

        counter, backup = data.EpochCounter(), training.Backup("run.backup")
        batches = data.token_batches(..., shuffle_seed=0, epoch_counter=counter)
        model.fit(batches, initial_epoch=backup.epoch, epochs=40, shuffle=False, callbacks=[counter,
        ..., backup])

    Each pass over a dataset counts one epoch. As a callback of `fit` the counter takes the epoch's
    number from there instead: where `training.Backup` has brought a run back to its fifth epoch,
    the fifth epoch's order follows, and whoever looks into the dataset in between changes nothing.
    Each dataset needs a counter of its own. An epoch of `fit` must be a whole pass: with
    `steps_per_epoch`, the numbers would no longer be those of passes.

    Args:
        epoch: Int of at least 0, the number of the first epoch.

    Raises:
        ValueError: `epoch` is no such int.

    Example:
        >>> counter = EpochCounter(epoch=4)
        >>> print(int(counter.count()), int(counter.count()))
        4 5
        >>> counter.on_epoch_begin(2)  # as `fit` does
        >>> print(int(counter.count()))
        2
    """

    def __init__(self, epoch: int = 0):
        import tensorflow as tf

        super().__init__()
        _checks.non_negative_int("EpochCounter", "epoch", epoch)
        with tf.device("CPU:0"):  # where pipelines run
            self._next = tf.Variable(epoch, dtype=tf.int64, trainable=False)

    def on_epoch_begin(self, epoch, logs=None):
        self._next.assign(epoch)

    def count(self):
        """The number of the epoch that begins now, a scalar int64 tensor; the next call's is one
        more.
        """
        return self._next.assign_add(1, read_value=True) - 1


class Plan(NamedTuple):
    """How pairs of similar length fill the batches of `token_batches`.

    `order` (N,) has the rows' numbers, longest first; `starts` (batches,) says where each batch
    begins in it. `cells` (N,) numbers the places: rows whose two padded lengths are equal share a
    number, and may change places.
    """

    order: np.ndarray
    cells: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, sides, tokens_per_batch: int, length_multiple: int) -> "Plan":
        """The plan for two sides of rows, each one mark short of its whole length.

        Raises:
            ValueError: a row alone is too long.
        """
        # in multiples
        lengths = np.array(
            [[-(-(len(row) + 1) // length_multiple) for row in side] for side in sides]
        )
        longer = lengths.max(axis=0)
        width = longer.max() * length_multiple
        if width > tokens_per_batch:
            expected = (
                f"be at least {width}, for the longest pair, unless `max_length` leaves it out"
            )
            _checks.fail("token_batches", "tokens_per_batch", expected, tokens_per_batch)
        order = np.lexsort((lengths[0] - lengths[1], -longer))
        changes = np.any(lengths[:, order[1:]] != lengths[:, order[:-1]], axis=0)
        cells = np.concatenate([[0.0], np.cumsum(changes)])
        starts = _starts(longer[order] * length_multiple, tokens_per_batch)
        return cls(order, cells, np.array(starts))

    def cut(self, batches: int) -> "Plan":
        """The same in so many batches, where they are fewer: the one with the most rows is halved,
        until they are enough.
        """
        starts = list(self.starts)
        while len(starts) < batches:
            sizes = np.diff([*starts, len(self.order)])
            largest = int(np.argmax(sizes))
            starts.insert(largest + 1, starts[largest] + int(sizes[largest]) // 2)
        return self._replace(starts=np.array(starts))

    def in_order(self):
        """The dataset of all batches, longest first."""
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(
            tf.RaggedTensor.from_row_starts(self.order, self.starts)
        )

    def epochs(self, seed: int, counter: EpochCounter):
        """The dataset of all batches, in another order each pass."""
        import tensorflow as tf

        def epoch(number):
            return tf.data.Dataset.from_tensor_slices(shuffled(*self, (seed, number)))

        return by_epoch(epoch, counter, len(self.starts))


def by_epoch(dataset, counter: EpochCounter, batches: int):
    """The dataset that each pass is `dataset` of the epoch's number, of so many batches."""
    import tensorflow as tf

    passes = tf.data.Dataset.range(1).flat_map(lambda _: dataset(counter.count()))
    return passes.apply(tf.data.experimental.assert_cardinality(batches))


def shuffled(order, cells, starts, key):
    """A plan's batches `(batches, None)`, shuffled, rows exchanged within their cells; `key` is
    (seed, epoch).
    """
    import tensorflow as tf

    rows = tf.size(order)
    noise = tf.random.stateless_uniform(
        [rows + tf.size(starts)], tf.stack(key), dtype=tf.float64, alg="philox"
    )
    places = tf.argsort(cells + noise[:rows])  # noise below 1 keeps a row within its cell
    batches = tf.RaggedTensor.from_row_starts(tf.gather(order, places), starts)
    return tf.gather(batches, tf.argsort(noise[rows:]))


def _starts(widths: np.ndarray, tokens_per_batch: int) -> list[int]:
    """Where each batch begins among rows of falling width: the first row's width rules its batch."""
    starts = [0]
    while (following := starts[-1] + tokens_per_batch // widths[starts[-1]]) < len(widths):
        starts.append(int(following))
    return starts
