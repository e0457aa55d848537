"""Smoothing kernels in log space.

A kernel weighs a key by its distance. Each function here takes the squared distance in bandwidths,
u² = ‖(query − key) / bandwidth‖², and returns log K(u) up to a constant. The softmax over keys
turns log K into the weights of Nadaraya and Watson. In log space a query far from every key still
gets finite weights that sum to 1. A kernel of compact support returns −inf outside its support, the
score of a masked pair.

To add a kernel, write one more function with `@_named`. Users may also pass a function instead of a
name. `support` is the distance beyond which a kernel is 0.

Source: Nadaraya 1964; Watson 1964; Epanechnikov 1969; Cleveland 1979 for the tricube; Silverman,
Density Estimation, 1986, table 3.1; Wasserman, All of Nonparametric Statistics, 4.2. D2L
(d2l.ai) calls the triangular kernel Epanechnikov.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core.floats import given_floats

__all__ = [
    "biweight",
    "boxcar",
    "cosine",
    "epanechnikov",
    "gaussian",
    "get",
    "laplace",
    "logistic",
    "names",
    "support",
    "triangular",
    "tricube",
]

Kernel = Callable[[Tensor], Tensor]  # from u² to log K(u)

_BY_NAME: dict[str, Kernel] = {}
_UNBOUNDED = {"gaussian", "laplace", "logistic"}


def _named(kernel: Kernel) -> Kernel:
    @functools.wraps(kernel)
    def checked(squared: Tensor) -> Tensor:
        squared = given_floats(f"kernels.{kernel.__name__}", "squared", squared, "(...)")
        dtype = keras.backend.standardize_dtype(squared.dtype)
        # float32 or wider: half precision has neither 1e-12 nor 1 − 1e-6.
        wide = ops.cast(squared, keras.backend.result_type(dtype, "float32"))
        return ops.cast(kernel(wide), dtype)

    _BY_NAME[kernel.__name__] = checked
    return checked


def _inside(squared: Tensor, log_kernel: Tensor) -> Tensor:
    """`log_kernel` where u < 1, −inf elsewhere; NaN distances stay NaN."""
    # `>=` is False for NaN, which therefore stays NaN.
    return ops.where(squared >= 1.0, -float("inf"), log_kernel)


def _root(squared: Tensor) -> Tensor:
    """u, at least 1e-6: the root has an infinite slope at 0."""
    return ops.sqrt(ops.maximum(squared, 1e-12))


@_named
def gaussian(squared: Tensor) -> Tensor:
    """Gaussian: log K = −u²/2, for `squared` = u²."""
    return -0.5 * squared


@_named
def boxcar(squared: Tensor) -> Tensor:
    """Boxcar: K = 1 for u ≤ 1, else 0. It gives the plain mean of the neighbors."""
    return ops.where(squared > 1.0, -float("inf"), 0.0 * squared)


@_named
def triangular(squared: Tensor) -> Tensor:
    """Triangular: K = 1 − u for u < 1, else 0."""
    return _inside(squared, ops.log(1.0 - ops.minimum(_root(squared), 1.0 - 1e-6)))


@_named
def epanechnikov(squared: Tensor) -> Tensor:
    """Epanechnikov: K = 1 − u² for u < 1, else 0."""
    # Not `log1p`, which ONNX lacks: the absolute error of a score counts, and it is as small here.
    return _inside(squared, ops.log(1.0 - ops.minimum(squared, 1.0 - 1e-6)))


@_named
def biweight(squared: Tensor) -> Tensor:
    """Biweight, or quartic: K = (1 − u²)² for u < 1, else 0."""
    return _inside(squared, 2.0 * ops.log(1.0 - ops.minimum(squared, 1.0 - 1e-6)))


@_named
def tricube(squared: Tensor) -> Tensor:
    """Tricube, of LOESS: K = (1 − u³)³ for u < 1, else 0."""
    cube = squared * _root(squared)
    return _inside(squared, 3.0 * ops.log(1.0 - ops.minimum(cube, 1.0 - 1e-6)))


@_named
def cosine(squared: Tensor) -> Tensor:
    """Cosine: K = cos(π u / 2) for u < 1, else 0."""
    u = ops.minimum(_root(squared), 1.0 - 1e-6)
    # The sine of the distance to the edge keeps more digits than the cosine, and stays above 0.
    return _inside(squared, ops.log(ops.sin(0.5 * math.pi * ops.maximum(1.0 - u, 1e-6))))


@_named
def laplace(squared: Tensor) -> Tensor:
    """Laplace: log K = −u. Its tails are long: far away, ratios of weights stay bounded."""
    return -_root(squared)


@_named
def logistic(squared: Tensor) -> Tensor:
    """Logistic: K = 1 / cosh²(u / 2), between the Gaussian and Laplace."""
    u = _root(squared)
    return -u - 2.0 * ops.log(1.0 + ops.exp(-u)) + 2.0 * math.log(2.0)


def support(kernel: str | Kernel) -> float | None:
    """The distance in bandwidths beyond which a kernel is 0: 1.0, or inf for unbounded support.

    None for a user's function, since its support is unknown.

    Raises:
        ValueError: no kernel has that name.
    Example:
        >>> kernels.support("tricube"), kernels.support("gaussian")
        (1.0, inf)
    """
    name: Any = getattr(get(kernel, "kernels.support"), "__name__", None)
    if _BY_NAME.get(name) is not get(kernel):
        return None
    return float("inf") if name in _UNBOUNDED else 1.0


def names() -> list[str]:
    """The names that `get` accepts."""
    return sorted(_BY_NAME)


def get(kernel: str | Kernel, who: str = "kernels.get") -> Kernel:
    """The kernel of that name, or the callable itself.

    Args:
        kernel: one of `names()`, or a function from squared distances to log weights.
        who: the caller's name, for the error.
    Raises:
        ValueError: no kernel has that name.
    Example:
        >>> float(kernels.get("gaussian")(4.0))
        -2.0
    """
    if callable(kernel):
        return kernel
    if not isinstance(kernel, str) or kernel not in _BY_NAME:
        known = ", ".join(repr(name) for name in names())
        _checks.fail(who, "kernel", f"be one of {known}, or a callable", kernel)
    return _BY_NAME[kernel]


def serialize(kernel: str | Kernel) -> str | dict[str, Any]:
    """The name of a kernel of this module; Keras's own form for any other callable."""
    if isinstance(kernel, str):
        return kernel
    name: Any = getattr(kernel, "__name__", None)
    if _BY_NAME.get(name) is kernel:
        return name
    return keras.saving.serialize_keras_object(kernel)
