"""BLEU among the logs of training."""

import sys

import keras
import pytest

from tests.small_training import Weights, X, Y, assert_equal, fit, new_model
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


def test_bleu_joins_the_logs_of_each_epoch():
    translate, asked = scripted(0.6, 1.0, 0.8)
    model = new_model("sgd")
    history = fit(model, [training.ValidationBleu(translate, ["ein", "zwei"], REFERENCES)]).history
    assert history["val_bleu"] == bleu(0.6, 1.0, 0.8)
    assert (
        history["val_bleu"][1] == 100.0
        and 0 < history["val_bleu"][0] < history["val_bleu"][2] < 100
    )
    assert asked == [(model, ["ein", "zwei"])] * 3


@pytest.mark.slow
def test_the_callbacks_behind_it_monitor_bleu(tmp_path):
    translate, _ = scripted(0.6, 1.0, 0.8, 0.8, 0.8)
    seen = Weights()
    keep = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}.keras", "val_bleu", mode="max", save_best_only=True
    )
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=3)
    scored = training.ValidationBleu(translate, REFERENCES, REFERENCES)
    history = fit(new_model("sgd"), [scored, keep, stop, seen], epochs=9).history
    assert len(history["val_bleu"]) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.keras", "2.keras"]
    assert_equal(keras.models.load_model(tmp_path / "2.keras").get_weights(), seen.epochs[1])


@pytest.mark.slow
def test_between_two_translations_the_last_value_stands_and_the_last_epoch_is_judged():
    translate, asked = scripted(0.6, 0.8, 1.0, 0.4)
    scored = training.ValidationBleu(translate, REFERENCES, REFERENCES, every=3, name="bleu")
    history = fit(new_model("sgd"), [scored], epochs=8).history
    first, second, third, last = bleu(0.6, 0.8, 1.0, 0.4)
    assert history["bleu"] == [first, first, second, second, second, third, third, last]
    assert len(asked) == 4


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("verbose", [1, 2])
def test_the_progress_bar_shows_bleu_at_the_end_of_its_line(capsys, verbose):
    translate, _ = scripted(1.0)
    scored = training.ValidationBleu(translate, REFERENCES, REFERENCES)
    new_model("sgd").fit(X, Y, callbacks=[scored], verbose=verbose)
    assert capsys.readouterr().out.strip().endswith("val_bleu: 100.0000")


def test_one_translation_a_reference_is_wanted():
    scored = training.ValidationBleu(lambda model, sources: sources[:1], REFERENCES, REFERENCES)
    with pytest.raises(
        ValueError,
        match="corpus_bleu: `hypotheses` must hold a sentence for each of the 2 references. "
        "Received: hypotheses=1",
    ):
        fit(new_model("sgd"), [scored])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"translate": "no"},
            "ValidationBleu: `translate` must be callable. Received: translate='no'",
        ),
        (
            {"references": ["one"]},
            "ValidationBleu: `references` must hold a sentence for each of the 2 sources. "
            "Received: references=1",
        ),
        (
            {"sources": [], "references": []},
            "ValidationBleu: `sources` must hold at least one sentence",
        ),
        (
            {"references": "ab"},
            "ValidationBleu: `references` must be a collection of strings. "
            "Received: references='ab'",
        ),
        (
            {"references": ["one", 2]},
            "ValidationBleu: `references` must hold strings. Received: references=2",
        ),
        ({"every": 0}, "ValidationBleu: `every` must be a positive integer. Received: every=0"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, message):
    arguments = {"translate": print, "sources": REFERENCES, "references": REFERENCES, **arguments}
    with pytest.raises(ValueError, match=message):
        training.ValidationBleu(**arguments)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("wrong", ["a b c d", [b"a b c d"], None])
def test_bleu_is_of_collections_of_strings(side, wrong):
    sides = [["a b c d"], ["a b c d"]]
    sides[side] = wrong
    with pytest.raises(
        ValueError, match=f"corpus_bleu: `{('hypotheses', 'references')[side]}` must (be|hold)"
    ):
        training.corpus_bleu(*sides)


def test_no_sentence_has_no_bleu():
    with pytest.raises(
        ValueError, match="corpus_bleu: `references` must hold at least one sentence"
    ):
        training.corpus_bleu([], [])


def test_a_missing_sacrebleu_is_missed_before_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(
        ImportError, match=r'ValidationBleu needs sacrebleu: pip install "tfattn\[text\]"'
    ):
        training.ValidationBleu(print, REFERENCES, REFERENCES)
