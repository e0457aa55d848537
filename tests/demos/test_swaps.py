"""demos/swaps.py: adjectives and nouns that change places, and whether a model looked at the true
ones.
"""

import numpy as np
import pytest

from tfattn import data


@pytest.fixture
def swaps(demo_module):
    return demo_module("swaps")


def test_swapped_words_are_found_in_both_sentences(swaps):
    pairs = [
        ("the black cat sees a small dog .", "le chat noir voit un petit chien ."),
        ("she is tired .", "elle est fatiguée ."),
    ]
    ((sources, targets, found),) = swaps.swaps_of(pairs)
    assert sources[0] == pairs[0][0] and targets[1] == pairs[1][1]
    # «chat» is the cat, third word of its sentence, and «noir» is black, the second; «petit» keeps
    # its side.
    assert sorted(found) == [(0, 1, 2), (0, 2, 1)]


def test_swapped_words_that_another_could_be_are_left_out(swaps):
    pairs = [("the black cat black cat .", "le chat noir chat noir .")]
    ((_, _, found),) = swaps.swaps_of(pairs)
    assert found == []


@pytest.mark.parametrize("shift, share", [(0, 1.0), (1, 0.0)])
def test_alignments_are_right_where_the_heaviest_word_is_the_true_one(swaps, shift, share):
    pairs = data.toy_translation(200, seed=3)
    words = [data.Vocabulary.from_sentences(side) for side in zip(*pairs, strict=True)]
    wanted = iter(swaps.swaps_of(pairs))

    def alignment(model, source, target_in):
        """Two heads: one looks at the true word, or beside it, the other always at the first."""
        weights = np.zeros((*target_in.shape, source.shape[1]))
        for row, written, true in next(wanted)[2]:
            weights[row, written, true + shift] = 1.0
        return np.stack([np.eye(1, source.shape[1]) + 0 * weights, weights], axis=1), [
            "first",
            "second",
        ]

    assert swaps.aligned_swaps(None, alignment, pairs, *words) == share
