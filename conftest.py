"""Settings for the whole suite: docstring examples find their names, and each test starts from the same seed."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")

import keras
import numpy as np
import pytest

import tfattn


@pytest.fixture(autouse=True)
def _same_seed_for_every_test():
    keras.utils.set_random_seed(20170612)


@pytest.fixture(autouse=True)
def _names_in_docstrings(doctest_namespace):
    public = {name: getattr(tfattn, name) for name in tfattn.__all__}
    doctest_namespace.update(public, keras=keras, np=np, tfattn=tfattn)
