"""Settings for the whole suite: the longest files come first, docstring examples find their names,
and each test starts from the same seed.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")

import keras
import numpy as np
import pytest

import tfattn

TESTS = Path(__file__).resolve().parent / "tests"

# Files that take minutes, the longest first. Handed out last, one of them would keep one process
# busy and the others idle.
LONG = (
    "demos/test_translation.py",
    "test_blockwise.py",
    "conformance/test_saving.py",
    "conformance/test_graph.py",
    "test_path_choice.py",
    "conformance/test_masks.py",
    "test_seq2seq.py",
    "demos/test_course.py",
    "test_blockwise_derivatives.py",
    "conformance/test_symbolic.py",
    "test_resume.py",
    "test_models_trained.py",
    "demos/test_translation_from_files.py",
)


def pytest_configure(config):
    # pytest-xdist would hand out first the files of the most tests, and last the long runs, which
    # are few.
    config.option.loadscopereorder = False
    gone = [name for name in LONG if not (TESTS / name).is_file()]
    if gone:
        raise pytest.UsageError(f"conftest.LONG: no such files: {', '.join(gone)}")


def pytest_collection_modifyitems(items):
    places = {TESTS / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.resolve(), len(LONG)))


@pytest.fixture(autouse=True)
def _same_seed_for_every_test():
    keras.utils.set_random_seed(20170612)


@pytest.fixture(autouse=True)
def _names_in_docstrings(doctest_namespace):
    public = {name: getattr(tfattn, name) for name in tfattn.__all__}
    doctest_namespace.update(public, keras=keras, np=np, tfattn=tfattn)
