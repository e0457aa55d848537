"""Vocabularies of whole words: ids and back, and text that cannot forge a special id."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfattn.data import Vocabulary

ORDINARY = st.text("abcdé'.-<>", min_size=1, max_size=4)
SENTENCE = st.lists(ORDINARY, max_size=8).map(" ".join)


def test_vocabulary_has_special_ids_first():
    vocabulary = Vocabulary(["a"])
    special = (vocabulary.padding_id, vocabulary.unknown_id, vocabulary.begin_id, vocabulary.end_id)
    assert special == (0, 1, 2, 3)
    assert vocabulary.words == ("<pad>", "<unk>", "<bos>", "<eos>", "a")
    assert len(vocabulary) == 5


def test_vocabulary_sorts_words_by_count_then_alphabet():
    def words(*sentences, **options):
        return Vocabulary.from_sentences((each for each in sentences), **options).words[4:]

    assert words("d b b", "c a c", "é e") == ("b", "c", "a", "d", "e", "é")
    assert words("a a b", "b c", min_count=2) == ("a", "b")
    assert words("c c b b a", max_size=6) == ("b", "c")  # with the special ones


@settings(max_examples=30)
@given(st.lists(SENTENCE, min_size=1, max_size=6))
def test_vocabulary_decode_inverts_encode_on_known_words(sentences):
    vocabulary = Vocabulary.from_sentences(sentences)
    assert vocabulary.words == Vocabulary.from_sentences(sentences[::-1]).words
    for sentence in sentences:
        ids = vocabulary.encode(sentence)
        assert vocabulary.decode([vocabulary.begin_id, *ids, vocabulary.end_id, 0]) == sentence


def test_vocabulary_encodes_words_between_white_space_and_special_ones_as_unknown():
    text = " <eos> a\t<pad> b <bos> \n<unk>"
    vocabulary = Vocabulary.from_sentences([text, text])
    assert vocabulary.words[4:] == ("a", "b")
    assert vocabulary.encode(text) == [1, 4, 1, 5, 1, 1]
    assert vocabulary.encode("") == []


def test_vocabulary_decode_stops_at_end_and_drops_padding_and_begin():
    vocabulary = Vocabulary(["a", "b"])
    assert vocabulary.decode([2, 4, 0, 5, 3, 4, 4]) == "a b"
    assert vocabulary.decode([3, 4]) == vocabulary.decode([]) == ""
    assert vocabulary.decode(np.array([4, 1, 5], dtype=np.int64)) == "a <unk> b"
    for index in (-1, 6):
        with pytest.raises(ValueError, match=r"Vocabulary\.decode: `ids` must lie in \[0, 6\)"):
            vocabulary.decode([4, index])


def test_vocabulary_of_words_that_are_not_ordinary_is_refused(tmp_path):
    said = "Vocabulary: `words` must hold ordinary words only"
    for word in ("<eos>", "<pad>", "<unk>", "<bos>", "", "a b", " a"):
        with pytest.raises(ValueError, match=said):
            Vocabulary(["a", word])
    (tmp_path / "words").write_text('{"words": ["a", "<eos>"]}', encoding="utf-8")
    with pytest.raises(ValueError, match="`words` must hold ordinary words only"):
        Vocabulary.load(tmp_path / "words")
    with pytest.raises(ValueError, match=r"`words` must hold no word twice.*\['a'\]"):
        Vocabulary(["a", "b", "a"])
    with pytest.raises(ValueError, match="`max_size` must exceed 4"):
        Vocabulary.from_sentences(["a"], max_size=4)
