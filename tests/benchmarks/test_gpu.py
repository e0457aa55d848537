"""The benchmark of JAX and PyTorch runs, in small and without a GPU, and compares what it times."""

from pathlib import Path

import pytest

from tests.helpers.processes import printed
from tests.helpers.tensors import BACKEND

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.skipif(BACKEND not in ("jax", "torch"), reason="about JAX and PyTorch")
@pytest.mark.parametrize("case", ["documents T 32, forward and backward", "transformer"])
def test_the_benchmark_prints_a_row_of_ratios(case):
    lines = printed(SCRIPT, "--quick", "--tokens", 32, "--case", case).splitlines()
    assert lines[0].startswith(f"{BACKEND} on ")
    (row,) = [line for line in lines if line.startswith(f"| {case}")]
    _, _, time_ratio, memory_ratio, *_ = row.strip("| ").split(" | ")
    assert float(time_ratio) > 0 and float(memory_ratio) >= 0
