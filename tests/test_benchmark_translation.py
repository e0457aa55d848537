"""benchmarks/translation.py: what it prepares for the peers is what they take."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import tfattn

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("translation", "turns"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("translation")
    sys.modules.pop("translation", None)


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
    tokens, _ = benchmark.Translator(model)(source, lengths, int(max_length))
    # Each sentence ends where its reference does.
    assert [row.tolist().index(benchmark.Ids.end_id) + 1 for row in tokens] == lengths.tolist()
