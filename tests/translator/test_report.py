"""The figure of a trained run."""

import numpy as np

from tfattn import data
from tfattn.translator import report


def test_figure_of_attention_counts_heads_from_0(monkeypatch):
    pair = ("she is tired .", "elle est fatiguée .")
    words = [data.Vocabulary.from_sentences([side]) for side in pair]
    weights = {"model/decoder": np.ones((1, 2, 5, 5))}
    monkeypatch.setattr(report, "attention_weights", lambda *_: weights)
    figure = report._attention_figure(None, *pair, words)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["head 0", "head 1"]
