"""Starts the processes of a job on this machine, and ends all of them when one dies."""

import contextlib
import signal
import socket
import subprocess
import sys
import time

GRACE = 5  # seconds for a process to end by itself


def launch(command: list[str], processes: int, advice: str) -> int:
    """Runs `command` in so many processes, each told where it stands, and waits for them.

    Args:
        command: the program and its arguments. `--coordinator HOST:PORT --processes N
            --process-id K` is appended.
        advice: what to say where a process dies: how to go on.
    Returns:
        The exit status: 0 where all ended well.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    running = {}
    try:
        for i in range(processes):
            place = ["--coordinator", address, "--processes", str(processes)]
            running[i] = subprocess.Popen([*command, *place, "--process-id", str(i)])
            print(f"process {i} of {processes}: pid {running[i].pid}", flush=True)
        while running:
            time.sleep(0.1)
            ended = {i: process.poll() for i, process in running.items()}
            ended = {i: status for i, status in ended.items() if status is not None}
            if any(ended.values()):
                # A peer that lost its partner ends too: a signal is where it began.
                i = min(ended, key=ended.get)
                print(f"process {i} of {processes} {_end(ended[i])}", file=sys.stderr)
                print(f"the other processes are ended. {advice}", file=sys.stderr)
                return 1
            for i in ended:
                del running[i]
        return 0
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            process.kill()
            process.wait()


def _end(status):
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
