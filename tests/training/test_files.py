"""Files that are replaced at once, and the weights of the best epoch that are kept so."""

import pathlib
import re

import filelock
import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.processes import locking, printed
from tfattn import data, plot, training
from tfattn._files import replacing
from tfattn.training.integrity import lock


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    with replacing(path) as beside:
        beside.write_text("old")
    with pytest.raises(OSError, match="full"), replacing(path) as beside:
        beside.write_text("ne")
        raise OSError("full")
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == [path.name]
    with replacing(path) as beside:
        assert beside.suffix == path.suffix and beside.parent == path.parent
        beside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to("elsewhere")
    for text in ("new", "newer"):
        with replacing(tmp_path / "link") as beside:
            beside.write_text(text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "elsewhere").read_text() == text


HALF = "a\udc80\\"  # half a surrogate pair, as a terminal of another encoding may pass in


def test_half_a_character_is_written_and_read_back(tmp_path):
    page = plot.viewer({"self_attention": np.ones((1, 1, 1))}, [HALF], title=HALF)
    page.save(tmp_path / "page.html")
    assert '"a\\udc80\\\\"' in (tmp_path / "page.html").read_text("utf-8")
    words = data.Vocabulary([HALF, "é"])
    words.save(tmp_path / "words.json")
    assert data.load_vocabulary(tmp_path / "words.json").words == words.words


def full(*_):
    raise OSError("full")


SAVERS = {
    "Viewer": lambda path: plot.Viewer("page").save(path),
    "Vocabulary": data.Vocabulary(["a"]).save,
    "SubwordVocabulary": lambda path: data.SubwordVocabulary.from_sentences(["a"], 9).save(path),
}


@pytest.mark.parametrize("saver", SAVERS)
def test_a_file_stays_until_the_new_one_is_whole(saver, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr("os.fsync", full)  # the new one is written by then
    with pytest.raises(OSError, match="full"):
        SAVERS[saver](path)
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["file"]


# What may open a file to write: the module of files, and what writes into the path that it gives.
WRITES = re.compile(
    r"""open\([^)]*["'][wax]b?["']|\.write_(?:text|bytes)\(|savefig\((?!path\)|")|np\.savez?\w*\("""
)


def test_every_file_of_the_package_is_written_beside_the_old_one_first():
    found = []
    for path in sorted(pathlib.Path(tfattn.__file__).parent.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            code = line.strip()
            if "os.devnull" in code:
                continue
            if WRITES.search(code) and not code.startswith((">>>", "...")):
                if "unfinished" not in "".join(lines[number - 3 : number + 1]):
                    found.append(f"{path.name}: {code}")
    assert found == []


def test_a_file_of_which_nothing_was_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError, match=r"unfinished\.file\.txt"), replacing(path):
        pass
    assert path.read_text() == "old"


@pytest.mark.parametrize("name, error", [("no/x", FileNotFoundError), ("", IsADirectoryError)])
def test_an_impossible_path_is_refused_before_anything_is_computed(tmp_path, name, error):
    with pytest.raises(error, match=f"{tmp_path}.*(?<!unfinished.x)'$"), replacing(tmp_path / name):
        pytest.fail("computed")


def test_a_process_that_dies_leaves_its_lock_to_others(tmp_path):
    path = tmp_path / "file"
    with locking(path) as is_locked, pytest.raises(filelock.Timeout):
        assert is_locked
        lock(path)
    mine, again = lock(path), lock(path)  # which one process may have twice
    for each in (mine, again):
        with locking(path) as is_locked:
            assert not is_locked
        each.release()
    with locking(path) as is_locked:
        assert is_locked


NAN = float("nan")


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
def test_the_weights_of_the_best_epoch_are_kept(tmp_path, values, options, kept, best):
    """Each epoch has its value as weights."""
    path = tmp_path / "best.weights.h5"
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    keep, found = training.BestWeights(path, "val_bleu", **options), []
    keep.set_model(model)

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
    assert keep.best == best and [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_log_that_is_not_there_is_named(tmp_path):
    keep = training.BestWeights(tmp_path / "best.weights.h5", "val_blue")
    with pytest.raises(
        ValueError, match=r"BestWeights: `monitor` must be one of \['loss'\]. Received: monitor='va"
    ):
        keep.on_epoch_end(0, {"loss": 1.0})


def test_a_resumed_run_refuses_damaged_best_weights(tmp_path):
    path = tmp_path / "best.weights.h5"
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    keep = training.BestWeights(path, "loss")
    keep.set_model(model)
    keep.on_epoch_end(0, {"loss": 1.0})
    assert training.BestWeights(path, "loss", best=1.0).best == 1.0
    whole = path.read_bytes()
    kernel = whole.index(keras.ops.convert_to_numpy(model.layers[0].kernel).tobytes())
    for content in (whole[:kernel] + bytes(2) + whole[kernel + 2 :], whole[:-2], whole[:9], b""):
        path.write_bytes(content)
        training.BestWeights(path, "loss")  # a new run, which will write over it
        with pytest.raises(ValueError, match="BestWeights: `filepath` must be an intact file of"):
            training.BestWeights(path, "loss", best=1.0)


FULL_DISK = """
import resource, keras
from tfattn import training
model = keras.Sequential([keras.Input((9,)), *(keras.layers.Dense(99) for _ in range(6))])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # bytes of a file
keep = training.BestWeights("best.weights.h5", "loss")
keep.set_model(model)
try:
    keep.on_epoch_end(0, {"loss": 1.0})
except OSError:
    print("refused", keep.best)
"""


@pytest.mark.slow
def test_best_weights_that_do_not_fit_on_the_disk_raise_and_leave_nothing(tmp_path):
    pytest.importorskip("resource", reason="for limits of POSIX")
    assert printed("-c", FULL_DISK, folder=tmp_path, warm=True) == "refused None\n"
    assert not list(tmp_path.iterdir())
