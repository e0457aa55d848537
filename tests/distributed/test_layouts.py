"""A Transformer whose weights are split over devices, on the eight that a CPU can stand for."""

import importlib.util
import json
import math
import re

import numpy as np
import pytest

from tests.processes import printed

needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="needs jax, which runs on several devices"
)
LAYOUTS = __file__.replace("test_layouts", "layouts")
DEVICES = 4  # along the axis of the model
CASES = ("own", "shared", "by width")


@pytest.fixture(scope="module")
def found():
    return json.loads(printed(LAYOUTS).splitlines()[-1])


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_model_that_is_split_has_the_losses_of_one_device(found, case):
    wanted = found["one"]["shared" if case == "shared" else "own"]["losses"]
    assert wanted[3] < wanted[0]
    np.testing.assert_allclose(found[case]["losses"], wanted, rtol=1e-5)


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_device_holds_a_quarter_of_what_is_split_and_of_its_averages(found, case):
    quartered = r"kernel|embeddings|(query|key|value|inner)[_/]bias"
    if case == "own":
        quartered += r"|model[_/]output[_/]bias"
    parts = found[case]["parts"]
    for name, (whole, part) in parts.items():
        devices = DEVICES if re.search(quartered, name) else 1
        assert math.prod(whole) == devices * math.prod(part), name
    matrices = [name for name in parts if re.search("kernel|embeddings", name)]
    of_model = [name for name in matrices if name.startswith("model/")]
    assert len(of_model) == {"own": 19, "by width": 19, "shared": 17}[case]
    assert len(matrices) == 3 * len(of_model)  # Adam keeps two averages of each


@needs_jax
@pytest.mark.slow
def test_without_a_layout_a_device_holds_all(found):
    assert all(whole == part for whole, part in found["one"]["own"]["parts"].values())
