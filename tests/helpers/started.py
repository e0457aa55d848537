"""A plugin that counts the processes that tests start, says how many at the end, and fails a run of
`--full` with too many.

Most of them import TensorFlow, which takes five seconds or more: a test starts a process only where
the process is the matter. Those that a process starts in turn are not counted.
"""

import os
import sys

import pytest

LIMIT = 25
# What Python's audit hooks call it; the last is a fork of a warm process, see `processes.py`.
KINDS = {
    "subprocess.Popen": "processes",
    "os.posix_spawn": "processes",
    "os.fork": "processes",
    "os.forkpty": "processes",
    "os.system": "processes",
    "tests.warm_fork": "forks of a warm process",
}
STARTED = []  # (test, kind) of this process, and of those of pytest-xdist once they are done


def _listen(event, _):
    # pytest names the test in the environment; a library may start a process as it is imported.
    if event in KINDS and "PYTEST_CURRENT_TEST" in os.environ:
        STARTED.append((os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0], KINDS[event]))


sys.addaudithook(_listen)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    STARTED.extend(map(tuple, getattr(node, "workeroutput", {}).get("started", ())))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["started"] = STARTED
    yield
    if _too_many(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    kinds = [kind for _, kind in STARTED]
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(KINDS.values())]
    terminalreporter.write_line(f"started by tests: {', '.join(counts)}")
    if _too_many(config) or config.option.verbose > 0:
        for test, kind in sorted(STARTED):
            terminalreporter.write_line(f"  {test}: one of the {kind}")
    if _too_many(config):
        terminalreporter.write_line(f"ERROR: more than {LIMIT}, see tests/helpers/started.py")


def _too_many(config):
    is_controller = not hasattr(config, "workeroutput")
    return is_controller and config.option.full and len(STARTED) > LIMIT
