"""From options to searches."""

import types

import keras
import pytest

from tfattn.decoding import BeamSearch, GreedySearch, PooledBeamSearch, Sampling, rules
from tfattn.translator import translating
from tfattn.translator.folder import Folder


@pytest.mark.parametrize(
    "options, kind",
    [
        ({"beam": 1}, GreedySearch),
        ({"beam": 3}, BeamSearch),
        ({"beam": 1, "sample": True, "temperature": 0.5}, Sampling),
    ],
)
def test_search_has_its_kind_numbers_and_rules_in_order(options, kind):
    numbers = {"no_repeat_ngrams": 3, "repetition_penalty": 1.5, "min_length": 7}
    common = {"length_penalty": 0.5, "seed": 3, **options}
    found = translating.search(types.SimpleNamespace(**common, **numbers))
    kinds = [rules.NoRepeatNgrams, rules.RepetitionPenalty, rules.MinLength]
    assert type(found) is kind and [type(rule) for rule in found.rules] == kinds
    first, second, third = found.rules
    assert (first.size, second.penalty, third.length) == (3, 1.5, 7)
    found = translating.search(types.SimpleNamespace(**common, min_length=5))
    assert [rule.length for rule in found.rules] == [5]
    found = translating.search(types.SimpleNamespace(**common))
    assert found.rules == ()
    if kind is BeamSearch:
        assert (found.num_beams, found.length_penalty) == (3, 0.5)
    if kind is Sampling:  # batches have different samples
        assert found.temperature == 0.5 and isinstance(found.seed, keras.random.SeedGenerator)
        assert found.seed.get_config()["seed"] == 3


PUBLISHED = {"num_beams": 6, "length_penalty": 0.5, "early_stopping": True}


@pytest.mark.parametrize("own", [None, {}, PUBLISHED])
def test_search_published_is_used_unless_another_is_chosen(own):
    options = types.SimpleNamespace(beam=None, length_penalty=None, min_length=7)
    found = translating.search(options, own)
    assert type(found) is (PooledBeamSearch if own else GreedySearch)
    assert not own or {name: getattr(found, name) for name in own} == own
    assert [rule.length for rule in found.rules] == [7]


def test_search_published_has_the_options_given(tmp_path):
    Folder(tmp_path).add_to_record(search=PUBLISHED)

    def search(**options):
        options = types.SimpleNamespace(**{"beam": None, "length_penalty": None, **options})
        return translating.search(options, translating.published_search(options, [tmp_path]))

    assert type(search(beam=1)) is GreedySearch
    found = [search(), search(beam=3), search(beam=3, length_penalty=0.0)]
    assert all(type(each) is PooledBeamSearch and each.early_stopping for each in found)
    assert [(each.num_beams, each.length_penalty) for each in found] == [(6, 0.5), (3, 0.5), (3, 0)]


@pytest.mark.parametrize("own", [{}, PUBLISHED])
def test_search_published_first_token_begins_every_translation(tmp_path, own):
    Folder(tmp_path).add_to_record(search={**own, "first_token": 9})
    for chosen in ({}, {"beam": 1}, {"beam": 3}, {"sample": True, "temperature": 1.0, "seed": 0}):
        options = types.SimpleNamespace(**{"beam": None, "length_penalty": None, **chosen})
        found = translating.search(options, translating.published_search(options, [tmp_path]))
        assert repr(found.rules) == "(TargetPrefix([9], scored=False),)"
        assert getattr(found, "early_stopping", False) == (own == PUBLISHED and found.width > 1)


def test_published_search_length_penalty_needs_beams(tmp_path):
    options = types.SimpleNamespace(beam=None, length_penalty=0.5)
    said = "^--length-penalty needs --beam K with K above 1$"
    with pytest.raises(ValueError, match=said):
        translating.published_search(options, [tmp_path])
    options.beam = 2
    assert translating.published_search(options, [tmp_path]) == {}
    Folder(tmp_path).add_to_record(search=PUBLISHED)
    options.beam = None
    found = translating.published_search(options, [tmp_path])
    assert found == {**PUBLISHED, "length_penalty": 0.5}
    options.beam = 1
    with pytest.raises(ValueError, match=said):
        translating.published_search(options, [tmp_path])
