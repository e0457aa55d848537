"""The device of a computation: the CPU or an accelerator."""

import functools
import os
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


def multiplies_bfloat16(tensor: Tensor) -> bool:
    """Whether TensorFlow multiplies matrices of bfloat16 faster than of float32."""
    on_cpu = keras.backend.backend() == "tensorflow" and kind(tensor) == "cpu"
    return on_cpu and _has_bfloat16_products()


@functools.cache
def _has_bfloat16_products(path: str = "/proc/cpuinfo") -> bool:
    # oneDNN has these products, for x86; Linux says what the processor has.
    is_off = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in ("0", "false")
    if is_off or not os.path.exists(path):
        return False
    with open(path) as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags


def entry(table: dict[str, Any], tensor: Tensor) -> Any:
    """The entry of a table in `sizes` for the device of a tensor."""
    return table["cpu"] if kind(tensor) == "cpu" else table["other"]
