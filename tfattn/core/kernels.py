"""Smoothing kernels in log space.

A kernel says how much a key counts at a given distance. Each function here takes the squared
distance in bandwidths, u² = ‖(query − key) / bandwidth‖², and returns log K(u) up to a constant.
The softmax over keys turns that into the weights of Nadaraya and Watson. In log space a query far
from every key still gets finite weights that sum to 1. A kernel of compact support returns −inf
outside its support, which is the same as a masked pair.

To add a kernel, write one more function with `@_named`. Users may also pass a function instead of a
name.

Source: Nadaraya 1964; Watson 1964; Epanechnikov 1969; Wasserman, All of Nonparametric Statistics,
4.2, for all but the triangular one. D2L calls the triangular kernel Epanechnikov.
"""

import functools
from collections.abc import Callable

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core.floats import given_floats

__all__ = ["boxcar", "epanechnikov", "gaussian", "get", "names", "triangular"]

Kernel = Callable[[Tensor], Tensor]  # from u² to log K(u)

_BY_NAME: dict[str, Kernel] = {}


def _named(kernel: Kernel) -> Kernel:
    @functools.wraps(kernel)
    def checked(squared: Tensor) -> Tensor:
        return kernel(given_floats(f"kernels.{kernel.__name__}", "squared", squared, "(...)"))

    _BY_NAME[kernel.__name__] = checked
    return checked


def _inside(squared: Tensor, log_kernel: Tensor) -> Tensor:
    """`log_kernel` where u < 1, −inf elsewhere; NaN distances stay NaN."""
    # `>=` is False for NaN: a broken input shows, and does not pass for a distant one.
    return ops.where(squared >= 1.0, -float("inf"), log_kernel)


@_named
def gaussian(squared: Tensor) -> Tensor:
    """Gaussian: log K = −u²/2, for `squared` = u²."""
    return -0.5 * squared


@_named
def boxcar(squared: Tensor) -> Tensor:
    """Boxcar: K = 1 for u ≤ 1, else 0. It gives the plain mean of the neighbours."""
    return ops.where(squared > 1.0, -float("inf"), 0.0 * squared)


@_named
def triangular(squared: Tensor) -> Tensor:
    """Triangular: K = 1 − u for u < 1, else 0."""
    # The root has an infinite slope at 0: nearer than 1e-6 bandwidths, a distance is constant.
    root = ops.sqrt(ops.maximum(squared, 1e-12))
    return _inside(squared, ops.log(1.0 - ops.minimum(root, 1.0 - 1e-6)))


@_named
def epanechnikov(squared: Tensor) -> Tensor:
    """Epanechnikov: K = 1 − u² for u < 1, else 0."""
    # Not `log1p`, which ONNX lacks: of a score the absolute error counts, and that is as small.
    return _inside(squared, ops.log(1.0 - ops.minimum(squared, 1.0 - 1e-6)))


def names() -> list[str]:
    """The names that `get` knows."""
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


def serialize(kernel: str | Kernel) -> str | dict:
    """The name of a kernel of this module; Keras's own form for any other callable."""
    if isinstance(kernel, str):
        return kernel
    name = getattr(kernel, "__name__", None)
    if _BY_NAME.get(name) is kernel:
        return name
    return keras.saving.serialize_keras_object(kernel)


def with_kernel(config: dict) -> dict:
    """A layer's config, whose kernel is made again from what `serialize` wrote."""
    kernel = config.get("kernel")
    if not isinstance(kernel, dict):
        return config
    return {**config, "kernel": keras.saving.deserialize_keras_object(kernel)}
