"""Whether a model looked at the words that change places, and which search an option stands for."""

import types

import keras
import numpy as np
import pytest

from tfattn import data
from tfattn.decoding import beam_search, greedy_search, rules, sample
from tfattn.translator import report


@pytest.mark.parametrize("shift, share", [(0, 1.0), (1, 0.0)])
def test_swaps_are_found_where_the_heaviest_word_is_the_true_one(monkeypatch, shift, share):
    pairs = data.toy_translation(230, seed=3)
    words = [data.Vocabulary.from_sentences(side) for side in zip(*pairs, strict=True)]
    left = iter(pairs)

    def attention_weights(model, inputs):
        """Two heads: one looks at the true word, or beside it, the other always at the first. And
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

    monkeypatch.setattr(report, "attention_weights", attention_weights)
    assert report.swaps_found(None, pairs, words) == share
    assert next(left, None) is None  # all of them were asked about


def test_sentences_without_swaps_have_no_share_of_them(monkeypatch):
    pairs = [("she is tired .", "elle est fatiguée .")]
    words = [data.Vocabulary.from_sentences(side) for side in zip(*pairs, strict=True)]
    weights = {"model/decoder": np.ones((1, 5, 5))}
    monkeypatch.setattr(report, "attention_weights", lambda *_: weights)
    assert report.swaps_found(None, pairs, words) is None


def test_one_beam_is_the_greedy_search():
    assert report.search(types.SimpleNamespace(beam=1, length_penalty=0.5)) is greedy_search
    found = report.search(types.SimpleNamespace(beam=3, length_penalty=0.5))
    assert found.func is beam_search and found.keywords == {"num_beams": 3, "length_penalty": 0.5}


@pytest.mark.parametrize("options", [{}, {"beam": 2}, {"sample": True, "temperature": 1.0}])
def test_rules_come_in_the_order_of_their_options(options):
    numbers = {"no_repeat_ngrams": 3, "repetition_penalty": 1.5, "min_length": 7}
    common = {"beam": 1, "length_penalty": 1.0, "seed": 0, **options}
    found = report.search(types.SimpleNamespace(**common, **numbers)).keywords["rules"]
    kinds = [rules.NoRepeatNgrams, rules.RepetitionPenalty, rules.MinLength]
    assert [type(rule) for rule in found] == kinds
    assert (found[0].size, found[1].penalty, found[2].length) == (3, 1.5, 7)
    found = report.search(types.SimpleNamespace(**common, min_length=5)).keywords["rules"]
    assert [rule.length for rule in found] == [5]


def test_sampling_goes_on_from_batch_to_batch():
    options = types.SimpleNamespace(beam=1, sample=True, temperature=0.5, seed=3)
    found = report.search(options)
    assert found.func is sample and found.keywords["temperature"] == 0.5
    generator = found.keywords["seed"]
    assert isinstance(generator, keras.random.SeedGenerator) and generator.get_config()["seed"] == 3
