"""Data of known curves and a custom kernel, for the tests of this folder."""

import numpy as np

from tfattn.kernel_regression import kernels


def line(seed=0, n=50):
    """The posts' data: n points in [0, 5), `(x, y)`."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 5, n))
    return x, 2 * np.sin(x) + x**0.8 + rng.normal(0, 0.5, n)


def plane(seed=0, n=60):
    """Points in a square, `(x (n, 2), y)`."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    return x, np.sin(4 * x[:, 0]) + np.cos(3 * x[:, 1]) + rng.normal(0, 0.3, n)


def cauchy(name="cauchy"):
    """A kernel with unbounded support and unknown reach, 1 / (1 + u²)."""
    return kernels.Kernel(
        name, np.inf, lambda s: -np.log1p(s), value=None, slope=lambda s, k: -k / (1.0 + s)
    )
