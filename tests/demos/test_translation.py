"""The demos of translation, in full: the Transformer's on half of its sentences."""

import functools

import numpy as np
import pytest

import tfattn
from tests.demos.running import result, run
from tfattn import data
from tfattn.translator.report import swaps_found


def run_on(num_pairs, name, folder):
    """(what the demo prints, its variables, the folder of its figures), learning from so many
    pairs.
    """
    fewer = functools.partial(_fewer, num_pairs, data.toy_translation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "toy_translation", fewer)
        output, variables = run(name, "--out", "new/figures", folder=folder)
    return output, variables, folder / "new" / "figures"


def _fewer(num_pairs, toy_translation, wanted, seed):
    assert wanted == 14_000  # as the demo has it
    return toy_translation(num_pairs, seed)


def assert_shows_its_work(output, variables, figures, names):
    numbers = result(output)
    assert set(numbers) == {"exact_match", "bleu", "val_loss", "parameters", "seconds"}
    assert numbers["parameters"] == variables["model"].count_params()
    assert numbers["val_loss"] == round(variables["history"].history["val_loss"][-1], 4)
    assert numbers["bleu"] == round(
        tfattn.training.corpus_bleu(variables["translations"], variables["references"]), 2
    )
    assert f"{len(variables['held_out'])} held out" in output
    assert "Epoch 5/5" in output
    for line in ("  source     ", "  model      ", "  reference  "):
        assert output.count(line) == 5
    assert sorted(path.name for path in figures.iterdir()) == sorted([*names, "viewer.html"])
    for picture in figures.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    # the viewer holds the sentence that the figures show, and every layer's weights
    page = (figures / "viewer.html").read_text(encoding="utf-8")
    read, written = variables["read"], variables["written"]
    assert " ".join(read[:-1]) == variables["source"]
    assert " ".join(written[:-1]) == variables["translation"]
    assert all(word in page for word in [*read[:-1], *written[:-1]])
    for path, weights in variables["weights"].items():
        assert path in page
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.slow
def test_the_transformer_learns_to_translate_and_where_to_look(tmp_path):
    output, variables, figures = run_on(7000, "transformer_translation", tmp_path)
    names = ["between.png", "decoder.png", "encoder.png", "flow.png", "loss.png"]
    assert_shows_its_work(output, variables, figures, names)
    sizes = len(variables["written"]), len(variables["read"])
    for kind, shape in (
        ("encoder", (4, sizes[1], sizes[1])),
        ("decoder", (4, sizes[0], sizes[0])),
        ("between", (4, *sizes)),
    ):
        assert [layer.shape for layer in variables[kind].values()] == [shape] * 2  # two layers
    for layer in variables["decoder"].values():
        assert (np.triu(layer, 1) == 0.0).all()  # no word looks ahead
    assert result(output)["bleu"] >= 90
    words = [variables["english"], variables["french"]]
    # who has learnt looks at the words that change places
    assert swaps_found(variables["model"], variables["held_out"][:200], words) >= 0.9


@pytest.mark.slow
def test_bahdanaus_model_learns_to_translate_and_where_to_look(tmp_path):
    output, variables, figures = run_on(10_000, "bahdanau_translation", tmp_path)
    assert_shows_its_work(output, variables, figures, ["attention.png", "flow.png", "loss.png"])
    assert variables["alignment"].shape == (len(variables["written"]), len(variables["read"]))
    assert result(output)["bleu"] >= 90
    words = [variables["english"], variables["french"]]
    assert swaps_found(variables["model"], variables["held_out"][:200], words) >= 0.9
