"""What searches with rules compile, alone and in a translation of many sentences."""

import functools

import numpy as np
import pytest

from tests.tensors import CALLS_A_TRACE, as_tensor, needs_compiling, tf
from tests.test_decoding_beams import IDS, tables, trigram
from tests.test_decoding_rules import made
from tests.test_decoding_translate import (
    ENGLISH,
    GERMAN,
    MODELS,
    megabytes,
    most_calls,
    some_sentences,
)
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")


def counting_calls(calls):
    def step(tokens, position, table):
        calls.append(1)
        return trigram(tokens, position, table)

    return step


VARIED = {
    "repetition penalty": [rules.RepetitionPenalty(number) for number in (1.0, 1.5, 3.0)],
    "forbidden": [rules.ForbiddenTokens([[3, number], 4]) for number in (3, 4, 5)],
    "prefix": [rules.TargetPrefix([number, 3]) for number in (3, 4, 5)],
    "required": [rules.RequiredTokens([number, [3, number]]) for number in (3, 4, 5)],
    "min length": [rules.MinLength(number) for number in (0, 1, 5)],
    "min p": [rules.MinP(number) for number in (0.1, 0.5, 1.0)],
    "typical p": [rules.TypicalP(number) for number in (0.1, 0.5, 1.0)],
}


@needs_compiling
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("search", ["greedy", "sample", "beams"])
def test_another_number_or_token_of_a_rule_is_no_new_trace(name, search):
    calls, table = [], tables(0, 3, 7)
    step = counting_calls(calls)
    run = {
        "greedy": decoding.greedy_search,
        "sample": functools.partial(decoding.sample, seed=3),
        "beams": functools.partial(decoding.beam_search, num_beams=3),
    }[search]
    for rule in VARIED[name]:
        run(step, table, 3, 7, rules=[rule], **IDS)
    assert len(calls) == CALLS_A_TRACE


@needs_compiling
def test_another_kind_of_rule_or_another_order_is_another_trace():
    calls, table = [], tables(0, 3, 7)
    step, first, second = counting_calls(calls), rules.MinLength(2), rules.MinP(0.1)
    sizes = [[rules.NoRepeatNgrams(n)] for n in (2, 3)]  # each compares so many places
    different = ([], [first], [second], [first, second], [second, first], *sizes)
    for some in (*different, *different):
        decoding.greedy_search(step, table, 3, 7, rules=some, **IDS)
    assert len(calls) == 7 * CALLS_A_TRACE


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_rules_work_inside_a_tf_function(jit_compile):
    @tf.function(jit_compile=jit_compile)
    def search(table):
        some = [*made("together"), rules.RequiredTokens([4])]
        return (
            decoding.greedy_search(trigram, table, 3, 7, rules=some, **IDS),
            decoding.beam_search(trigram, table, 3, 7, num_beams=3, rules=some, **IDS).tokens,
        )

    table = tables(37, 3, 7)
    some = [*made("together"), rules.RequiredTokens([4])]
    greedy, beams = search(as_tensor(table))
    np.testing.assert_array_equal(
        greedy, decoding.greedy_search(trigram, table, 3, 7, rules=some, **IDS)
    )
    found = decoding.beam_search(trigram, table, 3, 7, num_beams=3, rules=some, **IDS)
    np.testing.assert_array_equal(beams, found.tokens)


def every_rule(count, size):
    """One of each, with rows for `count` sentences of a vocabulary of that size."""
    rng = np.random.default_rng(3)
    words = [[int(rng.integers(4, size))] if row % 2 else [] for row in range(count)]
    return [
        rules.RepetitionPenalty(1.2),
        rules.NoRepeatNgrams(3),
        rules.ForbiddenTokens([0, 1, 2, [4, 5]]),
        rules.TargetPrefix([[6, 5] if row % 3 else [] for row in range(count)]),
        rules.RequiredTokens(words, per_sentence=True),
        rules.MinLength(4),
        rules.MinP(1e-4),
        rules.TypicalP(0.999),
        rules.CoveragePenalty(0.2),
    ]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", ["transformer", "recurrent"])
def test_a_translation_has_the_rows_of_its_rules_in_the_order_of_the_sentences(name):
    model, sentences = MODELS[name](), some_sentences(11, longest=9, seed=3)
    own = every_rule(11, len(GERMAN))
    search = functools.partial(decoding.beam_search, num_beams=3, rules=own)
    together = decoding.translate(model, sentences, ENGLISH, GERMAN, search, batch_size=4)
    for row, sentence in enumerate(sentences):
        if not sentence:
            continue
        alone = functools.partial(search, rules=[rule.take([row]) for rule in own])
        (wanted,) = decoding.translate(model, [sentence], ENGLISH, GERMAN, alone)
        assert together[row] == wanted
        assert wanted.startswith(GERMAN.decode([6, 5])) or row % 3 == 0
        if row % 2:
            assert GERMAN.decode(own[4].tokens[row, 0]) in wanted.split()


def test_rules_of_another_number_of_sentences_are_refused_by_translate():
    search = functools.partial(decoding.greedy_search, rules=[rules.TargetPrefix([[4], [5]])])
    message = "^translate: `search` must have rules with a row for each of the 3 sentences, or for"
    with pytest.raises(ValueError, match=message):
        decoding.translate(MODELS["transformer"](), ["one"] * 3, ENGLISH, GERMAN, search)


@needs_compiling
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"num_beams": 3}, {"num_beams": 4, "diverse": decoding.DiverseBeams(2, 0.5)}],
    ids=["beams", "groups"],
)
def test_a_thousand_sentences_with_every_rule_trace_nothing_new_and_take_no_memory(
    options, monkeypatch
):
    def step(self, tokens, position, state):
        calls.append(tokens.shape)
        return plain(self, tokens, position, state)

    calls, model = [], MODELS["transformer"]()
    plain = type(model).step
    monkeypatch.setattr(type(model), "step", step)
    sentences = some_sentences(1000)

    def translate():
        own = every_rule(1000, len(GERMAN))
        search = functools.partial(decoding.beam_search, **options, rules=own)
        return decoding.translate(model, sentences, ENGLISH, GERMAN, search, batch_size=32)

    first = translate()
    traces, before = len(calls), megabytes()
    assert 0 < traces <= 2 * most_calls(calls, 2)
    for _ in range(2):
        assert translate() == first
    assert len(calls) == traces
    assert megabytes() - before < 24
