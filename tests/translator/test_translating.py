"""From options to searches."""

import types

import keras
import pytest

from tfattn.decoding import BeamSearch, GreedySearch, Sampling, rules
from tfattn.translator import translating


def test_one_beam_is_the_greedy_search():
    found = translating.search(types.SimpleNamespace(beam=1, length_penalty=0.5))
    assert type(found) is GreedySearch
    found = translating.search(types.SimpleNamespace(beam=3, length_penalty=0.5))
    assert type(found) is BeamSearch
    assert (found.num_beams, found.length_penalty, found.rules) == (3, 0.5, ())


@pytest.mark.parametrize("options", [{}, {"beam": 2}, {"sample": True, "temperature": 1.0}])
def test_rules_come_in_the_order_of_their_options(options):
    numbers = {"no_repeat_ngrams": 3, "repetition_penalty": 1.5, "min_length": 7}
    common = {"beam": 1, "length_penalty": 1.0, "seed": 0, **options}
    found = translating.search(types.SimpleNamespace(**common, **numbers)).rules
    kinds = [rules.NoRepeatNgrams, rules.RepetitionPenalty, rules.MinLength]
    assert [type(rule) for rule in found] == kinds
    assert (found[0].size, found[1].penalty, found[2].length) == (3, 1.5, 7)
    found = translating.search(types.SimpleNamespace(**common, min_length=5)).rules
    assert [rule.length for rule in found] == [5]


def test_batches_have_different_samples():
    options = types.SimpleNamespace(beam=1, sample=True, temperature=0.5, seed=3)
    found = translating.search(options)
    assert type(found) is Sampling and found.temperature == 0.5
    generator = found.seed
    assert isinstance(generator, keras.random.SeedGenerator) and generator.get_config()["seed"] == 3
