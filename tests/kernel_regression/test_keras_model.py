"""NadarayaWatsonRegressor: fit, predictions, files and errors."""

import os

import keras
import numpy as np
import pytest

from tests.helpers.processes import printed
from tests.helpers.refusals import message, table
from tests.helpers.tensors import as_tensor, floatx, tf
from tfattn import NadarayaWatsonRegressor
from tfattn.kernel_regression import KernelRegression

N = 53
# JAX computes in float32 by default.
HAS_FLOAT64 = keras.backend.standardize_dtype(as_tensor(np.zeros(1)).dtype) == "float64"
needs_float64 = pytest.mark.skipif(not HAS_FLOAT64, reason="the backend keeps no float64")
ROUNDED = 1e-15 if HAS_FLOAT64 else 1e-6


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 5, n))
    return x, 2 * np.sin(x) + x**0.8 + rng.normal(0, 0.5, n)


def weights(query, x, bandwidth, leave_one_out=False):
    """Gaussian weights in float64; points are `(N,)` or `(N, D)`."""
    query, x = (np.asarray(points, "float64").reshape(len(points), -1) for points in (query, x))
    squared = np.square((query[:, None] - x) / bandwidth).sum(-1)
    kernel = np.exp(-squared / 2) * (1 - np.eye(len(x)) if leave_one_out else 1)
    return kernel / kernel.sum(-1, keepdims=True)


def left_out_error(x, y, bandwidth):
    return np.square(weights(x, x, bandwidth, leave_one_out=True) @ y - y).mean()


def fitted(x, y, bandwidth=0.5, **options):
    model = NadarayaWatsonRegressor(bandwidth=bandwidth, **options)
    model.fit(x, y)
    return model


def loaded_from(folder, model):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


# The chosen bandwidth and its predictions.


def test_predictions_and_weights_are_those_of_the_formula_and_nothing_is_trained():
    x, y = data()
    model = fitted(x, y, bandwidth=0.05)
    asked = np.linspace(-1, 6, 17)
    wanted = weights(asked, x, 0.05)
    rows = model.attention_weights(asked)
    assert isinstance(rows, np.ndarray)
    np.testing.assert_allclose(rows, wanted, atol=1e-5)
    np.testing.assert_allclose(rows.sum(-1), 1.0, atol=1e-6)
    np.testing.assert_allclose(model.predict(asked, verbose=0), wanted @ y, atol=1e-4)
    assert model.trainable_weights == [] and len(model.weights) == 3
    # Only `fit` leaves a training point out.
    assert np.diagonal(model.attention_weights(x)).min() > 0.1
    # Points and heights as they came, in float64.
    np.testing.assert_allclose(model.points[:, 0], x, rtol=ROUNDED)
    np.testing.assert_allclose(model.heights, y, rtol=ROUNDED)


def test_other_points_are_predicted_from_the_training_points():
    x, y = data()
    new_x, new_y = data(17, seed=1)
    model = fitted(x, y)
    wanted = np.square(weights(new_x, x, 0.5) @ y - new_y).mean()
    np.testing.assert_allclose(model.evaluate(new_x, new_y, verbose=0), wanted, rtol=1e-4)
    by_name = model.evaluate(new_x, new_y[:, None], return_dict=True)
    np.testing.assert_allclose(by_name["loss"], wanted, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("n", [31, N])
def test_a_second_fit_forgets_the_first_points_in_a_file_too(n, tmp_path):
    x, y = data()
    model = fitted(x, y)
    model.evaluate(x, y)
    new_x, new_y = data(n, seed=1)
    loss = model.fit(new_x, new_y + 100).history["loss"]
    np.testing.assert_allclose(loss, [left_out_error(new_x, new_y, 0.5)], rtol=1e-4)
    wanted = weights(x, new_x, 0.5) @ new_y + 100
    found = model.predict(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_allclose(model(x), wanted, rtol=1e-6)
    error = model.evaluate(x, wanted + 2.0)
    np.testing.assert_allclose(error, 4.0, rtol=1e-3)
    assert len(model.weights) == 3
    np.testing.assert_array_equal(loaded_from(tmp_path, model).predict(x), found)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [(), (2,)])
def test_a_saved_model_is_whole_and_can_be_fitted_again(tmp_path, columns):
    rng = np.random.default_rng(0)
    x, y, asked = rng.normal(size=(N, 3)), rng.normal(size=(N, *columns)), rng.normal(size=(7, 3))
    model = fitted(x, y, bandwidth=[0.5, 0.7, 1.1])
    loaded = loaded_from(tmp_path, model)
    np.testing.assert_array_equal(loaded.predict(asked, verbose=0), model.predict(asked, verbose=0))
    np.testing.assert_array_equal(loaded.attention_weights(asked), model.attention_weights(asked))
    np.testing.assert_array_equal(loaded.current_bandwidth(), model.current_bandwidth())
    loaded.fit(x + 1.0, y)
    np.testing.assert_allclose(loaded.predict(asked + 1.0), model.predict(asked), rtol=1e-5)


def test_predictions_have_the_shape_of_y():
    rng = np.random.default_rng(0)
    for shape_x, shape_y in (((N,), (N, 1)), ((N, 1), (N, 2)), ((N, 3), (N,))):
        x, y = rng.normal(size=shape_x), rng.normal(size=shape_y)
        model = NadarayaWatsonRegressor(bandwidth=0.5)
        model.fit(x, y)
        for points in (x[:7], x[:1]):
            assert model.predict(points).shape == (len(points), *shape_y[1:])
            assert model(points).shape == (len(points), *shape_y[1:])
    model = NadarayaWatsonRegressor(bandwidth=0.5)
    model.fit([0.0, 1.0, 2.0], [0.0, 1.0, 4.0])
    assert model.predict([1.0, 1.5]).shape == (2,)


def test_a_bandwidth_keeps_the_digits_of_float64():
    x, y = data()
    model = NadarayaWatsonRegressor(bandwidth=np.pi)
    assert model.current_bandwidth() == np.pi
    losses = model.fit(x, y).history["loss"]
    np.testing.assert_allclose(model.current_bandwidth(), np.pi, rtol=ROUNDED)
    np.testing.assert_allclose(losses, [left_out_error(x, y, np.pi)], rtol=1e-5)
    chosen = NadarayaWatsonRegressor()
    losses = chosen.fit(x, y).history["loss"]
    wanted = KernelRegression().fit(x, y).current_bandwidth()
    np.testing.assert_allclose(chosen.current_bandwidth(), wanted, rtol=ROUNDED)
    np.testing.assert_allclose(losses[-1], chosen.smoother().leave_one_out().error, rtol=1e-6)


def test_each_dimension_gets_a_bandwidth_or_all_share_one():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (101, 2))
    y = np.sin(3 * x[:, 0]) + rng.normal(0, 0.1, 101)
    each, one = NadarayaWatsonRegressor(), NadarayaWatsonRegressor(shared_bandwidth=True)
    errors = [model.fit(x, y).history["loss"][-1] for model in (each, one)]
    assert errors[0] < errors[1] and each.current_bandwidth()[1] > 5 * each.current_bandwidth()[0]
    spreads = np.subtract(*np.percentile(x, [75, 25], axis=0))
    np.testing.assert_allclose(*(one.current_bandwidth() / spreads), rtol=max(1e-9, ROUNDED))


def test_a_second_fit_starts_afresh():
    x, y = data()
    model, fresh = NadarayaWatsonRegressor(), NadarayaWatsonRegressor()
    model.fit(*data(53, 3))
    assert model.fit(x, y).history["loss"] == fresh.fit(x, y).history["loss"]
    assert model.current_bandwidth() == fresh.current_bandwidth()


@pytest.mark.slow
def test_a_model_that_chose_its_bandwidth_is_saved_whole(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(N, 2)), rng.normal(size=N)
    model = NadarayaWatsonRegressor("tricube", empty="mean")
    model.fit(x, y)
    loaded = loaded_from(tmp_path, model)
    np.testing.assert_array_equal(loaded.predict(x + 0.1), model.predict(x + 0.1))
    assert loaded.empty == "mean" and loaded.bandwidth is None
    loaded.fit(x, y)
    np.testing.assert_allclose(loaded.predict(x), model.predict(x))


@pytest.mark.slow
def test_a_fitted_model_is_a_layer_of_a_sequential():
    x, y = data()
    model = NadarayaWatsonRegressor()
    model.fit(x / 2 - 1, y)
    whole = keras.Sequential([keras.layers.Rescaling(0.5, offset=-1.0), model])
    predictions = whole.predict(x[:, None].astype("float32"), verbose=0)
    np.testing.assert_allclose(predictions, model.predict(x / 2 - 1), rtol=1e-4)


# Far from the data, at its edges, and in any unit.


@pytest.mark.slow
def test_predictions_far_from_the_data_are_finite():
    x, y = data()
    prediction = fitted(x, y).predict(np.array([1e3, -1e6]), verbose=0)
    assert np.isfinite(prediction).all()
    assert y.min() - 1e-3 <= prediction.min() and prediction.max() <= y.max() + 1e-3


@pytest.mark.parametrize("empty, columns", [("nearest", 1), ("mean", 2), ("nan", 1)])
@pytest.mark.usefixtures("dense_path")
def test_a_point_without_neighbors_is_predicted_as_the_regression_does(empty, columns):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 9, (31, columns)), rng.normal(size=(31, 2))
    x[7] = x[3]  # points at the same place are neighbors
    model = NadarayaWatsonRegressor("tricube", bandwidth=0.2, empty=empty)
    model.fit(x, y)
    away = np.concatenate([x + 0.3, np.full((1, columns), 50.0)])
    assert (model.smoother().effective_neighbors(away) == (empty == "nearest")).any()
    np.testing.assert_allclose(model(away), model.predict(away), rtol=1e-5, atol=1e-6)


def test_points_that_are_as_near_share_the_answer_of_the_layer():
    model = NadarayaWatsonRegressor("boxcar", bandwidth=0.1)
    model.fit(np.array([0.0, 0.0, 1.0]), np.array([1.0, 3.0, 9.0]))
    np.testing.assert_allclose(model(np.array([-5.0, 0.5, 7.0])), [2.0, 13 / 3, 9.0], rtol=1e-6)


EDGES = {
    "a constant": (np.linspace(0, 5, 11), np.full(11, 3.5)),
    "one place": (np.ones(5), np.arange(5.0)),
    "a column that does not vary": (np.stack([np.ones(7), np.arange(7.0)], 1), np.arange(7.0)),
}


@pytest.mark.parametrize("name", EDGES)
def test_the_model_answers_at_the_edges_what_the_regression_does(name):
    x, y = EDGES[name]
    model = NadarayaWatsonRegressor()
    loss = model.fit(x, y).history["loss"][-1]
    asked = np.concatenate([x, x + 0.3, x + 1e6])
    wanted = KernelRegression().fit(x, y).predict(asked)
    np.testing.assert_allclose(model.predict(asked), wanted, rtol=1e-6 + 10 * ROUNDED)
    assert np.isfinite(wanted).all() and np.isfinite(loss) and np.all(model.current_bandwidth() > 0)
    np.testing.assert_allclose(model(asked[: len(x)]), wanted[: len(x)], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-13, 1e13, 1e-30])
@pytest.mark.usefixtures("dense_path")
def test_no_unit_of_x_is_too_small_or_too_great_for_the_layer(tmp_path, scale):
    x, y = data()
    first, other = (NadarayaWatsonRegressor("epanechnikov") for _ in range(2))
    first.fit(x, y), other.fit(x * scale, y)
    h, tolerance = first.current_bandwidth(), max(1e-9, ROUNDED)
    np.testing.assert_allclose(other.current_bandwidth(), h * scale, rtol=tolerance)
    asked = np.linspace(0, 5, 7)
    wanted = other.predict(asked * scale)
    np.testing.assert_allclose(wanted, first.predict(asked), rtol=100 * tolerance)
    np.testing.assert_allclose(other(asked * scale), wanted, rtol=1e-5)
    assert loaded_from(tmp_path, other).current_bandwidth() == other.current_bandwidth()


@pytest.mark.slow
@needs_float64
def test_an_offset_of_x_moves_no_prediction():
    x, y = data()
    first, other = NadarayaWatsonRegressor(), NadarayaWatsonRegressor()
    first.fit(x, y), other.fit(x + 1e6, y)
    asked = np.linspace(0, 5, 7)
    np.testing.assert_allclose(other.predict(asked + 1e6), first.predict(asked), rtol=1e-5)
    np.testing.assert_allclose(other(asked + 1e6), first.predict(asked), rtol=1e-4)
    wanted = np.square(first.predict(x) - y).mean()
    np.testing.assert_allclose(other.evaluate(x + 1e6, y, verbose=0), wanted, rtol=1e-4)


@pytest.fixture
def floatx_float64():
    with floatx("float64"):
        yield


@pytest.mark.slow
@needs_float64
@pytest.mark.usefixtures("floatx_float64", "dense_path")
def test_floatx_float64_is_no_type_error():
    x, y = data()
    model = NadarayaWatsonRegressor(bandwidth=0.3)
    model.fit(x, y)
    wanted = weights(x, x, 0.3) @ y
    np.testing.assert_allclose(model.predict(x), wanted, rtol=1e-6)
    np.testing.assert_allclose(model(x), wanted, rtol=1e-6)


@needs_float64
def test_predictions_are_float64_and_none_of_no_points():
    x, y = data()
    model = NadarayaWatsonRegressor(bandwidth=0.3)
    model.fit(x, y)
    assert model.predict(x).dtype == "float64"
    assert model.predict(np.zeros(0)).shape == (0,) and model.predict([]).shape == (0,)
    wanted = weights(x, x, float(model.current_bandwidth())) @ y
    np.testing.assert_allclose(model.predict(x), wanted, rtol=1e-12)


MEMORY = """
import numpy as np
import tfattn

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024  # MB

rng = np.random.default_rng(0)
for points, queries in ((2000, 2000), (20_000, 4000)):
    before = peak()
    x, y = rng.uniform(size=points), rng.normal(size=points)
    model = tfattn.NadarayaWatsonRegressor("epanechnikov", bandwidth=1e-4)
    model.fit(x, y)
    model(rng.uniform(size=queries))
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
def test_a_layer_with_a_compact_kernel_holds_no_array_of_all_pairs():
    assert float(printed("-c", MEMORY, warm=True)) < 200  # all pairs in float64: 640 MB


# Errors. tests/test_invalid_arguments.py has the invalid values of single arguments.

X = np.linspace(0.0, 1.0, 7)
REAL = "be an array of real numbers (read a tf.data pipeline or a generator first)"


def fit(x=X, y=X, bandwidth=None):
    return lambda: NadarayaWatsonRegressor(bandwidth=bandwidth).fit(x, y, verbose=0)


REFUSED = [
    (fit(y=X[1:]), "y", "have as many points as `x`, which has 7", 6),
    (
        fit(X[:1], X[:1]),
        "x",
        "hold at least two points, to leave one out",
        1,
    ),
    (
        fit(bandwidth=[1.0, 2.0]),
        "bandwidth",
        "be one number, or one per column, 1",
        "[1.0, 2.0]",
    ),
    (fit(np.where(X == X[2], np.nan, X)), "x", "be finite", "NaN at row 2, column 0"),
    (fit(y=np.where(X == X[2], np.inf, X)), "y", "be finite", "inf at row 2, column 0"),
    (
        lambda: fitted(X, X).predict(np.ones((3, 2)), verbose=0),
        "x",
        "have the 1 columns of the training points",
        "(3, 2)",
    ),
    *(
        [(fit(tf.data.Dataset.from_tensor_slices((X, X)), None), "x", REAL, "_TensorSliceDataset")]
        if tf
        else []
    ),
]


@table(*((act, "NadarayaWatsonRegressor", *rest) for act, *rest in REFUSED))
def test_what_cannot_be_fitted_or_asked_is_refused(act, who, argument, expected, received):
    with pytest.raises(ValueError, match="^" + message(who, argument, expected, received) + "$"):
        act()


def test_the_layer_refuses_other_columns():
    with pytest.raises(ValueError, match="`inputs` must have the 1 columns of the training points"):
        fitted(X, X)(np.ones((3, 2)))


def test_a_prediction_before_fit_is_refused():
    model = NadarayaWatsonRegressor()
    for ask in (model.predict, model.attention_weights, model):
        with pytest.raises(
            ValueError, match="NadarayaWatsonRegressor: `fit` must come before a prediction"
        ):
            ask(X)
