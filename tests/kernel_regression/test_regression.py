"""KernelRegression: what it predicts, against the oracle, and what it answers at the edges."""

import datetime
import os
import threading

import numpy as np
import pytest
import threadpoolctl

from tests import reference
from tests.helpers.refusals import message, table
from tests.kernel_regression.data import cauchy, line, plane
from tfattn.kernel_regression import KernelRegression, kernels, near, threads, tiles, tuned
from tfattn.kernel_regression import line as line_sums

QUERIES = np.linspace(0.2, 4.8, 31)
DISTANCES = np.array([0.0, 1e-3, 0.1, 0.5, 0.9, 0.999, 1.001, 1.5, 3.0])


@pytest.fixture
def by_boxes(monkeypatch):
    """Sums over boxes on a line wherever there are more than 100 queries, or as is set, but where a
    search tries bandwidths of so many boxes that they would fill the memory.
    """

    def choose(least=100):
        def pays(kernel, metric, points, queries):
            return queries > least and np.ptp(points.places.x) * metric.map[0, 0] < 1e5

        monkeypatch.setattr(line_sums, "pays", pays)

    choose()
    return choose


# Against the oracle.


@pytest.mark.parametrize("name", kernels.names())
def test_value_log_and_slope_are_those_of_the_formula(name):
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


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("name", sorted(reference.KERNELS))
def test_predictions_on_a_line_are_those_of_the_oracle(name, degree):
    x, y = line(n=101)
    weight = np.random.default_rng(1).uniform(0.5, 2, len(x))
    model = KernelRegression(name, bandwidth=0.9, degree=degree).fit(x, y, sample_weight=weight)
    wanted = reference.kernel_regression(
        QUERIES[:, None], x[:, None], y, 0.9, name, degree, weight=weight
    )
    np.testing.assert_allclose(model.predict(QUERIES[::-1]), wanted[::-1], rtol=1e-9)
    np.testing.assert_allclose(model.weights(QUERIES) @ y, wanted, rtol=1e-9)
    np.testing.assert_allclose(model.weights(QUERIES).sum(1), 1.0)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("columns", [2, 7])
def test_predictions_in_many_columns_are_those_of_the_oracle(columns, degree):
    rng = np.random.default_rng(0)
    x, y, queries = (rng.normal(size=shape) for shape in ((83, columns), 83, (11, columns)))
    h = rng.uniform(0.8, 1.5, columns)
    wanted = reference.kernel_regression(queries, x, y, h, "gaussian", degree)
    model = KernelRegression(bandwidth=h, degree=degree).fit(x, y)
    np.testing.assert_allclose(model.predict(queries), wanted, rtol=1e-7)
    whole = np.diag(h) + 0.3 * np.tri(columns, k=-1)
    turned, asked = x @ np.linalg.inv(whole), queries @ np.linalg.inv(whole)
    wanted = reference.kernel_regression(asked, turned, y, 1.0, "gaussian", degree)
    model = KernelRegression(bandwidth=whole, degree=degree).fit(x, y)
    np.testing.assert_allclose(model.predict(queries), wanted, rtol=1e-7)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_categories_weigh_as_aitchison_and_aitken_say(name, degree):
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


def test_a_category_that_no_point_has_is_unlike_all():
    x = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    model = KernelRegression(bandwidth=[1.0, 0.2], categorical=[1]).fit(x, [1.0, 2.0, 6.0])
    np.testing.assert_allclose(model.predict([[0.0, 9.0]]), [3.0])


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_leave_one_out_is_that_of_the_oracle(name, degree):
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
def test_a_mean_lies_between_the_least_and_the_greatest_height_that_it_weighs(name, columns):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 5, (201, columns))
    y = np.stack([x[:, 0] > 2.5, 0.1 * (x[:, 0] > 1)], axis=1).astype(float)
    model = KernelRegression(name, bandwidth=0.3).fit(x, y)
    value = model.predict(x)
    # In tails of a Gaussian weights underflow.
    seen = (model.weights(x) > 0)[:, :, None] | (name == "gaussian")
    low, high = np.where(seen, y, np.inf).min(1), np.where(seen, y, -np.inf).max(1)
    assert ((low <= value) & (value <= high)).all()
    left_out = model.leave_one_out().predictions
    assert ((y.min(0) <= left_out) & (left_out <= y.max(0))).all()
    assert (model.variance(x) >= 0).all()


@pytest.mark.parametrize("scale", [0.1, 0.3, 7.0])
def test_a_boxcar_sees_keys_at_its_very_edge(scale):
    x, y = np.arange(13) * scale, np.arange(13.0) ** 2
    wanted = [y[max(i - 1, 0) : i + 2].mean() for i in range(13)]
    np.testing.assert_allclose(KernelRegression("boxcar", scale).fit(x, y).predict(x), wanted)


def test_of_places_that_are_as_near_but_for_rounding_all_count():
    x, y = np.arange(9) / 10, np.arange(9.0) ** 2
    model = KernelRegression("epanechnikov", bandwidth=0.01).fit(x, y)
    wanted = [1.0, *((y[:-2] + y[2:]) / 2), y[-2]]
    np.testing.assert_allclose(model.leave_one_out().predictions, wanted)


@pytest.mark.parametrize("of_x, of_y", [(1.0, 1e155), (1e-305, 1e300), (1e305, 1e-170)])
@pytest.mark.parametrize("degree", [0, 1])
def test_scales_go_as_far_as_float64(of_x, of_y, degree):
    x, y = line(n=23)
    near = KernelRegression(degree=degree).fit(x, y)
    far = KernelRegression(degree=degree).fit(x * of_x, y * of_y)
    np.testing.assert_allclose(far.current_bandwidth() / of_x, near.current_bandwidth(), rtol=1e-6)
    np.testing.assert_allclose(far.predict(x * of_x) / of_y, near.predict(x), rtol=1e-6)
    np.testing.assert_allclose(far.leave_one_out().r2, near.leave_one_out().r2, rtol=1e-6)
    for ours, wanted in zip(far.bands(x * of_x), near.bands(x), strict=True):
        np.testing.assert_allclose(ours / of_y, wanted, rtol=1e-6, atol=1e-7)
    with np.errstate(over="ignore"):  # where float64 ends, inf
        wanted = near.variance(x) * of_y * of_y
        np.testing.assert_allclose(far.variance(x * of_x), wanted, rtol=1e-6, atol=1e-300)
        slope = near.derivative(x) * (of_y / of_x)
    np.testing.assert_allclose(far.derivative(x * of_x), slope, rtol=1e-6, atol=1e-300)


# Sums over boxes, and over the keys that are near, against those over all pairs.


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("bandwidth", [0.003, 0.3, 30.0])
def test_sums_over_boxes_are_those_over_pairs(bandwidth, degree, by_boxes):
    # Queries in gaps and beyond the ends, and boxes where pairs would be quicker too.
    x, y = line(n=3001)
    x, y = np.delete(x, slice(500, 900)), np.delete(y, slice(500, 900))
    queries = np.linspace(-2, 7, 401)
    model = KernelRegression(bandwidth=bandwidth, degree=degree).fit(x, y)
    found = model.predict(np.concatenate([queries, np.linspace(0, 5, 5000)]))[: len(queries)]
    away = queries[:, None] - x
    if degree == 0:
        logs = -((away / bandwidth) ** 2) / 2
        w = np.exp(logs - logs.max(1, keepdims=True))
        wanted = (w / w.sum(1, keepdims=True)) @ y
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    else:
        alone = np.array([model.predict(q)[0] for q in queries[:, None]])
        inside = np.abs(away).min(1) < 3 * bandwidth
        np.testing.assert_allclose(found[inside], alone[inside], rtol=1e-7)


@pytest.mark.parametrize("degree", [0, 1])
def test_sums_over_boxes_see_heavy_keys_beside_tiny_ones(degree, by_boxes):
    x, y = line(n=801)
    weight = np.where((x > 1) & (x < 2), 1e-60, 1.0)
    model = KernelRegression(bandwidth=0.05, degree=degree).fit(x, y, sample_weight=weight)
    queries = np.linspace(0, 5, 901)
    wanted = reference.kernel_regression(
        queries[:, None], x[:, None], y, 0.05, "gaussian", degree, weight=weight
    )
    # In the middle of the gap a line goes by the few keys at its ends.
    tolerance = {0: 1e-9, 1: 1e-4}[degree]
    np.testing.assert_allclose(model.predict(queries), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 1])
def test_leaving_out_by_sums_over_boxes_is_leaving_out_by_pairs(degree, by_boxes):
    x, y = line(n=241)
    model = KernelRegression(bandwidth=0.2, degree=degree).fit(x, y)
    summed = model.leave_one_out().predictions
    chosen = KernelRegression(degree=degree).fit(x, y).current_bandwidth()
    by_boxes(least=np.inf)
    by_pairs = model.leave_one_out().predictions
    assert (summed != by_pairs).any()
    np.testing.assert_allclose(summed, by_pairs, rtol=1e-8)
    again = KernelRegression(degree=degree).fit(x, y).current_bandwidth()
    np.testing.assert_allclose(chosen, again, rtol=1e-5)


@pytest.mark.parametrize("name", kernels.names())
def test_means_of_near_keys_are_those_of_all_keys(name, monkeypatch):
    # Queries among the points, beyond them, and so far away that only log space tells them.
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (601, 2)), rng.normal(size=(601, 2))
    queries = np.concatenate([rng.uniform(-1.2, 1.2, (301, 2)), [[9.0, 9.0], [-1e6, 0.5]]])
    weight = rng.uniform(0.5, 2, 601)
    for bandwidth in (0.005, 0.05, 50.0):
        model = KernelRegression(name, [bandwidth, 0.7 * bandwidth])
        model.fit(x, y, sample_weight=weight)
        assert near.pays(model.points, model.points.places)
        found = model.predict(queries)
        with monkeypatch.context() as patch:
            patch.setattr(near, "pays", lambda points, queries: False)
            wanted = model.predict(queries)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["cauchy", "gaussian"])  # a name is no promise
def test_a_kernel_of_ones_own_is_seen_as_far_as_it_reaches(name, monkeypatch):
    monkeypatch.setitem(reference.KERNELS, name, lambda u: 1.0 / (1.0 + u**2))
    for columns, degree in ((1, 0), (2, 0), (2, 1)):
        rng = np.random.default_rng(0)
        # So narrow that most of each sum lies a hundred bandwidths away.
        x, y = rng.uniform(0, 5, (701, columns)), rng.normal(size=701)
        queries = rng.uniform(-1, 6, (101, columns))
        model = KernelRegression(cauchy(name), bandwidth=0.001, degree=degree).fit(x, y)
        wanted = reference.kernel_regression(queries, x, y, 0.001, name, degree)
        np.testing.assert_allclose(model.predict(queries), wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "logistic"])
def test_a_near_key_of_a_tiny_weight_hides_no_heavy_one(name):
    x, y, weight = np.array([0.0, 20.0]), np.array([1.0, 3.0]), np.array([1e-220, 1.0])
    for columns in (1, 2):
        places = np.tile(x[:, None], (1, columns))
        model = KernelRegression(name, bandwidth=1.0).fit(places, y, sample_weight=weight)
        # log K(20) is −200 or −20 (in a plane −400 or −28), and that of the weight −506.
        np.testing.assert_allclose(model.predict(np.zeros((1, columns))), [3.0], rtol=1e-9)


# Local lines.


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_a_local_line_sees_slopes_beside_a_point_that_is_far_away(columns):
    x = np.random.default_rng(0).uniform(0, 1, (201, columns))
    slopes = np.arange(1.0, columns + 1)
    far = np.concatenate([x, np.full((1, columns), 1e9)])
    model = KernelRegression(bandwidth=0.5, degree=1).fit(far, np.append(x @ slopes, 0.0))
    asked = x[:31] + 0.1  # of which some are outside
    np.testing.assert_allclose(model.predict(asked), asked @ slopes, rtol=1e-6)
    np.testing.assert_allclose(model.derivative(asked), np.tile(slopes, (31, 1)), rtol=1e-6)
    np.testing.assert_allclose(model.leave_one_out().residuals[:201], 0.0, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_local_line_sees_slopes_in_clusters_that_are_far_apart(columns):
    slopes = np.arange(1.0, columns + 1)
    x = np.random.default_rng(0).uniform(0, 1, (201, columns))
    x += 1e9 * (np.arange(201) % 2)[:, None]
    # Of 10⁹ + x float64 keeps 7 digits of x.
    local = x - np.round(x / 1e9) * 1e9
    model = KernelRegression(bandwidth=0.5, degree=1).fit(x, local @ slopes)
    np.testing.assert_allclose(model.predict(x), local @ slopes, atol=1e-5)
    np.testing.assert_allclose(model.derivative(x), np.tile(slopes, (201, 1)), rtol=1e-5)


def test_a_local_line_of_an_endless_width_is_the_line_of_least_squares():
    x, y = line()
    model = KernelRegression(bandwidth=1e12, degree=1).fit(x, y)
    wanted = np.polyval(np.polyfit(x, y, 1), QUERIES)
    np.testing.assert_allclose(model.predict(QUERIES), wanted, rtol=1e-9)


@pytest.mark.parametrize("place", [0.0, 1e6])
def test_where_all_points_that_count_lie_at_one_place_a_local_line_is_flat(place):
    x = np.array([0.0, 0.0, 1.0, 1.0, 2.0]) + place
    model = KernelRegression("boxcar", bandwidth=0.4, degree=1).fit(x, [1.0, 3.0, 5.0, 7.0, 9.0])
    np.testing.assert_allclose(model.predict(x + 0.3), [2.0, 2.0, 6.0, 6.0, 9.0])
    np.testing.assert_array_equal(model.derivative(x + 0.3), 0.0)


def test_a_local_line_over_points_on_a_line_in_a_plane_is_flat_across_it():
    along = np.linspace(0, 1, 51)
    model = KernelRegression(bandwidth=0.3, degree=1).fit(np.stack([along, along], 1), 2 * along)
    np.testing.assert_allclose(model.predict([[0.5, 0.5], [0.6, 0.4]]), [1.0, 1.0], rtol=1e-9)
    np.testing.assert_allclose(model.derivative([[0.5, 0.5]]), [[1.0, 1.0]], rtol=1e-9)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_derivatives_are_those_of_finite_differences(name, columns):
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
def test_far_queries_get_the_nearest_value_and_never_a_silent_0(name):
    x, y = line()
    model = KernelRegression(name, bandwidth=0.5).fit(x, y + 10)
    far = model.predict([1e3, -1e6, 1e9])
    has_tails = name in ("laplace", "logistic")  # which weigh all points alike, far away
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
@pytest.mark.parametrize("empty, wanted", [("nearest", 5.0), ("mean", 3.0), ("nan", np.nan)])
def test_a_query_without_neighbours_gets_what_was_chosen(empty, wanted, columns, degree):
    x = np.repeat(np.linspace(0.0, 1.0, 9)[:, None], columns, axis=1)
    y = np.linspace(1.0, 5.0, 9)
    model = KernelRegression("epanechnikov", 0.5, degree=degree, empty=empty).fit(x, y)
    far = np.full((1, columns), 9.0)
    np.testing.assert_allclose(model.predict(far), [wanted])
    np.testing.assert_allclose(model.predict(np.full((1, columns), 0.5)), [3.0])
    slope = np.full((1, columns), np.nan if empty == "nan" else 0.0)
    np.testing.assert_array_equal(model.derivative(far), slope)
    assert model.weights(far).sum() == (empty == "nearest")
    np.testing.assert_allclose(model.effective_neighbours(far), [float(empty == "nearest")])
    for method in ("robust", "asymptotic", "bootstrap"):
        band = model.bands(far, method=method, replicas=5, seed=0)
        assert np.isnan(band.low[0]) == np.isnan(band.high[0]) == (empty != "nearest")


# Few points, and points that say little.


def test_points_that_are_as_near_share_the_answer():
    model = KernelRegression("boxcar", 0.1).fit([0.0, 0.0, 1.0], [1.0, 3.0, 9.0])
    np.testing.assert_allclose(model.predict([-5.0]), [2.0])


@pytest.mark.parametrize("degree", [0, 1])
def test_points_that_say_little_are_answered_by_what_they_say(degree):
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


@pytest.mark.parametrize("degree", [0, 1])
def test_two_points_and_repeated_points_are_finite(degree):
    for x, y in (([0.0, 1.0], [0.0, 4.0]), ([0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 4.0, 5.0])):
        for leave_out in ("point", "place"):
            model = KernelRegression(degree=degree, leave_out=leave_out).fit(x, y)
            found = model.predict([0.0, 0.5, 1.0])
            assert np.isfinite(found).all() and (found > -0.5).all() and (found < 5.5).all()
            assert np.isfinite(model.leave_one_out().residuals).all()
            assert np.isfinite(np.stack(model.bands([0.5]))).all()


@pytest.mark.parametrize("degree", [0, 1])
def test_a_column_that_does_not_vary_changes_nothing(degree):
    x, y = line()
    alone = KernelRegression(degree=degree).fit(x, y)
    both = KernelRegression(degree=degree).fit(np.column_stack([np.full(50, 7.0), x]), y)
    np.testing.assert_allclose(both.current_bandwidth()[1], alone.current_bandwidth(), rtol=1e-3)
    asked = np.column_stack([np.full(31, 7.0), QUERIES])
    np.testing.assert_allclose(both.predict(asked), alone.predict(QUERIES), rtol=1e-3)


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("name, first", [("boxcar", 0), ("epanechnikov", 1), ("gaussian", 2)])
def test_every_kernel_chooses_in_few_and_in_many_columns(name, first, columns):
    # Every kernel, every metric and every number of columns meet pairwise.
    metric = ("one", "each", "full")[(first + columns) % 3]
    rng = np.random.default_rng(columns)
    x = rng.uniform(size=(24, columns))
    model = KernelRegression(name, metric=metric).fit(x, x[:, 0] + 0.1 * rng.normal(size=24))
    assert np.isfinite(model.current_bandwidth()).all()
    assert model.leave_one_out().r2 > 0
    if metric != "full":
        again = KernelRegression(name, metric=metric).fit(x, x[:, 0], start=1.0)
        assert np.isfinite(again.current_bandwidth()).all()


# Units, weights, types, and what is asked besides.


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_and_offsets_of_two_columns_and_of_lines_change_no_fit(scale):
    x, y = plane()
    turned = x * [scale, 1.0] + [1e6 * scale, -1e6]
    for degree in (0, 1):
        first = KernelRegression(degree=degree).fit(x, y)
        other = KernelRegression(degree=degree).fit(turned, 1e6 + y * scale)
        factors = other.current_bandwidth() / first.current_bandwidth()
        np.testing.assert_allclose(factors, [scale, 1.0], rtol=1e-3)
        found = (other.predict(turned) - 1e6) / scale
        # Of 10⁶ + 10⁻⁶ y float64 keeps 4 digits of y.
        np.testing.assert_allclose(found, first.predict(x), atol=1e-3)


@pytest.mark.parametrize("scale, shift", [(1e-6, 0.0), (1e6, 1e6), (1.0, 1e6)])
def test_units_and_offsets_on_a_line_change_no_fit(scale, shift):
    x, y = line()
    first = KernelRegression().fit(x, y)
    h, wanted = first.current_bandwidth(), first.predict(QUERIES)
    of_x = KernelRegression().fit((x + shift) * scale, y)
    np.testing.assert_allclose(of_x.current_bandwidth(), h * scale, rtol=1e-6)
    np.testing.assert_allclose(of_x.predict((QUERIES + shift) * scale), wanted, rtol=1e-6)
    of_y = KernelRegression().fit(x, y * scale + shift)
    np.testing.assert_allclose(of_y.current_bandwidth(), h, rtol=1e-5)
    np.testing.assert_allclose(of_y.predict(QUERIES), wanted * scale + shift, rtol=1e-6)


def test_repeated_rows_do_not_vouch_for_one_another_where_places_are_left_out():
    x, y = line()
    twice = np.tile(x, 2), np.tile(y, 2)
    alone = KernelRegression().fit(x, y).current_bandwidth()
    together = KernelRegression(leave_out="place").fit(*twice)
    np.testing.assert_allclose(together.current_bandwidth(), alone, rtol=1e-6)
    assert KernelRegression().fit(*twice).current_bandwidth() < alone / 3


def test_a_weight_counts_as_so_many_points():
    x, y = line()
    weight = np.random.default_rng(0).integers(0, 4, 50)
    asked = np.linspace(0, 5, 7)
    weighted = KernelRegression(leave_out="place").fit(x, y, sample_weight=weight)
    repeated = KernelRegression(leave_out="place").fit(np.repeat(x, weight), np.repeat(y, weight))
    np.testing.assert_allclose(weighted.predict(asked), repeated.predict(asked), rtol=1e-7)
    assert weighted.weights(asked).shape == (7, 50)
    assert (weighted.weights(asked)[:, weight == 0] == 0).all()


def test_float32_lists_and_no_queries_are_taken_as_they_are():
    x, y = line()
    model = KernelRegression(bandwidth=0.3).fit(x, y)
    other = KernelRegression(bandwidth=0.3).fit(x.astype("float32"), y.astype("float32"))
    np.testing.assert_allclose(other.predict(QUERIES), model.predict(QUERIES), rtol=1e-5)
    assert KernelRegression(bandwidth=1.0).fit([0, 1, 2], [1, 2, 3]).predict([1]).shape == (1,)
    for shape in ((0,), (0, 1)):
        assert model.predict(np.zeros(shape)).shape == (0,)
        assert model.derivative(np.zeros(shape)).shape == (0, 1)


def test_weights_whose_query_sees_all_alike_have_all_as_neighbours():
    x, y = line()
    model = KernelRegression(bandwidth=1e6).fit(x, y)
    np.testing.assert_allclose(model.effective_neighbours([2.0]), 50.0)
    narrow = KernelRegression(bandwidth=1e-6).fit(x, y)
    np.testing.assert_allclose(narrow.effective_neighbours(x[:3]), 1.0)


def test_several_outputs_are_smoothed_alike():
    x, y = line()
    both = KernelRegression(bandwidth=0.3).fit(x, np.column_stack([y, 100 * y**2]))
    for column, height in enumerate((y, 100 * y**2)):
        alone = KernelRegression(bandwidth=0.3).fit(x, height)
        np.testing.assert_allclose(both.predict(QUERIES)[:, column], alone.predict(QUERIES))
        np.testing.assert_allclose(both.variance(QUERIES)[:, column], alone.variance(QUERIES))


@pytest.mark.parametrize("method", ["asymptotic", "bootstrap"])
def test_a_band_holds_the_curve_about_as_often_as_it_says(method):
    asked = np.linspace(0.5, 4.5, 9)
    truth = 2 * np.sin(asked) + asked**0.8
    held = []
    for seed in range(40):
        x, y = line(seed, n=200)
        band = KernelRegression(bandwidth=0.12).fit(x, y).bands(asked, 0.9, method, seed=seed)
        assert (band.low < band.value).all() and (band.value < band.high).all()
        held.append((band.low <= truth) & (truth <= band.high))
    assert 0.83 < np.mean(held) < 0.95


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_a_robust_band_is_that_of_the_oracle(name, columns):
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
def test_a_band_holds_the_curve_where_smoothing_bends_it(growth, degree):
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
def test_the_variance_follows_the_noise():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 5, 4000))
    y = np.sin(x) + rng.normal(size=4000) * np.where(x < 2.5, 0.2, 0.6)
    variance = KernelRegression().fit(x, y).variance([1.0, 4.0])
    np.testing.assert_allclose(variance, [0.04, 0.36], rtol=0.25)


# Threads.


def _tile(number):
    if number == 5:
        raise MemoryError("of a tile")
    return number


def test_tiles_in_threads_come_in_order_and_an_error_comes_out_and_leaves_no_thread(monkeypatch):
    monkeypatch.setattr(tiles, "_cores", lambda: 3)
    before = threading.active_count()
    assert list(tiles.mapped(_tile, [3, 1, 2] * 9, tuned.THREADED_PAIRS)) == [3, 1, 2] * 9
    found = tiles.mapped(_tile, range(20), tuned.THREADED_PAIRS)
    assert [next(found) for _ in range(5)] == list(range(5))
    with pytest.raises(MemoryError, match="of a tile"):
        next(found)
    assert threading.active_count() == before
    abandoned = tiles.mapped(_tile, range(3), tuned.THREADED_PAIRS)
    next(abandoned)
    abandoned.close()
    assert threading.active_count() == before


def test_blas_has_one_thread_in_a_call_and_as_many_as_before_after_calls_that_overlap():
    def counts():
        found = threadpoolctl.threadpool_info()
        return [one["num_threads"] for one in found if one["user_api"] == "blas"]

    before, seen, both = counts(), [], threading.Barrier(2)

    @threads.one_blas_thread
    def call(first):
        both.wait()
        seen.append(counts())
        if first:
            return
        other.join()  # the first has ended, and this one has not
        seen.append(counts())

    other = threading.Thread(target=call, args=(True,))
    other.start()
    call(False)
    assert counts() == before and len(seen) == 3
    assert all(set(found) == {1} for found in seen)
    with pytest.raises(ValueError, match="`x` must be finite"):
        KernelRegression().fit([np.nan, 1.0], [1.0, 2.0])
    assert counts() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's: the child asks it nothing
def test_a_fork_after_a_prediction_in_threads_predicts_too(monkeypatch):
    monkeypatch.setattr(tuned, "THREADED_PAIRS", 1)
    x, y = plane(n=600)
    model = KernelRegression(bandwidth=0.3).fit(x, y)
    wanted = model.predict(x)
    child = os.fork()
    if not child:
        os._exit(int(not np.array_equal(model.predict(x), wanted)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# What is refused. tests/test_nonsense.py has what one argument may not be by itself.

X = np.linspace(0.0, 1.0, 7)
REAL = "be an array of real numbers (read a tf.data pipeline or a generator first)"


def _with(value, row):
    x = X.copy()
    x[row] = value
    return x


def fit(x, y=X, sample_weight=None, start=None, names=None, **options):
    return lambda: KernelRegression(**options).fit(x, y, sample_weight, start, names)


REFUSED = [
    (fit(_with(np.nan, 3)), "x", "be finite", "NaN at row 3, column 0"),
    (fit(X, _with(np.inf, 2)), "y", "be finite", "inf at row 2, column 0"),
    (
        fit(np.stack([X, _with(-np.inf, 5)], 1), names=["a", "b"]),
        "x",
        "be finite",
        "-inf at row 5, column 'b'",
    ),
    (fit(X, X[1:]), "y", "have as many points as `x`, which has 7", 6),
    (fit([], []), "x", "hold at least one point", "(0, 1)"),
    (fit(X, sample_weight=-X), "sample_weight", "be at least zero, and above zero somewhere", -1.0),
    (fit(X, categorical=[1]), "categorical", "hold indices of the 1 columns of x", "[1]"),
    (
        fit(np.stack([X, X], 1), categorical=[1, 1]),
        "categorical",
        "hold each column once",
        "[1, 1]",
    ),
    (
        lambda: fit(X, bandwidth=0.5)().predict(np.ones((3, 2))),
        "x",
        "have the 1 columns of the training points",
        "(3, 2)",
    ),
    (
        fit(X, start=0.3, bandwidth=0.5),
        "start",
        "be None where a bandwidth is given, and kept",
        0.3,
    ),
    (
        fit(np.stack([X, X**2], 1), start=np.eye(2), metric="full"),
        "start",
        "be one number, or one a column of x",
        repr(np.eye(2)),
    ),
    # Words, and dates, which NumPy would cast.
    (fit(["a", "b"]), "x", REAL, "list"),
    (fit(np.array(["2020-01-01"], "M8[D]")), "x", REAL, "ndarray of datetime64[D]"),
    (fit(np.array([1, 2], "m8[s]")), "x", REAL, "ndarray of timedelta64[s]"),
    (fit([datetime.date(2020, 1, 1)]), "x", REAL, "list"),
    (fit(np.array([1.5, "2"], object)), "x", REAL, "ndarray of object"),
    (
        fit(X, bandwidth=np.array(["1"], object)),
        "bandwidth",
        "be one number, or one a column, 1 (λ of a categorical one)",
        "array(['1'], dtype=object)",
    ),
]


@table(*((act, "KernelRegression", *rest) for act, *rest in REFUSED))
def test_nonsense_is_refused_in_the_one_form(act, who, argument, expected, received):
    with pytest.raises(ValueError, match="^" + message(who, argument, expected, received) + "$"):
        act()


def test_a_prediction_before_fit_is_refused():
    with pytest.raises(ValueError, match="KernelRegression: `fit` must come before a prediction"):
        KernelRegression().predict(X)


def test_a_fit_that_is_refused_leaves_the_one_before():
    x, y = line()
    model = KernelRegression().fit(x, y)
    before, model.bandwidth = model.predict([1.0]), -1.0
    with pytest.raises(ValueError, match="bandwidth"):
        model.fit(x[:7], np.stack([y, y], axis=1)[:7])
    np.testing.assert_array_equal(model.predict([1.0]), before)
    assert KernelRegression().search_errors == []
