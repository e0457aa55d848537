"""Vocabularies of whole words: ids and back, and text that cannot forge a special id."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfattn.data import Characters, Vocabulary, load_vocabulary

ORDINARY = st.text("abcdé'.-<>", min_size=1, max_size=4)
SENTENCE = st.lists(ORDINARY, max_size=8).map(" ".join)


def test_special_ids_come_first():
    vocabulary = Vocabulary(["a"])
    special = (vocabulary.padding_id, vocabulary.unknown_id, vocabulary.begin_id, vocabulary.end_id)
    assert special == (0, 1, 2, 3)
    assert vocabulary.words == ("<pad>", "<unk>", "<bos>", "<eos>", "a")
    assert len(vocabulary) == 5


def test_words_stand_by_count_then_alphabet_without_rare_ones():
    def words(*sentences, **options):
        return Vocabulary.from_sentences((each for each in sentences), **options).words[4:]

    assert words("d b b", "c a c", "é e") == ("b", "c", "a", "d", "e", "é")
    assert words("a a b", "b c", min_count=2) == ("a", "b")
    assert words("c c b b a", max_size=6) == ("b", "c")  # with the special ones


@settings(max_examples=30)
@given(st.lists(SENTENCE, min_size=1, max_size=6))
def test_decode_inverts_encode_on_known_words_whatever_the_order_of_sentences(sentences):
    vocabulary = Vocabulary.from_sentences(sentences)
    assert vocabulary.words == Vocabulary.from_sentences(sentences[::-1]).words
    for sentence in sentences:
        ids = vocabulary.encode(sentence)
        assert vocabulary.decode([vocabulary.begin_id, *ids, vocabulary.end_id, 0]) == sentence


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
    assert vocabulary.decode([3, 4]) == vocabulary.decode([]) == ""
    assert vocabulary.decode(np.array([4, 1, 5], dtype=np.int64)) == "a <unk> b"
    for index in (-1, 6):
        with pytest.raises(ValueError, match=r"Vocabulary\.decode: `ids` must lie in \[0, 6\)"):
            vocabulary.decode([4, index])


def test_save_and_load_keep_every_id(tmp_path):
    path = tmp_path / "words.json"
    vocabulary = Vocabulary.from_sentences(['été " \\ <eos> œuf', "été 日本"])
    vocabulary.save(path)
    assert Vocabulary.load(path).words == vocabulary.words
    assert "été" in path.read_text(encoding="utf-8")


COMPOSED, DECOMPOSED = "caf\u00e9 \uff21", "cafe\u0301 \uff21"  # the last letter is full-width


@pytest.mark.parametrize("tokenizer", [None, Characters()])
@pytest.mark.parametrize(
    "form, same, text",
    [("NFC", True, COMPOSED), ("NFKC", True, "caf\u00e9 A"), (None, False, DECOMPOSED)],
)
def test_forms_of_unicode_are_the_same_with_a_normalization(tmp_path, form, same, text, tokenizer):
    texts = [COMPOSED, DECOMPOSED]
    options = {"tokenizer": tokenizer, "normalization": form}
    vocabulary = Vocabulary.from_sentences(texts, **options)
    vocabulary.save(tmp_path / "words")
    for read in (Vocabulary.load, load_vocabulary):
        for each in (vocabulary, read(tmp_path / "words")):
            assert each.normalization == form
            ids, others = map(each.encode, texts)
            assert (ids == others) == same and each.decode(others) == text
            assert each.unknown_id not in ids


def test_words_must_have_the_form_of_the_normalization():
    with pytest.raises(ValueError, match="`words` must hold ordinary words only, in NFC"):
        Vocabulary(["cafe\u0301"], normalization="NFC")
    for make in (Vocabulary, Vocabulary.from_sentences):
        with pytest.raises(ValueError, match='`normalization` must be "NFC", "NFKC" or None'):
            make(["a"], normalization="NFD")


@pytest.mark.parametrize(
    "content, said",
    [
        (b"a\nb\n", "`path` must name a file that `Vocabulary.save` wrote"),
        (b"[1]", "`path` must name a file that `Vocabulary.save` wrote"),
        (b'{"other": 1}', "`path` must name a file that `Vocabulary.save` wrote"),
        (b'{"words": 3}', "`path` must name a file that `Vocabulary.save` wrote"),
        (b"\xff", "`path` must name a file that `Vocabulary.save` wrote"),
        (b'{"words": ["a", "<eos>"]}', "`words` must hold ordinary words only"),
        (None, r"Vocabulary\.load: `path` must name an existing"),
    ],
)
def test_load_refuses_files_of_other_formats(tmp_path, content, said):
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        Vocabulary.load(path)


@pytest.mark.parametrize("word", ["<eos>", "<pad>", "<unk>", "<bos>", "", "a b", " a"])
def test_words_must_be_ordinary(word):
    with pytest.raises(ValueError, match="Vocabulary: `words` must hold ordinary words only"):
        Vocabulary(["a", word])


def test_words_must_differ_and_have_room():
    with pytest.raises(ValueError, match=r"`words` must hold no word twice.*\['a'\]"):
        Vocabulary(["a", "b", "a"])
    with pytest.raises(ValueError, match="`max_size` must exceed 4"):
        Vocabulary.from_sentences(["a"], max_size=4)
