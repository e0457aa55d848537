"""One compiled loop for each step function, kept as long as the step's owner lives."""

import contextlib
import dataclasses
import functools
import warnings
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn._types import Step

# Keys are ids of step owners, since not every owner is hashable. An entry is freed with its owner.
_compiled: dict[int, dict[Hashable, tuple["_Run", Callable[..., Any]]]] = {}


def compiled(
    function: Callable[..., Any], step: Step, settings: Hashable, jit_compile: bool = False
) -> Callable[..., Any]:
    """`function` of (step, settings, *tensors) with this step and these settings, compiled: a
    function of the tensors, freed with the step or its owner.

    It is traced once for each of their shapes, and anew once the Python state of the owner has
    changed. PyTorch runs it eagerly, without gradients.
    """
    owner, backend = getattr(step, "__self__", step), keras.backend.backend()
    if backend == "torch":
        return without_gradients(functools.partial(function, step, settings))
    if id(owner) not in _compiled:
        weakref.finalize(owner, _compiled.pop, id(owner), None)
    of_owner = _compiled.setdefault(id(owner), {})
    key = function, getattr(step, "__name__", None), settings, jit_compile
    before = of_owner[key][0] if key in of_owner else None
    if before is None or before.python_state != (now := _python_state(step)):
        run = _Run(function, step, settings)
        if before is not None:
            run.number = before.number + 1
            _warn_of_many(run.number, before.python_state, now)
        if backend == "tensorflow":
            import tensorflow as tf

            # The loop needs no AutoGraph, which keeps the step's owner alive after a failure.
            options = {"autograph": False, "reduce_retracing": True}
            of_owner[key] = run, tf.function(run, jit_compile=jit_compile or None, **options)
        else:
            of_owner[key] = run, _compiled_by_jax(run)
    return of_owner[key][1]


def _warn_of_many(number: int, before: list[Any], now: list[Any]) -> None:
    if number == 4:
        changed = sorted({new[0] for new in now if isinstance(new, tuple) and new not in before})
        warnings.warn(
            f"decoding: the search was compiled {number} times, since attributes of the step's "
            f"model changed: {', '.join(changed)}. Name them with an underscore if the step does "
            "not read them.",
            stacklevel=4,
        )


def _python_state(step: Step) -> list[Any]:
    """What a trace turns into constants, to compare: public attributes that are numbers, strings or
    tuples of them, of the models that a step belongs to or refers to and of their layers; and which
    weights there are, since LoRA and quantization replace them.
    """
    owner = getattr(step, "__self__", step)
    state: list[Any] = []
    models, seen = [owner, *filter(_is_model, _held_by(step))], set()
    for model in models:  # which grows
        if id(model) in seen:
            continue
        seen.add(id(model))
        for name, value in getattr(model, "__dict__", {}).items():
            if name[0] == "_" or value is None or name in _CHANGED_BY_KERAS:
                continue
            is_tuple = isinstance(value, tuple)
            if isinstance(value, _PLAIN) or is_tuple and all(isinstance(x, _PLAIN) for x in value):
                state.append((name, type(value), value))
            else:
                models += filter(_is_model, value if isinstance(value, list | tuple) else (value,))
        if isinstance(model, keras.Model):
            models += model.layers
        if model is owner or isinstance(model, keras.Model):
            state += map(id, getattr(model, "weights", ()))
    return state


def _held_by(step: Step) -> list[Any]:
    """What a function or `functools.partial` has at hand, and what methods of it belong to."""
    function: Any = getattr(step, "func", step)
    held = [function, *getattr(step, "args", ()), *(getattr(function, "__defaults__", None) or ())]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a name that is assigned later
            held.append(cell.cell_contents)
    return [getattr(each, "__self__", each) for each in held]


def _is_model(value: Any) -> bool:
    return isinstance(value, keras.Layer) or hasattr(type(value), "step")


_PLAIN = bool, int, float, str, np.generic
# In training, and when weights are loaded.
_CHANGED_BY_KERAS = {"stop_evaluating", "stop_predicting", "stop_training"}
_CHANGED_BY_KERAS |= {"is_awq_calibrated", "is_gptq_calibrated"}


def without_gradients(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`; on PyTorch without the graph that it would keep for gradients."""
    if keras.backend.backend() != "torch":
        return run
    import torch

    return torch.no_grad()(run)


class _Run:
    """A function with its step, named for TensorFlow's messages, and the Python state of the step's
    owner after the last trace (a trace may count itself).

    An object rather than a closure: TensorFlow counts retraces by code object, and would warn of
    many functions that are each traced once.
    """

    def __init__(self, function: Callable[..., Any], step: Step, settings: Hashable):
        # A strong reference would keep the owner alive in the table forever.
        is_method = hasattr(step, "__self__")
        self.step = (weakref.WeakMethod if is_method else weakref.ref)(step)
        self.function, self.settings = function, settings
        self.__name__ = function.__name__
        self.python_state: Any = None
        self.number = 1  # of the compiled functions with these settings

    def __call__(self, *tensors: Any) -> Any:
        step = self.step()
        assert step is not None  # its owner made the call
        found = self.function(step, self.settings, *tensors)
        self.python_state = _python_state(step)
        return found


def _compiled_by_jax(run: _Run) -> Callable[..., Any]:
    """`run` for JAX, with the variables that the step reads as arguments: tracing would turn their
    values into constants. An extra trace before the first one records them.
    """
    import jax

    # Weights created within a trace would leak its tracers.
    if not getattr(getattr(run.step(), "__self__", None), "built", True):
        _checks.fail("decoding", "step", "belong to a model that is built", run.step())
    is_recorded = False
    read: dict[int, keras.Variable] = {}

    def body(values: list[Any], tensors: Any) -> Any:
        with _RecordReads(read, values):
            return _with_constants(run(*_without_constants(tensors)))

    traced = jax.jit(body)

    def call(*tensors: Any) -> Any:
        nonlocal is_recorded
        tensors, count = _with_constants(tensors), -1
        if not is_recorded:
            jax.eval_shape(lambda tensors: body([], tensors), tensors)
            is_recorded = True
        while count < len(read):  # a trace of other shapes may read further variables
            count = len(read)
            found = traced([variable.value for variable in read.values()], tensors)
        return _without_constants(found)

    return call


class _RecordReads(keras.StatelessScope):
    """A scope with these values of variables, which records further ones that are read."""

    def __init__(self, read: dict[int, keras.Variable], values: list[Any]) -> None:
        super().__init__(state_mapping=zip(read.values(), values, strict=False))
        self.read = read

    def get_current_value(self, variable: keras.Variable) -> Any:
        self.read.setdefault(id(variable), variable)
        return super().get_current_value(variable)


@dataclasses.dataclass(frozen=True)
class _Constant:
    """A leaf that is no array, part of the structure of a nest for JAX."""

    kind: type  # since 1 == True
    value: Any


@functools.cache
def _register_constants() -> None:
    import jax

    jax.tree_util.register_static(_Constant)


def _with_constants(nest: Any) -> Any:
    import jax

    _register_constants()
    return jax.tree.map(
        lambda leaf: leaf if hasattr(leaf, "dtype") else _Constant(type(leaf), leaf), nest
    )


def _without_constants(nest: Any) -> Any:
    import jax

    def is_constant(leaf: Any) -> bool:
        return isinstance(leaf, _Constant)

    return jax.tree.map(
        lambda leaf: leaf.value if is_constant(leaf) else leaf, nest, is_leaf=is_constant
    )
