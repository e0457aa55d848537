"""Streaming: the tokens of a search, each as soon as it is certain."""

import functools
import re

import numpy as np
import pytest
from keras import ops

import tfattn
from tests.tensors import BACKEND, CALLS_A_TRACE, needs_compiling, numpy
from tests.test_decoding_beams import END, IDS, PAD, reading, reading_state, tables, trigram
from tests.test_decoding_translate import ENGLISH, GERMAN, MODELS, WordForWord, some_sentences
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")

SEARCHES = {
    "greedy": decoding.greedy_search,
    "sample": functools.partial(decoding.sample, seed=3, temperature=1.5, top_p=0.9),
    "beams": functools.partial(decoding.beam_search, num_beams=5),
    "one beam": functools.partial(decoding.beam_search, num_beams=1),
    "groups": functools.partial(
        decoding.beam_search, num_beams=4, diverse=decoding.DiverseBeams(2)
    ),
    "rules": functools.partial(
        decoding.beam_search,
        num_beams=5,
        rules=[rules.NoRepeatNgrams(2), rules.RequiredTokens([5, [3, 4]]), rules.MinLength(4)],
    ),
    "greedy with rules": functools.partial(
        decoding.greedy_search, rules=[rules.RepetitionPenalty(1.5), rules.TargetPrefix([4, 5])]
    ),
}


def written(found):
    """The tokens of the best result, up to its end."""
    tokens = numpy(found.tokens[:, 0] if hasattr(found, "tokens") else found)[0].tolist()
    return tokens[: tokens.index(END) + 1] if END in tokens else [t for t in tokens if t != PAD]


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("steps", [1, 3, 100])
@pytest.mark.parametrize("name", SEARCHES)
def test_the_tokens_of_a_stream_are_those_of_the_search(name, steps):
    for seed in range(5):
        table = tables(seed, batch=1, size=7, scale=3.0)
        wanted = written(SEARCHES[name](trigram, table, 1, 11, **IDS))
        got = list(decoding.stream(trigram, table, 11, SEARCHES[name], steps=steps, **IDS))
        assert got == wanted and all(isinstance(token, int) for token in got)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greedy", "beams"])
def test_the_state_goes_from_call_to_call(name):
    table = tables(3, batch=1, size=7, scale=3.0)
    for limit in (1, 2, 5, 11):
        state = reading_state(table, limit)
        wanted = written(SEARCHES[name](trigram, table, 1, limit, **IDS))
        assert list(decoding.stream(reading, state, limit, SEARCHES[name], **IDS)) == wanted


def test_a_state_may_hold_words_and_nothing():
    def step(tokens, position, state):
        assert state["word"] == "word" and state["number"] == 3 and state["none"] is None
        return trigram(tokens, position, state["table"])[0], {**state, "count": state["count"] + 1}

    table = tables(3, batch=1, size=7)
    count = ops.zeros((), "int32")
    state = {"table": table, "word": "word", "number": 3, "none": None, "count": count}
    wanted = written(decoding.greedy_search(trigram, table, 1, 11, **IDS))
    assert list(decoding.stream(step, state, 11, steps=2, **IDS)) == wanted


def test_a_token_comes_before_the_next_is_computed():
    # 4, 5, 6, … and at each step one token more is certain.
    def step(tokens, position, state):
        return ops.one_hot(ops.take(tokens, position, axis=1) + 1, 23), state

    plan_calls, found = [], decoding.stream(step, (), 11, begin_id=3, end_id=22, steps=1)
    original = decoding.streaming.Plan.go_on
    try:
        decoding.streaming.Plan.go_on = lambda *a: plan_calls.append(1) or original(*a)
        for number, token in enumerate(found):
            assert token == 4 + number and len(plan_calls) == number
    finally:
        decoding.streaming.Plan.go_on = original
    assert number == 10


def test_beams_are_certain_of_what_all_of_them_begin_with():
    # 3 is sure; then 4 or 5 are as likely, and 6 decides late.
    table = np.full((1, 11, 7, 7, 7), -np.inf, "float32")
    table[0, 0, :, :, 3] = 0.0
    table[0, 1, :, :, [4, 5]] = np.log(0.5)
    for position in range(2, 6):
        table[0, position, :, 4, 4] = table[0, position, :, 5, 5] = 0.0
    table[0, 6, :, 4, END], table[0, 6, :, 5, [END, 6]] = 0.0, np.log(0.5)
    table[0, 7:, :, :, END] = 0.0
    looks = []

    def certain(plan, progress):
        looks.append(original(plan, progress))
        return looks[-1]

    original = decoding.streaming._look
    decoding.streaming._look = certain
    try:
        search = functools.partial(decoding.beam_search, num_beams=2, length_penalty=0.0)
        tokens = list(decoding.stream(trigram, table, 11, search, steps=1, **IDS))
    finally:
        decoding.streaming._look = original
    assert tokens == [3, 4, 4, 4, 4, 4, END]
    lengths = [len(found) for _, found in looks]
    assert lengths[:6] == [1] * 6 and lengths[-1] == 7


@needs_compiling
def test_further_streams_of_a_step_trace_nothing_new():
    calls = []

    def step(tokens, position, table):
        calls.append(1)
        return trigram(tokens, position, table)

    search = functools.partial(decoding.beam_search, num_beams=3)
    for seed in range(5):
        for steps in (1, 3):
            list(decoding.stream(step, tables(seed, 1, 7), 11, search, steps=steps, **IDS))
    # Its beginning and its going on, each with a step before its loop and one inside.
    assert len(calls) == 2 * CALLS_A_TRACE


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("model", [WordForWord, *MODELS.values()], ids=["words", *MODELS])
@pytest.mark.parametrize("name", ["greedy", "beams", "sample"])
def test_the_pieces_of_a_translation_are_together_that_of_translate(model, name):
    model, search = model(), SEARCHES[name]
    for sentence in ["", "one", *some_sentences(5, longest=19, seed=7)]:
        (wanted,) = decoding.translate(model, [sentence], ENGLISH, GERMAN, search=search)
        pieces = decoding.translate_stream(model, sentence, ENGLISH, GERMAN, search)
        assert "".join(pieces) == wanted
    # Of the last sentence, up to a limit.
    (wanted,) = decoding.translate(model, [sentence], ENGLISH, GERMAN, search, max_length=3)
    pieces = decoding.translate_stream(model, sentence, ENGLISH, GERMAN, search, 3)
    assert "".join(pieces) == wanted


def test_pieces_are_words_with_their_spaces():
    pieces = decoding.translate_stream(WordForWord(), "one two three", ENGLISH, GERMAN)
    assert list(pieces) == ["eins", " zwei", " drei"]


@needs_compiling
@pytest.mark.slow
def test_streams_of_many_sentences_trace_as_little_as_their_translations():
    model, search = WordForWord(), functools.partial(decoding.beam_search, num_beams=2)
    sentences = [one for one in some_sentences(60) if one]
    for sentence in sentences:
        list(decoding.translate_stream(model, sentence, ENGLISH, GERMAN, search))
    traces = model.traces
    shapes = len(set(model.shapes))
    assert traces <= 2 * CALLS_A_TRACE * (shapes if BACKEND == "jax" else 4)
    for sentence in sentences:
        list(decoding.translate_stream(model, sentence, ENGLISH, GERMAN, search))
    assert model.traces == traces


def test_a_character_in_bytes_is_not_given_by_halves():
    class Bytes:
        begin_id, end_id, padding_id = 2, 3, 0

        def decode(self, ids):
            return bytes(int(i) for i in ids if i > 3).decode("utf-8", errors="replace")

    pieces = list(decoding.streaming._pieces(iter([*"a猫b".encode(), 3]), Bytes()))
    assert pieces == ["a", "猫", "b"]
    cut = list(decoding.streaming._pieces(iter([*"a猫".encode()[:-1], 3]), Bytes()))
    assert "".join(cut) == "a\N{REPLACEMENT CHARACTER}"


class Joined:
    """A tokenizer that keeps words and joins them in a way of its own."""

    def __init__(self, join):
        self.join = join

    def __call__(self, sentence):
        return sentence.split()


def pieces_of(words, join):
    vocabulary = tfattn.data.Vocabulary(sorted(set(words)), Joined(join))
    ids = vocabulary.encode(" ".join(words))
    assert len(ids) == len(words)
    return list(decoding.streaming._pieces(iter([*ids, vocabulary.end_id]), vocabulary))


def test_a_word_in_parts_is_given_as_the_tokenizer_joins_it():
    found = pieces_of(
        ["wal@@", "king", "home", "n@@", "o@@", "w"], lambda w: " ".join(w).replace("@@ ", "")
    )
    assert found == ["wal", "king", " home", " n", "o", "w"]
    assert pieces_of(["我", "喜欢", "猫"], "".join) == ["我", "喜欢", "猫"]
    # A part that nothing follows stays as it is, as in `translate`.
    assert "".join(pieces_of(["a", "wal@@"], lambda w: " ".join(w).replace("@@ ", ""))) == "a wal@@"


def test_a_tokenizer_that_changes_what_was_given_is_refused():
    message = "^translate_stream: `target_vocabulary` must leave the text .* Received: .*'c b a a'"
    with pytest.raises(ValueError, match=message):
        pieces_of(["a", "a", "b", "c"], lambda w: " ".join(w[::-1]) if w[3:] else "a b")


def test_rules_of_the_sentence_and_what_they_refuse():
    own = functools.partial(decoding.greedy_search, rules=[rules.TargetPrefix([[8]])])
    pieces = decoding.translate_stream(WordForWord(), "one two", ENGLISH, GERMAN, own)
    assert "".join(pieces) == "eins zwei"
    none = functools.partial(decoding.greedy_search, rules=[rules.ForbiddenTokens(range(9))])
    pieces = decoding.translate_stream(WordForWord(), "one two", ENGLISH, GERMAN, none)
    with pytest.raises(ValueError, match="^greedy_search: `rules` must leave each row a token"):
        list(pieces)
    two = functools.partial(decoding.greedy_search, rules=[rules.TargetPrefix([[4], [5]])])
    with pytest.raises(ValueError, match="^translate_stream: `search` must have rules with a row"):
        decoding.translate_stream(WordForWord(), "one two", ENGLISH, GERMAN, two)


@pytest.mark.parametrize(
    "search", [len, "greedy", None, functools.partial(decoding.sample, 3), lambda *a, **o: None]
)
def test_a_search_that_cannot_be_streamed_is_refused(search):
    sentence = "stream: `search` must be one of `greedy_search`, `sample`, `beam_search`, or a"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        decoding.stream(trigram, tables(0, 1, 5), 3, search, **IDS)


@pytest.mark.parametrize(
    "argument, value", [("max_length", 0), ("steps", 0), ("max_length", [3]), ("steps", None)]
)
def test_a_bad_argument_of_a_stream_is_refused_at_once(argument, value):
    with pytest.raises(ValueError, match=f"^stream: `{argument}` must be a positive integer"):
        decoding.stream(trigram, tables(0, 1, 5), **{"max_length": 3, argument: value}, **IDS)


@pytest.mark.parametrize(
    "argument, value, expected",
    [
        ("sentence", ["one"], "be a string"),
        ("model", object(), "have `encode` and `step`"),
        ("target_vocabulary", ["one"], "be a vocabulary"),
        ("search", "greedy", "be one of"),
        ("max_length", 0, "be a positive integer"),
    ],
)
def test_a_bad_argument_of_a_streamed_translation_is_refused_at_once(argument, value, expected):
    arguments = {
        "model": WordForWord(),
        "sentence": "one",
        "source_vocabulary": ENGLISH,
        "target_vocabulary": GERMAN,
        argument: value,
    }
    with pytest.raises(ValueError, match=f"^translate_stream: `{argument}` must {expected}"):
        tfattn.translate_stream(**arguments)


@pytest.mark.parametrize("name", ["end_id", "begin_id", "padding_id", "max_length", "batch_size"])
def test_an_option_that_a_stream_sets_itself_is_refused(name):
    search = functools.partial(decoding.greedy_search, **{name: 6})
    with pytest.raises(ValueError, match=f"^stream: `search` must have no option `{name}`, which"):
        decoding.stream(trigram, tables(0, 1, 5), 3, search)
    with pytest.raises(ValueError, match=f"^translate_stream: `search` must have no opt.*`{name}`"):
        decoding.translate_stream(WordForWord(), "one", ENGLISH, GERMAN, search)
    with pytest.raises(ValueError, match=f"^translate: `search` must have no option `{name}`, whi"):
        decoding.translate(WordForWord(), ["one"], ENGLISH, GERMAN, search)
