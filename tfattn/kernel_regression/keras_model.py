"""Kernel regression as a Keras model, with `fit` and `predict`."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import ArrayLike, Shape, Tensor
from tfattn.core import kernels, scores
from tfattn.core.attend import attend
from tfattn.core.engine import scope
from tfattn.core.floats import given_floats
from tfattn.kernel_regression import arrays
from tfattn.kernel_regression.regression import KernelRegression
from tfattn.layers.attention.scores import checked_smoothing

WHO = "NadarayaWatsonRegressor"
# In bandwidths: a Gaussian so narrow that only the nearest keys have weight.
_NARROW = {"float64": 1e-8, "float32": 1e-4}
_gaussian = scores.log_kernel(kernels.get("gaussian"))


class _Regression(KernelRegression):
    """The regression with messages that name the model."""

    _who = WHO


@keras.saving.register_keras_serializable("tfattn")
class NadarayaWatsonRegressor(keras.Model):
    """Nadaraya–Watson regression: `fit` finds the bandwidth, `predict` pools the training points.

    The bandwidth minimizes the leave-one-out error, in which each training point is predicted from
    all others. `fit` finds it to convergence and `predict` computes in float64, both by
    `tfattn.kernel_regression.KernelRegression`. As a layer (in a `Sequential`, in `evaluate`,
    exported) the model computes with Keras's tensors. Points, their y and the bandwidth are its
    weights, in float64 if the backend has it, and are saved with the model but not trained. The
    layer `tfattn.NadarayaWatson` trains its bandwidth by gradients.

    Args:
        kernel: a name of `tfattn.kernels.names()`, such as "gaussian".
        bandwidth: positive number, or one per dimension of x, in the units of x; `fit` keeps it.
            Defaults to None: `fit` chooses one per dimension.
        shared_bandwidth: whether `fit` chooses one bandwidth for all dimensions.
        empty: the prediction without a training point in a compact kernel's support: "nearest", the
            value of the nearest point; "mean", the mean of all; or "nan".
    Call arguments:
        inputs: float `(M, D)` or `(M,)`, the points to predict at.
    Returns:
        `(M, V)`, or `(M,)` if the y of `fit` was `(N,)`.
    Raises:
        ValueError: an unknown kernel, a bandwidth that is not positive, x and y of different
            lengths or with numbers that are not finite, fewer than two training points, or a
            prediction before `fit`.
    Example:
        >>> x = np.linspace(0.0, 5.0, 50)
        >>> model = NadarayaWatsonRegressor()
        >>> history = model.fit(x, np.sin(x))
        >>> bool(np.all(np.abs(model.predict(x) - np.sin(x)) < 0.05))
        True

    Source: Nadaraya 1964; Watson 1964; leave-one-out, Wasserman, All of Nonparametric Statistics,
    5.3.
    """

    def __init__(
        self,
        kernel: str = "gaussian",
        bandwidth: float | Sequence[float] | None = None,
        shared_bandwidth: bool = False,
        empty: str = "nearest",
        **kwargs: Any,
    ):
        kwargs.setdefault("autocast", False)  # as in `NadarayaWatson`
        super().__init__(**kwargs)
        self.kernel, self.bandwidth = _checks.string(WHO, "kernel", kernel), bandwidth
        if bandwidth is not None:
            _, self.bandwidth = checked_smoothing(WHO, kernel, bandwidth)
        self.shared_bandwidth = _checks.boolean(WHO, "shared_bandwidth", shared_bandwidth)
        self.empty = _Regression(kernel, empty=empty).empty
        self._score = scores.log_kernel(kernels.get(kernel))
        self.points: Any = None  # x, (N, D)
        self.heights: Any = None  # y, (N, V) or (N,)
        self.width: Any = None  # the bandwidth in use, () or (D,)
        self.compile(loss="mean_squared_error")

    def fit(self, x: ArrayLike, y: ArrayLike, verbose: Any = None) -> keras.callbacks.History:
        """Keeps the points and chooses the bandwidth, unless it is given.

        Args:
            x: float `(N, D)` or `(N,)`.   y: float `(N, V)` or `(N,)`. Arrays rather than a
                `tf.data` pipeline: every prediction needs all points.
            verbose: has no effect, for compatibility with `keras.Model.fit`.
        Returns:
            Keras's `History`. Its loss is the least leave-one-out error after each evaluated
            bandwidth, or the error of the given bandwidth.
        """
        metric = "one" if self.shared_bandwidth else "each"
        regression = _Regression(self.kernel, self.bandwidth, metric, empty=self.empty).fit(x, y)
        errors = regression.search_errors or [regression.leave_one_out().error]
        x, y = arrays.table(WHO, "x", x), arrays.table(WHO, "y", y)
        values = x, y[:, 0] if regression.is_flat else y, regression.current_bandwidth()
        self._build(*map(np.shape, values))
        for weight, value in zip(self._fitted(), values, strict=True):
            weight.assign(value)
        self.history = keras.callbacks.History()
        self.history.history, self.history.epoch = {"loss": errors}, [*range(len(errors))]
        return self.history

    def predict(
        self,
        x: ArrayLike,
        batch_size: int | None = None,
        verbose: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
    ) -> np.ndarray:
        """Predictions at x, `(M, V)` or `(M,)`, from all training points, in float64.

        Memory does not grow with the pairs of points. Keras's other arguments have no effect.
        """
        return self.smoother().predict(x)

    def evaluate(
        self,
        x: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        verbose: Any = None,
        return_dict: bool = False,
    ) -> float | list[float] | dict[str, float]:
        """As `keras.Model.evaluate`, in one batch of float64 inputs."""
        self.reset_metrics()
        x, y = arrays.table(WHO, "x", x), arrays.table(WHO, "y", y)
        return self.test_on_batch(x, y, sample_weight, return_dict=return_dict)

    def smoother(self) -> KernelRegression:
        """The regression in NumPy with the points and bandwidth of this model, for bands,
        derivatives, the conditional variance and residuals.
        """
        self._check_fitted()
        x, y, bandwidth = (ops.convert_to_numpy(weight) for weight in self._fitted())
        bandwidth = np.asarray(bandwidth, "float64")
        return _Regression(self.kernel, bandwidth, empty=self.empty).fit(x, y)

    def attention_weights(self, x: ArrayLike) -> np.ndarray:
        """The weight of each training point at each x: NumPy `(M, N)`, rows sum to 1."""
        return self.smoother().weights(x)

    def current_bandwidth(self) -> np.ndarray:
        """The bandwidth in use, in float64: a scalar, or `(D,)`."""
        if self.points is None and self.bandwidth is not None:
            return np.asarray(self.bandwidth, "float64")
        self._check_fitted()
        return np.asarray(ops.convert_to_numpy(self.width), "float64")

    def export(
        self,
        filepath: str | PathLike[str],
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> Any:
        """As `keras.Model.export`; the endpoint takes float32 points `(M, D)`.

        Formats other than SavedModel use the dense path only, unless a scope `tfattn.path` is open.
        """
        self._check_fitted()
        if format == "litert":
            expected = "be another format, since the model computes in float64, which LiteRT lacks"
            _checks.fail(WHO, "format", expected, format)
        if input_signature is None:
            shape = (None, self.points.shape[-1])
            input_signature = [keras.InputSpec(dtype="float32", shape=shape)]
        with scope.export(format):
            return super().export(
                filepath, format, verbose=verbose, input_signature=input_signature, **kwargs
            )

    def call(self, inputs: Tensor) -> Tensor:
        self._check_fitted()
        x = ops.cast(given_floats(WHO, "inputs", inputs, "(M,) or (M, D)"), self.points.dtype)
        _checks.rank(WHO, "inputs", x.shape, (1, 2), "(M,) or (M, D)")
        x = x[:, None] if len(x.shape) == 1 else x
        if x.shape[-1] != self.points.shape[-1]:
            expected = f"have the {self.points.shape[-1]} columns of the training points"
            _checks.fail(WHO, "inputs", expected, tuple(x.shape))
        # Centered, so that distances far from the origin keep their digits.
        middle = ops.mean(self.points, axis=0)
        query, key = (ops.subtract(each, middle) / self.width for each in (x, self.points))
        heights = ops.reshape(self.heights, (key.shape[0], -1))  # (N, V)
        ones = ops.ones((key.shape[0], 1), dtype=heights.dtype)  # pool to 0 without neighbors
        value = ops.cast(ops.concatenate([heights, ones], axis=-1), self.compute_dtype)
        pooled = attend(query=query[None], value=value[None], key=key[None], score=self._score)[0]
        output, has_neighbor = pooled[:, :-1], pooled[:, -1:] > 0.5  # (M, V), (M, 1)
        if kernels.support(self.kernel) != float("inf"):
            fallback = ops.cast(self._without_neighbors(query, key), output.dtype)
            output = ops.where(has_neighbor, output, fallback)
        return output[:, 0] if len(self.heights.shape) == 1 else output

    def _without_neighbors(self, query: Tensor, key: Tensor) -> Tensor:
        """The values of queries without neighbors, `(M, V)` or `(1, V)`."""
        heights = ops.reshape(self.heights, (key.shape[0], -1))
        if self.empty != "nearest":
            mean = ops.mean(heights, axis=0, keepdims=True)
            return mean if self.empty == "mean" else ops.full_like(mean, float("nan"))
        h = _NARROW[keras.backend.standardize_dtype(key.dtype)]
        # By attention, which streams instead of computing all pairs at once.
        query, key = query[None] / h, key[None] / h
        return attend(query=query, value=heights[None], key=key, score=_gaussian)[0]

    def _fitted(self) -> tuple[Any, ...]:
        return self.points, self.heights, self.width

    def _build(self, *shapes: Shape) -> None:
        """Creates the weights for points, heights and bandwidth."""
        if self.points is not None:
            if tuple(tuple(weight.shape) for weight in self._fitted()) == shapes:
                return
            del self.points, self.heights, self.width
            self.test_function = None  # it captured the old weights
        options = {"trainable": False, "autocast": False, "dtype": _widest_dtype()}
        self.points, self.heights, self.width = (
            self.add_weight(name=name, shape=shape, **options)
            for name, shape in zip(("points", "heights", "bandwidth"), shapes, strict=True)
        )
        self.built = True

    def _check_fitted(self) -> None:
        if self.points is None:
            raise ValueError(f"{WHO}: `fit` must come before a prediction. Received: no points yet")

    def build(self, input_shape: Shape | None = None) -> None:
        """Does nothing: `fit` creates the weights, whose shapes depend on the points."""

    def get_build_config(self) -> dict[str, Any] | None:
        if self.points is None:
            return None
        return {"shapes": [list(weight.shape) for weight in self._fitted()]}

    def build_from_config(self, config: dict[str, Any]) -> None:
        self._build(*(tuple(shape) for shape in config["shapes"]))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kernel": self.kernel,
            "bandwidth": self.bandwidth,
            "shared_bandwidth": self.shared_bandwidth,
            "empty": self.empty,
        }


def _widest_dtype() -> str:
    """float64, or the backend's substitute."""
    return keras.backend.standardize_dtype(ops.convert_to_tensor(np.zeros(1)).dtype)
