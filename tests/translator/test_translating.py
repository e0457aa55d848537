"""From options to searches."""

import types

import keras
import pytest

from tfattn.decoding import BeamSearch, GreedySearch, PooledBeamSearch, Sampling, rules
from tfattn.translator import translating
from tfattn.translator.folder import Folder


def test_one_beam_is_the_greedy_search():
    found = translating.search(types.SimpleNamespace(beam=1, length_penalty=0.5))
    assert type(found) is GreedySearch
    found = translating.search(types.SimpleNamespace(beam=3, length_penalty=0.5))
    assert type(found) is BeamSearch
    assert (found.num_beams, found.length_penalty, found.rules) == (3, 0.5, ())


PUBLISHED = {"num_beams": 6, "length_penalty": 0.5, "early_stopping": True}


@pytest.mark.parametrize("own", [None, {}, PUBLISHED])
def test_a_published_search_is_used_unless_another_is_chosen(own):
    options = types.SimpleNamespace(beam=None, length_penalty=None, min_length=7)
    found = translating.search(options, own)
    assert type(found) is (PooledBeamSearch if own else GreedySearch)
    assert not own or {name: getattr(found, name) for name in own} == own
    assert [rule.length for rule in found.rules] == [7]


def test_options_replace_arguments_of_a_published_search(tmp_path):
    Folder(tmp_path).add_to_record(search=PUBLISHED)

    def search(**options):
        options = types.SimpleNamespace(**{"beam": None, "length_penalty": None, **options})
        return translating.search(options, translating.published_search(options, [tmp_path]))

    assert type(search(beam=1)) is GreedySearch
    found = [search(), search(beam=3), search(beam=3, length_penalty=0.0)]
    assert all(type(each) is PooledBeamSearch and each.early_stopping for each in found)
    assert [(each.num_beams, each.length_penalty) for each in found] == [(6, 0.5), (3, 0.5), (3, 0)]


@pytest.mark.parametrize("own", [{}, PUBLISHED])
def test_a_published_first_token_begins_every_translation(tmp_path, own):
    Folder(tmp_path).add_to_record(search={**own, "first_token": 9})
    for chosen in ({}, {"beam": 1}, {"beam": 3}, {"sample": True, "temperature": 1.0, "seed": 0}):
        options = types.SimpleNamespace(**{"beam": None, "length_penalty": None, **chosen})
        found = translating.search(options, translating.published_search(options, [tmp_path]))
        assert repr(found.rules) == "(TargetPrefix(tokens=[9], scored=False),)"
        assert getattr(found, "early_stopping", False) == (own == PUBLISHED and found.width > 1)


def test_a_length_penalty_needs_beams_of_the_options_or_of_the_run(tmp_path):
    options = types.SimpleNamespace(beam=None, length_penalty=0.5)
    with pytest.raises(ValueError, match="^--length-penalty needs --beam K with K above 1: .* has"):
        translating.published_search(options, [tmp_path])
    options.beam = 2
    assert translating.published_search(options, [tmp_path]) == {}


def test_runs_with_different_published_searches_use_the_first_and_say_so(tmp_path, capsys):
    runs = [tmp_path / name for name in ("own", "one", "other", "same")]
    for run, search in zip(runs, (None, PUBLISHED, {"num_beams": 4}, PUBLISHED), strict=True):
        run.mkdir()
        Folder(run).add_to_record(**({"search": search} if search else {}))
    own, one, other, same = runs
    options = types.SimpleNamespace(beam=None, length_penalty=None)
    for paths, found in (([one, same], PUBLISHED), ([one], PUBLISHED), ([own, own], {})):
        assert translating.published_search(options, paths) == found
    assert translating.published_search(types.SimpleNamespace(beam=1), [one, other]) == {}
    assert capsys.readouterr().err == ""
    for paths, found in (([one, other], PUBLISHED), ([own, one], {})):
        assert translating.published_search(options, paths) == found
        said = f"published with different searches; the search of {paths[0]} is used\n"
        assert capsys.readouterr().err == "note: --ensemble: the runs were " + said


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
