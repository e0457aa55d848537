"""The table of costs against its formulas, and its paths against walks over the connections."""

import itertools

import numpy as np
import pytest

import tfattn

N, D, K, R = 101, 7, 3, 11


def test_layers_cost_what_the_table_says_in_its_order():
    table = tfattn.complexity(N, D, kernel_size=K, window=R)
    assert list(table.items()) == [
        ("self-attention", (N**2 * D, 1, 1)),
        ("recurrence", (N * D**2, N, N)),
        ("convolution", (K * N * D**2, 1, 34)),  # 101 / 3
        ("dilated convolution", (K * N * D**2, 1, 5)),  # 3^4 = 81 < 101
        ("separable convolution", (K * N * D + N * D**2, 1, 34)),
        ("windowed self-attention", (R * N * D, 1, 10)),  # 101 / 11
    ]
    for found in table.values():
        assert found == (found.operations, found.sequential_steps, found.longest_path)
        assert all(type(number) is int for number in found)


def test_the_logarithm_is_exact_at_powers_of_the_kernel():
    # math.log(125, 5) is 3.0000000000000004, and would be rounded up to 4
    for k, layers in itertools.product((2, 3, 5, 10), (1, 2, 3, 5)):
        for n, wanted in ((k**layers, layers), (k**layers + 1, layers + 1)):
            found = tfattn.complexity(n, D, kernel_size=k)["dilated convolution"]
            assert found.longest_path == wanted


@pytest.mark.parametrize("k", [2, 3, 5])
def test_a_dilated_stack_of_that_depth_and_none_lower_joins_first_and_last(k):
    for n in (2, 3, 9, 10, 26, 128):
        layers = tfattn.complexity(n, D, kernel_size=k)["dilated convolution"].longest_path
        assert [reached_after(n, k, depth) for depth in range(layers + 1)] == [False] * layers + [
            True
        ]


def reached_after(n, k, layers):
    """Whether the first of n tokens reaches the last through causal layers dilated by 1, k, k² …"""
    seen = np.arange(n) == 0
    for layer in range(layers):
        shifts = [step * k**layer for step in range(k)]
        seen = np.any([np.roll(np.where(np.arange(n) < n - s, seen, False), s) for s in shifts], 0)
    return bool(seen[-1])


def test_a_window_over_everything_is_self_attention():
    for window in (N, N + 1, 10 * N):
        table = tfattn.complexity(N, D, window=window)
        assert table["windowed self-attention"] == table["self-attention"]


def test_a_single_token_has_a_path_of_one():
    for layer, cost in tfattn.complexity(1, D, kernel_size=K, window=R).items():
        assert cost.longest_path == 1 and cost.sequential_steps == 1, layer
