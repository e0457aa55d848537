"""Weights of a model as bytes for the page."""

from typing import Any

import numpy as np

QUANTIZATIONS = ("int8", "float16")


def to_bytes(found: dict[str, np.ndarray], quantization: str) -> tuple[list[dict[str, Any]], bytes]:
    """The tensors' names, sizes and types, and their content, each at a multiple of 4 bytes.

    A matrix of int8 follows the scales of its rows. Vectors stay in float32.
    """
    tensors, content = [], bytearray()
    for name, array in found.items():
        array = array.astype("float32")
        rows, columns = array.shape if array.ndim == 2 else (1, len(array))
        kind = quantization if array.ndim == 2 else "float32"
        tensors.append({"name": name, "rows": rows, "columns": columns, "type": kind})
        for part in _int8(array) if kind == "int8" else [array.astype(kind)]:
            little = part.astype(part.dtype.newbyteorder("<")).tobytes()
            content += little + bytes(-len(little) % 4)
    return tensors, bytes(content)


def _int8(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales `(rows,)` and whole numbers from -127 to 127, whose product is nearly the matrix."""
    scales = np.abs(matrix).max(axis=1) / np.float32(127)
    scales[scales == 0] = 1.0
    return scales, np.rint(matrix / scales[:, None]).astype("int8")
