"""Sentence pairs as padded batches of ids, in the form that `fit` takes."""

from collections.abc import Sequence

import numpy as np

from tfattn import _checks
from tfattn.data.vocabulary import Vocabulary

__all__ = ["translation_batches"]


def translation_batches(
    pairs: Sequence[tuple[str, str]],
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
        pairs: Sequence of `(source, target)` strings.
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
        ValueError: a size is no positive int; no pair is left to batch.

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
    who = "translation_batches"
    _checks.positive_int(who, "batch_size", batch_size)
    _checks.positive_int(who, "length_multiple", length_multiple)
    if max_length is not None:
        _checks.positive_int(who, "max_length", max_length)
    if shuffle_seed is not None:
        _checks.non_negative_int(who, "shuffle_seed", shuffle_seed)
    if len(pairs) == 0:
        _checks.fail(who, "pairs", "hold at least one pair", pairs)
    encoded = [(source_vocabulary.encode(source), target_vocabulary.encode(target)) for source, target in pairs]
    if max_length is not None:
        encoded = [pair for pair in encoded if max(map(len, pair)) + 1 <= max_length]
    if not encoded:
        _checks.fail(who, "max_length", "leave at least one pair", max_length)
    sides = (
        [[*source, source_vocabulary.end_id] for source, _ in encoded],
        [[target_vocabulary.begin_id, *target] for _, target in encoded],
        [[*target, target_vocabulary.end_id] for _, target in encoded],
    )
    return _batched(sides, batch_size, shuffle_seed, length_multiple)


def _batched(sides, batch_size: int, shuffle_seed: int | None, length_multiple: int):
    import tensorflow as tf  # here alone: the rest of the package's data needs none

    ragged = [_ragged(rows) for rows in sides]

    def padded(rows):
        dense = rows.to_tensor(default_value=0)  # (B, T)
        return tf.pad(dense, [[0, 0], [0, -tf.shape(dense)[1] % length_multiple]])

    def gather(indices):
        source, target_in, target_out = (padded(tf.gather(side, indices)) for side in ragged)
        return (source, target_in), target_out

    # Row numbers are shuffled and batched, and whole batches gathered: many times
    # faster than passing each sentence through the pipeline by itself.
    indices = tf.data.Dataset.range(len(sides[0]))
    if shuffle_seed is not None:
        indices = indices.shuffle(len(sides[0]), seed=shuffle_seed)
    batches = indices.batch(batch_size).map(gather, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE)


def _ragged(rows: list[list[int]]):
    import tensorflow as tf

    values = np.fromiter((index for row in rows for index in row), dtype=np.int32)
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64)
    return tf.RaggedTensor.from_row_lengths(values, lengths)
