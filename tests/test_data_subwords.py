"""Vocabularies of parts of words: text in, text out, and the same interface as whole words."""

import copy
import inspect
import io
import itertools
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfattn.data import (
    SubwordVocabulary,
    Vocabulary,
    load_vocabulary,
    token_batches,
    toy_translation,
)

PAIRS = toy_translation(300, seed=2)
SENTENCES = list(itertools.chain.from_iterable(PAIRS))
TOY = SubwordVocabulary.from_sentences(SENTENCES, size=200)
ORDINARY = st.text("abcdé'.-<>&;3", min_size=1, max_size=6)
SENTENCE = st.lists(ORDINARY, max_size=8).map(" ".join)


def other_model(**options):
    """A model of sentencepiece with ids of its own choice."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=150, **options
    )
    return model.getvalue()


def test_it_has_all_that_whole_words_have_but_its_own_way_to_be_made():
    for name in ("encode", "decode", "save", "load", "__len__"):
        whole, parts = getattr(Vocabulary, name), getattr(SubwordVocabulary, name)
        assert list(inspect.signature(parts).parameters) == list(
            inspect.signature(whole).parameters
        )
    public = {name for name in dir(Vocabulary) if not name.startswith("_")}
    assert {name for name in dir(SubwordVocabulary) if not name.startswith("_")} == public


def test_special_ids_are_those_of_whole_words():
    for name in ("padding_id", "unknown_id", "begin_id", "end_id"):
        assert getattr(TOY, name) == getattr(Vocabulary, name)
    assert TOY.words[:4] == Vocabulary([]).words


def test_words_are_how_each_id_is_written():
    ids = TOY.encode("the white horses")
    assert len(TOY.words) == len(set(TOY.words)) == len(TOY)
    assert "".join(TOY.words[index] for index in ids) == "▁the▁white▁horses"


def test_frequent_words_are_whole_and_new_words_are_made_of_parts():
    vocabulary = SubwordVocabulary.from_sentences(
        ["the lowest", "the slow slowly low"] * 3, size=60
    )
    assert [vocabulary.words[index] for index in vocabulary.encode("the")] == ["▁the"]
    assert len(vocabulary.encode("slowest")) > 1
    assert vocabulary.unknown_id not in vocabulary.encode("slowest")


@pytest.mark.parametrize("word", ["&apos;s", "t-shirt", "2nd", "1998", "aж"])
def test_white_space_alone_bounds_a_part(word):
    vocabulary = SubwordVocabulary.from_sentences([word, f"a {word}"] * 5, size=100)
    assert [vocabulary.words[index] for index in vocabulary.encode(word)] == [f"▁{word}"]


@settings(deadline=None, max_examples=40)
@given(st.lists(SENTENCE, min_size=1, max_size=5).filter(any))
def test_decode_inverts_encode_on_what_was_learnt(sentences):
    vocabulary = SubwordVocabulary.from_sentences([*sentences, "< > p a d u n k b o s e"], size=60)
    for sentence in sentences:
        ids = vocabulary.encode(sentence)
        assert vocabulary.decode([vocabulary.begin_id, *ids, vocabulary.end_id, 0, 5]) == sentence


@pytest.mark.parametrize("size", [60, 200, 10_000])
def test_the_toy_corpus_comes_back_at_every_size(size):
    vocabulary = SubwordVocabulary.from_sentences(SENTENCES, size)
    assert [vocabulary.decode(vocabulary.encode(sentence)) for sentence in SENTENCES] == SENTENCES


def test_text_is_not_normalised():
    sentence = "ﬁn ﬀ Å Å A\u030a Ａ ½ … \u200bx é e\u0301 ß İ"
    vocabulary = SubwordVocabulary.from_sentences([sentence], size=80)
    assert vocabulary.decode(vocabulary.encode(sentence)) == sentence


def test_any_white_space_reads_as_one_space():
    assert TOY.encode("  the\thorse\u3000\n\u00a0sings ") == TOY.encode("the horse sings")
    assert TOY.decode(TOY.encode(" the \t horse ")) == "the horse"
    assert SubwordVocabulary.from_sentences(["a\tb\u2003a"], 30).words == (
        SubwordVocabulary.from_sentences(["a b a"], 30).words
    )


def test_nothing_encodes_to_nothing():
    assert TOY.encode("") == TOY.encode(" \n") == []
    assert TOY.decode([]) == ""


@settings(deadline=None)
@given(st.text(st.characters(), max_size=30))
def test_no_text_crashes_or_reaches_a_special_id(text):
    ids = TOY.encode(text)
    assert all(isinstance(index, int) and 0 <= index < len(TOY) for index in ids)
    assert not {TOY.padding_id, TOY.begin_id, TOY.end_id} & set(ids)
    assert isinstance(TOY.decode(ids), str)


def test_unknown_characters_read_unk():
    ids = TOY.encode("the 日本 horse")
    assert ids.count(TOY.unknown_id) == 1
    assert TOY.decode(ids) == "the <unk> horse"
    assert TOY.decode(TOY.encode("日horse")) == "<unk>horse"


def test_half_a_character_is_a_question_mark():
    vocabulary = SubwordVocabulary.from_sentences(["a ? \udc80"], size=20)
    assert vocabulary.encode("a \udc80") == vocabulary.encode("a ?")


def test_block_characters_of_sentencepiece_are_read_as_low_lines():
    vocabulary = SubwordVocabulary.from_sentences(["a▁b ▅ c"], size=30)
    assert vocabulary.decode(vocabulary.encode("a▁b ▅ c")) == "a_b _ c"


def test_text_cannot_forge_special_ids():
    forged = "<pad> <unk> <bos> <eos> <s> </s> <eos>a a<eos><eos>"
    vocabulary = SubwordVocabulary.from_sentences(
        [forged] * 50 + ["< > / p a d u n k b o s e"], size=100
    )
    assert vocabulary.words[:4] == Vocabulary([]).words
    assert not set(vocabulary.encode(forged)) & {0, 1, 2, 3}
    assert vocabulary.decode(vocabulary.encode(forged)) == forged
    assert not set(TOY.encode(forged)) & {0, 2, 3}


def test_decode_stops_at_end_and_drops_padding_and_begin():
    first, second = TOY.encode("the horse"), TOY.encode("sings")
    assert TOY.decode([2, *first, 0, *second, 3, *first]) == "the horse sings"
    assert TOY.decode([3, *first]) == ""


def test_decode_makes_single_spaces_of_whatever_a_model_says():
    space = TOY.words.index("▁")
    assert (
        TOY.decode([space, space, *TOY.encode("horse"), space, space, *TOY.encode("sings"), space])
        == "horse sings"
    )


def test_decode_takes_arrays():
    assert TOY.decode(np.array(TOY.encode("the horse"), dtype=np.int32)) == "the horse"


@pytest.mark.parametrize("index", [-1, 200])
def test_decode_refuses_ids_outside_the_vocabulary(index):
    with pytest.raises(
        ValueError, match=r"SubwordVocabulary\.decode: `ids` must lie in \[0, 200\)"
    ):
        TOY.decode([4, index])


def test_sentences_may_be_any_iterable():
    vocabulary = SubwordVocabulary.from_sentences(
        (sentence for pair in PAIRS for sentence in pair), size=200
    )
    assert vocabulary.words == TOY.words


def test_a_long_sentence_is_learnt_from():
    vocabulary = SubwordVocabulary.from_sentences(["a b"] * 5 + ["a b " * 3000 + "q"], size=20)
    assert vocabulary.decode(vocabulary.encode("q")) == "q"


def test_every_character_gets_an_id():
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 200)))
    vocabulary = SubwordVocabulary.from_sentences([*SENTENCES, rare], size=400)
    assert vocabulary.decode(vocabulary.encode(rare)) == rare


def test_size_bounds_the_whole_vocabulary():
    assert len(TOY) == 200
    small = SubwordVocabulary.from_sentences(["a dog", "ein Hund"], size=10_000)
    assert 20 < len(small) < 60


def test_a_size_without_room_for_the_characters_is_refused_with_the_least_one():
    match = r"SubwordVocabulary\.from_sentences: `size` must be at least 8, .*Received: size=7"
    with pytest.raises(ValueError, match=match):
        SubwordVocabulary.from_sentences(["ab c", "b a"], size=7)
    assert sorted(SubwordVocabulary.from_sentences(["ab c", "b a"], size=8).words[4:]) == [
        "a",
        "b",
        "c",
        "▁",
    ]


@pytest.mark.parametrize("size", [0, -1, 2.5, "100", True])
def test_size_must_be_a_positive_integer(size):
    with pytest.raises(ValueError, match="`size` must be a positive integer"):
        SubwordVocabulary.from_sentences(["a"], size)


@pytest.mark.parametrize("sentences", [[], [""], [" ", "\n"], ["\0"]])
def test_sentences_without_words_are_refused(sentences):
    with pytest.raises(
        ValueError, match=r"SubwordVocabulary\.from_sentences: `sentences` must hold some words"
    ):
        SubwordVocabulary.from_sentences(sentences, size=50)


@pytest.mark.parametrize("sentences", ["a cat", 3, None])
def test_sentences_must_be_a_collection_of_strings(sentences):
    with pytest.raises(ValueError, match="`sentences` must be a collection of strings"):
        SubwordVocabulary.from_sentences(sentences, size=50)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_keeps_every_id(copied):
    assert copied(TOY).words == TOY.words
    assert copied(TOY).encode(SENTENCES[0]) == TOY.encode(SENTENCES[0])


@pytest.mark.parametrize("load", [SubwordVocabulary.load, load_vocabulary])
def test_save_writes_one_file_and_load_keeps_every_id(tmp_path, load):
    TOY.save(tmp_path / "subwords.model")
    assert [path.name for path in tmp_path.iterdir()] == ["subwords.model"]
    loaded = load(tmp_path / "subwords.model")
    assert isinstance(loaded, SubwordVocabulary)
    assert loaded.words == TOY.words
    assert [loaded.encode(sentence) for sentence in SENTENCES] == [
        TOY.encode(sentence) for sentence in SENTENCES
    ]


def test_load_vocabulary_reads_whole_words_too(tmp_path):
    vocabulary = Vocabulary.from_sentences(SENTENCES)
    vocabulary.save(tmp_path / "words.json")
    loaded = load_vocabulary(tmp_path / "words.json")
    assert isinstance(loaded, Vocabulary)
    assert loaded.words == vocabulary.words


@pytest.mark.parametrize("load", [SubwordVocabulary.load, load_vocabulary])
def test_load_refuses_a_missing_file(tmp_path, load):
    with pytest.raises(
        FileNotFoundError, match=f"{load.__qualname__}: `path` must name an existing file"
    ):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content", [b"", b"a\nb\n", b"[1]", b'{"other": 1}', b"\xff", b"\0" * 50, "cut", "unigram"]
)
@pytest.mark.parametrize("load", [SubwordVocabulary.load, load_vocabulary])
def test_load_refuses_a_file_of_another_kind(tmp_path, content, load):
    path = tmp_path / "other"
    TOY.save(path)
    # the second has ids of its own
    made = {"cut": path.read_bytes()[:-20], "unigram": other_model()}
    path.write_bytes(made.get(content, content))
    with pytest.raises(
        ValueError, match=rf"{load.__qualname__}: `path` must name a file that .*save` wrote"
    ):
        load(path)


def test_neither_kind_loads_the_others_file(tmp_path):
    Vocabulary(["a", "cat"]).save(tmp_path / "words.json")
    with pytest.raises(
        ValueError, match="`path` must name a file that `SubwordVocabulary.save` wrote"
    ):
        SubwordVocabulary.load(tmp_path / "words.json")
    TOY.save(tmp_path / "subwords.model")
    with pytest.raises(ValueError, match="`path` must name a file that `Vocabulary.save` wrote"):
        Vocabulary.load(tmp_path / "subwords.model")


def test_a_model_of_another_make_will_do_with_the_same_ids():
    vocabulary = SubwordVocabulary(other_model(pad_id=0, unk_id=1, bos_id=2, eos_id=3))
    assert vocabulary.decode(vocabulary.encode(SENTENCES[0])) == SENTENCES[0]


def test_a_model_whose_end_text_could_forge_is_refused():
    model = other_model(pad_id=0, unk_id=1, bos_id=2, eos_id=-1, user_defined_symbols="<eos>")
    with pytest.raises(
        ValueError, match="SubwordVocabulary: `model` must be a sentencepiece model whose padding"
    ):
        SubwordVocabulary(model)


@pytest.mark.parametrize("model", [None, "text", 3, ["a"], b"", b"text"])
def test_a_model_is_bytes_of_sentencepiece(model):
    with pytest.raises(
        ValueError, match="SubwordVocabulary: `model` must be a sentencepiece model"
    ):
        SubwordVocabulary(model)


def test_nothing_is_printed(tmp_path, capfd):
    vocabulary = SubwordVocabulary.from_sentences(SENTENCES, size=10_000)
    vocabulary.save(tmp_path / "subwords.model")
    SubwordVocabulary.load(tmp_path / "subwords.model").encode("日本 <eos>")
    for content in (b"", b"text"):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ValueError, match="must name a file"):
            SubwordVocabulary.load(tmp_path / "other")
    assert capfd.readouterr() == ("", "")


def test_a_missing_sentencepiece_is_named_with_the_line_that_installs_it(tmp_path, monkeypatch):
    TOY.save(tmp_path / "subwords.model")
    Vocabulary(["a"]).save(tmp_path / "words.json")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    for make in (
        lambda: SubwordVocabulary.from_sentences(["a"], 10),
        lambda: load_vocabulary(tmp_path / "subwords.model"),
    ):
        with pytest.raises(
            ImportError,
            match=r'SubwordVocabulary needs sentencepiece: pip install "tfattn\[text\]"',
        ):
            make()
    assert load_vocabulary(tmp_path / "words.json").words[4:] == ("a",)


def test_batches_take_one_joint_vocabulary_for_both_sides():
    dataset = token_batches(PAIRS, TOY, TOY, tokens_per_batch=512, shuffle_seed=0)
    decoded = [
        (TOY.decode(source), TOY.decode(target))
        for (sources, _), targets in dataset.as_numpy_iterator()
        for source, target in zip(sources, targets, strict=True)
    ]
    assert sorted(decoded) == sorted(PAIRS)
