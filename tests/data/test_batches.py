"""Batches for teacher forcing: marks, padding, order, and what is left out."""

import functools
import gc
import itertools

import keras
import numpy as np
import pytest

from tests.helpers.batching import (
    ENGLISH,
    FRENCH,
    MORE_PAIRS,
    PAIRS,
    arrays,
    batches,
    by_tokens,
    companies,
    sentences,
)
from tests.helpers.tensors import BACKEND, tf
from tfattn.data import EpochCounter, Vocabulary, token_batches

each_make = pytest.mark.parametrize("make, pairs", [(batches, PAIRS), (by_tokens, MORE_PAIRS)])


@functools.cache
def token_epochs(shuffle_seed, length_multiple):
    """(two epochs of batches by tokens, how many batches they say to have)."""
    dataset = by_tokens(shuffle_seed=shuffle_seed, length_multiple=length_multiple)
    return [arrays(dataset) for _ in range(2)], len(dataset)


def shapes(epoch):
    """(B, S, T) of each batch."""
    return [(*source.shape, target.shape[1]) for (source, target), _ in epoch]


def longer_sides(pairs):
    """Ids of each pair's longer row, its mark included."""
    return [
        1 + max(len(ENGLISH.encode(source)), len(FRENCH.encode(target))) for source, target in pairs
    ]


def padded(ids, length):
    return ids + [0] * (length - len(ids))


def test_translation_batches_have_special_ids_and_padding():
    pairs = [PAIRS[0], PAIRS[1], ("zebra <eos>", "zèbre"), ("", "")]  # unknown words, and none
    [((source, target_in), target_out)] = arrays(batches(pairs, length_multiple=1))
    for row, (english, french) in enumerate(pairs):
        words, mots = ENGLISH.encode(english), FRENCH.encode(french)
        assert source[row].tolist() == padded([*words, 3], source.shape[1])
        assert target_in[row].tolist() == padded([2, *mots], target_in.shape[1])
        assert target_out[row].tolist() == padded([*mots, 3], target_out.shape[1])
    assert source.shape[1] == 1 + max(len(english.split()) for english, _ in pairs)
    assert target_in.shape[1] == 1 + max(len(french.split()) for _, french in pairs)


@pytest.mark.slow
@each_make
def test_batches_have_every_pair_once_an_epoch_in_a_new_order(make, pairs):
    dataset = make(shuffle_seed=3)
    if BACKEND == "tensorflow":
        specs = tf.nest.flatten(dataset.element_spec)
        assert specs == [tf.TensorSpec((None, None), tf.int32)] * 3
    epochs = [arrays(dataset) for _ in range(2)]
    for epoch in epochs:
        assert len(epoch) == len(dataset)
        assert sorted(sentences(epoch)) == sorted(pairs)
        for (source, target_in), target_out in epoch:
            assert source.dtype == target_in.dtype == target_out.dtype == "int32"
            shifted = target_in[:, 1:]
            assert np.all((shifted == target_out[:, :-1]) | (shifted == 0))
    first, second = map(sentences, epochs)
    assert first != pairs and first != second
    keras.utils.set_random_seed(99)  # orders do not hang on a global seed
    again = make(shuffle_seed=3)
    assert [sentences(arrays(again)) for _ in range(2)] == [first, second]
    assert sentences(arrays(make(shuffle_seed=4))) != first


@pytest.mark.slow
def test_translation_batches_without_a_seed_keep_order_and_leave_out_long_pairs():
    dataset = batches()
    assert len(dataset) == 8 and sentences(arrays(dataset)) == PAIRS
    for form in (iter, np.array, lambda pairs: map(list, pairs)):  # any iterable
        assert sentences(arrays(batches(form(PAIRS)))) == PAIRS
    kept = [pair for pair in PAIRS if max(len(side.split()) for side in pair) + 1 <= 10]
    assert 0 < len(kept) < len(PAIRS)
    assert any(len(english.split()) == 9 for english, _ in kept)
    epoch = arrays(batches(max_length=10, length_multiple=5))
    assert sentences(epoch) == kept
    for (source, target_in), target_out in epoch:
        assert source.shape[1] % 5 == target_in.shape[1] % 5 == 0
        assert target_in.shape == target_out.shape
        assert np.any(source[:, -5:]) and np.any(target_out[:, -5:])


@pytest.mark.parametrize(
    "pairs, options, said",
    [
        ([], {}, "`pairs` must hold at least one"),
        (PAIRS, {"max_length": 2}, "`max_length` must leave at least one pair"),
        ([("a", "b", "c")], {}, "`pairs` must hold pairs of strings"),
        ([("a", 3)], {}, "`pairs` must hold pairs of strings"),
    ],
)
def test_token_batches_without_a_pair_are_refused(pairs, options, said):
    with pytest.raises(ValueError, match=f"token_batches: {said}"):
        by_tokens(pairs, **options)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle_seed", [3, None])
def test_token_batches_are_as_full_as_the_budget_allows(shuffle_seed):
    for length_multiple in (1, 4):
        epochs, number = token_epochs(shuffle_seed, length_multiple)
        assert number > 20
        for epoch in epochs:
            found = shapes(epoch)
            assert len(found) == number
            assert all(rows * max(lengths) <= 211 for rows, *lengths in found)
            # the shortest pairs that are left
            assert sum(rows != 211 // max(lengths) for rows, *lengths in found) <= 1
            for (_, *lengths), company in zip(found, companies(epoch), strict=True):
                sides = zip(*company, strict=True)
                for length, side, vocabulary in zip(lengths, sides, (ENGLISH, FRENCH), strict=True):
                    longest = 1 + max(len(vocabulary.encode(sentence)) for sentence in side)
                    assert length == -(-longest // length_multiple) * length_multiple


@pytest.mark.slow
@pytest.mark.parametrize("shuffle_seed", [3, None])
def test_token_batches_join_pairs_of_similar_lengths(shuffle_seed):
    (epoch, _), _ = token_epochs(shuffle_seed, 1)
    ranges = sorted((min(lengths), max(lengths)) for lengths in map(longer_sides, companies(epoch)))
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ranges))

    def padding(epoch):
        filled, all_of_it = np.sum([(np.sum(s > 0), s.size) for (s, _), _ in epoch], axis=0)
        return 1 - filled / all_of_it

    as_they_come = arrays(batches(MORE_PAIRS, 23, length_multiple=1))
    assert padding(epoch) < 0.5 * padding(as_they_come)
    if shuffle_seed is None:  # the longest first, and always alike
        (first, second), _ = token_epochs(None, 1)
        lengths = longer_sides(sentences(first))
        assert lengths == sorted(lengths, reverse=True)
        assert sorted(sentences(first)) == sorted(MORE_PAIRS)
        assert companies(first) == companies(second)


@pytest.mark.slow
def test_token_batches_of_each_epoch_mix_anew_in_the_same_shapes():
    (first, second), _ = token_epochs(3, 4)
    one, other = ({frozenset(company) for company in companies(epoch)} for epoch in (first, second))
    assert len(one & other) < 0.2 * len(one)
    # Every pair of lengths, seven times.
    sizes = itertools.product(range(1, 7), range(1, 7), range(7))
    pairs = [("a " * source, "un " * target) for source, target, _ in sizes]
    dataset = by_tokens(pairs, tokens_per_batch=31, shuffle_seed=0, length_multiple=2)
    first, second = (shapes(arrays(dataset)) for _ in range(2))
    assert first != second and sorted(first) == sorted(second)


@pytest.mark.slow
def test_token_batches_refuse_a_pair_beyond_the_budget():
    longest = max(longer_sides(MORE_PAIRS))
    match = (
        rf"token_batches: `tokens_per_batch` must be at least {longest}, .*"
        " unless `max_length` leaves it out"
    )
    with pytest.raises(ValueError, match=match):
        by_tokens(tokens_per_batch=longest - 1, length_multiple=1)
    found = sentences(arrays(by_tokens(tokens_per_batch=longest, length_multiple=1)))
    assert sorted(found) == sorted(MORE_PAIRS)
    options = {"tokens_per_batch": longest - 1, "max_length": longest - 1, "length_multiple": 1}
    assert 0 < len(sentences(arrays(by_tokens(**options)))) < len(MORE_PAIRS)
    with pytest.raises(ValueError, match="`tokens_per_batch` must be at least 100,"):
        by_tokens(length_multiple=100, tokens_per_batch=99)
    one = by_tokens(MORE_PAIRS[:1], shuffle_seed=0)
    assert [sentences(arrays(one)) for _ in range(2)] == [MORE_PAIRS[:1]] * 2


def array_batches(monkeypatch, make, **options):
    """Batches as other backends have them, made on any."""
    with monkeypatch.context() as patch:
        patch.setattr(keras.backend, "backend", lambda: "jax")
        return make(**options)


def test_array_batches_count_epochs_of_keras_but_no_inspected_batch(monkeypatch):
    whole, again = (array_batches(monkeypatch, batches, shuffle_seed=3) for _ in range(2))
    for epoch in [list(whole) for _ in range(3)]:
        again.on_epoch_begin()  # as Keras does to build a model from a batch
        keras.tree.map_structure(np.testing.assert_array_equal, again[0], epoch[0])
        again.on_epoch_end()
        again.on_epoch_begin()
        for place, wanted in enumerate(epoch):
            keras.tree.map_structure(np.testing.assert_array_equal, again[place], wanted)
        again.on_epoch_end()


@pytest.mark.slow
def test_batches_iterator_outlives_its_dataset_and_counter():
    iterator = iter(by_tokens(shuffle_seed=0))
    gc.collect()
    assert sum(len(target) for _, target in iterator) == len(MORE_PAIRS)


@pytest.mark.slow
def test_epoch_counter_starts_at_a_given_epoch():
    unbroken = by_tokens(PAIRS, shuffle_seed=7)
    epochs = [companies(arrays(unbroken)) for _ in range(4)]
    counter = EpochCounter()
    told = by_tokens(PAIRS, shuffle_seed=7, epoch_counter=counter)
    counter.on_epoch_begin(2)
    assert [companies(arrays(told)) for _ in range(2)] == epochs[2:]
    for epoch in (2, 0, 0, 1):  # by `fit`
        next(iter(told))  # whoever looks into it changes nothing
        counter.on_epoch_begin(epoch)
        assert companies(arrays(told)) == epochs[epoch]


def test_batches_with_a_wrapped_vocabulary_use_its_encode():
    class Lower:
        begin_id, end_id = Vocabulary.begin_id, Vocabulary.end_id

        def __init__(self, vocabulary):
            self.vocabulary = vocabulary

        def encode(self, sentence):
            return self.vocabulary.encode(sentence.lower())

    words = Lower(Vocabulary(["a", "cat"]))
    dataset = token_batches([("A Cat", "a cat")], words, words, 8, length_multiple=1)
    [((source, _), _)] = arrays(dataset)
    assert source.tolist() == [[4, 5, 3]]
