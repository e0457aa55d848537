"""What the benchmarks share: two peers, each in a process of its own, that take their steps in
turns.

So what else the machine does falls on both, and neither one's memory or threads are the other's.
"""

import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(case, names, arguments, rounds, tolerance=None):
    """Both peers, after at least `rounds` rounds of steps in turns, or 2 seconds of them.

    Args:
        case: for messages.
        names: of the two peers, ours first.
        arguments: of the running script, with which, a peer's name behind them, it calls `serve`.
        rounds: positive int. In a round each part of the work is done by the one and then by the
            other; one round goes ahead of the others.
        tolerance: how far the peers' samples may be apart, as a fraction of the greatest number in
            them; None for peers that are not to be compared.
    """
    with Peer(case, names[0], arguments) as ours, Peer(case, names[1], arguments) as peer:
        if tolerance is not None:
            _check_alike(case, ours, peer, tolerance)
        _round(ours, peer)  # the first step after compilation is seldom a usual one
        ours.forget(), peer.forget()
        taken, start = 0, time.perf_counter()
        # Short steps are taken more often: a median over three of a few milliseconds says little.
        while taken < rounds or time.perf_counter() - start < 2.0:
            _round(ours, peer)
            taken += 1
    return ours, peer


def _round(ours, peer):
    for part in range(len(ours.times)):
        ours.step(part)
        peer.step(part)


def _check_alike(case, ours, peer, tolerance):
    difference = max(abs(a - b) for a, b in zip(ours.sample, peer.sample, strict=True))
    scale = max(abs(b) for b in peer.sample)
    if not difference <= tolerance * scale:
        raise AssertionError(
            f"{case}: {ours.name} and {peer.name} differ by {difference} of {scale}"
        )


class Peer:
    """A process that takes steps when it is told to."""

    def __init__(self, case, name, arguments):
        self.name = name
        command = [sys.executable, sys.argv[0], *map(str, arguments), name]
        pipe = subprocess.PIPE
        # TensorFlow logs much; shown only where the process dies
        errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        self.failure = lambda: f"{case}: the process of {name} died\n{_end_of(errors)}"
        parts, self.sample = self._answer()
        self.times, self.growth = [[] for _ in range(parts)], 0.0

    def step(self, part):
        self.process.stdin.write(f"{part}\n")
        self.process.stdin.flush()
        seconds, self.growth = self._answer()
        self.times[part].append(seconds)

    def forget(self):
        self.times = [[] for _ in self.times]

    @property
    def seconds(self):
        """Of the whole: the sum over its parts, each one's median."""
        return sum(map(statistics.median, self.times))

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.failure())
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.wait()


def _end_of(file):
    file.seek(0)
    return file.read()[-2000:]


def serve(steps, sample):
    """The process's side: answers each line of input, the number of a part, with its seconds and
    the growth of memory.

    Args:
        steps: list of functions without arguments, the parts of the work.
        sample: function without arguments to a list of floats, by which the peers are compared
            before anything is timed; the memory that it takes counts.
    """
    before = _peak_memory()
    print(json.dumps([len(steps), sample()]), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        steps[int(line)]()
        print(json.dumps([time.perf_counter() - start, _peak_memory() - before]), flush=True)


def _peak_memory():
    """Peak resident memory of this process, in GB."""
    status = Path("/proc/self/status")
    # `ru_maxrss` there is no less than that of the process which started this one
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def with_goal(ratio, goal):
    if goal is None:
        return f"{ratio:.3g}"
    return f"{ratio:.3g} (goal {goal:g}{'' if ratio <= goal else ', missed'})"


def print_header(*cells):
    print_row(*cells)
    print("|" + "---|" * len(cells), flush=True)


def print_row(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)
