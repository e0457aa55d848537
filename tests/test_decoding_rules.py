"""Rules of decoding in every search: against the oracle one sentence at a time, against every
hypothesis there is, and what they compile.
"""

import functools
import re

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.tensors import CALLS_A_TRACE, as_tensor, needs_compiling, numpy, tf
from tests.test_decoding_beams import BEGIN, END, IDS, PAD, assert_same, tables, trigram
from tests.test_decoding_translate import (
    ENGLISH,
    GERMAN,
    MODELS,
    WordForWord,
    megabytes,
    most_calls,
    some_sentences,
)
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")

# From a rule's name to the rule, and to its oracle: of (scores, written, limit).
RULES = {
    "repetition penalty": (
        lambda: rules.RepetitionPenalty(1.7),
        lambda s, w, limit: reference.repetition_penalty(s, w, 1.7),
    ),
    "no token twice": (
        lambda: rules.NoRepeatNgrams(1),
        lambda s, w, limit: reference.no_repeat_ngrams(s, w, 1),
    ),
    "no pair twice": (
        lambda: rules.NoRepeatNgrams(2),
        lambda s, w, limit: reference.no_repeat_ngrams(s, w, 2),
    ),
    "no three twice": (
        lambda: rules.NoRepeatNgrams(3),
        lambda s, w, limit: reference.no_repeat_ngrams(s, w, 3),
    ),
    "forbidden": (
        lambda: rules.ForbiddenTokens([3, [4, 5], [5, 4, 5], [4, 4]]),
        lambda s, w, limit: reference.forbidden_tokens(s, w, [[3], [4, 5], [5, 4, 5], [4, 4]]),
    ),
    "prefix": (
        lambda: rules.TargetPrefix([5, 3]),
        lambda s, w, limit: reference.target_prefix(s, w, [5, 3]),
    ),
    "min length": (
        lambda: rules.MinLength(3),
        lambda s, w, limit: reference.min_length(s, w, 3, END),
    ),
    "min p": (lambda: rules.MinP(0.15), lambda s, w, limit: reference.min_p(s, 0.15)),
    "typical p": (lambda: rules.TypicalP(0.3), lambda s, w, limit: reference.typical_p(s, 0.3)),
    "required": (
        lambda: rules.RequiredTokens([4, [5, 3]]),
        lambda s, w, limit: reference.required_tokens(s, w, [[4], [5, 3]], limit, END),
    ),
}
# Joined in this order.
TOGETHER = ["repetition penalty", "forbidden", "no pair twice", "min length", "min p"]

each_rule = pytest.mark.parametrize("name", [*RULES, "together"])


def made(name):
    return [RULES[one][0]() for one in (TOGETHER if name == "together" else [name])]


def by_oracle(name):
    """All the rules of that name, of (scores, written, limit)."""

    def adjusted(scores, written, limit):
        for one in TOGETHER if name == "together" else [name]:
            scores = RULES[one][1](np.array(scores, "float64"), list(written), limit)
        return scores

    return adjusted


def scores_after(table, tokens):
    """float64 logits of the token after `tokens`, which begin with BEGIN."""
    before = tokens[-2] if len(tokens) > 1 else BEGIN
    return table[len(tokens) - 1, before, tokens[-1]].astype("float64")


def one_by_one(table, limit, adjusted, choose):
    """A sentence by a plain loop; `choose` of (adjusted scores, position)."""
    tokens = [BEGIN]
    while len(tokens) <= limit and tokens[-1] != END:
        scores = adjusted(scores_after(table, tokens), tokens[1:], limit)
        tokens.append(int(choose(scores, len(tokens) - 1)))
    return tokens[1:]


def padded(sentences, length):
    return [[*sentence, *[PAD] * (length - len(sentence))] for sentence in sentences]


def gains_after(table, tokens, adjusted, limit):
    """What each next token adds to the sum of a beam."""
    scores = scores_after(table, tokens)
    total = scores.max() + np.log(np.exp(scores - scores.max()).sum())
    return adjusted(scores, tokens[1:], limit) - total


def every_hypothesis(table, limit, penalty, adjusted):
    """(score, tokens) of all that can be written, the best first."""
    found, live = [], [((BEGIN,), 0.0)]
    for length in range(1, limit + 1):
        longer = [
            ((*tokens, token), total + gain)
            for tokens, total in live
            for token, gain in enumerate(gains_after(table, tokens, adjusted, limit))
            if gain > -np.inf
        ]
        ended = [h for h in longer if h[0][-1] == END or length == limit]
        found += [(total / length**penalty, tokens[1:]) for tokens, total in ended]
        live = [h for h in longer if h[0][-1] != END]
    return sorted(found, reverse=True)


def few_beams(table, limit, penalty, num_beams, adjusted):
    """Beam search, one sentence at a time and always to the last step."""
    beams = [((BEGIN,), 0.0, 0)]

    def score(beam):
        return beam[1] / max(beam[2], 1) ** penalty

    for _ in range(limit):
        candidates = []
        for tokens, total, length in beams:
            if tokens[-1] == END:
                candidates.append((tokens, total, length))
                continue
            gains = gains_after(table, tokens, adjusted, limit)
            candidates += [
                ((*tokens, t), total + g, length + 1) for t, g in enumerate(gains) if g > -np.inf
            ]
        beams = sorted(candidates, key=score, reverse=True)[:num_beams]
    return [(score(beam), beam[0][1:]) for beam in beams]


# Each rule in each search.


@pytest.mark.slow(keep=3)
@each_rule
def test_greedy_search_writes_what_the_oracle_writes(name):
    table = tables(3, batch=11, size=7, scale=1.5, length=13)
    table[:] = table[:, :1]  # the same at every position, so that texts go round in circles
    found = decoding.greedy_search(trigram, table, 11, 13, rules=made(name), **IDS)
    wanted = [one_by_one(row, 13, by_oracle(name), lambda s, _: s.argmax()) for row in table]
    assert numpy(found).tolist() == padded(wanted, 13)
    plain = numpy(decoding.greedy_search(trigram, table, 11, 13, **IDS)).tolist()
    # The case is one in which the rule matters; the best token always has the greatest p.
    assert (plain == padded(wanted, 13)) == (name == "min p")


@pytest.mark.slow(keep=3)
@each_rule
def test_a_sample_is_drawn_from_what_the_oracle_leaves(name, monkeypatch):
    def uniform(shape, **_):
        return as_tensor(draws.astype("float32"))

    def choose(scores, position, row):
        p = np.where(scores > -np.inf, np.exp((scores - scores.max()) / 0.8), 0.0)
        return np.searchsorted(np.cumsum(p), draws[row, position] * p.sum(), side="right")

    table, draws = tables(5, batch=11, size=7), np.random.default_rng(3).uniform(size=(11, 9))
    monkeypatch.setattr(keras.random, "uniform", uniform)
    found = decoding.sample(trigram, table, 11, 9, temperature=0.8, rules=made(name), **IDS)
    wanted = [
        one_by_one(table[row], 9, by_oracle(name), functools.partial(choose, row=row))
        for row in range(11)
    ]
    assert numpy(found).tolist() == padded(wanted, 9)


@pytest.mark.slow(keep=3)
@each_rule
def test_enough_beams_with_rules_find_what_trying_everything_finds(name):
    table = tables(7, batch=3, size=7 if name == "together" else 6)  # which forbids one
    for penalty in (0.0, 1.0):
        found = decoding.beam_search(
            trigram,
            table,
            3,
            4,
            num_beams=121,
            num_results=121,
            length_penalty=penalty,
            rules=made(name),
            **IDS,
        )
        for row in range(3):
            wanted = every_hypothesis(table[row], 4, penalty, by_oracle(name))
            assert 0 < len(wanted) <= 121
            assert_same(found, wanted, row)


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("name", [name for name in [*RULES, "together"] if name != "required"])
def test_few_beams_with_rules_find_what_the_search_in_python_finds(name):
    table, limits = tables(13, batch=7, size=7), [9, 4, 7, 9, 5, 6, 8]
    options = {"num_beams": 5, "num_results": 3, "rules": made(name), **IDS}
    found = decoding.beam_search(trigram, table, 7, limits, **options)
    for row, limit in enumerate(limits):
        assert_same(found, few_beams(table[row], limit, 1.0, 5, by_oracle(name))[:3], row)


@pytest.mark.slow
@each_rule
def test_one_beam_with_rules_is_greedy_search(name):
    table = tables(17, batch=13, size=7)
    greedy = decoding.greedy_search(trigram, table, 13, 9, rules=made(name), **IDS)
    if name == "required":  # whose candidates compete by their number, not by their score
        return
    found = decoding.beam_search(trigram, table, 13, 9, num_beams=1, rules=made(name), **IDS)
    np.testing.assert_array_equal(found.tokens[:, 0], greedy)


def test_rules_come_in_the_order_given():
    # 4 is the best, and 5 has at least 0.4 of its probability; without 4, so has 6 of that of 5.
    odds = np.log(np.float32([[1e-9, 1e-9, 1e-9, 1e-9, 0.6, 0.25, 0.15]]))

    def step(tokens, position, state):
        return ops.take(odds, 0 * tokens[:, 0], axis=0), state

    cut, without = rules.MinP(0.4), rules.ForbiddenTokens([4])
    drawn = decoding.sample(step, (), 300, 1, seed=3, rules=[without, cut])
    assert set(numpy(drawn).ravel().tolist()) == {5, 6}
    odds[0, 5] = np.log(0.3)
    drawn = decoding.sample(step, (), 300, 1, seed=3, rules=[cut, without])
    assert set(numpy(drawn).ravel().tolist()) == {5}


@pytest.mark.slow
def test_what_a_rule_forbids_makes_nothing_else_likelier_in_beams():
    table = tables(19, batch=5, size=6)
    options = {"num_beams": 40, "num_results": 40, "length_penalty": 0.0, **IDS}
    free = decoding.beam_search(trigram, table, 5, 3, **options)
    bound = decoding.beam_search(trigram, table, 5, 3, rules=[rules.MinLength(2)], **options)
    for row in range(5):
        scores = {
            tuple(tokens): score
            for tokens, score in zip(
                numpy(free.tokens[row]).tolist(), numpy(free.scores[row]).tolist(), strict=True
            )
        }
        found = zip(numpy(bound.tokens[row]).tolist(), numpy(bound.scores[row]), strict=True)
        for tokens, score in found:
            if score > -np.inf:
                assert scores[tuple(tokens)] == pytest.approx(score, rel=1e-5)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("search", [decoding.greedy_search, decoding.beam_search])
def test_a_rule_follows_its_row_where_others_are_dropped(search):
    """Rows of their own prefixes, limits and words, alone and in company."""
    rng = np.random.default_rng(5)
    table = tables(23, batch=13, size=7)
    limits = rng.integers(5, 12, size=13).tolist()
    prefixes = [rng.integers(3, 7, size=n).tolist() for n in rng.integers(0, 4, size=13)]
    words = [rng.permutation(4)[:n] + 3 for n in rng.integers(0, 2, size=13)]
    words = [list(row) for row in words]

    def tokens_of(rows):
        own = [
            rules.TargetPrefix(prefixes).take(rows),
            rules.RequiredTokens(words, per_sentence=True).take(rows),
            rules.NoRepeatNgrams(2),
        ]
        found = search(
            trigram, table[rows], len(rows), [limits[row] for row in rows], rules=own, **IDS
        )
        found = numpy(found.tokens[:, 0] if hasattr(found, "tokens") else found)
        return [[t for t in row if t != PAD] for row in found.tolist()]

    together = tokens_of(list(range(13)))
    for row in range(13):
        assert tokens_of([row]) == [together[row]]
        assert together[row][: len(prefixes[row])] == prefixes[row]
        assert set(words[row]) <= set(together[row])
    assert len({len(row) for row in together}) > 3


# Required tokens.


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("num_beams", [None, 1, 2, 5])
@pytest.mark.parametrize("phrases", [[5], [[3, 4, 3], 6], [[4, 4], [4, 5, 4], [5, 5]]], ids=str)
def test_every_result_has_all_required_tokens_however_unlikely(phrases, num_beams):
    table = tables(29, batch=23, size=7, scale=6.0)
    lists = [[phrase] if isinstance(phrase, int) else phrase for phrase in phrases]
    length = sum(map(len, lists)) + 1
    for limit in (length, length + 1, 11):
        options = {"rules": [rules.RequiredTokens(phrases)], **IDS}
        if num_beams is None:
            found = numpy(decoding.greedy_search(trigram, table, 23, limit, **options))
        else:
            found = decoding.beam_search(
                trigram, table, 23, limit, num_beams=num_beams, num_results=num_beams, **options
            )
            assert numpy(found.scores[:, 0] > -np.inf).all()
            found = numpy(found.tokens)[numpy(found.scores) > -np.inf]
        for row in found.tolist():
            assert all(reference.contains(row, phrase) for phrase in lists)


@pytest.mark.slow
def test_beams_with_required_tokens_find_better_texts_than_the_last_moment_allows():
    table = tables(31, batch=29, size=7, scale=3.0)
    table[..., 3] -= 6.0
    options = {"num_beams": 6, "length_penalty": 0.0, **IDS}
    found = decoding.beam_search(
        trigram, table, 29, 9, rules=[rules.RequiredTokens([3])], **options
    )
    best = decoding.beam_search(
        trigram, table, 29, 9, rules=[rules.RequiredTokens([3])], **{**options, "num_beams": 200}
    )

    class LastMoment(rules.RequiredTokens):
        def more_candidates(self, gains, candidates, *_):
            width = self.count
            return (
                ops.pad(gains, [[0, 0], [0, width]], constant_values=-np.inf),
                ops.pad(candidates, [[0, 0], [0, width]]),
            )

        def tokens_met(self, candidates, *_):
            return ops.zeros_like(candidates)

    late = decoding.beam_search(trigram, table, 29, 9, rules=[LastMoment([3])], **options)
    gap, late_gap = (numpy(best.scores - other.scores).sum() for other in (found, late))
    assert -1e-3 <= gap < 0.5 * late_gap


@pytest.mark.parametrize("num_beams", [2, 4, 8])
def test_a_short_text_with_all_required_tokens_is_not_lost_to_beams_that_end_worse(num_beams):
    """One token is likely; required tokens and the end are all as unlikely at every step."""
    odds = np.full((1, 37), 0.5 / 34, "float32")
    odds[0, [PAD, BEGIN, 23]] = 1e-9, 1e-9, 0.5
    required = [5, 6, 7, 8, 9, 10]

    def step(tokens, position, state):
        return ops.take(np.log(odds), 0 * tokens[:, 0], axis=0), state

    options = {"num_beams": num_beams, "length_penalty": 0.0, **IDS}
    own = [rules.RequiredTokens(required)]
    found = decoding.beam_search(step, (), 1, 24, rules=own, **options)
    tokens = numpy(found.tokens)[0, 0].tolist()
    assert sorted(tokens[:6]) == required and tokens[6:] == [END, *[PAD] * 17]
    assert float(found.scores[0, 0]) == pytest.approx(7 * np.log(0.5 / 34), rel=1e-5)


def test_a_rule_of_ones_own_keeps_kinds_of_beams_side_by_side():
    """Of two beams one may end in 5, however unlikely it is."""

    class Apart(rules.Rule):
        lowers_only, kinds, more = True, 2, 1

        def tokens_met(self, candidates, tokens, position, state):
            return ops.cast(candidates == 5, "int32")

        def more_candidates(self, gains, candidates, logits, tokens, position, state):
            gains = ops.concatenate([gains, logits[:, 5:6]], axis=1)
            return gains, ops.concatenate([candidates, 0 * candidates[:, :1] + 5], axis=1)

    table = tables(0, 1, 7)
    table[..., 5] -= 50.0
    table[..., END] -= 99.0
    for own, wanted in (([Apart()], True), ([], False)):
        options = {"num_beams": 2, "num_results": 2, "rules": own, **IDS}
        found = decoding.beam_search(trigram, table, 1, 4, **options)
        assert (5 in numpy(found.tokens)[0, 1]) == wanted
        assert 5 not in numpy(found.tokens)[0, 0]


# One compiled loop.


def counting_calls(calls):
    def step(tokens, position, table):
        calls.append(1)
        return trigram(tokens, position, table)

    return step


VARIED = {
    "repetition penalty": [rules.RepetitionPenalty(number) for number in (1.0, 1.5, 3.0)],
    "n-grams": [rules.NoRepeatNgrams(2)] * 3,
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
    for some in ([], [first], [second], [first, second], [second, first]):
        decoding.greedy_search(step, table, 3, 7, rules=some, **IDS)
    assert len(calls) == 5 * CALLS_A_TRACE


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
def test_a_thousand_sentences_with_every_rule_trace_nothing_new_and_take_no_memory(monkeypatch):
    def step(self, tokens, position, state):
        calls.append(tokens.shape)
        return plain(self, tokens, position, state)

    calls, model = [], MODELS["transformer"]()
    plain = type(model).step
    monkeypatch.setattr(type(model), "step", step)
    sentences = some_sentences(1000)

    def translate():
        search = functools.partial(
            decoding.beam_search, num_beams=3, rules=every_rule(1000, len(GERMAN))
        )
        return decoding.translate(model, sentences, ENGLISH, GERMAN, search, batch_size=32)

    first = translate()
    traces, before = len(calls), megabytes()
    assert 0 < traces <= 2 * most_calls(calls, 2)
    for _ in range(2):
        assert translate() == first
    assert len(calls) == traces
    assert megabytes() - before < 24


# Rules of one's own.


class Bonus(rules.Rule):
    """Adds to the score of a token for each time that it is written, by a state of its own."""

    tensors = ("bonus",)

    def __init__(self, token, bonus):
        self.token, self.bonus = token, np.float32(bonus)

    def start(self, tokens, limits):
        return {"count": ops.zeros_like(limits)}

    def adjust(self, logits, tokens, position, state):
        last = ops.take(tokens, position, axis=1)
        count = state["count"] + ops.cast(last == self.token, "int32")
        bonus = self.bonus * ops.cast(count, "float32")[:, None]
        is_it = ops.arange(ops.shape(logits)[1]) == self.token
        return logits + ops.where(is_it, bonus, 0.0), {"count": count}


def with_bonus(scores, written, limit):
    return scores + 2.0 * written.count(4) * (np.arange(len(scores)) == 4)


@pytest.mark.slow(keep=1)
def test_a_rule_of_ones_own_has_a_state_that_follows_the_beams():
    table = tables(41, batch=7, size=7)
    own = [Bonus(4, 2.0)]
    found = decoding.greedy_search(trigram, table, 7, 9, rules=own, **IDS)
    wanted = [one_by_one(row, 9, with_bonus, lambda s, _: s.argmax()) for row in table]
    assert numpy(found).tolist() == padded(wanted, 9)
    # A score may rise here, so a search must not stop for what looks out of reach.
    options = {"num_beams": 5, "num_results": 3, "length_penalty": 0.0, "rules": own, **IDS}
    found = decoding.beam_search(trigram, table, 7, 9, **options)
    for row in range(7):
        assert_same(found, few_beams(table[row], 9, 0.0, 5, with_bonus)[:3], row)


def test_a_rule_tells_what_it_is_in_a_few_words():
    assert repr(rules.MinP(0.1)) == "MinP(share=0.1)"
    assert repr(rules.ForbiddenTokens([3, [4, 5]])) == "ForbiddenTokens(tokens=[[-1, 3], [4, 5]])"
    assert len(repr(rules.TargetPrefix([[3] * 9] * 999))) < 70


def test_a_rule_that_cannot_be_hashed_is_refused():
    rule = Bonus([4], 1.0)
    with pytest.raises(ValueError, match="can be hashed, or are named in `tensors`. Received: rul"):
        decoding.greedy_search(trigram, tables(0, 1, 5), 1, 3, rules=[rule], **IDS)


# What cannot be.


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "search, message",
    [
        (decoding.greedy_search, "greedy_search: .* row 1 has none after 2 tokens"),
        (decoding.sample, "sample: .* row 1 has none after 2 tokens"),
        (decoding.beam_search, "beam_search: .* row 1 has none"),
    ],
)
def test_rules_that_leave_nothing_to_write_are_refused_in_one_sentence(search, message):
    everything = [rules.ForbiddenTokens(range(7)), rules.TargetPrefix([[4, 3], [3, 4], [5, 6]])]

    class After(rules.Rule):
        """All is forbidden after 3 4."""

        def adjust(self, logits, tokens, position, state):
            last, before = (ops.take(tokens, ops.maximum(position - n, 0), axis=1) for n in (0, 1))
            here = ops.logical_and(last == 4, before == 3)[:, None]
            return ops.where(here, -float("inf"), logits), state

    table, options = tables(0, 3, 7), {"max_length": 5, **IDS}
    with pytest.raises(ValueError, match=rf"{message}.*\. Received: rules=\(TargetPrefix"):
        search(trigram, table, 3, rules=[everything[1], After()], **options)
    with pytest.raises(ValueError, match="`rules` must leave each row .* row 0 has none to begin"):
        search(trigram, table, 3, rules=everything[:1], **options)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: rules.ForbiddenTokens([3, [4, 7]]), "ForbiddenTokens: `tokens`"),
        (lambda: rules.TargetPrefix([7, 4]), "TargetPrefix: `tokens`"),
        (lambda: rules.RequiredTokens([[4, 7]]), "RequiredTokens: `tokens`"),
    ],
)
@pytest.mark.parametrize("search", [decoding.greedy_search, decoding.beam_search])
def test_a_token_outside_of_the_vocabulary_is_refused(make, message, search):
    sentence = f"{message} must hold tokens of the vocabulary, ids below 7. Received: tokens=7"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        search(trigram, tables(0, 2, 7), 2, 5, rules=[make()], **IDS)


@pytest.mark.parametrize(
    "make, argument, expected",
    [
        (lambda: rules.RepetitionPenalty(0.9), "penalty", "be at least 1"),
        (lambda: rules.RepetitionPenalty("1"), "penalty", "be a positive, finite number"),
        (lambda: rules.NoRepeatNgrams(0), "size", "be a positive integer"),
        (lambda: rules.ForbiddenTokens([]), "tokens", "hold ids, or sequences of ids"),
        (lambda: rules.ForbiddenTokens("ab"), "tokens", "hold ids, or sequences of ids"),
        (lambda: rules.ForbiddenTokens([3, []]), "tokens", "hold ids of at least 0"),
        (lambda: rules.ForbiddenTokens([-1]), "tokens", "hold ids of at least 0"),
        (lambda: rules.ForbiddenTokens([1.5]), "tokens", "hold integers"),
        (lambda: rules.TargetPrefix([]), "tokens", "hold ids of at least 0"),
        (lambda: rules.TargetPrefix([[3], ["a"]]), "tokens", "hold integers"),
        (lambda: rules.RequiredTokens([]), "tokens", "hold ids, or sequences of ids"),
        (lambda: rules.RequiredTokens([3], per_sentence=True), "tokens", "hold ids, or seq"),
        (lambda: rules.RequiredTokens([3], per_sentence=1), "per_sentence", "be True or False"),
        (lambda: rules.MinLength(-1), "length", "be an integer of at least 0"),
        (lambda: rules.MinP(0.0), "share", "be a positive, finite number"),
        (lambda: rules.MinP(1.5), "share", r"be a number in \(0, 1\]"),
        (lambda: rules.TypicalP(1.5), "mass", r"be a number in \(0, 1\]"),
        (lambda: rules.CoveragePenalty(-1), "strength", "be a finite number of at least 0"),
    ],
)
def test_a_bad_argument_of_a_rule_is_refused(make, argument, expected):
    with pytest.raises(ValueError, match=rf"^\w+: `{argument}` must {expected}.*Received: "):
        make()


@pytest.mark.parametrize(
    "some, argument, expected",
    [
        (rules.MinLength(2), "rules", "be a sequence of rules of `tfattn.rules`"),
        ([rules.MinLength], "rules", "hold rules of `tfattn.rules`"),
        ([rules.CoveragePenalty(0.2)], "rules", "hold none that is for `beam_search` alone"),
        ([rules.TargetPrefix([[3]])], "rules", "have a row for each sentence, `batch_size`=2"),
        ([rules.RequiredTokens([3, 4, [5, 6]])], "max_length", "be at least 5, for the tokens of"),
    ],
)
def test_rules_that_do_not_fit_a_search_are_refused(some, argument, expected):
    with pytest.raises(ValueError, match=f"^greedy_search: `{argument}` must {expected}"):
        decoding.greedy_search(trigram, tables(0, 2, 7), 2, 4, rules=some, **IDS)


# Room for what a rule writes.


@pytest.mark.parametrize("search", [decoding.greedy_search, decoding.beam_search])
def test_required_tokens_need_room_in_each_row_and_not_in_the_longest_alone(search):
    table = tables(0, 2, 7)
    message = "`max_length` must be at least 4 for row 0, for the tokens of RequiredTokens and the "
    with pytest.raises(ValueError, match=f"{message}end token. Received: max_length=3$"):
        search(trigram, table, 2, [3, 11], rules=[rules.RequiredTokens([4, [5, 6]])], **IDS)
    own = rules.RequiredTokens([[], [4, [5, 6]]], per_sentence=True)
    search(trigram, table, 2, [1, 5], rules=[own], **IDS)
    with pytest.raises(ValueError, match="`max_length` must be at least 4 for row 1, .*length=2$"):
        search(trigram, table, 2, [11, 2], rules=[own], **IDS)


def test_translate_refuses_what_a_sentence_has_no_room_for_before_it_translates_any():
    model = WordForWord()
    sentences = ["one " * 40, "", "two"]
    own = [rules.RequiredTokens([[], [4] * 999, [4] * 29], per_sentence=True)]
    search = functools.partial(decoding.greedy_search, rules=own)
    message = r"^translate: `max_length` must be at least 30 for sentences\[2\], for the tokens of"
    with pytest.raises(ValueError, match=message):
        decoding.translate(model, sentences, ENGLISH, GERMAN, search)
    with pytest.raises(ValueError, match=r"at least 30 for sentences\[2\]"):
        decoding.translate(model, sentences, ENGLISH, GERMAN, search, max_length=29)
    assert not model.shapes


@pytest.mark.parametrize("search", [decoding.greedy_search, decoding.beam_search])
def test_a_prefix_needs_room_in_its_row(search):
    table = tables(0, 2, 7)
    search(trigram, table, 2, 3, rules=[rules.TargetPrefix([[5, 4, 3, PAD], [4, PAD, END]])], **IDS)
    message = "`max_length` must be at least 3, for the tokens of TargetPrefix. Received: .*=2$"
    with pytest.raises(ValueError, match=message):
        search(trigram, table, 2, 2, rules=[rules.TargetPrefix([5, 4, 3])], **IDS)
    with pytest.raises(ValueError, match="`max_length` must be at least 3 for row 1, for the tok"):
        search(trigram, table, 2, [5, 2], rules=[rules.TargetPrefix([[4], [5, 4, 3]])], **IDS)


@pytest.mark.parametrize("tokens", [[5, END, 3], [[4], [END, END]], [[4, 4], [END, PAD, 5]]])
def test_nothing_of_a_prefix_comes_after_the_end_token(tokens):
    message = "^TargetPrefix: `tokens` must hold the end token, 2, as the last of a sequence alone"
    with pytest.raises(ValueError, match=message):
        decoding.greedy_search(
            trigram, tables(0, 2, 7), 2, 5, rules=[rules.TargetPrefix(tokens)], **IDS
        )


@pytest.mark.parametrize("values", [(1, True, 1.0), ((1,), (True,), (1.0,))], ids=str)
def test_numbers_that_are_equal_but_of_other_types_are_other_rules(values):
    class OnlyBooleans(rules.Rule):
        """All but token 5 is forbidden, where the value is a bool."""

        def __init__(self, value):
            self.value = value

        def adjust(self, logits, tokens, position, state):
            (value,) = self.value if isinstance(self.value, tuple) else (self.value,)
            others = ops.arange(ops.shape(logits)[1]) != 5
            return (ops.where(others, -1e9, logits) if value is True else logits), state

    table = tables(0, 1, 7)
    table[..., 5] -= 99.0
    for value in values:
        found = decoding.greedy_search(trigram, table, 1, 3, rules=[OnlyBooleans(value)], **IDS)
        assert (numpy(found).tolist() == [[5, 5, 5]]) == (value is values[1])


@pytest.mark.parametrize("rule", [rules.RequiredTokens, rules.ForbiddenTokens])
def test_words_become_tokens_and_an_unknown_word_is_refused(rule):
    tokens = rules.tokens_of(GERMAN, ["zwei", "fünf zwei"])
    assert tokens == [[7], [4, 7]] and rule(tokens)
    assert rules.tokens_of(GERMAN, ()) == []
    for words in (["zwei", "zebra"], ["zwei zebra"]):
        message = f"^tokens_of: `words` must be in the vocabulary. Received: words='{words[-1]}'$"
        with pytest.raises(ValueError, match=message):
            rule(rules.tokens_of(GERMAN, words))
    with pytest.raises(ValueError, match="^tokens_of: `words` must hold no empty word"):
        rules.tokens_of(GERMAN, ["zwei", ""])


@pytest.mark.parametrize("token", [BEGIN, END, PAD])
def test_a_token_that_means_something_to_a_search_cannot_be_required(token):
    sentence = "RequiredTokens: `tokens` must hold neither the begin, the end nor the padding token"
    for own in (rules.RequiredTokens([5, [4, token]]), rules.RequiredTokens([[[token, 3]]], True)):
        with pytest.raises(ValueError, match=f"^{sentence}. Received: tokens={token}$"):
            decoding.greedy_search(trigram, tables(0, 1, 7), 1, 5, rules=[own], **IDS)


@pytest.mark.parametrize("name", ["greedy", "beams"])
def test_a_sentence_without_a_token_to_write_is_named_by_its_place_in_the_list(name):
    """Batches are sorted by length, and filled up with their last row."""
    sentences, prefixes = ["two", "", "one two one", "one two", "one"], [[], [], [], [6], []]
    own = [rules.TargetPrefix(prefixes), rules.ForbiddenTokens([6])]
    run = {"greedy": decoding.greedy_search, "beams": decoding.beam_search}[name]
    search = functools.partial(run, rules=own)
    message = (
        r"^(greedy|beam)_search: `rules` must leave each row a token to write; sentences\[3\] "
    )
    with pytest.raises(ValueError, match=f"{message}has none to begin with. Received: rules=.Tar"):
        decoding.translate(WordForWord(), sentences, ENGLISH, GERMAN, search, batch_size=4)


def test_a_model_that_cannot_be_asked_for_coverage_is_refused_by_name():
    search = functools.partial(decoding.beam_search, rules=[rules.CoveragePenalty(0.2)])
    message = "`model` must have an `encode` with the argument `coverage`, for CoveragePenalty. Rec"
    with pytest.raises(ValueError, match=f"^translate: {message}"):
        decoding.translate(WordForWord(), ["one"], ENGLISH, GERMAN, search)
    with pytest.raises(ValueError, match=f"^translate_stream: {message}"):
        decoding.translate_stream(WordForWord(), "one", ENGLISH, GERMAN, search)


@pytest.mark.parametrize("mass", [0.05, 0.5, 0.9, 0.999])
def test_typical_tokens_of_a_large_vocabulary_are_those_of_the_oracle(mass):
    logits = np.random.default_rng(7).normal(size=(5, 4099), scale=3).astype("float32")
    logits[1, ::3], logits[2, 5:], logits[3, 7:] = -1e9, -np.inf, logits[3, 7]
    found = numpy(rules.TypicalP(mass).adjust(as_tensor(logits), None, None, ())[0])
    wanted = [reference.typical_p(row.astype("float64"), mass) for row in logits]
    np.testing.assert_array_equal(found > -np.inf, np.array(wanted) > -np.inf)
