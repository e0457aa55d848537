"""Scores of one or several trained models, on files and on the grammar."""

import argparse
import importlib
import re
import statistics
from pathlib import Path

import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from tests.translator.command import result, status, translator, write_corpus
from tfattn import data, decoding
from tfattn.translator import scoring, translating
from tfattn.translator.folder import Folder, fingerprint

SHARED = (data.Vocabulary(["a", "b"]),) * 2
PAIRS = [("a b c d e", "a b c d e"), ("a b c d f", "a b c d f")]


@pytest.fixture
def echoes(monkeypatch, tmp_path):
    """Folders of runs whose models write their source, with a word fewer in each run."""
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path, PAIRS, ["val", "test"])

    def translate(model, sentences, *_):
        kept = 5 - int(str(model)[-1])
        return [" ".join(sentence.split()[:kept]) for sentence in sentences]

    monkeypatch.setattr(translating, "translate", translate)
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (folder.path, None))
    for seed in range(3):
        (tmp_path / f"seed{seed}").mkdir()
        Folder(tmp_path / f"seed{seed}").add_to_record(data=str(tmp_path))
    return ["seed0", "seed1"]


FULL = {"score": 100.0, "interval": [100.0, 100.0]}
SAME = {"BLEU": FULL, "chrF2": FULL}


def signatures(tokenize="none"):
    metrics = {"BLEU": sacrebleu.metrics.BLEU(tokenize=tokenize), "chrF2": sacrebleu.metrics.CHRF()}
    found, _ = PairedTest([("run", ["a"])], metrics, [["a"]], test_type="bs")()
    return {name: str(signature) for name, signature in found.items()}


def cell(score):
    low, high = score["interval"]
    return f"{score['score']:.2f} [{low:.2f}, {high:.2f}]"


def test_score_has_a_row_for_each_part_and_signatures(echoes, capsys):
    translator("score", "--out", "seed0", "seed0", "--parts", "val", "test", "val", "--beam", 5)
    output = capsys.readouterr().out
    head, *rows, bleu, chrf, _ = output.splitlines()
    assert head.split() == ["run", "part", "BLEU", "chrF2"]
    full = "100.00 [100.00, 100.00]"
    assert [re.split("  +", row) for row in rows] == [
        ["seed0", part, full, full] for part in ("val", "test")
    ]
    wanted = signatures()
    assert [bleu, chrf] == [f"{name}: {signature}" for name, signature in wanted.items()]
    assert "|tok:none|" in bleu and "|seed:12345|" in chrf
    runs = {"seed0": {"val": SAME, "test": SAME}}
    searches = {"seed0": repr(decoding.BeamSearch(5))}
    options = {"searches": searches, "max_length": None, "sentences": None}
    assert result(output) == {**options, "runs": runs, "signatures": wanted}


def test_score_result_contains_the_search(echoes, capsys):
    own = {"num_beams": 6, "length_penalty": 1.0, "early_stopping": False}
    Folder(Path("seed1")).add_to_record(search=own)

    def scored(*options):
        translator("score", "--out", *options)
        shown = capsys.readouterr()
        return result(shown.out)["searches"], shown.err

    found, said = scored(*echoes)
    both = [decoding.GreedySearch(), decoding.PooledBeamSearch(**own)]
    assert list(found.values()) == list(map(repr, both))
    assert said.startswith("note: the runs are translated by different searches, which")
    found, said = scored("seed1", "--beam", 2, "--min-length", 3)
    search = decoding.PooledBeamSearch(2, early_stopping=False, rules=[decoding.rules.MinLength(3)])
    assert found == {"seed1": repr(search)} and said == ""


def test_score_interval_is_within_the_scale_and_of_fewer_samples_of_many_lines(monkeypatch):
    # Without the only line of four words, BLEU is 0.
    lines = [*11 * ["a"], "a b c d"]
    pairs = list(zip(lines, lines, strict=True))
    scores, _ = scoring._scores(scoring._metrics("none"), lines, pairs, lines)
    low, high = scores["BLEU"]["interval"]
    assert 0 <= low < scores["BLEU"]["score"] == high == 100
    monkeypatch.setattr(scoring, "RESAMPLED", 400)
    for sentences, resamples in [(2, 200), (3, 133), (400, 100), (1, 400)]:
        pairs = (PAIRS * sentences)[:sentences]
        lines = [target for _, target in pairs]
        scores, found = scoring._scores(scoring._metrics("none"), lines, pairs, lines)
        assert all(f"|bs:{resamples}|" in one for one in found.values()) and scores == SAME


@pytest.mark.slow
def test_score_of_chinese_has_a_tokenizer(echoes, tmp_path, capsys):
    write_corpus(tmp_path, [("我很喜欢猫。", "我很喜欢猫。")], ["val"])
    for tokenize, bleu in [("zh", 100.0), ("char", 100.0), ("none", 0.0)]:
        translator("score", "--out", "seed0", "--tokenize", tokenize)
        found = result(capsys.readouterr().out)
        scores = found["runs"]["seed0"]["val"]
        assert (scores["BLEU"]["score"], scores["chrF2"]["score"]) == (bleu, 100.0)
        assert found["signatures"] == signatures(tokenize)


def test_score_missing_mecab_or_part_is_named_before_any_translation(echoes, monkeypatch, capsys):
    for language in ("ja", "ko"):
        tokenizer = importlib.import_module(f"sacrebleu.tokenizers.tokenizer_{language}_mecab")
        monkeypatch.setattr(tokenizer, "MeCab", None)
        assert status("score", "--out", "seed0", "--tokenize", f"{language}-mecab") == 1
        output, error = capsys.readouterr()
        assert output == "" and error.startswith(f"error: --tokenize {language}-mecab: ")
        assert f"sacrebleu[{language}]" in error and error.count("\n") == 1
    assert status("score", "--out", *echoes, "--parts", "val", "tset") == 2
    shown = capsys.readouterr()
    assert "tset.en" in shown.err and shown.out == ""


def test_score_of_several_runs_has_mean_and_standard_deviation(echoes, capsys):
    translator("score", "--out", *echoes)
    output = capsys.readouterr().out
    found = result(output)
    first, second = (run["val"] for run in found["runs"].values())
    assert first == SAME and all(0 < score["score"] < 100 for score in second.values())
    both = {name: (100.0, second[name]["score"]) for name in SAME}
    mean = {name: round(sum(scores) / 2, 2) for name, scores in both.items()}
    deviation = {name: round(statistics.stdev(scores), 2) for name, scores in both.items()}
    assert found["mean"] == {"val": mean} and found["standard deviation"] == {"val": deviation}
    rows = [re.split("  +", line) for line in output.splitlines()[1:-3]]
    assert rows == [
        *([name, "val", *map(cell, found["runs"][name]["val"].values())] for name in echoes),
        *(
            [name, "val", *(f"{score:.2f}" for score in found[name]["val"].values())]
            for name in ("mean", "standard deviation")
        ),
    ]


@pytest.fixture
def varied(echoes, tmp_path):
    """Sentences of different lengths, of which the runs keep at most 5 and 4 words."""
    rows = [" ".join("abcdefgh"[: 3 + i % 6]) for i in range(60)]
    write_corpus(tmp_path, [(row, row) for row in rows], ["val"])
    return rows


@pytest.mark.slow
def test_score_compared_is_the_paired_bootstrap_of_sacrebleu(varied, capsys):
    translator("score", "--compare", "seed0", "--out", "seed1", "seed0")
    output = capsys.readouterr().out
    found = result(output)
    metrics = {"BLEU": sacrebleu.metrics.BLEU(tokenize="none"), "chrF2": sacrebleu.metrics.CHRF()}
    systems = [
        (f"seed{seed}", [" ".join(row.split()[: 5 - seed]) for row in varied]) for seed in range(2)
    ]
    named, wanted = PairedTest(systems, metrics, [varied], test_type="bs")()
    assert list(found["runs"]) == ["seed0", "seed1"] and found["compare"] == "seed0"
    for name, signature in named.items():
        assert found["signatures"][name] == str(signature) and "|seed:12345|" in str(signature)
        for place, (run, other) in enumerate(zip(found["runs"], wanted[name], strict=True)):
            score = found["runs"][run]["val"][name]
            assert score["score"] == round(other.score, 2)
            interval = [other.mean - other.ci, other.mean + other.ci]
            assert score["interval"] == pytest.approx(interval, abs=0.006)
            assert score["interval"][0] < score["score"] < score["interval"][1]
            if not place:
                assert "p_value" not in score
                continue
            assert 0 < score["p_value"] == round(other.p_value, 4) < 0.05
            assert f"{cell(score)} p={score['p_value']:.3f}" in output
    translator("score", "--compare", "seed1", "--out", "seed1")  # equal translations
    (scores,) = result(capsys.readouterr().out)["runs"]["seed1"].values()
    assert scores["BLEU"].keys() == {"score", "interval"}


def test_score_of_other_sentences_is_not_compared(echoes, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    write_corpus(tmp_path / "other", PAIRS[::-1], ["val"])
    Folder(tmp_path / "seed1").add_to_record(data=str(tmp_path / "other"))
    assert status("score", "--compare", "seed0", "--out", "seed1") == 1
    said = "seed0 and seed1 have other sentences of val. Use --data to score both"
    shown = capsys.readouterr()
    assert said in shown.err and shown.out == ""
    translator("score", "--compare", "seed0", "--out", "seed1", "--data", tmp_path)


@pytest.mark.slow
def test_score_ensemble_is_one_run_of_the_same_sentences(echoes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (folder.path, SHARED))
    for name in echoes:
        Folder(tmp_path / name).save_vocabularies(SHARED)
    monkeypatch.setattr(decoding, "Ensemble", lambda models: "+".join(map(str, models)))
    translator("score", "--ensemble", *echoes, "--compare", "seed0")
    found = result(capsys.readouterr().out)["runs"]
    assert list(found) == ["seed0", "seed0 + seed1"] and found["seed0"] == {"val": SAME}
    assert 0 < found["seed0 + seed1"]["val"]["BLEU"]["score"] < 100
    (tmp_path / "other").mkdir()
    write_corpus(tmp_path / "other", PAIRS[::-1], ["val"])
    Folder(tmp_path / "seed1").add_to_record(data=str(tmp_path / "other"))
    assert status("score", "--ensemble", *echoes) == 1
    said = "error: seed0 and seed1 have other sentences of val. Use --data"
    assert capsys.readouterr().err.startswith(said)


def test_score_pairs_are_a_log_probability_each(echoes, tmp_path, monkeypatch, capsys):
    def log_probabilities(model, pairs, *words):
        assert words == (SHARED[0], SHARED[1])
        return [-len(source) - 0.5 * len(target) for source, target in pairs]

    monkeypatch.setattr(scoring.decoding, "log_probabilities", log_probabilities)
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (None, SHARED))
    (tmp_path / "pairs").write_text("a b\tc\n\t\n", encoding="utf-8")
    translator("score", "--pairs", "pairs", "--out", "seed0")
    output, error = capsys.readouterr()
    assert output == "-3.5000\n0.0000\n"
    note = "note: the target vocabulary lacks words, which are read as <unk>: {} (line 1). A model"
    assert note.format("'c'") in error and "'b'" not in error
    (tmp_path / "pairs").write_text("a\tb\na b\n", encoding="utf-8")
    assert status("score", "--pairs", "pairs", "--out", "seed0") == 1
    said = "error: line 2 of pairs must be a sentence, a tab and its translation\n"
    assert capsys.readouterr() == ("", said)

    def too_long(*_):
        raise ValueError("log_probabilities: `pairs[1]` must be short. Received: pairs[1]='b...'")

    monkeypatch.setattr(scoring.decoding, "log_probabilities", too_long)
    (tmp_path / "pairs").write_text("a\tb\nb\ta\n", encoding="utf-8")
    assert status("score", "--pairs", "pairs", "--out", "seed0") == 1
    said = "error: lines 1 to 2: log_probabilities: line 2 must be short. Received: line 2='b...'\n"
    assert capsys.readouterr() == ("", said)


def toy_run(path):
    """The folder of a run of the grammar, without a model."""
    path.mkdir()
    pairs = data.toy_translation(70, seed=3)
    train, validation = data.split_pairs(pairs, seed=3)
    folder = Folder(path)
    folder.add_to_record(
        data=None,
        settings={"pairs": 70, "seed": 3, "languages": ["en", "fr"]},
        sentences=fingerprint(line for pair in (*train, *validation) for line in pair),
    )
    return folder, validation


def asked(**entries):
    nothing = {"data": None, "parts": ["val"], "sentences": None}
    return argparse.Namespace(**{**nothing, **entries})


def test_read_parts_of_the_grammar_are_held_out_and_data_selects_others(tmp_path):
    folder, validation = toy_run(tmp_path / "run")
    assert scoring.read_parts(folder, asked()) == {"val": validation}
    assert scoring.read_parts(folder, asked(sentences=2)) == {"val": validation[:2]}
    said = "--parts: there is no part test of the grammar.*, but val$"
    with pytest.raises(ValueError, match=said):
        scoring.read_parts(folder, asked(parts=["val", "test"]))
    folder.add_to_record(sentences="others")
    with pytest.raises(ValueError, match="the grammar has changed since the run in .* was trained"):
        scoring.read_parts(folder, asked())
    write_corpus(tmp_path, PAIRS, ["val"])
    (tmp_path / "val.de").rename(tmp_path / "val.fr")  # the language of the grammar
    assert scoring.read_parts(folder, asked(data=tmp_path)) == {"val": PAIRS}
