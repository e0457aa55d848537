"""Kernel regression as a method of statistics: NumPy and SciPy in float64, without a layer.

`KernelRegression` is local constant or local linear regression, whose `fit` chooses bandwidths to
convergence. `tfattn.NadarayaWatsonRegressor`, the Keras model, and
`tfattn.sklearn.NadarayaWatsonRegressor`, the estimator, stand on it.
"""

from tfattn.smoothing import kernels
from tfattn.smoothing.regression import Band, KernelRegression, LeaveOneOut

__all__ = ["Band", "KernelRegression", "LeaveOneOut", "kernels"]
