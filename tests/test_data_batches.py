"""Batches for teacher forcing: marks, padding, order, and what is left out."""

import gc
import itertools

import keras
import numpy as np
import pytest

from tests.batching import (
    ENGLISH,
    FRENCH,
    MORE_PAIRS,
    PAIRS,
    batches,
    by_tokens,
    companies,
    sentences,
)
from tests.processes import printed
from tests.tensors import tf
from tfattn.data import Vocabulary, rdrop_batches, token_batches, translation_batches
from tfattn.data.noise import uniform


def shapes(dataset):
    """(B, S, T) of each batch, in the dataset's order."""
    return [(*source.shape, target.shape[1]) for (source, target), _ in dataset.as_numpy_iterator()]


def longer_sides(pairs):
    """Ids of each pair's longer row, its mark included."""
    return [
        1 + max(len(ENGLISH.encode(source)), len(FRENCH.encode(target))) for source, target in pairs
    ]


def test_rows_carry_their_marks_and_padding():
    pairs = [PAIRS[0], PAIRS[1]]
    [((source, target_in), target_out)] = batches(pairs, length_multiple=1).as_numpy_iterator()
    for row, (english, french) in enumerate(pairs):
        words, mots = ENGLISH.encode(english), FRENCH.encode(french)
        assert source[row].tolist() == padded([*words, 3], source.shape[1])
        assert target_in[row].tolist() == padded([2, *mots], target_in.shape[1])
        assert target_out[row].tolist() == padded([*mots, 3], target_out.shape[1])
    assert source.shape[1] == 1 + max(len(english.split()) for english, _ in pairs)
    assert target_in.shape[1] == 1 + max(len(french.split()) for _, french in pairs)


def padded(ids, length):
    return ids + [0] * (length - len(ids))


@pytest.mark.parametrize("make", [batches, by_tokens])
def test_target_out_is_target_in_one_step_later(make):
    for (_, target_in), target_out in make().as_numpy_iterator():
        shifted = target_in[:, 1:]
        assert np.all((shifted == target_out[:, :-1]) | (shifted == 0))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("make", [batches, by_tokens])
@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_elements_are_int32(make, shuffle_seed):
    for element in make(shuffle_seed=shuffle_seed).as_numpy_iterator():
        assert {rows.dtype for rows in keras.tree.flatten(element)} == {np.dtype("int32")}


@pytest.mark.tensorflow
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("make", [batches, by_tokens])
@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_elements_are_int32_of_unknown_size(make, shuffle_seed):
    (source, target_in), target_out = make(shuffle_seed=shuffle_seed).element_spec
    for spec in (source, target_in, target_out):
        assert spec.dtype == tf.int32
        assert spec.shape.as_list() == [None, None]


@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_cardinality_is_the_number_of_batches(shuffle_seed):
    dataset = batches(shuffle_seed=shuffle_seed)
    assert len(dataset) == 8 == len(list(dataset))


def test_every_pair_comes_once_in_order_without_a_seed():
    assert sentences(batches()) == PAIRS


def test_every_pair_comes_once_in_each_shuffled_epoch():
    dataset = batches(shuffle_seed=0)
    first, second = sentences(dataset), sentences(dataset)
    assert sorted(first) == sorted(second) == sorted(PAIRS)
    assert first != PAIRS and first != second


@pytest.mark.slow
@pytest.mark.parametrize("make", [batches, by_tokens])
def test_same_seed_gives_the_same_epochs(make):
    def epochs(seed):
        dataset = make(shuffle_seed=seed)
        return [sentences(dataset) for _ in range(3)]

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)


def test_lengths_are_padded_to_the_multiple():
    for (source, target_in), target_out in batches(length_multiple=5).as_numpy_iterator():
        assert source.shape[1] % 5 == target_in.shape[1] % 5 == 0
        assert target_in.shape == target_out.shape
        assert np.any(source[:, -5:]) and np.any(target_out[:, -5:])


def test_max_length_leaves_out_longer_rows_and_keeps_equal_ones():
    kept = [pair for pair in PAIRS if max(len(side.split()) for side in pair) + 1 <= 10]
    assert 0 < len(kept) < len(PAIRS)
    assert any(len(english.split()) == 9 for english, _ in kept)
    assert sentences(batches(max_length=10)) == kept


def test_unknown_words_become_the_unknown_id():
    found = batches([("zebra <eos>", "zèbre")], length_multiple=1)
    [((source, _), _)] = found.as_numpy_iterator()
    assert source.tolist() == [[1, 1, 3]]


def test_empty_sentences_are_their_marks_alone():
    found = batches([("", "")], length_multiple=1)
    [((source, target_in), target_out)] = found.as_numpy_iterator()
    assert (source, target_in, target_out) == ([[3]], [[2]], [[3]])


@pytest.mark.parametrize("make", [batches, by_tokens])
def test_no_pair_to_batch_is_refused(make):
    who = {batches: "translation_batches", by_tokens: "token_batches"}[make]
    with pytest.raises(ValueError, match=f"{who}: `pairs` must hold at least one"):
        make([])
    with pytest.raises(ValueError, match=f"{who}: `max_length` must leave at least one pair"):
        make(max_length=2)


@pytest.mark.parametrize(
    ("make", "who", "argument"),
    [
        (batches, "translation_batches", "batch_size"),
        (batches, "translation_batches", "max_length"),
        (batches, "translation_batches", "length_multiple"),
        (by_tokens, "token_batches", "tokens_per_batch"),
        (by_tokens, "token_batches", "max_length"),
        (by_tokens, "token_batches", "length_multiple"),
    ],
)
@pytest.mark.parametrize("value", [0, -3, 1.5])
def test_sizes_must_be_positive_integers(make, who, argument, value):
    with pytest.raises(ValueError, match=f"{who}: `{argument}` must be a positive integer"):
        make(**{argument: value})


@pytest.mark.parametrize("make", [batches, by_tokens])
def test_shuffle_seed_must_be_an_integer(make):
    with pytest.raises(ValueError, match="`shuffle_seed` must be an integer of at least 0"):
        make(shuffle_seed=-1)
    with pytest.raises(ValueError, match="`shuffle_seed` must be below"):
        make(shuffle_seed=2**63)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("shuffle_seed", [None, 3])
@pytest.mark.parametrize("length_multiple", [1, 4])
def test_token_batches_are_as_full_as_the_budget_allows(shuffle_seed, length_multiple):
    found = shapes(by_tokens(shuffle_seed=shuffle_seed, length_multiple=length_multiple))
    assert len(found) > 20
    assert all(rows * max(lengths) <= 211 for rows, *lengths in found)
    # the shortest pairs that are left
    assert sum(rows != 211 // max(lengths) for rows, *lengths in found) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_a_token_batch_is_no_longer_than_its_pairs_need(shuffle_seed):
    first, again = (by_tokens(shuffle_seed=shuffle_seed, length_multiple=4) for _ in range(2))
    for (rows, source, target), company in zip(shapes(first), companies(again), strict=True):
        assert rows == len(company)
        for length, side, vocabulary in ((source, 0, ENGLISH), (target, 1, FRENCH)):
            longest = 1 + max(len(vocabulary.encode(pair[side])) for pair in company)
            assert length == -(-longest // 4) * 4


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_pairs_of_a_token_batch_have_similar_lengths(shuffle_seed):
    dataset = by_tokens(shuffle_seed=shuffle_seed, length_multiple=1)
    ranges = sorted(
        (min(lengths), max(lengths)) for lengths in map(longer_sides, companies(dataset))
    )
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ranges))


def test_similar_lengths_pad_less_than_pairs_as_they_come():
    def padding(dataset):
        filled, all_of_it = np.sum(
            [(np.sum(s > 0), s.size) for (s, _), _ in dataset.as_numpy_iterator()], axis=0
        )
        return 1 - filled / all_of_it

    assert padding(by_tokens(length_multiple=1)) < 0.5 * padding(
        batches(MORE_PAIRS, 23, length_multiple=1)
    )


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_every_token_batch_of_an_epoch_is_counted_beforehand(shuffle_seed):
    dataset = by_tokens(shuffle_seed=shuffle_seed)
    assert [len(shapes(dataset)) for _ in range(3)] == [len(dataset)] * 3


@pytest.mark.slow
def test_every_pair_comes_once_in_each_epoch_of_token_batches():
    dataset = by_tokens(shuffle_seed=0)
    for _ in range(3):
        assert sorted(sentences(dataset)) == sorted(MORE_PAIRS)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("length_multiple", [1, 2])
def test_epochs_of_token_batches_have_the_same_shapes_in_another_order(length_multiple):
    # every pair of lengths, seven times
    sizes = itertools.product(range(1, 7), range(1, 7), range(7))
    pairs = [("a " * source, "un " * target) for source, target, _ in sizes]
    dataset = by_tokens(pairs, tokens_per_batch=31, shuffle_seed=0, length_multiple=length_multiple)
    first, second = shapes(dataset), shapes(dataset)
    assert first != second and sorted(first) == sorted(second)


@pytest.mark.slow
def test_epochs_of_token_batches_give_each_pair_other_company():
    dataset = by_tokens(shuffle_seed=0)
    first, second = ({frozenset(company) for company in companies(dataset)} for _ in range(2))
    assert len(first & second) < 0.2 * len(first)


def test_token_batches_without_a_seed_come_longest_first_and_always_alike():
    dataset = by_tokens(length_multiple=1)
    lengths = longer_sides(sentences(dataset))
    assert lengths == sorted(lengths, reverse=True)
    assert sorted(sentences(dataset)) == sorted(MORE_PAIRS)
    assert companies(dataset) == companies(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("make", [batches, by_tokens])
def test_orders_do_not_hang_on_a_global_seed(make):
    first = sentences(make(shuffle_seed=5))
    keras.utils.set_random_seed(99)
    assert sentences(make(shuffle_seed=5)) == first


@pytest.mark.tensorflow
@pytest.mark.parametrize("seed, epoch", [(0, 0), (3, 1), (2**40 + 7, 5), (2**63 - 1, 2**33)])
@pytest.mark.parametrize("size", [0, 1, 2, 1001])
def test_numpys_noise_is_tensorflows(seed, epoch, size):
    seeds = tf.stack((np.int64(seed), np.int64(epoch)))
    wanted = tf.random.stateless_uniform([size], seeds, dtype=tf.float64, alg="philox")
    np.testing.assert_array_equal(uniform(seed, epoch, size), wanted)


@pytest.mark.tensorflow
@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("shuffle_seed", [None, 3])
@pytest.mark.parametrize("make", [batches, by_tokens])
@pytest.mark.parametrize("change", [lambda batches: batches, rdrop_batches], ids=["", "R-Drop"])
def test_arrays_without_tensorflow_are_the_same_batches(make, change, shuffle_seed, monkeypatch):
    ours = change(make(shuffle_seed=shuffle_seed))
    with monkeypatch.context() as patch:
        patch.setattr(keras.backend, "backend", lambda: "jax")
        arrays = change(make(shuffle_seed=shuffle_seed))
    assert isinstance(arrays, keras.utils.PyDataset) and len(arrays) == len(ours)
    for _ in range(3):
        for one, other in zip(ours.as_numpy_iterator(), arrays, strict=True):
            keras.tree.map_structure(np.testing.assert_array_equal, one, other)
            assert {rows.dtype for rows in keras.tree.flatten(other)} == {np.dtype("int32")}


def array_batches(monkeypatch, **options):
    """Batches as other backends have them, made on any."""
    with monkeypatch.context() as patch:
        patch.setattr(keras.backend, "backend", lambda: "jax")
        return batches(shuffle_seed=3, **options)


def test_an_epoch_of_keras_is_a_pass_and_a_look_at_one_batch_is_none(monkeypatch):
    whole = array_batches(monkeypatch)
    epochs = [list(whole) for _ in range(3)]
    again = array_batches(monkeypatch)
    for epoch in epochs:
        again.on_epoch_begin()  # as Keras does to build a model from a batch
        keras.tree.map_structure(np.testing.assert_array_equal, again[0], epoch[0])
        again.on_epoch_end()
        again.on_epoch_begin()
        for place, wanted in enumerate(epoch):
            keras.tree.map_structure(np.testing.assert_array_equal, again[place], wanted)
        again.on_epoch_end()


def test_there_is_no_batch_beyond_the_last(monkeypatch):
    found = array_batches(monkeypatch)
    for place in (len(found), -1):
        with pytest.raises(IndexError, match="There are 8 batches"):
            found[place]


def test_max_length_leaves_out_longer_pairs_of_token_batches():
    kept = [
        pair
        for pair, length in zip(MORE_PAIRS, longer_sides(MORE_PAIRS), strict=True)
        if length <= 10
    ]
    assert 0 < len(kept) < len(MORE_PAIRS)
    assert sorted(sentences(by_tokens(max_length=10, tokens_per_batch=12))) == sorted(kept)


def test_a_pair_beyond_the_budget_is_refused_with_what_it_needs():
    longest = max(longer_sides(MORE_PAIRS))
    match = (
        rf"token_batches: `tokens_per_batch` must be at least {longest}, .*"
        " unless `max_length` leaves it out"
    )
    with pytest.raises(ValueError, match=match):
        by_tokens(tokens_per_batch=longest - 1, length_multiple=1)
    assert sorted(sentences(by_tokens(tokens_per_batch=longest, length_multiple=1))) == sorted(
        MORE_PAIRS
    )
    with pytest.raises(ValueError, match="`tokens_per_batch` must be at least 100,"):
        by_tokens(length_multiple=100, tokens_per_batch=99)


@pytest.mark.slow
def test_one_pair_makes_one_token_batch():
    dataset = by_tokens(MORE_PAIRS[:1], shuffle_seed=0)
    assert sentences(dataset) == sentences(dataset) == MORE_PAIRS[:1]


@pytest.mark.slow
def test_an_iterator_outlives_its_dataset_and_counter():
    iterator = iter(by_tokens(shuffle_seed=0))
    gc.collect()
    assert sum(len(target) for _, target in iterator) == len(MORE_PAIRS)


def test_an_epoch_counter_is_no_number():
    with pytest.raises(
        ValueError, match="token_batches: `epoch_counter` must be an EpochCounter, or None"
    ):
        by_tokens(shuffle_seed=0, epoch_counter=3)


@pytest.mark.parametrize("make", [batches, by_tokens])
@pytest.mark.parametrize(
    "pairs", ["ab", 7, [("a", "b", "c")], [("a",)], [("a", 3)], ["ab"], [None]]
)
def test_pairs_are_pairs_of_strings(make, pairs):
    with pytest.raises(ValueError, match="batches: `pairs` must (be|hold) pairs of strings"):
        make(pairs)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("make", [batches, by_tokens])
@pytest.mark.parametrize("form", [iter, np.array, lambda pairs: map(list, pairs)])
def test_pairs_may_be_any_iterable(make, form):
    assert sorted(sentences(make(form(PAIRS)))) == sorted(PAIRS)


@pytest.mark.parametrize("make", [translation_batches, token_batches])
def test_a_vocabulary_around_another_encodes_in_its_own_way(make):
    class Lower:
        begin_id, end_id = Vocabulary.begin_id, Vocabulary.end_id

        def __init__(self, vocabulary):
            self.vocabulary = vocabulary

        def encode(self, sentence):
            return self.vocabulary.encode(sentence.lower())

    words = Lower(Vocabulary(["a", "cat"]))
    [((source, _), _)] = make(
        [("A Cat", "a cat")], words, words, 8, length_multiple=1
    ).as_numpy_iterator()
    assert source.tolist() == [[4, 5, 3]]


@pytest.mark.slow
def test_batches_are_made_without_tensorflow_on_another_backend():
    pytest.importorskip("jax")
    code = """
import sys
from tfattn import data
words = data.Vocabulary(["a"])
for batches in (
    data.translation_batches([("a", "a")], words, words, 1, shuffle_seed=0),
    data.token_batches([("a", "a")], words, words, 8, shuffle_seed=0),
):
    assert len(list(data.rdrop_batches(batches))) == 1
assert "tensorflow" not in sys.modules
"""
    printed("-c", code, KERAS_BACKEND="jax")
