"""The benchmarks run, in small, compare what they time, and give their peers what these take."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tfattn
from tests.helpers.processes import printed
from tests.helpers.tensors import BACKEND

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HAS_STATSMODELS = importlib.util.find_spec("statsmodels") is not None


def rows(text):
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


@pytest.fixture
def script(monkeypatch):
    """A function that imports a benchmark by its name."""
    names = ("kernel_regression", "translation", "trained_translation", "peers")
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def regression(script):
    return script("kernel_regression")


def test_regression_benchmark_tells_medians_of_three_rounds_with_their_goals(regression):
    assert all(case.rounds >= 3 for case in [*regression.CASES, *regression.ALONE])
    case = regression.Case("predict", 2000, 1000, memory_goal=50.0)
    own, peer = (SimpleNamespace(seconds=s, growth=g) for s, g in ((0.5, 0.01), (0.25, 1.0)))
    cells = regression.row(case, "statsmodels", 13.0, own, peer)  # a twentieth of the queries
    assert cells[2:5] == ["500.0 ms", "5000 ms", "10 (goal 13, missed)"]
    *_, smaller = cells = regression.row(case, "dense", 0.4, own, peer)
    assert (cells[4], smaller) == ("0.5 (goal 0.4)", "100 (goal 50)")
    *_, smaller = cells = regression.row(case, "dense", None, own, peer)
    assert (cells[4], smaller) == ("0.5", "100")


def test_benchmark_whose_case_fails_tells_it_runs_the_others_and_ends_with_status_1(
    regression, monkeypatch, capsys
):
    def statsmodels(case):
        raise TypeError("int64 against int32")

    monkeypatch.setitem(regression.PEERS, "statsmodels", statsmodels)
    monkeypatch.setattr(sys, "argv", ["", "--quick", "--case", "predict 2,000"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(regression.PEERS, "dense", regression.ours)
    with pytest.raises(SystemExit, match="1 failed: predict 2,000 × 2,000, statsmodels"):
        regression.main()
    _, failed, passed = rows(capsys.readouterr().out)
    assert failed == [
        "predict 2,000 × 2,000, statsmodels",
        "failed, TypeError: int64 against int32",
    ]
    assert passed[:2] == ["predict 30 × 40", "dense"]


@pytest.mark.parametrize(
    "peer",
    [
        pytest.param("dense", marks=pytest.mark.tensorflow),
        pytest.param(
            "statsmodels",
            marks=pytest.mark.skipif(not HAS_STATSMODELS, reason="needs statsmodels"),
        ),
    ],
)
@pytest.mark.slow
def test_regression_benchmark_peers_predict_the_same(regression, peer):
    case = regression.Case("predict", 211, 101, columns=2)
    own, others = regression.ours(case)(), regression.PEERS[peer](case)()
    assert own.shape == (101,)
    own = own[:: regression.SHARE] if peer == "statsmodels" else own
    np.testing.assert_allclose(others, own, rtol=1e-4)


def test_regression_benchmark_without_a_peer_tells_ours_alone(regression, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--quick", "--case", "choose 20,000"])
    regression.main()
    name, peer, own, *others = rows(capsys.readouterr().out)[-1]
    assert (name, peer) == ("choose 30", "") and own.endswith(" ms") and "statsmodels" not in others


@pytest.mark.nightly
def test_regression_benchmark_prints_a_row_of_ratios():
    """A process, each of whose peers has one of its own."""
    peer = "statsmodels" if HAS_STATSMODELS else "dense"
    options = ("--case", "predict 2,000 × 2,000", "--peer", peer)
    # The regression is NumPy's: no process has to import a backend for it.
    text = printed(BENCHMARKS / "kernel_regression.py", *options, KERAS_BACKEND="numpy")
    name, peers, own, others, faster, *_ = rows(text)[-1]
    assert name == "predict 2,000 × 2,000" and peers == peer
    assert own.endswith(" ms") and others.endswith(" ms") and float(faster.split()[0]) > 0


@pytest.mark.skipif(BACKEND not in ("jax", "torch"), reason="about JAX and PyTorch")
@pytest.mark.parametrize("case", ["documents T 32, forward and backward", "transformer"])
def test_gpu_benchmark_prints_a_row_of_ratios(case):
    text = printed(BENCHMARKS / "gpu.py", "--quick", "--tokens", 32, "--case", case)
    assert text.startswith(f"{BACKEND} on ")
    (row,) = [row for row in rows(text) if row[0].startswith(case)]
    assert float(row[2]) > 0 and float(row[3]) >= 0


@pytest.mark.tensorflow  # in which it trains
@pytest.mark.slow
def test_translation_benchmark_gives_our_peer_batches_that_end_with_their_references(
    script, monkeypatch, tmp_path
):
    benchmark = script("translation")
    monkeypatch.setattr(benchmark, "VOCABULARY_SIZE", 50)
    made_up = benchmark._made_up
    monkeypatch.setattr(benchmark, "_made_up", lambda count, draws: made_up(count // 200, draws))
    benchmark.prepare(tmp_path / "batches.npz", None)
    sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 8}
    model = tfattn.Transformer(50, **sizes, share_embeddings=True)
    with np.load(tmp_path / "batches.npz") as arrays:
        source, target_in, target_out = (arrays[f"training_000_{part}"] for part in range(3))
        ids, lengths, max_length = (arrays[f"decoding_000_{part}"] for part in range(3))
    assert model((source, target_in)).shape == (*target_out.shape, 50)
    for beams in (1, 5):
        translator = benchmark.Translator(model, beams, jit=False)
        tokens, _ = translator(ids, lengths, int(max_length))
        assert [row.tolist().index(benchmark.Ids.end_id) + 1 for row in tokens] == lengths.tolist()


@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # Keras's
@pytest.mark.tensorflow
@pytest.mark.nightly
def test_translation_benchmark_engines_translate_the_same(script, tmp_path):
    for package in ("ctranslate2", "onnxruntime", "tf2onnx"):
        pytest.importorskip(package)
    from tfattn.translator.folder import Folder

    benchmark = script("trained_translation")
    words = tfattn.data.Vocabulary(["a", "b", "c", "d"])
    folder, served = Folder(tmp_path), tmp_path / "served"
    folder.save_vocabularies([words, words])
    sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 8}
    model = tfattn.Transformer(len(words), **sizes, share_embeddings=True)
    model.build_for_any()
    model.save(folder.model)
    served.mkdir()
    pairs = [("a b c", "c"), ("d", "a b"), ("b a", "d d")]
    assert benchmark._prepare(served, tmp_path, pairs, every=1) == pairs
    batches, found = benchmark._batches(served), {}
    for name in ("tfattn", "ctranslate2 float32", "ctranslate2 int8", benchmark.ONNX):
        translated = benchmark._engine(name, 1, tmp_path, served)
        found[name] = benchmark._by_source(batches, [translated(batch) for batch in batches])
        assert set(found[name]) == {tuple(words.encode(source)) for source, _ in pairs}
    assert found["tfattn"] == found["ctranslate2 float32"] == found[benchmark.ONNX]
