"""NadarayaWatsonRegressor: fitted and asked like any other model."""

import os

import keras
import numpy as np
import pytest

import tfattn
from tests.processes import printed
from tests.refusals import message, table
from tests.tensors import as_tensor, tf
from tfattn.smoothing import KernelRegression

N = 53
# JAX keeps float32, unless it is told otherwise.
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


def fitted(x, y, epochs=2, bandwidth=0.5, **options):
    model = tfattn.NadarayaWatsonRegressor(bandwidth=bandwidth, **options)
    model.fit(x, y, epochs=epochs, verbose=0)
    return model


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_fit_lowers_the_leave_one_out_error():
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor(bandwidth=3.0)
    losses = model.fit(x, y, epochs=71, verbose=0).history["loss"]
    first = np.square(weights(x, x, 3.0, leave_one_out=True) @ y - y).mean()
    last = np.square(weights(x, x, model.current_bandwidth(), leave_one_out=True) @ y - y).mean()
    np.testing.assert_allclose(losses[0], first, rtol=1e-4)
    np.testing.assert_allclose(losses[-1], last, rtol=2e-2)
    assert last < 0.5 * first
    # Close to the best there is.
    errors = [
        np.square(weights(x, x, h, leave_one_out=True) @ y - y).mean()
        for h in np.linspace(0.1, 2, 191)
    ]
    assert last < 1.05 * min(errors)


@pytest.mark.slow
def test_predictions_are_the_pooled_training_values():
    x, y = data()
    model = fitted(x, y)
    asked = np.linspace(-1, 6, 17)
    wanted = weights(asked, x, model.current_bandwidth()) @ y
    np.testing.assert_allclose(model.predict(asked, verbose=0), wanted, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shape_x", [(N,), (N, 1), (N, 3)])
@pytest.mark.parametrize("shape_y", [(N,), (N, 1), (N, 2)])
@pytest.mark.usefixtures("dense_path")
def test_predictions_have_the_shape_of_y(shape_x, shape_y):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape_x), rng.normal(size=shape_y)
    model = fitted(x, y, epochs=1)
    for points in (x[:7], x[:1]):
        assert model.predict(points, verbose=0).shape == (len(points), *shape_y[1:])


@pytest.mark.slow
@pytest.mark.parametrize("columns", [(), (1,), (2,)])
@pytest.mark.usefixtures("dense_path")
def test_a_call_gives_the_shape_that_predict_gives(columns):
    x, y = data()
    model = fitted(x, np.zeros((N, *columns)), epochs=1)
    assert model(x[:7]).shape == (7, *columns)


def test_keeping_a_given_bandwidth_warns_of_nothing():
    # Warnings are errors here. Keras warns of a model without trainable weights, which this one
    # means to be.
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor(bandwidth=0.37, trainable_bandwidth=False)
    loss = model.fit(x, y, epochs=1, verbose=0).history["loss"]
    np.testing.assert_allclose(
        loss, [np.square(weights(x, x, 0.37, leave_one_out=True) @ y - y).mean()], rtol=1e-4
    )


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_weights_are_rows_that_sum_to_1_and_make_the_prediction():
    x, y = data()
    model = fitted(x, y)
    asked = np.linspace(-1, 6, 17)
    rows = model.attention_weights(asked)
    assert isinstance(rows, np.ndarray) and rows.shape == (17, N)
    np.testing.assert_allclose(rows.sum(-1), 1.0, atol=1e-6)
    np.testing.assert_allclose(rows, weights(asked, x, model.current_bandwidth()), atol=1e-5)
    np.testing.assert_allclose(rows @ y, model.predict(asked, verbose=0), atol=1e-4)


@pytest.mark.slow
def test_a_training_point_is_left_out_in_fit_and_in_nothing_else():
    x, y = data()
    model = fitted(x, y, bandwidth=0.01, trainable_bandwidth=False)
    np.testing.assert_allclose(model.predict(x, verbose=0), weights(x, x, 0.01) @ y, atol=1e-3)
    assert np.diagonal(model.attention_weights(x)).min() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 7, N, 1024])
def test_batches_and_shuffling_change_no_leave_one_out_error(batch_size):
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor(bandwidth=0.4, trainable_bandwidth=False)
    loss = model.fit(x, y, epochs=1, batch_size=batch_size, shuffle=True, verbose=0).history[
        "loss"
    ][0]
    np.testing.assert_allclose(
        loss, np.square(weights(x, x, 0.4, leave_one_out=True) @ y - y).mean(), rtol=1e-4
    )
    np.testing.assert_allclose(
        model.predict(x, batch_size=batch_size, verbose=0), weights(x, x, 0.4) @ y, atol=1e-4
    )


@pytest.mark.slow
def test_a_bandwidth_that_is_not_trained_stays_where_it_is():
    model = fitted(*data(), bandwidth=0.37, trainable_bandwidth=False)
    np.testing.assert_allclose(model.current_bandwidth(), 0.37, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_each_dimension_learns_a_bandwidth_of_its_own():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (101, 2))
    model = tfattn.NadarayaWatsonRegressor(bandwidth=[0.5, 0.5])
    model.compile(keras.optimizers.Adam(0.2), "mean_squared_error")
    model.fit(x, np.sin(3 * x[:, 0]), epochs=23, verbose=0)
    telling, empty = model.current_bandwidth()
    assert telling < 0.4 and empty > 2 * telling


@pytest.mark.slow
def test_validation_points_are_predicted_from_the_training_points():
    x, y = data()
    new_x, new_y = data(17, seed=1)
    model = tfattn.NadarayaWatsonRegressor(bandwidth=0.5, trainable_bandwidth=False)
    history = model.fit(x, y, epochs=1, validation_data=(new_x, new_y), verbose=0).history
    wanted = np.square(weights(new_x, x, 0.5) @ y - new_y).mean()
    np.testing.assert_allclose(history["val_loss"], [wanted], rtol=1e-4)
    np.testing.assert_allclose(model.evaluate(new_x, new_y, verbose=0), wanted, rtol=1e-4)


@pytest.mark.slow
def test_another_optimizer_and_metrics_are_compiled_as_in_keras():
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor(bandwidth=1.0)
    model.compile(keras.optimizers.SGD(0.5), "mean_squared_error", metrics=["mean_absolute_error"])
    history = model.fit(x, y, epochs=5, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] and len(history["mean_absolute_error"]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("columns", [(), (2,)])
def test_a_saved_model_is_whole(tmp_path, columns):
    rng = np.random.default_rng(0)
    model = fitted(
        rng.normal(size=(N, 3)), rng.normal(size=(N, *columns)), bandwidth=[0.5, 0.7, 1.1]
    )
    asked = rng.normal(size=(7, 3))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(asked, verbose=0), model.predict(asked, verbose=0))
    np.testing.assert_array_equal(loaded.attention_weights(asked), model.attention_weights(asked))
    np.testing.assert_array_equal(loaded.current_bandwidth(), model.current_bandwidth())


@pytest.mark.slow
def test_a_loaded_model_can_be_fitted_again(tmp_path):
    x, y = data()
    fitted(x, y, epochs=3).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    before = loaded.current_bandwidth()
    losses = loaded.fit(x, y, epochs=7, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and loaded.current_bandwidth() != before


@pytest.mark.slow
@pytest.mark.parametrize("n", [N, 31, 101])
@pytest.mark.usefixtures("dense_path")
def test_a_second_fit_forgets_the_first_points(n):
    x, y = data()
    model = fitted(x, y, trainable_bandwidth=False)
    model.predict(x, verbose=0)
    new_x, new_y = data(n, seed=1)
    loss = model.fit(new_x, new_y + 100, epochs=1, verbose=0).history["loss"]
    wanted = np.square(weights(new_x, new_x, 0.5, leave_one_out=True) @ new_y - new_y).mean()
    np.testing.assert_allclose(loss, [wanted], rtol=1e-2)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), weights(x, new_x, 0.5) @ new_y + 100, atol=1e-2
    )
    # Points, heights, the unit of the bandwidth, and what training makes of it.
    assert len(model.weights) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_a_model_that_was_fitted_twice_is_saved_whole(tmp_path):
    x, y = data()
    model = fitted(x, y)
    model.fit(x[:31], y[:31], epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.slow
def test_lists_and_float64_are_fine():
    model = fitted([0.0, 1.0, 2.0], [0.0, 1.0, 4.0], epochs=1)
    assert model.predict([1.0, 1.5], verbose=0).shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("empty", ["nearest", "mean", "nan"])
def test_a_compact_kernel_far_from_the_data_answers_what_was_chosen_and_not_0(empty):
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor("epanechnikov", bandwidth=1.0, empty=empty)
    model.fit(x, y)
    wanted = {"nearest": y[-1], "mean": y.mean(), "nan": np.nan}[empty]
    far = np.array([50.0, 2.0])
    np.testing.assert_allclose(model.predict(far)[0], wanted, rtol=1e-9)
    np.testing.assert_allclose(model(far)[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(model(far)[1], model.predict(far)[1], rtol=1e-5)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("empty", ["nearest", "mean", "nan"])
@pytest.mark.usefixtures("dense_path")
def test_a_training_point_without_neighbours_is_predicted_as_the_regression_does(empty, columns):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 9, (31, columns)), rng.normal(size=(31, 2))
    x[7] = x[3]  # and points at one place see one another
    model = tfattn.NadarayaWatsonRegressor("tricube", bandwidth=0.2, empty=empty)
    model.fit(x, y)
    left_out = model.smoother().leave_one_out().predictions
    found, _ = model._pool({"index": np.arange(31, dtype="int32")})
    np.testing.assert_allclose(found, left_out, rtol=1e-5, atol=1e-6)
    away = x + 0.3
    assert (model.smoother().effective_neighbours(away) == (empty == "nearest")).any()
    np.testing.assert_allclose(model(away), model.predict(away), rtol=1e-5, atol=1e-6)


def test_points_that_are_as_near_share_the_answer_of_the_layer():
    model = tfattn.NadarayaWatsonRegressor("boxcar", bandwidth=0.1)
    model.fit(np.array([0.0, 0.0, 1.0]), np.array([1.0, 3.0, 9.0]))
    np.testing.assert_allclose(model(np.array([-5.0, 0.5, 7.0])), [2.0, 13 / 3, 9.0], rtol=1e-6)


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
    model.fit(x, y, epochs=0)
    model(rng.uniform(size=queries))
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
def test_a_layer_with_a_compact_kernel_holds_no_array_of_all_pairs():
    assert float(printed("-c", MEMORY)) < 200  # all pairs in float64: 640 MB


@pytest.mark.slow
@pytest.mark.parametrize("far", [1e3, -1e6])
def test_predictions_far_from_the_data_are_finite(far):
    x, y = data()
    prediction = fitted(x, y).predict(np.array([far]), verbose=0)
    assert np.isfinite(prediction).all() and y.min() - 1e-3 <= prediction[0] <= y.max() + 1e-3


@pytest.mark.slow
def test_only_the_bandwidth_is_trained():
    x, y = data()
    model = fitted(x, y)
    assert len(model.trainable_weights) == 1
    np.testing.assert_array_equal(model.points[:, 0], x)  # in float64, as they came
    np.testing.assert_array_equal(model.heights[:, 0], y)
    assert as_tensor(model.trainable_weights[0].value).shape == ()


X = np.linspace(0.0, 1.0, 7)


def test_a_prediction_before_fit_is_refused():
    model = tfattn.NadarayaWatsonRegressor()
    for ask in (model.predict, model.attention_weights, model):
        with pytest.raises(
            ValueError, match="NadarayaWatsonRegressor: `fit` must come before a prediction"
        ):
            ask(X)


@table(
    (
        lambda: tfattn.NadarayaWatsonRegressor().fit(X, X[1:]),
        "NadarayaWatsonRegressor",
        "y",
        "have as many points as `x`, which has 7",
        6,
    ),
    (
        lambda: tfattn.NadarayaWatsonRegressor().fit(X[:1], X[:1]),
        "NadarayaWatsonRegressor",
        "x",
        "hold at least two points, since each is predicted from the others",
        1,
    ),
    (
        lambda: tfattn.NadarayaWatsonRegressor(bandwidth=[1.0, 2.0]).fit(X, X, verbose=0),
        "NadarayaWatsonRegressor",
        "bandwidth",
        "be one number, or one a dimension of x, 1",
        "[1.0, 2.0]",
    ),
)
def test_bad_training_points_are_refused(act, who, argument, expected, received):
    with pytest.raises(ValueError, match="^" + message(who, argument, expected, received)):
        act()


@pytest.mark.slow
def test_points_of_other_dimensions_are_refused():
    model = tfattn.NadarayaWatsonRegressor()
    model.fit(X, X, epochs=1, verbose=0)
    pattern = message(
        "NadarayaWatsonRegressor", "x", "have the 1 dimensions of the training points", "(3, 2)"
    )
    with pytest.raises(ValueError, match="^" + pattern + "$"):
        model.predict(np.ones((3, 2)), verbose=0)


@pytest.mark.parametrize("x", [np.ones((7, 2, 3)), np.float32(1.0)], ids=["rank 3", "a scalar"])
def test_points_that_are_no_rows_are_refused(x):
    with pytest.raises(
        ValueError, match=r"NadarayaWatsonRegressor: `x` must have shape .+\. Received: x="
    ):
        tfattn.NadarayaWatsonRegressor().fit(x, X, verbose=0)


def best(seed):
    """The bandwidth of the least leave-one-out error, by a fine grid."""
    x, y = data(50, seed)
    grid = np.geomspace(0.05, 1, 2001)
    errors = [np.square(weights(x, x, h, leave_one_out=True) @ y - y).mean() for h in grid]
    return grid[int(np.argmin(errors))]


@pytest.mark.parametrize("seed", [0, 5])
def test_fit_goes_on_until_the_bandwidth_is_found(seed):
    # Of seed 5, whose error falls slowly towards its minimum.
    model = tfattn.NadarayaWatsonRegressor()
    losses = model.fit(*data(50, seed)).history["loss"]
    np.testing.assert_allclose(model.current_bandwidth(), best(seed), rtol=2e-3)
    np.testing.assert_allclose(losses[-1], model.leave_one_out().error, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-13, 1e13])
@pytest.mark.parametrize("epochs", [None, 3])
@pytest.mark.usefixtures("dense_path")
def test_no_unit_of_x_is_too_small_or_too_great_for_the_layer(tmp_path, scale, epochs):
    x, y = data()
    first = tfattn.NadarayaWatsonRegressor("epanechnikov")
    other = tfattn.NadarayaWatsonRegressor("epanechnikov")
    first.fit(x, y, epochs=epochs, verbose=0), other.fit(x * scale, y, epochs=epochs, verbose=0)
    # Keras's loop computes in float32 here and there.
    h, tolerance = first.current_bandwidth(), 1e-4 if epochs else max(1e-9, ROUNDED)
    np.testing.assert_allclose(other.current_bandwidth(), h * scale, rtol=tolerance)
    asked = np.linspace(0, 5, 7)
    wanted = other.predict(asked * scale)
    np.testing.assert_allclose(wanted, first.predict(asked), rtol=100 * tolerance)
    np.testing.assert_allclose(other(asked * scale), wanted, rtol=1e-5)
    other.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.current_bandwidth() == other.current_bandwidth()


def test_a_bandwidth_keeps_the_digits_of_float64():
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor(bandwidth=np.pi)
    assert model.current_bandwidth() == np.pi
    model.fit(x, y)
    np.testing.assert_allclose(model.current_bandwidth(), np.pi, rtol=ROUNDED)
    chosen = tfattn.NadarayaWatsonRegressor()
    chosen.fit(x, y)
    regression = KernelRegression().fit(x, y)
    np.testing.assert_allclose(
        chosen.current_bandwidth(), regression.current_bandwidth(), rtol=ROUNDED
    )


@pytest.mark.parametrize("scale", [0.01, 1e-6, 100.0, 1e6])
def test_the_unit_of_x_does_not_decide_the_bandwidth(scale):
    x, y = data()
    first, other = tfattn.NadarayaWatsonRegressor(), tfattn.NadarayaWatsonRegressor()
    first.fit(x, y), other.fit(x * scale, y)
    np.testing.assert_allclose(
        other.current_bandwidth(), first.current_bandwidth() * scale, rtol=1e-5
    )
    asked = np.linspace(0, 5, 7)
    np.testing.assert_allclose(other.predict(asked * scale), first.predict(asked), rtol=1e-5)


@needs_float64
def test_an_offset_of_x_moves_no_prediction():
    x, y = data()
    first, other = tfattn.NadarayaWatsonRegressor(), tfattn.NadarayaWatsonRegressor()
    first.fit(x, y), other.fit(x + 1e6, y)
    asked = np.linspace(0, 5, 7)
    np.testing.assert_allclose(other.predict(asked + 1e6), first.predict(asked), rtol=1e-5)
    np.testing.assert_allclose(other(asked + 1e6), first.predict(asked), rtol=1e-4)
    wanted = np.square(first.predict(x) - y).mean()
    np.testing.assert_allclose(other.evaluate(x + 1e6, y, verbose=0), wanted, rtol=1e-4)


def test_the_unit_of_y_does_not_decide_the_bandwidth():
    x, y = data()
    first, other = tfattn.NadarayaWatsonRegressor(), tfattn.NadarayaWatsonRegressor()
    first.fit(x, y), other.fit(x, y * 1e-6)
    np.testing.assert_allclose(other.current_bandwidth(), first.current_bandwidth(), rtol=1e-5)


@pytest.fixture
def floatx_float64():
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


@needs_float64
@pytest.mark.usefixtures("floatx_float64", "dense_path")
def test_floatx_float64_is_no_type_error():
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor(bandwidth=0.3)
    model.fit(x, y, epochs=1, verbose=0)
    wanted = weights(x, x, float(model.current_bandwidth())) @ y
    np.testing.assert_allclose(model.predict(x), wanted, rtol=1e-6)
    np.testing.assert_allclose(model(x), wanted, rtol=1e-6)


@needs_float64
def test_predictions_are_float64_and_none_of_no_points():
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor(bandwidth=0.3)
    model.fit(x, y)
    assert model.predict(x).dtype == "float64"
    assert model.predict(np.zeros(0)).shape == (0,) and model.predict([]).shape == (0,)
    wanted = weights(x, x, float(model.current_bandwidth())) @ y
    np.testing.assert_allclose(model.predict(x), wanted, rtol=1e-12)


def test_a_given_bandwidth_is_kept_as_given():
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor(bandwidth=0.37)
    losses = model.fit(x, y).history["loss"]
    np.testing.assert_allclose(model.current_bandwidth(), 0.37, rtol=1e-6)
    wanted = np.square(weights(x, x, 0.37, leave_one_out=True) @ y - y).mean()
    np.testing.assert_allclose(losses, [wanted], rtol=1e-5)


def test_a_second_fit_starts_afresh_and_goes_on_where_asked():
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor()
    first = model.fit(*data(53, 3)).history["loss"]
    model.fit(x, y)
    fresh = tfattn.NadarayaWatsonRegressor()
    fresh.fit(x, y)
    assert model.current_bandwidth() == fresh.current_bandwidth()
    again = model.fit(x, y, warm_start=True).history["loss"]
    assert len(again) < len(first) and again[-1] <= fresh.history.history["loss"][-1] * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_a_second_training_starts_afresh_and_goes_on_where_asked():
    x, y = data()
    model = fitted(x, y, epochs=3)
    once = model.current_bandwidth()
    model.fit(x, y, epochs=3, verbose=0)
    np.testing.assert_allclose(model.current_bandwidth(), once, rtol=1e-6)
    model.fit(x, y, epochs=3, warm_start=True, verbose=0)
    assert abs(model.current_bandwidth() - 0.5) > 1.5 * abs(once - 0.5)


def test_each_dimension_gets_a_bandwidth_or_all_share_one():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (101, 2))
    y = np.sin(3 * x[:, 0]) + rng.normal(0, 0.1, 101)
    each, one = (
        tfattn.NadarayaWatsonRegressor(),
        tfattn.NadarayaWatsonRegressor(shared_bandwidth=True),
    )
    errors = [model.fit(x, y).history["loss"][-1] for model in (each, one)]
    assert errors[0] < errors[1] and each.current_bandwidth()[1] > 5 * each.current_bandwidth()[0]
    spreads = np.subtract(*np.percentile(x, [75, 25], axis=0))
    np.testing.assert_allclose(*(one.current_bandwidth() / spreads), rtol=max(1e-9, ROUNDED))


@pytest.mark.parametrize("columns", [1, 2])
def test_a_model_that_chose_its_bandwidth_is_saved_whole(tmp_path, columns):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(N, columns)), rng.normal(size=N)
    model = tfattn.NadarayaWatsonRegressor("tricube", empty="mean")
    model.fit(x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x + 0.1), model.predict(x + 0.1))
    assert loaded.empty == "mean" and loaded.bandwidth is None
    loaded.fit(x, y)
    np.testing.assert_allclose(loaded.predict(x), model.predict(x))


def test_a_fitted_model_is_a_layer_of_a_sequential():
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor()
    model.fit(x / 2 - 1, y)
    whole = keras.Sequential([keras.layers.Rescaling(0.5, offset=-1.0), model])
    predictions = whole.predict(x[:, None].astype("float32"), verbose=0)
    np.testing.assert_allclose(predictions, model.predict(x / 2 - 1), rtol=1e-4)


def test_the_band_and_the_residuals_are_those_of_the_smoother():
    x, y = data()
    model = tfattn.NadarayaWatsonRegressor()
    model.fit(x, y, validation_data=(x, y))
    band = model.smoother().bands(x)
    np.testing.assert_array_equal(band.value, model.predict(x))
    assert model.leave_one_out().r2 > 0.5 and len(model.history.history["val_loss"]) == 1


EDGES = {
    "a constant": (np.linspace(0, 5, 11), np.full(11, 3.5)),
    "two points": (np.array([0.0, 1.0]), np.array([0.0, 4.0])),
    "one place": (np.ones(5), np.arange(5.0)),
    "repeated points": (np.repeat(np.linspace(0, 5, 6), 2), np.arange(12.0)),
    "a column that does not vary": (np.stack([np.ones(7), np.arange(7.0)], 1), np.arange(7.0)),
}


@pytest.mark.parametrize("name", EDGES)
def test_the_model_answers_at_the_edges_what_the_regression_does(name):
    x, y = EDGES[name]
    model = tfattn.NadarayaWatsonRegressor()
    loss = model.fit(x, y).history["loss"][-1]
    asked = np.concatenate([x, x + 0.3, x + 1e6])
    wanted = KernelRegression().fit(x, y).predict(asked)
    np.testing.assert_allclose(model.predict(asked), wanted, rtol=1e-6 + 10 * ROUNDED)
    assert np.isfinite(wanted).all() and np.isfinite(loss) and np.all(model.current_bandwidth() > 0)
    np.testing.assert_allclose(model(asked[: len(x)]), wanted[: len(x)], atol=1e-4)


REAL = "be an array of real numbers (read a tf.data pipeline or a generator first)"


@pytest.mark.tensorflow
@table(
    (
        lambda: tfattn.NadarayaWatsonRegressor().fit(np.where(X == X[2], np.nan, X), X),
        "NadarayaWatsonRegressor",
        "x",
        "be finite",
        "NaN at row 2, column 0",
    ),
    (
        lambda: tfattn.NadarayaWatsonRegressor().fit(X, np.where(X == X[2], np.inf, X)),
        "NadarayaWatsonRegressor",
        "y",
        "be finite",
        "inf at row 2, column 0",
    ),
    (
        lambda: tfattn.NadarayaWatsonRegressor().fit(tf.data.Dataset.from_tensor_slices((X, X))),
        "NadarayaWatsonRegressor",
        "x",
        REAL,
        "_TensorSliceDataset",
    ),
    (
        lambda: tfattn.NadarayaWatsonRegressor(empty="zero"),
        "NadarayaWatsonRegressor",
        "empty",
        "be one of 'nearest', 'mean', 'nan'",
        "'zero'",
    ),
    (
        lambda: tfattn.NadarayaWatsonRegressor().fit(X, X, callbacks=[]),
        "NadarayaWatsonRegressor",
        "callbacks",
        "come with `epochs`: nothing is trained without",
        "[]",
    ),
    *(
        (
            lambda options=options: tfattn.NadarayaWatsonRegressor().fit(X, X, **options),
            "NadarayaWatsonRegressor",
            "sample_weight",
            "be None: `tfattn.smoothing.KernelRegression` has weights of points",
            "(7,)",
        )
        for options in ({"sample_weight": X}, {"sample_weight": X, "epochs": 2})
    ),
)
def test_what_cannot_be_fitted_is_refused(act, who, argument, expected, received):
    with pytest.raises(ValueError, match="^" + message(who, argument, expected, received) + "$"):
        act()


@pytest.mark.parametrize("flat", [True, False])
def test_the_error_of_held_out_points_is_the_same_for_a_vector_and_for_one_column(flat):
    x, y = np.linspace(0.0, 3.0, 23), np.sin(np.linspace(0.0, 3.0, 23))
    held_out, heights = x[::3] + 0.05, y[::3]
    model = tfattn.NadarayaWatsonRegressor(bandwidth=0.3)
    heights = heights if flat else heights[:, None]
    (found,) = model.fit(x, y, validation_data=(held_out, heights)).history["val_loss"]
    wanted = np.mean(np.square(model.predict(held_out) - y[::3]))
    np.testing.assert_allclose(found, wanted)


def test_validation_and_arguments_of_predict_are_checked():
    x, y = np.linspace(0.0, 3.0, 23), np.sin(np.linspace(0.0, 3.0, 23))
    model = tfattn.NadarayaWatsonRegressor(bandwidth=0.3)
    with pytest.raises(ValueError, match="`validation_data` must be \\(x, y\\)"):
        model.fit(x, y, validation_data=5)
    with pytest.raises(ValueError, match="`validation_data` must .*points"):
        model.fit(x, y, validation_data=(x[:3], y[:4]))
    model.fit(x, y)
    with pytest.raises(ValueError, match="`batch_sise` must be left out"):
        model.predict(x, batch_sise=3)
