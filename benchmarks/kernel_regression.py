"""Time and memory of kernel regression against statsmodels and a plain dense TensorFlow program.

    python benchmarks/kernel_regression.py            every case
    python benchmarks/kernel_regression.py --quick    whether every case runs, in tiny sizes
    python benchmarks/kernel_regression.py --case predict --peer dense

Points (x, y) on a line, y = 2 sin x + x^0.8 + noise. Each peer of a case has its own process; they
take their steps in turns, so that what else the machine does slows both. A ratio is the peer's over
tfattn's: how many times faster, and of the growth of peak memory from before the first step to
after the last. "choose" finds the bandwidth by leave-one-out; statsmodels by its "cv_ls". "predict"
has a bandwidth given, and its predictions are compared. statsmodels predicts one query after the
other: where there are many it gets a share of them, and its time is told for all.
"""

import argparse
import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from peers import Failures, Peer, PeerHere, Work, measure, print_header, print_row, serve, with_goal

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

    @property
    def name(self) -> str:
        size = f"{self.points:,}" + (f" × {self.queries:,}" if self.queries else "")
        return f"{self.work} {size}" + (f", {self.columns} columns" if self.columns > 1 else "")


def smaller(case: Case) -> Case:
    """The case in a size that takes no time."""
    return case._replace(points=30, queries=min(case.queries, 40))


DENSE = ("dense", 1.0)
CASES = [
    Case("choose", 500, goals=(("statsmodels", 10.0),)),
    Case("choose", 5_000, goals=(("statsmodels", 100.0),)),
    Case("choose", 500, columns=2, goals=(("statsmodels", 10.0),)),
    Case("predict", 2_000, 2_000, goals=(("statsmodels", 10.0), DENSE), rounds=5),
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


def leave_one_out_error(case: Case, bandwidths: np.ndarray) -> float:
    x, y, *_ = data(case)
    total, rows = 0.0, 250  # at a time: the memory of a peer counts
    for start in range(0, len(x), rows):
        here = np.arange(start, min(start + rows, len(x)))
        squares = (((x[here, None] - x) / bandwidths) ** 2).sum(axis=-1)  # (rows, N)
        squares[here - start, here] = np.inf
        weights = np.exp(-squares / 2)
        total += ((weights @ y / weights.sum(axis=-1) - y[here]) ** 2).sum()
    return total / len(x)


PEERS = {"tfattn": ours, "statsmodels": statsmodels, "dense": dense}


def work_of(case: Case, peer: str) -> Work:
    """The work of a peer."""
    step = PEERS[peer](case)

    def sample() -> list[float]:
        found = step()
        if case.work == "choose":
            return [leave_one_out_error(case, found)] if case not in ALONE else []
        shared = found if peer == "statsmodels" else found[::SHARE]
        return [float(value) for value in shared[:50]]

    return Work([step], sample)


def compare(case: Case, index: int, name: str, goal: float | None, quick: bool) -> None:
    """Prints the row of a case and a peer."""
    tolerance = 1e-3 if case.work == "predict" else None
    here = functools.partial(work_of, case) if quick else None
    names, arguments = ("tfattn", name), ("--worker", index)
    own, peer = measure(case.name, names, arguments, case.rounds, tolerance, here)
    if case.work == "choose" and not quick:  # statsmodels may stop in a worse valley
        error, theirs = own.sample[0], peer.sample[0]
        if not error <= theirs * (1 + 1e-3):
            raise AssertionError(f"{case.name}: the error is {error}, with {name} {theirs}")
    print_row(*row(case, name, None if quick else goal, own, peer))


def row(case: Case, name: str, goal: float | None, own: Peer, peer: Peer) -> list[str]:
    times = SHARE if (name, case.work) == ("statsmodels", "predict") else 1
    faster = times * peer.seconds / own.seconds
    smaller = peer.growth / max(own.growth, 1e-3)
    memory_goal = case.memory_goal if name == "dense" and goal is not None else None
    return [
        case.name,
        name,
        f"{1e3 * own.seconds:.1f} ms",
        f"{1e3 * times * peer.seconds:.0f} ms",
        with_goal(faster, goal, at_least=True),
        f"{1e3 * own.growth:.0f} MB",
        f"{1e3 * peer.growth:.0f} MB",
        with_goal(smaller, memory_goal, at_least=True),
    ]


def tell_alone(case: Case, index: int, quick: bool) -> None:
    """Prints the row of a case that no peer has the memory for."""
    with contextlib.ExitStack() as stack:
        if quick:
            own = PeerHere("tfattn", work_of(case, "tfattn"))
        else:
            own = stack.enter_context(Peer(case.name, "tfattn", ("--worker", index)))
        for _ in range(1 if quick else case.rounds):
            own.step(0)
    cells = [f"{1e3 * own.seconds:.1f} ms", "", "", f"{1e3 * own.growth:.0f} MB"]
    print_row(case.name, "", *cells, "", "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="every case, in tiny sizes")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--peer", choices=["statsmodels", "dense"], help="only this peer")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [*CASES, *ALONE]
    if options.worker:
        index, peer = options.worker
        return serve(work_of(cases[int(index)], peer))
    print_header(
        "case", "peer", "tfattn", "peer", "faster", "tfattn grows", "peer grows", "smaller"
    )
    missing = {"statsmodels"} if importlib.util.find_spec("statsmodels") is None else set()
    failures = Failures()
    for index, case in enumerate(cases):
        if options.case not in case.name:
            continue
        sized = smaller(case) if options.quick else case
        if case in ALONE:
            if options.peer is None:
                with failures.of(case.name):
                    tell_alone(sized, index, options.quick)
            continue
        for name, goal in case.goals:
            if options.peer in (None, name) and name not in missing:
                with failures.of(f"{case.name}, {name}"):
                    compare(sized, index, name, goal, options.quick)
    failures.end()


if __name__ == "__main__":
    main()
