"""The engines of kernel regression: sums over boxes, near keys and threads, against all pairs."""

import os
import threading

import numpy as np
import pytest
import threadpoolctl

from tests import reference
from tests.kernel_regression.data import cauchy, line, plane
from tfattn.kernel_regression import (
    KernelRegression,
    kernels,
    near,
    threads,
    tiles,
    tuned,
)
from tfattn.kernel_regression import line as line_sums


@pytest.fixture
def by_boxes(monkeypatch):
    """Sums over boxes on a line wherever there are more than 100 queries, or as is set, but where a
    search tries bandwidths of so many boxes that they would fill the memory.
    """

    def choose(least=100):
        def is_faster(kernel, metric, points, queries):
            return queries > least and np.ptp(points.places.x) * metric.scale[0] < 3e3

        monkeypatch.setattr(line_sums, "is_faster", is_faster)

    choose()
    return choose


# Sums over boxes, and over the keys that are near, against those over all pairs.


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("bandwidth", [0.003, 0.3, 30.0])
def test_boxes_sums_equal_those_over_pairs(bandwidth, degree, by_boxes):
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
def test_boxes_sums_see_heavy_keys_beside_tiny_ones(degree, by_boxes):
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
def test_boxes_leave_out_as_pairs_do(degree, by_boxes):
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
def test_near_means_equal_those_of_all_keys(name, monkeypatch):
    # Queries among the points, beyond them, and so far away that only log space tells them.
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (601, 2)), rng.normal(size=(601, 2))
    queries = np.concatenate([rng.uniform(-1.2, 1.2, (301, 2)), [[9.0, 9.0], [-1e6, 0.5]]])
    weight = rng.uniform(0.5, 2, 601)
    for bandwidth in (0.005, 0.05, 50.0):
        model = KernelRegression(name, [bandwidth, 0.7 * bandwidth])
        model.fit(x, y, sample_weight=weight)
        assert near.is_faster(model.points, model.points.places)
        found = model.predict(queries)
        with monkeypatch.context() as patch:
            patch.setattr(near, "is_faster", lambda points, queries: False)
            wanted = model.predict(queries)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["cauchy", "gaussian"])  # a name that is known too
def test_kernel_of_ones_own_is_seen_as_far_as_it_reaches(name, monkeypatch):
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
def test_near_key_of_a_tiny_weight_hides_no_heavy_one(name):
    x, y, weight = np.array([0.0, 20.0]), np.array([1.0, 3.0]), np.array([1e-220, 1.0])
    for columns in (1, 2):
        places = np.tile(x[:, None], (1, columns))
        model = KernelRegression(name, bandwidth=1.0).fit(places, y, sample_weight=weight)
        # log K(20) is −200 or −20 (in a plane −400 or −28), and that of the weight −506.
        np.testing.assert_allclose(model.predict(np.zeros((1, columns))), [3.0], rtol=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_few_neighbors_predict_as_tiles_do(name, monkeypatch):
    x, y = line(n=211)
    x, y = np.append(x, [x[3], x[3], 1e3, -40.0]), np.append(y, [1.0, 2.0, 3.0, 4.0])
    weight = np.random.default_rng(0).uniform(0.01, 9.0, len(x))
    for bandwidth in (1e-7, 1e-3, 5e-3):
        model = KernelRegression(name, bandwidth).fit(x, y, weight)
        few = near.few_neighbors(model.kernel, model.chosen, model.points)
        with monkeypatch.context() as patch:
            patch.setattr(near, "few_neighbors", lambda *_: None)
            by_tiles = model.leave_one_out().predictions[model.points.order]
        found = few.value[:, 0] * model.y_scale + model.y_center
        np.testing.assert_allclose(found, by_tiles, rtol=1e-9, atol=1e-12)
    model = KernelRegression(name, 1.0).fit(x, y, weight)
    assert near.few_neighbors(model.kernel, model.chosen, model.points) is None


# Threads.


def _tile(number):
    if number == 5:
        raise MemoryError("of a tile")
    return number


def test_tiles_in_threads_come_in_order_and_leave_no_thread(monkeypatch):
    monkeypatch.setattr(tiles, "_cores", lambda: 3)
    before = threading.active_count()
    assert list(tiles.parallel_map(_tile, [3, 1, 2] * 9, tuned.THREADED_PAIRS)) == [3, 1, 2] * 9
    found = tiles.parallel_map(_tile, range(20), tuned.THREADED_PAIRS)
    assert [next(found) for _ in range(5)] == list(range(5))
    with pytest.raises(MemoryError, match="of a tile"):
        next(found)
    assert threading.active_count() == before
    abandoned = tiles.parallel_map(_tile, range(3), tuned.THREADED_PAIRS)
    next(abandoned)
    abandoned.close()
    assert threading.active_count() == before


def in_a_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def test_blas_has_one_thread_in_calls_and_as_many_after():
    def counts():
        found = threadpoolctl.threadpool_info()
        return [one["num_threads"] for one in found if one["user_api"] == "blas"]

    def set_to(number):
        threadpoolctl.threadpool_limits(number, user_api="blas")

    at_first = counts()
    in_a_thread(set_to, 2)  # the environment may allow one
    before, seen = counts(), []
    first_in, second_in, first_out, ended = (threading.Event() for _ in range(4))

    @threads.one_blas_thread
    def call(entered, wait_for):
        entered.set()
        assert wait_for.wait(60)
        seen.append(counts())

    def first():
        call(first_in, second_in)
        first_out.set()
        ended.wait(60)  # the first to come is alive when the last to leave restores the setting

    other = threading.Thread(target=first)
    other.start()
    assert first_in.wait(60)
    call(second_in, first_out)
    assert counts() == before
    ended.set()
    other.join()
    assert all(set(found) == {1} for found in seen) and len(seen) == 2
    with pytest.raises(ValueError, match="`x` must be finite"):
        KernelRegression().fit([np.nan, 1.0], [1.0, 2.0])
    assert counts() == before
    in_a_thread(set_to, at_first[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's: the child asks it nothing
def test_fork_after_a_prediction_in_threads_predicts(monkeypatch):
    monkeypatch.setattr(tuned, "THREADED_PAIRS", 1)
    x, y = plane(n=600)
    model = KernelRegression(bandwidth=0.3).fit(x, y)
    wanted = model.predict(x)
    child = os.fork()
    if not child:
        os._exit(int(not np.array_equal(model.predict(x), wanted)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
