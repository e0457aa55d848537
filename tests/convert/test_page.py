"""The page of a translator as a file: its weights, its size, and what it refuses."""

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.pages import TARGET, WORDS, block, contents, varied, words_model
from tests.convert.parity import refused
from tests.helpers.batching import SPECIAL_IDS, learned_by_sentencepiece
from tests.helpers.tensors import numpy
from tfattn import data
from tfattn.convert import to_page, weights
from tfattn.translator.presets import PRESETS


def test_to_page_int8_rounds_to_a_127th_of_the_greatest(tmp_path):
    model, source, target = words_model()
    varied(model)
    table = numpy(model.encoder.embedding.embeddings).copy()
    table[4] = 0
    model.encoder.embedding.embeddings.assign(table)
    to_page(model, source, target, tmp_path / "page.html")
    _, arrays = contents(tmp_path / "page.html")
    found = arrays["encoder/embedding/embeddings"]
    steps = np.abs(table).max(axis=1, keepdims=True) / 127
    assert (np.abs(found - table) <= 0.5001 * steps).all() and not found[4].any()
    bias = weights.arrays(model.output_dense)["bias"]
    np.testing.assert_array_equal(arrays["output/bias"], bias)


@pytest.mark.slow
def test_to_page_of_a_tiny_model_writes_at_most_four_megabytes(tmp_path):
    """Of the sizes of `tiny`, with as many subwords."""
    pytest.importorskip("sentencepiece")
    rng, preset = np.random.default_rng(2), PRESETS["transformer"]["tiny"]
    text = "".join(rng.choice([*"abcdefé "], 200_000))
    words = data.SubwordVocabulary.from_sentences(text.split(), preset.subwords)
    model = tfattn.Transformer(len(words), share_embeddings=True, **preset.sizes)
    model.build_for_any()
    to_page(model, words, words, tmp_path / "page.html")
    assert 3e6 < (tmp_path / "page.html").stat().st_size <= 4e6


def of_words(words, **parts):
    sizes = {"num_heads": 2, "hidden_dim": 5}
    if "attention" in parts:
        del sizes["num_heads"]
    if "feed_forward" in parts:
        del sizes["hidden_dim"]
    one = tfattn.TransformerEncoderBlock(**sizes, **parts)
    model = tfattn.Transformer(len(words), None, 1, 12, block=one)
    model.build_for_any()
    return model, words, words


def recurrent(**options):
    model = tfattn.BahdanauSeq2Seq(len(WORDS), width=5, units=7, bidirectional=False, **options)
    model.build_for_any()
    return model, WORDS, WORDS


def with_symbols():
    pytest.importorskip("sentencepiece")
    return data.SubwordVocabulary.from_sentences(["ab <2fr> ba"], 20, symbols=["<2fr>"])


def by_dashes(text):
    return text.split("-")


REFUSED = {
    "score": lambda: of_words(
        WORDS, attention=tfattn.MultiHeadAttention(2, 6, score=tfattn.AdditiveScore(3))
    ),
    "positions": lambda: of_words(
        WORDS, attention=tfattn.MultiHeadAttention(2, 6, positions=tfattn.RotaryPositions())
    ),
    "feed_forward": lambda: of_words(WORDS, feed_forward=tfattn.GatedFeedForward(5)),
    "norm": lambda: of_words(WORDS, norm=keras.layers.RMSNormalization()),
    "activation": lambda: of_words(
        WORDS, feed_forward=tfattn.PositionwiseFeedForward(5, activation="sigmoid")
    ),
    "cell": lambda: recurrent(cell=keras.layers.LSTMCell),
    "score of a recurrent decoder": lambda: recurrent(score=tfattn.BilinearScore()),
    "symbols of source_vocabulary": lambda: of_words(with_symbols()),
    "tokenizer of source_vocabulary": lambda: of_words(data.Vocabulary(WORDS.words[4:], by_dashes)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_to_page_names_a_feature_that_the_page_does_not_have(name, tmp_path):
    with refused(name.removesuffix(" of a recurrent decoder")):
        to_page(*REFUSED[name](), tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_to_page_refuses_invalid_arguments(tmp_path):
    path, (model, *_) = tmp_path / "page.html", of_words(WORDS)
    with pytest.raises(ValueError, match="`model` must be one of Transformer, BahdanauSeq2Seq"):
        to_page(keras.layers.Dense(3), WORDS, WORDS, path)
    with pytest.raises(ValueError, match="`model` must be built"):
        to_page(tfattn.Transformer(len(WORDS), None, 1, 12, block=block()), WORDS, WORDS, path)
    with pytest.raises(ValueError, match="`target_vocabulary` must have 17 entries"):
        to_page(model, WORDS, TARGET, path)
    with pytest.raises(ValueError, match="`quantization` must be one of .'int8', 'float16'."):
        to_page(model, WORDS, WORDS, path, quantization="int4")


OTHER_SUBWORDS = [
    {"model_type": "unigram"},
    {"normalization_rule_name": "nmt_nfkc"},
    {"byte_fallback": True, "vocab_size": 400},
    {"add_dummy_prefix": False},
    {"split_by_whitespace": False},
    {"treat_whitespace_as_suffix": True},
]


@pytest.mark.slow
def test_to_page_refuses_subwords_that_split_otherwise(tmp_path):
    pytest.importorskip("sentencepiece")
    plain = {"model_type": "bpe", "normalization_rule_name": "identity", **SPECIAL_IDS}
    sentences = [source for source, _ in data.toy_translation(200)]

    def learned(**options):
        return data.SubwordVocabulary(learned_by_sentencepiece(sentences, **{**plain, **options}))

    to_page(*of_words(learned(remove_extra_whitespaces=False)), tmp_path / "page.html")
    for options in OTHER_SUBWORDS:
        print(options)  # of a case that fails
        with refused("source_vocabulary"):
            to_page(*of_words(learned(**options)), tmp_path / "other.html")
