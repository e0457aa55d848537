"""BLEU among the logs of training."""

import sys

import keras
import numpy as np
import pytest

from tests.helpers.small_training import Weights, X, Y, assert_equal, fit, new_model
from tfattn import training

REFERENCES = ["a small cat sleeps on the mat", "two dogs run in the snow"]


def scripted(*shares):
    """A translator that gets the first words right, as many as the next share says; it keeps what
    it was asked.
    """
    asked, shares = [], iter(shares)

    def translate(model, sources):
        asked.append((model, sources))
        share = next(shares)
        words = [reference.split() for reference in REFERENCES]
        return [
            " ".join(row[: round(share * len(row))] + ["x"] * round((1 - share) * len(row)))
            for row in words
        ]

    return translate, asked


def bleu(*shares):
    translate, _ = scripted(*shares)
    return [training.corpus_bleu(translate(None, REFERENCES), REFERENCES) for _ in shares]


@pytest.mark.slow
def test_validation_bleu_joins_the_logs_for_later_callbacks(tmp_path):
    translate, asked = scripted(0.6, 1.0, 0.8, 0.8, 0.8)
    model, seen = new_model("sgd"), Weights()
    keep = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}.keras", "val_bleu", mode="max", save_best_only=True
    )
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=3)
    scored = training.ValidationBleu(translate, ["ein", "zwei"], REFERENCES)
    found = fit(model, [scored, keep, stop, seen], epochs=9).history["val_bleu"]
    assert found == bleu(0.6, 1.0, 0.8, 0.8, 0.8)
    assert found[1] == 100.0 and 0 < found[0] < found[2] < 100
    assert asked == [(model, ["ein", "zwei"])] * 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.keras", "2.keras"]
    assert_equal(keras.models.load_model(tmp_path / "2.keras").get_weights(), seen.epochs[1])


@pytest.mark.slow
def test_validation_bleu_between_scores_is_nan_and_scores_the_last_epoch():
    translate, asked = scripted(0.6, 0.8, 1.0, 0.4)
    scored = training.ValidationBleu(translate, REFERENCES, REFERENCES, every=3, name="bleu")
    keep = keras.callbacks.EarlyStopping("bleu", mode="max", patience=9, restore_best_weights=True)
    history = fit(new_model("sgd"), [scored, keep], epochs=8).history
    first, second, third, last = bleu(0.6, 0.8, 1.0, 0.4)
    nan = float("nan")
    np.testing.assert_equal(history["bleu"], [first, nan, second, nan, nan, third, nan, last])
    assert len(asked) == 4 and keep.best_epoch == 5


def test_validation_bleu_ends_the_line_of_the_progress_bar(capsys):
    translate, _ = scripted(1.0)
    scored = training.ValidationBleu(translate, REFERENCES, REFERENCES)
    new_model("sgd").fit(X, Y, callbacks=[scored], verbose=2)
    assert capsys.readouterr().out.strip().endswith("val_bleu: 100.0000")


def test_bleu_without_a_translation_for_each_reference_is_refused(monkeypatch):
    for hypotheses, references in ((["a"], REFERENCES), ([], [])):
        said = f"corpus_bleu: `hypotheses` must hold a sentence for each of the {len(references)} "
        with pytest.raises(ValueError, match=said):
            training.corpus_bleu(hypotheses, references)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(
        ImportError, match=r'ValidationBleu needs sacrebleu: pip install "tfattn\[text\]"'
    ):
        training.ValidationBleu(print, REFERENCES, REFERENCES)
