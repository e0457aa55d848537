"""Nouns and adjectives of toy sentences that change places."""

import pytest

from tfattn.data import swapped_words, toy_translation


def test_swapped_words_are_found_in_both_sentences():
    # «chat» is the cat, third word of its sentence, and «noir» is black, the second; «petit» keeps
    # its side.
    source, target = "the black cat sees a small dog .", "le chat noir voit un petit chien ."
    assert sorted(swapped_words(source, target)) == [(1, 2), (2, 1)]
    assert swapped_words("she is tired .", "elle est fatiguée .") == []


def test_swapped_words_that_another_could_be_are_left_out():
    assert swapped_words("the black cat black cat .", "le chat noir chat noir .") == []


@pytest.mark.parametrize("seed", [0, 1])
def test_swaps_come_in_twos_of_neighbours_that_change_places(seed):
    found = [swapped_words(*pair) for pair in toy_translation(500, seed=seed)]
    assert sum(map(bool, found)) > 100
    for swaps in found:
        for (t, s), (next_t, next_s) in zip(swaps[::2], swaps[1::2], strict=True):
            assert (next_t, next_s) == (t + 1, s - 1)
