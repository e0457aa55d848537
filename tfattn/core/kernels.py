"""Smoothing kernels in log space.

A kernel weighs a key by its distance. Each function here takes the squared distance in bandwidths,
u² = ‖(query − key) / bandwidth‖², and returns log K(u) up to a constant. The softmax over keys
turns log K into the weights of Nadaraya and Watson. In log space a query far from every key still
gets finite weights that sum to 1. A kernel of compact support returns −inf outside its support, the
score of a masked pair.

To add a kernel, write one more formula; its slope is in `kernel_regression.kernels`. Users may also
pass a function instead of a name.

Source: Nadaraya 1964; Watson 1964; Epanechnikov 1969; Cleveland 1979 for the tricube; Silverman,
Density Estimation, 1986, table 3.1; Wasserman, All of Nonparametric Statistics, 4.2. D2L
(d2l.ai) calls the triangular kernel Epanechnikov.
"""

import math
import types
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core.tensors import given_floats

Kernel = Callable[[Tensor], Tensor]  # from u² to log K(u)
Formula = Callable[[Any, Any], Any]  # of u² and a module of array functions, Keras's or NumPy's

FORMULAS: dict[str, Formula] = {}  # log K of a kernel of `UNBOUNDED` support, else K for u < 1
UNBOUNDED = {"gaussian", "laplace", "logistic"}
_BY_NAME: dict[str, Kernel] = {}
_functions = types.SimpleNamespace(exp=ops.exp, sin=ops.sin)
# At least 1e-6: the root has an infinite slope at 0.
_functions.sqrt = lambda squared: ops.sqrt(ops.maximum(squared, 1e-12))
# ONNX lacks `log1p`: the absolute error of a score counts, and it is as small here.
_functions.log1p = lambda x: ops.log(1.0 + x)


def _kernel(name: str, about: str, formula: Formula) -> Kernel:
    """The kernel of a formula, by the documentation's words about it."""

    def kernel(squared: Tensor) -> Tensor:
        squared = given_floats(f"kernels.{name}", "squared", squared, "(...)")
        dtype = keras.backend.standardize_dtype(squared.dtype)
        # float32 or wider: half precision has neither 1e-12 nor 1 − 1e-6.
        wide = ops.cast(squared, keras.backend.result_type(dtype, "float32"))
        return ops.cast(_log(name, wide), dtype)

    kernel.__name__ = kernel.__qualname__ = name
    kernel.__doc__ = f"{name.capitalize()}: {about}, for `squared` = u²."
    FORMULAS[name], _BY_NAME[name] = formula, kernel
    return kernel


def _log(name: str, squared: Tensor) -> Tensor:
    """log K: −inf outside of the support; NaN distances stay NaN, for which `>=` is False."""
    if name in UNBOUNDED:
        return FORMULAS[name](squared, _functions)
    if name == "boxcar":
        return ops.where(squared > 1.0, -float("inf"), 0.0 * squared)
    inside = FORMULAS[name](ops.minimum(squared, 1.0 - 1e-6), _functions)
    return ops.where(squared >= 1.0, -float("inf"), ops.log(inside))


def _cubed(x: Any) -> Any:
    return x * x * x  # a power takes six times as long


def _logistic(u: Any, f: Any) -> Any:
    return -u - 2.0 * f.log1p(f.exp(-u)) + 2.0 * math.log(2.0)


gaussian = _kernel("gaussian", "log K = −u²/2", lambda s, f: -0.5 * s)
boxcar = _kernel("boxcar", "K = 1 for u ≤ 1, else 0: a plain mean", lambda s, f: 1.0 + 0.0 * s)
triangular = _kernel("triangular", "K = 1 − u for u < 1, else 0", lambda s, f: 1.0 - f.sqrt(s))
epanechnikov = _kernel("epanechnikov", "K = 1 − u² for u < 1, else 0", lambda s, f: 1.0 - s)
biweight = _kernel(
    "biweight", "K = (1 − u²)² for u < 1, else 0", lambda s, f: (1.0 - s) * (1.0 - s)
)
tricube = _kernel(
    "tricube", "K = (1 − u³)³ for u < 1, else 0", lambda s, f: _cubed(1.0 - s * f.sqrt(s))
)
cosine = _kernel(
    "cosine",
    "K = cos(π u / 2) for u < 1, else 0",
    # The sine of the distance to the edge keeps more digits than the cosine, and stays above 0.
    lambda s, f: f.sin(0.5 * math.pi * (1.0 - f.sqrt(s))),
)
laplace = _kernel("laplace", "log K = −u, with long tails", lambda s, f: -f.sqrt(s))
logistic = _kernel("logistic", "K = 1 / cosh²(u / 2)", lambda s, f: _logistic(f.sqrt(s), f))

__all__ = [*_BY_NAME, "get", "names", "support"]


def support(kernel: str | Kernel) -> float | None:
    """The distance in bandwidths beyond which a kernel is 0; None for a user's function.

    Example:
        >>> kernels.support("tricube"), kernels.support("gaussian")
        (1.0, inf)
    """
    name: Any = getattr(get(kernel, "kernels.support"), "__name__", None)
    if _BY_NAME.get(name) is not get(kernel):
        return None
    return float("inf") if name in UNBOUNDED else 1.0


def names() -> list[str]:
    """The names that `get` accepts."""
    return sorted(_BY_NAME)


def get(kernel: str | Kernel, who: str = "kernels.get") -> Kernel:
    """The kernel of that name, or the callable itself.

    Args:
        kernel: one of `names()`, or a function from squared distances to log weights.
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
