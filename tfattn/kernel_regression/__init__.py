"""Kernel regression that chooses its bandwidth.

`KernelRegression` is local constant or local linear regression in NumPy, float64, whose `fit`
searches for the bandwidths. `KernelRegressor` is its estimator for scikit-learn (extra `sklearn`).
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from tfattn.kernel_regression import kernels
from tfattn.kernel_regression.regression import Band, KernelRegression, LeaveOneOut

if TYPE_CHECKING:
    from tfattn.kernel_regression.estimator import KernelRegressor as KernelRegressor

__all__ = [  # without `KernelRegressor`, so that a star import needs no scikit-learn
    "Band",
    "KernelRegression",
    "LeaveOneOut",
    "kernels",
]


def __getattr__(name: str) -> Any:
    if name == "KernelRegressor":  # lazily, since the others work without scikit-learn
        from tfattn.kernel_regression.estimator import KernelRegressor

        return KernelRegressor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    installed = importlib.util.find_spec("sklearn") is not None
    return sorted({*globals(), *["KernelRegressor"] * installed})
