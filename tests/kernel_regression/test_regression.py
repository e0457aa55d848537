"""KernelRegression: predictions against the oracle, and edge cases."""

import numpy as np
import pytest

from tests import reference
from tests.kernel_regression.data import line, plane
from tfattn.kernel_regression import KernelRegression, kernels

QUERIES = np.linspace(0.2, 4.8, 31)
DISTANCES = np.array([0.0, 1e-3, 0.1, 0.5, 0.9, 0.999, 1.001, 1.5, 3.0])


# Against the oracle.


@pytest.mark.parametrize("name", kernels.names())
def test_kernel_value_log_and_slope_equal_the_formula(name):
    kernel, formula = kernels.get(name), reference.KERNELS[name]
    s = DISTANCES**2
    np.testing.assert_allclose(kernel.value(s), formula(DISTANCES), atol=1e-14)
    np.testing.assert_allclose(np.exp(kernel.log(s)), formula(DISTANCES), atol=1e-14)
    inner = np.array([0.09, 0.25, 0.64])
    numeric = (formula(np.sqrt(inner + 1e-7)) - formula(np.sqrt(inner - 1e-7))) / 2e-7
    np.testing.assert_allclose(
        kernel.slope(inner, kernel.value(inner)), numeric, rtol=1e-6, atol=1e-9
    )
    far = kernel.value(np.array([1.0001, 4.0, 1e6]))
    assert (far == 0).all() == (kernel.support == 1.0)


@pytest.mark.parametrize("name", sorted(reference.KERNELS))
def test_regression_on_a_line_equals_oracle(name):
    x, y = line(n=101)
    weight = np.random.default_rng(1).uniform(0.5, 2, len(x))
    for degree in (0, 1):
        model = KernelRegression(name, bandwidth=0.9, degree=degree).fit(x, y, sample_weight=weight)
        wanted = reference.kernel_regression(
            QUERIES[:, None], x[:, None], y, 0.9, name, degree, weight=weight
        )
        np.testing.assert_allclose(model.predict(QUERIES[::-1]), wanted[::-1], rtol=1e-9)
        np.testing.assert_allclose(model.weights(QUERIES) @ y, wanted, rtol=1e-9)
        np.testing.assert_allclose(model.weights(QUERIES).sum(1), 1.0)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("columns", [2, 7])
def test_regression_in_many_columns_equals_oracle(columns, degree):
    rng = np.random.default_rng(0)
    x, y, queries = (rng.normal(size=shape) for shape in ((83, columns), 83, (11, columns)))
    h = rng.uniform(0.8, 1.5, columns)
    wanted = reference.kernel_regression(queries, x, y, h, "gaussian", degree)
    model = KernelRegression(bandwidth=h, degree=degree).fit(x, y)
    np.testing.assert_allclose(model.predict(queries), wanted, rtol=1e-7)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_regression_with_categories_equals_oracle(name, degree):
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.integers(0, 3, 97), rng.integers(0, 2, 97)])
    x, y = rng.uniform(0, 1, 97), rng.normal(size=97)
    width = np.array([0.3, 0.1])
    both = np.column_stack([codes[:, 0] * 10.0, x, codes[:, 1]])
    model = KernelRegression(name, [0.3, 0.6, 0.1], degree=degree, categorical=[0, 2])
    model.fit(both, y)
    wanted = reference.kernel_regression(
        x[:13, None], x[:, None], y, 0.6, name, degree, None, (codes[:13], codes, width, [3, 2])
    )
    np.testing.assert_allclose(model.predict(both[:13]), wanted, rtol=1e-9)


def test_regression_category_without_a_point_is_unlike_all():
    x = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    model = KernelRegression(bandwidth=[1.0, 0.2], categorical=[1]).fit(x, [1.0, 2.0, 6.0])
    np.testing.assert_allclose(model.predict([[0.0, 9.0]]), [3.0])


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_leave_one_out_equals_oracle(name, degree):
    x, y = line(n=61)
    model = KernelRegression(name, bandwidth=0.8, degree=degree).fit(x[::-1], y[::-1])
    found = model.leave_one_out()
    wanted = reference.left_out_error(x[:, None], y, 0.8, name, degree)
    np.testing.assert_allclose(found.error, wanted, rtol=1e-8)
    np.testing.assert_allclose(np.mean(found.residuals**2), wanted, rtol=1e-8)
    np.testing.assert_allclose(found.predictions + found.residuals, y[::-1])
    np.testing.assert_allclose(found.r2, 1 - wanted / y.var(), rtol=1e-8)


@pytest.mark.parametrize("name", ["boxcar", "epanechnikov", "gaussian"])
@pytest.mark.parametrize("columns", [1, 2])
def test_regression_mean_lies_between_the_heights(name, columns):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 5, (201, columns))
    y = np.stack([x[:, 0] > 2.5, 0.1 * (x[:, 0] > 1)], axis=1).astype(float)
    model = KernelRegression(name, bandwidth=0.3).fit(x, y)
    value = model.predict(x)
    assert ((y.min(0) <= value) & (value <= y.max(0))).all()
    left_out = model.leave_one_out().predictions
    assert ((y.min(0) <= left_out) & (left_out <= y.max(0))).all()
    assert (model.variance(x) >= 0).all()


@pytest.mark.parametrize("scale", [0.1, 0.3, 7.0])
def test_boxcar_sees_keys_at_its_very_edge(scale):
    x, y = np.arange(13) * scale, np.arange(13.0) ** 2
    wanted = [y[max(i - 1, 0) : i + 2].mean() for i in range(13)]
    np.testing.assert_allclose(KernelRegression("boxcar", scale).fit(x, y).predict(x), wanted)


@pytest.mark.parametrize("empty", ["nearest", "nan"])
def test_leave_one_out_of_the_only_point_of_a_category_is_the_mean_of_the_others(empty):
    model = KernelRegression(categorical=[0], bandwidth=[0.0], empty=empty)
    model.fit([[0.0], [0.0], [1.0], [1.0], [2.0]], [1.0, 2.0, 3.0, 4.0, 100.0])
    np.testing.assert_allclose(model.leave_one_out().predictions, [2.0, 1.0, 4.0, 3.0, 2.5])


def test_leave_one_out_of_places_equally_near_uses_all():
    x, y = np.arange(9) / 10, np.arange(9.0) ** 2
    model = KernelRegression("epanechnikov", bandwidth=0.01).fit(x, y)
    wanted = [1.0, *((y[:-2] + y[2:]) / 2), y[-2]]
    np.testing.assert_allclose(model.leave_one_out().predictions, wanted)


@pytest.mark.parametrize(
    "of_x, of_y, degree", [(1.0, 1e155, 0), (1e-305, 1e300, 1), (1e305, 1e-170, 0)]
)
def test_regression_scales_go_as_far_as_float64(of_x, of_y, degree):
    x, y = line(n=23)
    near = KernelRegression(degree=degree).fit(x, y)
    far = KernelRegression(degree=degree).fit(x * of_x, y * of_y)
    np.testing.assert_allclose(far.current_bandwidth() / of_x, near.current_bandwidth(), rtol=1e-6)
    np.testing.assert_allclose(far.predict(x * of_x) / of_y, near.predict(x), rtol=1e-6)
    np.testing.assert_allclose(far.leave_one_out().r2, near.leave_one_out().r2, rtol=1e-6)
    for ours, wanted in zip(far.bands(x * of_x), near.bands(x), strict=True):
        np.testing.assert_allclose(ours / of_y, wanted, rtol=1e-6, atol=1e-7)
    with np.errstate(over="ignore"):  # overflow gives inf
        wanted = near.variance(x) * of_y * of_y
        np.testing.assert_allclose(far.variance(x * of_x), wanted, rtol=1e-6, atol=1e-300)
        slope = near.derivative(x) * (of_y / of_x)
    np.testing.assert_allclose(far.derivative(x * of_x), slope, rtol=1e-6, atol=1e-300)


# Local lines.


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_local_line_sees_slopes_beside_a_far_point(columns):
    x = np.random.default_rng(0).uniform(0, 1, (201, columns))
    slopes = np.arange(1.0, columns + 1)
    far = np.concatenate([x, np.full((1, columns), 1e9)])
    model = KernelRegression(bandwidth=0.5, degree=1).fit(far, np.append(x @ slopes, 0.0))
    asked = x[:31] + 0.1  # of which some are outside
    np.testing.assert_allclose(model.predict(asked), asked @ slopes, rtol=1e-6)
    np.testing.assert_allclose(model.derivative(asked), np.tile(slopes, (31, 1)), rtol=1e-6)
    np.testing.assert_allclose(model.leave_one_out().residuals[:201], 0.0, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 2])
def test_local_line_sees_slopes_in_clusters_far_apart(columns):
    slopes = np.arange(1.0, columns + 1)
    x = np.random.default_rng(0).uniform(0, 1, (201, columns))
    x += 1e9 * (np.arange(201) % 2)[:, None]
    # Of 10⁹ + x float64 keeps 7 digits of x.
    local = x - np.round(x / 1e9) * 1e9
    model = KernelRegression(bandwidth=0.5, degree=1).fit(x, local @ slopes)
    np.testing.assert_allclose(model.predict(x), local @ slopes, atol=1e-5)
    np.testing.assert_allclose(model.derivative(x), np.tile(slopes, (201, 1)), rtol=1e-5)


def test_local_line_of_endless_width_is_that_of_least_squares():
    x, y = line()
    model = KernelRegression(bandwidth=1e12, degree=1).fit(x, y)
    wanted = np.polyval(np.polyfit(x, y, 1), QUERIES)
    np.testing.assert_allclose(model.predict(QUERIES), wanted, rtol=1e-9)


@pytest.mark.parametrize("place", [0.0, 1e6])
def test_local_line_over_one_place_is_flat(place):
    x = np.array([0.0, 0.0, 1.0, 1.0, 2.0]) + place
    model = KernelRegression("boxcar", bandwidth=0.4, degree=1).fit(x, [1.0, 3.0, 5.0, 7.0, 9.0])
    np.testing.assert_allclose(model.predict(x + 0.3), [2.0, 2.0, 6.0, 6.0, 9.0])
    np.testing.assert_array_equal(model.derivative(x + 0.3), 0.0)


@pytest.mark.parametrize("degree", [0, 1])
def test_derivative_by_categories_alone_is_empty(degree):
    model = KernelRegression(bandwidth=[0.3], degree=degree, categorical=[0])
    assert model.fit([[0], [0], [1]], [1.0, 2.0, 3.0]).derivative([[0], [1]]).shape == (2, 0)


def test_local_line_over_a_line_in_a_plane_is_flat_across():
    along = np.linspace(0, 1, 51)
    model = KernelRegression(bandwidth=0.3, degree=1).fit(np.stack([along, along], 1), 2 * along)
    np.testing.assert_allclose(model.predict([[0.5, 0.5], [0.6, 0.4]]), [1.0, 1.0], rtol=1e-9)
    np.testing.assert_allclose(model.derivative([[0.5, 0.5]]), [[1.0, 1.0]], rtol=1e-9)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_derivative_equals_finite_differences(name, columns):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 5, (91, columns)), rng.normal(size=(91, 2))
    model = KernelRegression(name, bandwidth=2.1).fit(x, y)
    at, step = x[:7] + 0.1, 1e-6
    for column in range(columns):
        away = step * np.eye(columns)[column]
        numeric = (model.predict(at + away) - model.predict(at - away)) / (2 * step)
        np.testing.assert_allclose(model.derivative(at)[:, column], numeric, rtol=1e-5, atol=1e-7)


# Far from the data.


@pytest.mark.parametrize("name", kernels.names())
def test_regression_far_query_gets_the_nearest_value(name):
    x, y = line()
    model = KernelRegression(name, bandwidth=0.5).fit(x, y + 10)
    far = model.predict([1e3, -1e6, 1e9])
    has_tails = name in ("laplace", "logistic")  # whose weights are equal far away
    if has_tails:
        assert (far > y.min() + 10).all() and (far < y.max() + 10).all()
    else:
        np.testing.assert_allclose(far, np.array([y[-1], y[0], y[-1]]) + 10)
    x, y = plane()
    for degree in (0, 1):
        model = KernelRegression(name, bandwidth=0.9, degree=degree).fit(x, y)
        for far in (30.0, -1e4, 1e8):
            assert np.isfinite(model.predict([[far, 0.1], [0.1, far], [far, -far]])).all()
        if degree == 0 and not has_tails:
            np.testing.assert_allclose(model.predict([[1e8, 0.1]]), [y[np.argmax(x[:, 0])]])


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("empty, wanted", [("nearest", 5.0), ("nan", np.nan)])
def test_regression_query_without_neighbors_gets_what_was_chosen(empty, wanted, columns, degree):
    x = np.repeat(np.linspace(0.0, 1.0, 9)[:, None], columns, axis=1)
    y = np.linspace(1.0, 5.0, 9)
    model = KernelRegression("epanechnikov", 0.5, degree=degree, empty=empty).fit(x, y)
    far = np.full((1, columns), 9.0)
    np.testing.assert_allclose(model.predict(far), [wanted])
    np.testing.assert_allclose(model.predict(np.full((1, columns), 0.5)), [3.0])
    slope = np.full((1, columns), np.nan if empty == "nan" else 0.0)
    np.testing.assert_array_equal(model.derivative(far), slope)
    assert model.weights(far).sum() == (empty == "nearest")
    np.testing.assert_allclose(model.effective_neighbors(far), [float(empty == "nearest")])
    for method in ("robust", "asymptotic"):
        band = model.bands(far, method=method)
        assert np.isnan(band.low[0]) == np.isnan(band.high[0]) == (empty != "nearest")


# Few points, and degenerate points.


def test_regression_points_as_near_share_the_answer():
    model = KernelRegression("boxcar", 0.1).fit([0.0, 0.0, 1.0], [1.0, 3.0, 9.0])
    np.testing.assert_allclose(model.predict([-5.0]), [2.0])


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 1])
def test_regression_of_few_or_constant_points_answers_them(degree):
    one = KernelRegression(degree=degree).fit([2.0], [7.0])
    np.testing.assert_allclose(one.predict([2.0, -100.0]), [7.0, 7.0])
    assert one.current_bandwidth() == 1.0
    place = KernelRegression(degree=degree).fit(np.ones(5), np.arange(5.0))
    np.testing.assert_allclose(place.predict([1.0, 8.0]), [2.0, 2.0])
    for x, asked in ((line()[0], [1.0, 99.0]), (plane()[0], [[0.1, 0.2], [50.0, -3.0]])):
        constant = KernelRegression(degree=degree).fit(x, np.full(len(x), -2.5))
        np.testing.assert_allclose(constant.predict(asked), -2.5)
        assert np.isfinite(constant.current_bandwidth()).all()
        assert np.isnan(constant.leave_one_out().r2)
        assert (constant.bands(x[:3]).low <= -2.5).all()
        assert constant.variance(x[:3]).max() < 1e-20
    two = KernelRegression(degree=degree).fit([0.0, 1.0], [0.0, 4.0])
    np.testing.assert_allclose(two.leave_one_out().predictions, [4.0, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 1])
def test_regression_of_two_or_repeated_points_is_finite(degree):
    for x, y in (([0.0, 1.0], [0.0, 4.0]), ([0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 4.0, 5.0])):
        for leave_out in ("point", "place"):
            model = KernelRegression(degree=degree, leave_out=leave_out).fit(x, y)
            found = model.predict([0.0, 0.5, 1.0])
            assert np.isfinite(found).all() and (found > -0.5).all() and (found < 5.5).all()
            assert np.isfinite(model.leave_one_out().residuals).all()
            assert np.isfinite(np.stack(model.bands([0.5]))).all()


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 1])
def test_regression_constant_column_changes_nothing(degree):
    x, y = line()
    alone = KernelRegression(degree=degree).fit(x, y)
    both = KernelRegression(degree=degree).fit(np.column_stack([np.full(50, 7.0), x]), y)
    np.testing.assert_allclose(both.current_bandwidth()[1], alone.current_bandwidth(), rtol=1e-3)
    asked = np.column_stack([np.full(31, 7.0), QUERIES])
    np.testing.assert_allclose(both.predict(asked), alone.predict(QUERIES), rtol=1e-3)


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("name", ["boxcar", "epanechnikov", "gaussian"])
def test_bandwidth_is_chosen_in_few_and_many_columns(name, columns):
    rng = np.random.default_rng(columns)
    x = rng.uniform(size=(24, columns))
    model = KernelRegression(name).fit(x, x[:, 0] + 0.1 * rng.normal(size=24))
    assert np.isfinite(model.current_bandwidth()).all()
    assert model.leave_one_out().r2 > 0
    again = KernelRegression(name).fit(x, x[:, 0], start=1.0)
    assert np.isfinite(again.current_bandwidth()).all()


@pytest.mark.parametrize("name", kernels.names())
def test_regression_with_a_width_of_zero_equals_a_fit_of_each_category(name):
    rng = np.random.default_rng(5)
    x, y, weight = rng.normal(size=(40, 2)), rng.normal(size=40), rng.uniform(0.1, 2, 40)
    category = rng.integers(0, 3, 40)
    queries, asked = 3 * rng.normal(size=(17, 2)), rng.integers(0, 3, 17)
    cases = [(0, "nearest", 0.02), (0, "nan", 0.3), (1, "nearest", 1.5)]
    for degree, empty, h in cases:
        given = {"degree": degree, "empty": empty}
        model = KernelRegression(name, bandwidth=[h, h, 0.0], categorical=[2], **given)
        model.fit(np.column_stack([x, category]), y, sample_weight=weight)
        found = model.predict(np.column_stack([queries, asked]))
        others = model.leave_one_out().predictions
        for one in range(3):
            own, here = category == one, asked == one
            alone = KernelRegression(name, bandwidth=[h, h], **given)
            alone.fit(x[own], y[own], sample_weight=weight[own])
            np.testing.assert_allclose(found[here], alone.predict(queries[here]), rtol=1e-7)
            left_out = alone.leave_one_out().predictions
            np.testing.assert_allclose(others[own], left_out, rtol=1e-7)


def test_regression_with_a_tiny_width_is_no_nearer_to_other_categories():
    x = [[0.0, 0, 0], [0.5, 1, 1], [9.0, 0, 0]]
    model = KernelRegression("epanechnikov", bandwidth=[1.0, 1e-200, 1e-200], categorical=[1, 2])
    # Both of other categories, but only the second is within the support.
    np.testing.assert_allclose(model.fit(x, [1.0, 2.0, 3.0]).predict([[1.2, 0, 0]]), [2.0])


@pytest.mark.parametrize("degree", [0, 1])
def test_bands_of_categories_alone_are_students_t_of_each_group(degree):
    from scipy import stats

    code = np.array([0, 0, 0, 1, 1, 1, 1, 2])
    y = np.array([1.0, 2, 4, 10, 20, 30, 25, 7])
    model = KernelRegression(categorical=[0], bandwidth=[0.0], degree=degree)
    band = model.fit(code[:, None], y).bands([[0.0], [1.0], [2.0]])
    for place, group in enumerate([y[:3], y[3:7]]):
        wanted = stats.t.interval(0.95, len(group) - 1, group.mean(), stats.sem(group))
        np.testing.assert_allclose((band.low[place], band.high[place]), wanted)
    np.testing.assert_allclose(band.value, [y[:3].mean(), y[3:7].mean(), 7.0])
    assert np.isnan([band.low[2], band.high[2]]).all()  # one value tells nothing of its group
