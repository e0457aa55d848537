"""The device of a computation: the CPU or an accelerator."""

import functools
from typing import Any

import keras

from tfattn._types import Tensor


def kind(tensor: Tensor) -> str:
    """The device of a tensor: "cpu", or a backend's name of an accelerator, as "gpu" or "cuda"."""
    if keras.backend.backend() == "torch":
        return tensor.device.type
    return _first_device()


@functools.cache
def _first_device() -> str:
    # A tensor of a graph has no device yet: JAX and TensorFlow will use the first device.
    return keras.distribution.list_devices()[0].partition(":")[0].lower()


def chosen(table: dict[str, Any], tensor: Tensor) -> Any:
    """The entry of a table in `sizes` for the device of a tensor."""
    return table["cpu"] if kind(tensor) == "cpu" else table["other"]
