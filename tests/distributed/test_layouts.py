"""A Transformer whose weights are split over devices, on the eight that a CPU can stand for."""

import json
import math
import re

import numpy as np
import pytest

from tests.distributed.job import needs
from tests.helpers.processes import printed

pytestmark = [pytest.mark.slow, needs("jax")]  # which runs on several devices

LAYOUTS = __file__.replace("test_layouts", "layouts")
DEVICES = 4  # along the axis of the model


@pytest.mark.parametrize(
    "case, matrices", [("own", 19), pytest.param("shared", 17, marks=pytest.mark.nightly)]
)
def test_split_model_learns_as_a_whole_one_and_a_device_holds_a_quarter_of_it(case, matrices):
    whole, split = json.loads(printed(LAYOUTS, case).splitlines()[-1])
    assert whole["losses"][-1] < whole["losses"][0]
    np.testing.assert_allclose(split["losses"], whole["losses"], rtol=1e-5)
    assert all(size == part for size, part in whole["parts"].values())

    quartered = r"kernel|embeddings|(query|key|value|inner)[_/]bias"
    if case == "own":
        quartered += r"|model[_/]output[_/]bias"
    for name, (size, part) in split["parts"].items():
        devices = DEVICES if re.search(quartered, name) else 1
        assert math.prod(size) == devices * math.prod(part), name
    names = [name for name in split["parts"] if re.search("kernel|embeddings", name)]
    assert len([name for name in names if name.startswith("model/")]) == matrices
    assert len(names) == 3 * matrices  # Adam keeps two averages of each
