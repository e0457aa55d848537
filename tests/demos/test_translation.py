"""demos/transformer_translation.py and demos/bahdanau_translation.py: a run, what it learns, and
what one does with it later.
"""

import keras
import pytest

from tests.demos.running import TRANSLATORS, printed, result, run
from tfattn import data

TOY = ("--pairs", 7000, "--sentences", 200, "--out", "here/and/there")
LEARNT = {"transformer_translation": 5, "bahdanau_translation": 6}  # epochs


@pytest.fixture(scope="module", params=TRANSLATORS)
def toy(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    return request.param, folder, printed(request.param, *TOY, "--epochs", 1, folder=folder)


@pytest.mark.slow
def test_a_demo_shows_what_it_has_done(toy):
    _, folder, output = toy
    numbers = result(output)
    assert {"exact_match", "bleu", "val_bleu", "val_loss", "parameters", "seconds"} <= set(numbers)
    assert 0 <= numbers["aligned_swaps"] <= 1
    assert numbers["sentences"] == 200 and numbers["best_epoch"] == 1
    assert 0 < numbers["training_seconds"] < numbers["seconds"]
    before = float(output.split("validation loss before training ")[1].split()[0])
    assert numbers["val_loss"] < before
    assert (
        output.count("  source     ")
        == output.count("  model      ")
        == output.count("  reference  ")
        == 5
    )
    out = folder / "here" / "and" / "there"
    for picture in ("attention.png", "loss.png"):
        assert (out / picture).stat().st_size > 10_000
    assert keras.models.load_model(out / "model.keras").count_params() == numbers["parameters"]


@pytest.mark.slow
def test_a_run_is_kept_resumed_and_asked(toy, ended):
    name, folder, _ = toy
    refused, _ = ended(name, *TOY, "--epochs", 1, folder=folder)  # finished, and kept all the same
    assert "holds a run of 1 epochs: --resume goes on with it" in refused
    refused, _ = ended(name, *TOY, "--epochs", 2, "--resume", "--tokens", 512, folder=folder)
    assert "--tokens: the run in here/and/there was begun with 768, and not with 512" in refused
    # One training from here to the end of the test, since most of a short one goes into its graph.
    before, epochs = result(toy[2]), LEARNT[name]
    resumed = printed(name, *TOY, "--epochs", epochs, "--resume", folder=folder)
    numbers = result(resumed)
    assert numbers["epochs"] == epochs and numbers["training_seconds"] > before["training_seconds"]
    gained = numbers["val_bleu"] - before["val_bleu"]
    assert gained >= 0 and (numbers["best_epoch"] > 1 or gained == 0)
    assert f"Epoch 1/{epochs}" not in resumed and f"Epoch 2/{epochs}" in resumed
    assert numbers["aligned_swaps"] >= 0.9  # who has learnt looks at the words that change places
    lines = "she is tired .\n\na zebra ☃ \udcff sings " + "and sings " * 60 + ".\n"
    asked = run(
        name,
        "--translate",
        "--beam",
        2,
        "--length-penalty",
        0.5,
        "--out",
        "here/and/there",
        folder=folder,
        text=lines,
    )
    assert asked.returncode == 0, asked.stderr
    translations = asked.stdout.split("\n")
    assert (
        len(translations) == 4
        and translations[0]
        and translations[1] == ""
        and translations[3] == ""
    )
    # Another vocabulary, of the same size.
    path = folder / "here" / "and" / "there" / "target.vocabulary"
    *words, last, final = data.load_vocabulary(path).words[4:]
    data.Vocabulary([*words, final, last]).save(path)
    refused, _ = ended(name, "--translate", "--out", "here/and/there", folder=folder)
    assert "are not those that its model was trained with" in refused
    refused, _ = ended(name, *TOY, "--epochs", epochs + 1, "--resume", folder=folder)
    assert "are not those that its run was trained with" in refused
