"""benchmarks/translation.py: what it prepares for the peers is what they take."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import tfattn
from tfattn.translator.folder import Folder, vocabulary_fingerprints

pytestmark = pytest.mark.tensorflow  # in which the benchmark trains

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("translation", "trained_translation", "peers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("translation")
    for name in ("translation", "trained_translation"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_our_peer_takes_the_batches_that_are_prepared(benchmark, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "VOCABULARY_SIZE", 50)
    made_up = benchmark._made_up
    monkeypatch.setattr(
        benchmark, "_made_up", lambda count, generator: made_up(count // 100, generator)
    )
    benchmark.prepare(tmp_path / "batches.npz", None, quick=False)
    model = tfattn.Transformer(
        50, num_layers=1, width=8, num_heads=2, hidden_dim=8, share_embeddings=True
    )
    with np.load(tmp_path / "batches.npz") as arrays:
        batches = {
            work: [arrays[key] for key in sorted(arrays) if key.startswith(work)]
            for work in ("training", "decoding")
        }
    source, target_in, target_out = batches["training"][:3]
    assert model((source, target_in)).shape == (*target_out.shape, 50)
    source, lengths, max_length = batches["decoding"][:3]
    for beams in (1, 5):
        translator = benchmark.Translator(model, beams, jit=False)
        tokens, _ = translator(source, lengths, int(max_length))
        # Each sentence ends where its reference does.
        assert [row.tolist().index(benchmark.Ids.end_id) + 1 for row in tokens] == lengths.tolist()


@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # Keras's
@pytest.mark.slow
def test_engines_translate_the_batches_that_are_prepared(benchmark, tmp_path):
    pytest.importorskip("ctranslate2")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    trained = benchmark.trained_translation
    words = tfattn.data.Vocabulary(["a", "b", "c", "d"])
    folder = Folder(tmp_path)
    folder.save_vocabularies([words, words])
    folder.add_to_record(model=vocabulary_fingerprints([words, words]))
    sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 8}
    model = tfattn.Transformer(len(words), **sizes, share_embeddings=True)
    model.build_for_any()
    model.save(folder.model)
    (tmp_path / "served").mkdir()
    pairs = [("a b c", "c"), ("d", "a b"), ("b a", "d d")]
    assert trained._prepare(tmp_path / "served", tmp_path, pairs, every=1) == pairs
    batches = trained._batches(tmp_path / "served")
    found = {}
    for name in ("tfattn", "ctranslate2 float32", "ctranslate2 int8", trained.ONNX):
        translated = trained._engine(name, 1, tmp_path, tmp_path / "served")
        found[name] = trained._by_source(batches, [translated(batch) for batch in batches])
        assert set(found[name]) == {tuple(words.encode(source)) for source, _ in pairs}
    assert found["tfattn"] == found["ctranslate2 float32"] == found[trained.ONNX]
