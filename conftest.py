"""Settings for the whole suite: its tiers, the longest files first, names for docstring examples,
and the same seed at the start of each test.

The quick tier runs the first case of each test function that is not marked `slow`, and the cases
marked `quick`; the full one runs everything but what is marked `nightly`.
"""

import ast
import contextlib
import gc
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests compile more than they compute: XLA without LLVM's optimizations takes two thirds.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # the processes share the cores: a thread for each
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        os.environ.setdefault(name, "1")

if sys.__stdin__ is None:  # closed: packages ask for its encoding
    sys.__stdin__ = open(os.devnull, encoding="utf-8")

import keras
import numpy as np
import pytest

import exercises
import tests.helpers.tensors  # noqa: F401  (has PyTorch's tensors give NumPy their numbers)
import tfattn

pytest_plugins = ["tests.helpers.browser", "tests.helpers.started"]

TESTS = Path(__file__).resolve().parent / "tests"

# Files that take long, the longest first. Handed out last, one of them would keep one process
# busy and the others idle.
LONG = (
    "test_export.py",
    "core/test_dispatch.py",
    "distributed/test_updates.py",
    "conformance/test_saving.py",
    "conformance/test_graph.py",
    "layers/test_attention_positions.py",
    "core/test_blockwise.py",
    "conformance/test_masks.py",
    "convert/test_onnx.py",
    "translator/test_run.py",
    "conformance/test_symbolic.py",
    "test_ecosystem.py",
    "models/test_quantization.py",
    "distributed/test_layouts.py",
)

LEFT_OUT = pytest.StashKey[int]()

ABOUT_TENSORFLOW = "about TensorFlow: tf.function, SavedModel, tf.data, or the streamed path"

# TensorFlow's own path. It is imported only where TensorFlow is the backend.
ONLY_TENSORFLOW = ("tfattn/core/engine/tensorflow", "tfattn/training/streamed")


def pytest_addoption(parser):
    parser.addoption(
        "--full",
        action="store_true",
        help="run every case and the tests marked slow, not the quick tier alone",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help="run the quick tier alone, of files and tests that are named too",
    )


def pytest_configure(config):
    # pytest-xdist would hand out first the files of the most tests, and last the long runs, which
    # are few.
    config.option.loadscopereorder = False
    config.stash[LEFT_OUT] = 0


def pytest_runtest_setup(item):
    if item.get_closest_marker("tensorflow") and keras.backend.backend() != "tensorflow":
        pytest.skip(ABOUT_TENSORFLOW)


def pytest_ignore_collect(collection_path):
    path = collection_path.relative_to(TESTS.parent).as_posix()
    is_hidden = keras.backend.backend() != "tensorflow" and path.startswith(ONLY_TENSORFLOW)
    return is_hidden or None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):
    found = yield
    # A file that is about TensorFlow as a whole may need it for its imports.
    if found and keras.backend.backend() != "tensorflow" and _is_marked(file_path):
        return [_FileAboutTensorFlow.from_parent(parent, path=file_path)]
    return found


class _FileAboutTensorFlow(pytest.File):
    def collect(self):
        pytest.skip(f"the whole file is {ABOUT_TENSORFLOW}", allow_module_level=True)


def _is_marked(path):
    """Whether the file's `pytestmark` names the marker `tensorflow`."""
    return any(
        isinstance(line, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == "pytestmark" for name in line.targets)
        and "pytest.mark.tensorflow" in ast.unparse(line.value)
        for line in ast.parse(path.read_text(encoding="utf-8")).body
    )


def pytest_itemcollected(item):
    # `pytest -k field_note_05` runs the tests of row 5 of `docs/field-notes.md`.
    from tests.helpers import field_notes

    item.extra_keyword_matches.update(field_notes.keywords_of(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if not config.option.markexpr:
        _leave_out(config, items)
    yield  # here another plugin may shuffle them, so that a first case would not be the first
    places = {TESTS / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.resolve(), len(LONG)))


def _leave_out(config, items):
    kept, left_out, begun = [], [], set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        is_first = function not in begun
        begun.add(function)
        if item.get_closest_marker("nightly"):
            runs = _named(item) and not (config.option.full or config.option.quick)
        else:
            runs = (
                config.option.full
                or (_named(item) and not config.option.quick)
                or (
                    (is_first or item.get_closest_marker("quick"))
                    and item.get_closest_marker("slow") is None
                )
            )
        (kept if runs else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    config.stash[LEFT_OUT] = len(left_out)
    items[:] = kept


def _named(item):
    """Whether the command line names this item's file, or the item: what is named runs."""
    here = item.config.invocation_params.dir
    for argument in item.config.args:
        path, *parts = argument.split("::")
        node = "::".join([str(item.path), *item.nodeid.split("::")[1:]])
        wanted = "::".join([str((here / path).resolve()), *parts])
        if node == wanted or node.startswith((f"{wanted}::", f"{wanted}[")):
            return True
    return False


# Under pytest-xdist each process collects for itself, and tells the one that reports.


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    left_out = getattr(node, "workeroutput", {}).get("left_out", 0)
    node.config.stash[LEFT_OUT] = max(node.config.stash[LEFT_OUT], left_out)


def pytest_terminal_summary(terminalreporter, config):
    if left_out := config.stash[LEFT_OUT]:
        terminalreporter.write_line(
            f"{left_out} tests left out; pytest --full runs all but the nightly ones"
        )


def pytest_collection_finish():
    _freeze()


@pytest.fixture(autouse=True, scope="module")
def _freeze_what_a_file_leaves():
    yield
    _freeze()


def _freeze():
    """Takes what is alive out of later collections: modules, layers that tests share, compiled
    functions. They would be looked through again and again, a quarter of the time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_seed_for_every_test():
    keras.utils.set_random_seed(20170612)


@pytest.fixture
def dense_path():
    """For tests whose graphs need not hold both paths of the engine, see `tests.helpers.paths`."""
    from tests.helpers import paths

    with paths.dense():
        yield


@pytest.fixture(autouse=True)
def _docstrings(request):
    """Names for docstrings; and their searches uncompiled, since each runs but once. `tf.data`, of
    which others have examples, warns of that.
    """
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    public = {name: getattr(tfattn, name) for name in tfattn.__all__}
    names = request.getfixturevalue("doctest_namespace")
    names.update(public, exercises=exercises, keras=keras, np=np, tfattn=tfattn)
    from tests.helpers import searches

    compiled = {"data", "training"} & {*request.node.path.parts}
    with contextlib.nullcontext() if compiled else searches.eagerly():
        yield
