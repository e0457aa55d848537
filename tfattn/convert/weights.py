"""Weights of a layer by name, and one error for all that do not fit."""

import math
import os.path
from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.attention.scores import DotProductScore

__all__ = [
    "arrays",
    "assign",
    "check",
    "check_built",
    "check_plain",
    "check_type",
    "from_rows",
    "load",
    "load_rows",
    "read",
    "refuse",
    "to_rows",
]


def arrays(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """The weights of a built layer, by their paths below it: `query/kernel`.

    Where LoRA is enabled, its product is added to the matrix, as in the layer's calls.
    """
    variables = _variables(layer)
    merged = {}
    for part in layer._flatten_layers():
        if getattr(part, "lora_enabled", False):
            matrix = "kernel" if hasattr(part, "lora_kernel_a") else "embeddings"
            own = {id(variable) for variable in part.variables}
            low = [name for name, v in variables.items() if id(v) in own and "lora_" in name]
            above = low[0].rpartition("lora_")[0]
            merged.update(dict.fromkeys(low))
            merged[f"{above}{matrix}"] = np.array(getattr(part, matrix))
    found = {name: np.array(variable) for name, variable in variables.items()}
    return {name: array for name, array in {**found, **merged}.items() if array is not None}


def read(who: str, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A state dict of PyTorch's as arrays; what NumPy has no type for, bfloat16, in float32."""
    _checks.mapping(who, "state", state)
    for name in state:
        if name.startswith("module.") or "_orig_mod." in name:
            expected = (
                "be of the module itself: DataParallel and torch.compile wrap it, and put "
                '"module." or "_orig_mod." into the names; take model.module.state_dict() or '
                "model._orig_mod.state_dict(), or remove these parts"
            )
            _checks.fail(who, "state", expected, name)
    return {name: _float32_where_narrow(_readable(array)) for name, array in state.items()}


def _readable(array: Any) -> np.ndarray:
    if not hasattr(array, "detach"):
        return np.asarray(array)
    array = array.detach().cpu()
    return np.asarray(array.float() if "bfloat16" in str(array.dtype) else array)


def _float32_where_narrow(array: np.ndarray) -> np.ndarray:
    # NumPy's kind of the types that it takes from elsewhere.
    return array.astype("float32") if array.dtype.kind == "V" else array


def load(who: str, layer: keras.layers.Layer, state: Mapping[str, Any]) -> None:
    """Loads weights of the names of `arrays` into a built layer, or raises for all that differ."""
    check(who, arrays(layer), state)
    assign(layer, state)


def assign(layer: keras.layers.Layer, state: Mapping[str, Any]) -> None:
    """Loads weights that fit; nothing is checked here."""
    for name, variable in _variables(layer).items():
        variable.assign(state[name])


def check(who: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises one ValueError with every name that is missing, unknown, or of another shape.

    Args:
        who: the function, for the error.
        expected, found: name to array.
    """
    lines = [
        f"{name}: expected {_shape(expected, name)}, found {_shape(found, name)}"
        for name in (*expected, *(name for name in found if name not in expected))
        if _shape(expected, name) != _shape(found, name)
    ]
    if lines:
        raise ValueError(f"{who}: the weights must have these shapes.\n  " + "\n  ".join(lines))


def refuse(who: str, given: Mapping[str, tuple[bool, str]]) -> None:
    """Raises for what only one of two libraries has.

    Args:
        given: name to (whether it is there, what the other library has instead).
    """
    for name, (there, instead) in given.items():
        if there:
            raise ValueError(f"{who}: `{name}` cannot be carried over: {instead}.")


def check_type(who: str, argument: str, value: Any, types: Collection[type]) -> None:
    """Raises unless the value is of one of the types, and not of a subclass, which may compute
    something else.
    """
    if type(value) not in types:
        names = ", ".join(one.__name__ for one in types)
        _checks.fail(who, argument, f"be one of {names}", value)


def check_built(who: str, layer: keras.layers.Layer, argument: str = "layer") -> None:
    """Raises for a layer without weights yet, and for one with weights that are quantized."""
    if not layer.built:
        _checks.fail(who, argument, "be built: call it once, so that it has weights", layer)
    for part in layer._flatten_layers():
        mode = part.quantization_mode
        instead = f"{part.name} is {mode}, and rounds what it is called with; convert it before"
        refuse(who, {"quantize": (mode is not None, instead)})


def check_plain(who: str, attention: MultiHeadAttention, *, of_keras: bool = False) -> None:
    """Raises for a `MultiHeadAttention` that the other library does not have.

    Args:
        of_keras: whether it is Keras, which has more of it than others.
    """
    score, shared = attention.score, attention.num_key_value_heads != attention.num_heads
    plain = type(score) is DotProductScore and score.scale is None
    limited = attention.sliding_window is not None
    refuse(
        who,
        {
            "score": (not plain, "only the scaled dot product is there"),
            "positions": (attention.positions is not None, "there are none within attention there"),
            "normalizer": (attention.normalizer is not None, "only the softmax is there"),
        },
    )
    if of_keras:
        return
    axes = attention.attention_axes not in (None, (1,))
    refuse(
        who,
        {
            "num_key_value_heads": (shared, "each head has its own key and value there"),
            "use_gate": (attention.use_gate, "heads have no gates there"),
            "sliding_window": (limited, "a window is a mask of the call there"),
            "attention_axes": (axes, "sequences have one axis there"),
        },
    )


# PyTorch's linear maps hold a matrix with a row for each output, and have heads side by side.
_LEAVES = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}


def to_rows(layer: keras.layers.Layer, modules: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The weights of a built layer as a state dict of PyTorch has them.

    Args:
        modules: path of each part below the layer to the module's name there.
    """
    result = {}
    for name, array in arrays(layer).items():
        rows = array.reshape(_flat(name, array.shape)).T
        result[_row_name(name, modules)] = _float32_where_narrow(rows)
    return result


def from_rows(
    layer: keras.layers.Layer, modules: Mapping[str, str], state: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The inverse of `to_rows`, for a layer of those shapes."""
    result = {}
    for name, variable in _variables(layer).items():
        array = np.asarray(state[_row_name(name, modules)])
        result[name] = array.T.reshape(tuple(variable.shape))
    return result


def load_rows(
    layer: keras.layers.Layer, modules: Mapping[str, str], state: Mapping[str, np.ndarray]
) -> None:
    """Loads a state dict of PyTorch's form that fits."""
    assign(layer, from_rows(layer, modules, state))


def _variables(layer: keras.layers.Layer) -> dict[str, Any]:
    paths = [variable.path.split("/") for variable in layer.weights]
    above = os.path.commonprefix(paths)[: min(map(len, paths), default=1) - 1]
    names = ["/".join(path[len(above) :]) for path in paths]
    return dict(zip(names, layer.weights, strict=True))


def _shape(state: Mapping[str, Any], name: str) -> str:
    return str(tuple(np.shape(state[name]))) if name in state else "none"


def _row_name(name: str, modules: Mapping[str, str]) -> str:
    module, _, leaf = name.rpartition("/")
    return f"{modules[module]}.{_LEAVES[leaf]}"


def _flat(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as a matrix (inputs, outputs), or as a vector."""
    if not name.endswith("kernel"):
        return (math.prod(shape),)
    # The output map of an attention takes heads; the others give them.
    inputs = len(shape) - 1 if "attention_output/" in name else 1
    return (math.prod(shape[:inputs]), math.prod(shape[inputs:]))
