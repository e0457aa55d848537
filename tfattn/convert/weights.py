"""Weights of a layer by name, and one error for all mismatches."""

import math
import os.path
from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.attention.scores import DotProductScore


def arrays(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """The weights of a built layer, by their relative paths, such as `query/kernel`.

    If LoRA is enabled, its product is added to the matrix, as in calls of the layer.
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
            merged[f"{above}{matrix}"] = np.array(ops.convert_to_numpy(getattr(part, matrix)))
    found = {name: np.array(variable) for name, variable in variables.items()}
    return {name: array for name, array in {**found, **merged}.items() if array is not None}


def read(who: str, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a PyTorch state dict; bfloat16, which NumPy does not support, in float32."""
    _checks.mapping(who, "state", state)
    for name in state:
        if not isinstance(name, str):
            _checks.fail(who, "state", "have names as keys", name)
        if name.startswith("module.") or "_orig_mod." in name:
            expected = (
                "be the state of the module itself: DataParallel and torch.compile wrap it, and "
                'add "module." or "_orig_mod." to the names; use model.module.state_dict() or '
                "model._orig_mod.state_dict(), or remove these parts"
            )
            _checks.fail(who, "state", expected, name)
    return {name: _readable(who, name, array) for name, array in state.items()}


def _readable(who: str, name: str, array: Any) -> np.ndarray:
    try:
        if hasattr(array, "detach"):
            array = array.detach().cpu()
            array = array.float() if "bfloat16" in str(array.dtype) else array
        return _float32_where_narrow(np.asarray(array))
    except (TypeError, ValueError):  # such as a sparse tensor
        return _checks.fail(who, name, "be a dense array", getattr(array, "layout", array))


def _float32_where_narrow(array: np.ndarray) -> np.ndarray:
    # NumPy's kind for extension types.
    return array.astype("float32") if array.dtype.kind == "V" else array


def load(who: str, layer: keras.layers.Layer, state: Mapping[str, Any]) -> None:
    """Loads weights into a built layer, or raises for all mismatches; names are as in `arrays`."""
    check(who, arrays(layer), state)
    for name, variable in _variables(layer).items():
        variable.assign(state[name])


def check(who: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises one ValueError with all missing, unknown and differently shaped weights.

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


def refuse(who: str, name: str, is_used: bool, reason: str) -> None:
    """Raises if a feature is used that only one of two libraries has; `reason` explains it."""
    if is_used:
        raise ValueError(f"{who}: `{name}` cannot be converted: {reason}.")


def check_type(who: str, argument: str, value: Any, types: Collection[type]) -> None:
    """Raises unless the value has one of the types; subclasses may compute something else."""
    if type(value) not in types:
        names = ", ".join(one.__name__ for one in types)
        _checks.fail(who, argument, f"be one of {names}", value)


def check_built(who: str, layer: keras.layers.Layer, argument: str = "layer") -> None:
    """Raises for a layer that is not built, or is quantized."""
    if not layer.built:
        _checks.fail(who, argument, "be built: call it once to create its weights", layer)
    for part in layer._flatten_layers():
        mode = part.quantization_mode
        reason = f"{part.name} is {mode}, and rounds its inputs; convert it before the quantization"
        refuse(who, "quantize", mode is not None, reason)


def check_plain(who: str, attention: MultiHeadAttention, *, of_keras: bool = False) -> None:
    """Raises for a `MultiHeadAttention` that the other library does not have.

    Args:
        of_keras: whether the other library is Keras, which supports more features.
    """
    score, shared = attention.score, attention.num_key_value_heads != attention.num_heads
    plain = type(score) is DotProductScore and score.scale is None
    limited = attention.sliding_window is not None
    refuse(who, "score", not plain, "only the scaled dot product is supported")
    refuse(
        who,
        "positions",
        attention.positions is not None,
        "positions within attention are not supported",
    )
    refuse(who, "normalizer", attention.normalizer is not None, "only the softmax is supported")
    if of_keras:
        return
    axes = attention.attention_axes not in (None, (1,))
    refuse(who, "num_key_value_heads", shared, "shared key heads are not supported")
    refuse(who, "use_gate", attention.use_gate, "gates of heads are not supported")
    refuse(who, "sliding_window", limited, "pass a window as a mask to the call")
    refuse(who, "attention_axes", axes, "sequences must have one axis")


# PyTorch's matrices have a row for each output, with the outputs of all heads concatenated.
_LEAVES = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}


def to_rows(layer: keras.layers.Layer, modules: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The weights of a built layer in the format of a PyTorch state dict.

    Args:
        modules: from the relative path of a part of the layer to the module's name.
    """
    result = {}
    for name, array in arrays(layer).items():
        rows = array.reshape(_flat(name, array.shape)).T
        result[_row_name(name, modules)] = _float32_where_narrow(rows)
    return result


def load_rows(
    layer: keras.layers.Layer, modules: Mapping[str, str], state: Mapping[str, np.ndarray]
) -> None:
    """Loads a matching PyTorch state dict, the inverse of `to_rows`."""
    for name, variable in _variables(layer).items():
        array = np.asarray(state[_row_name(name, modules)])
        variable.assign(array.T.reshape(tuple(variable.shape)))


def below(state: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The weights whose names begin with a prefix, under the rest of their names."""
    return {name[len(prefix) :]: array for name, array in state.items() if name.startswith(prefix)}


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
    # The output map of an attention has heads as inputs, all other maps as outputs.
    inputs = len(shape) - 1 if "attention_output/" in name else 1
    return (math.prod(shape[:inputs]), math.prod(shape[inputs:]))
