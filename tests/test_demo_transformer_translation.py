"""demos/transformer_translation.py, run as a user runs it, on little data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

DEMO = Path(__file__).parents[1] / "demos" / "transformer_translation.py"


def run(*arguments, folder):
    environment = {**os.environ, "PYTHONPATH": str(DEMO.parents[1]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(DEMO), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def result(output):
    return json.loads(output.strip().splitlines()[-1].removeprefix("result: "))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    done = run("--pairs", 600, "--epochs", 1, "--translate", 6, "--out", "here/and/there", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "here" / "and" / "there", done.stdout


@pytest.mark.slow
def test_last_line_is_the_result(toy):
    numbers = result(toy[1])
    assert set(numbers) == {"exact_match", "bleu", "val_loss", "parameters", "seconds"}
    assert 0 <= numbers["exact_match"] <= 1
    assert 0 <= numbers["bleu"] <= 100


@pytest.mark.slow
def test_one_epoch_lowers_the_validation_loss(toy):
    before = float(toy[1].split("validation loss before training ")[1].split()[0])
    assert result(toy[1])["val_loss"] < before


@pytest.mark.slow
def test_five_translations_are_shown(toy):
    assert toy[1].count("  source     ") == toy[1].count("  model      ") == toy[1].count("  reference  ") == 5


@pytest.mark.slow
def test_figure_and_model_are_written(toy):
    assert (toy[0] / "attention.png").stat().st_size > 10_000
    model = keras.models.load_model(toy[0] / "model.keras")
    assert model.count_params() == result(toy[1])["parameters"]


@pytest.mark.slow
def test_learns_from_files(tmp_path):
    pairs = [("a dog barks .", "ein hund bellt ."), ("a cat sleeps .", "eine katze schläft .")] * 20
    for part in ("train", "val"):
        for place, language in enumerate(("en", "de")):
            lines = "".join(pair[place] + "\n" for pair in pairs)
            (tmp_path / f"{part}.{language}").write_text(lines, encoding="utf-8")
    done = run("--data", tmp_path, "--epochs", 1, "--translate", 5, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "40 pairs to learn from, 40 held out" in done.stdout
    assert (tmp_path / "out" / "transformer_translation" / "attention.png").exists()


@pytest.mark.slow
def test_missing_file_is_named(tmp_path):
    done = run("--data", tmp_path / "nowhere", folder=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and "train.en" in last


def test_help_names_every_option(tmp_path):
    done = run("--help", folder=tmp_path)
    assert done.returncode == 0
    for option in ("--seed", "--out", "--data", "--epochs", "--pairs"):
        assert option in done.stdout
