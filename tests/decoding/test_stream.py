"""Streaming: the tokens of a search, each as soon as it is final."""

import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.searches import (
    END,
    ENGLISH,
    GERMAN,
    IDS,
    WordForWord,
    eagerly,
    noting,
    reading,
    reading_state,
    recurrent,
    tables,
    tokens_of_best,
    transformer,
    trigram,
)
from tests.helpers.tensors import CALLS_A_TRACE, needs_compiling
from tfattn import data, decoding, rules
from tfattn.decoding import search as search_module
from tfattn.decoding.translate import _pieces

pytestmark = pytest.mark.usefixtures("dense_path")


@needs_compiling
@pytest.mark.slow
def test_stream_compiled_traces_nothing_new_and_keeps_what_is_no_tensor():
    search, calls = decoding.BeamSearch(num_beams=3), []
    step = noting(reading, calls)
    for number in range(3):
        table = tables(number, batch=1, size=7, scale=3.0)
        with eagerly():
            wanted = tokens_of_best(search(trigram, table, 1, 11, **IDS))
        state = reading_state(table, 11)
        assert list(search.stream(step, state, 11, steps=number + 1, **IDS)) == wanted
    # The beginning and the continuation.
    assert len(calls) == 2 * CALLS_A_TRACE


@eagerly()
def test_stream_gives_a_token_before_the_next_is_computed(monkeypatch):
    # 4, 5, 6, … and at each step one token more is final.
    def step(tokens, position, state):
        return ops.one_hot(ops.take(tokens, position, axis=1) + 1, 23), state

    original, calls = search_module.compiled, []

    def compiled(*arguments):
        run = original(*arguments)
        return lambda *tensors: calls.append(1) or run(*tensors)

    monkeypatch.setattr(search_module, "compiled", compiled)
    found = decoding.GreedySearch().stream(step, (), 11, begin_id=3, end_id=22, steps=1)
    for number, token in enumerate(found):
        assert token == 4 + number and len(calls) == number + 1
    assert number == 10


@pytest.mark.slow
@eagerly()
def test_stream_of_beams_gives_what_all_of_them_begin_with(monkeypatch):
    # 3 is sure; then 4 or 5 are as likely, and 6 decides late.
    table = np.full((1, 11, 7, 7, 7), -np.inf, "float32")
    table[0, 0, :, :, 3] = 0.0
    table[0, 1, :, :, [4, 5]] = np.log(0.5)
    for position in range(2, 6):
        table[0, position, :, 4, 4] = table[0, position, :, 5, 5] = 0.0
    table[0, 6, :, 4, END], table[0, 6, :, 5, [END, 6]] = 0.0, np.log(0.5)
    table[0, 7:, :, :, END] = 0.0
    original, looks = decoding.Search._final_prefix, []

    def look(*arguments):
        looks.append(original(*arguments))
        return looks[-1]

    monkeypatch.setattr(decoding.Search, "_final_prefix", look)
    search = decoding.BeamSearch(num_beams=2, length_penalty=0.0)
    assert list(search.stream(trigram, table, 11, steps=1, **IDS)) == [
        *[3, 4, 4, 4, 4, 4],
        END,
    ]
    lengths = [len(found) for _, found in looks]
    assert lengths[:6] == [1] * 6 and lengths[-1] == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, search",
    [
        (transformer, decoding.BeamSearch(num_beams=3)),
        (recurrent, decoding.Sampling(seed=3, temperature=1.5, top_p=0.9)),
    ],
    ids=["transformer", "recurrent"],
)
@eagerly()
def test_translate_stream_gives_the_pieces_of_what_translate_gives(model, search):
    """With the limit of a sentence, and with the caller's."""
    model, arguments = model(), (ENGLISH, GERMAN, search)
    for sentence, max_length in (("", None), ("three one five", None), ("two four", 3)):
        (wanted,) = decoding.translate(model, [sentence], *arguments, max_length=max_length)
        pieces = decoding.translate_stream(model, sentence, *arguments, max_length)
        assert "".join(pieces) == wanted


@eagerly()
def test_translate_stream_gives_words_with_their_spaces():
    pieces = decoding.translate_stream(WordForWord(), "one two three", ENGLISH, GERMAN)
    assert list(pieces) == ["eins", " zwei", " drei"]


def test_translate_stream_gives_no_half_characters():
    class Bytes:
        begin_id, end_id, padding_id = 2, 3, 0

        def decode(self, ids):
            return bytes(int(i) for i in ids if i > 3).decode("utf-8", errors="replace")

    pieces = list(_pieces(iter([*"a猫b".encode(), 3]), Bytes()))
    assert pieces == ["a", "猫", "b"]
    cut = list(_pieces(iter([*"a猫".encode()[:-1], 3]), Bytes()))
    assert "".join(cut) == "a\N{REPLACEMENT CHARACTER}"


def test_translate_stream_holds_back_what_later_subwords_may_change(tmp_path):
    pytest.importorskip("sentencepiece")
    data.SubwordVocabulary.from_sentences(["a b"], size=9).save(tmp_path / "spm")
    pieces = (tmp_path / "spm").read_bytes()
    words = ["<pad>", "</s>", "<unk>", "▁i", "▁'", "v", "e", "▁seen", "▁.", "<bos>"]
    vocabulary = data.MarianVocabulary(pieces, words, 2, 9, 1, clean_up=True)
    ids = [3, 4, 5, 6, 7, 8, 1]
    found = list(_pieces(iter(ids), vocabulary))
    assert "".join(found) == vocabulary.decode(ids) == "i've seen." and len(found) > 2


class Joined:
    """A tokenizer with a custom way of joining words."""

    def __init__(self, join):
        self.join = join

    def __call__(self, sentence):
        return sentence.split()


def pieces_of(words, join):
    vocabulary = tfattn.data.Vocabulary(sorted(set(words)), Joined(join))
    ids = vocabulary.encode(" ".join(words))
    assert len(ids) == len(words)
    return list(_pieces(iter([*ids, vocabulary.end_id]), vocabulary))


def test_translate_stream_joins_words_as_the_tokenizer_does():
    found = pieces_of(
        ["wal@@", "king", "home", "n@@", "o@@", "w"], lambda w: " ".join(w).replace("@@ ", "")
    )
    assert found == ["wal", "king", " home", " n", "o", "w"]
    assert pieces_of(["我", "喜欢", "猫"], "".join) == ["我", "喜欢", "猫"]
    # The last part is unchanged, as in `translate`.
    assert "".join(pieces_of(["a", "wal@@"], lambda w: " ".join(w).replace("@@ ", ""))) == "a wal@@"


def test_translate_stream_refuses_a_tokenizer_that_changes_given_text():
    message = "^translate_stream: `target_vocabulary` must keep the text .* Received: .*'c b a a'"
    with pytest.raises(ValueError, match=message):
        pieces_of(["a", "a", "b", "c"], lambda w: " ".join(w[::-1]) if w[3:] else "a b")


@eagerly()
def test_translate_stream_applies_rules_and_refuses_those_that_leave_nothing():
    own = decoding.GreedySearch(rules=[rules.TargetPrefix([[8]])])
    pieces = decoding.translate_stream(WordForWord(), "one two", ENGLISH, GERMAN, own)
    assert "".join(pieces) == "eins zwei"
    none = decoding.GreedySearch(rules=[rules.ForbiddenTokens(range(9))])
    pieces = decoding.translate_stream(WordForWord(), "one two", ENGLISH, GERMAN, none)
    with pytest.raises(ValueError, match="^GreedySearch: `rules` must leave each row a token"):
        list(pieces)


def test_stream_of_what_cannot_be_streamed_is_refused_at_once():
    for name, max_length, steps in (("max_length", [3, 3], 1), ("steps", 3, 0)):
        with pytest.raises(ValueError, match=f"^GreedySearch: `{name}` must be a positive integer"):
            decoding.GreedySearch().stream(trigram, tables(0, 1, 5), max_length, steps=steps, **IDS)
    for search in (len, decoding.GreedySearch):
        said = r"`search` must be a search, such as `GreedySearch\(\)`"
        with pytest.raises(ValueError, match=f"^translate_stream: {said}"):
            decoding.translate_stream(WordForWord(), "one", ENGLISH, GERMAN, search)
        with pytest.raises(ValueError, match=f"^translate: {said}"):
            decoding.translate(WordForWord(), ["one"], ENGLISH, GERMAN, search)
