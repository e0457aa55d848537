"""`examples/distributed/train.py`: a job that is killed and goes on, launched in two ways."""

import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import tfattn
from tests.distributed.job import EXAMPLES, launching, needs
from tests.helpers.processes import python
from tfattn import data

jobs = needs("jax", "sacrebleu")

SMALL = ["--pairs", "71", "--tokens", "512", "--layers", "1", "--width", "8", "--sentences", "3"]
EPOCHS = 3


def start(*arguments, out, cache, **environment):
    """`train.py` as a process of its own, which finds no TensorFlow."""
    hiding = cache / "hiding"
    hiding.mkdir(parents=True, exist_ok=True)
    # Python runs a module of this name when it starts.
    (hiding / "sitecustomize.py").write_text("import sys\nsys.modules['tensorflow'] = None\n")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(hiding), *(path for path in sys.path if path)]),
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


@jobs
@pytest.mark.nightly
def test_train_script_job_that_lost_a_process_resumes_to_the_end_of_one_that_did_not(tmp_path):
    whole, cut, cache = tmp_path / "whole", tmp_path / "cut", tmp_path / "cache"
    epochs = ["--epochs", str(EPOCHS)]
    (printed,) = finished(start(*epochs, "--processes", "2", out=whole, cache=cache))
    wanted = result(printed)
    assert wanted["processes"] == 2
    assert printed.count("Epoch 1/3") == 1  # one process tells for all

    pids, errors = killed_in_the_second_epoch(cut, cache)
    assert not any(map(is_running, pids))
    assert "process 1 of 2 was killed by SIGKILL; ending the job" in errors
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--processes 2", "use --resume to continue it"),
        ("--coordinator HOST:1", "--coordinator needs --processes and --process-id"),
        ("--processes 2 --process-id 0", "--process-id needs --coordinator"),
        ("--coordinator HOST:1 --processes 2 --process-id 2", "--process-id must be from 0 to 1"),
    ],
)
def test_train_script_place_told_by_halves_or_folder_of_a_run_is_refused(
    options, message, tmp_path, monkeypatch, capsys
):
    (tmp_path / "run.backup").touch()
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # the script sets it
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setitem(sys.modules, "launch", launching)
    monkeypatch.setattr(sys, "argv", ["train.py", *options.split(), "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(EXAMPLES / "train.py", run_name="__main__")
    assert end.value.code == 2 and message in capsys.readouterr().err


@jobs
@pytest.mark.tensorflow
@pytest.mark.nightly
def test_multi_worker_script_of_two_workers_learns_what_fit_learns_from_one():
    options = {"processes": 2, "pairs": 60, "epochs": 2, "tokens": 512}
    words = itertools.chain.from_iterable((f"--{name}", size) for name, size in options.items())
    done = python(EXAMPLES / "multi_worker.py", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("epoch")]

    keras.utils.set_random_seed(0)
    pairs, _ = data.split_pairs(data.toy_translation(60, seed=0))
    words = [data.Vocabulary.from_sentences(side) for side in zip(*pairs, strict=True)]
    sizes = {"num_layers": 1, "width": 32, "num_heads": 4, "hidden_dim": 64, "dropout": 0.0}
    model = tfattn.Transformer(*map(len, words), **sizes)
    model.build(((None, None), (None, None)))
    optimizer, loss = keras.optimizers.Adam(0.002, epsilon=1e-5), tfattn.MaskedCrossentropy()
    model.compile(optimizer, loss, jit_compile=False)
    batches, losses = data.token_batches(pairs, *words, 512, shuffle_seed=0), []
    for _ in range(2):
        found = [
            (float(model.train_on_batch(inputs, target)), np.sum(target > 0))
            for inputs, target in batches.as_numpy_iterator()
        ]
        means, counts = zip(*found, strict=True)
        losses.append(np.average(means, weights=counts))
    np.testing.assert_allclose([float(line[3]) for line in lines], losses, rtol=1e-5)
    tokens = sum(int(np.sum(target > 0)) for _, target in batches.as_numpy_iterator())
    assert [line[-2] for line in lines] == [str(tokens)] * 2 and losses[1] < losses[0]
