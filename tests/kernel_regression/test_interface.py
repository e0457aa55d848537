"""KernelRegression: units, weights, types, bands and errors."""

import datetime
import sys

import numpy as np
import pytest

import tfattn
from tests import reference
from tests.helpers.refusals import message, table
from tests.kernel_regression.data import line, plane
from tfattn.kernel_regression import KernelRegression, kernels

QUERIES = np.linspace(0.2, 4.8, 31)


# Units, weights and types.


@pytest.mark.slow
@pytest.mark.parametrize("scale, degree", [(1e-6, 0), (1e6, 1)])
def test_regression_in_other_units_and_offsets_has_the_same_fit(scale, degree):
    x, y = plane()
    turned = x * [scale, 1.0] + [1e6 * scale, -1e6]
    first = KernelRegression(degree=degree).fit(x, y)
    other = KernelRegression(degree=degree).fit(turned, 1e6 + y * scale)
    factors = other.current_bandwidth() / first.current_bandwidth()
    np.testing.assert_allclose(factors, [scale, 1.0], rtol=1e-3)
    found = (other.predict(turned) - 1e6) / scale
    # Of 10⁶ + 10⁻⁶ y float64 keeps 4 digits of y.
    np.testing.assert_allclose(found, first.predict(x), atol=1e-3)
    x, y = line()
    first, shift = KernelRegression().fit(x, y), 1e6 * degree
    h, wanted = first.current_bandwidth(), first.predict(QUERIES)
    of_x = KernelRegression().fit((x + shift) * scale, y)
    np.testing.assert_allclose(of_x.current_bandwidth(), h * scale, rtol=1e-6)
    np.testing.assert_allclose(of_x.predict((QUERIES + shift) * scale), wanted, rtol=1e-6)
    of_y = KernelRegression().fit(x, y * scale + shift)
    np.testing.assert_allclose(of_y.current_bandwidth(), h, rtol=1e-5)
    np.testing.assert_allclose(of_y.predict(QUERIES), wanted * scale + shift, rtol=1e-6)


@pytest.mark.slow
def test_regression_leaving_out_places_sees_no_copies():
    x, y = line()
    twice = np.tile(x, 2), np.tile(y, 2)
    alone = KernelRegression().fit(x, y).current_bandwidth()
    together = KernelRegression(leave_out="place").fit(*twice)
    np.testing.assert_allclose(together.current_bandwidth(), alone, rtol=1e-6)
    assert KernelRegression().fit(*twice).current_bandwidth() < alone / 3


def test_regression_takes_float32_lists_and_no_queries():
    x, y = line()
    model = KernelRegression(bandwidth=0.3).fit(x, y)
    other = KernelRegression(bandwidth=0.3).fit(x.astype("float32"), y.astype("float32"))
    np.testing.assert_allclose(other.predict(QUERIES), model.predict(QUERIES), rtol=1e-5)
    assert KernelRegression(bandwidth=1.0).fit([0, 1, 2], [1, 2, 3]).predict([1]).shape == (1,)
    for shape in ((0,), (0, 1)):
        assert model.predict(np.zeros(shape)).shape == (0,)
        assert model.derivative(np.zeros(shape)).shape == (0, 1)


def test_effective_neighbors_count_the_points_that_are_seen():
    x, y = line()
    model = KernelRegression(bandwidth=1e6).fit(x, y)
    np.testing.assert_allclose(model.effective_neighbors([2.0]), 50.0)
    narrow = KernelRegression(bandwidth=1e-6).fit(x, y)
    np.testing.assert_allclose(narrow.effective_neighbors(x[:3]), 1.0)


def test_regression_of_several_outputs_smooths_each_alone():
    x, y = line()
    both = KernelRegression(bandwidth=0.3).fit(x, np.column_stack([y, 100 * y**2]))
    for column, height in enumerate((y, 100 * y**2)):
        alone = KernelRegression(bandwidth=0.3).fit(x, height)
        np.testing.assert_allclose(both.predict(QUERIES)[:, column], alone.predict(QUERIES))
        np.testing.assert_allclose(both.variance(QUERIES)[:, column], alone.variance(QUERIES))


def test_band_asymptotic_holds_the_curve_as_often_as_it_says():
    asked = np.linspace(0.5, 4.5, 9)
    truth = 2 * np.sin(asked) + asked**0.8
    held = []
    for seed in range(40):
        x, y = line(seed, n=200)
        band = KernelRegression(bandwidth=0.12).fit(x, y).bands(asked, 0.9, "asymptotic")
        assert (band.low < band.value).all() and (band.value < band.high).all()
        held.append((band.low <= truth) & (truth <= band.high))
    assert 0.83 < np.mean(held) < 0.95


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_band_robust_equals_oracle(name, columns):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 1, (47, columns)), rng.normal(size=47)
    asked, bandwidth = rng.uniform(0, 1, (7, columns)), {1: 0.3, 2: [0.7, 1.1]}[columns]
    wanted = reference.robust_band(asked, x, y, bandwidth, name, level=0.9)
    for degree in (0, 1):
        model = KernelRegression(name, bandwidth, degree=degree).fit(x, y + 1e3)
        band = model.bands(asked, 0.9)
        np.testing.assert_allclose(np.subtract(band[1:], 1e3), wanted, rtol=1e-7)
        np.testing.assert_array_equal(band.value, model.predict(asked))


# The ends of the data, where a local constant is most biased, and places where the curve bends.
NAMED = np.array([0.0, 0.25, 1.0, 1.57, 2.5, 3.5, 4.75, 5.0])


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("growth", [0.0, 0.2])
def test_band_holds_the_curve_where_smoothing_bends_it(growth, degree):
    rng = np.random.default_rng(1)
    held = {"robust": [], "asymptotic": []}
    for _ in range(12):
        x = rng.uniform(0, 5, (200, 1))
        noise = rng.normal(size=(200, 25)) * np.where(growth, 0.1 + growth * x, 0.5)
        y = 2 * np.sin(x) + x**0.8 + noise
        model = KernelRegression(degree=degree).fit(x, y, start=0.2)
        truth = (2 * np.sin(NAMED) + NAMED**0.8)[:, None]
        for method, hits in held.items():
            band = model.bands(NAMED, method=method)
            hits.append((band.low <= truth) & (truth <= band.high))
    covered = {method: np.mean(hits, axis=(0, 2)) for method, hits in held.items()}
    assert (covered["robust"] >= 0.9).all()
    assert covered["asymptotic"].min() < 0.9


@pytest.mark.slow
def test_variance_follows_the_noise():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 5, 4000))
    y = np.sin(x) + rng.normal(size=4000) * np.where(x < 2.5, 0.2, 0.6)
    variance = KernelRegression().fit(x, y).variance([1.0, 4.0])
    np.testing.assert_allclose(variance, [0.04, 0.36], rtol=0.25)


# Errors. tests/test_invalid_arguments.py has the invalid values of single arguments.

X = np.linspace(0.0, 1.0, 7)
REAL = "be an array of real numbers"


def _with(value, row):
    x = X.copy()
    x[row] = value
    return x


def fit(x, y=X, sample_weight=None, start=None, **options):
    return lambda: KernelRegression(**options).fit(x, y, sample_weight, start)


TWO = np.stack([X, X**2], 1)
REFUSED = [
    (fit(_with(np.nan, 3)), "x", "be finite", "NaN at row 3, column 0"),
    (fit(X, _with(np.inf, 2)), "y", "be finite", "inf at row 2, column 0"),
    (fit(np.stack([X, _with(-np.inf, 5)], 1)), "x", "be finite", "-inf at row 5, column 1"),
    (fit(X, X[1:]), "y", "have as many points as `x`, which has 7", 6),
    (fit([], []), "x", "hold at least one point", "(0, 1)"),
    (fit(X, sample_weight=-X), "sample_weight", "be at least zero, and above zero somewhere", -1.0),
    (
        fit(X, categorical=[1]),
        "categorical",
        "hold indices of the 1 columns of x, each once",
        "[1]",
    ),
    (
        fit(TWO, categorical=[1, 1]),
        "categorical",
        "hold indices of the 2 columns of x, each once",
        "[1, 1]",
    ),
    (
        lambda: fit(X, bandwidth=0.5)().predict(np.ones((3, 2))),
        "x",
        "have the 1 columns of the training points",
        "(3, 2)",
    ),
    (fit(X, sample=1), "sample", "be at least 2, to leave one out", 1),
    (fit(X, start=0.3, bandwidth=0.5), "start", "be None if `bandwidth` is given", 0.3),
    (fit(TWO, start=np.eye(2)), "start", "be one number, or one per column, 2", repr(np.eye(2))),
    (
        fit(TWO, bandwidth=0.5, categorical=[1]),
        "bandwidth",
        "be one number per column, 2 (λ for a categorical column)",
        0.5,
    ),
    (
        fit(TWO, bandwidth=[0.5, 0.9], categorical=[1]),
        "bandwidth",
        f"be in [0, (c − 1) / c] for categorical columns, here up to {[6 / 7]}",
        "[0.9]",
    ),
    (fit(iter(X)), "x", REAL, "iterator"),
    # Words, and dates, which NumPy would cast.
    (fit(["a", "b"]), "x", REAL, "list"),
    (fit(np.array(["2020-01-01"], "M8[D]")), "x", REAL, "ndarray"),
    (fit([datetime.date(2020, 1, 1)]), "x", REAL, "list"),
]


@table(*((act, "KernelRegression", *rest) for act, *rest in REFUSED))
def test_regression_refuses_invalid_arguments_in_one_form(act, who, argument, expected, received):
    with pytest.raises(ValueError, match="^" + message(who, argument, expected, received) + "$"):
        act()


def test_regression_prediction_before_fit_is_refused():
    with pytest.raises(ValueError, match="KernelRegression: `fit` must come before a prediction"):
        KernelRegression().predict(X)


def test_regression_refused_fit_keeps_the_one_before():
    x, y = line()
    model = KernelRegression().fit(x, y)
    before, model.bandwidth = model.predict([1.0]), -1.0
    with pytest.raises(ValueError, match="bandwidth"):
        model.fit(x[:7], np.stack([y, y], axis=1)[:7])
    np.testing.assert_array_equal(model.predict([1.0]), before)
    assert KernelRegression().search_errors == []


def test_kernel_regression_star_import_needs_no_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "tfattn.kernel_regression.estimator", raising=False)
    exec("from tfattn.kernel_regression import *", {})
    # What lists a module's names asks for each of them.
    modules = (tfattn, tfattn.kernel_regression)
    assert not any("KernelRegressor" in dir(module) for module in modules)
    with pytest.raises(ImportError, match="KernelRegressor needs sklearn: pip install"):
        exec("from tfattn.kernel_regression import KernelRegressor", {})


def test_kernel_regressor_is_listed_beside_names_of_a_star_import():
    module = tfattn.kernel_regression
    assert "KernelRegressor" in dir(module) and "KernelRegressor" not in module.__all__
    assert module.KernelRegressor is module.estimator.KernelRegressor


def test_regression_repr_is_the_call_and_the_chosen_bandwidth():
    own = kernels.Kernel("own", 2.0, np.log, np.negative, np.multiply)
    for model, wanted in (
        (KernelRegression(), "KernelRegression()"),
        (
            KernelRegression("boxcar", degree=1, categorical=[1]),
            "KernelRegression(kernel='boxcar', degree=1, categorical=[1])",
        ),
        (KernelRegression(own), "KernelRegression(kernel=Kernel('own', support=2.0))"),
        (
            KernelRegression(bandwidth=np.array([0.3, 2])).fit(TWO, X),
            "KernelRegression(bandwidth=array([0.3, 2. ]))",
        ),
    ):
        assert repr(model) == wanted
    model = KernelRegression(degree=1).fit(*line())
    chosen = model.current_bandwidth()
    assert repr(model) == f"KernelRegression(degree=1)  # bandwidth {chosen:.4g}"
