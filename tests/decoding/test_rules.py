"""Rules of decoding: each against the oracle, and together in every search."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.helpers.searches import (
    BEGIN,
    END,
    ENGLISH,
    GERMAN,
    IDS,
    PAD,
    WordForWord,
    assert_same,
    beams_in_python,
    eagerly,
    scores_after,
    tables,
    transformer,
    trigram,
)
from tests.helpers.tensors import as_tensor, numpy
from tfattn import decoding, rules
from tfattn.decoding.configurable import Form

pytestmark = pytest.mark.usefixtures("dense_path")

ROWS, LIMITS = 11, [9, 4, 7, 9, 5, 6, 8, 9, 9, 9, 9]
PREFIXES = [[3] * (row % 2) + [4] * (row % 3) for row in range(ROWS)]
WORDS = [[[3 + row % 4]] if row % 2 else [] for row in range(ROWS)]
FORBIDDEN = [[3], [4, 5], [5, 4, 5], [4, 4]]

# From a rule's name to the rule, and to its oracle: of (scores, written, limit, row).
RULES = {
    "repetition penalty": (
        rules.RepetitionPenalty(1.7),
        lambda s, w, *_: reference.repetition_penalty(s, w, 1.7),
    ),
    "no token twice": (
        rules.NoRepeatNgrams(1),
        lambda s, w, *_: reference.no_repeat_ngrams(s, w, 1),
    ),
    "no pair twice": (
        rules.NoRepeatNgrams(2),
        lambda s, w, *_: reference.no_repeat_ngrams(s, w, 2),
    ),
    "no three twice": (
        rules.NoRepeatNgrams(3),
        lambda s, w, *_: reference.no_repeat_ngrams(s, w, 3),
    ),
    "forbidden": (
        rules.ForbiddenTokens([3, [4, 5], [5, 4, 5], [4, 4]]),
        lambda s, w, *_: reference.forbidden_tokens(s, w, FORBIDDEN),
    ),
    "prefix": (
        rules.TargetPrefix([5, 3]),
        lambda s, w, *_: reference.target_prefix(s, w, [5, 3]),
    ),
    "prefix at no cost": (
        rules.TargetPrefix([5], scored=False),
        lambda s, w, *_: reference.target_prefix(s, w, [5], scored=False),
    ),
    "prefixes": (
        rules.TargetPrefix(PREFIXES),
        lambda s, w, _, row: reference.target_prefix(s, w, PREFIXES[row]),
    ),
    "min length": (rules.MinLength(3), lambda s, w, *_: reference.min_length(s, w, 3, END)),
    "min p": (rules.MinP(0.15), lambda s, *_: reference.min_p(s, 0.15)),
    "typical p": (rules.TypicalP(0.3), lambda s, *_: reference.typical_p(s, 0.3)),
    "required": (
        rules.RequiredTokens([4, [5, 3]]),
        lambda s, w, limit, _: reference.required_tokens(s, w, [[4], [5, 3]], limit, END),
    ),
    "each its own required": (
        rules.RequiredTokens(WORDS, per_sentence=True),
        lambda s, w, limit, row: reference.required_tokens(s, w, WORDS[row], limit, END),
    ),
}
# Joined in this order.
TOGETHER = {
    "for all": [
        "prefix at no cost",
        "repetition penalty",
        "forbidden",
        "no pair twice",
        "min length",
        "min p",
    ],
    "for each": ["prefixes", "each its own required", "repetition penalty", "no three twice"],
}


def by_oracle(names, row):
    """All the rules of those names, of (scores, written, limit)."""

    def adjusted(scores, written, limit):
        for name in names:
            scores = RULES[name][1](np.array(scores, "float64"), list(written), limit, row)
        return scores

    return adjusted


def one_by_one(table, names, choose):
    """All sentences by a plain loop; `choose` of (adjusted scores, row, position)."""
    found = np.full((ROWS, max(LIMITS)), PAD)
    for row, limit in enumerate(LIMITS):
        tokens, adjusted = [BEGIN], by_oracle(names, row)
        while len(tokens) <= limit and tokens[-1] != END:
            scores = adjusted(scores_after(table[row], tokens), tokens[1:], limit)
            tokens.append(int(choose(scores, row, len(tokens) - 1)))
        found[row, : len(tokens) - 1] = tokens[1:]
    return found


@pytest.mark.parametrize("name", RULES)
def test_a_rule_leaves_the_scores_that_the_oracle_leaves(name):
    """After texts that repeat themselves, at every position."""
    rule, oracle = RULES[name]
    rng = np.random.default_rng(3)
    own = Form.of(rule).filled(rule.arrays(), **IDS)
    tokens = rng.integers(3, 6, size=(ROWS, 10)).astype("int32")
    tokens[:, 0] = BEGIN
    state, changed = own.start(as_tensor(tokens), as_tensor(np.int32(LIMITS))), False
    for position in range(9):
        logits = rng.normal(size=(ROWS, 7), scale=1.5).astype("float32")
        logits[:, [BEGIN, PAD]] = -np.inf
        so_far = np.where(np.arange(10) <= position, tokens, PAD)[:, :-1]
        found, state = own.adjust(
            as_tensor(logits), as_tensor(so_far), as_tensor(np.int32(position)), state
        )
        for row, limit in enumerate(LIMITS):
            if position < limit:
                written = tokens[row, 1 : position + 1].tolist()
                wanted = oracle(logits[row].astype("float64"), written, limit, row)
                np.testing.assert_allclose(found[row], wanted, rtol=1e-5)
                changed = changed or (wanted != logits[row]).any()
    assert changed


@pytest.mark.slow
@pytest.mark.parametrize("together", TOGETHER)
@eagerly()
def test_greedy_search_writes_what_the_oracle_writes(together):
    names, table = TOGETHER[together], tables(3, batch=ROWS, size=7, scale=1.5)
    table[:] = table[:, :1]  # the same at every position, so that texts go round in circles
    found, plain = (
        numpy(decoding.GreedySearch(rules=own)(trigram, table, ROWS, LIMITS, **IDS))
        for own in ([RULES[name][0] for name in names], ())
    )
    wanted = one_by_one(table, names, lambda scores, row, position: scores.argmax())
    np.testing.assert_array_equal(found, wanted)
    assert (found != plain).any()


@pytest.mark.slow
@pytest.mark.parametrize("together", TOGETHER)
@eagerly()
def test_a_sample_is_drawn_from_what_the_oracle_leaves(together, monkeypatch):
    def uniform(shape, **_):
        return as_tensor(draws.astype("float32"))

    def choose(scores, row, position):
        p = np.where(scores > -np.inf, np.exp((scores - scores.max()) / 0.8), 0.0)
        return np.searchsorted(np.cumsum(p), draws[row, position] * p.sum(), side="right")

    names, table = TOGETHER[together], tables(5, batch=ROWS, size=7)
    draws = np.random.default_rng(3).uniform(size=(ROWS, 9))
    monkeypatch.setattr(keras.random, "uniform", uniform)
    own = [RULES[name][0] for name in names]
    found = decoding.Sampling(temperature=0.8, rules=own)(trigram, table, ROWS, LIMITS, **IDS)
    np.testing.assert_array_equal(found, one_by_one(table, names, choose))


@pytest.mark.slow
@pytest.mark.parametrize("together", TOGETHER)
def test_few_beams_with_rules_find_what_the_search_in_python_finds(together):
    """Forbidding a token makes no other token likelier."""
    # By required tokens beams compete by their number, not by their score alone.
    names = [name for name in TOGETHER[together] if "required" not in name]
    table = tables(13, batch=ROWS, size=7)
    own = [RULES[name][0] for name in names]
    options = {"num_beams": 5, "num_results": 3, "rules": own}
    found = decoding.BeamSearch(**options)(trigram, table, ROWS, LIMITS, **IDS)
    for row, limit in enumerate(LIMITS):
        wanted = beams_in_python(table[row], limit, 1.0, 5, adjusted=by_oracle(names, row))
        assert_same(found, wanted[:3], row)


@pytest.mark.parametrize("mass", [0.05, 0.5, 0.9, 0.999])
def test_typical_tokens_of_a_large_vocabulary_are_those_of_the_oracle(mass):
    logits = np.random.default_rng(7).normal(size=(5, 4099), scale=3).astype("float32")
    logits[1, ::3], logits[2, 5:], logits[3, 7:] = -1e9, -np.inf, logits[3, 7]
    found = numpy(rules.TypicalP(mass).adjust(as_tensor(logits), None, None, ())[0])
    wanted = [reference.typical_p(row.astype("float64"), mass) for row in logits]
    np.testing.assert_array_equal(found > -np.inf, np.array(wanted) > -np.inf)


# Custom rules.


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


@pytest.mark.slow
@eagerly()
def test_a_rule_of_ones_own_has_a_state_that_follows_the_beams():
    table = tables(41, batch=7, size=7)
    # A score may rise here, so the search must not stop by a bound on scores.
    options = {"num_beams": 5, "num_results": 3, "length_penalty": 0.0}
    found = decoding.BeamSearch(rules=[Bonus(4, 2.0)], **options)(trigram, table, 7, 9, **IDS)
    for row in range(7):
        wanted = beams_in_python(table[row], 9, 0.0, 5, adjusted=with_bonus)
        assert_same(found, wanted[:3], row)


def test_a_rule_tells_what_it_is_in_a_few_words():
    assert repr(rules.MinP(0.1)) == "MinP(share=0.1)"
    assert repr(rules.ForbiddenTokens([3, [4, 5]])) == "ForbiddenTokens(tokens=[[-1, 3], [4, 5]])"
    assert len(repr(rules.TargetPrefix([[3] * 9] * 999))) < 70


@pytest.mark.parametrize("values", [(1, True, 1.0), ((1,), (True,), (1.0,))], ids=str)
@eagerly()
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
        found = decoding.GreedySearch(rules=[OnlyBooleans(value)])(trigram, table, 1, 3, **IDS)
        assert (numpy(found).tolist() == [[5, 5, 5]]) == (value is values[1])


# Errors.


@pytest.mark.parametrize(
    "search, message",
    [
        (decoding.GreedySearch, "GreedySearch: .* row 1 has none after 2 tokens"),
        (decoding.BeamSearch, "BeamSearch: .* row 1 has none"),
    ],
)
@eagerly()
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
        search(rules=[everything[1], After()])(trigram, table, 3, **options)
    with pytest.raises(ValueError, match="`rules` must leave each row .* row 0 has none at the"):
        search(rules=everything[:1])(trigram, table, 3, **options)


@pytest.mark.parametrize(
    "rule",
    [
        rules.ForbiddenTokens([3, [4, 7]]),
        rules.TargetPrefix([7, 4]),
        rules.RequiredTokens([[4, 7]]),
    ],
    ids=lambda rule: type(rule).__name__,
)
@eagerly()
def test_a_token_outside_of_the_vocabulary_is_refused(rule):
    message = f"{type(rule).__name__}: `tokens` must hold tokens of the vocabulary, ids below 7. "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}Received: tokens=7$"):
        decoding.GreedySearch(rules=[rule])(trigram, tables(0, 2, 7), 2, 5, **IDS)


@pytest.mark.parametrize(
    "make, argument, expected",
    [
        (lambda: rules.RepetitionPenalty(0.9), "penalty", "be at least 1"),
        (lambda: rules.ForbiddenTokens([3, []]), "tokens", "hold ids of at least 0"),
        (lambda: rules.ForbiddenTokens([-1]), "tokens", "hold ids of at least 0"),
        (lambda: rules.ForbiddenTokens([1.5]), "tokens", "hold integers"),
        (lambda: rules.TargetPrefix([[3], ["a"]]), "tokens", "hold integers"),
        (lambda: rules.RequiredTokens([3], per_sentence=True), "tokens", "hold ids, or seq"),
    ],
)
def test_a_bad_entry_of_a_rule_is_refused(make, argument, expected):
    with pytest.raises(ValueError, match=rf"^\w+: `{argument}` must {expected}.*Received: "):
        make()


@pytest.mark.parametrize(
    "rule, expected",
    [
        (rules.MinLength, "hold rules of `tfattn.rules`"),
        (rules.CoveragePenalty(0.2), "hold no rule for `BeamSearch` alone"),
        (rules.TargetPrefix([[3]]), "have a row for each sentence, with `batch_size`=2"),
    ],
    ids=str,
)
def test_rules_that_do_not_fit_a_search_are_refused(rule, expected):
    with pytest.raises(ValueError, match=f"^GreedySearch: `rules` must {expected}"):
        decoding.GreedySearch(rules=[rule])(trigram, tables(0, 2, 7), 2, 4, **IDS)


def test_an_attribute_that_cannot_be_hashed_is_refused():
    message = r"^Bonus: `tensors` must name all attributes that cannot be hashed. Received: .*bonus"
    with pytest.raises(ValueError, match=message):
        decoding.GreedySearch(rules=[Bonus([4], 1.0)])(trigram, tables(0, 2, 7), 2, 4, **IDS)


@eagerly()
def test_a_sentence_without_a_token_to_write_is_named_by_its_place_in_the_list():
    """Batches are sorted by length, and filled up with their last row."""
    sentences, prefixes = ["two", "", "one two one", "one two", "one"], [[], [], [], [6], []]
    own = [rules.TargetPrefix(prefixes), rules.ForbiddenTokens([6])]
    search = decoding.GreedySearch(rules=own)
    message = r"^GreedySearch: `rules` must leave each row a token to write; sentences\[3\] "
    with pytest.raises(
        ValueError, match=f"{message}has none at the first step. Received: rules=.Tar"
    ):
        decoding.translate(WordForWord(), sentences, ENGLISH, GERMAN, search, batch_size=4)


def test_a_model_that_cannot_be_asked_for_coverage_is_refused_by_name():
    search = decoding.BeamSearch(rules=[rules.CoveragePenalty(0.2)])
    message = "`model` must have an `encode` with the argument `coverage`, for CoveragePenalty. Rec"
    with pytest.raises(ValueError, match=f"^translate: {message}"):
        decoding.translate(WordForWord(), ["one"], ENGLISH, GERMAN, search)
    with pytest.raises(ValueError, match=f"^translate_stream: {message}"):
        decoding.translate_stream(WordForWord(), "one", ENGLISH, GERMAN, search)
    ensemble = decoding.Ensemble([transformer(), WordForWord()])
    with pytest.raises(ValueError, match=f"^translate: {message}"):
        decoding.translate(ensemble, ["one"], ENGLISH, GERMAN, search)


def test_rules_of_another_number_of_sentences_are_refused():
    search = decoding.GreedySearch(rules=[rules.TargetPrefix([[4], [5]])])
    message = "`search` must have rules with a row for each of the {} sentences, or without"
    with pytest.raises(ValueError, match=f"^translate: {message.format(3)}"):
        decoding.translate(WordForWord(), ["one"] * 3, ENGLISH, GERMAN, search)
    with pytest.raises(ValueError, match=f"^translate_stream: {message.format(1)}"):
        decoding.translate_stream(WordForWord(), "one two", ENGLISH, GERMAN, search)


def test_words_become_tokens_and_an_unknown_word_is_refused():
    assert rules.tokens_of(GERMAN, ["zwei", "fünf zwei"]) == [[7], [4, 7]]
    assert rules.tokens_of(GERMAN, ()) == []
    for words in (["zwei", "zebra"], ["zwei zebra"]):
        message = f"^tokens_of: `words` must be in the vocabulary. Received: words='{words[-1]}'$"
        with pytest.raises(ValueError, match=message):
            rules.tokens_of(GERMAN, words)
    with pytest.raises(ValueError, match="^tokens_of: `words` must hold no empty word"):
        rules.tokens_of(GERMAN, ["zwei", ""])
