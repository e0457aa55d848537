"""Vocabularies of whole words: ids and back, and text that cannot forge a special id."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfattn.data import Vocabulary

ORDINARY = st.text("abcdé'.-<>", min_size=1, max_size=4)
SENTENCE = st.lists(ORDINARY, max_size=8).map(" ".join)


def test_special_ids_come_first():
    vocabulary = Vocabulary(["a"])
    special = (vocabulary.padding_id, vocabulary.unknown_id, vocabulary.begin_id, vocabulary.end_id)
    assert special == (0, 1, 2, 3)
    assert vocabulary.words == ("<pad>", "<unk>", "<bos>", "<eos>", "a")
    assert len(vocabulary) == 5


def test_words_stand_by_count_then_alphabet():
    vocabulary = Vocabulary.from_sentences(["d b b", "c a c", "é e"])
    assert vocabulary.words[4:] == ("b", "c", "a", "d", "e", "é")


@given(st.lists(SENTENCE, max_size=6))
def test_order_of_sentences_changes_no_id(sentences):
    forwards = Vocabulary.from_sentences(sentences)
    assert forwards.words == Vocabulary.from_sentences(sentences[::-1]).words


@given(st.lists(SENTENCE, min_size=1, max_size=6))
def test_decode_inverts_encode_on_known_words(sentences):
    vocabulary = Vocabulary.from_sentences(sentences)
    for sentence in sentences:
        ids = vocabulary.encode(sentence)
        assert vocabulary.decode([vocabulary.begin_id, *ids, vocabulary.end_id, 0]) == sentence


def test_sentences_may_be_a_generator():
    assert Vocabulary.from_sentences(word for word in ("b", "a")).words[4:] == ("a", "b")


def test_min_count_drops_rare_words():
    vocabulary = Vocabulary.from_sentences(["a a b", "b c"], min_count=2)
    assert vocabulary.words[4:] == ("a", "b")
    assert vocabulary.encode("a c") == [4, vocabulary.unknown_id]


def test_max_size_bounds_the_whole_vocabulary():
    vocabulary = Vocabulary.from_sentences(["c c b b a"], max_size=6)
    assert len(vocabulary) == 6
    assert vocabulary.words[4:] == ("b", "c")


def test_special_words_in_text_encode_as_unknown():
    text = "<eos> a <pad> <bos> <unk>"
    vocabulary = Vocabulary.from_sentences([text, text])
    assert vocabulary.words[4:] == ("a",)
    assert vocabulary.encode(text) == [1, 4, 1, 1, 1]


def test_encode_adds_no_begin_or_end_and_takes_any_white_space():
    vocabulary = Vocabulary(["a", "b"])
    assert vocabulary.encode("  a\tb \n") == [4, 5]
    assert vocabulary.encode("") == []


def test_decode_stops_at_end_and_drops_padding_and_begin():
    vocabulary = Vocabulary(["a", "b"])
    assert vocabulary.decode([2, 4, 0, 5, 3, 4, 4]) == "a b"
    assert vocabulary.decode([3, 4]) == ""
    assert vocabulary.decode([]) == ""


def test_decode_takes_arrays():
    assert Vocabulary(["a", "b"]).decode(np.array([4, 1, 5], dtype=np.int64)) == "a <unk> b"


@pytest.mark.parametrize("index", [-1, 6])
def test_decode_refuses_ids_outside_the_vocabulary(index):
    with pytest.raises(ValueError, match=r"Vocabulary\.decode: `ids` must lie in \[0, 6\)"):
        Vocabulary(["a", "b"]).decode([4, index])


def test_save_and_load_keep_every_id(tmp_path):
    path = tmp_path / "words.json"
    vocabulary = Vocabulary.from_sentences(['été " \\ <eos> œuf', "été 日本"])
    vocabulary.save(path)
    assert Vocabulary.load(path).words == vocabulary.words
    assert "été" in path.read_text(encoding="utf-8")


def test_load_refuses_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Vocabulary\.load: `path` must name an existing"):
        Vocabulary.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize("content", [b"a\nb\n", b"[1]", b'{"other": 1}', b'{"words": 3}', b"\xff"])
def test_load_refuses_a_file_of_another_kind(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="`path` must name a file that `Vocabulary.save` wrote"):
        Vocabulary.load(path)


def test_load_refuses_words_that_forge_special_ones(tmp_path):
    path = tmp_path / "words.json"
    path.write_text(json.dumps({"words": ["a", "<eos>"]}), encoding="utf-8")
    with pytest.raises(ValueError, match="`words` must hold ordinary words only"):
        Vocabulary.load(path)


@pytest.mark.parametrize("word", ["<pad>", "<unk>", "<bos>", "<eos>", "", "a b", " a"])
def test_words_must_be_ordinary(word):
    with pytest.raises(ValueError, match="Vocabulary: `words` must hold ordinary words only"):
        Vocabulary(["a", word])


def test_words_must_differ():
    with pytest.raises(ValueError, match=r"`words` must hold no word twice.*\['a'\]"):
        Vocabulary(["a", "b", "a"])


def test_a_single_string_is_no_collection_of_sentences():
    with pytest.raises(ValueError, match="`sentences` must be a collection of strings"):
        Vocabulary.from_sentences("a cat")
    with pytest.raises(ValueError, match="Vocabulary: `words` must be a collection of strings"):
        Vocabulary("abc")
    with pytest.raises(
        ValueError, match="Vocabulary: `words` must hold strings. Received: words=None"
    ):
        Vocabulary(["a", None])
    with pytest.raises(
        ValueError,
        match="Vocabulary.from_sentences: `sentences` must hold strings. Received: sentences=1",
    ):
        Vocabulary.from_sentences(["a", 1])


@pytest.mark.parametrize("min_count", [0, -1, 1.5])
def test_min_count_must_be_a_positive_integer(min_count):
    with pytest.raises(ValueError, match="`min_count` must be a positive integer"):
        Vocabulary.from_sentences(["a"], min_count=min_count)


def test_max_size_must_leave_room_for_words():
    with pytest.raises(ValueError, match="`max_size` must exceed 4"):
        Vocabulary.from_sentences(["a"], max_size=4)
    with pytest.raises(ValueError, match="`max_size` must be a positive integer"):
        Vocabulary.from_sentences(["a"], max_size=0)
