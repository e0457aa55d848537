"""Attention to reordered words."""

import numpy as np
import pytest

from tfattn import data
from tfattn.translator import alignment, report


@pytest.mark.parametrize("shift, share", [(0, 1.0), (1, 0.0)])
def test_swaps_are_found_where_the_heaviest_word_is_the_true_one(monkeypatch, shift, share):
    pairs = data.toy_translation(230, seed=3)
    words = [data.Vocabulary.from_sentences(side) for side in zip(*pairs, strict=True)]
    left = iter(pairs)

    def attention_weights(model, inputs):
        """Two heads: one attends to the aligned word or its neighbor, the other to the first. And
        another layer, which looks at none.
        """
        source, target_in = inputs
        first = np.zeros((*target_in.shape, source.shape[1]))
        first[..., 0] = 1.0
        true = np.zeros_like(first)
        for row in range(len(source)):
            for t, s in data.swapped_words(*next(left)):
                true[row, t, s + shift] = 1.0
        heads = np.stack([first, true], axis=1)
        return {
            "model/decoder/block_0/cross_attention": 0 * heads,
            "model/decoder/block_1/self_attention": 0 * heads,
            "model/decoder/block_1/cross_attention": heads,
        }

    monkeypatch.setattr(alignment, "attention_weights", attention_weights)
    assert report.swaps_found(None, pairs, words) == share
    assert next(left, None) is None  # all batches were used


def test_sentences_without_swaps_have_no_share_of_them(monkeypatch):
    pairs = [("she is tired .", "elle est fatiguée .")]
    words = [data.Vocabulary.from_sentences(side) for side in zip(*pairs, strict=True)]
    weights = {"model/decoder": np.ones((1, 5, 5))}
    monkeypatch.setattr(alignment, "attention_weights", lambda *_: weights)
    assert report.swaps_found(None, pairs, words) is None


def test_figure_of_attention_counts_heads_from_0(monkeypatch):
    pair = ("she is tired .", "elle est fatiguée .")
    words = [data.Vocabulary.from_sentences([side]) for side in pair]
    weights = {"model/decoder": np.ones((1, 2, 5, 5))}
    monkeypatch.setattr(alignment, "attention_weights", lambda *_: weights)
    figure = report._attention_figure(None, *pair, words)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["head 0", "head 1"]
