"""The sample that is most like the others."""

import numpy as np
import pytest
import sacrebleu

from tests.helpers.searches import ENGLISH, GERMAN, eagerly, transformer
from tfattn import decoding

SAMPLES = [
    ["a man in a hat", "a man with a hat", "the man", "a man in a hat", "", "hats"],
    ["ab", "ab", "ba", "cd", "ba", "ab cd"],
    ["", "", "a"],
    ["only"] * 3,
]


def by_hand(samples):
    """{text: mean chrF against the other samples}, of each sample by itself."""
    chrf, found = sacrebleu.metrics.CHRF(), {}
    for i, text in enumerate(samples):
        others = samples[:i] + samples[i + 1 :]
        found[text] = np.mean([chrf.sentence_score(text, [other]).score for other in others])
    return found


@pytest.mark.parametrize("samples", SAMPLES)
def test_scores_are_means_over_the_other_samples(samples):
    found, wanted = decoding.minimum_bayes_risk(iter(samples)), by_hand(samples)
    assert [text for text, _ in found] == sorted(wanted, key=lambda text: -wanted[text])
    assert dict(found) == pytest.approx(wanted)


def test_a_text_counts_as_often_as_it_is_drawn_and_is_compared_once(monkeypatch):
    calls, score = [], sacrebleu.metrics.CHRF.sentence_score
    monkeypatch.setattr(
        sacrebleu.metrics.CHRF,
        "sentence_score",
        lambda self, text, others: calls.append(text) or score(self, text, others),
    )
    (first, _), *_ = decoding.minimum_bayes_risk(["a cat", "the dog sleeps"] + ["dogs sleep"] * 50)
    assert first == "dogs sleep" and len(calls) == 9
    assert decoding.minimum_bayes_risk(["alone"]) == [("alone", 0.0)]


def test_samples_must_be_texts():
    with pytest.raises(ValueError, match="minimum_bayes_risk: `samples` must hold at least one"):
        decoding.minimum_bayes_risk([])


@pytest.mark.slow
@eagerly()
@pytest.mark.usefixtures("dense_path")
def test_a_seed_gives_the_same_choice():
    model, sentences = transformer(), ["one two three"] * 8

    def chosen(seed):
        search = decoding.Sampling(seed=seed, temperature=9.0)
        samples = decoding.translate(model, sentences, ENGLISH, GERMAN, search, max_length=3)
        return decoding.minimum_bayes_risk(samples)

    first = chosen(5)
    assert len(first) > 1 and chosen(5) == first != chosen(6)
