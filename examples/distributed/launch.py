"""Starts the processes of a job on this machine, and ends all of them when one fails."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

LOST = 75  # the exit status of a process that lost its connection to another process
LAUNCHER = "LAUNCHER_PID"  # environment variable with the launcher's process id


def launch(commands: dict[int, list[str]], processes: int, advice: str) -> int:
    """Runs the commands in parallel and waits for them.

    Args:
        commands: from the number of a process to its program and arguments.
        processes: number of processes of the job, on all machines.
        advice: message after a failure: how to continue.
    Returns:
        The exit status: 0 if all processes succeeded.
    """
    # Schedulers cancel a job by SIGTERM, which must end the processes too.
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
                # Report the first cause: processes that lost their peer fail later, or by SIGABRT.
                failed = {i: status for i, status in ended.items() if status}
                i = min(failed, key=lambda i: (failed[i] in (LOST, -signal.SIGABRT), failed[i]))
                print(
                    f"process {i} of {processes} {_end(ended[i])}; ending the job", file=sys.stderr
                )
                print(advice, file=sys.stderr)
                return 1
            for i in ended:
                del running[i]
        return 0
    finally:
        # SIGKILL, since JAX treats SIGTERM as a notice of preemption and continues.
        for process in running.values():
            process.kill()
        for process in running.values():
            process.wait()


def end_with_launcher() -> None:
    """Ends this process when its launcher, if any, no longer exists.

    A launcher killed by SIGKILL cannot end its processes, which would continue and write to the
    same backup as the next job.
    """
    launcher = os.environ.get(LAUNCHER)

    def watch():
        while str(os.getppid()) == launcher:
            time.sleep(0.2)
        print("the launcher no longer exists; ending its process", file=sys.stderr, flush=True)
        os._exit(LOST)

    if launcher and os.name == "posix":  # elsewhere `getppid` may be a different process
        threading.Thread(target=watch, daemon=True).start()


def free_address() -> str:
    """A free HOST:PORT of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _end(status):
    if status in (LOST, -signal.SIGABRT):  # JAX aborts a process without peers
        return "lost another process of the job"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
