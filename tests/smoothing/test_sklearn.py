"""The estimator for scikit-learn: all that scikit-learn checks, and what it says of itself."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from tests.refusals import message
from tests.smoothing.data import line, plane
from tfattn.sklearn import NadarayaWatsonRegressor
from tfattn.smoothing import KernelRegression

WHO = "NadarayaWatsonRegressor"
ESTIMATORS = [NadarayaWatsonRegressor(), NadarayaWatsonRegressor("epanechnikov", degree=1)]
CHECKS = [
    pytest.param(estimator, check, id=f"{number} {check.func.__name__}")
    for number, one in enumerate(ESTIMATORS)
    for estimator, check in estimator_checks_generator(one)
]


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("estimator, check", CHECKS)
@pytest.mark.filterwarnings("ignore")  # scikit-learn warns of its own doings
def test_scikit_learn_finds_nothing_to_complain_about(estimator, check):
    check(estimator)


def test_it_predicts_what_the_regression_does():
    x, y = plane()
    estimator = NadarayaWatsonRegressor().fit(x, y)
    plain = KernelRegression().fit(x, y)
    np.testing.assert_allclose(estimator.predict(x), plain.predict(x), rtol=1e-6)
    np.testing.assert_allclose(estimator.bandwidth_, plain.current_bandwidth(), rtol=1e-4)
    band = estimator.bands(x, 0.9)
    assert (band.low < band.high).all() and estimator.derivative(x).shape == (60, 2)
    assert 0.5 < estimator.leave_one_out().r2 < estimator.score(x, y)


def test_it_stands_in_a_pipeline_and_is_searched_over():
    x, y = plane(n=80)
    pipeline = make_pipeline(StandardScaler(), NadarayaWatsonRegressor())
    grid = {"nadarayawatsonregressor__degree": [0, 1]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(x, y)
    assert search.best_score_ > 0.4
    assert cross_val_score(clone(NadarayaWatsonRegressor(bandwidth=0.3)), x, y, cv=3).mean() > 0.3


def test_a_data_frame_gives_its_names_and_its_categories():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    colour = rng.choice(["red", "green", "blue"], 120)
    x = rng.uniform(0, 1, 120)
    y = np.sin(6 * x) + 2.0 * (colour == "red") + rng.normal(0, 0.1, 120)
    frame = pandas.DataFrame({"x": x, "colour": pandas.Categorical(colour)})
    estimator = NadarayaWatsonRegressor(degree=1).fit(frame, y)
    assert list(estimator.feature_names_in_) == ["x", "colour"]
    assert estimator.score(frame, y) > 0.95 and estimator.bandwidth_[1] < 0.1
    asked = pandas.DataFrame({"x": [0.5, 0.5, 0.5], "colour": ["red", "blue", "mauve"]})
    red, blue, unknown = estimator.predict(asked)
    assert red - blue > 1.5 and blue < unknown < red
    named = NadarayaWatsonRegressor(degree=1, categorical=["colour"])
    words = frame.assign(colour=colour)
    np.testing.assert_allclose(named.fit(words, y).predict(words), estimator.predict(frame))


def test_a_number_that_is_none_is_named_with_its_row_and_column():
    pandas = pytest.importorskip("pandas")
    x, y = plane()
    frame = pandas.DataFrame(x, columns=["width", "height"])
    frame.loc[7, "height"] = np.nan
    pattern = message(WHO, "X", "be finite", "NaN at row 7, column 'height'")
    with pytest.raises(ValueError, match=f"^{pattern}$"):
        NadarayaWatsonRegressor().fit(frame, y)


@pytest.mark.parametrize(
    "categorical, expected",
    [
        ("dtype", "be 'from_dtype' or a sequence of indices or names of columns"),
        (1, "be 'from_dtype' or a sequence of indices or names of columns"),
        ([2], "hold indices of the 2 columns of X"),
        ([-1], "hold indices of the 2 columns of X"),
        ([True], "hold indices of the 2 columns of X"),
        (["colour"], r"name columns of X, of \[\]"),
    ],
)
def test_categories_that_are_no_columns_are_refused(categorical, expected):
    pattern = f"^NadarayaWatsonRegressor: `categorical` must {expected}. Received: categorical="
    with pytest.raises(ValueError, match=pattern):
        NadarayaWatsonRegressor(categorical=categorical).fit(*plane())


def test_the_index_of_a_category_is_as_good_as_its_dtype():
    x, y = plane()
    both = np.column_stack([x[:, 0], x[:, 1] > 0])
    estimator = NadarayaWatsonRegressor(categorical=np.array([1])).fit(both, y)
    plain = KernelRegression(categorical=[1]).fit(both, y)
    np.testing.assert_allclose(estimator.predict(both), plain.predict(both), rtol=1e-6)


def test_weights_count_as_rows():
    x, y = line()
    weight = np.random.default_rng(0).integers(0, 4, 50)
    weighted = NadarayaWatsonRegressor().fit(x[:, None], y, sample_weight=weight)
    repeated = NadarayaWatsonRegressor().fit(np.repeat(x, weight)[:, None], np.repeat(y, weight))
    np.testing.assert_allclose(weighted.predict(x[:, None]), repeated.predict(x[:, None]))
