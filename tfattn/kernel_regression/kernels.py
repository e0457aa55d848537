"""Smoothing kernels for NumPy: value, logarithm, slope and support as functions of s = u².

u is the distance in bandwidths. A kernel is radial, K(‖u‖): only the Gaussian is also a product
over columns. Constants cancel in every weighted mean and are left out. The formulas are those of
`tfattn.kernels`, which has the same kernels for layers, in log space.

Source: Nadaraya 1964; Epanechnikov 1969; Wand, Jones, Kernel Smoothing, 2.7.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn.core.kernels import FORMULAS

__all__ = ["Kernel", "get", "names"]

Array = np.ndarray


@dataclass(frozen=True)
class Kernel:
    """A kernel as functions of arrays. A new kernel needs the first five attributes; the others
    have defaults.

    Attributes:
        name: for messages.
        support: distance in bandwidths from which on K is 0; inf for unbounded support.
        log: function of s = u² to log K, which never rises.
        value: function of s to K. Not used with unbounded support, where K may underflow.
        slope: function of s and K to dK/ds; 0 where K is 0. With unbounded support K has an
            arbitrary factor, and so has the slope.
        smooth: whether a gradient method can use the slope: False for the boxcar.
        reach: function of a distance d and a number n, for unbounded support: the distance from
            which on log K is at most log K(d) − n. Defaults to None: every key has weight.
        box_sums: whether K is exp(−s / 2), whose sums on a line are computed over boxes.
    Example:
        >>> from tfattn.kernel_regression import KernelRegression
        >>> log, slope = lambda s: -np.log1p(s), lambda s, k: -k / (1.0 + s)
        >>> cauchy = Kernel("cauchy", np.inf, log, value=None, slope=slope)
        >>> model = KernelRegression(cauchy, bandwidth=1.0).fit([0.0, 1.0], [0.0, 3.0])
        >>> print(model.predict([0.0]))
        [1.]
    """

    name: str
    support: float
    log: Callable[[Array], Array]
    value: Callable[[Array], Array] | None
    slope: Callable[[Array, Array], Array]
    smooth: bool = True
    reach: Callable[[Array, float], Array] | None = None
    box_sums: bool = False

    def __reduce__(self) -> str | tuple[Any, ...]:
        if _BY_NAME.get(self.name) is self:
            return get, (self.name,)  # by name, since its lambdas cannot be pickled
        return object.__reduce_ex__(self, 2)

    def __repr__(self) -> str:
        if _BY_NAME.get(self.name) is self:
            return repr(self.name)
        return f"Kernel({self.name!r}, support={self.support})"


def _over_root(numerator: Array, s: Array) -> Array:
    """numerator / u, and 0 at u = 0, where no bandwidth has an effect."""
    u = np.sqrt(s)
    return np.divide(numerator, u, out=np.zeros_like(u), where=u > 0)


def _compact(name: str, slope: Callable[[Array, Array], Array], **attributes: Any) -> Kernel:
    """A kernel that is its formula of min(s, 1) up to u = 1 and 0 from there on."""
    formula = FORMULAS[name]

    def value(s: Array) -> Array:
        return np.where(s < 1.0, formula(np.minimum(s, 1.0), np), 0.0)

    def log(s: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(value(s))

    def checked_slope(s: Array, k: Array) -> Array:
        return np.where(s < 1.0, slope(np.minimum(s, 1.0), k), 0.0)

    return Kernel(name, 1.0, log, value, checked_slope, **attributes)


def _unbounded(name: str, slope: Callable[[Array, Array], Array], **attributes: Any) -> Kernel:
    formula = FORMULAS[name]
    value = lambda s: np.exp(formula(s, np))  # noqa: E731
    return Kernel(name, np.inf, lambda s: formula(s, np), value, slope, **attributes)


def _boxcar() -> Kernel:
    # A tolerance at the edge: evenly spaced points one bandwidth apart are neighbors despite
    # rounding.
    edge = 1.0 + 1e-9

    def value(s: Array) -> Array:
        return np.where(s <= edge, 1.0, 0.0)

    def log(s: Array) -> Array:
        return np.where(s <= edge, 0.0, -np.inf)

    return Kernel("boxcar", 1.0, log, value, lambda s, k: np.zeros_like(s), smooth=False)


_ALL = [
    _unbounded(
        "gaussian",
        lambda s, k: -0.5 * k,
        reach=lambda nearest, log_ratio: np.sqrt(np.square(nearest) + 2.0 * log_ratio),
        box_sums=True,
    ),
    _boxcar(),
    _compact("triangular", lambda s, k: _over_root(np.full_like(s, -0.5), s)),
    _compact("epanechnikov", lambda s, k: np.full_like(s, -1.0)),
    _compact("biweight", lambda s, k: -2.0 * (1.0 - s)),
    _compact("tricube", lambda s, k: -4.5 * np.sqrt(s) * np.square(1.0 - s * np.sqrt(s))),
    _compact(
        "cosine", lambda s, k: _over_root(-0.25 * np.pi * np.sin(0.5 * np.pi * np.sqrt(s)), s)
    ),
    _unbounded(
        "laplace",
        lambda s, k: _over_root(-0.5 * k, s),
        reach=lambda nearest, log_ratio: nearest + log_ratio,
    ),
    _unbounded(
        "logistic",
        lambda s, k: _over_root(-0.5 * k * np.tanh(0.5 * np.sqrt(s)), s),
        # −u ≤ log K ≤ −u + 2 log 2.
        reach=lambda nearest, log_ratio: nearest + log_ratio + 2.0 * np.log(2.0),
    ),
]
_BY_NAME = {kernel.name: kernel for kernel in _ALL}


def names() -> list[str]:
    """The names of the kernels."""
    return sorted(_BY_NAME)


def get(kernel: str | Kernel, who: str = "kernel_regression.kernels.get") -> Kernel:
    """The kernel of that name, or the `Kernel` itself.

    Raises:
        ValueError: no kernel has that name.
    Example:
        >>> from tfattn.kernel_regression import kernels
        >>> kernels.get("epanechnikov").support
        1.0
    """
    if isinstance(kernel, Kernel):
        return kernel
    if not isinstance(kernel, str) or kernel not in _BY_NAME:
        known = ", ".join(repr(name) for name in names())
        _checks.fail(who, "kernel", f"be one of {known}", kernel)
    return _BY_NAME[kernel]
