"""Time and memory of kernel regression against statsmodels and a plain dense TensorFlow program.

    python benchmarks/kernel_regression.py            every case
    python benchmarks/kernel_regression.py --quick    the small ones, a minute or two
    python benchmarks/kernel_regression.py --case predict --peer dense
    python benchmarks/kernel_regression.py --divide 20    to try it, with sizes over 20

Points (x, y) on a line, y = 2 sin x + x^0.8 + noise. Each peer of a case has its own process; they
take their steps in turns, so that what else the machine does slows both. A ratio is the peer's over
tfattn's: how many times faster, and of the growth of peak memory from before the first step to
after the last. "choose" finds the bandwidth by leave-one-out; statsmodels by its "cv_ls". "predict"
has a bandwidth given, and its predictions are compared. statsmodels predicts one query after the
other: where there are many it gets a share of them, and its time is told for all.
"""

import argparse
import importlib.util
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from peers import Peer, measure, print_header, print_row, serve

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SHARE = 20  # of statsmodels' queries, one in so many


class Case(NamedTuple):
    """One row of the table for each peer. Goals are how many times faster, None where none is."""

    work: str  # "choose" or "predict"
    points: int
    queries: int = 0
    columns: int = 1
    goals: tuple[tuple[str, float | None], ...] = (("statsmodels", None),)
    memory_goal: float | None = None  # against the dense program
    rounds: int = 3
    quick: bool = False

    @property
    def name(self) -> str:
        size = f"{self.points:,}" + (f" × {self.queries:,}" if self.queries else "")
        return f"{self.work} {size}" + (f", {self.columns} columns" if self.columns > 1 else "")


def smaller(case: Case, times: int) -> Case:
    return case._replace(points=case.points // times, queries=case.queries // times)


DENSE = ("dense", 1.0)
CASES = [
    Case("choose", 500, goals=(("statsmodels", 10.0),), quick=True),
    Case("choose", 5_000, goals=(("statsmodels", 100.0),)),
    Case("choose", 500, columns=2, goals=(("statsmodels", 10.0),)),
    Case("predict", 2_000, 2_000, goals=(("statsmodels", 10.0), DENSE), rounds=5, quick=True),
    Case("predict", 20_000, 20_000, goals=(("statsmodels", 10.0), DENSE), memory_goal=50.0),
    Case("predict", 20_000, 20_000, columns=2, goals=(DENSE,), memory_goal=50.0),
]
# No peer has the memory: ours is told alone.
ALONE = [
    Case("predict", 200_000, 20_000),
    Case("predict", 200_000, 20_000, columns=2),
    Case("choose", 20_000),
]


def data(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """(x, y, queries, bandwidth); x is `(N, D)`."""
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 5, (case.points, case.columns))
    y = 2 * np.sin(x[:, 0]) + x[:, -1] ** 0.8 + generator.normal(0, 0.5, case.points)
    queries = generator.uniform(0, 5, (case.queries, case.columns))
    return x, y, queries, 0.6 * case.points**-0.2


def ours(case: Case) -> Callable[[], np.ndarray]:
    from tfattn.kernel_regression import KernelRegression

    x, y, queries, bandwidth = data(case)
    if case.work == "choose":
        return lambda: np.atleast_1d(KernelRegression().fit(x, y).current_bandwidth())
    return lambda: KernelRegression(bandwidth=bandwidth).fit(x, y).predict(queries)


def statsmodels(case: Case) -> Callable[[], np.ndarray]:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    x, y, queries, bandwidth = data(case)
    kinds = "c" * case.columns
    if case.work == "choose":
        return lambda: KernelReg(y, x, kinds, "lc", bw="cv_ls", rng=0).bw
    model = KernelReg(y, x, kinds, "lc", bw=[bandwidth] * case.columns, rng=0)
    return lambda: model.fit(queries[::SHARE])[0]


def dense(case: Case) -> Callable[[], np.ndarray]:
    """The formula, as a tutorial writes it."""
    import tensorflow as tf

    x, y, queries, bandwidth = (np.asarray(a, "float32") for a in data(case))

    @tf.function
    def pooled(queries, x, y):
        squared = sum(
            tf.square(queries[:, None, column] - x[None, :, column])
            for column in range(case.columns)
        )
        weights = tf.nn.softmax(-squared / (2 * bandwidth**2))
        return tf.linalg.matvec(weights, y)

    return lambda: pooled(queries, x, y).numpy()


PEERS = {"tfattn": ours, "statsmodels": statsmodels, "dense": dense}


def worker(case: Case, peer: str) -> None:
    step = PEERS[peer](case)

    def sample() -> list[float]:
        found = step()
        if case.work == "choose":
            return []  # statsmodels may stop in another valley
        shared = found if peer == "statsmodels" else found[::SHARE]
        return [float(value) for value in shared[:50]]

    serve([step], sample)


def row(case: Case, name: str, goal: float | None, own: Peer, peer: Peer) -> list[str]:
    times = SHARE if (name, case.work) == ("statsmodels", "predict") else 1
    faster = times * peer.seconds / own.seconds
    smaller = peer.growth / max(own.growth, 1e-3)
    return [
        case.name,
        name,
        f"{1e3 * own.seconds:.1f} ms",
        f"{1e3 * times * peer.seconds:.0f} ms",
        _judged(faster, goal),
        f"{1e3 * own.growth:.0f} MB",
        f"{1e3 * peer.growth:.0f} MB",
        _judged(smaller, case.memory_goal if name == "dense" else None),
    ]


def _judged(ratio: float, goal: float | None) -> str:
    if goal is None:
        return f"{ratio:.3g}"
    return f"{ratio:.3g} (goal {goal:g}{'' if ratio >= goal else ', missed'})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the small cases")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--peer", choices=["statsmodels", "dense"], help="only this peer")
    parser.add_argument("--divide", type=int, default=1, help="sizes by so much")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        index, peer = options.worker
        return worker(smaller([*CASES, *ALONE][int(index)], options.divide), peer)
    print_header(
        "case", "peer", "tfattn", "peer", "faster", "tfattn grows", "peer grows", "smaller"
    )
    for index, case in enumerate([*CASES, *ALONE]):
        if options.case not in case.name or (options.quick and not case.quick):
            continue
        alone, case = case in ALONE, smaller(case, options.divide)
        arguments = ("--divide", options.divide, "--worker", index)
        if alone:
            if options.peer is None:
                with Peer(case.name, "tfattn", arguments) as own:
                    for _ in range(case.rounds):
                        own.step(0)
                    cells = [f"{1e3 * own.seconds:.1f} ms", "", "", f"{1e3 * own.growth:.0f} MB"]
                    print_row(case.name, "", *cells, "", "")
            continue
        for name, goal in case.goals:
            missing = importlib.util.find_spec("statsmodels") is None
            if options.peer not in (None, name) or (name == "statsmodels" and missing):
                continue
            tolerance = 1e-3 if case.work == "predict" else None
            own, peer = measure(case.name, ("tfattn", name), arguments, case.rounds, tolerance)
            print_row(*row(case, name, goal, own, peer))


if __name__ == "__main__":
    main()
