"""Vocabularies of parts of words: text in, text out, and the same interface as whole words."""

import copy
import inspect
import itertools
import pickle
import re
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.helpers.batching import SPECIAL_IDS, learned_by_sentencepiece
from tfattn.data import (
    SubwordDropout,
    SubwordVocabulary,
    Vocabulary,
    load_vocabulary,
    toy_translation,
)

PAIRS = toy_translation(300, seed=2)
SENTENCES = list(itertools.chain.from_iterable(PAIRS))
TOY = SubwordVocabulary.from_sentences(SENTENCES, size=200)
ORDINARY = st.text("abcdé'.-<>&;3", min_size=1, max_size=6)
SENTENCE = st.lists(ORDINARY, max_size=8).map(" ".join)


def test_subwords_have_the_interface_of_whole_words():
    for name in ("encode", "decode", "save", "load", "__len__"):
        whole, parts = (
            inspect.signature(getattr(kind, name)) for kind in (Vocabulary, SubwordVocabulary)
        )
        assert list(parts.parameters) == list(whole.parameters)
    public = {name for name in dir(Vocabulary) if not name.startswith("_")}
    assert {name for name in dir(SubwordVocabulary) if not name.startswith("_")} == public
    for name in ("padding_id", "unknown_id", "begin_id", "end_id"):
        assert getattr(TOY, name) == getattr(Vocabulary, name)
    assert TOY.words[:4] == Vocabulary([]).words


def test_subwords_keep_frequent_words_whole_and_split_new_ones():
    ids = TOY.encode("the white horses")
    assert len(TOY.words) == len(set(TOY.words)) == len(TOY) == 200
    assert "".join(TOY.words[index] for index in ids) == "▁the▁white▁horses"
    sentences = ["the lowest", "the slow slowly low"] * 3
    vocabulary = SubwordVocabulary.from_sentences(sentences, size=60)
    assert [vocabulary.words[index] for index in vocabulary.encode("the")] == ["▁the"]
    assert len(vocabulary.encode("slowest")) > 1
    assert vocabulary.unknown_id not in vocabulary.encode("slowest")
    # Also of the shortest sentences.
    assert SubwordVocabulary.from_sentences(["a", "b"], 9).words[4:] == ("▁a", "▁b", "▁", "a", "b")


def test_subwords_are_bounded_by_white_space_alone():
    for word in ("&apos;s", "t-shirt", "2nd", "1998", "aж"):
        vocabulary = SubwordVocabulary.from_sentences([word, f"a {word}"] * 5, size=100)
        assert [vocabulary.words[index] for index in vocabulary.encode(word)] == [f"▁{word}"]


@settings(deadline=None, max_examples=15)
@given(st.lists(SENTENCE, min_size=1, max_size=5).filter(any))
def test_subwords_decode_inverts_encode_on_what_was_learned(sentences):
    vocabulary = SubwordVocabulary.from_sentences([*sentences, "< > p a d u n k b o s e"], size=60)
    for sentence in sentences:
        ids = vocabulary.encode(sentence)
        assert vocabulary.decode([vocabulary.begin_id, *ids, vocabulary.end_id, 0, 5]) == sentence


RARE = "".join(map(chr, range(0x4E00, 0x4E00 + 200)))


@pytest.mark.parametrize(
    "sentences, size",
    [
        (SENTENCES, 60),
        (SENTENCES, 10_000),
        (["ﬁn ﬀ Å Å A\u030a Ａ ½ … \u200bx é e\u0301 ß İ"], 80),  # nothing is normalized
        ([*SENTENCES, RARE], 400),  # every character has an id
        (["a b"] * 5 + ["a b " * 3000 + "q"], 20),
    ],
    ids=["few", "many", "other letters", "rare characters", "a long sentence"],
)
def test_subwords_of_every_size_restore_training_sentences(sentences, size):
    vocabulary = SubwordVocabulary.from_sentences((each for each in sentences), size)
    for sentence in sentences:
        assert vocabulary.decode(vocabulary.encode(sentence)) == " ".join(sentence.split())
    assert len(vocabulary) <= size


def test_subwords_read_any_white_space_as_one_space():
    assert TOY.encode("  the\thorse\u3000\n\u00a0sings ") == TOY.encode("the horse sings")
    assert TOY.decode(TOY.encode(" the \t horse ")) == "the horse"
    assert SubwordVocabulary.from_sentences(["a\tb\u2003a"], 30).words == (
        SubwordVocabulary.from_sentences(["a b a"], 30).words
    )
    assert TOY.encode("") == TOY.encode(" \n") == [] and TOY.decode([]) == ""


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(), max_size=30))
@example("<pad> <unk> <bos> <eos> <s> </s> <eos>a a<eos><eos>")
def test_subwords_of_any_text_reach_no_special_id(text):
    ids = TOY.encode(text)
    assert all(isinstance(index, int) and 0 <= index < len(TOY) for index in ids)
    assert not {TOY.padding_id, TOY.begin_id, TOY.end_id} & set(ids)
    assert isinstance(TOY.decode(ids), str)


def test_subwords_of_unknown_characters_read_unk():
    ids = TOY.encode("the 日本 horse")
    assert ids.count(TOY.unknown_id) == 1
    assert TOY.decode(ids) == "the <unk> horse"
    assert TOY.decode(TOY.encode("日horse")) == "<unk>horse"
    vocabulary = SubwordVocabulary.from_sentences(["a▁b ▅ c ? \udc80"], size=30)
    assert vocabulary.encode("a \udc80") == vocabulary.encode("a ?")  # half a character
    assert vocabulary.encode("a\0b") == vocabulary.encode("a b")
    # What sentencepiece keeps for itself.
    assert vocabulary.decode(vocabulary.encode("a▁b ▅ c")) == "a_b _ c"


@pytest.mark.parametrize("sentence", ["<pad> x", "a<unk><bos>, <eos>b", "<eos>"])
def test_subwords_learn_nothing_from_special_words(sentence):
    vocabulary = SubwordVocabulary.from_sentences([sentence] * 5, size=60)
    for text in (sentence, " ".join("".join(sentence.split())), sentence[::-1]):
        assert vocabulary.decode(vocabulary.encode(text)) == text
        assert not set(vocabulary.encode(text)) & {0, 1, 2, 3}
    assert vocabulary.words[:4] == Vocabulary([]).words
    assert all(len(word.strip("▁")) < 2 for word in vocabulary.words[4:])


def test_subwords_decode_stops_at_end_and_drops_padding_and_begin():
    first, second, space = TOY.encode("the horse"), TOY.encode("sings"), TOY.words.index("▁")
    assert TOY.decode([2, *first, 0, *second, 3, *first]) == "the horse sings"
    assert TOY.decode([3, *first]) == ""
    assert TOY.decode([space, space, *first, space, space, *second, space]) == "the horse sings"
    assert TOY.decode(np.array(first, dtype=np.int32)) == "the horse"
    for index in (-1, 200):
        said = r"SubwordVocabulary\.decode: `ids` must lie in \[0, 200\)"
        with pytest.raises(ValueError, match=said):
            TOY.decode([4, index])


SYMBOLS = ("<2fr>", "x<2", "<2>", "@", "<a,b>")
LEARNED = ["low lower <2fr> lowest <2fr>new", "<2fr> newest a<2fr>b , <2f fr> x < > 2 é"] * 3
WITH_SYMBOLS = SubwordVocabulary.from_sentences(LEARNED, 70, symbols=SYMBOLS)
DROPOUTS = [SubwordDropout(WITH_SYMBOLS, rate) for rate in (0.0, 0.9)]
NEAR_SYMBOLS = st.lists(
    st.sampled_from([*SYMBOLS, *"lowernsté<2fr>x,", "<2", "fr>", " ", "  ", "e\u0301"]), max_size=30
)


@settings(deadline=None, max_examples=50)
@given(parts=NEAR_SYMBOLS, seed=st.integers(0, 99))
def test_symbols_are_single_ids_anywhere_also_with_dropout(parts, seed):
    vocabulary, sentence = WITH_SYMBOLS, "".join(parts)
    never, often = DROPOUTS
    pieces = re.split("(<2fr>|x<2|<2>|@|<a,b>)", sentence)  # as they come from left to right
    plain = vocabulary.encode(sentence)
    (drawn,) = often.draw([sentence], seed)
    for ids in (plain, drawn):
        assert [vocabulary.words[i] for i in ids if 4 <= i < 9] == pieces[1::2]
        if vocabulary.unknown_id not in ids:
            assert vocabulary.decode(ids) == " ".join("".join(pieces).split())
    assert never.draw([sentence], seed) == [plain]


def test_symbols_have_the_first_ids_and_are_in_the_file(tmp_path):
    vocabulary = WITH_SYMBOLS
    assert vocabulary.words[4:9] == vocabulary.symbols == SYMBOLS and TOY.symbols == ()
    assert not any(symbol in word for symbol in SYMBOLS for word in vocabulary.words[9:])
    vocabulary.save(tmp_path / "subwords")
    for again in (load_vocabulary(tmp_path / "subwords"), copy.deepcopy(vocabulary)):
        assert (again.words, again.symbols) == (vocabulary.words, SYMBOLS)
        assert again.encode("a<2fr>b") == vocabulary.encode("a<2fr>b")
    few = SubwordVocabulary.from_sentences(["ab <2fr>"], 8, symbols=["<2fr>"])
    assert sorted(few.words[4:]) == ["<2fr>", "a", "b", "▁"]


def test_symbols_that_begin_alike_are_read_longest_first():
    symbols = ["<a", "<a>"]
    vocabulary = SubwordVocabulary.from_sentences(["b > <"], 20, symbols=symbols)
    sentence = "<a><a b<a>"
    (drawn,) = SubwordDropout(vocabulary, 0.0).draw([sentence], seed=0)
    assert drawn == vocabulary.encode(sentence)
    assert [vocabulary.words[i] for i in drawn] == ["▁", "<a>", "<a", "▁b", "<a>"]


def test_vocabularies_in_copies_and_files_keep_every_id(tmp_path):
    TOY.save(tmp_path / "subwords.model")
    assert [path.name for path in tmp_path.iterdir()] == ["subwords.model"]
    for again in (
        copy.deepcopy(TOY),
        pickle.loads(pickle.dumps(TOY)),
        SubwordVocabulary.load(tmp_path / "subwords.model"),
        load_vocabulary(tmp_path / "subwords.model"),
    ):
        assert isinstance(again, SubwordVocabulary) and again.words == TOY.words
        assert [*map(again.encode, SENTENCES)] == [*map(TOY.encode, SENTENCES)]
    vocabulary = Vocabulary.from_sentences([*SENTENCES, 'été " \\ <eos> 日本'])
    vocabulary.save(tmp_path / "words.json")
    assert "été" in (tmp_path / "words.json").read_text(encoding="utf-8")
    loaded = load_vocabulary(tmp_path / "words.json")
    assert isinstance(loaded, Vocabulary) and loaded.words == vocabulary.words
    for kind, name in ((SubwordVocabulary, "words.json"), (Vocabulary, "subwords.model")):
        said = f"`path` must name a file that `{kind.__name__}.save` wrote"
        with pytest.raises(ValueError, match=said):
            kind.load(tmp_path / name)


def words_file(path):
    TOY.save(path)
    return path.read_bytes()


CONTENTS = {
    "empty": lambda path: b"",
    "lines": lambda path: b"a\nb\n",
    "list": lambda path: b"[1]",
    "other": lambda path: b'{"other": 1}',
    "no list": lambda path: b'{"words": 3}',
    "no text": lambda path: b"\xff",
    "zeros": lambda path: b"\0" * 50,
    "cut": lambda path: words_file(path)[:-20],
    "ids of its own": lambda path: learned_by_sentencepiece(SENTENCES),
}


@pytest.mark.parametrize(
    "load, who",
    [
        (load_vocabulary, "load_vocabulary"),
        (SubwordVocabulary.load, "SubwordVocabulary.load"),
        (Vocabulary.load, "Vocabulary.load"),
    ],
)
def test_vocabularies_load_refuses_a_file_of_another_kind(tmp_path, load, who):
    with pytest.raises(FileNotFoundError, match=f"{who}: `path` must name an existing file"):
        load(tmp_path / "nowhere")
    for name, content in CONTENTS.items():
        path = tmp_path / name
        path.write_bytes(content(path))
        with pytest.raises(ValueError, match=f"{who}: `path` must name a file that .*save` wrote"):
            load(path)


SYMBOLS_SAID = "`symbols` must hold distinct words without white"
REFUSED = [
    (["ab c", "b a"], 7, {}, "`size` must suffice .*Received: size=7"),
    (["ab <2fr>"], 7, {"symbols": ["<2fr>"]}, "`size` must suffice"),
    *((sentences, 50, {}, "`sentences` must suffice") for sentences in ([], [" ", "\n"], ["\0"])),
    *(
        (["a"], 9, {"symbols": ["<2fr>", symbol]}, SYMBOLS_SAID)
        for symbol in ("", "a b", "a▁", "\0", "<eos>", "<2fr>")
    ),
]


def test_subwords_refuse_what_they_cannot_learn_from():
    for sentences, size, options, said in REFUSED:
        with pytest.raises(ValueError, match=rf"SubwordVocabulary\.from_sentences: {said}"):
            SubwordVocabulary.from_sentences(sentences, size=size, **options)
    least = SubwordVocabulary.from_sentences(["ab c", "b a"], size=8)
    assert sorted(least.words[4:]) == ["a", "b", "c", "▁"]


def test_subwords_print_nothing(tmp_path, capfd):
    vocabulary = SubwordVocabulary.from_sentences(SENTENCES, size=10_000)
    vocabulary.save(tmp_path / "subwords.model")
    SubwordVocabulary.load(tmp_path / "subwords.model").encode("日本 <eos>")
    (tmp_path / "other").write_bytes(b"text")
    with pytest.raises(ValueError, match="must name a file"):
        SubwordVocabulary.load(tmp_path / "other")
    assert capfd.readouterr() == ("", "")


def test_subwords_of_a_foreign_model_need_its_special_ids():
    vocabulary = SubwordVocabulary(learned_by_sentencepiece(SENTENCES, **SPECIAL_IDS))
    assert vocabulary.decode(vocabulary.encode(SENTENCES[0])) == SENTENCES[0]
    options = {"model_type": "unigram", "byte_fallback": True, "control_symbols": ["<c>"]}
    options = {**options, "user_defined_symbols": ["<2fr>"], "vocab_size": 400}
    learned = learned_by_sentencepiece(SENTENCES, **SPECIAL_IDS, **options)
    assert SubwordVocabulary(learned).symbols == ("<2fr>",)  # those of the user alone
    options = {**SPECIAL_IDS, "eos_id": -1, "user_defined_symbols": "<eos>"}
    forged = learned_by_sentencepiece(SENTENCES, **options)
    said = "SubwordVocabulary: `model` must be a sentencepiece model whose padding"
    with pytest.raises(ValueError, match=said):
        SubwordVocabulary(forged)


def test_subwords_without_sentencepiece_name_what_installs_it(tmp_path, monkeypatch):
    TOY.save(tmp_path / "subwords.model")
    Vocabulary(["a"]).save(tmp_path / "words.json")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    said = r'SubwordVocabulary needs sentencepiece: pip install "tfattn\[text\]"'
    with pytest.raises(ImportError, match=said):
        SubwordVocabulary.from_sentences(["a"], 10)
    with pytest.raises(ImportError, match=said):
        load_vocabulary(tmp_path / "subwords.model")
    assert load_vocabulary(tmp_path / "words.json").words[4:] == ("a",)
