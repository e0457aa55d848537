"""The estimator for scikit-learn: scikit-learn's checks, data frames, categories and errors."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from tests.kernel_regression.data import line, plane
from tfattn.kernel_regression import KernelRegression, KernelRegressor

pandas = pytest.importorskip("pandas")

WHO = "KernelRegressor"
# All checks with a given bandwidth, and those that hang on the search with one that is chosen.
OF_THE_SEARCH = ("check_fit_idempotent", "check_fit2d", "check_sample_weight_equivalence")
CHECKS = [
    *estimator_checks_generator(KernelRegressor(bandwidth=0.5)),
    *(
        (estimator, check)
        for estimator, check in estimator_checks_generator(KernelRegressor())
        if check.func.__name__.startswith(OF_THE_SEARCH)
    ),
    *(
        (estimator, check)
        for estimator, check in estimator_checks_generator(KernelRegressor(degree=1))
        if check.func.__name__.startswith("check_sample_weight_equivalence")
    ),
]


@pytest.mark.parametrize("estimator, check", CHECKS, ids=lambda it: getattr(it, "func", it))
@pytest.mark.filterwarnings("ignore")  # scikit-learn's own warnings
def test_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_estimator_predicts_what_the_regression_does():
    x, y = plane()
    estimator, plain = KernelRegressor().fit(x, y), KernelRegression().fit(x, y)
    # The order of rows changes the rounding of sums, and a minimum has half of the digits.
    np.testing.assert_allclose(estimator.predict(x), plain.predict(x), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(estimator.bandwidth_, plain.current_bandwidth(), rtol=1e-4)
    band = estimator.regression_.bands(x, 0.9)
    assert (band.low < band.high).all() and estimator.regression_.derivative(x).shape == (60, 2)
    assert 0.5 < estimator.regression_.leave_one_out().r2 < estimator.score(x, y)
    both, asked = np.column_stack([x[:, 0], x[:, 1] > 0]), x[:7] + 0.1
    estimator = KernelRegressor(bandwidth=[0.4, 0.1], categorical=np.array([1])).fit(both, y)
    plain = KernelRegression(bandwidth=[0.4, 0.1], categorical=[1]).fit(both, y)
    np.testing.assert_allclose(estimator.predict(both), plain.predict(both))
    for outputs in (1, 2):
        heights = np.column_stack([y, 3 * y]) if outputs == 2 else y
        estimator = KernelRegressor(bandwidth=0.4).fit(x, heights)
        plain = KernelRegression(bandwidth=0.4).fit(x, heights)
        for name in ("variance", "effective_neighbors", "weights"):
            found = getattr(estimator.regression_, name)(asked)
            np.testing.assert_allclose(found, getattr(plain, name)(asked))
        value, deviation = estimator.predict(asked, return_std=True)
        np.testing.assert_array_equal(value, estimator.predict(asked))
        squares = np.square(plain.weights(asked)).sum(axis=1).reshape(7, *[1] * (outputs - 1))
        np.testing.assert_allclose(deviation, np.sqrt(plain.variance(asked) * (1 + squares)))


@pytest.mark.slow
def test_estimator_in_a_pipeline_is_searched_over():
    x, y = plane(n=80)
    pipeline = make_pipeline(StandardScaler(), KernelRegressor(bandwidth=0.5))
    grid = {"kernelregressor__degree": [0, 1]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(x, y)
    assert search.best_score_ > 0.3
    assert cross_val_score(clone(KernelRegressor(bandwidth=0.3)), x, y, cv=3).mean() > 0.3


@pytest.mark.slow
def test_estimator_takes_names_and_categories_of_a_data_frame():
    rng = np.random.default_rng(0)
    color = rng.choice(["red", "green", "blue"], 120)
    x = rng.uniform(0, 1, 120)
    y = np.sin(6 * x) + 2.0 * (color == "red") + rng.normal(0, 0.1, 120)
    frame = pandas.DataFrame({"x": x, "color": pandas.Categorical(color)})
    estimator = KernelRegressor(degree=1).fit(frame, y)
    assert list(estimator.feature_names_in_) == ["x", "color"]
    assert estimator.score(frame, y) > 0.95 and estimator.bandwidth_[1] < 0.1
    asked = pandas.DataFrame({"x": [0.5, 0.5, 0.5], "color": ["red", "blue", "mauve"]})
    red, blue, unknown = estimator.predict(asked)
    assert red - blue > 1.5 and blue < unknown < red
    named = KernelRegressor(degree=1, categorical=["color"])
    words = frame.assign(color=color)
    np.testing.assert_allclose(named.fit(words, y).predict(words), estimator.predict(frame))
    np.testing.assert_array_equal(
        estimator.regression_.bands(frame).value, estimator.predict(frame)
    )


def frame_of(color):
    return pandas.DataFrame({"x": np.linspace(0.0, 1.0, len(color)), "color": color})


COLORS = ["red", "blue", "red", "green"]
FRAME = frame_of(COLORS)


@pytest.mark.parametrize("missing", [None, np.nan])
def test_estimator_missing_category_is_named_with_row_and_column(missing):
    broken = frame_of(["red", "blue", missing, "green"])
    pattern = f"^{WHO}: `X` must be finite. Received: X=NaN at row 2, column 1$"
    for categorical, X in (["color"], broken), ([1], np.asarray(broken, object)):
        with pytest.raises(ValueError, match=pattern):
            KernelRegressor(categorical=categorical).fit(X, np.arange(4.0))


@pytest.mark.parametrize(
    "X",
    [
        FRAME,
        np.asarray(FRAME, object),
        FRAME.assign(color=pandas.date_range("2020-01-01", periods=4)),
        np.array([["2020-01-01"]] * 4, "M8[D]"),
        pandas.DataFrame({"x": pandas.period_range("2020", periods=4)}),
        pandas.DataFrame({"x": pandas.interval_range(0, 4), "color": pandas.Categorical(COLORS)}),
        np.array([[1.0], [2j], [3.0], [4.0]], object),
    ],
)
def test_estimator_refuses_what_is_no_number(X):
    with pytest.raises((ValueError, TypeError)):
        KernelRegressor().fit(X, np.arange(4.0))


# By dtype, eight values of two levels; True where they are categories without being named.
KINDS = {
    "float64": (np.float64, False),
    "float16": (np.float16, False),
    "int64": (np.int64, False),
    "bool": (bool, False),
    "numbers as objects": (object, False),
    "Int64": ("Int64", False),
    "boolean": ("boolean", False),
    "sparse": (pandas.SparseDtype(float, fill_value=np.nan), False),
    "str": ("str", None),
    "string": ("string", None),
    "words as objects": (object, None),
    "category of words": ("category", True),
    "category of bools": ("category", True),
}


def column_of(kind):
    levels = [0, 1]
    if "str" in kind or "words" in kind:
        levels = ["a", "b"]
    elif "bool" in kind:
        levels = [False, True]
    return pandas.Series(levels * 4, dtype=object).astype(KINDS[kind][0])


@pytest.mark.parametrize("first", KINDS)
def test_estimator_fits_a_frame_of_any_dtypes(first):
    # Both levels are known apart, so each row has the y of its level, whatever its dtype.
    y, names = np.tile([2.0, 5.0], 4), [*KINDS]
    place = names.index(first)
    for second in (None, names[place - 1], names[place - 5]):
        kinds = [first] if second is None else [first, second]
        frame = pandas.DataFrame({f"c{i}": column_of(kind) for i, kind in enumerate(kinds)})
        before = frame.copy()
        named = [c for c, kind in zip(frame, kinds, strict=True) if KINDS[kind][1] is not False]
        for categorical in ([], list(frame)) if not named else (named, list(frame)):
            by_dtype = categorical == named and all(KINDS[k][1] is not None for k in kinds)
            bandwidth = [0.0 if column in categorical else 0.05 for column in frame]
            estimator = KernelRegressor(
                bandwidth=bandwidth, categorical="from_dtype" if by_dtype else categorical
            )
            found = estimator.fit(frame, y).predict(frame.iloc[::-1])
            np.testing.assert_allclose(found, y[::-1], err_msg=f"{kinds} {categorical}")
        pandas.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize(
    "column",
    [
        pandas.array([1, None, 3, 4], "Int64"),
        pandas.array([True, None, True, True], "boolean"),
        pandas.arrays.SparseArray([1.0, np.nan, 3.0, 4.0]),
    ],
)
def test_estimator_missing_number_is_named_with_row_and_column(column):
    frame = pandas.DataFrame({"x": column, "color": pandas.Categorical(COLORS)})
    for mixed in (frame, frame[["x"]]):
        with pytest.raises(ValueError, match="be finite. Received: X=NaN at row 1, column 0$"):
            KernelRegressor().fit(mixed, np.arange(4.0))


def test_estimator_keeps_long_ids_apart():
    ids = pandas.array([2**60, 2**60 + 1] * 2, "Int64")  # more digits than a float has
    estimator = KernelRegressor(categorical=["id"], bandwidth=[0.0])
    frame = pandas.DataFrame({"id": ids})
    found = estimator.fit(frame, [1.0, 2.0] * 2).predict(frame)
    np.testing.assert_allclose(found, [1.0, 2.0] * 2)


def test_estimator_refuses_in_its_own_name():
    x, y = plane()
    for options in ({"bandwidth": -1.0}, {"degree": 3}, {"kernel": "gauss"}):
        with pytest.raises(ValueError, match=f"^{WHO}: `{next(iter(options))}` must "):
            KernelRegressor(**options).fit(x, y)
    with pytest.raises(ValueError, match=f"^{WHO}: `sample_weight` must be at least zero"):
        KernelRegressor().fit(x, y, sample_weight=-np.ones(60))
    estimator = KernelRegressor(bandwidth=0.5).fit(x, y)
    with pytest.raises(ValueError, match=f"^{WHO}: `X` must be finite. Received: X=inf at row 0"):
        estimator.predict([[np.inf, 0.0]])
    with pytest.raises(ValueError, match=f"^{WHO}: `level` must "):
        estimator.regression_.bands(x, level=2.0)
    for y in (None, np.arange(3.0)):
        with pytest.raises(ValueError, match="y|inconsistent numbers of samples"):
            KernelRegressor(categorical=["color"]).fit(FRAME, y)


@pytest.mark.slow
def test_estimator_refused_fit_keeps_the_one_before_and_the_array():
    table, y = np.asarray(FRAME, object), np.arange(4.0)
    before = table.tolist()
    estimator = KernelRegressor(categorical=[1]).fit(table, y)
    predictions = estimator.predict(table)
    with pytest.raises(ValueError, match="`X` must"):
        estimator.fit(np.asarray(FRAME.assign(color=None), object), y)
    np.testing.assert_array_equal(estimator.predict(table), predictions)
    assert table.tolist() == before


def test_estimator_standard_deviation_is_that_of_new_points():
    x, y = line(seed=1, n=400)
    new_x, new_y = line(seed=2, n=2000)
    value, deviation = KernelRegressor().fit(x[:, None], y).predict(new_x[:, None], return_std=True)
    assert 0.93 < np.mean(np.abs(new_y - value) < 1.96 * deviation) < 0.97
    far = KernelRegressor("boxcar", bandwidth=0.5, empty="nan").fit(x[:, None], y)
    assert np.isnan(far.predict([[99.0]], return_std=True)).all()


@pytest.mark.parametrize(
    "categorical, expected",
    [
        ([1, 1], "hold indices of the 2 columns of X, each once"),
        ([-1], "hold indices of the 2 columns of X, each once"),
        ("dtype", "be 'from_dtype' or a sequence of indices or names of columns"),
        ([5], "hold indices of the 2 columns of X, each once"),
        (["color"], "hold indices of the 2 columns of X, each once"),
        (None, "be 'from_dtype' or a sequence of indices or names of columns"),
    ],
)
def test_estimator_categories_that_are_no_columns_are_refused(categorical, expected):
    with pytest.raises(ValueError, match=expected):
        KernelRegressor(categorical=categorical).fit(*plane())


@pytest.mark.parametrize("data, degree", [(line, 0), (plane, 1)])
def test_estimator_weights_count_as_rows(data, degree):
    x, y = data(n=50)
    x = x.reshape(50, -1)
    weight = np.random.default_rng(0).integers(0, 4, 50)
    weighted = KernelRegressor(degree=degree).fit(x, y, sample_weight=weight)
    repeated = KernelRegressor(degree=degree).fit(np.repeat(x, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x))
    weights = weighted.regression_.weights(x)
    assert weights.shape == (50, 50) and not weights[:, weight == 0].any()
