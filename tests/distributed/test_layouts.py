"""A Transformer whose weights are split over devices, on the eight that a CPU can stand for."""

import importlib.util
import json
import math
import re

import keras
import numpy as np
import pytest

from tests.processes import printed
from tfattn import training

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


def mesh():
    devices = np.array([f"cpu:{i}" for i in range(6)])
    return keras.distribution.DeviceMesh((2, 3), ("rows", "parts"), devices=devices)


def test_a_layout_is_along_the_axis_that_is_named():
    layout = training.transformer_layout(mesh(), axis="parts")
    assert layout["model/decoder/block_3/cross_attention/attention_output/kernel"].axes == (
        *("parts", None, None),
    )
    assert layout["embedding/embeddings"].axes == ("parts", None)
    assert layout["my_model/decoder/final_norm/gamma"] is None


def test_gates_of_heads_and_of_networks_are_split_as_what_they_multiply():
    layout = training.transformer_layout(mesh(), axis="parts")
    for gate, like in (("self_attention/gate", "value"), ("feed_forward/gate", "inner")):
        peer = gate.replace("gate", like)
        for weight in ("kernel", "bias"):
            axes = layout[f"lm/decoder/block_0/{gate}/{weight}"].axes
            assert axes == layout[f"lm/decoder/block_0/{peer}/{weight}"].axes
            assert "parts" in axes


def test_what_is_no_mesh_or_no_axis_is_refused():
    said = "transformer_layout: `device_mesh` must be a keras.distribution.DeviceMesh. Received"
    with pytest.raises(ValueError, match=said):
        training.transformer_layout((2, 4))
    said = r"transformer_layout: `axis` must be one of \('rows', 'parts'\). Received: axis='model'"
    with pytest.raises(ValueError, match=said):
        training.transformer_layout(mesh())
    with pytest.raises(ValueError, match="`shard_vocabulary` must be"):
        training.transformer_layout(mesh(), "parts", shard_vocabulary="no")
