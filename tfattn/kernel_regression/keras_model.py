"""Kernel regression as a Keras model, with `fit` and `predict`."""

import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import kernels, masks, scores
from tfattn.core.attend import attend
from tfattn.core.floats import given_floats
from tfattn.core.masks import Mask
from tfattn.core.paths import scope
from tfattn.kernel_regression import arrays
from tfattn.kernel_regression.regression import KernelRegression, LeaveOneOut
from tfattn.layers.attention.nadaraya_watson import NadarayaWatson
from tfattn.layers.attention.scores import checked_smoothing

__all__ = ["NadarayaWatsonRegressor"]

WHO = "NadarayaWatsonRegressor"
# Of a bandwidth: a Gaussian as narrow as that sees the nearest key alone, or several as near.
_NARROW = {"float64": 1e-8, "float32": 1e-4}
_narrow_gaussian = scores.log_kernel(kernels.get("gaussian"))


@keras.saving.register_keras_serializable("tfattn")
class NadarayaWatsonRegressor(keras.Model):
    """Nadaraya–Watson regression: `fit` finds the bandwidth, `predict` pools the training points.

    The bandwidth is the one with which each training point is predicted best from all others
    (leave-one-out). `fit(x, y)` finds it to convergence, from several starts, whatever the units of
    x and y are, and `predict` answers in float64: both by `kernel_regression.KernelRegression`,
    which knows confidence bands, local lines and categories too. `fit(x, y, epochs=N)` trains the
    bandwidth with Keras's loop instead, for its optimizers, losses and callbacks.

    As a layer (in a `Sequential`, in `evaluate`, exported) the model computes in Keras's tensors.
    It keeps the training points as weights that are not trained, in float64 where the backend has
    it, so a saved model holds them. What is trained is the bandwidth in units of the one that was
    given or chosen: no unit of x is too small for it.

    Args:
        kernel: a name of `tfattn.kernels.names()`, such as "gaussian", or a function, see
            `tfattn.kernels`; a function is trained by `epochs` alone. With "boxcar" Keras's loop
            learns nothing: its error has a gradient of 0 with respect to the bandwidth.
        bandwidth: positive number, or a sequence of them, one per dimension of x; in the unit of x.
            `fit` keeps it as given, and with `epochs` trains it from there. Defaults to None: `fit`
            chooses, one per dimension.
        trainable_bandwidth: whether `epochs` train the bandwidth. If False, they only keep the
            points.
        shared_bandwidth: whether the bandwidth that is chosen is one for all dimensions.
        empty: what a point gets that has no training point within a compact kernel's support:
            "nearest", the value of the nearest one; "mean", the mean of all; or "nan".
    Call arguments:
        inputs: float `(N, D)` or `(N,)`, the points to predict at.
    Returns:
        `(N, V)`, or `(N,)` if the y of `fit` was `(N,)`.
    Raises:
        ValueError: an unknown kernel, a bandwidth that is not positive, x and y of different
            lengths or with a number that is not finite, fewer than two training points, or a
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
        kernel: str | Callable[[Tensor], Tensor] = "gaussian",
        bandwidth: float | Sequence[float] | None = None,
        trainable_bandwidth: bool = True,
        shared_bandwidth: bool = False,
        empty: str = "nearest",
        **kwargs: Any,
    ):
        kwargs.setdefault("autocast", False)  # as in `NadarayaWatson`
        super().__init__(**kwargs)
        self.kernel, self.bandwidth = kernel, bandwidth
        if bandwidth is None:
            kernels.get(kernel, WHO)
        else:
            self.kernel, self.bandwidth = checked_smoothing(WHO, kernel, bandwidth)
        self.trainable_bandwidth = _checks.boolean(WHO, "trainable_bandwidth", trainable_bandwidth)
        self.shared_bandwidth = _checks.boolean(WHO, "shared_bandwidth", shared_bandwidth)
        if not isinstance(empty, str) or empty not in ("nearest", "mean", "nan"):
            _checks.fail(WHO, "empty", "be one of 'nearest', 'mean', 'nan'", empty)
        self.empty = empty
        self.pooling = None  # made for the number of dimensions, where that decides
        self.points = None  # x, (N, D)
        self.heights = None  # y, (N, V)
        self.unit = None  # of the bandwidth, () or (D,)
        self.flat = False  # whether y came as a vector, and so do predictions
        self.compile(optimizer=keras.optimizers.Adam(0.05), loss="mean_squared_error")

    def fit(
        self,
        x: Tensor,
        y: Tensor | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        validation_data: tuple | None = None,
        warm_start: bool = False,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Keeps the points and finds the bandwidth by leave-one-out error.

        Args:
            x: float `(N, D)` or `(N,)`.   y: float `(N, V)` or `(N,)`. Arrays, not a `tf.data`
                pipeline: every prediction needs all of them.
            epochs: None for the best bandwidth, found to convergence. A positive int for so many
                epochs of Keras's loop, from `bandwidth`, or from 1.06 n^(−1/(D + 4)) standard
                deviations where none was given.
            batch_size, **kwargs: as in `keras.Model.fit`, with `epochs`. Batches have 1024 points
                if not told otherwise. No `sample_weight`: points count alike here.
            validation_data: (x, y), whose error is told as `val_loss`.
            warm_start: whether to go on from the present bandwidth. If False, a second `fit` starts
                afresh.
        Returns:
            Keras's `History`; its loss is the leave-one-out error. Without `epochs` it has one
            number for each bandwidth that was tried, the least so far, and the last is the error
            of the one that was chosen.
        """
        if epochs is not None:
            _checks.non_negative_int(WHO, "epochs", epochs)
        if batch_size is not None:
            _checks.positive_int(WHO, "batch_size", batch_size)
        for name in ("sample_weight", "class_weight"):
            # They would weigh the errors and not the points by which all others are predicted.
            if kwargs.get(name) is not None:
                expected = "be None: `kernel_regression.KernelRegression` has weights of points"
                _checks.fail(WHO, name, expected, np.shape(kwargs[name]))
        x, heights = _columns(x, "x"), _columns(y, "y")
        flat, y = np.ndim(y) == 1, heights
        _checks.same_size(WHO, "y", len(y), "x", len(x), "points")
        if len(x) < 2:
            expected = "hold at least two points, since each is predicted from the others"
            _checks.fail(WHO, "x", expected, len(x))
        start = self.current_bandwidth() if warm_start and self.points is not None else None
        start = self.bandwidth if start is None else start
        if epochs is not None:
            start = self._rule_of_thumb(x) if start is None else start
            self._keep(x, y, flat, start)
            return self._train(x, y, epochs, batch_size or 1024, validation_data, **kwargs)
        for name, value in {"batch_size": batch_size, **kwargs}.items():
            if value is not None and name != "verbose":
                _checks.fail(WHO, name, "come with `epochs`: nothing is trained without", value)
        if callable(self.kernel) and self._kernel_name is None and self.bandwidth is None:
            _checks.fail(WHO, "epochs", "be given for a kernel of one's own", epochs)
        return self._choose(x, y, flat, start if warm_start else None, validation_data)

    def predict(self, x: Tensor, **kwargs: Any) -> np.ndarray:
        """Predictions at x, `(N, V)` or `(N,)`, from all training points, in float64.

        In blocks, whose memory does not grow with the pairs of points. Keras's arguments,
        `batch_size`, `verbose`, `steps` and `callbacks`, are taken and change nothing. With a
        kernel of one's own Keras predicts.
        """
        for name, value in kwargs.items():
            if name not in ("batch_size", "verbose", "steps", "callbacks"):
                _checks.fail(WHO, name, "be left out: `predict` has no such argument", value)
        queries = self._queries(x)
        if self._kernel_name is None:
            return super().predict(queries, **kwargs)
        return self.smoother().predict(_columns(x, "x", np.shape(self.points)[-1]))

    def evaluate(
        self, x: Tensor | dict[str, Tensor], y: Tensor, **kwargs: Any
    ) -> float | list[float] | dict[str, float]:
        """As `keras.Model.evaluate`, at points that the model was not trained on."""
        x = x if isinstance(x, dict) else self._queries(x)  # `fit` hands on what it has prepared
        return super().evaluate(x, _columns(y, "y"), **kwargs)

    def smoother(self) -> KernelRegression:
        """The regression in NumPy, with the points and the bandwidth of this model.

        For bands, derivatives, the conditional variance, residuals.
        """
        self._check_fitted()
        bandwidth = np.asarray(self.current_bandwidth(), "float64")
        regression = KernelRegression(self._known_kernel(), bandwidth, empty=self.empty)
        heights = ops.convert_to_numpy(self.heights)
        points = ops.convert_to_numpy(self.points)
        return regression.fit(points, heights[:, 0] if self.flat else heights)

    def leave_one_out(self) -> LeaveOneOut:
        """Each training point predicted from all others: predictions, residuals, error, r²."""
        return self.smoother().leave_one_out()

    def attention_weights(self, x: Tensor) -> np.ndarray:
        """How much each training point counts at each x: NumPy `(len(x), N)`, rows sum to 1."""
        if self._kernel_name is not None:
            self._queries(x)
            return self.smoother().weights(_columns(x, "x", np.shape(self.points)[-1]))
        _, weights = self._pool(self._queries(x), return_weights=True)
        return ops.convert_to_numpy(weights)

    def current_bandwidth(self) -> np.ndarray:
        """The present bandwidth, after any training, in float64: a scalar, or `(D,)`."""
        if self.points is None and self.bandwidth is not None:
            return np.asarray(self.bandwidth, "float64")
        self._check_fitted()
        return self._factor() * np.asarray(ops.convert_to_numpy(self.unit), "float64")

    def _factor(self) -> np.ndarray:
        """What training has made of the bandwidth, in units of the one at its beginning."""
        return np.asarray(ops.convert_to_numpy(self.pooling.current_bandwidth()), "float64")

    def export(
        self,
        filepath: str | PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> Any:
        """As `keras.Model.export`; the endpoint takes float32 points `(N, D)`.

        All formats but SavedModel get the dense path alone, unless a scope `tfattn.path` is open.
        """
        self._check_fitted()
        if format == "litert":
            expected = "be another one: the model computes in float64, which LiteRT lacks"
            _checks.fail(WHO, "format", expected, format)
        if input_signature is None:
            shape = (None, self.points.shape[-1])
            input_signature = [keras.InputSpec(dtype="float32", shape=shape)]
        with scope.of_export(format):
            return super().export(
                filepath, format, verbose=verbose, input_signature=input_signature, **kwargs
            )

    def call(self, inputs: Tensor | dict[str, Tensor]) -> Tensor:
        output, _ = self._pool(inputs if isinstance(inputs, dict) else self._at(inputs))
        return output[:, 0] if self.flat else output

    def _pool(
        self, inputs: dict[str, Tensor], return_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The pooling layer at the inputs: "index", points that are each left out of their own
        prediction; or "away", places less the mean of the points.
        """
        self._check_fitted()
        # About their mean, distances keep their digits far from the origin.
        keys = ops.subtract(self.points, ops.mean(self.points, axis=0)) / self.unit
        index, others = inputs.get("index"), None
        if index is None:
            query = ops.cast(inputs["away"], keys.dtype) / self.unit
        else:
            query = ops.take(keys, index, axis=0)
            everyone = ops.arange(keys.shape[0], dtype=index.dtype)
            others = ~masks.segments(index[None], everyone[None])
        heights = ops.convert_to_tensor(self.heights)
        ones = ops.ones((heights.shape[0], 1), dtype=heights.dtype)
        result = self.pooling(
            query=query[None],  # (1, n, D)
            value=ops.concatenate([heights, ones], axis=-1)[None],
            key=keys[None],
            attention_mask=others,
            return_attention_scores=return_weights,
        )
        output, weights = (result[0][0], result[1][0]) if return_weights else (result[0], None)
        output, seen = output[:, :-1], output[:, -1:] > 0.5
        if kernels.support(self.kernel) != float("inf"):
            empty = self._of_empty(query, keys, index, others)
            output = ops.where(seen, output, ops.cast(empty, output.dtype))
        return output, weights

    def _of_empty(
        self, query: Tensor, keys: Tensor, index: Tensor | None, others: Mask | None
    ) -> Tensor:
        """What a query without neighbours gets."""
        heights = ops.convert_to_tensor(self.heights)
        if self.empty == "nan" and index is None:
            return ops.full((1, 1), float("nan"), dtype=heights.dtype)
        if self.empty != "nearest":  # an error that is NaN would teach nothing
            mean = ops.mean(heights, axis=0, keepdims=True)
            if index is None:
                return mean
            count = heights.shape[0]
            return mean + (mean - ops.take(heights, index, axis=0)) / (count - 1)
        h = ops.cast(self.pooling.current_bandwidth(), keys.dtype)
        h = ops.stop_gradient(h * _NARROW[keras.backend.standardize_dtype(keys.dtype)])
        # By attention, which holds no array of all pairs.
        return attend(
            query=ops.stop_gradient(query)[None] / h,
            value=heights[None],
            key=keys[None] / h,
            score=_narrow_gaussian,
            mask=others,
        )[0]

    def _choose(
        self,
        x: np.ndarray,
        y: np.ndarray,
        flat: bool,
        start: float | list[float] | np.ndarray | None,
        validation_data: tuple | None,
    ) -> keras.callbacks.History:
        """Keeps the points, and the bandwidth given or chosen; `start` goes before both."""
        path, bandwidth = [], start if self.bandwidth is None or start is not None else None
        if self.bandwidth is None:
            metric = "one" if self.shared_bandwidth else "each"
            regression = KernelRegression(self._known_kernel(), None, metric, empty=self.empty)
            regression.fit(x, y, start=start)
            path, bandwidth = regression.search_errors, regression.current_bandwidth()
        self._keep(x, y, flat, self.bandwidth if bandwidth is None else bandwidth)
        history = keras.callbacks.History()
        history.set_model(self)
        history.history = {"loss": path or [self._left_out_error(y)]}
        history.epoch = list(range(len(history.history["loss"])))
        if validation_data is not None:
            points, heights, *sample_weight = _validation(validation_data)
            errors = np.square(_columns(self.predict(points), "x") - heights)
            weight = sample_weight[0] if sample_weight else None
            mean = np.average(errors.reshape(len(errors), -1).mean(1), weights=weight)
            history.history["val_loss"] = [float(mean)]
        self.history = history
        return history

    def _left_out_error(self, y: np.ndarray) -> float:
        if self._kernel_name is not None:
            return self.leave_one_out().error
        value, _ = self._pool({"index": np.arange(len(y), dtype="int32")})
        return float(np.mean(np.square(ops.convert_to_numpy(value) - y)))

    def _train(
        self,
        x: np.ndarray,
        y: np.ndarray,
        epochs: int,
        batch_size: int,
        validation_data: tuple | None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Keras's own loop over points that are each left out."""
        if validation_data is not None:
            points, heights, *sample_weight = _validation(validation_data)
            validation_data = (self._queries(points), heights, *sample_weight)
        with warnings.catch_warnings():
            # A model that keeps its bandwidth has nothing to train, and means it.
            warnings.filterwarnings("ignore", "The model does not have any trainable weights")
            # Each point travels as its index, so that it finds itself among the keys in any
            # shuffled batch, and loses no digits on the way.
            return super().fit(
                {"index": np.arange(len(x), dtype="int32")},
                y,
                epochs=epochs,
                batch_size=batch_size,
                validation_data=validation_data,
                **kwargs,
            )

    def _keep(
        self, x: np.ndarray, y: np.ndarray, flat: bool, bandwidth: float | list[float] | np.ndarray
    ) -> None:
        """The points as weights, and the pooling layer with that bandwidth."""
        shapes = (x.shape, y.shape, np.shape(bandwidth))
        if shapes[-1] not in ((), x.shape[1:]):
            expected = f"be one number, or one a dimension of x, {x.shape[1]}"
            _checks.fail(WHO, "bandwidth", expected, bandwidth)
        kept = (self.points, self.heights, self.unit)
        if self.points is None or tuple(tuple(weight.shape) for weight in kept) != shapes:
            self._create_points(*shapes)
        self.flat = flat
        self.points.assign(x)
        self.heights.assign(y)
        self.pooling.score.set_bandwidth(np.ones(np.shape(bandwidth)))
        self.unit.assign(np.asarray(bandwidth, "float64") / self._factor())
        optimizer = self.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.trainable_variables)  # as it will be in a model that is loaded
        elif optimizer is not None:
            # It forgets what it has seen of other fits.
            fresh = type(optimizer).from_config(optimizer.get_config())
            fresh.build(self.trainable_variables)
            if len(fresh.variables) == len(optimizer.variables):
                for old, new in zip(optimizer.variables, fresh.variables, strict=True):
                    old.assign(new)

    def _rule_of_thumb(self, x: np.ndarray) -> float | list[float]:
        """Where Keras's loop begins: Scott's rule."""
        deviation = np.std(x, axis=0)
        scott = 1.06 * np.where(deviation > 0, deviation, 1.0) * len(x) ** (-1 / (x.shape[1] + 4))
        if x.shape[1] == 1 or self.shared_bandwidth:
            return float(np.exp(np.log(scott).mean()))
        return scott.tolist()

    def _create_points(self, points_shape: Shape, heights_shape: Shape, bandwidth: Shape) -> None:
        """Makes the weights that hold the training points, and the pooling for their dimensions."""
        if self.points is not None:
            # The old points go, and with them the compiled functions that hold them.
            del self.points, self.heights, self.unit
            self.make_train_function(force=True)
            self.make_test_function(force=True)
            self.make_predict_function(force=True)
        options = {"trainable": False, "autocast": False, "dtype": _widest()}
        self.points = self.add_weight(name="points", shape=points_shape, **options)
        self.heights = self.add_weight(name="heights", shape=heights_shape, **options)
        self.unit = self.add_weight(name="unit", shape=bandwidth, **options)
        if self.pooling is None or np.shape(self.pooling.bandwidth) != tuple(bandwidth):
            self.pooling = NadarayaWatson(
                self.kernel,
                [1.0] * bandwidth[0] if len(bandwidth) else 1.0,
                self.trainable_bandwidth,
                dtype=self.dtype_policy,
                name="pooling",
            )
            # An optimizer that was built for another weight is not for this one.
            if self.optimizer is not None and self.optimizer.built:
                fresh = type(self.optimizer).from_config(self.optimizer.get_config())
                self.optimizer = fresh
        if not self.pooling.built:
            query_shape = (1, *points_shape)
            self.pooling.build(query_shape, (1, *heights_shape), query_shape)
        self.built = True

    def _queries(self, x: Tensor) -> dict[str, np.ndarray]:
        """The model's inputs at x, for Keras's loops, which make float32 of them."""
        self._check_fitted()
        dimensions = self.points.shape[-1]
        x = _columns(x, "x", dimensions)
        if x.shape[-1] != dimensions:
            expected = f"have the {dimensions} dimensions of the training points"
            _checks.fail(WHO, "x", expected, tuple(x.shape))
        # The very mean of `_pool`, which a backend may have rounded.
        return {"away": x - ops.convert_to_numpy(ops.mean(self.points, axis=0))}

    def _at(self, x: Tensor) -> dict[str, Tensor]:
        """The model's inputs at a tensor."""
        self._check_fitted()
        x = ops.cast(given_floats(WHO, "x", x, "(N,) or (N, D)"), self.points.dtype)
        _checks.rank(WHO, "x", x.shape, (1, 2), "(N,) or (N, D)")
        x = x[:, None] if len(x.shape) == 1 else x
        if x.shape[-1] != self.points.shape[-1]:
            expected = f"have the {self.points.shape[-1]} dimensions of the training points"
            _checks.fail(WHO, "x", expected, tuple(x.shape))
        return {"away": ops.subtract(x, ops.mean(self.points, axis=0))}

    @property
    def _kernel_name(self) -> str | None:
        """The name by which `KernelRegression` knows the kernel; None for one of a user's own."""
        name = kernels.serialize(self.kernel) if kernels.support(self.kernel) else None
        return name if isinstance(name, str) else None

    def _known_kernel(self) -> str:
        if self._kernel_name is None:
            expected = f"be one of {', '.join(map(repr, kernels.names()))} for this"
            _checks.fail(WHO, "kernel", expected, self.kernel)
        return self._kernel_name

    def _check_fitted(self) -> None:
        if self.points is None:
            raise ValueError(f"{WHO}: `fit` must come before a prediction. Received: no points yet")

    def build(self, input_shape: Shape | None = None) -> None:
        """Does nothing: `fit` makes the weights, which knows how many points there are."""

    def get_build_config(self) -> dict[str, Any] | None:
        if self.points is None:
            return None
        return {
            "points": list(self.points.shape),
            "heights": list(self.heights.shape),
            "flat": self.flat,
            "bandwidth": list(self.unit.shape),
        }

    def build_from_config(self, config: dict[str, Any]) -> None:
        shape = config.get("bandwidth", [])
        self._create_points(tuple(config["points"]), tuple(config["heights"]), shape)
        self.flat = config["flat"]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kernel": kernels.serialize(self.kernel),
            "bandwidth": self.bandwidth,
            "trainable_bandwidth": self.trainable_bandwidth,
            "shared_bandwidth": self.shared_bandwidth,
            "empty": self.empty,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "NadarayaWatsonRegressor":
        return cls(**kernels.with_kernel(config))


def _columns(x: Tensor, name: str, width: int = 1) -> np.ndarray:
    """Finite numbers as float64 `(N, D)`; a vector becomes one column, and an empty one `width`."""
    found = arrays.table(WHO, name, x)
    if found.size == 0 and np.ndim(x) < 2:
        return np.empty((0, width))
    _checks.has_width(WHO, name, found.shape)
    return found


def _validation(data: tuple) -> tuple:
    """(points, heights `(M, V)`), and perhaps weights, checked."""
    if not isinstance(data, list | tuple) or len(data) not in (2, 3):
        _checks.fail(WHO, "validation_data", "be (x, y) or (x, y, sample_weight)", data)
    points, heights, *sample_weight = data
    heights = _columns(heights, "validation_data")
    _checks.same_size(WHO, "validation_data", len(heights), "its x", len(points), "points")
    return points, heights, *sample_weight


def _widest() -> str:
    """float64, or what the backend makes of it."""
    return keras.backend.standardize_dtype(ops.convert_to_tensor(np.zeros(1)).dtype)
