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
from tfattn.core import kernels
from tfattn.core.floats import given_floats
from tfattn.core.paths import scope
from tfattn.layers.attention.nadaraya_watson import NadarayaWatson
from tfattn.layers.attention.scores import checked_smoothing

__all__ = ["NadarayaWatsonRegressor"]


@keras.saving.register_keras_serializable("tfattn")
class NadarayaWatsonRegressor(keras.Model):
    """Nadaraya–Watson regression: `fit` learns the bandwidth, `predict` pools the training points.

    `fit` predicts each training point from all others (leave-one-out), and changes the bandwidth to
    make that error small. Points are float32; if x is millions of bandwidths away from 0, subtract
    its mean first. The model keeps the training points as weights that are not trained, so a saved
    model holds them.

    Args:
        kernel: "gaussian", "boxcar", "triangular", "epanechnikov", or a function, see
            `tfattn.kernels`. With "boxcar" nothing is learned: its error has a gradient of 0 with
            respect to the bandwidth.
        bandwidth: positive number, or a sequence of them, one per dimension of x; in the unit of x.
            The initial value.
        trainable_bandwidth: whether `fit` learns the bandwidth. If False, it only keeps the points.
    Call arguments:
        inputs: float `(N, D)` or `(N,)`, the points to predict at.
    Returns:
        `(N, V)`, or `(N,)` if the y of `fit` was `(N,)`.
    Raises:
        ValueError: an unknown kernel, a bandwidth that is not positive, x and y of different
            lengths, fewer than two training points, or a prediction before `fit`.
    Example:
        >>> x = np.linspace(0.0, 5.0, 50)
        >>> model = NadarayaWatsonRegressor(bandwidth=2.0)
        >>> history = model.fit(x, np.sin(x), epochs=100, verbose=0)
        >>> print(model.predict(np.array([1.0, 2.0]), verbose=0).round(1))
        [0.8 0.9]

    Source: Nadaraya 1964; Watson 1964; leave-one-out, Wasserman, All of Nonparametric Statistics,
    5.3.
    """

    def __init__(
        self,
        kernel: str | Callable[[Tensor], Tensor] = "gaussian",
        bandwidth: float | Sequence[float] = 1.0,
        trainable_bandwidth: bool = True,
        **kwargs: Any,
    ):
        kwargs.setdefault("autocast", False)  # as in `NadarayaWatson`
        super().__init__(**kwargs)
        self.kernel, self.bandwidth = checked_smoothing(
            "NadarayaWatsonRegressor", kernel, bandwidth
        )
        self.trainable_bandwidth = trainable_bandwidth
        self.pooling = NadarayaWatson(
            kernel, bandwidth, trainable_bandwidth, dtype=self.dtype_policy, name="pooling"
        )
        self.points = None  # x, (N, D)
        self.heights = None  # y, (N, V)
        self.flat = False  # whether y came as a vector, and so do predictions
        self.compile(optimizer=keras.optimizers.Adam(0.05), loss="mean_squared_error")

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        epochs: int = 200,
        batch_size: int = 1024,
        validation_data: tuple | None = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Keeps the points and learns the bandwidth by leave-one-out error.

        Args:
            x: float `(N, D)` or `(N,)`.   y: float `(N, V)` or `(N,)`.
            epochs, batch_size, validation_data, **kwargs: as in `keras.Model.fit`.
        Returns:
            Keras's `History`; its loss is the leave-one-out error.
        """
        who = "NadarayaWatsonRegressor"
        _checks.non_negative_int(who, "epochs", epochs)
        if batch_size is not None:
            _checks.positive_int(who, "batch_size", batch_size)
        x, y, flat = _columns(x, "x"), _columns(y, "y"), np.ndim(y) == 1
        _checks.same_size(who, "y", len(y), "x", len(x))
        if len(x) < 2:
            expected = "hold at least two points, since each is predicted from the others"
            _checks.fail(who, "x", expected, len(x))
        if self.points is None or (self.points.shape, self.heights.shape) != (x.shape, y.shape):
            self._create_points(x.shape, y.shape)
        self.flat = flat
        self.points.assign(x)
        self.heights.assign(y)
        if validation_data is not None:
            points, heights, *sample_weight = validation_data
            validation_data = (self._queries(points), _columns(heights, "y"), *sample_weight)
        # Each point's own index travels with it, so that it finds itself among the keys in any
        # shuffled batch.
        inputs = {"points": x, "left_out": np.arange(len(x), dtype="int32")}
        with warnings.catch_warnings():
            # A model that keeps its bandwidth has nothing to train, and means it.
            warnings.filterwarnings("ignore", "The model does not have any trainable weights")
            return super().fit(
                inputs,
                y,
                epochs=epochs,
                batch_size=batch_size,
                validation_data=validation_data,
                **kwargs,
            )

    def predict(self, x: Tensor, **kwargs: Any) -> np.ndarray:
        """Predictions at x, `(N, V)` or `(N,)`, from all training points."""
        return super().predict(self._queries(x), **kwargs)

    def evaluate(
        self, x: Tensor | dict[str, Tensor], y: Tensor, **kwargs: Any
    ) -> float | list[float] | dict[str, float]:
        """As `keras.Model.evaluate`, at points that the model was not trained on."""
        x = x if isinstance(x, dict) else self._queries(x)  # `fit` hands on what it has prepared
        return super().evaluate(x, _columns(y, "y"), **kwargs)

    def attention_weights(self, x: Tensor) -> np.ndarray:
        """How much each training point counts at each x: NumPy `(len(x), N)`, rows sum to 1."""
        _, weights = self._pool(self._queries(x), return_weights=True)
        return ops.convert_to_numpy(weights)

    def current_bandwidth(self) -> np.ndarray:
        """The present bandwidth, after any training, as NumPy: a scalar, or `(D,)`."""
        return ops.convert_to_numpy(self.pooling.current_bandwidth())

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
        if input_signature is None:
            shape = (None, self.points.shape[-1])
            input_signature = [keras.InputSpec(dtype="float32", shape=shape)]
        with scope.of_export(format):
            return super().export(
                filepath, format, verbose=verbose, input_signature=input_signature, **kwargs
            )

    def call(self, inputs: Tensor | dict[str, Tensor]) -> Tensor:
        output, _ = self._pool(inputs if isinstance(inputs, dict) else self._queries(inputs))
        return output[:, 0] if self.flat else output

    def _pool(
        self, inputs: dict[str, Tensor], return_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The pooling layer at `inputs["points"]`, each without the point that is left out."""
        self._check_fitted()
        indices = ops.arange(self.points.shape[0], dtype="int32")
        others = ops.not_equal(inputs["left_out"][:, None], indices)  # (n, N)
        result = self.pooling(
            query=inputs["points"][None],  # (1, n, D)
            value=self.heights[None],
            key=self.points[None],
            attention_mask=others,
            return_attention_scores=return_weights,
        )
        return (result[0][0], result[1][0]) if return_weights else (result[0], None)

    def _create_points(self, points_shape: Shape, heights_shape: Shape) -> None:
        """Makes the weights that hold the training points."""
        if self.points is not None:
            # The old points go, and with them the compiled functions that hold them.
            del self.points, self.heights
            self.make_train_function(force=True)
            self.make_test_function(force=True)
            self.make_predict_function(force=True)
        self.points = self.add_weight(
            name="points", shape=points_shape, trainable=False, autocast=False
        )
        self.heights = self.add_weight(
            name="heights", shape=heights_shape, trainable=False, autocast=False
        )
        if not self.pooling.built:
            query_shape = (1, *points_shape)
            self.pooling.build(query_shape, (1, *heights_shape), query_shape)
        self.built = True

    def _queries(self, x: Tensor) -> dict[str, Tensor]:
        """The model's inputs at x, where no training point is left out."""
        self._check_fitted()
        x = given_floats("NadarayaWatsonRegressor", "x", x, "(N,) or (N, D)")
        x = ops.cast(x, "float32")
        _checks.rank("NadarayaWatsonRegressor", "x", x.shape, (1, 2), "(N,) or (N, D)")
        x = x[:, None] if len(x.shape) == 1 else x
        if x.shape[-1] != self.points.shape[-1]:
            expected = f"have the {self.points.shape[-1]} dimensions of the training points"
            _checks.fail("NadarayaWatsonRegressor", "x", expected, tuple(x.shape))
        return {"points": x, "left_out": ops.full((ops.shape(x)[0],), -1, dtype="int32")}

    def _check_fitted(self) -> None:
        if self.points is None:
            raise ValueError(
                "NadarayaWatsonRegressor: `fit` must come before a prediction. "
                "Received: no points yet"
            )

    def build(self, input_shape: Shape | None = None) -> None:
        """Does nothing: `fit` makes the weights, which knows how many points there are."""

    def get_build_config(self) -> dict[str, Any] | None:
        if self.points is None:
            return None
        return {
            "points": list(self.points.shape),
            "heights": list(self.heights.shape),
            "flat": self.flat,
        }

    def build_from_config(self, config: dict[str, Any]) -> None:
        self._create_points(tuple(config["points"]), tuple(config["heights"]))
        self.flat = config["flat"]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kernel": kernels.serialize(self.kernel),
            "bandwidth": self.bandwidth,
            "trainable_bandwidth": self.trainable_bandwidth,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "NadarayaWatsonRegressor":
        return cls(**kernels.with_kernel(config))


def _columns(x: Tensor, name: str) -> np.ndarray:
    """Numbers as float32 `(N, D)`; a vector becomes one column."""
    who, letters = "NadarayaWatsonRegressor", "(N,) or (N, D)"
    x = ops.convert_to_numpy(given_floats(who, name, x, letters)).astype("float32")
    _checks.rank(who, name, x.shape, (1, 2), letters)
    _checks.has_width(who, name, x.shape)
    return x[:, None] if x.ndim == 1 else x
