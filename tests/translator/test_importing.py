"""A published translator becomes a run: all commands work on it, and a training goes on from it."""

import json
import random
import re
import shutil

import numpy as np
import pytest

import tfattn
from tests.convert import marian_folders
from tests.convert.published import write_published
from tests.translator.command import result, status, translator, write_corpus
from tfattn import convert, plot
from tfattn.translator.folder import Folder
from tfattn.translator.presets import PRESETS

LINES = ["baké. fuma", ">>fra<< lo", "re"]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A folder with a published translator, and `run`, what `import` made of it."""
    folder = tmp_path_factory.mktemp("imported")
    (folder / "published").mkdir()
    write_published(folder / "published")
    languages = ("--languages", "en", "de")
    translator("import", folder / "published", *languages, "--out", folder / "run")
    assert Folder(folder / "run").read_record()["settings"] == {"languages": ["en", "de"]}
    return folder


@pytest.mark.slow
def test_imported_run_translates_as_the_published_folder(imported, tmp_path, monkeypatch, capsys):
    loaded = Folder(imported / "run").load_model()  # once, with its compiled functions
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: loaded)
    (tmp_path / "lines").write_text("\n".join(LINES), encoding="utf-8")
    limit = ("--max-length", 9)
    translator("translate", tmp_path / "lines", *limit, "--out", imported / "run")
    found = capsys.readouterr().out
    model, *words = convert.load_marian(imported / "published")
    search = convert.marian_search(imported / "published")
    wanted = tfattn.translate(model, LINES, *words, search=search, max_length=9)
    assert found == "".join(f"{line}\n" for line in wanted) and len(set(wanted)) > 1
    best = ("--beam", 6, "--n-best", 2)
    translator("translate", tmp_path / "lines", *best, *limit, "--out", imported / "run")
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "2"] * len(LINES)
    assert [row[2] for row in rows[::2]] == wanted
    write_corpus(tmp_path, list(zip(LINES, wanted, strict=True)), ["val"])
    translator("score", "--data", tmp_path, *limit, "--out", imported / "run")
    shown = result(capsys.readouterr().out)
    (scores,), (own,) = shown["runs"].values(), shown["searches"].values()
    assert own == repr(search)
    assert [scores["val"][name]["score"] for name in ("BLEU", "chrF2")] == [100.0, 100.0]


@pytest.mark.slow
def test_the_run_is_exported_and_shown(imported):
    pytest.importorskip("ctranslate2")
    translator("export", "--to", "ctranslate2", "--out", imported / "run")
    model, (source, target) = Folder(imported / "run").load_model()
    served = convert.CTranslate2(imported / "run" / "ctranslate2")
    wanted = tfattn.translate(model, LINES, source, target, max_length=9)
    assert served.translate(LINES, max_length=9) == wanted
    ids = np.array([[*source.encode(LINES[0]), source.end_id]])
    shown = [source.words[index] for index in ids[0]]
    weights = tfattn.attention_weights(model, (ids, np.array([[target.begin_id, 5]])))
    assert '"▁fu"' in plot.viewer(weights, shown, ["▁", "lo"]).page


@pytest.mark.slow
def test_import_failed_can_be_repeated_and_a_run_is_not_written_over(
    imported, refused, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    published, said = imported / "published", "already contains a run. Use --out to choose another"
    assert said in refused("import", published, "--out", imported / "run", folder=tmp_path)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").touch()
    error = refused("import", damaged, "--out", tmp_path / "new", folder=tmp_path)
    assert "`config.json` must contain a JSON object" in error
    assert list(tmp_path.iterdir()) == [damaged]
    command = ("import", published, "--out", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "save_model", full)
        assert "No space left" in refused(*command, folder=tmp_path)
    translator(*command)
    assert said in refused(*command, folder=tmp_path)
    Folder(tmp_path / "begun").lock()
    Folder(tmp_path / "begun").add_to_record(settings={}, sentences="a")  # of a training
    assert said in refused(*command[:-1], tmp_path / "begun", folder=tmp_path)


@pytest.mark.slow
def test_imported_run_refuses_plain_text_and_a_page(imported, refused, tmp_path):
    run = ("--out", imported / "run")
    said = "--raw: the model in .* reads and writes plain text already"
    (tmp_path / "lines").write_text("lo\n", encoding="utf-8")
    assert re.search(said, refused("translate", "lines", "--raw", *run, folder=tmp_path))
    said = refused("export", "--to", "page", *run, folder=imported / "run")
    assert "`source_vocabulary` must be one of Vocabulary, SubwordVocabulary" in said


@pytest.mark.slow
def test_import_languages_and_search_are_the_published_ones(imported, tmp_path):
    published = shutil.copytree(imported / "published", tmp_path / "published")
    settings = published / "generation_config.json"
    entries = {**json.loads(settings.read_text()), "num_beams": 1, "forced_bos_token_id": 8}
    settings.write_text(json.dumps(entries))
    translator("import", published, "--out", tmp_path / "run")
    record = Folder(tmp_path / "run").read_record()
    assert record["settings"] == {"languages": ["en", "fr"]}
    assert record["search"] == {"first_token": 9}


def pairs():
    """Two pairs of four words."""
    rng = random.Random(1)
    own = marian_folders.words(1)
    return [tuple(" ".join(rng.choices(own, k=4)) for _ in range(2)) for _ in range(2)]


QUICK = PRESETS["transformer"]["finetune"]._replace(
    tokens=600, epochs=14, peak=0.02, cooldown=1, warmup=20, ema_window=5
)


@pytest.mark.nightly
@pytest.mark.usefixtures("dense_path")
def test_imported_run_is_trained_further(imported, tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path, 40 * pairs(), ["train"])
    write_corpus(tmp_path, pairs(), ["val"])
    monkeypatch.setitem(PRESETS["transformer"], "finetune", QUICK)
    monkeypatch.chdir(tmp_path)
    run = imported / "run"
    train = ("train", "--init", run, "--data", tmp_path, "--out", "tuned")
    translator(*train)
    shown = capsys.readouterr().out
    before = float(shown.split("validation loss before training ")[1].split()[0])
    tuned = result(shown)
    assert tuned["bleu"] > 60 and tuned["val_loss"] < before - 1  # untrained, hardly any word fits
    searches = [Folder(path).read_record()["search"] for path in (tmp_path / "tuned", run)]
    assert searches[0] == searches[1] and searches[0]["num_beams"] == 6
    model, words = Folder(tmp_path / "tuned").load_model()
    assert [each.words for each in words] == [each.words for each in Folder(run).load_model()[1]]
    assert status(*train, "--resume", "--init", tmp_path) == 1
    assert "--init: the run in tuned was started with" in capsys.readouterr().err
