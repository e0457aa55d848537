"""Vocabularies of text that white space alone does not split: characters, raw text, functions."""

import functools
import json

import keras
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfattn
from tests.helpers.batching import SPECIAL_IDS, learned_by_sentencepiece
from tests.helpers.searches import eagerly
from tfattn.data import Characters, Moses, SubwordVocabulary, Vocabulary, load_vocabulary

CHINESE = [
    "我喜欢猫。",
    "猫喜欢鱼。",
    "我有一条鱼。",
    "她有一只黑猫。",
    "那只猫在睡觉。",
    "你用 Keras 吗？",
]
ENGLISH = ["I like cats.", "Cats like fish.", "Do you use Keras?"]
THAI, JAPANESE = "ผมชอบแมวดำ แต่เธอชอบหมาสีขาว", "私は黒い猫が好きです。"
KOREAN = "나는고양이를좋아합니다"  # a script that has spaces between words


def vowels(sentence):
    """A tokenizer of one's own, which `tests` could name and a file cannot hold."""
    return [part for word in sentence.split() for part in word.replace("a", "a|").split("|")]


class Pairs:
    """Another one, that puts sentences together again."""

    def __call__(self, sentence):
        return [sentence[i : i + 2] for i in range(0, len(sentence), 2)]

    def join(self, words):
        return "".join(words)


# Characters.


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_characters_give_back_the_sentence(text):
    characters = Characters()
    assert characters.join(characters(text)) == " ".join(text.replace("▁", "_").split())
    assert all(len(word) == 1 and not word.isspace() for word in characters(text))


def test_vocabulary_of_characters_knows_new_sentences_of_them():
    for sentences in (CHINESE, [THAI], [JAPANESE]):
        words = Vocabulary.from_sentences(sentences, tokenizer=Characters())
        for new in ["".join(dict.fromkeys("".join(sentences)))[::-1].strip(), *sentences]:
            ids = words.encode(new)
            assert words.unknown_id not in ids and len(ids) == len(new)
            assert words.decode([words.begin_id, *ids, words.end_id, 0]) == new
        assert words.decode([words.unknown_id, 4]).startswith("<unk>")


@pytest.mark.parametrize("tokenizer", [Characters(), lambda text: list(text)], ids=["ours", "list"])
def test_vocabulary_learned_without_spaces_ignores_them(tokenizer):
    words = Vocabulary.from_sentences(["我喜欢猫", "猫喜欢鱼"], tokenizer=tokenizer)
    assert words.encode("我 喜欢\u3000鱼") == words.encode("我喜欢鱼") and words.encode(" ") == []
    spaced = Vocabulary.from_sentences(["我 喜欢猫"], tokenizer=tokenizer)
    assert len(spaced.encode("喜 欢")) == 3 and spaced.unknown_id not in spaced.encode("喜 欢")


def test_vocabulary_counts_the_words_of_its_tokenizer():
    words = Vocabulary.from_sentences(["ab a", "a c"], min_count=2, tokenizer=Characters())
    assert words.words[4:] == ("a", "▁")
    assert len(Vocabulary.from_sentences(["ab a", "a c"], max_size=6, tokenizer=Characters())) == 6
    words = Vocabulary.from_sentences(["<eos>", "a"], tokenizer=lambda sentence: [sentence])
    assert words.words[4:] == ("a",) and words.encode("<eos>") == [words.unknown_id]


# Functions.


def test_tokenizer_function_splits_and_its_join_puts_together():
    words = Vocabulary.from_sentences(["banana bad"], tokenizer=vowels)
    assert words.words[4:] == ("ba", "na", "d")
    assert words.decode(words.encode("nad")) == "na d"
    words = Vocabulary.from_sentences(["a b c d"], tokenizer=Pairs())
    assert words.words[4:] == ("a ", "b ", "c ", "d")  # words may end in a space then
    assert words.decode(words.encode("c b d")) == "c b d"
    plain, split = (
        Vocabulary.from_sentences([" a\tb ", "b"], tokenizer=each) for each in (None, str.split)
    )
    assert plain.words == split.words and plain.encode("a b\n") == split.encode("a b\n")


@pytest.mark.parametrize("make", [Vocabulary, Vocabulary.from_sentences])
def test_tokenizer_that_is_invalid_is_refused(make):
    for wrong, said in (
        (Characters, "be a function from a sentence to its words"),
        (lambda sentence: sentence, "return a list of strings"),
        (lambda sentence: [1], "return a list of strings"),
    ):
        with pytest.raises(ValueError, match=f"`tokenizer` must {said}"):
            make(["a"], tokenizer=wrong)


def counting(sentence):
    return sentence.split() + 1 if "x" in sentence else sentence.split()


def test_tokenizer_error_is_shown_as_it_is():
    words = Vocabulary(["a"], tokenizer=counting)
    for read in (words.encode, lambda text: Vocabulary.from_sentences([text], tokenizer=counting)):
        with pytest.raises(TypeError, match="can only concatenate list"):
            read("a x")


# Files.


@pytest.mark.parametrize(
    "tokenizer", [Characters(), Moses("de", lowercase=True), Moses("en"), str.split, None], ids=str
)
def test_tokenizer_of_the_package_comes_back_from_the_file(tmp_path, tokenizer):
    path, text = tmp_path / "words.json", "Ein Mann, mit Hut."
    words = Vocabulary.from_sentences([text], tokenizer=tokenizer)
    words.save(path)
    loaded = [Vocabulary.load(path), load_vocabulary(path), load_vocabulary(path, tokenizer)]
    for found in loaded:
        assert found.words == words.words and found.tokenizer == tokenizer
        assert found.encode(text) == words.encode(text)
    with pytest.raises(
        ValueError, match="`tokenizer` must be omitted, or equal the tokenizer in the file"
    ):
        load_vocabulary(path, tokenizer=vowels)


@pytest.mark.parametrize(
    "tokenizer, name",
    [(vowels, r"\.vowels"), (Pairs(), r"\.Pairs"), (functools.partial(vowels), r"partial")],
    ids=["function", "object", "partial"],
)
def test_tokenizer_of_ones_own_is_named_by_the_file(tmp_path, tokenizer, name):
    path = tmp_path / "words.json"
    words = Vocabulary.from_sentences(["banana"], tokenizer=tokenizer)
    words.save(path)
    said = f"`path` must be loaded with the vocabulary's own tokenizer, .*{name}, which"
    for load in (Vocabulary.load, load_vocabulary):
        with pytest.raises(ValueError, match=said):
            load(path)
    found = load_vocabulary(path, tokenizer=tokenizer)
    assert found.encode("banana") == words.encode("banana") and found.tokenizer is tokenizer


def test_tokenizer_of_another_kind_in_a_file_is_refused(tmp_path):
    path = tmp_path / "words.json"
    for saved in (3, {"name": "Else"}, {"name": "Moses"}, {"name": []}, ["a"], {}):
        path.write_text(json.dumps({"words": ["a"], "tokenizer": saved}), encoding="utf-8")
        said = "`path` must name a file that `Vocabulary.save` wrote"
        with pytest.raises(ValueError, match=said):
            Vocabulary.load(path)
    SubwordVocabulary.from_sentences(["a b"], 9).save(path)
    said = "`tokenizer` must be omitted, or equal the tokenizer in the file, None"
    with pytest.raises(ValueError, match=said):
        load_vocabulary(path, tokenizer=Characters())


# Sentences that would be one word.


def test_vocabulary_of_sentences_without_spaces_is_refused():
    for sentences in (CHINESE, [THAI], [*CHINESE[:3], "a b", "c d"], [*CHINESE[:2], "a b", "c"]):
        said = r"must have spaces.*tokenizer=tfattn\.data\.Characters"
        with pytest.raises(ValueError, match=said):
            Vocabulary.from_sentences(sentences)
        assert len(Vocabulary.from_sentences(sentences, tokenizer=str.split)) > 4


def test_vocabulary_of_sentences_with_spaces_is_made():
    for sentences in (
        ["我 喜欢 黑色 的 巧克力 。", "谢谢"],
        [KOREAN],
        ["มหาวิทยาลัย ของ ผม"],
        [CHINESE[0], *(f"a b{number}" for number in range(100))],
        [*CHINESE[:2], "我 喜欢 猫", "猫 喜欢 鱼"],
    ):
        words = Vocabulary.from_sentences(sentences)
        assert not any(words.unknown_id in words.encode(sentence) for sentence in sentences)


def test_subwords_of_a_model_with_bytes_know_every_character():
    options = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 4 + 256 + 12}
    model = learned_by_sentencepiece(["a low newt", "low low"], **options, **SPECIAL_IDS)
    words = SubwordVocabulary(model)
    ids = words.encode("low 猫 ö")
    assert words.decode(ids) == "low 猫 ö"
    assert words.decode(ids[:4]).endswith("\N{REPLACEMENT CHARACTER}")


# Raw text and the form of Moses.

RAW = [
    ("en", "A man, in a hat.", "A man , in a hat ."),
    (
        "en",
        "The kid's “table” – isn't it?",
        "The kid &apos;s &quot; table &quot; - isn &apos;t it ?",
    ),
    ("de", "Zwei Hunde (braun) laufen.", "Zwei Hunde ( braun ) laufen ."),
    ("en", "Mr. Smith paid $3.50!", "Mr. Smith paid $ 3.50 !"),
]


@pytest.mark.parametrize("language, raw, wanted", RAW)
def test_moses_of_raw_text_and_back(language, raw, wanted):
    moses = Moses(language)
    assert " ".join(moses(raw)) == wanted
    plain = raw.translate(str.maketrans("“”–", '""-'))
    assert moses.join(wanted.split()) == plain
    small = Moses(language, lowercase=True)
    assert " ".join(small(raw)) == wanted.lower()
    assert small.join(small(raw)) == plain[0] + plain[1:].lower()
    assert moses("") == [] and moses.join([]) == small.join([]) == ""


def test_moses_of_another_language_than_one_with_spaces_is_refused():
    for language, said in (
        *((code, "a language with spaces") for code in ("zh", "ja", "th")),
        *((code, "a language code") for code in ("English", "EN", "")),
    ):
        with pytest.raises(ValueError, match=f"Moses: `language` must be {said}"):
            Moses(language)


SENTENCES = ["A man, in a hat.", "The kid's hat isn't red!"]


@pytest.mark.parametrize(
    "sentences, words",
    [
        (SENTENCES, Vocabulary.from_sentences(SENTENCES, tokenizer=Moses("en", lowercase=True))),
        (CHINESE, Vocabulary.from_sentences(CHINESE, tokenizer=Characters())),
        (CHINESE + ENGLISH, SubwordVocabulary.from_sentences(CHINESE + ENGLISH, 120)),
    ],
    ids=["Moses", "characters", "subwords"],
)
@eagerly()
def test_tokenizer_lets_translate_take_and_give_raw_text(sentences, words):
    class Echo:
        """Writes its source."""

        def encode(self, source, max_length):
            return {"source": keras.ops.convert_to_tensor(source)}

        def step(self, tokens, position, state):
            token = keras.ops.take(state["source"], position, axis=1)
            return keras.ops.one_hot(token, len(words)), state

    assert tfattn.translate(Echo(), sentences, words, words, max_length=40) == sentences
