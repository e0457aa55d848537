"""The device of a computation: the CPU or an accelerator."""

import functools
from typing import Any

import keras

from tfattn._types import Tensor


def kind(tensor: Any) -> str:
    """The device of a tensor: "cpu", or the backend's name for an accelerator, like "gpu"."""
    if keras.backend.backend() == "torch":
        return tensor.device.type
    return _first_device()


@functools.cache
def _first_device() -> str:
    # A tensor of a graph has no device yet: JAX and TensorFlow will use the first device.
    return keras.distribution.list_devices()[0].partition(":")[0].lower()


def entry(table: dict[str, Any], tensor: Tensor) -> Any:
    """The entry of a table in `sizes` for the device of a tensor."""
    return table["cpu"] if kind(tensor) == "cpu" else table["other"]
