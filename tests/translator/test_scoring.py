"""Scores of one or several trained models, on files and on the grammar."""

import argparse
import json
import statistics

import pytest

from tests.translator.command import result, status, translator, write_corpus
from tfattn import data
from tfattn.translator import scoring, translating
from tfattn.translator.folder import Folder, fingerprint

PAIRS = [("a b c d e", "a b c d e"), ("a b c d f", "a b c d f")]


@pytest.fixture
def echoes(monkeypatch, tmp_path):
    """Folders of runs whose models write their source, with a word fewer in each run."""
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path, PAIRS, ["val", "test"])

    def translate(model, sentences, words, search, progress, max_length):
        kept = 5 - int(str(model)[-1])
        return [" ".join(sentence.split()[:kept]) for sentence in sentences]

    monkeypatch.setattr(translating, "translate", translate)
    monkeypatch.setattr(Folder, "load_model", lambda folder: (folder.path, None))
    for seed in range(3):
        (tmp_path / f"seed{seed}").mkdir()
        Folder(tmp_path / f"seed{seed}").add_to_record(data=str(tmp_path))
    return ["seed0", "seed1"]


def test_one_run_has_a_row(echoes, capsys):
    translator("score", "--out", "seed0", "seed0", "--parts", "val", "test", "val", "--beam", 5)
    output = capsys.readouterr().out
    head, row, _ = output.splitlines()
    assert head.split() == ["val", "test"] and row.split() == ["seed0", "100.00", "100.00"]
    runs = {"seed0": {"val": 100.0, "test": 100.0}}
    assert result(output) == {"beam": 5, "length_penalty": 1.0, "runs": runs}


def test_the_result_contains_the_search_options(echoes, capsys, monkeypatch):
    monkeypatch.setattr(translating, "translate", lambda model, sentences, *_, **__: [sentences[0]])
    asked = {"no_repeat_ngrams": 3, "max_length": 20, "sentences": 1}
    options = [word for name, n in asked.items() for word in (f"--{name.replace('_', '-')}", n)]
    translator("score", "--out", "seed0", *options)
    found = {"beam": 1, "length_penalty": 1.0, **asked, "runs": {"seed0": {"val": 100.0}}}
    assert result(capsys.readouterr().out) == found


def test_several_runs_have_a_mean_and_a_standard_deviation(echoes, capsys):
    translator("score", "--out", *echoes)
    output = capsys.readouterr().out
    found = result(output)
    scores = [run["val"] for run in found["runs"].values()]
    assert scores[0] == 100.0 > scores[1] > 0
    assert found["mean"] == {"val": round(sum(scores) / 2, 2)}
    assert found["standard deviation"] == {"val": round(statistics.stdev(scores), 2)}
    names = ["seed0", "seed1", "mean", "standard deviation"]
    rows = [line.rsplit(maxsplit=1) for line in output.splitlines()[1:-1]]
    assert [name.strip() for name, _ in rows] == names
    shown = [*scores, found["mean"]["val"], found["standard deviation"]["val"]]
    assert [float(number) for _, number in rows] == shown


def test_a_missing_part_is_reported_before_any_translation(echoes, capsys):
    assert status("score", "--out", *echoes, "--parts", "val", "tset") == 1
    shown = capsys.readouterr()
    assert "tset.en" in shown.err and shown.out == ""


def toy_run(path):
    """The folder of a run of the grammar, without a model."""
    path.mkdir()
    pairs = data.toy_translation(70, seed=3)
    train, validation = data.split_pairs(pairs, seed=3)
    folder = Folder(path)
    folder.add_to_record(
        data=None,
        settings={"pairs": 70, "seed": 3, "languages": ["en", "de"]},
        sentences=fingerprint(line for pair in (*train, *validation) for line in pair),
    )
    return folder, validation


def asked(**entries):
    nothing = {"data": None, "parts": ["val"], "sentences": None}
    return argparse.Namespace(**{**nothing, **entries})


def test_a_run_of_the_grammar_is_scored_on_its_held_out_sentences(tmp_path):
    folder, validation = toy_run(tmp_path / "run")
    assert scoring._parts(folder, asked()) == {"val": validation}
    assert scoring._parts(folder, asked(sentences=2)) == {"val": validation[:2]}
    with pytest.raises(ValueError, match="--parts test: the model in .* learned from the grammar"):
        scoring._parts(folder, asked(parts=["val", "test"]))
    folder.add_to_record(sentences="others")
    with pytest.raises(ValueError, match="the grammar has changed since the run in .* was trained"):
        scoring._parts(folder, asked())


def test_data_selects_another_folder_to_score(tmp_path):
    folder, _ = toy_run(tmp_path / "run")
    write_corpus(tmp_path, PAIRS, ["val"])
    assert scoring._parts(folder, asked(data=tmp_path)) == {"val": PAIRS}


@pytest.mark.slow
def test_a_trained_model_is_scored_as_its_training_did(trained, out, capsys):
    translator("score", "--out", out, "--sentences", 20)
    found = result(capsys.readouterr().out)
    assert found["runs"] == {
        str(out): {"val": json.loads(trained.output.split("result: ")[1])["bleu"]}
    }
