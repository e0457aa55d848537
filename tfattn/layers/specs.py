"""What comes out of a call, before there are numbers."""

import functools
import inspect
import random
from typing import Any

import keras

from tfattn.core import symbolic
from tfattn.core.rule import Rule
from tfattn.layers.configs import copy_of

__all__ = ["spec_of_call"]


def spec_of_call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
    """`compute_output_spec` as the call itself, traced with symbolic tensors: shapes, dtypes and
    checks cannot differ from those of a call.

    A layer that is not built has no weights to be traced with, and stays as it is: a copy is built
    and asked.
    """
    if not layer.built:
        state = random.getstate()  # Keras draws the copy's seeds: asking for shapes draws none
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
    """The call of a layer that has its mask and bias objects already: JAX takes each argument that
    it is given for an array.
    """

    def __init__(self, layer: keras.layers.Layer, rules: dict[str, Rule]):
        super().__init__(name=layer.name)
        self.call = functools.partial(layer.call, **rules)
