"""Starts processes of a job on this machine, watches them, and ends all of them when one dies."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

LOST = 75  # the exit status of a process that lost another one of its job
LAUNCHER = "LAUNCHER_PID"  # the variable that tells a process who launched it


def launch(commands: dict[int, list[str]], processes: int, advice: str) -> int:
    """Runs the commands at the same time, and waits for them.

    Args:
        commands: from the number of a process to its program and arguments.
        processes: how many the job has, here and elsewhere.
        advice: what to say where a process dies: how to go on.
    Returns:
        The exit status: 0 where all ended well.
    """
    # A scheduler that cancels a job sends SIGTERM: then the processes are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    running = {}
    try:
        for i, command in commands.items():
            environment = {**os.environ, LAUNCHER: str(os.getpid())}
            running[i] = subprocess.Popen(command, env=environment)
            print(f"process {i} of {processes}: pid {running[i].pid}", flush=True)
        while running:
            time.sleep(0.1)
            ended = {i: process.poll() for i, process in running.items()}
            ended = {i: status for i, status in ended.items() if status is not None}
            if any(ended.values()):
                # One that lost its peer ends a little later, or by SIGABRT: SIGKILL comes first.
                failed = {i: status for i, status in ended.items() if status}
                i = min(failed, key=lambda i: (failed[i] in (LOST, -signal.SIGABRT), failed[i]))
                print(f"process {i} of {processes} {_end(ended[i])}: the job ends", file=sys.stderr)
                print(advice, file=sys.stderr)
                return 1
            for i in ended:
                del running[i]
        return 0
    finally:
        # SIGTERM would not do: JAX takes it for a notice and goes on.
        for process in running.values():
            process.kill()
        for process in running.values():
            process.wait()


def end_with_launcher() -> None:
    """Has this process end when its launcher is gone, if it has one.

    SIGKILL leaves a launcher no time to end its processes. They would go on, and write to the same
    backup as those of the next job.
    """
    launcher = os.environ.get(LAUNCHER)

    def watch():
        while str(os.getppid()) == launcher:
            time.sleep(0.2)
        print("the launcher is gone: its process ends", file=sys.stderr, flush=True)
        os._exit(LOST)

    if launcher and os.name == "posix":  # elsewhere a parent need not be who it seems
        threading.Thread(target=watch, daemon=True).start()


def free_address() -> str:
    """HOST:PORT of this machine where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _end(status):
    if status in (LOST, -signal.SIGABRT):  # JAX itself ends one that it finds alone
        return "lost another process of the job"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
