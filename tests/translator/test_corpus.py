"""Sentence pairs from files or from the grammar, and new vocabularies."""

import gzip
import types

import pytest

from tfattn import data
from tfattn.translator import corpus

PAIRS = [("a b a b", "c d c d"), ("b", "d")]


def options_of(**entries):
    nothing = {"data": None, "languages": ("en", "de"), "subwords": 0, "pairs": 70, "seed": 3}
    return types.SimpleNamespace(**{**nothing, "symbols": None, **entries})


def test_corpus_without_files_holds_out_a_tenth_of_the_toy_pairs():
    train, validation = corpus.training_and_validation(options_of())
    assert len(train) == 63 and len(validation) == 7
    assert sorted(train + validation) == sorted(data.toy_translation(70, seed=3))


def test_corpus_files_are_of_their_languages_and_packed_ones_first(tmp_path):
    for part in ("train", "val"):
        (tmp_path / f"{part}.fr").write_text(f"un {part}\n")
        (tmp_path / f"{part}.en").write_text(f"a plain {part}\n")
    (tmp_path / "val.en.gz").write_bytes(gzip.compress(b"a packed val\n"))
    options = options_of(data=tmp_path, languages=("fr", "en"))
    assert corpus.training_and_validation(options) == (
        [("un train", "a plain train")],
        [("un val", "a packed val")],
    )


@pytest.mark.parametrize("folder, kept", [(None, ["a", "b"]), ("corpus", ["b"])])
def test_new_vocabularies_words_that_occur_once_in_files_are_unknown(folder, kept):
    options = options_of(data=folder)
    source, target = corpus.new_vocabularies(options, [("b a", "c"), ("b", "c")])
    assert sorted(source.words[4:]) == kept and target.words[4:] == ("c",)


def test_new_vocabularies_of_subwords_are_shared_and_have_the_symbols():
    source, target = corpus.new_vocabularies(options_of(subwords=12), PAIRS)
    assert source is target and source.decode(source.encode("a d")) == "a d"
    options = options_of(subwords=13, symbols=["<2fr>"])
    words, _ = corpus.new_vocabularies(options, PAIRS)
    assert words.symbols == ("<2fr>",) and words.decode(words.encode("<2fr>a d")) == "<2fr>a d"
    for options, said in [
        (
            options_of(subwords=13, symbols=["a b"]),
            "SubwordVocabulary.from_sentences: `symbols` must",
        ),
        (options_of(subwords=5), "SubwordVocabulary.from_sentences: `size` must"),
    ]:
        with pytest.raises(ValueError, match=f"^{said}"):
            corpus.new_vocabularies(options, PAIRS)
