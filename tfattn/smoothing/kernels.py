"""Smoothing kernels for NumPy: value, logarithm, slope and support, all of s = u².

u is the distance in bandwidths. A kernel is radial, K(‖u‖): the Gaussian alone is also the product
of its columns. Constants cancel in every weighted mean and are left out. The same kernels stand in
`tfattn.kernels` for layers, in log space.

Source: Nadaraya 1964; Epanechnikov 1969; Wand, Jones, Kernel Smoothing, 2.7; for categories
Aitchison, Aitken 1976.
"""

import numbers
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tfattn import _checks

__all__ = ["Kernel", "aitchison_aitken", "get", "names"]

Array = np.ndarray
# What weighs less than 2⁻⁶⁰ of the nearest key is not seen in a float64 sum.
_UNSEEN = 60.0 * np.log(2.0)


@dataclass(frozen=True)
class Kernel:
    """A kernel, by four functions of arrays and two facts.

    Attributes:
        name: as `get` knows it.
        support: distance in bandwidths from which on K is 0; inf where it never is.
        log: from s = u² to log K.
        value: from s to K. Not asked of a kernel without end, whose K may underflow.
        slope: from s and K to dK/ds; 0 where K is.
        smooth: whether the slope tells an optimiser where to go: False for the boxcar.
    """

    name: str
    support: float
    log: Callable[[Array], Array]
    value: Callable[[Array], Array]
    slope: Callable[[Array, Array], Array]
    smooth: bool = True

    @property
    def pointed(self) -> bool:
        """Whether K has a point at 0, where the last digits of a distance count."""
        return self.name in ("laplace", "triangular")

    def __reduce__(self) -> tuple:
        if _BY_NAME.get(self.name) is self:
            return get, (self.name,)  # functions made here have no name to be found by
        return object.__reduce_ex__(self, 2)

    def reach(self, nearest: Array) -> Array:
        """How far from a query keys are seen, where the nearest one is that far from it."""
        if np.isfinite(self.support):
            return np.full(np.shape(nearest), self.support)
        if self.name == "gaussian":
            return np.sqrt(np.square(nearest) + 2.0 * _UNSEEN)
        return nearest + _UNSEEN + 2.0  # log K is −u, and −u + 2 log 2 for the logistic kernel


def _root(s: Array) -> Array:
    return np.sqrt(s)


def _over_root(numerator: Array, s: Array) -> Array:
    """numerator / u, and 0 at u = 0: a pair without a distance changes with no bandwidth."""
    u = np.sqrt(s)
    return np.divide(numerator, u, out=np.zeros_like(u), where=u > 0)


def _compact(name, inside, slope, smooth=True):
    """A kernel that is `inside(min(s, 1))` up to u = 1 and 0 from there on."""

    def value(s: Array) -> Array:
        return np.where(s < 1.0, inside(np.minimum(s, 1.0)), 0.0)

    def log(s: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(value(s))

    def checked_slope(s: Array, k: Array) -> Array:
        return np.where(s < 1.0, slope(np.minimum(s, 1.0), k), 0.0)

    return Kernel(name, 1.0, log, value, checked_slope, smooth)


def _endless(name, log, slope):
    return Kernel(name, np.inf, log, lambda s: np.exp(log(s)), slope)


def _tanh_slope(s: Array, k: Array) -> Array:
    return _over_root(-0.5 * k * np.tanh(0.5 * _root(s)), s)


def _boxcar() -> Kernel:
    def value(s: Array) -> Array:
        return np.where(s <= 1.0, 1.0, 0.0)

    def log(s: Array) -> Array:
        return np.where(s <= 1.0, 0.0, -np.inf)

    return Kernel("boxcar", 1.0, log, value, lambda s, k: np.zeros_like(s), smooth=False)


_ALL = [
    _endless("gaussian", lambda s: -0.5 * s, lambda s, k: -0.5 * k),
    _boxcar(),
    _compact(
        "triangular", lambda s: 1.0 - _root(s), lambda s, k: _over_root(np.full_like(s, -0.5), s)
    ),
    _compact("epanechnikov", lambda s: 1.0 - s, lambda s, k: np.full_like(s, -1.0)),
    _compact("biweight", lambda s: np.square(1.0 - s), lambda s, k: -2.0 * (1.0 - s)),
    _compact(
        "tricube",
        lambda s: (1.0 - s * _root(s)) ** 3,
        lambda s, k: -4.5 * _root(s) * np.square(1.0 - s * _root(s)),
    ),
    _compact(
        "cosine",
        lambda s: np.cos(0.5 * np.pi * _root(s)),
        lambda s, k: _over_root(-0.25 * np.pi * np.sin(0.5 * np.pi * _root(s)), s),
    ),
    _endless("laplace", lambda s: -_root(s), lambda s, k: _over_root(-0.5 * k, s)),
    _endless(
        "logistic",
        lambda s: -_root(s) - 2.0 * np.log1p(np.exp(-_root(s))) + 2.0 * np.log(2.0),
        _tanh_slope,
    ),
]
_BY_NAME = {kernel.name: kernel for kernel in _ALL}


def names() -> list[str]:
    """The names that `get` knows."""
    return sorted(_BY_NAME)


def get(kernel: str | Kernel, who: str = "smoothing.kernels.get") -> Kernel:
    """The kernel of that name, or the `Kernel` itself.

    Raises:
        ValueError: no kernel has that name.
    Example:
        >>> from tfattn.smoothing import kernels
        >>> kernels.get("epanechnikov").support
        1.0
    """
    if isinstance(kernel, Kernel):
        return kernel
    if not isinstance(kernel, str) or kernel not in _BY_NAME:
        known = ", ".join(repr(name) for name in names())
        _checks.fail(who, "kernel", f"be one of {known}", kernel)
    return _BY_NAME[kernel]


def aitchison_aitken(same: Array, width: float, categories: int) -> Array:
    """The weight of a category: 1 − λ where it is the same, λ / (c − 1) where it is another.

    Args:
        same: bool array, whether query and key have the same category.
        width: λ in [0, (c − 1) / c]. 0 keeps categories apart, the greatest does not tell them
            from one another.
        categories: int c, how many there are.
    Raises:
        ValueError: an argument that is none of these.
    Example:
        >>> from tfattn.smoothing import kernels
        >>> print(kernels.aitchison_aitken(np.array([True, False]), 0.2, 3))
        [0.8 0.1]
    """
    who = "aitchison_aitken"
    _checks.positive_int(who, "categories", categories)
    most = (categories - 1) / categories
    if not isinstance(width, numbers.Real) or isinstance(width, bool) or not 0 <= width <= most:
        _checks.fail(who, "width", f"be in [0, (c − 1) / c], here up to {most:.4g}", width)
    try:
        alike = np.asarray(same)
    except ValueError:
        alike = np.asarray(None)
    if alike.dtype.kind != "b":
        _checks.fail(who, "same", "be a bool array", same)
    return np.where(alike, 1.0 - width, width / max(categories - 1, 1))
