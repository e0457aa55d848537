"""Weights of a layer by name, and one error for all mismatches."""

import itertools
import math
import os.path
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.layers.base import flat_layers


def arrays(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """The weights of a built layer by relative paths, as `query/kernel`; with LoRA's product."""
    variables = _variables(layer)
    found = {name: np.array(variable) for name, variable in variables.items()}
    for part in flat_layers(layer):
        if getattr(part, "lora_enabled", False):
            own = {id(variable) for variable in part.variables}
            for name in [name for name, variable in variables.items() if id(variable) in own]:
                leaf = name.rpartition("/")[2]
                if leaf.startswith("lora_"):
                    del found[name]
                elif leaf in ("kernel", "embeddings"):  # the attribute has the product added
                    found[name] = np.array(ops.convert_to_numpy(getattr(part, leaf)))
    return found


def read(who: str, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a PyTorch state dict; bfloat16, which NumPy does not support, in float32."""
    _checks.mapping(who, "state", state)
    for name in state:
        if name.startswith("module.") or "_orig_mod." in name:
            expected = (
                "be the state of the module itself, such as model.module.state_dict(): "
                'DataParallel and torch.compile add "module." or "_orig_mod." to the names'
            )
            _checks.fail(who, "state", expected, name)
    return {name: _readable(array) for name, array in state.items()}


def _readable(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if "bfloat16" in str(array.dtype) else array
    return _float32_where_narrow(np.asarray(array))


def _float32_where_narrow(array: np.ndarray) -> np.ndarray:
    # NumPy's kind for extension types.
    return array.astype("float32") if array.dtype.kind == "V" else array


def load(who: str, layer: keras.layers.Layer, state: Mapping[str, Any]) -> None:
    """Loads weights into a built layer, or raises for all mismatches; names are as in `arrays`."""
    check(who, arrays(layer), state)
    for name, variable in _variables(layer).items():
        variable.assign(state[name])


def check(who: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises one ValueError with all missing, unknown and differently shaped weights."""
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


def check_built(
    who: str, argument: str, layer: keras.layers.Layer, types: Collection[type] = ()
) -> None:
    """Raises for a layer of none of the types, if given, that is not built, or is quantized."""
    if types:
        check_type(who, argument, layer, types)
    if not layer.built:
        _checks.fail(who, argument, "be built: call it once to create its weights", layer)
    for part in flat_layers(layer):
        mode = part.quantization_mode
        reason = f"{part.name} is {mode}, and rounds its inputs; convert it before the quantization"
        refuse(who, "quantize", mode is not None, reason)


# Names of weights: tfattn's to those of PyTorch's modules; "" for a path that contains the name.
_LEAVES = {
    **{"kernel": "weight", "gamma": "weight", "scale": "weight", "embeddings": "weight"},
    **{"bias": "bias", "beta": "bias", "": ""},
}
# The beginning of names in another library's state, a layer, and its table: from the rest of a
# name, without the weight's own name, to the paths of parts of the layer whose rows are joined.
Table = Mapping[str, Sequence[str]]
Part = tuple[str, keras.layers.Layer, Table]
ITSELF: Table = {"": ("",)}  # the table of a layer without parts


def below(table: Table, prefix: str, path: str) -> Table:
    """The table of a part, in its layer's table: with this prefix of names, and at this path."""
    return {prefix + name: [f"{path}/{part}" for part in parts] for name, parts in table.items()}


def rows(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """As `arrays`, but matrices have a row for each output, of all heads one after another."""
    found = {}
    for path, array in arrays(layer).items():
        # The output map of an attention has heads as inputs, all other maps as outputs.
        inputs = array.ndim - 1 if "attention_output/" in path else 1
        if path.endswith("kernel"):
            array = array.reshape(math.prod(array.shape[:inputs]), -1).T
        elif not path.endswith("embeddings"):
            array = array.reshape(-1)
        found[path] = _float32_where_narrow(array)
    return found


def to_state(parts: Iterable[Part]) -> dict[str, np.ndarray]:
    """The weights of layers in the format of a PyTorch state dict."""
    state = {}
    for prefix, layer, table in parts:
        own = rows(layer)
        for name, paths in _names(table, own):
            joined = [own[path] for path in paths]
            state[prefix + name] = joined[0] if len(joined) == 1 else np.concatenate(joined)
    return state


def load_state(parts: Iterable[Part], state: Mapping[str, np.ndarray]) -> None:
    """Loads a matching state, the inverse of `to_state`; joined matrices have equal sizes."""
    for prefix, layer, table in parts:
        variables = _variables(layer)
        for name, paths in _names(table, variables):
            pieces = np.split(np.asarray(state[prefix + name]), len(paths))
            for path, array in zip(paths, pieces, strict=True):
                array = array.T if path.endswith("kernel") else array
                variables[path].assign(array.reshape(tuple(variables[path].shape)))


def _names(table: Table, own: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """The names of weights in the other library, each with the paths of those that it joins."""
    for (module, parts), (leaf, name) in itertools.product(table.items(), _LEAVES.items()):
        paths = [path for part in parts if (path := f"{part}/{leaf}".strip("/")) in own]
        if paths:
            yield module + name, paths


def _variables(layer: keras.layers.Layer) -> dict[str, Any]:
    paths = [variable.path.split("/") for variable in layer.weights]
    above = os.path.commonprefix(paths)[: min(map(len, paths), default=1) - 1]
    names = ["/".join(path[len(above) :]) for path in paths]
    return dict(zip(names, layer.weights, strict=True))


def _shape(state: Mapping[str, Any], name: str) -> str:
    return str(tuple(np.shape(state[name]))) if name in state else "none"
