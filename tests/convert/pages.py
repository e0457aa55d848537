"""What tests of the page of a translator share: models, their pages, and what a page contains."""

import base64
import json
import re

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.tensors import numpy
from tfattn import data
from tfattn.convert import weights

LETTERS = "abcdefghijklm"
WORDS = data.Vocabulary([f"{letter}{letter}" for letter in LETTERS])
SPLIT = data.Vocabulary(WORDS.words[4:], str.split)
TARGET = data.Vocabulary([f"<{letter}>" for letter in LETTERS + "nop"])


def subwords():
    pytest.importorskip("sentencepiece")
    pairs = [f"{a}{b} {b}{a}{a}" for a in "abcé" for b in "def"] + ["lowest newer ab", "cab fad"]
    return data.SubwordVocabulary.from_sentences(pairs * 2, 40)


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
    words = data.Vocabulary(list("我爱猫和鱼ab▁"), data.Characters())
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


MODELS = {
    "words": words_model,
    "subwords": subword_model,
    "characters": character_model,
    "recurrent": recurrent_model,
    "shared recurrent": shared_recurrent_model,
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
    weights.load_state([("", copy, {path: (path,) for path in arrays})], arrays)
    return copy


def sentences(words, count=100):
    """Sentences of four to seven tokens."""
    letters = [*"我爱猫鱼a "] if words.words[4] == "我" else [*"abcdefé "]
    letters = (
        [*(f"{word} " for word in WORDS.words[4:]), "zz "] if words in (WORDS, SPLIT) else letters
    )
    rng, found = np.random.default_rng(5), []
    while len(found) < count:
        text = "".join(rng.choice(letters, rng.integers(4, 15)))
        found += [text] if 4 <= len(words.encode(text)) < 8 else []
    return found
