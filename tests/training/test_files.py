"""Files that are replaced at once, and the weights of the best epoch that are kept so.

Damaged ones: `tests/translator/test_damage.py`.
"""

import pathlib
import re

import filelock
import keras
import numpy as np
import pytest

import tfattn
from tests.helpers import processes, small_training
from tfattn import data, plot, training
from tfattn._files import replacing
from tfattn.training.backup import lock


def names(folder):
    return [each.name for each in folder.iterdir()]


def test_replacing_failed_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    with replacing(path) as beside:
        beside.write_text("old")
    with pytest.raises(OSError, match="full"), replacing(path) as beside:
        beside.write_text("ne")
        raise OSError("full")
    with pytest.raises(FileNotFoundError, match=r"unfinished\.file\.txt"), replacing(path):
        pass  # nothing is written
    assert path.read_text() == "old" and names(tmp_path) == [path.name]
    with replacing(path) as beside:
        assert beside.suffix == path.suffix and beside.parent == path.parent
        beside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and names(tmp_path) == [path.name]
    (tmp_path / "link").symlink_to("elsewhere")
    for text in ("new", "newer"):
        with replacing(tmp_path / "link") as beside:
            beside.write_text(text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "elsewhere").read_text() == text


@pytest.mark.parametrize("name, error", [("no/x", FileNotFoundError), ("", IsADirectoryError)])
def test_replacing_impossible_path_is_refused_before_anything_is_computed(tmp_path, name, error):
    with pytest.raises(error, match=f"{tmp_path}.*(?<!unfinished.x)'$"), replacing(tmp_path / name):
        pytest.fail("computed")


HALF = "a\udc80\\"  # half a surrogate pair, as a terminal of another encoding may pass in


def test_half_a_character_is_written_and_read_back(tmp_path):
    page = plot.viewer({"self_attention": np.ones((1, 1, 1))}, [HALF], title=HALF)
    page.save(tmp_path / "page.html")
    assert '"a\\udc80\\\\"' in (tmp_path / "page.html").read_text("utf-8")
    words = data.Vocabulary([HALF, "é"])
    words.save(tmp_path / "words.json")
    assert data.load_vocabulary(tmp_path / "words.json").words == words.words


SAVERS = {
    "Viewer": lambda path: plot.Viewer("page").save(path),
    "Vocabulary": data.Vocabulary(["a"]).save,
    "SubwordVocabulary": lambda path: data.SubwordVocabulary.from_sentences(["a"], 9).save(path),
}


@pytest.mark.parametrize("saver", SAVERS)
def test_save_interrupted_leaves_the_old_file(saver, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("full")

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr("os.fsync", full)  # the new one is written by then
    with pytest.raises(OSError, match="full"):
        SAVERS[saver](path)
    assert path.read_text() == "old" and names(tmp_path) == ["file"]


# What may open a file to write: the module of files, and what writes into the path that it gives.
WRITES = re.compile(
    r"""open\([^)]*["'][wax]b?["']|\.write_(?:text|bytes)\(|savefig\((?!path\)|")|np\.savez?\w*\("""
)


def test_package_writes_every_file_beside_the_old_one_first():
    found = []
    for path in sorted(pathlib.Path(tfattn.__file__).parent.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            code = line.strip()
            if WRITES.search(code) and not code.startswith((">>>", "...")):
                beside = "unfinished" in "".join(lines[number - 3 : number + 1])
                if not beside and "os.devnull" not in code:
                    found.append(f"{path.name}: {code}")
    assert found == []


def test_lock_of_a_process_that_dies_is_released(tmp_path):
    path = tmp_path / "file"
    with processes.locking(path) as is_locked, pytest.raises(filelock.Timeout):
        assert is_locked
        lock(path)
    mine, again = lock(path), lock(path)  # which one process may have twice
    for each in (mine, again):
        with small_training.locking(path) as is_locked:
            assert not is_locked
        each.release()
    with small_training.locking(path) as is_locked:
        assert is_locked


NAN = float("nan")


def dense(path, monitor="val_bleu", **options):
    """The callback and the model of a layer, to which it belongs."""
    model = keras.Sequential([keras.Input((9,)), keras.layers.Dense(99)])
    keep = training.BestWeights(path, monitor, **options)
    keep.set_model(model)
    return keep, model


@pytest.mark.parametrize(
    "values, options, kept, best",
    [
        ([3.0, 2.0, 5.0, 5.0, 4.0], {"better": max}, [3.0, 3.0, 5.0, 5.0, 5.0], 5.0),
        # The run's next life.
        ([4.0, 5.0, 6.0], {"better": max, "best": 5.0}, [-1.0, -1.0, 6.0], 6.0),
        ([3.0, 4.0, 2.0, 2.5], {}, [3.0, 3.0, 2.0, 2.0], 2.0),
        # A NaN is kept only until there is a number.
        ([NAN, NAN, 3.0, NAN], {"better": min}, [NAN, NAN, 3.0, 3.0], 3.0),
        ([NAN, NAN, 3.0, NAN], {"better": max}, [NAN, NAN, 3.0, 3.0], 3.0),
    ],
)
def test_best_weights_are_those_of_the_best_epoch(tmp_path, values, options, kept, best):
    """Each epoch has its value as weights."""
    path, found = tmp_path / "best.weights.h5", []
    keep, model = dense(path, **options)

    def set_all(value):
        model.set_weights([np.full_like(weights, value) for weights in model.get_weights()])

    set_all(-1.0)
    model.save_weights(path)
    for value in values:
        set_all(value)
        keep.on_epoch_end(0, {"val_bleu": value})
        model.load_weights(path)
        found.append(float(model.get_weights()[1][0]))
    np.testing.assert_array_equal(found, kept)
    assert keep.best == best and names(tmp_path) == [path.name]


def test_best_weights_without_their_log_or_on_a_full_disk_raise_and_leave_nothing(tmp_path):
    keep, _ = dense(tmp_path / "best.weights.h5", "val_blue")
    said = r"BestWeights: `monitor` must be one of \['loss'\]. Received: monitor='val_blue"
    with pytest.raises(ValueError, match=said):
        keep.on_epoch_end(0, {"loss": 1.0})
    resource = pytest.importorskip("resource", reason="for limits of POSIX")
    _, most = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, most))  # bytes of a file
    try:
        with pytest.raises(OSError, match="File too large"):
            keep.on_epoch_end(0, {"val_blue": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert keep.best is None and not names(tmp_path)
