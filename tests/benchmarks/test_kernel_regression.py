"""The benchmark of kernel regression runs, in small, and compares what it times."""

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.processes import printed

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "kernel_regression.py"
PEERS = [
    pytest.param("dense", marks=pytest.mark.tensorflow),
    pytest.param(
        "statsmodels",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("statsmodels") is None, reason="needs statsmodels"
        ),
    ),
]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("kernel_regression", "peers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("kernel_regression")
    sys.modules.pop("kernel_regression", None)


@pytest.mark.parametrize("peer", PEERS)
def test_the_peers_predict_the_same(benchmark, peer):
    case = benchmark.Case("predict", 211, 101, columns=2)
    own, others = benchmark.ours(case)(), benchmark.PEERS[peer](case)()
    assert own.shape == (101,)
    own = own[:: benchmark.SHARE] if peer == "statsmodels" else own
    np.testing.assert_allclose(others, own, rtol=1e-4)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_choice_is_a_bandwidth_a_column(benchmark, columns):
    chosen = benchmark.ours(benchmark.Case("choose", 53, columns=columns))()
    assert chosen.shape == (columns,) and (chosen > 0).all()


def test_every_ratio_is_a_median_of_three_rounds_at_least_and_told_with_its_goal(benchmark):
    assert all(case.rounds >= 3 for case in [*benchmark.CASES, *benchmark.ALONE])
    assert benchmark._judged(13.84, 10.0) == "13.8 (goal 10)"
    assert benchmark._judged(7.0, 10.0) == "7 (goal 10, missed)"
    assert benchmark._judged(7.0, None) == "7"


def test_the_time_of_a_share_of_queries_is_told_for_all(benchmark):
    class Timed:
        def __init__(self, seconds, growth):
            self.seconds, self.growth = seconds, growth

    case = benchmark.Case("predict", 2000, 1000, memory_goal=50.0)
    _, _, own, theirs, faster, *_ = benchmark.row(
        case, "statsmodels", 10.0, Timed(0.5, 0.01), Timed(0.25, 0.02)
    )
    assert (own, theirs, faster) == ("500.0 ms", "5000 ms", "10 (goal 10)")
    *_, smaller = benchmark.row(case, "dense", 1.0, Timed(0.5, 0.01), Timed(0.25, 1.0))
    assert smaller == "100 (goal 50)"


@pytest.mark.slow
def test_the_benchmark_prints_a_row_of_ratios_and_tells_alone_what_no_peer_can_do():
    def rows(*arguments):
        # The regression is NumPy's: no worker has to import a backend for it.
        text = printed(SCRIPT, "--divide", 50, *arguments, KERAS_BACKEND="numpy")
        lines = text.splitlines()
        return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]

    peer = "dense" if importlib.util.find_spec("statsmodels") is None else "statsmodels"
    found = rows("--case", "predict 20,000 × 20,000", "--peer", peer)
    name, peers, own, others, faster, *_ = found[-1]
    assert name.startswith("predict 400 × 400") and peers == peer
    assert own.endswith(" ms") and others.endswith(" ms") and float(faster.split()[0]) > 0
    (alone,) = [row for row in rows("--case", "choose 20,000") if row[0] == "choose 400"]
    assert alone[2].endswith(" ms") and any(cell.endswith(" MB") for cell in alone)
