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


def everything(model, queries):
    """All that is computed from the weights of near keys."""
    smoother, places = model._smoother, model.points.places
    fits = np.empty((len(places), 1))
    for tile in smoother.tiles(places):
        fits[tile.rows] = tile.value
    found = smoother.left_out()
    return {
        "means": model.predict(queries),
        "fits": fits,
        "left out": model.leave_one_out().predictions,
        "gradient": np.concatenate([[found.error], found.by_log, found.by_logit]),
        "weights": model.weights(queries),
        "slopes": model.derivative(queries[:301]),
        "band": np.stack(model.bands(queries[:301])),
    }


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_gathered_neighbors_leave_out_as_tiles_do(name, weighted, monkeypatch):
    draw = np.random.default_rng(4)
    x, y = draw.uniform(0, 5, (300, 1)), draw.normal(size=(300, 2))
    weights = draw.uniform(0.1, 3.0, 300) if weighted else None
    for bandwidth in (1e-5, 1e-3, 5e-3):  # below the gaps between points, and beside a few
        model = KernelRegression(name, bandwidth=bandwidth).fit(x, y, sample_weight=weights)
        found = []
        for few in (300, 0):
            monkeypatch.setattr(tuned, "FEW_KEYS", few)
            found.append(model.leave_one_out().predictions)
        np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", kernels.names())
@pytest.mark.parametrize("degree", [0, 1])
def test_near_keys_in_balls_tell_the_same_as_all_keys(degree, name, monkeypatch):
    # Queries among the points, beyond them, and so far away that only log space tells them.
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (401, 2)), rng.normal(size=401)
    queries = np.concatenate([rng.uniform(-1.2, 1.2, (301, 2)), [[9.0, 9.0], [-1e6, 0.5]]])
    of_x, of_queries = (np.column_stack([p, np.arange(len(p)) % 3]) for p in (x, queries))
    weight = rng.uniform(0.5, 2, 401)
    monkeypatch.setattr(tuned, "TREE_KEYS", -1e9)
    for bandwidth, columns in ((0.01, 2), (0.1, 2), (0.12, 3)):
        h = [bandwidth, 0.7 * bandwidth, 0.2][:columns]
        model = KernelRegression(name, h, degree=degree, categorical=[2][: columns - 2])
        model.fit(of_x[:, :columns], y, sample_weight=weight)
        found = everything(model, of_queries[:, :columns])
        with monkeypatch.context() as patch:
            patch.setattr(tuned, "TREE_KEYS", 1e9)
            wanted = everything(model, of_queries[:, :columns])
        for what in wanted:
            if bandwidth < 0.1 and (degree or what == "band"):
                continue  # too few points determine a line or a curve
            # A line through few points enlarges rounding.
            tolerance = {0: 1e-9, 1: 1e-5}[max(degree, what == "band")]
            np.testing.assert_allclose(
                found[what], wanted[what], rtol=tolerance, atol=tolerance, err_msg=what
            )


@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_pairs_in_several_columns_grow_with_neighbors(name):
    # As many neighbors each among four times as many points.
    seen = []
    for count in (3000, 12_000):
        x = np.random.default_rng(0).uniform(size=(count, 2))
        model = KernelRegression(name, bandwidth=0.5 * count**-0.5, degree=1).fit(x, x[:, 0])
        rows = np.arange(count)
        tiles_of_fit = model._smoother.tiles(model.points.places, rows)
        seen.append(sum(tile.share.size for tile in tiles_of_fit) / count)
    assert seen[1] < 1.3 * seen[0] and seen[0] < 0.25 * 3000


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


# Threads.


def _tile(number):
    if number == 5:
        raise MemoryError("of a tile")
    return number


def test_tiles_in_threads_come_in_order_and_leave_no_thread(monkeypatch):
    monkeypatch.setattr(tuned, "MAX_THREADS", 3)
    before = threading.active_count()
    assert list(tiles.in_threads(_tile, [3, 1, 2] * 9)) == [3, 1, 2] * 9
    found = tiles.in_threads(_tile, range(20))
    assert [next(found) for _ in range(5)] == list(range(5))
    with pytest.raises(MemoryError, match="of a tile"):
        next(found)
    assert threading.active_count() == before
    abandoned = tiles.in_threads(_tile, range(3))
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

    @threads.one_blas_thread()
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
