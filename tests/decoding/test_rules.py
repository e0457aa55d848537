"""Rules of decoding: each against its oracle, and together in every search, on every path."""

from functools import partial

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
    drawn_in_python,
    eagerly,
    pooled_in_python,
    tables,
    tokens_of_best,
    trigram,
)
from tests.helpers.tensors import as_tensor, numpy, tf
from tfattn import decoding, rules
from tfattn.decoding.form import Form

pytestmark = pytest.mark.usefixtures("dense_path")

ROWS, LIMITS = 11, [9, 4, 7, 9, 5, 6, 8, 9, 9, 9, 9]
PREFIXES = [[3] * (row % 2) + [4] * (row % 3) for row in range(ROWS)]


def of(oracle, *options):
    return lambda scores, written, *_: oracle(scores, written, *options)


# From a rule's name to the rule, and to its oracle: of (scores, written, limit, row).
RULES = {
    "repetition penalty": (rules.RepetitionPenalty(1.7), of(reference.repetition_penalty, 1.7)),
    "no token twice": (rules.NoRepeatNgrams(1), of(reference.no_repeat_ngrams, 1)),
    "no pair twice": (rules.NoRepeatNgrams(2), of(reference.no_repeat_ngrams, 2)),
    "no three twice": (rules.NoRepeatNgrams(3), of(reference.no_repeat_ngrams, 3)),
    "forbidden": (
        rules.ForbiddenTokens([3, [4, 5], [5, 4, 5], [4, 4]]),
        of(reference.forbidden_tokens, [[3], [4, 5], [5, 4, 5], [4, 4]]),
    ),
    "prefix": (rules.TargetPrefix([5, 3]), of(reference.target_prefix, [5, 3])),
    "prefix at no cost": (
        rules.TargetPrefix([5], scored=False),
        of(reference.target_prefix, [5], False),
    ),
    "prefixes": (
        rules.TargetPrefix(PREFIXES),
        lambda s, w, _, row: reference.target_prefix(s, w, PREFIXES[row]),
    ),
    "min length": (rules.MinLength(3), of(reference.min_length, 3, END)),
}
# Joined in this order.
TOGETHER = {
    "none": [],
    "for all": [
        "prefix at no cost",
        "repetition penalty",
        "forbidden",
        "no pair twice",
        "min length",
    ],
    "for each": ["prefixes", "repetition penalty", "no three twice"],
}
DRAWS = np.random.default_rng(3).uniform(size=(ROWS, max(LIMITS)))


def greedily(table, limit, row, adjusted):
    return beams_in_python(table, limit, 0.0, 1, adjusted=adjusted)


def drawn(table, limit, row, adjusted):
    return [(0.0, drawn_in_python(table, limit, DRAWS[row], 0.8, adjusted))]


def by_beams(*options):
    return lambda table, limit, row, adjusted: beams_in_python(
        table, limit, *options, adjusted=adjusted
    )


def by_pool(*options):
    return lambda table, limit, row, adjusted: pooled_in_python(
        table, limit, *options, adjusted=adjusted
    )


# From a search's name to the search of rules, and to its oracle, of (table, limit, row, rules).
SEARCHES = {
    "greedy": (decoding.GreedySearch, greedily),
    "sampling": (partial(decoding.Sampling, 0.8), drawn),
    "beams by mean": (partial(decoding.BeamSearch, 5, 1.0, 3), by_beams(1.0, 5)),
    "beams by sum": (partial(decoding.BeamSearch, 2, 0.0), by_beams(0.0, 2)),
    "beams by length": (partial(decoding.BeamSearch, 3, 2.0, 3), by_beams(2.0, 3)),
    "pool": (partial(decoding.PooledBeamSearch, 3, 0.7), by_pool(0.7, 3)),
    "pool of sums": (partial(decoding.PooledBeamSearch, 3, 0.0), by_pool(0.0, 3)),
    "pool that stops early": (
        partial(decoding.PooledBeamSearch, 4, 2.0, True),
        by_pool(2.0, 4, True),
    ),
}


def rules_of(names):
    return [RULES[name][0] for name in names]


def by_oracle(names, row):
    """All the rules of those names, of (scores, written, limit)."""

    def adjusted(scores, written, limit):
        for name in names:
            scores = RULES[name][1](np.array(scores, "float64"), list(written), limit, row)
        return scores

    return adjusted


def circular(seed, scale):
    """A table that is the same at every position, so that texts go round in circles."""
    table = tables(seed, batch=ROWS, size=7, scale=scale)
    table[:] = table[:, :1]
    return table


def assert_found(found, wanted, row):
    """The results of a row are the (score, tokens) `wanted`, as far as the search has scores."""
    if hasattr(found, "scores"):
        assert_same(found, wanted[: found.scores.shape[1]], row)
    else:
        assert tokens_of_best(found, row) == list(wanted[0][1])


@pytest.fixture
def draws(monkeypatch):
    """A list of the rows of `DRAWS` that a sampling draws from."""
    rows = [*range(ROWS)]
    monkeypatch.setattr(
        keras.random, "uniform", lambda shape, **_: as_tensor(DRAWS[rows].astype("float32"))
    )
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
@eagerly()
def test_search_with_rules_finds_what_its_oracle_finds(name, draws):
    """At once, and as a stream of the tokens of one row."""
    make, oracle = SEARCHES[name]
    place = [*SEARCHES].index(name)
    cases = {"none": (0.3, 6.0)[place % 2], "for all": 1.5, "for each": 2.0}
    for together, scale in cases.items():
        names = TOGETHER[together]
        search = make(rules=rules_of(names))
        limits = LIMITS if names else [*range(1, 10), 9, 9]
        table = circular(place, scale) if names else tables(place, ROWS, 7, scale)
        draws[:] = range(ROWS)
        found = search(trigram, table, ROWS, limits, **IDS)
        for row, limit in enumerate(limits):
            wanted = oracle(table[row], limit, row, by_oracle(names, row))
            assert_found(found, wanted, row)
        row, steps = (8, 1) if names else (5, 3)
        draws[:] = [row]
        alone, table_of_row = search.of_sentences([row]), table[row : row + 1]
        tokens = list(alone.stream(trigram, table_of_row, limits[row], steps=steps, **IDS))
        assert tokens == tokens_of_best(found, row)
        assert all(isinstance(token, int) for token in tokens)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, names",
    [
        ("greedy", TOGETHER["for all"]),
        ("sampling", []),
        ("beams by mean", TOGETHER["for each"]),
        ("pool", []),
    ],
)
def test_search_is_the_same_step_by_step_compiled_and_under_xla(name, names, draws):
    """TensorFlow drops rows in the first two, and keeps all in the third."""
    search = SEARCHES[name][0](rules=rules_of(names))

    def run(table):
        found = search(trigram, table, ROWS, LIMITS, **IDS)
        return found[:2] if isinstance(found, tuple) else (found,)

    table = as_tensor(circular(3, 2.0))
    with eagerly():
        wanted = run(table)
    for found in (run(table), tf.function(run, jit_compile=True)(table)):
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_rule_leaves_the_scores_that_its_oracle_leaves(name):
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


@pytest.mark.parametrize("name", RULES)
def test_rule_from_its_config_is_the_same(name):
    rule, _ = RULES[name]
    config = keras.saving.serialize_keras_object(rule)
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(rule) and repr(again) == repr(rule)


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
def test_custom_rule_has_a_state_that_follows_the_beams():
    table = tables(41, batch=7, size=7)
    # A score may rise here, so the search must not stop by a bound on scores.
    options = {"num_beams": 5, "num_results": 3, "length_penalty": 0.0}
    found = decoding.BeamSearch(rules=[Bonus(4, 2.0)], **options)(trigram, table, 7, 9, **IDS)
    for row in range(7):
        wanted = beams_in_python(table[row], 9, 0.0, 5, adjusted=with_bonus)
        assert_same(found, wanted[:3], row)


class Forbidden(rules.ForbiddenTokens):
    """Its arguments are others than those of its base class."""

    def __init__(self, *, then: int, word: int = 3):
        super().__init__([[word, then], then])
        self.word, self.then = word, then


def test_rule_of_other_arguments_than_its_base_class_has_them_in_its_config_and_repr():
    rule = Forbidden(then=5)
    assert rule.get_config() == {"then": 5, "word": 3}
    again = Forbidden.from_config(rule.get_config())
    assert repr(again) == repr(rule) == "Forbidden(then=5)"


def test_rule_has_a_short_repr_that_makes_it():
    assert repr(rules.RepetitionPenalty(1.1)) == "RepetitionPenalty(1.1)"
    assert repr(rules.ForbiddenTokens([4, [5, 6]])) == "ForbiddenTokens([[4], [5, 6]])"
    assert repr(rules.TargetPrefix([[5, 4], [7]])) == "TargetPrefix([[5, 4], [7]])"
    assert len(repr(rules.TargetPrefix([[3] * 9] * 999))) < 300


@pytest.mark.parametrize("values", [(1, True, 1.0), ((1,), (True,), (1.0,))], ids=str)
@eagerly()
def test_rule_with_an_equal_number_of_another_type_is_another(values):
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
def test_rules_that_leave_nothing_to_write_are_refused_by_row(search, message):
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


@eagerly()
def test_translate_names_the_sentence_that_rules_leave_nothing_to_write():
    """Batches are sorted by length, and filled up with their last row."""
    sentences, prefixes = ["two", "", "one two one", "one two", "one"], [[], [], [], [6], []]
    own = [rules.TargetPrefix(prefixes), rules.ForbiddenTokens([6])]
    search = decoding.GreedySearch(rules=own)
    message = r"^GreedySearch: `rules` must leave each row a token to write; sentences\[3\] "
    with pytest.raises(
        ValueError, match=f"{message}has none at the first step. Received: rules=.Tar"
    ):
        decoding.translate(WordForWord(), sentences, ENGLISH, GERMAN, search, batch_size=4)


@pytest.mark.parametrize(
    "make, argument, expected",
    [
        (lambda: rules.RepetitionPenalty(0.9), "penalty", "be at least 1"),
        (lambda: rules.ForbiddenTokens([-1]), "tokens", "hold ids of at least 0"),
        (lambda: rules.ForbiddenTokens([1.5]), "tokens", "hold integers"),
        (lambda: rules.TargetPrefix([[3], ["a"]]), "tokens", "hold integers"),
        # At a call.
        (lambda: rules.TargetPrefix([7, 4]), "rules", "leave each row a token to write; row 0 has"),
        (lambda: rules.MinLength, "rules", "be a sequence of rules of `tfattn.rules`"),
        (lambda: rules.TargetPrefix([[3]]), "rules", "have a row for each .*`batch_size`=2"),
    ],
)
@eagerly()
def test_rule_that_is_invalid_or_does_not_fit_is_refused(make, argument, expected):
    with pytest.raises(ValueError, match=rf"^\w+: `{argument}` must {expected}"):
        decoding.GreedySearch(rules=[make()])(trigram, tables(0, 2, 7), 2, 5, **IDS)


def test_translate_with_rules_of_another_number_of_sentences_is_refused():
    model, search = WordForWord(), decoding.BeamSearch(rules=[rules.TargetPrefix([[4], [5]])])
    message = "`search` must have rules with a row for each of the 1 sentences, or without"
    with pytest.raises(ValueError, match=f"^translate: {message}"):
        decoding.translate(model, ["one"], ENGLISH, GERMAN, search)
    with pytest.raises(ValueError, match=f"^translate_stream: {message}"):
        decoding.translate_stream(model, "one", ENGLISH, GERMAN, search)


def test_tokens_of_words_and_of_an_unknown_word():
    assert rules.tokens_of(GERMAN, ["zwei", "fünf zwei"]) == [[7], [4, 7]]
    assert rules.tokens_of(GERMAN, ()) == []
    for words in (["zwei", "zebra"], ["zwei zebra"]):
        message = f"^tokens_of: `words` must be in the vocabulary. Received: words='{words[-1]}'$"
        with pytest.raises(ValueError, match=message):
            rules.tokens_of(GERMAN, words)
    with pytest.raises(ValueError, match="^tokens_of: `words` must be in the vocabulary"):
        rules.tokens_of(GERMAN, ["zwei", ""])
