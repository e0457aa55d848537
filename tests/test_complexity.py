"""The table of costs against its formulas, and its paths against walks over the connections."""

import re

import numpy as np
import pytest

import tfattn

N, D, K, R = 101, 7, 3, 11
LAYERS = [
    "self-attention",
    "recurrence",
    "convolution",
    "dilated convolution",
    "separable convolution",
    "windowed self-attention",
]


@pytest.mark.parametrize(
    ("name", "operations", "steps", "path"),
    [
        ("self-attention", N**2 * D, 1, 1),
        ("recurrence", N * D**2, N, N),
        ("convolution", K * N * D**2, 1, 34),  # 101 / 3
        ("dilated convolution", K * N * D**2, 1, 5),  # 3^4 = 81 < 101
        ("separable convolution", K * N * D + N * D**2, 1, 34),
        ("windowed self-attention", R * N * D, 1, 10),  # 101 / 11
    ],
)
def test_a_layer_costs_what_the_table_says(name, operations, steps, path):
    found = tfattn.complexity(N, D, kernel_size=K, window=R)[name]
    assert found == (operations, steps, path)
    assert found == (found.operations, found.sequential_steps, found.longest_path)
    assert all(type(number) is int for number in found)


def test_the_layers_come_in_the_order_of_the_table():
    assert list(tfattn.complexity(N, D)) == LAYERS


@pytest.mark.parametrize("k", [2, 3, 5, 10])
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_logarithm_is_exact_at_powers_of_the_kernel(k, layers):
    # math.log(125, 5) is 3.0000000000000004, and would be rounded up to 4
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


@pytest.mark.parametrize(
    ("name", "slope"),
    [(name, 2.0 if name == "self-attention" else 1.0) for name in LAYERS],
)
def test_operations_grow_with_length_by_their_power(name, slope):
    few, many = (tfattn.complexity(n, D, K, R)[name].operations for n in (N, 8 * N))
    assert np.log(many / few) / np.log(8) == pytest.approx(slope)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "`n` must be a positive integer. Received: n=0"),
        ({"n": 2.0}, "`n` must be a positive integer. Received: n=2.0"),
        ({"d": -1}, "`d` must be a positive integer. Received: d=-1"),
        (
            {"kernel_size": 1},
            "`kernel_size` must be an integer of at least 2. Received: kernel_size=1",
        ),
        (
            {"kernel_size": True},
            "`kernel_size` must be a positive integer. Received: kernel_size=True",
        ),
        ({"window": 0}, "`window` must be a positive integer. Received: window=0"),
    ],
)
def test_bad_numbers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(f"complexity: {message}")):
        tfattn.complexity(**{"n": N, "d": D, **arguments})
