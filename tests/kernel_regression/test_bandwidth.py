"""The chosen bandwidth is optimal at every scale of the data."""

import signal
import time
import tracemalloc

import numpy as np
import pytest

from tests import reference
from tests.kernel_regression.data import cauchy, line, plane
from tfattn.kernel_regression import KernelRegression, KernelRegressor, kernels, tuned


def left_out_error(x, y, h):
    """The error of Gaussians in float64, from the formula."""
    logs = -((((x[:, None] - x) / h) ** 2).reshape(len(y), len(y), -1).sum(-1)) / 2
    np.fill_diagonal(logs, -np.inf)
    w = np.exp(logs - logs.max(1, keepdims=True))
    return np.mean((w @ y / w.sum(1) - y) ** 2)


def best_on_a_line(x, y):
    """The best of a grid, refined seven times."""
    grid = np.geomspace(1e-3, 50, 1001)
    for _ in range(7):
        here = int(np.argmin([left_out_error(x, y, h) for h in grid]))
        low, high = grid[max(here - 1, 0)], grid[min(here + 1, len(grid) - 1)]
        grid = np.geomspace(low, high, 21)
    return grid[10]


@pytest.mark.slow
def test_bandwidth_on_a_line_is_within_a_thousandth():
    for seed in (0, 3):
        x, y = line(seed)
        chosen = float(KernelRegression().fit(x, y).current_bandwidth())
        np.testing.assert_allclose(chosen, best_on_a_line(x, y), rtol=1e-3)


def best_in_a_plane(x, y):
    """A grid over both logarithms, then finer about its best, until a step is below 10⁻⁴."""
    first = second = np.log(np.geomspace(0.01, 20, 61))
    while first[1] - first[0] > 1e-4:
        error = [[left_out_error(x, y, np.exp([a, b])) for b in second] for a in first]
        i, j = np.unravel_index(np.argmin(error), (len(first), len(second)))
        step = first[1] - first[0]
        a, b = first[i], second[j]
        first, second = (np.linspace(at - 2 * step, at + 2 * step, 13) for at in (a, b))
    return np.exp([a, b])


@pytest.mark.slow
def test_bandwidths_in_a_plane_are_within_a_thousandth():
    x, y = plane()
    model = KernelRegression().fit(x, y)
    wanted = best_in_a_plane(x, y)
    assert model.search_errors[-1] <= left_out_error(x, y, wanted) * (1 + 1e-9)
    np.testing.assert_allclose(model.current_bandwidth(), wanted, rtol=1e-3)


@pytest.mark.slow
def test_bandwidth_from_starts_of_a_sample_is_the_best(monkeypatch):
    x, y = plane(0)
    weights = np.random.default_rng(0).uniform(0.5, 2, len(y))
    errors = []
    for size in (len(y), 25):
        monkeypatch.setattr(tuned, "SAMPLE", size)
        model = KernelRegression().fit(x, y, sample_weight=weights)
        errors.append(model.search_errors[-1])
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # statsmodels divides by weights that have underflowed
def test_bandwidth_error_is_never_above_that_of_statsmodels():
    peer = pytest.importorskip("statsmodels.nonparametric.kernel_regression")
    places, heights = line()
    code = np.random.default_rng(0).integers(0, 3, 50)
    for x, y, kinds, degree in (
        (places, heights, "c", 1),
        (*line(1), "c", 0),
        (*plane(), "cc", 0),
        (*plane(1), "cc", 1),
        (np.column_stack([places, code]), heights + code, "cu", 0),
    ):
        kind, categorical = ("lc", "ll")[degree], [i for i, of in enumerate(kinds) if of == "u"]
        theirs = peer.KernelReg(y, x, kinds, kind, bw="cv_ls", rng=0)
        ours = KernelRegression(degree=degree, categorical=categorical).fit(x, y)
        error = float(np.squeeze(theirs.cv_loo(theirs.bw, theirs.est[kind])))
        assert ours.search_errors[-1] <= error * (1 + 1e-7)


def test_predictions_and_slopes_equal_those_of_statsmodels():
    peer = pytest.importorskip("statsmodels.nonparametric.kernel_regression")
    x, y = plane()
    theirs = peer.KernelReg(y, x, "cc", "ll", bw=[0.4, 0.6], rng=0)
    wanted, slopes = theirs.fit(x[:31])
    ours = KernelRegression(bandwidth=[0.4, 0.6], degree=1).fit(x, y)
    np.testing.assert_allclose(ours.predict(x[:31]), wanted, atol=1e-6)
    np.testing.assert_allclose(ours.derivative(x[:31]), slopes.reshape(31, -1), atol=1e-6)


@pytest.mark.parametrize("degree", [0, 1])
def test_bandwidth_error_is_weighted_by_sample_weight(degree):
    x, y = line(n=41)
    weight = np.random.default_rng(0).integers(1, 5, 41)
    model = KernelRegression(degree=degree).fit(x, y, sample_weight=weight)
    h = model.current_bandwidth()
    wanted = reference.left_out_error(x[:, None], y, h, degree=degree, weight=weight)
    np.testing.assert_allclose(model.search_errors[-1], wanted, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["laplace", "boxcar", "tricube", cauchy()])
def test_bandwidth_of_every_kernel_has_the_least_error_of_a_grid(kernel):
    x, y = line(n=41)
    model = KernelRegression(kernel).fit(x, y)
    grid = np.geomspace(0.001, 5, 200)
    best = min(KernelRegression(kernel, h).fit(x, y).leave_one_out().error for h in grid)
    tolerance = 1e-4 if np.isfinite(model.kernel.support) else 1e-6
    assert model.leave_one_out().error <= best * (1 + tolerance)
    np.testing.assert_allclose(model.search_errors[-1], model.leave_one_out().error, rtol=1e-9)


def uneven(name):
    """Few places, far from even, with replicates: `(x, y)`."""
    rng = np.random.default_rng(0)
    places = {"doses": np.array([0, 0.1, 0.3, 1, 3, 10, 30, 100]), "even": np.arange(10) / 10}[name]
    x, heights = np.repeat(places, 12), 3 * rng.normal(size=len(places))
    return x, np.repeat(heights, 12) + rng.normal(0, 0.5, len(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, kernel, leave_out",
    [
        ("doses", "gaussian", "point"),
        ("even", "boxcar", "place"),
        ("doses", "tricube", "place"),
        ("even", "tricube", "point"),
    ],
)
def test_bandwidth_of_uneven_and_repeated_places_is_the_best(name, kernel, leave_out):
    x, y = uneven(name)
    model = KernelRegression(kernel, leave_out=leave_out).fit(x, y)
    if leave_out == "place":
        x, back = np.unique(x, return_inverse=True)
        y = np.bincount(back, y) / np.bincount(back)
    grid = np.geomspace(0.01, 200, 250)
    best = min(KernelRegression(kernel, h).fit(x, y).leave_one_out().error for h in grid)
    assert model.search_errors[-1] <= best * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kernel, degree", [("boxcar", 0), ("biweight", 0), ("gaussian", 1)])
def test_bandwidths_in_a_plane_of_levels_are_the_best(kernel, degree):
    rng = np.random.default_rng(1)
    x = np.stack([np.exp(rng.normal(0, 2, 29)), np.round(rng.normal(size=29), 1)], axis=1)
    y = np.log1p(x[:, 0]) + 3 * (x[:, 1] > 0) + rng.normal(0, 0.5, 29)
    found = KernelRegression(kernel, degree=degree).fit(x, y).search_errors[-1]
    grid = [(a, b) for a in np.geomspace(0.02, 200, 12) for b in np.geomspace(0.03, 20, 12)]
    models = (KernelRegression(kernel, h, degree=degree).fit(x, y) for h in grid)
    assert found <= min(model.leave_one_out().error for model in models) * (1 + 1e-6)


@pytest.mark.parametrize("data", [line, plane])
def test_bandwidth_search_is_not_spoiled_by_one_far_point(data):
    x, y = data()
    x = x.reshape(len(y), -1)
    alone = KernelRegression().fit(x, y)
    away = np.full((1, x.shape[1]), 1e9)
    x, y = np.concatenate([x, away]), np.append(y, y.mean())
    found = KernelRegression().fit(x, y)
    wanted = KernelRegression(bandwidth=alone.current_bandwidth()).fit(x, y).leave_one_out()
    assert found.search_errors[-1] <= wanted.error * (1 + 1e-6)


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_predictions_of_points_without_trend_are_their_mean(kernel):
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.uniform(0, 1, 40)), rng.normal(size=40)
    found = KernelRegression(kernel=kernel).fit(x, y).predict(x)
    np.testing.assert_allclose(found, y.mean(), atol=1e-7)


@pytest.mark.slow
def test_bandwidth_of_a_column_without_influence_is_wide():
    x, _ = plane(n=200)
    h = KernelRegression().fit(x, np.sin(4 * x[:, 0])).current_bandwidth()
    assert h[1] > 20 * h[0]
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(0, 1, 300), rng.integers(0, 3, 300), rng.integers(0, 2, 300)])
    y = np.sin(6 * x[:, 0]) + 2 * x[:, 1] + rng.normal(0, 0.1, 300)
    _, telling, empty = KernelRegression(categorical=[1, 2]).fit(x, y).current_bandwidth()
    assert telling < 0.02 and empty > 0.3


def test_regression_over_categories_alone_predicts_their_means():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, 200)
    model = KernelRegression(categorical=[0]).fit(x, x + rng.normal(0, 0.1, 200))
    np.testing.assert_allclose(model.predict([0, 1, 2]), [0, 1, 2], atol=0.1)


def test_bandwidth_of_the_user_is_kept_as_it_is():
    x, y = line()
    bandwidth = np.array([0.37])
    model = KernelRegression(bandwidth=bandwidth).fit(x, y)
    assert model.bandwidth is bandwidth and model.current_bandwidth() == pytest.approx(0.37)


def test_bandwidth_search_goes_on_from_a_start():
    x, y = line()
    best = KernelRegression().fit(x, y)
    again = KernelRegression().fit(x, y, start=best.current_bandwidth() * 1.3)
    np.testing.assert_allclose(again.current_bandwidth(), best.current_bandwidth(), rtol=1e-3)
    assert len(again.search_errors) < len(best.search_errors)


@pytest.mark.parametrize("data", [line, plane])
def test_search_errors_fall_from_scotts_rule_to_the_chosen_error(data):
    x, y = data()
    columns = x.reshape(len(y), -1).shape[1]
    model = KernelRegression().fit(x, y)
    scott = 1.06 * np.std(x, axis=0) * len(y) ** (-1 / (columns + 4))
    first = KernelRegression(bandwidth=scott).fit(x, y).leave_one_out().error
    np.testing.assert_allclose(model.search_errors[0], first, rtol=1e-9)
    np.testing.assert_allclose(model.search_errors[-1], model.leave_one_out().error, rtol=1e-9)
    assert (np.diff(model.search_errors) <= 0).all() and len(model.search_errors) > 20


@pytest.mark.slow
def test_regression_memory_does_not_grow_with_the_pairs():
    # All pairs of these would be 800 MB, or 100 a block of eights.
    x, y = line(n=10_000)
    plane_x = np.column_stack([x, np.cos(9 * x)])
    tracemalloc.start()
    KernelRegression(bandwidth=0.05).fit(x, y).leave_one_out()
    KernelRegression("epanechnikov", bandwidth=0.05).fit(x, y).predict(x)
    KernelRegression(bandwidth=0.05).fit(plane_x, y).predict(plane_x)
    assert tracemalloc.get_traced_memory()[1] < 40e6
    tracemalloc.stop()


@pytest.mark.parametrize("name", kernels.names())
def test_bandwidth_of_an_exact_line_is_the_widest_and_the_line_goes_on(name):
    x = np.arange(5.0, 15.0)
    model = KernelRegression(name, degree=1).fit(x, 3 * x + 1)
    np.testing.assert_allclose(model.predict([0.0, 20.0]), [1.0, 61.0], atol=1e-9)
    if name != "gaussian":
        return
    x = np.random.default_rng(0).normal(size=(29, 2))
    model = KernelRegression(name, degree=1).fit(x, x @ [1.0, 2.0] + 3)
    np.testing.assert_allclose(model.predict([[9.0, 8.0]]), [28.0], atol=1e-9)


@pytest.mark.slow
def test_bandwidth_of_sample_is_scaled_to_all_points():
    x, y = plane(n=150)
    x = np.column_stack([x, np.arange(150) % 3])
    drawn = np.sort(np.random.default_rng(0).choice(150, 70, replace=False))
    factor = np.array([(70 / 150) ** (1 / 6)] * 2 + [1.0])  # λ is kept
    for start in (None, [0.3, 0.4, 0.2]):
        of_all = None if start is None else start * factor
        model = KernelRegression(categorical=[2], sample=70).fit(x, y, start=of_all)
        alone = KernelRegression(categorical=[2]).fit(x[drawn], y[drawn], start=start)
        wanted = alone.current_bandwidth() * factor
        np.testing.assert_allclose(model.current_bandwidth(), wanted, rtol=1e-2)
        assert model.weights(x[:1]).shape == (1, 150)
    more = KernelRegressor(sample=150).fit(x[:, :2], y)
    np.testing.assert_array_equal(more.bandwidth_, KernelRegressor().fit(x[:, :2], y).bandwidth_)


@pytest.mark.slow
def test_bandwidth_search_verbose_prints_least_error_once_a_second(capsys, monkeypatch):
    clock = iter(np.arange(0.0, 1e6, 0.3))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    x, y = line()
    model = KernelRegression(verbose=True).fit(x, 10 * y)
    lines = capsys.readouterr().out.splitlines()
    tried = len(model.search_errors)
    least = f"least leave-one-out error {model.leave_one_out().error:.6g} of 50 points"
    assert lines[-1] == f"KernelRegression: {tried} bandwidths tried, {least}"
    assert tried / 6 < len(lines) < tried / 3
    KernelRegressor(bandwidth=1.0, verbose=True).fit(x[:, None], y)
    KernelRegression().fit(x, y)
    assert not capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_bandwidth_search_interrupted_ends_at_once():
    came = []

    def interrupt(*_):
        came.append(time.monotonic())
        raise KeyboardInterrupt

    x = np.random.default_rng(0).uniform(size=(20_000, 2))
    model, before = KernelRegression("boxcar"), signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            model.fit(x, x[:, 0])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - came[0] < 2 and model.points is None


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["epanechnikov", "boxcar"])
def test_bandwidth_search_of_compact_kernel_tries_few_bandwidths(kernel):
    x, y = plane(n=201)
    x = np.column_stack([x, x[:, 0] + x[:, 1] ** 2])
    gaussian, compact = (
        len(KernelRegression(k).fit(x, y).search_errors) for k in ("gaussian", kernel)
    )
    assert compact < 4 * gaussian
