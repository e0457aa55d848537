"""demos/transformer_translation.py and demos/bahdanau_translation.py, run as a user runs them, on little data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

DEMOS = Path(__file__).parents[1] / "demos"
NAMES = ["transformer_translation", "bahdanau_translation"]


def run(name, *arguments, folder, text=None):
    environment = {**os.environ, "PYTHONPATH": str(DEMOS.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(DEMOS / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, input=text)


def result(output):
    return json.loads(output.strip().splitlines()[-1].removeprefix("result: "))


def last_line(output):
    return output.strip().splitlines()[-1]


TOY = ("--pairs", 400, "--sentences", 20, "--out", "here/and/there")


@pytest.fixture(scope="module", params=NAMES)
def toy(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    done = run(request.param, *TOY, "--epochs", 1, folder=folder)
    assert done.returncode == 0, done.stderr
    return request.param, folder, done.stdout


@pytest.mark.slow
def test_a_demo_shows_what_it_has_done(toy):
    _, folder, output = toy
    numbers = result(output)
    assert {"exact_match", "bleu", "val_bleu", "val_loss", "parameters", "seconds"} <= set(numbers)
    assert 0 <= numbers["aligned_swaps"] <= 1
    before = float(output.split("validation loss before training ")[1].split()[0])
    assert numbers["val_loss"] < before
    assert output.count("  source     ") == output.count("  model      ") == output.count("  reference  ") == 5
    out = folder / "here" / "and" / "there"
    for picture in ("attention.png", "loss.png"):
        assert (out / picture).stat().st_size > 10_000
    assert keras.models.load_model(out / "model.keras").count_params() == numbers["parameters"]


@pytest.mark.slow
def test_a_run_is_kept_resumed_and_asked(toy):
    name, folder, _ = toy
    refused = run(name, *TOY, "--epochs", 2, folder=folder)
    assert refused.returncode == 1
    assert "holds a run of 1 epochs: --resume goes on with it" in last_line(refused.stderr)
    resumed = run(name, *TOY, "--epochs", 2, "--resume", folder=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert result(resumed.stdout)["epochs"] == 2
    assert "Epoch 1/2" not in resumed.stdout and "Epoch 2/2" in resumed.stdout
    lines = "she is tired .\n\na zebra ☃ sings " + "and sings " * 60 + ".\n"
    asked = run(name, "--translate", "--beam", 2, "--out", "here/and/there", folder=folder, text=lines)
    assert asked.returncode == 0, asked.stderr
    translations = asked.stdout.split("\n")
    assert len(translations) == 4 and translations[0] and translations[1] == "" and translations[3] == ""


@pytest.mark.slow
def test_learns_from_files_in_subwords(tmp_path):
    pairs = [("a dog barks .", "ein hund bellt ."), ("a cat sleeps .", "eine katze schläft .")] * 20
    for part in ("train", "val", "test"):
        for place, language in enumerate(("en", "de")):
            lines = "".join(pair[place] + "\n" for pair in pairs)
            (tmp_path / f"{part}.{language}").write_text(lines, encoding="utf-8")
    options = ("--data", tmp_path, "--preset", "toy", "--subwords", 60, "--epochs", 1, "--sentences", 5)
    done = run("transformer_translation", *options, "--score", "test", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "40 pairs to learn from, 40 held out" in done.stdout
    assert result(done.stdout)["scored"] == "test"
    assert (tmp_path / "out" / "transformer_translation" / "attention.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_named(name, tmp_path):
    done = run(name, "--data", tmp_path / "nowhere", folder=tmp_path)
    assert done.returncode == 1
    assert last_line(done.stderr).startswith("error: ") and "train.en" in last_line(done.stderr)
    done = run(name, "--translate", folder=tmp_path, text="a line\n")
    assert done.returncode == 1
    assert last_line(done.stderr).startswith("error: ") and "train first" in last_line(done.stderr)


@pytest.mark.parametrize("name", NAMES)
def test_help_names_every_option(name, tmp_path):
    done = run(name, "--help", folder=tmp_path)
    assert done.returncode == 0
    for option in ("--seed", "--out", "--data", "--epochs", "--pairs", "--preset", "--subwords", "--beam", "--resume"):
        assert option in done.stdout
    assert "--translate" in done.stdout and "--score" in done.stdout
