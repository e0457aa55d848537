"""The page of a translator: the numbers and translations of Python, computed in a real browser."""

import base64
import json
import pathlib
import re
from typing import NamedTuple

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.parity import refused
from tests.helpers.batching import SPECIAL_IDS, learned_by_sentencepiece
from tests.helpers.tensors import numpy
from tfattn import data
from tfattn.convert import to_page, weights
from tfattn.translator.presets import PRESETS

LETTERS = "abcdefghijklm"
WORDS = data.Vocabulary([f"{letter}{letter}" for letter in LETTERS])
SPLIT = data.Vocabulary(WORDS.words[4:], str.split)
TARGET = data.Vocabulary([f"<{letter}>" for letter in LETTERS + "nop"])


def subwords():
    pytest.importorskip("sentencepiece")
    pairs = [f"{a}{b} {b}{a}{a}" for a in "abcé" for b in "def"] + ["lowest newer ab", "cab fad"]
    return data.SubwordVocabulary.from_sentences(pairs * 2, 40, normalization="NFKC")


def block(**options):
    return tfattn.TransformerEncoderBlock(2, hidden_dim=10, **options)


def words_model():
    return tfattn.Transformer(len(WORDS), len(TARGET), 2, 12, block=block()), WORDS, TARGET


def subword_model():
    """Norms first, learned positions, one embedding, another activation, float16."""
    words = subwords()
    inner = tfattn.PositionwiseFeedForward(10, activation="gelu")
    options = {
        "block": tfattn.TransformerEncoderBlock(3, feed_forward=inner, norm_first=True),
        "positions": tfattn.LearnedPositionalEncoding(40, input_scale=2.0),
        "share_embeddings": True,
    }
    return tfattn.Transformer(len(words), None, 2, 12, **options), words, words


def character_model():
    """No positions, a wide norm, another activation."""
    words = data.Vocabulary(list("我爱猫和鱼ab▁"), data.Characters(), "NFKC")
    inner = tfattn.PositionwiseFeedForward(10, activation="silu")
    norm = keras.layers.LayerNormalization(epsilon=0.1)
    options = {
        "block": tfattn.TransformerEncoderBlock(2, feed_forward=inner, norm=norm),
        "positions": keras.layers.Identity(),
    }
    return tfattn.Transformer(len(words), len(TARGET), 1, 12, **options), words, TARGET


def recurrent_model():
    sizes = {"width": 5, "units": 7, "num_layers": 2}
    return tfattn.BahdanauSeq2Seq(len(SPLIT), len(TARGET), **sizes), SPLIT, TARGET


def shared_recurrent_model():
    """One layer, one way, one embedding."""
    words = subwords()
    sizes = {"width": 5, "units": 7, "bidirectional": False, "share_embeddings": True}
    return tfattn.BahdanauSeq2Seq(len(words), None, **sizes), words, words


def tiny_model():
    """Of the sizes of `tiny`, with as many subwords."""
    pytest.importorskip("sentencepiece")
    rng, preset = np.random.default_rng(2), PRESETS["transformer"]["tiny"]
    text = "".join(rng.choice([*"abcdefé "], 200_000))
    words = data.SubwordVocabulary.from_sentences(text.split(), preset.subwords)
    return tfattn.Transformer(len(words), share_embeddings=True, **preset.sizes), words, words


MODELS = {
    "words": words_model,
    "subwords": subword_model,
    "characters": character_model,
    "recurrent": recurrent_model,
    "shared recurrent": shared_recurrent_model,
    "tiny": tiny_model,
}


def varied(model, spread=0.5):
    """The built model itself, whose translations depend on the source."""
    model.build_for_any()
    rng = np.random.default_rng(1)
    for variable in model.weights:
        size = spread if len(variable.shape) > 1 else 0.1
        variable.assign(numpy(variable) + size * rng.normal(size=tuple(variable.shape)))
    return model


def contents(path):
    """The data of a page, and its weights by name, read by NumPy."""
    found = json.loads(re.search(r'id="data">(.*?)</script>', path.read_text("utf-8"))[1])
    content, arrays = base64.b64decode(found["weights"]), {}

    def take(dtype, count):
        nonlocal content
        array = np.frombuffer(content, dtype, count)
        content = content[-(-array.nbytes // 4) * 4 :]
        return array.astype("float32")

    for tensor in found["tensors"]:
        shape = tensor["rows"], tensor["columns"]
        scales = take("<f4", shape[0])[:, None] if tensor["type"] == "int8" else 1
        kinds = {"int8": "i1", "float16": "<f2", "float32": "<f4"}
        array = take(kinds[tensor["type"]], shape[0] * shape[1]).reshape(shape) * scales
        arrays[tensor["name"]] = array[0] if tensor["type"] == "float32" else array
    assert content == b""
    return found, arrays


def rounded(model, path):
    """The model with the weights of a page."""
    _, arrays = contents(path)
    copy = type(model).from_config(model.get_config())
    copy.build_for_any()

    def load(layer, name):
        parts = {part.rpartition("/")[0] for part in weights.arrays(layer)}
        modules = {part: f"{name}/{part}".rstrip("/") for part in parts}
        weights.load_rows(layer, modules, arrays)

    for side in ("encoder", "decoder"):
        stack = getattr(copy, side)
        if f"{side}/embedding" in arrays:
            stack.embedding.embeddings.assign(arrays[f"{side}/embedding"])
        load_side = load_recurrent if hasattr(copy, "units") else load_stack
        load_side(stack, side, arrays, load)
    for bridge in getattr(copy, "bridges", ()):
        load(bridge, bridge.name)
    if copy.output_dense is not None:
        load(copy.output_dense, "output")
    return copy


def load_stack(stack, side, arrays, load):
    if f"{side}/positions" in arrays:
        stack.positions.embeddings.assign(arrays[f"{side}/positions"])
    for part in (*stack.blocks, *([stack.final_norm] if stack.final_norm else [])):
        load(part, f"{side}/{part.name}")


def load_recurrent(stack, side, arrays, load):
    if side == "encoder":
        cells = [*stack.forward_cells, *stack.backward_cells]
    else:
        cells = stack.cells
        load(stack.readout, "decoder/readout")
        for part, name in (("query", "query"), ("key", "key"), ("score", "v")):
            kernel = getattr(stack.score, f"{part}_kernel")
            kernel.assign(arrays[f"decoder/score/{name}.weight"].T)
    for cell in cells:
        of_input, of_state = (f"{side}/{cell.name}/{part}" for part in ("input", "recurrent"))
        cell.kernel.assign(arrays[f"{of_input}.weight"].T)
        cell.recurrent_kernel.assign(arrays[f"{of_state}.weight"].T)
        cell.bias.assign(np.stack([arrays[f"{of_input}.bias"], arrays[f"{of_state}.bias"]]))


class Exported(NamedTuple):
    """A page, the model with its weights, and sentences of four to seven tokens."""

    path: pathlib.Path
    model: tfattn.Transformer
    source: data.Vocabulary | data.SubwordVocabulary
    target: data.Vocabulary | data.SubwordVocabulary
    texts: list[str]


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
    model, source, target = MODELS[request.param]()
    varied(model, 0.1 if request.param == "tiny" else 0.5)
    if request.param == "tiny":  # short translations
        table = model.encoder.embedding.embeddings
        table.assign(numpy(table) * np.where(np.arange(len(source)) == 3, 6, 1)[:, None])
    path = tmp_path_factory.mktemp("page") / "page.html"
    kind = "float16" if request.param == "subwords" else "int8"
    to_page(model, source, target, path, quantization=kind)
    return Exported(path, rounded(model, path), source, target, sentences(source))


def sentences(words):
    letters = [*"我爱猫鱼a "] if words.words[4] == "我" else [*"abcdefé "]
    letters = (
        [*(f"{word} " for word in WORDS.words[4:]), "zz "] if words in (WORDS, SPLIT) else letters
    )
    rng, found = np.random.default_rng(5), []
    while len(found) < 200:
        text = "".join(rng.choice(letters, rng.integers(4, 15)))
        found += [text] if 4 <= len(words.encode(text)) < 8 else []
    return found


@pytest.fixture
def js(exported, open_file):
    """A function of code and the value of `given`, which the page computes."""
    page = open_file(exported.path)
    return lambda code, given: page.evaluate(f"(given) => {code}", given)


# The tokens of greedy search, and the logits of each.
STEPS = """{
  const end = new Tree(model, given, OPTIONS).greedy();
  return [tokensOf(end), pathTo(end.parent).map((node) => [...node.logits])];
}"""


# In the browser.


@pytest.mark.slow
def test_the_logits_of_each_step_are_those_of_the_model_with_the_same_weights(exported, js):
    sources = np.array([[*exported.source.encode(text)[:4], 3] for text in exported.texts[:20]])
    found = [js(STEPS.replace("OPTIONS", "{}"), ids[:-1].tolist()) for ids in sources]
    targets = np.zeros((20, max(len(tokens) for tokens, _ in found)), int)
    for row, (tokens, _) in zip(targets, found, strict=True):
        row[: len(tokens)] = [2, *tokens[:-1]]
    wanted = numpy(exported.model((sources, targets)))
    for row, (_, logits) in zip(wanted, found, strict=True):
        assert np.ptp(logits) > 1
        np.testing.assert_allclose(logits, row[: len(logits)], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["tree.greedy()", "new BeamSearch(tree, 5).run()"])
def test_greedy_search_and_beams_write_what_python_writes(exported, search, js):
    beams = tfattn.BeamSearch(num_beams=5) if "Beam" in search else None
    _, model, *words, texts = exported
    if beams and len(words[0]) > 9000:
        pytest.skip("the same search over smaller vocabularies is above; here it takes minutes")
    wanted = tfattn.translate(model, texts, *words, search=beams, batch_size=200)
    assert len(set(wanted)) > 5
    code = """given.map((text) => {
      const tree = new Tree(model, sourceWords.encode(text).map(({ id }) => id));
      return targetWords.decode(tokensOf(SEARCH));
    })"""
    assert js(code.replace("SEARCH", search), texts) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("exported", ["words", "subwords"], indirect=True)
def test_a_head_that_is_off_adds_nothing_and_a_hidden_token_is_as_padding(exported, js):
    model, ids = rounded(exported.model, exported.path), exported.source.encode(exported.texts[0])
    off = ["encoder 0 1", "decoder 1 0", "cross 0 1"]
    options = f"{{ hidden: new Set([1]), off: new Set({off}) }}"
    tokens, logits = js(STEPS.replace("OPTIONS", options), ids)
    for name in off:
        side, layer, head = name.split()
        block = getattr(model, "encoder" if side == "encoder" else "decoder").blocks[int(layer)]
        part = block.cross_attention if side == "cross" else block.self_attention
        kernel = numpy(part.output_dense.kernel).copy()  # (H, P, D)
        kernel[int(head)] = 0
        part.output_dense.kernel.assign(kernel)
    source = np.array([[*ids, 3]])
    source[0, 1] = 0
    wanted = numpy(model((source, np.array([[2, *tokens[:-1]]]))))[0]
    np.testing.assert_allclose(logits, wanted, atol=1e-4)
    _, whole = js(STEPS.replace("OPTIONS", "{}"), ids)
    assert np.abs(np.array(whole[0]) - wanted[0]).max() > 0.1


ODD = [
    "  ab\u3000cab \x85 lowest",
    "☃☃ a ☃",
    "ａｂ e\u0301",
    "a\u2581b \u2585",
    "aa \u2581 bb",
    "🙂",
    "<eos> <pad>",
    "\x1cb\0a",
]


@pytest.mark.slow
def test_sentences_are_segmented_as_in_python(exported, js):
    texts = [*ODD, *exported.texts]
    found = js("given.map((text) => sourceWords.encode(text).map(({ id }) => id))", texts)
    assert found == [exported.source.encode(text) for text in texts]


# The file.


@pytest.mark.slow
@pytest.mark.parametrize("exported", ["tiny"], indirect=True)
def test_the_page_of_a_tiny_model_has_at_most_four_megabytes(exported):
    assert 3e6 < exported.path.stat().st_size <= 4e6


def test_weights_are_rounded_to_a_127th_of_the_greatest_of_their_row(tmp_path):
    model, source, target = words_model()
    varied(model)
    table = numpy(model.encoder.embedding.embeddings).copy()
    table[4] = 0
    model.encoder.embedding.embeddings.assign(table)
    to_page(model, source, target, tmp_path / "page.html")
    _, arrays = contents(tmp_path / "page.html")
    found = arrays["encoder/embedding"]
    steps = np.abs(table).max(axis=1, keepdims=True) / 127
    assert (np.abs(found - table) <= 0.5001 * steps).all() and not found[4].any()
    bias = weights.arrays(model.output_dense)["bias"]
    np.testing.assert_array_equal(arrays["output.bias"], bias)


def of_block(**parts):
    sizes = {"num_heads": 2, "hidden_dim": 5}
    if "attention" in parts:
        del sizes["num_heads"]
    if "feed_forward" in parts:
        del sizes["hidden_dim"]
    one = tfattn.TransformerEncoderBlock(**sizes, **parts)
    model = tfattn.Transformer(len(WORDS), None, 1, 12, block=one)
    model.build_for_any()
    return model


REFUSED = {
    "score": {"attention": tfattn.MultiHeadAttention(2, 6, score=tfattn.AdditiveScore(3))},
    "positions": {"attention": tfattn.MultiHeadAttention(2, 6, positions=tfattn.RotaryPositions())},
    "feed_forward": {"feed_forward": tfattn.GatedFeedForward(5)},
    "norm": {"norm": keras.layers.RMSNormalization()},
    "activation": {"feed_forward": tfattn.PositionwiseFeedForward(5, activation="sigmoid")},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_feature_that_the_page_does_not_have_is_named(name, tmp_path):
    with refused(name):
        to_page(of_block(**REFUSED[name]), WORDS, WORDS, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_invalid_arguments_of_to_page_are_refused(tmp_path):
    path, model = tmp_path / "page.html", of_block()
    with pytest.raises(ValueError, match="`model` must be one of Transformer, BahdanauSeq2Seq"):
        to_page(keras.layers.Dense(3), WORDS, WORDS, path)
    with pytest.raises(ValueError, match="`model` must be built"):
        to_page(tfattn.Transformer(len(WORDS), None, 1, 12, block=block()), WORDS, WORDS, path)
    with pytest.raises(ValueError, match="`target_vocabulary` must have 17 entries"):
        to_page(model, WORDS, TARGET, path)
    with pytest.raises(ValueError, match="`quantization` must be one of .'int8', 'float16'."):
        to_page(model, WORDS, WORDS, path, quantization="int4")
    with refused("tokenizer of source_vocabulary"):
        words = data.Vocabulary(WORDS.words[4:], lambda text: text.split("-"))
        to_page(model, words, WORDS, path)


def test_a_recurrent_model_of_another_cell_or_score_is_refused(tmp_path):
    sizes = {"width": 5, "units": 7, "bidirectional": False}
    other = {"cell": keras.layers.LSTMCell}, {"score": tfattn.BilinearScore()}
    for name, option in zip(("cell", "score"), other, strict=True):
        model = tfattn.BahdanauSeq2Seq(len(WORDS), **sizes, **option)
        model.build_for_any()
        with refused(name):
            to_page(model, WORDS, WORDS, tmp_path / "page.html")


def of_words(words):
    model = tfattn.Transformer(len(words), None, 1, 12, block=block())
    model.build_for_any()
    return model, words, words


def test_subwords_with_symbols_are_refused(tmp_path):
    pytest.importorskip("sentencepiece")
    whole = data.SubwordVocabulary.from_sentences(["ab <2fr> ba"], 20, symbols=["<2fr>"])
    with refused("symbols of source_vocabulary"):
        to_page(*of_words(whole), tmp_path / "page.html")


OTHER_SUBWORDS = [
    {"model_type": "unigram"},
    {"normalization_rule_name": "nmt_nfkc"},
    {"byte_fallback": True, "vocab_size": 400},
    {"add_dummy_prefix": False},
    {"split_by_whitespace": False},
    {"treat_whitespace_as_suffix": True},
]


@pytest.mark.parametrize("options", OTHER_SUBWORDS)
def test_subwords_that_split_otherwise_are_refused(options, tmp_path):
    pytest.importorskip("sentencepiece")
    plain = {"model_type": "bpe", "normalization_rule_name": "identity", **SPECIAL_IDS}
    sentences = [source for source, _ in data.toy_translation(200)]
    same, other = (
        data.SubwordVocabulary(learned_by_sentencepiece(sentences, **{**plain, **more}))
        for more in ({"remove_extra_whitespaces": False}, options)
    )
    to_page(*of_words(same), tmp_path / "page.html")
    with refused("source_vocabulary"):
        to_page(*of_words(other), tmp_path / "other.html")
