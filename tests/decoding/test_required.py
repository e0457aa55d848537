"""Required tokens, and the least `max_length` of rules."""

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
    tables,
    trigram,
)
from tests.helpers.tensors import numpy
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")


@pytest.mark.slow
@pytest.mark.parametrize(
    "phrases, num_beams",
    [([[5]], None), ([[3, 4, 3], [6]], 2), ([[4, 4], [4, 5, 4], [5, 5]], 1)]
    + [([[4, 4], [4, 5, 4], [5, 5]], beams) for beams in (None, 5)],
    ids=str,
)
@eagerly()
def test_every_result_has_all_required_tokens_however_unlikely(phrases, num_beams):
    table = tables(29, batch=23, size=7, scale=6.0)
    length = sum(map(len, phrases)) + 1
    for limit in (length, length + 1, 11):
        options = {"rules": [rules.RequiredTokens(phrases)]}
        if num_beams is None:
            found = numpy(decoding.GreedySearch(**options)(trigram, table, 23, limit, **IDS))
        else:
            found = decoding.BeamSearch(num_beams=num_beams, num_results=num_beams, **options)(
                trigram, table, 23, limit, **IDS
            )
            assert numpy(found.scores[:, 0] > -np.inf).all()
            found = numpy(found.tokens)[numpy(found.scores) > -np.inf]
        for row in found.tolist():
            # Before the last place, which is the end token's.
            assert all(reference.contains(row[: limit - 1], phrase) for phrase in phrases)


@pytest.mark.slow
@eagerly()
def test_a_first_token_that_two_phrases_share_is_a_candidate_for_the_second_too():
    """Also where the first has it already, and many other tokens are likelier."""
    size, cheap = 40, np.full((7, 40), -9.0, "float32")
    cheap[:, 8:], cheap[0, 5], cheap[1, 6] = -1.0, 0.0, 0.0
    cheap[2, 5], cheap[3, 7] = -3.0, 0.0
    cheap[3:, 5] = -30.0  # the longer a row waits, the lower its score
    cheap[:, END], cheap[4:, END] = -9.0, 5.0

    def step(tokens, position, state):
        rows = ops.take(ops.convert_to_tensor(cheap), ops.minimum(position, 6), axis=0)
        return ops.broadcast_to(rows, (ops.shape(tokens)[0], size)), state

    own = [rules.RequiredTokens([[5, 6], [5, 7]])]
    options = {"num_beams": 2, "length_penalty": 0.0, "rules": own}
    found = decoding.BeamSearch(**options)(step, (), 1, 7, **IDS)
    assert numpy(found.tokens)[0, 0].tolist()[:5] == [5, 6, 5, 7, END]


# No sequence begins as another one ends.
@pytest.mark.slow
@pytest.mark.parametrize("phrases", [[[4, 5, 4]], [[5, 5]], [[4], [5, 3]]], ids=str)
@eagerly()
def test_enough_beams_find_the_best_texts_that_have_all_required_tokens(phrases):
    """Of all texts without the rule, those that have the tokens before the last place."""
    table = tables(37, batch=2, size=7, scale=4.0)
    own = [rules.RequiredTokens(phrases)]
    options = {"num_beams": 300, "num_results": 9, "length_penalty": 0.0, "rules": own}
    found = decoding.BeamSearch(**options)(trigram, table, 2, 5, **IDS)
    for row in range(2):
        wanted = [
            (score, tokens)
            for score, tokens in beams_in_python(table[row], 5, 0.0)
            if all(reference.contains(tokens[:4], phrase) for phrase in phrases)
        ]
        assert_same(found, wanted[:9], row)


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [2, 8])
@eagerly()
def test_a_short_text_with_all_required_tokens_is_not_lost_to_beams_that_end_worse(num_beams):
    """One token is likely; required tokens and the end are all as unlikely at every step."""
    odds = np.full((1, 37), 0.5 / 34, "float32")
    odds[0, [PAD, BEGIN, 23]] = 1e-9, 1e-9, 0.5
    required = [5, 6, 7, 8, 9, 10]

    def step(tokens, position, state):
        return ops.take(np.log(odds), 0 * tokens[:, 0], axis=0), state

    options = {"num_beams": num_beams, "length_penalty": 0.0}
    own = [rules.RequiredTokens(required)]
    found = decoding.BeamSearch(rules=own, **options)(step, (), 1, 16, **IDS)
    tokens = numpy(found.tokens)[0, 0].tolist()
    assert sorted(tokens[:6]) == required and tokens[6:] == [END, *[PAD] * 9]
    assert float(found.scores[0, 0]) == pytest.approx(7 * np.log(0.5 / 34), rel=1e-5)


# The least `max_length` of rules.


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule, fits, short, message",
    [
        (
            rules.RequiredTokens([4, [5, 6]]),
            [4, 11],
            [3, 11],
            "4 for row 0, for the tokens of RequiredTokens and the end token. Received: .*=3$",
        ),
        (
            rules.RequiredTokens([[], [4, [5, 6]]], per_sentence=True),
            [1, 5],
            [11, 2],
            "4 for row 1, .*length=2$",
        ),
        (rules.TargetPrefix([5, 4, 3]), 3, 2, "3, for the tokens of TargetPrefix. Received: .*=2$"),
        (
            rules.TargetPrefix([[5, 4, 3, PAD], [4, PAD, END]]),
            [3, 3],
            [5, 2],
            "3 for row 1, for the tokens of TargetPrefix",
        ),
        (rules.MinLength(5), 5, 4, "5, for the tokens of MinLength. .*=4$"),
    ],
    ids=str,
)
@eagerly()
def test_a_rule_needs_room_in_each_row_and_not_in_the_longest_alone(rule, fits, short, message):
    table = tables(0, 2, 7)
    decoding.GreedySearch(rules=[rule])(trigram, table, 2, fits, **IDS)
    with pytest.raises(ValueError, match=f"`max_length` must be at least {message}"):
        decoding.GreedySearch(rules=[rule])(trigram, table, 2, short, **IDS)


def test_translate_refuses_what_a_sentence_has_no_room_for_before_it_translates_any():
    model = WordForWord()
    sentences = ["one " * 40, "", "two"]
    own = [rules.RequiredTokens([[], [4] * 999, [4] * 29], per_sentence=True)]
    search = decoding.GreedySearch(rules=own)
    message = r"^translate: `max_length` must be at least 30 for sentences\[2\], for the tokens of"
    for options in ({}, {"max_length": 29}):
        with pytest.raises(ValueError, match=message):
            decoding.translate(model, sentences, ENGLISH, GERMAN, search, **options)
    assert not model.shapes


@pytest.mark.parametrize(
    "tokens, wrong",
    [
        ([5, END, 3], "5, 2, 3"),
        ([[4], [END, END]], "2, 2"),
        ([[4, 4], [END, PAD, 5]], "2, 0, 5"),
    ],
)
def test_nothing_of_a_prefix_comes_after_the_end_token(tokens, wrong):
    message = (
        "^TargetPrefix: `tokens` must hold the end token, 2, only as the last token of a sequence"
    )
    with pytest.raises(ValueError, match=rf"{message}\. Received: tokens=\[{wrong}\]$"):
        decoding.GreedySearch(rules=[rules.TargetPrefix(tokens)])(
            trigram, tables(0, 2, 7), 2, 5, **IDS
        )


@pytest.mark.parametrize("token", [BEGIN, END, PAD])
def test_a_token_that_means_something_to_a_search_cannot_be_required(token):
    sentence = "RequiredTokens: `tokens` must hold neither the begin, the end nor the padding token"
    for own in (rules.RequiredTokens([5, [4, token]]), rules.RequiredTokens([[[token, 3]]], True)):
        with pytest.raises(ValueError, match=f"^{sentence}. Received: tokens={token}$"):
            decoding.GreedySearch(rules=[own])(trigram, tables(0, 1, 7), 1, 5, **IDS)
