"""Batches for teacher forcing: marks, padding, order, and what is left out."""

import subprocess
import sys

import numpy as np
import pytest

from tfattn.data import Vocabulary, toy_translation, translation_batches

PAIRS = toy_translation(53, seed=2)
ENGLISH = Vocabulary.from_sentences(source for source, _ in PAIRS)
FRENCH = Vocabulary.from_sentences(target for _, target in PAIRS)


def batches(pairs=PAIRS, batch_size=7, **arguments):
    return translation_batches(pairs, ENGLISH, FRENCH, batch_size, **arguments)


def sentences(dataset):
    """The pairs of a dataset, decoded, in its order."""
    return [
        (ENGLISH.decode(source), FRENCH.decode(target))
        for (sources, _), targets in dataset.as_numpy_iterator()
        for source, target in zip(sources, targets, strict=True)
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


def test_target_out_is_target_in_one_step_later():
    for (_, target_in), target_out in batches().as_numpy_iterator():
        shifted = target_in[:, 1:]
        assert np.all((shifted == target_out[:, :-1]) | (shifted == 0))


def test_elements_are_int32_of_unknown_size():
    import tensorflow as tf

    (source, target_in), target_out = batches().element_spec
    for spec in (source, target_in, target_out):
        assert spec.dtype == tf.int32
        assert spec.shape.as_list() == [None, None]


@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_cardinality_is_the_number_of_batches(shuffle_seed):
    dataset = batches(shuffle_seed=shuffle_seed)
    assert int(dataset.cardinality()) == 8 == len(list(dataset))


def test_every_pair_comes_once_in_order_without_a_seed():
    assert sentences(batches()) == PAIRS


def test_every_pair_comes_once_in_each_shuffled_epoch():
    dataset = batches(shuffle_seed=0)
    first, second = sentences(dataset), sentences(dataset)
    assert sorted(first) == sorted(second) == sorted(PAIRS)
    assert first != PAIRS and first != second


def test_same_seed_gives_the_same_epochs():
    def epochs(seed):
        dataset = batches(shuffle_seed=seed)
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
    [((source, _), _)] = batches([("zebra <eos>", "zèbre")], length_multiple=1)
    assert source.numpy().tolist() == [[1, 1, 3]]


def test_empty_sentences_are_their_marks_alone():
    [((source, target_in), target_out)] = batches([("", "")], length_multiple=1)
    assert (source.numpy(), target_in.numpy(), target_out.numpy()) == ([[3]], [[2]], [[3]])


def test_no_pair_to_batch_is_refused():
    with pytest.raises(ValueError, match="translation_batches: `pairs` must hold at least one"):
        batches([])
    with pytest.raises(ValueError, match="`max_length` must leave at least one pair"):
        batches(max_length=2)


@pytest.mark.parametrize("argument", ["batch_size", "max_length", "length_multiple"])
@pytest.mark.parametrize("value", [0, -3, 1.5])
def test_sizes_must_be_positive_integers(argument, value):
    message = f"translation_batches: `{argument}` must be a positive integer"
    with pytest.raises(ValueError, match=message):
        batches(**{argument: value})


def test_shuffle_seed_must_be_an_integer():
    with pytest.raises(ValueError, match="`shuffle_seed` must be an integer of at least 0"):
        batches(shuffle_seed=-1)


def test_tensorflow_is_not_imported_before_it_is_needed():
    code = (
        "import sys; import tfattn; before = 'tensorflow' in sys.modules; import tfattn.data;"
        "sys.exit(0 if before else 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
