"""`examples/distributed/launch.py`: what becomes of processes whose launcher is killed."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.distributed.job import EXAMPLES, launching

WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import launch
launch.end_with_launcher()
print("at work", flush=True)
time.sleep(60)
"""
LAUNCHER = f"""
import sys
sys.path.insert(0, sys.argv[1])
import launch
command = [sys.executable, "-c", {WORKER!r}, sys.argv[1]]
launch.launch({{0: command, 1: command}}, 2, "")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a parent need not be the launcher elsewhere")
def test_launcher_killed_ends_its_processes():
    command = [sys.executable, "-c", LAUNCHER, EXAMPLES]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    launcher = subprocess.Popen(command, **pipes)
    lines = [launcher.stdout.readline() for _ in range(4)]
    assert "".join(lines).count("at work") == 2  # perhaps on one line, and its end on the next
    launcher.kill()
    try:
        # What they write ends when all of them have ended.
        _, errors = launcher.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        for line in lines:
            if "pid" in line:
                os.kill(int(line.rpartition(" ")[2]), signal.SIGKILL)
        raise
    assert errors.count("the launcher no longer exists; ending its process") == 2


def test_process_without_a_launcher_waits_for_none(monkeypatch):
    monkeypatch.delenv(launching.LAUNCHER, raising=False)
    before = threading.active_count()
    launching.end_with_launcher()
    assert threading.active_count() == before
