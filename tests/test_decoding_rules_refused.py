"""Rules that a search cannot follow, and arguments that are none."""

import functools
import re

import pytest
from keras import ops

from tests.test_decoding_beams import IDS, tables, trigram
from tests.test_decoding_translate import ENGLISH, GERMAN, WordForWord
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "search, message",
    [
        (decoding.greedy_search, "greedy_search: .* row 1 has none after 2 tokens"),
        (
            functools.partial(decoding.sample, top_k=1),
            "sample: .* row 1 has none after 2 tokens",
        ),
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
