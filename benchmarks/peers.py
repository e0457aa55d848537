"""What the benchmarks share: peers that take their steps in turns, each in its own process.

So what else the machine does slows all, and they share no memory and no threads. With `--quick` a
script runs every case on tiny sizes, all peers in one process: in a minute or two it shows that all
of them run and agree. Its figures mean nothing.
"""

import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO


class Work(NamedTuple):
    """The work of a peer.

    Attributes:
        steps: functions without arguments, the parts of the work.
        sample: function without arguments that returns a list of floats, by which the peers are
            compared before anything is timed. The memory that it takes counts.
        peak_memory: function without arguments that returns GB. Defaults to that of this process.
        before: what `peak_memory` returned where the growth begins. Defaults to None, for the time
            of the first step.
    """

    steps: Sequence[Callable[[], Any]]
    sample: Callable[[], list[float]]
    peak_memory: Callable[[], float] | None = None
    before: float | None = None


def measure(
    case: str,
    names: tuple[str, str],
    arguments: Sequence[Any],
    rounds: int,
    tolerance: float | None = None,
    here: Callable[[str], Work] | None = None,
) -> tuple["Peer", "Peer"]:
    """Both peers, after at least `rounds` rounds of steps in turns, and 2 seconds of them.

    Args:
        case: for messages.
        names: of the two peers, ours first.
        arguments: of the running script. With these, and a peer's name after them, it calls
            `serve`.
        rounds: positive int. In a round our peer and then the other does each part of the work;
            one more round goes ahead.
        tolerance: how far the peers' samples may be apart, as a fraction of the greatest number in
            them. Defaults to None, for peers that are not compared.
        here: function of a peer's name that returns its work, which this process then does, one
            round of it. Defaults to None, for a process each.
    """
    ours, peer = measure_all(case, names, arguments, rounds, tolerance, here=here)
    return ours, peer


def measure_all(
    case: str,
    names: Sequence[str],
    arguments: Sequence[Any],
    rounds: int,
    tolerance: float | None = None,
    pause: float = 0.0,
    here: Callable[[str], Work] | None = None,
) -> list["Peer"]:
    """As `measure`, for any number of peers; `pause` seconds go by before each step."""
    with contextlib.ExitStack() as stack:
        if here is None:
            peers = [stack.enter_context(Peer(case, name, arguments)) for name in names]
        else:
            peers = [PeerHere(name, here(name)) for name in names]
        if tolerance is not None:
            for peer in peers[1:]:
                _check_alike(case, peers[0], peer, tolerance)
        _round(peers, pause)  # the first step after compilation is seldom a usual one
        for peer in peers:
            peer.forget()
        taken, start = 0, time.perf_counter()
        if here is not None:
            _round(peers, pause)
            return peers
        # Short steps are taken more often: a median over three of a few milliseconds says little.
        while taken < rounds or time.perf_counter() - start < 2.0:
            _round(peers, pause)
            taken += 1
    return peers


def _round(peers: Sequence["Peer"], pause: float) -> None:
    for part in range(len(peers[0].times)):
        for peer in peers:
            time.sleep(pause)
            peer.step(part)


def _check_alike(case: str, ours: "Peer", peer: "Peer", tolerance: float) -> None:
    difference = max(abs(a - b) for a, b in zip(ours.sample, peer.sample, strict=True))
    scale = max(abs(b) for b in peer.sample)
    if not difference <= tolerance * scale:
        raise AssertionError(
            f"{case}: {ours.name} and {peer.name} differ by {difference} of {scale}"
        )


class _Timed:
    """What is known of a peer.

    Attributes:
        sample: list of floats, what the peers are compared by.
        times: seconds of each step, by part of the work.
        growth: of its peak memory, GB.
    """

    def __init__(self, name: str, parts: int, sample: list[float]):
        self.name, self.sample = name, sample
        self.times, self.growth = [[] for _ in range(parts)], 0.0

    def step(self, part: int) -> None:
        seconds, self.growth = self._take(part)
        self.times[part].append(seconds)

    def forget(self) -> None:
        self.times = [[] for _ in self.times]

    @property
    def seconds(self) -> float:
        """Time of the whole work: the sum of the medians of its parts."""
        return sum(map(statistics.median, self.times))


class PeerHere(_Timed):
    """A peer in this process."""

    def __init__(self, name: str, work: Work):
        super().__init__(name, len(work.steps), work.sample())
        self.steps = work.steps

    def _take(self, part: int) -> tuple[float, float]:
        start = time.perf_counter()
        self.steps[part]()
        return time.perf_counter() - start, 0.0


class Peer(_Timed):
    """A peer in its own process, which takes steps when it is told to."""

    def __init__(self, case: str, name: str, arguments: Sequence[Any]):
        command = [sys.executable, sys.argv[0], *map(str, arguments), name]
        pipe = subprocess.PIPE
        # TensorFlow logs much; shown only where the process dies.
        errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        self.failure = lambda: f"{case}: the process of {name} died\n{_end_of(errors)}"
        super().__init__(name, *self._answer())

    def _take(self, part: int) -> list:
        self.process.stdin.write(f"{part}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> list:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.failure())
        return json.loads(line)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.wait()


def _end_of(file: TextIO) -> str:
    file.seek(0)
    return file.read()[-2000:]


def serve(work: Work) -> None:
    """The process of a peer: takes a step for each line of input.

    A line is the number of a part; the answer has its seconds and the growth of memory.
    """
    peak_memory = work.peak_memory or process_memory
    before = peak_memory() if work.before is None else work.before
    print(json.dumps([len(work.steps), work.sample()]), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        work.steps[int(line)]()
        print(json.dumps([time.perf_counter() - start, peak_memory() - before]), flush=True)


class Failures:
    """The cases that failed; the others go on."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @contextlib.contextmanager
    def of(self, case: str) -> Iterator[None]:
        """Prints what the case raises as its row, and the whole of it to standard error."""
        try:
            yield
        except Exception as error:
            self.names.append(case)
            said = str(error).strip().splitlines() or [""]
            print_row(case, f"failed, {type(error).__name__}: {said[-1][:100]}")
            traceback.print_exc()

    def end(self) -> None:
        """Ends the program with status 1 where a case failed."""
        if self.names:
            sys.exit(f"{len(self.names)} failed: {'; '.join(self.names)}")


def process_memory() -> float:
    """Peak resident memory of this process, in GB."""
    status = Path("/proc/self/status")
    # On Linux `ru_maxrss` is no less than that of the process which started this one.
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]) * 1024 / 1e9
    import resource  # which Windows lacks

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def with_goal(ratio: float, goal: float | None, at_least: bool = False) -> str:
    """The ratio as text, with its goal where it has one: at most, or at least so much."""
    if goal is None:
        return f"{ratio:.3g}"
    met = ratio >= goal if at_least else ratio <= goal
    return f"{ratio:.3g} (goal {goal:g}{'' if met else ', missed'})"


def print_header(*cells: str) -> None:
    print_row(*cells)
    print("|" + "---|" * len(cells), flush=True)


def print_row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)
