"""The code of `docs/serve.md` from top to bottom, with a model of some training: what is served
writes what tfattn writes.
"""

import pathlib
import re

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.tensors import numpy
from tfattn import data

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),  # Keras's
]
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "serve.md"
LONGEST, MARGIN = 16, 1e-3


def translator():
    """A model of a few updates, whose translations differ, its vocabularies, sentences as ids."""
    pairs = data.toy_translation(4000, seed=1)
    english, french = words = [*map(data.Vocabulary.from_sentences, zip(*pairs, strict=True))]
    source = padded([*english.encode(text), english.end_id] for text, _ in pairs)
    target = padded([french.begin_id, *french.encode(text), french.end_id] for _, text in pairs)
    sizes = {"num_layers": 2, "width": 48, "num_heads": 4, "hidden_dim": 96, "seed": 1}
    positions = tfattn.LearnedPositionalEncoding(32)
    model = tfattn.Transformer(len(english), len(french), positions=positions, **sizes)
    loss = tfattn.MaskedCrossentropy()
    model.compile(keras.optimizers.Adam(0.005), loss=loss, jit_compile=False)
    model.fit((source, target[:, :-1]), target[:, 1:], batch_size=128, epochs=2, verbose=0)
    return model, words, source[:240]


def padded(sentences):
    return keras.utils.pad_sequences([*sentences], padding="post")


def margins(model, source, tokens):
    """`(B,)`, the least distance of the best two choices in each sentence."""
    target_in = np.pad(tokens[:, :-1], [[0, 0], [1, 0]], constant_values=2)
    logits = numpy(model((source, target_in)))[..., 1:]  # padding is no choice
    *_, second, first = np.moveaxis(np.sort(logits), -1, 0)
    return np.where(tokens > 0, first - second, np.inf).min(axis=1)


def test_serving_page_translates_as_tfattn(tmp_path, monkeypatch):
    """Its sentence by each format, and 200 sentences by its loops around ONNX and LiteRT."""
    for module in ("ai_edge_litert", "ctranslate2", "tf2onnx"):
        pytest.importorskip(module)
    runtime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    model, words, source = translator()
    first, *others = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    page = {}
    exec(first, page)
    page.update(model=model, words=words, source_words=words[0], target_words=words[1])
    for code in others:
        exec(code, page)
    wanted = tfattn.translate(model, ["a cat sees a bird"], *words, max_length=20)
    assert [page["translation"]] == [page["on_device"]] == wanted
    assert len(page["translations"]) == 2

    state = model.encode(source, max_length=LONGEST)
    wanted = numpy(tfattn.GreedySearch()(model.step, state, len(source), LONGEST))
    clear = margins(model, source, wanted) >= MARGIN
    source, wanted = source[clear], wanted[clear]
    assert len(wanted) >= 200 and len(np.unique(wanted, axis=0)) >= 150
    step = runtime.InferenceSession("onnx/step.onnx")
    for found in (
        page["greedy"](page["encoder"], step, source, LONGEST),
        page["greedy_on_device"](page["encode"], page["step"], source, LONGEST),
    ):
        np.testing.assert_array_equal(found, wanted[:, : found.shape[1]])
        assert not wanted[:, found.shape[1] :].any()
