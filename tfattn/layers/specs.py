"""Output specs of layers: shapes and dtypes without computation."""

import functools
import inspect
import random
from typing import Any

import keras

from tfattn.core import symbolic
from tfattn.core.rule import Rule
from tfattn.layers.configs import copy_of


def spec_of_call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
    """`compute_output_spec` by a trace of the call with symbolic tensors, so that shapes, dtypes
    and checks are those of the call.

    A layer without weights cannot be traced, so a copy of it is built and traced.
    """
    if not layer.built:
        state = random.getstate()  # Keras draws seeds from it for the copy
        try:
            return copy_of(layer)(*args, **kwargs)
        finally:
            random.setstate(state)
    given = dict(zip(inspect.signature(layer.call).parameters, args, strict=False)) | kwargs
    rules = {name: value for name, value in given.items() if isinstance(value, Rule)}
    with symbolic.asking_for(given):
        if not rules:
            return keras.Operation.compute_output_spec(layer, *args, **kwargs)
        others = {name: value for name, value in given.items() if name not in rules}
        return _CallWithRules(layer, rules).compute_output_spec(**others)


class _CallWithRules(keras.Operation):
    """The call of a layer with its mask and bias objects bound, since JAX traces every argument as
    an array.
    """

    def __init__(self, layer: keras.layers.Layer, rules: dict[str, Rule]):
        super().__init__(name=layer.name)
        self.call = functools.partial(layer.call, **rules)
