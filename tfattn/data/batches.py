"""Sentence pairs as padded batches of ids, in the form that `fit` takes."""

from collections.abc import Iterable, Sequence

import keras
import numpy as np

from tfattn import _checks
from tfattn.data.vocabulary import Vocabulary

__all__ = ["EpochCounter", "token_batches", "translation_batches"]


def translation_batches(
    pairs: Iterable[tuple[str, str]],
    source_vocabulary: Vocabulary,
    target_vocabulary: Vocabulary,
    batch_size: int,
    max_length: int | None = None,
    shuffle_seed: int | None = None,
    length_multiple: int = 8,
):
    """Makes a `tf.data.Dataset` for teacher forcing out of sentence pairs.

    An element is `((source, target_in), target_out)`. For the pair ("a cat", "un
    chat") its rows read

        source      a    cat   <eos>
        target_in   <bos>  un  chat
        target_out  un   chat  <eos>

    so that `target_out[t]` is what to say after `target_in[: t + 1]`. The order is
    made here: `model.fit(dataset, shuffle=False)` spares the warning that Keras gives
    when it would shuffle and cannot.

    Args:
        pairs: Iterable of `(source, target)` strings.
        source_vocabulary: `Vocabulary` of the source side.
        target_vocabulary: `Vocabulary` of the target side.
        batch_size: Positive int, B; the last batch holds what is left.
        max_length: Positive int, the most ids in a row, its begin or end included; a
            pair with a longer row on either side is left out. None keeps all.
        shuffle_seed: Non-negative int: each epoch has its own order, and the same
            seed gives the same orders (TensorFlow mixes in its global seed where one
            is set). None keeps the order of `pairs`, as evaluation wants it.
        length_multiple: Positive int. A batch is padded with 0 to its longest row,
            and on to the next multiple of this, so that XLA, which compiles once a
            shape, meets few shapes. 1 pads no more than the rows need.

    Returns:
        A `tf.data.Dataset` of known cardinality. Its elements are int32: source
        `(B, S)`, target_in `(B, T)`, target_out `(B, T)`.

    Raises:
        ValueError: a size is no positive int; `pairs` holds something else; no pair is left to batch.

    Example:
        >>> pairs = [("a cat", "un chat"), ("the old cat", "le vieux chat")]
        >>> english = Vocabulary.from_sentences(source for source, _ in pairs)
        >>> french = Vocabulary.from_sentences(target for _, target in pairs)
        >>> dataset = translation_batches(pairs, english, french, 2, length_multiple=1)
        >>> [((source, target_in), target_out)] = dataset.as_numpy_iterator()
        >>> print(target_in)
        [[2 6 4 0]
         [2 5 7 4]]
        >>> print(target_out)
        [[6 4 3 0]
         [5 7 4 3]]
    """
    import tensorflow as tf  # in functions alone: the rest of the package's data needs none

    who = "translation_batches"
    _checks.positive_int(who, "batch_size", batch_size)
    _check_options(who, max_length, shuffle_seed, length_multiple)
    sides = _sides(who, pairs, source_vocabulary, target_vocabulary, max_length)
    rows = tf.data.Dataset.range(len(sides[0]))
    if shuffle_seed is not None:
        rows = rows.shuffle(len(sides[0]), seed=shuffle_seed)
    return _gathered(sides, rows.batch(batch_size), length_multiple)


def token_batches(
    pairs: Iterable[tuple[str, str]],
    source_vocabulary: Vocabulary,
    target_vocabulary: Vocabulary,
    tokens_per_batch: int,
    max_length: int | None = None,
    shuffle_seed: int | None = None,
    length_multiple: int = 4,
    epoch_counter: "EpochCounter | None" = None,
):
    """Makes a `tf.data.Dataset` for teacher forcing whose batches hold pairs of similar length, as many as fit.

    Elements are those of `translation_batches`. A batch has as many rows as `tokens_per_batch` allows on its longer
    side: B · max(S, T) <= tokens_per_batch, padding included.

    Pairs are ordered by their padded lengths, longest first, and cut into batches once. An epoch then exchanges pairs
    whose two padded lengths are equal, and shuffles the batches. So every epoch has other company for each pair, while
    the number of batches and their shapes stay: `fit` knows how far it is, and XLA, which compiles once a shape, meets
    each shape in the first epoch.

    Args:
        pairs: Iterable of `(source, target)` strings.
        source_vocabulary: `Vocabulary` of the source side, or another with its methods.
        target_vocabulary: The same of the target side.
        tokens_per_batch: Positive int, the most ids in a batch, padding included, on either side.
        max_length: Positive int, the most ids in a row, its begin or end included; a pair with a longer row on either
            side is left out. None keeps all.
        shuffle_seed: Non-negative int: the order of an epoch is a function of this and of the epoch's number alone,
            whatever TensorFlow's global seed. None gives the longest pairs first, always in the same order.
        length_multiple: Positive int. Lengths are padded with 0 to a multiple of this. A larger one gives fewer shapes
            and more pairs that an epoch may exchange; a smaller one pads less.
        epoch_counter: `EpochCounter` that tells the number of an epoch when a pass over the dataset begins. None counts
            the passes from 0.

    Returns:
        A `tf.data.Dataset` of known cardinality. Its elements are int32: source `(B, S)`, target_in `(B, T)`,
        target_out `(B, T)`.

    Raises:
        ValueError: a size is no positive int; `pairs` holds something else; no pair is left to batch; a pair is longer than `tokens_per_batch`.

    Example:
        >>> pairs = [("a cat", "un chat"), ("the old cat", "le vieux chat"), ("a dog", "un chien")]
        >>> english = Vocabulary.from_sentences(source for source, _ in pairs)
        >>> french = Vocabulary.from_sentences(target for _, target in pairs)
        >>> dataset = token_batches(pairs, english, french, tokens_per_batch=8, length_multiple=1)
        >>> for (source, target_in), target_out in dataset.as_numpy_iterator():
        ...     print(source.shape, [french.decode(row) for row in target_out])
        (2, 4) ['le vieux chat', 'un chat']
        (1, 3) ['un chien']
    """
    who = "token_batches"
    _checks.positive_int(who, "tokens_per_batch", tokens_per_batch)
    _check_options(who, max_length, shuffle_seed, length_multiple)
    if not isinstance(epoch_counter, EpochCounter | None):
        _checks.fail(who, "epoch_counter", "be an EpochCounter, or None", epoch_counter)
    sides = _sides(who, pairs, source_vocabulary, target_vocabulary, max_length)
    lengths = np.array([[-(-len(row) // length_multiple) for row in side] for side in sides[:2]])  # in multiples
    longer = lengths.max(axis=0)
    width = longer.max() * length_multiple
    if width > tokens_per_batch:
        expected = f"be at least {width}, for the longest pair, unless `max_length` leaves it out"
        _checks.fail(who, "tokens_per_batch", expected, tokens_per_batch)
    order = np.lexsort((lengths[0] - lengths[1], -longer))
    starts = _starts(longer[order] * length_multiple, tokens_per_batch)
    if shuffle_seed is None:
        batches = _in_order(order, starts)
    else:
        batches = _by_epoch(order, starts, lengths[:, order], shuffle_seed, epoch_counter or EpochCounter())
    return _gathered(sides, batches, length_multiple)


class EpochCounter(keras.callbacks.Callback):
    """Tells `token_batches` which epoch it is, so that a run that was killed goes on with the orders of one that was not.

        counter, backup = data.EpochCounter(), training.Backup("run.backup")
        batches = data.token_batches(..., shuffle_seed=0, epoch_counter=counter)
        model.fit(batches, initial_epoch=backup.epoch, epochs=40, shuffle=False, callbacks=[counter, ..., backup])

    Each pass over a dataset counts one epoch. As a callback of `fit` the counter takes the epoch's number from there
    instead: where `training.Backup` has brought a run back to its fifth epoch, the fifth epoch's order follows, and
    whoever looks into the dataset in between changes nothing. Each dataset needs a counter of its own. An epoch of `fit`
    must be a whole pass: with `steps_per_epoch`, the numbers would no longer be those of passes.

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
        """The number of the epoch that begins now, a scalar int64 tensor; the next call's is one more."""
        return self._next.assign_add(1, read_value=True) - 1


def _check_options(who: str, max_length: int | None, shuffle_seed: int | None, length_multiple: int) -> None:
    _checks.positive_int(who, "length_multiple", length_multiple)
    if max_length is not None:
        _checks.positive_int(who, "max_length", max_length)
    if shuffle_seed is not None:
        _checks.non_negative_int(who, "shuffle_seed", shuffle_seed)


def _sides(
    who: str, pairs, source_vocabulary, target_vocabulary, max_length: int | None
) -> tuple[list[list[int]], ...]:
    """(source, target_in, target_out): lists of rows of ids, marks included."""
    pairs = _checked_pairs(who, pairs)
    encoded = [(source_vocabulary.encode(source), target_vocabulary.encode(target)) for source, target in pairs]
    if max_length is not None:
        encoded = [pair for pair in encoded if max(map(len, pair)) + 1 <= max_length]
    if not encoded:
        _checks.fail(who, "max_length", "leave at least one pair", max_length)
    return (
        [[*source, source_vocabulary.end_id] for source, _ in encoded],
        [[target_vocabulary.begin_id, *target] for _, target in encoded],
        [[*target, target_vocabulary.end_id] for _, target in encoded],
    )


def _checked_pairs(who: str, pairs) -> list[tuple[str, str]]:
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        _checks.fail(who, "pairs", "be pairs of strings", pairs)
    pairs = list(pairs)
    for pair in pairs:
        two = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        if not two or not all(isinstance(side, str) for side in pair):
            _checks.fail(who, "pairs", "hold pairs of strings", pair)
    if not pairs:
        _checks.fail(who, "pairs", "hold at least one pair", pairs)
    return pairs


def _starts(widths: np.ndarray, tokens_per_batch: int) -> list[int]:
    """Where each batch begins among rows of falling width: the first row's width rules its batch."""
    starts = [0]
    while (following := starts[-1] + tokens_per_batch // widths[starts[-1]]) < len(widths):
        starts.append(int(following))
    return starts


def _in_order(order: np.ndarray, starts: list[int]):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(tf.RaggedTensor.from_row_starts(order, starts))


def _by_epoch(order: np.ndarray, starts: list[int], lengths: np.ndarray, seed: int, counter: EpochCounter):
    """Batches of row numbers, another order each pass; `lengths` (2, rows) stand in `order`."""
    import tensorflow as tf

    changes = np.any(lengths[:, 1:] != lengths[:, :-1], axis=0)
    cells = np.concatenate([[0.0], np.cumsum(changes)])  # rows of one cell may change places

    def epoch(_):
        noise = tf.random.stateless_uniform(
            [len(order) + len(starts)], tf.stack([seed, counter.count()]), dtype=tf.float64, alg="philox"
        )
        places = tf.argsort(cells + noise[: len(order)])  # noise below 1 keeps a row within its cell
        batches = tf.RaggedTensor.from_row_starts(tf.gather(order, places), starts)
        return tf.data.Dataset.from_tensor_slices(tf.gather(batches, tf.argsort(noise[len(order) :])))

    batches = tf.data.Dataset.range(1).flat_map(epoch)
    return batches.apply(tf.data.experimental.assert_cardinality(len(starts)))


def _gathered(sides, batches, length_multiple: int):
    """The dataset of the rows that `batches`, a dataset of row numbers, names."""
    import tensorflow as tf

    ragged = [_ragged(rows) for rows in sides]

    def padded(rows):
        dense = rows.to_tensor(default_value=0)  # (B, T)
        return tf.pad(dense, [[0, 0], [0, -tf.shape(dense)[1] % length_multiple]])

    def gather(indices):
        source, target_in, target_out = (padded(tf.gather(side, indices)) for side in ragged)
        return (source, target_in), target_out

    # Row numbers are shuffled and batched, and whole batches gathered: many times
    # faster than passing each sentence through the pipeline by itself.
    return batches.map(gather, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _ragged(rows: list[list[int]]):
    import tensorflow as tf

    values = np.fromiter((index for row in rows for index in row), dtype=np.int32)
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64)
    return tf.RaggedTensor.from_row_lengths(values, lengths)
