"""`examples/distributed/train.py`: a job that is killed and goes on, launched in two ways."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.distributed.job import EXAMPLES, launching
from tests.processes import python

pytestmark = pytest.mark.slow

pytest.importorskip("jax")
pytest.importorskip("sacrebleu")

SMALL = ["--pairs", "71", "--tokens", "512", "--layers", "1", "--width", "8", "--sentences", "3"]
EPOCHS = 4


def start(*arguments, out, cache, **environment):
    """`train.py` as a process of its own, which finds no TensorFlow."""
    hiding = cache / "hiding"
    hiding.mkdir(parents=True, exist_ok=True)
    # Python runs a module of this name when it starts.
    (hiding / "sitecustomize.py").write_text("import sys\nsys.modules['tensorflow'] = None\n")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(hiding), *(path for path in sys.path if path)]),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling takes most of the time
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, EXAMPLES / "train.py", *SMALL, "--out", out, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def finished(*running):
    """What well-ended processes printed."""
    found = [process.communicate() for process in running]
    for process, (_, errors) in zip(running, found, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [printed for printed, _ in found]


def result(printed):
    (line,) = [line for line in printed.splitlines() if line.startswith("result: ")]
    return json.loads(line.removeprefix("result: "))


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def killed_in_the_second_epoch(out, cache):
    """(pids, what the launcher wrote to stderr) of a job whose process 1 is killed."""
    job = start("--processes", "2", "--epochs", "1000", out=out, cache=cache)
    pids = [int(job.stdout.readline().rpartition(" ")[2]) for _ in range(2)]
    deadline = time.monotonic() + 300
    while not (out / "run.backup").exists():
        assert job.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(pids[1], signal.SIGKILL)
    _, errors = job.communicate()
    assert job.returncode == 1
    return pids, errors


def test_a_job_that_lost_a_process_says_so_and_goes_on_to_the_end_of_one_that_did_not(tmp_path):
    whole, cut, cache = tmp_path / "whole", tmp_path / "cut", tmp_path / "cache"
    epochs = ["--epochs", str(EPOCHS)]
    (printed,) = finished(start(*epochs, "--processes", "2", out=whole, cache=cache))
    wanted = result(printed)
    assert wanted["processes"] == 2
    assert printed.count("Epoch 1/4") == 1  # one process tells for all

    pids, errors = killed_in_the_second_epoch(cut, cache)
    assert not any(map(is_running, pids))
    assert "process 1 of 2 was killed by SIGKILL: the job ends" in errors
    assert f"--out {cut} --processes 2 --epochs 1000 --resume" in errors

    # As `srun` would start it: each process finds its place in the environment.
    job_id = os.getpid()
    slurm = {"SLURM_JOB_ID": str(job_id), "SLURM_STEP_NODELIST": "localhost"}
    slurm.update(SLURM_NTASKS="2", SLURM_STEP_NUM_TASKS="2")
    tasks = [
        start(
            *(*epochs, "--resume"),
            **{"out": cut, "cache": cache, **slurm},
            **{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)},
        )
        for i in range(2)
    ]
    first, second = finished(*tasks)
    assert result(first) | {"seconds": 0} == wanted | {"seconds": 0}
    assert "result:" not in second and "Epoch" not in second
    assert first.startswith("process 0 of 2: pid") and second.startswith("process 1 of 2: pid")
    ours, theirs = (dict(np.load(folder / "run.backup")) for folder in (cut, whole))
    assert ours.keys() == theirs.keys()
    for name in theirs:  # the weights, the optimizer, the seeds, the logs
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert (cut / "best.weights.h5").exists() and launching.LOST == 75


def test_a_folder_that_holds_a_run_is_left_alone_without_resume(tmp_path):
    (tmp_path / "run.backup").touch()
    job = start("--processes", "2", out=tmp_path, cache=tmp_path)
    _, errors = job.communicate()
    assert job.returncode == 2 and "--resume goes on with it" in errors


ADDRESS = "127.0.0.1:12345"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"coordinator": ADDRESS}, "--coordinator needs --processes and --process-id beside it"),
        ({"coordinator": ADDRESS, "processes": 2}, "--coordinator needs --processes and --process"),
        ({"coordinator": ADDRESS, "process-id": 0}, "--coordinator needs --processes and --proc"),
        ({"processes": 2, "process-id": 0}, "--process-id needs --coordinator beside it"),
        (
            {"coordinator": ADDRESS, "processes": 2, "process-id": 2},
            "--process-id must be from 0 to 1",
        ),
        ({"coordinator": ADDRESS, "processes": 2, "process-id": -1}, "--process-id must be from 0"),
    ],
)
def test_a_place_that_is_told_by_halves_is_refused(place, message, tmp_path):
    options = [word for name, value in place.items() for word in (f"--{name}", str(value))]
    job = start(*options, out=tmp_path, cache=tmp_path)
    _, errors = job.communicate()
    assert job.returncode == 2 and message in errors


def losses_of(processes):
    done = python(
        EXAMPLES / "multi_worker.py",
        *("--processes", processes, "--pairs", 60, "--epochs", 2, "--tokens", 512),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if line.startswith("epoch")]


@pytest.mark.tensorflow
def test_a_loop_of_ones_own_learns_the_same_from_two_workers_of_tensorflow():
    one, two = losses_of(1), losses_of(2)
    numbers = [
        [float(word) for line in lines for word in line.split()[3:4]] for lines in (one, two)
    ]
    assert len(numbers[0]) == 2 and numbers[0][1] < numbers[0][0]
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-5)
    assert [line.split()[-2] for line in one] == [line.split()[-2] for line in two]  # tokens
