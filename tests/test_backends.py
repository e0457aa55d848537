"""One model computes, trains, is judged and searched alike on every backend that is installed."""

import functools
import importlib.util
import json

import numpy as np
import pytest

from tests.helpers import backend_numbers
from tests.helpers.processes import printed
from tests.helpers.tensors import BACKEND

OTHERS = [
    name
    for name in ("tensorflow", "jax", "torch")
    if name != BACKEND and importlib.util.find_spec(name) is not None
]
# The bias of a key moves no softmax: its gradient is rounding.
WITHOUT_A_GRADIENT = "key/bias"


@functools.cache
def numbers_of_another(backend):
    found = printed("-m", "tests.helpers.backend_numbers", KERAS_BACKEND=backend)
    return json.loads(found.splitlines()[-1])


@functools.cache
def numbers_here(name):
    return backend_numbers.numbers_of(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", backend_numbers.MODELS)
@pytest.mark.parametrize("backend", OTHERS)
def test_training_and_judging_give_the_same_numbers(backend, name):
    here, there = numbers_here(name), numbers_of_another(backend)[name]
    assert here.keys() == there.keys() and len(here) > 20
    for key, wanted in here.items():
        if not key.endswith(WITHOUT_A_GRADIENT):
            np.testing.assert_allclose(there[key], wanted, rtol=1e-3, atol=1e-4, err_msg=key)
