"""Rules of decoding in every search: against the oracle one sentence at a time, and against every
hypothesis there is.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.tensors import as_tensor, numpy
from tests.test_decoding_beams import BEGIN, END, IDS, PAD, assert_same, tables, trigram
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
# Whose beams compete by the number of its tokens, not by their score alone.
but_required = pytest.mark.parametrize(
    "name", [*(name for name in RULES if name != "required"), "together"]
)


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
@but_required
def test_few_beams_with_rules_find_what_the_search_in_python_finds(name):
    table, limits = tables(13, batch=7, size=7), [9, 4, 7, 9, 5, 6, 8]
    options = {"num_beams": 5, "num_results": 3, "rules": made(name), **IDS}
    found = decoding.beam_search(trigram, table, 7, limits, **options)
    for row, limit in enumerate(limits):
        assert_same(found, few_beams(table[row], limit, 1.0, 5, by_oracle(name))[:3], row)


@pytest.mark.slow
@but_required
def test_one_beam_with_rules_is_greedy_search(name):
    table = tables(17, batch=13, size=7)
    greedy = decoding.greedy_search(trigram, table, 13, 9, rules=made(name), **IDS)
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


@pytest.mark.parametrize("mass", [0.05, 0.5, 0.9, 0.999])
def test_typical_tokens_of_a_large_vocabulary_are_those_of_the_oracle(mass):
    logits = np.random.default_rng(7).normal(size=(5, 4099), scale=3).astype("float32")
    logits[1, ::3], logits[2, 5:], logits[3, 7:] = -1e9, -np.inf, logits[3, 7]
    found = numpy(rules.TypicalP(mass).adjust(as_tensor(logits), None, None, ())[0])
    wanted = [reference.typical_p(row.astype("float64"), mass) for row in logits]
    np.testing.assert_array_equal(found > -np.inf, np.array(wanted) > -np.inf)


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
