"""Smoothing kernels in log space.

A kernel says how much a key counts at a distance. Each function here takes the squared distance in
bandwidths, u² = ‖(query − key) / bandwidth‖², and returns log K(u) up to a constant, which the
softmax over keys turns into the weights of Nadaraya and Watson. In log space a query far from every
key still gets finite weights that sum to 1. A kernel of compact support returns −inf outside of it,
which is the same as a masked pair.

The next kernel is one more function with `@_named`; users pass a function of their own instead of a
name.

Source: Nadaraya 1964; Watson 1964; Epanechnikov 1969; Wasserman, All of Nonparametric Statistics,
4.2, for all but the triangular one. D2L calls the triangular kernel Epanechnikov.
"""

import keras
from keras import ops

from tfattn import _checks

__all__ = ["boxcar", "epanechnikov", "gaussian", "get", "names", "triangular"]

_BY_NAME = {}


def _named(kernel):
    _BY_NAME[kernel.__name__] = kernel
    return kernel


def _inside(squared, log_kernel):
    """`log_kernel` where u < 1, −inf elsewhere; NaN distances stay NaN."""
    # Written with `>=`, which is False for NaN, so that a broken input shows instead of passing for
    # a far one.
    return ops.where(squared >= 1.0, -float("inf"), log_kernel)


@_named
def gaussian(squared):
    """log K = −u²/2."""
    return -0.5 * squared


@_named
def boxcar(squared):
    """K = 1 for u ≤ 1: the plain mean of the neighbours."""
    return ops.where(squared > 1.0, -float("inf"), 0.0 * squared)


@_named
def triangular(squared):
    """K = 1 − u for u < 1."""
    # The slope of the root is infinite at 0; a distance of 1e-6 bandwidths counts as none.
    root = ops.sqrt(ops.maximum(squared, 1e-12))
    return _inside(squared, ops.log1p(-ops.minimum(root, 1.0 - 1e-6)))


@_named
def epanechnikov(squared):
    """K = 1 − u² for u < 1."""
    return _inside(squared, ops.log1p(-ops.minimum(squared, 1.0 - 1e-6)))


def names():
    """The names that `get` knows."""
    return sorted(_BY_NAME)


def get(kernel, who="kernels.get"):
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


def serialize(kernel):
    """The name of a kernel of this module; Keras's own form for any other callable."""
    if isinstance(kernel, str) or _BY_NAME.get(getattr(kernel, "__name__", None)) is kernel:
        return kernel if isinstance(kernel, str) else kernel.__name__
    return keras.saving.serialize_keras_object(kernel)


def with_kernel(config):
    """A layer's config with its kernel made from what `serialize` wrote, where there is one."""
    kernel = config.get("kernel")
    if not isinstance(kernel, dict):
        return config
    return {**config, "kernel": keras.saving.deserialize_keras_object(kernel)}
