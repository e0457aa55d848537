"""On PyTorch all tensors of a computation are on one device: a fake GPU, since PyTorch can follow
shapes and devices on a machine that has none.
"""

import contextlib

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.tensors import BACKEND
from tfattn import biases, masks

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="about PyTorch")

T = 70
IDS = np.arange(T)[None] // 8
MASKS = {
    "causal": masks.causal,
    "window": lambda: masks.causal() & masks.window(5),
    "segments": lambda: masks.segments(IDS),
    "padding": lambda: masks.padding([40]),
    "padding of each query": lambda: masks.padding(1 + IDS),
    "prefix": lambda: masks.prefix([3]) | masks.causal(),
    "chunks": lambda: masks.chunks(16),
    "array": lambda: np.tri(T, dtype=bool),
}


@contextlib.contextmanager
def fake_gpu():
    import torch
    from torch._subclasses import fake_impls
    from torch._subclasses.fake_tensor import FakeTensorMode

    item = torch.ops.aten._local_scalar_dense.default
    known = fake_impls.op_implementations_dict
    before = known[item]
    known[item] = lambda mode, function, x: x.dtype.is_floating_point or 1
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), keras.device("cuda"):
            yield lambda *shape, dtype=None: torch.empty(shape, dtype=dtype, device="cuda")
    finally:
        known[item] = before


@pytest.mark.parametrize("path", ["dense", "streamed"])
@pytest.mark.parametrize("name", MASKS)
def test_mask_stays_on_the_device_of_what_it_hides(name, path):
    with fake_gpu() as tensor:
        x = tensor(1, 2, T, 8)
        bias = biases.alibi(2)
        output = tfattn.attend(query=x, value=x, mask=MASKS[name](), bias=bias, path=path)
        assert output.device.type == "cuda"


def test_loss_stays_on_the_device_of_what_it_judges():
    import torch

    with fake_gpu() as tensor:
        loss = tfattn.MaskedCrossentropy()(tensor(2, 3, dtype=torch.int32), tensor(2, 3, 5))
        assert loss.device.type == "cuda"
