"""Sentence pairs as padded batches of ids, in the form that `fit` takes."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.data.arrays import ArrayBatches, gathered
from tfattn.data.epochs import Dataset, EpochCounter, Plan, per_epoch
from tfattn.data.subword_dropout import SubwordDropout
from tfattn.data.vocabulary import Vocabulary

__all__ = ["token_batches", "translation_batches"]

Sides = Sequence[Sequence[Sequence[int]]]  # source and target, each a list of rows of ids
Vocabularies = tuple[Vocabulary | SubwordDropout, Vocabulary | SubwordDropout]

_AUTOTUNE = -1  # `tf.data.AUTOTUNE`, without importing TensorFlow


def translation_batches(
    pairs: Iterable[tuple[str, str]],
    source_vocabulary: Vocabulary,
    target_vocabulary: Vocabulary,
    batch_size: int,
    max_length: int | None = None,
    shuffle_seed: int | None = None,
    length_multiple: int = 8,
) -> Dataset:
    """Makes batches of sentence pairs, for training with teacher forcing.

    An element is `((source, target_in), target_out)`. For the pair ("a cat", "un chat") its rows
    are

        source      a    cat   <eos>
        target_in   <bos>  un  chat
        target_out  un   chat  <eos>

    so that `target_out[t]` is the token that follows `target_in[: t + 1]`. With a `shuffle_seed`
    the batches shuffle themselves. Pass `shuffle=False` to `model.fit`.

    The batches are a `tf.data.Dataset`. On another backend than TensorFlow's they are a
    `keras.utils.PyDataset` of NumPy arrays, made without TensorFlow: the same batches in the same
    order.

    Args:
        pairs: Iterable of `(source, target)` strings.
        source_vocabulary: `Vocabulary` of the source side.
        target_vocabulary: `Vocabulary` of the target side.
        batch_size: Positive int, B; one batch holds what is left, the last if nothing is shuffled.
        max_length: Positive int, the most ids in a row, its begin or end included. A pair with a
            longer row on either side is left out. Defaults to None, which keeps all.
        shuffle_seed: Non-negative int. Each epoch has its own order, which depends only on this and
            on how many passes came before. Defaults to None, which keeps the order of `pairs`, as
            evaluation needs it.
        length_multiple: Positive int. The rows of a batch are padded with 0 to the length of the
            longest, rounded up to a multiple of this. So there are few shapes; XLA compiles once
            for each. Defaults to 8.

    Returns:
        A `tf.data.Dataset` of known cardinality, or a `keras.utils.PyDataset`. Its elements hold
        int32 arrays, source `(B, S)`, target_in `(B, T)` and target_out `(B, T)`.

    Raises:
        ValueError: a size is not a positive int; `pairs` holds something else; no pair is left to
            batch; `shuffle_seed` is not an int from 0 to 2⁶³ − 1.

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
    _check_options(who, max_length, shuffle_seed, length_multiple)
    vocabularies = (source_vocabulary, target_vocabulary)
    for side, vocabulary in zip(("source", "target"), vocabularies, strict=True):
        if isinstance(vocabulary, SubwordDropout):
            expected = "encode alike in each epoch: `token_batches` takes a SubwordDropout"
            _checks.fail(who, f"{side}_vocabulary", expected, vocabulary)
    _, ids = _encode(who, pairs, vocabularies, max_length)
    plan = Plan.in_order(len(ids[0]), batch_size)
    flat_sides = _flat_sides(ids, vocabularies)
    return _epochs(flat_sides, plan, shuffle_seed, EpochCounter(), length_multiple)


def token_batches(
    pairs: Iterable[tuple[str, str]],
    source_vocabulary: Vocabulary | SubwordDropout,
    target_vocabulary: Vocabulary | SubwordDropout,
    tokens_per_batch: int,
    max_length: int | None = None,
    shuffle_seed: int | None = None,
    length_multiple: int = 4,
    epoch_counter: EpochCounter | None = None,
) -> Dataset:
    """Makes batches for teacher forcing, of pairs of similar length.

    Elements are those of `translation_batches`, and come in the same ways. A batch has as many rows
    as `tokens_per_batch` allows on its longer side: B · max(S, T) <= tokens_per_batch, padding
    included.

    Pairs are ordered by their padded lengths, longest first, and split into batches once. Each
    epoch then exchanges pairs whose two padded lengths are equal, and shuffles the batches. So a
    pair meets other pairs in each epoch, while the number and the shapes of the batches stay the
    same: the progress bar is right, and XLA compiles nothing after the first epoch.

    With a `SubwordDropout` each epoch splits words in other ways, so that lengths and shapes
    differ. The number of batches stays the same, 1% above what the first epoch needs. A pair that
    would become too long for `max_length` or for a batch is encoded without dropout. So is a whole
    epoch that would need more batches.

    Args:
        pairs: Iterable of `(source, target)` strings.
        source_vocabulary: `Vocabulary` of the source side, or another with its methods; or a
            `SubwordDropout`.
        target_vocabulary: The same for the target side.
        tokens_per_batch: Positive int, the most ids in a batch, padding included, on either side.
        max_length: Positive int, the most ids in a row, its begin or end included. A pair with a
            longer row on either side is left out. Defaults to None, which keeps all.
        shuffle_seed: Non-negative int. The order of an epoch, and its BPE dropout, depend only on
            this and on the epoch's number, and not on the backend. Defaults to None, which gives
            the longest pairs first, always in the same order.
        length_multiple: Positive int. Lengths are padded with 0 to a multiple of this. A larger one
            gives fewer shapes and more pairs that an epoch may exchange; a smaller one pads less.
            Defaults to 4.
        epoch_counter: `EpochCounter` that gives the epoch's number when a pass over the dataset
            begins. Defaults to None, which counts the passes from 0.

    Returns:
        A `tf.data.Dataset` of known cardinality, or a `keras.utils.PyDataset`. Its elements hold
        int32 arrays, source `(B, S)`, target_in `(B, T)` and target_out `(B, T)`.

    Raises:
        ValueError: a size is not a positive int; `pairs` holds something else; no pair is left to
            batch; a pair is longer than `tokens_per_batch`; `shuffle_seed` is not an int from 0 to
            2⁶³ − 1, or None beside a `SubwordDropout`.

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
    vocabularies = (source_vocabulary, target_vocabulary)
    redrawn = any(isinstance(vocabulary, SubwordDropout) for vocabulary in vocabularies)
    if redrawn and shuffle_seed is None:
        _checks.fail(who, "shuffle_seed", "be given where words are cut by chance", shuffle_seed)
    sentences, ids = _encode(who, pairs, vocabularies, max_length)
    make_plan = functools.partial(
        Plan.for_rows, tokens_per_batch=tokens_per_batch, length_multiple=length_multiple
    )
    plan = make_plan(ids)
    counter = epoch_counter or EpochCounter()
    if not redrawn:
        flat_sides = _flat_sides(ids, vocabularies)
        return _epochs(flat_sides, plan, shuffle_seed, counter, length_multiple)
    longest = tokens_per_batch // length_multiple * length_multiple
    longest = min(max_length or tokens_per_batch, longest)
    redraw = functools.partial(_redraw, sentences, ids, vocabularies, longest, shuffle_seed)
    return _redrawn_epochs(
        redraw, make_plan, ids, plan, vocabularies, shuffle_seed, counter, length_multiple
    )


def _check_options(
    who: str, max_length: int | None, shuffle_seed: int | None, length_multiple: int
) -> None:
    _checks.positive_int(who, "length_multiple", length_multiple)
    if max_length is not None:
        _checks.positive_int(who, "max_length", max_length)
    _checks.seed(who, shuffle_seed, "shuffle_seed")


def _encode(
    who: str,
    pairs: Iterable[tuple[str, str]],
    vocabularies: Vocabularies,
    max_length: int | None,
) -> tuple[list[Sequence[str]], Sides]:
    """(sentences, ids) of the pairs that are not too long, each with one list for either side."""
    for side, vocabulary in zip(("source", "target"), vocabularies, strict=True):
        _checks.vocabulary(who, f"{side}_vocabulary", vocabulary)
    checked = _checks.pairs(who, "pairs", pairs)
    if not checked:
        _checks.fail(who, "pairs", "hold at least one pair", checked)
    rows = [
        (pair, [words.encode(side) for words, side in zip(vocabularies, pair, strict=True)])
        for pair in checked
    ]
    if max_length is not None:
        rows = [row for row in rows if max(map(len, row[1])) + 1 <= max_length]
    if not rows:
        _checks.fail(who, "max_length", "leave at least one pair", max_length)
    sentences, ids = zip(*rows, strict=True)
    return list(zip(*sentences, strict=True)), list(zip(*ids, strict=True))


def _redraw(
    sentences: Sequence[Sequence[str]],
    ids: Sides,
    vocabularies: Vocabularies,
    longest: int,
    seed: int,
    epoch: int,
) -> Sides:
    """The ids with BPE dropout of an epoch.

    A pair keeps its `ids` where the new ones, with their begin or end, are longer than `longest`.
    """
    sides = list(ids)
    for side, vocabulary in enumerate(vocabularies):
        if isinstance(vocabulary, SubwordDropout):
            own_seed = np.random.SeedSequence((seed, epoch, side)).generate_state(1)[0] >> 1
            sides[side] = vocabulary.draw(sentences[side], int(own_seed))
    pairs = [
        drawn if max(map(len, drawn)) < longest else plain
        for drawn, plain in zip(zip(*sides, strict=True), zip(*ids, strict=True), strict=True)
    ]
    return list(zip(*pairs, strict=True))


def _epochs(
    flat_sides: Sequence[tuple[np.ndarray, np.ndarray]],
    plan: Plan,
    seed: int | None,
    counter: EpochCounter,
    length_multiple: int,
) -> Dataset:
    """The batches of a plan, in another order for each pass where there is a seed."""
    if keras.backend.backend() != "tensorflow":
        return ArrayBatches(
            len(plan.starts),
            lambda epoch: gathered(flat_sides, plan.rows(seed, epoch), length_multiple),
            counter,
        )
    shuffled = functools.partial(plan.dataset, seed)
    rows = shuffled(0) if seed is None else per_epoch(shuffled, counter, len(plan.starts))
    return _gather(flat_sides, rows, length_multiple).prefetch(_AUTOTUNE)


def _redrawn_epochs(
    redraw: Callable[[int], Sides],
    make_plan: Callable[[Sides], Plan],
    ids: Sides,
    plan: Plan,
    vocabularies: Vocabularies,
    seed: int,
    counter: EpochCounter,
    length_multiple: int,
) -> Dataset:
    """Batches whose every pass has the ids that `redraw` gives for its epoch.

    `ids` and `plan` are those without dropout. `fit` takes the number of batches of the first epoch
    for that of all, and schedules are made from it. So each epoch has as many: a hundredth more
    than the first one needs.
    """
    first = len(make_plan(redraw(0)).starts)
    num_batches = min(max(len(plan.starts), first + -(-first // 100)), len(ids[0]))

    def drawn(epoch):
        """(flat sides, plan) of an epoch."""
        drawn_ids = redraw(int(epoch))
        drawn_plan = make_plan(drawn_ids)
        if len(drawn_plan.starts) > num_batches:
            drawn_ids, drawn_plan = ids, plan
        return _flat_sides(drawn_ids, vocabularies), drawn_plan.split_into(num_batches)

    if keras.backend.backend() != "tensorflow":

        def of_epoch(epoch):
            flat_sides, drawn_plan = drawn(epoch)
            return gathered(flat_sides, drawn_plan.rows(seed, epoch), length_multiple)

        return ArrayBatches(num_batches, of_epoch, counter)

    import tensorflow as tf

    def arrays(epoch):
        flat_sides, drawn_plan = drawn(epoch)
        return (*itertools.chain.from_iterable(flat_sides), *drawn_plan)

    def dataset(epoch):
        types = [tf.int32, tf.int64] * 3 + [tf.int64, tf.float64, tf.int64]
        found = tf.numpy_function(arrays, [epoch], types)
        found = [tf.ensure_shape(array, [None]) for array in found]
        flat_sides = [found[i : i + 2] for i in (0, 2, 4)]
        return _gather(flat_sides, Plan(*found[6:]).dataset(seed, epoch), length_multiple)

    return per_epoch(dataset, counter, num_batches).prefetch(_AUTOTUNE)


def _flat_sides(ids: Sides, vocabularies: Vocabularies) -> list[tuple[np.ndarray, np.ndarray]]:
    """Source, target_in and target_out, each as (ids of all rows in one array, lengths of rows)."""
    source, target = vocabularies
    sides = (
        [[*row, source.end_id] for row in ids[0]],
        [[target.begin_id, *row] for row in ids[1]],
        [[*row, target.end_id] for row in ids[1]],
    )
    return [
        (
            np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32),
            np.fromiter(map(len, rows), dtype=np.int64),
        )
        for rows in sides
    ]


def _gather(
    flat_sides: Sequence[tuple[Tensor, Tensor]], rows: Dataset, length_multiple: int
) -> Dataset:
    """The batches of `flat_sides` whose row numbers are the elements of `rows`."""
    import tensorflow as tf

    sides = [tf.RaggedTensor.from_row_lengths(*side, validate=False) for side in flat_sides]

    def padded(side, indices):
        dense = tf.gather(side, indices).to_tensor(default_value=0)  # (B, T)
        return tf.pad(dense, [[0, 0], [0, -tf.shape(dense)[1] % length_multiple]])

    def batch(indices):
        source, target_in, target_out = (padded(side, indices) for side in sides)
        return (source, target_in), target_out

    # Row numbers are shuffled and batched, and whole batches gathered: much faster than sentences
    # that pass through the pipeline one by one.
    return rows.map(batch, num_parallel_calls=_AUTOTUNE)
