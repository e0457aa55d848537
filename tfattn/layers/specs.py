"""Output specs of layers: shapes and dtypes without computation."""

import functools
import inspect
import random
from typing import Any

import keras

from tfattn.core import symbolic
from tfattn.core.grid_function import GridFunction
from tfattn.layers.configs import copy_of


def spec_of_call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
    """`compute_output_spec` by a trace of the call with symbolic tensors, so that shapes, dtypes
    and checks are those of the call.

    An unbuilt layer cannot be traced, so a copy of it is built and traced.
    """
    if not layer.built:
        state = random.getstate()  # Keras draws seeds from it for the copy
        try:
            return copy_of(layer)(*args, **kwargs)
        finally:
            random.setstate(state)
    given = dict(zip(inspect.signature(layer.call).parameters, args, strict=False)) | kwargs
    bound = {name: value for name, value in given.items() if isinstance(value, GridFunction)}
    with symbolic.computing_for(given):
        if not bound:
            return keras.Operation.compute_output_spec(layer, *args, **kwargs)
        others = {name: value for name, value in given.items() if name not in bound}
        return _BoundCall(layer, bound).compute_output_spec(**others)


class _BoundCall(keras.Operation):
    """The call of a layer with its mask and bias objects bound, since JAX traces every argument as
    an array.
    """

    def __init__(self, layer: keras.layers.Layer, bound: dict[str, GridFunction]):
        super().__init__(name=layer.name)
        self.call = functools.partial(layer.call, **bound)
