"""Sentence pairs as padded batches of ids, in the form that `fit` takes."""

import functools
from collections.abc import Iterable

import numpy as np

from tfattn import _checks
from tfattn.data.epochs import EpochCounter, Plan, by_epoch, shuffled
from tfattn.data.subword_dropout import SubwordDropout
from tfattn.data.vocabulary import Vocabulary

__all__ = ["token_batches", "translation_batches", "twice"]

_AUTO = -1  # `tf.data.AUTOTUNE`, without importing TensorFlow


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
        ValueError: a size is no positive int; `pairs` holds something else; no pair is left to
            batch; `shuffle_seed` is no int from 0 to 2⁶³ − 1.

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
    vocabularies = (source_vocabulary, target_vocabulary)
    for name, vocabulary in zip(
        ("source_vocabulary", "target_vocabulary"), vocabularies, strict=True
    ):
        if isinstance(vocabulary, SubwordDropout):
            _checks.fail(
                who,
                name,
                "encode alike in each epoch: `token_batches` takes a SubwordDropout",
                vocabulary,
            )
    sides = _marked(_kept(who, pairs, vocabularies, max_length)[1], vocabularies)
    rows = tf.data.Dataset.range(len(sides[0]))
    if shuffle_seed is not None:
        rows = rows.shuffle(len(sides[0]), seed=shuffle_seed)
    return _gathered(map(_ragged, sides), rows.batch(batch_size), length_multiple).prefetch(_AUTO)


def token_batches(
    pairs: Iterable[tuple[str, str]],
    source_vocabulary: Vocabulary | SubwordDropout,
    target_vocabulary: Vocabulary | SubwordDropout,
    tokens_per_batch: int,
    max_length: int | None = None,
    shuffle_seed: int | None = None,
    length_multiple: int = 4,
    epoch_counter: EpochCounter | None = None,
):
    """Makes a `tf.data.Dataset` for teacher forcing whose batches hold pairs of similar length, as
    many as fit.

    Elements are those of `translation_batches`. A batch has as many rows as `tokens_per_batch`
    allows on its longer side: B · max(S, T) <= tokens_per_batch, padding included.

    Pairs are ordered by their padded lengths, longest first, and cut into batches once. An epoch
    then exchanges pairs whose two padded lengths are equal, and shuffles the batches. So every
    epoch has other company for each pair, while the number of batches and their shapes stay: `fit`
    knows how far it is, and XLA, which compiles once a shape, meets each shape in the first epoch.

    With a `SubwordDropout` an epoch cuts words in ways of its own, and makes batches of what comes
    of it: their number stays, a hundredth above what the first needs, their shapes do not. A pair
    that would come out too long for `max_length` or for a batch is cut as without dropout; so is,
    should that number not suffice it, an epoch.

    Args:
        pairs: Iterable of `(source, target)` strings.
        source_vocabulary: `Vocabulary` of the source side, or another with its methods; or a
            `SubwordDropout`.
        target_vocabulary: The same of the target side.
        tokens_per_batch: Positive int, the most ids in a batch, padding included, on either side.
        max_length: Positive int, the most ids in a row, its begin or end included; a pair with a
            longer row on either side is left out. None keeps all.
        shuffle_seed: Non-negative int: the order of an epoch, and how it cuts words, is a function
            of this and of the epoch's number alone, whatever TensorFlow's global seed. None gives
            the longest pairs first, always in the same order.
        length_multiple: Positive int. Lengths are padded with 0 to a multiple of this. A larger one
            gives fewer shapes and more pairs that an epoch may exchange; a smaller one pads less.
        epoch_counter: `EpochCounter` that tells the number of an epoch when a pass over the dataset
            begins. None counts the passes from 0.

    Returns:
        A `tf.data.Dataset` of known cardinality. Its elements are int32: source `(B, S)`, target_in
        `(B, T)`, target_out `(B, T)`.

    Raises:
        ValueError: a size is no positive int; `pairs` holds something else; no pair is left to
            batch; a pair is longer than `tokens_per_batch`; `shuffle_seed` is no int from 0 to 2⁶³
            − 1, or None beside a `SubwordDropout`.

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
    drawn = any(isinstance(vocabulary, SubwordDropout) for vocabulary in vocabularies)
    if drawn and shuffle_seed is None:
        _checks.fail(who, "shuffle_seed", "be given where words are cut by chance", shuffle_seed)
    sentences, ids = _kept(who, pairs, vocabularies, max_length)
    plan_of = functools.partial(
        Plan.of, tokens_per_batch=tokens_per_batch, length_multiple=length_multiple
    )
    # the plan finds the pair that is too long
    plan, counter = plan_of(ids), epoch_counter or EpochCounter()
    if drawn:
        longest = min(
            max_length or tokens_per_batch, tokens_per_batch // length_multiple * length_multiple
        )
        draw = functools.partial(_drawn, sentences, ids, vocabularies, longest, shuffle_seed)
        batches = _drawn_epochs(
            draw, ids, plan, plan_of, vocabularies, shuffle_seed, counter, length_multiple
        )
    else:
        sides = map(_ragged, _marked(ids, vocabularies))
        rows = plan.in_order() if shuffle_seed is None else plan.epochs(shuffle_seed, counter)
        batches = _gathered(sides, rows, length_multiple)
    return batches.prefetch(_AUTO)


def twice(batches):
    """Each batch with its rows twice, one half after the other: what `training.RDropCrossentropy`
    compares.

    Args:
        batches: `tf.data.Dataset` of nested tensors, the batch as first axis.

    Returns:
        A `tf.data.Dataset` of as many batches; where one had B rows it has 2 · B.

    Raises:
        ValueError: `batches` is no dataset.

    Example:
        >>> words = Vocabulary(["a", "b"])
        >>> dataset = twice(token_batches([("a b", "b")], words, words, tokens_per_batch=8, length_multiple=1))
        >>> [((source, target_in), target_out)] = dataset.as_numpy_iterator()
        >>> print(source)
        [[4 5 3]
         [4 5 3]]
    """
    import tensorflow as tf

    if not isinstance(batches, tf.data.Dataset):
        _checks.fail("twice", "batches", "be a tf.data.Dataset", batches)
    parts = isinstance(batches.element_spec, tuple)  # which `map` hands over one by one
    double = functools.partial(tf.nest.map_structure, lambda rows: tf.concat([rows, rows], axis=0))
    return batches.map(
        lambda *batch: double(batch if parts else batch[0]), num_parallel_calls=_AUTO
    )


def _check_options(
    who: str, max_length: int | None, shuffle_seed: int | None, length_multiple: int
) -> None:
    _checks.positive_int(who, "length_multiple", length_multiple)
    if max_length is not None:
        _checks.positive_int(who, "max_length", max_length)
    if shuffle_seed is not None:
        if _checks.non_negative_int(who, "shuffle_seed", shuffle_seed) >= 2**63:
            _checks.fail(who, "shuffle_seed", "be below 2**63", shuffle_seed)


def _kept(who: str, pairs, vocabularies, max_length: int | None):
    """(sentences, ids), each a list for either side, of the pairs that are not too long, marks not
    included.
    """
    pairs = _checked_pairs(who, pairs)
    rows = [
        (pair, [words.encode(side) for words, side in zip(vocabularies, pair, strict=True)])
        for pair in pairs
    ]
    if max_length is not None:
        rows = [row for row in rows if max(map(len, row[1])) + 1 <= max_length]
    if not rows:
        _checks.fail(who, "max_length", "leave at least one pair", max_length)
    sentences, ids = zip(*rows, strict=True)
    return list(zip(*sentences, strict=True)), list(zip(*ids, strict=True))


def _checked_pairs(who: str, pairs) -> list[tuple[str, str]]:
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        _checks.fail(who, "pairs", "be pairs of strings", pairs)
    checked = []
    for pair in pairs:
        sides = () if isinstance(pair, str) or not isinstance(pair, Iterable) else tuple(pair)
        if len(sides) != 2 or not all(isinstance(side, str) for side in sides):
            _checks.fail(who, "pairs", "hold pairs of strings", pair)
        checked.append(sides)
    if not checked:
        _checks.fail(who, "pairs", "hold at least one pair", checked)
    return checked


def _drawn(sentences, ids, vocabularies, longest: int, seed: int, epoch: int):
    """`ids`, those of a `SubwordDropout` drawn anew; a pair that would be longer than `longest`,
    its mark included, stays.
    """

    def side(number):
        if not isinstance(vocabularies[number], SubwordDropout):
            return ids[number]
        own_seed = np.random.SeedSequence((seed, epoch, number)).generate_state(1)[0] >> 1
        return vocabularies[number].draw(sentences[number], int(own_seed))

    drawn, plain = zip(side(0), side(1), strict=True), zip(*ids, strict=True)
    rows = [
        new if max(map(len, new)) < longest else own for new, own in zip(drawn, plain, strict=True)
    ]
    return list(zip(*rows, strict=True))


def _marked(ids, vocabularies) -> tuple[list[list[int]], ...]:
    """(source, target_in, target_out): rows of ids, marks included."""
    source, target = vocabularies
    return (
        [[*row, source.end_id] for row in ids[0]],
        [[target.begin_id, *row] for row in ids[1]],
        [[*row, target.end_id] for row in ids[1]],
    )


def _drawn_epochs(
    draw, ids, plain, plan_of, vocabularies, seed: int, counter: EpochCounter, length_multiple: int
):
    """The dataset whose passes have the rows that `draw` gives for their epoch, in batches as
    `plan_of` has them.

    `ids` and `plain` are the rows without dropout, and their plan.

    `fit` takes the first epoch's number of batches for that of all, and schedules are made from it:
    so each has as many, a hundredth more than the first has need of.
    """
    import tensorflow as tf

    first = len(plan_of(draw(0)).starts)
    number_of_batches = min(max(len(plain.starts), first + -(-first // 100)), len(ids[0]))

    def arrays(epoch):
        rows = draw(int(epoch))
        plan = plan_of(rows)
        if len(plan.starts) > number_of_batches:
            rows, plan = ids, plain
        flat = [array for side in _marked(rows, vocabularies) for array in _flat(side)]
        return (*flat, *plan.cut(number_of_batches))

    def dataset(epoch):
        types = [tf.int32, tf.int64] * 3 + [tf.int64, tf.float64, tf.int64]
        found = [
            tf.ensure_shape(array, [None]) for array in tf.numpy_function(arrays, [epoch], types)
        ]
        sides = [
            tf.RaggedTensor.from_row_lengths(*found[i : i + 2], validate=False) for i in (0, 2, 4)
        ]
        rows = tf.data.Dataset.from_tensor_slices(shuffled(*found[6:], (seed, epoch)))
        return _gathered(sides, rows, length_multiple)

    return by_epoch(dataset, counter, number_of_batches)


def _gathered(sides, batches, length_multiple: int):
    """The dataset of the rows that `batches`, a dataset of row numbers, names; `sides` are ragged
    tensors.
    """
    import tensorflow as tf

    sides = list(sides)

    def padded(rows):
        dense = rows.to_tensor(default_value=0)  # (B, T)
        return tf.pad(dense, [[0, 0], [0, -tf.shape(dense)[1] % length_multiple]])

    def gather(indices):
        source, target_in, target_out = (padded(tf.gather(side, indices)) for side in sides)
        return (source, target_in), target_out

    # Row numbers are shuffled and batched, and whole batches gathered: many times
    # faster than passing each sentence through the pipeline by itself.
    return batches.map(gather, num_parallel_calls=_AUTO)


def _ragged(rows: list[list[int]]):
    import tensorflow as tf

    return tf.RaggedTensor.from_row_lengths(*_flat(rows))


def _flat(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(the ids of all rows, one after the other; the length of each row)."""
    values = np.fromiter((index for row in rows for index in row), dtype=np.int32)
    return values, np.fromiter(map(len, rows), dtype=np.int64)
