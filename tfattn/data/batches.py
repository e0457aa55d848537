"""Sentence pairs as padded batches of ids, for `fit`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn.data.epochs import BatchPlan, Dataset, EpochCounter, IdPairs, PairBatches, Rows
from tfattn.data.subword_dropout import SubwordDropout

Vocabularies = tuple[Any, Any]


def translation_batches(
    pairs: Iterable[tuple[str, str]],
    source_vocabulary: Any,
    target_vocabulary: Any,
    batch_size: int,
    max_length: int | None = None,
    shuffle_seed: int | None = None,
    length_multiple: int = 8,
) -> Dataset:
    """Creates batches of sentence pairs, for training with teacher forcing.

    An element is `((source, target_in), target_out)`. For the pair ("a cat", "un chat") the rows
    are

        source      a    cat   <eos>
        target_in   <bos>  un  chat
        target_out  un   chat  <eos>

    so that `target_out[t]` is the token that follows `target_in[: t + 1]`. With a `shuffle_seed`
    each epoch is shuffled; pass `shuffle=False` to `model.fit`.

    Args:
        pairs: iterable of `(source, target)` strings.
        source_vocabulary, target_vocabulary: `Vocabulary` of a side, or one with its methods.
        batch_size: positive int, B; one batch, the last without shuffling, may be smaller.
        max_length: positive int, the maximum length of a row, including its begin or end token.
            A pair with a longer row is left out. Defaults to None, which keeps all pairs.
        shuffle_seed: non-negative int. The order of an epoch depends only on this seed and on the
            number of earlier passes. Defaults to None, which keeps the order of `pairs`, as needed
            for evaluation.
        length_multiple: positive int. The rows of a batch are padded with 0 to the longest length,
            rounded up to a multiple of this number, to limit the number of shapes: XLA compiles
            each shape once. Defaults to 8.
    Returns:
        A `tf.data.Dataset` of known cardinality on the TensorFlow backend, else a
        `keras.utils.PyDataset` with the same batches, of int32 arrays: source `(B, S)`, target_in
        `(B, T)` and target_out `(B, T)`.
    Raises:
        ValueError: a size is not a positive int; an item of `pairs` is not a pair; no pair is left
            to batch; `shuffle_seed` is not an int from 0 to 2⁶³ − 1.
    Example:
        >>> pairs = [("a cat", "un chat"), ("the old cat", "le vieux chat")]
        >>> english = tfattn.data.Vocabulary.from_sentences(source for source, _ in pairs)
        >>> french = tfattn.data.Vocabulary.from_sentences(target for _, target in pairs)
        >>> dataset = translation_batches(pairs, english, french, 2, length_multiple=1)
        >>> [((source, target_in), target_out)] = dataset.as_numpy_iterator()
        >>> print(target_out)
        [[6 4 3 0]
         [5 7 4 3]]
    """
    who = "translation_batches"
    _checks.positive_int(who, "batch_size", batch_size)
    _checks.positive_int(who, "length_multiple", length_multiple)
    _checks.seed(who, shuffle_seed, "shuffle_seed")
    vocabularies = (source_vocabulary, target_vocabulary)
    for side, vocabulary in zip(("source", "target"), vocabularies, strict=True):
        if isinstance(vocabulary, SubwordDropout):
            expected = "be the same in each epoch: a SubwordDropout needs `token_batches`"
            _checks.fail(who, f"{side}_vocabulary", expected, vocabulary)
    _, ids = _encode(who, pairs, vocabularies, max_length)
    plan = BatchPlan.in_order(len(ids), batch_size)
    rows = lambda epoch: (ids, plan), len(plan.starts)
    batches = PairBatches(rows, vocabularies, shuffle_seed, EpochCounter(), length_multiple)
    return batches.for_fit()


def token_batches(
    pairs: Iterable[tuple[str, str]],
    source_vocabulary: Any,
    target_vocabulary: Any,
    tokens_per_batch: int,
    max_length: int | None = None,
    shuffle_seed: int | None = None,
    length_multiple: int = 4,
    epoch_counter: EpochCounter | None = None,
) -> Dataset:
    """Creates batches of pairs of similar length, for training with teacher forcing.

    Elements and datasets are as in `translation_batches`. A batch has as many rows as
    `tokens_per_batch` allows on its longer side: B · max(S, T) <= tokens_per_batch, including
    padding.

    Pairs are ordered by their padded lengths, longest first, and split into batches once. Each
    epoch then permutes pairs whose two padded lengths are equal, and shuffles the batches. The
    number and the shapes of the batches are the same in each epoch: the progress bar is correct,
    and XLA compiles no new shape after the first epoch.

    With a `SubwordDropout` each epoch splits words differently, so that lengths and shapes differ.
    The number of batches stays the same, 1% above the number for the first epoch. A pair that would
    exceed `max_length` or a batch is encoded without dropout, and so is an entire epoch that would
    need more batches.

    Args:
        pairs, max_length: as in `translation_batches`.
        source_vocabulary, target_vocabulary: also a `SubwordDropout`.
        tokens_per_batch: positive int, the maximum number of ids on either side of a batch,
            including padding.
        shuffle_seed: non-negative int. The order of an epoch and its BPE dropout depend only on
            this seed and on the epoch's number, not on the backend. Defaults to None: a fixed order
            with the longest pairs first.
        length_multiple: positive int. Lengths are padded with 0 to a multiple of this number. A
            larger number gives fewer shapes and more permutations, a smaller number less padding.
            Defaults to 4.
        epoch_counter: `EpochCounter` for the epoch's number at the beginning of a pass. Defaults to
            None, which counts the passes from 0.
    Returns:
        A dataset as in `translation_batches`.
    Raises:
        ValueError: a size is not a positive int; an item of `pairs` is not a pair; no pair is left
            to batch; a pair is longer than `tokens_per_batch`; `shuffle_seed` is not an int from 0
            to 2⁶³ − 1, or None with a `SubwordDropout`.
    Example:
        >>> pairs = [("a cat", "un chat"), ("the old cat", "le vieux chat"), ("a dog", "un chien")]
        >>> english = tfattn.data.Vocabulary.from_sentences(source for source, _ in pairs)
        >>> french = tfattn.data.Vocabulary.from_sentences(target for _, target in pairs)
        >>> dataset = token_batches(pairs, english, french, tokens_per_batch=8, length_multiple=1)
        >>> for (source, target_in), target_out in dataset.as_numpy_iterator():
        ...     print(source.shape, [french.decode(row) for row in target_out])
        (2, 4) ['le vieux chat', 'un chat']
        (1, 3) ['un chien']
    """
    who = "token_batches"
    _checks.positive_int(who, "tokens_per_batch", tokens_per_batch)
    _checks.positive_int(who, "length_multiple", length_multiple)
    _checks.seed(who, shuffle_seed, "shuffle_seed")
    if not isinstance(epoch_counter, EpochCounter | None):
        _checks.fail(who, "epoch_counter", "be an EpochCounter, or None", epoch_counter)
    vocabularies = (source_vocabulary, target_vocabulary)
    redrawn = any(isinstance(vocabulary, SubwordDropout) for vocabulary in vocabularies)
    if redrawn and shuffle_seed is None:
        _checks.fail(who, "shuffle_seed", "be given with a SubwordDropout", shuffle_seed)
    sentences, ids = _encode(who, pairs, vocabularies, max_length)

    def make_plan(ids: IdPairs) -> BatchPlan:
        return BatchPlan.for_rows(ids, tokens_per_batch, length_multiple)

    if redrawn and shuffle_seed is not None:
        longest = tokens_per_batch // length_multiple * length_multiple
        longest = min(max_length or tokens_per_batch, longest)
        rows = _rows_with_dropout(sentences, ids, vocabularies, longest, shuffle_seed, make_plan)
    else:
        plan = make_plan(ids)
        rows = lambda epoch: (ids, plan), len(plan.starts)
    counter = epoch_counter or EpochCounter()
    return PairBatches(rows, vocabularies, shuffle_seed, counter, length_multiple).for_fit()


def _encode(
    who: str,
    pairs: Iterable[tuple[str, str]],
    vocabularies: Vocabularies,
    max_length: int | None,
) -> tuple[list[tuple[str, str]], IdPairs]:
    """The pairs within `max_length`, as sentences and as ids."""
    if max_length is not None:
        _checks.positive_int(who, "max_length", max_length)
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
    return [pair for pair, _ in rows], [ids for _, ids in rows]


def _rows_with_dropout(
    sentences: Sequence[tuple[str, str]],
    ids: IdPairs,
    vocabularies: Vocabularies,
    longest: int,
    seed: int,
    make_plan: Callable[[IdPairs], BatchPlan],
) -> Rows:
    """Rows of BPE dropout; a pair keeps its `ids` if its rows would be longer than `longest`."""

    def drawn(epoch: int) -> IdPairs:
        sides: list[Any] = list(zip(*ids, strict=True))
        for side, vocabulary in enumerate(vocabularies):
            if isinstance(vocabulary, SubwordDropout):
                own_seed = np.random.SeedSequence((seed, epoch, side)).generate_state(1)[0] >> 1
                sides[side] = vocabulary.draw((pair[side] for pair in sentences), int(own_seed))
        return [
            new if max(map(len, new)) < longest else plain
            for new, plain in zip(zip(*sides, strict=True), ids, strict=True)
        ]

    plan, first = make_plan(ids), len(make_plan(drawn(0)).starts)
    # `fit` and schedules assume an equal number of batches in each epoch.
    num_batches = min(max(len(plan.starts), first + -(-first // 100)), len(ids))

    def epoch_rows(epoch: int) -> tuple[IdPairs, BatchPlan]:
        epoch_ids = drawn(epoch)
        epoch_plan = make_plan(epoch_ids)
        if len(epoch_plan.starts) > num_batches:  # an epoch without dropout
            epoch_ids, epoch_plan = ids, plan
        return epoch_ids, epoch_plan.split_into(num_batches)

    return epoch_rows, num_batches
