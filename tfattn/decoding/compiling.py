"""One compiled loop for each step function, kept as long as the step's owner lives."""

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import keras
import numpy as np

from tfattn import _checks
from tfattn._types import Step, Tensor

# Keys are ids of step owners, since not every owner is hashable. An entry is freed with its owner.
_compiled: dict[int, dict[Hashable, tuple["_Run", Callable[..., Any]]]] = {}


def compiled(
    function: Callable[..., Any], step: Step, settings: Hashable, jit_compile: bool = False
) -> Callable[..., Any]:
    """`function` of (step, settings, *tensors) with this step and these settings, compiled: a
    function of the tensors, freed with the step or its owner.

    It is traced once for each of their shapes, and anew once the Python state of the owner has
    changed; on JAX twice, if the step belongs to no object with `variables`. PyTorch runs it
    eagerly, without gradients.
    """
    owner = getattr(step, "__self__", step)
    backend = keras.backend.backend()
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
    state: list[Any] = [id(weight) for weight in getattr(owner, "weights", ())]
    models, seen = [owner], set()
    _add_models(models, _held_by(step))
    for model in models:  # which grows
        if id(model) in seen:
            continue
        seen.add(id(model))
        attributes = getattr(model, "__dict__", {})
        for name in [name for name in attributes if name[0] != "_"]:
            value = attributes[name]
            if isinstance(value, _PLAIN) or (
                isinstance(value, tuple) and all(isinstance(each, _PLAIN) for each in value)
            ):
                if name not in _CHANGED_BY_KERAS:
                    state.append((name, type(value), value))
            elif value is not None:
                _add_models(models, value)
        if isinstance(model, keras.Model):
            models += model.layers
    return state


def _held_by(step: Step) -> list[Any]:
    """What a function or `functools.partial` has at hand, and what methods of it belong to."""
    function: Any = getattr(step, "func", step)
    held = [function, *getattr(step, "args", ()), *(getattr(function, "__defaults__", None) or ())]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a name that is assigned later
            held.append(cell.cell_contents)
    return [getattr(each, "__self__", each) for each in held]


def _add_models(models: list[Any], value: Any) -> None:
    """Adds the value, or those in a list or tuple, that have a step or are layers."""
    values = value if isinstance(value, list | tuple) else (value,)
    models += [x for x in values if isinstance(x, keras.Layer) or hasattr(type(x), "step")]


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


class _RecordReads(keras.StatelessScope):
    """A scope that records the variables that are read within it."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: dict[int, keras.Variable] = {}

    def get_current_value(self, variable: keras.Variable) -> Any:
        self.variables[id(variable)] = variable
        return super().get_current_value(variable)


def _compiled_by_jax(run: _Run) -> Callable[..., Any]:
    """`run` for JAX, with the variables that the step reads as arguments.

    Tracing on JAX turns the values of variables into constants. A step's owner lists its variables;
    for any other step an extra trace records them, once for each shape of the tensors.
    """
    import jax

    read: dict[int, keras.Variable] = {}
    results: dict[Hashable, _Layout] = {}

    def variables() -> list[keras.Variable]:
        owner: Any = getattr(run.step(), "__self__", None)
        if not hasattr(owner, "variables"):
            return list(read.values())
        # Weights created within the trace would leak its tracers.
        if not getattr(owner, "built", True):
            _checks.fail("decoding", "step", "belong to a model that is built", run.step())
        return list(owner.variables)

    def arrays_of_result(key: _Layout, arrays: list[Tensor]) -> list[Tensor]:
        """The arrays of a run's result; the layout of the rest is kept in `results`, by shapes."""
        result = run(*jax.tree.unflatten(key.structure, key.join(arrays)))
        leaves, structure = jax.tree.flatten(result)
        results[_shapes(key, arrays)], arrays = _Layout.of(leaves, structure)
        return arrays

    @functools.partial(jax.jit, static_argnums=0)
    def traced(key: _Layout, values: list[Tensor], arrays: list[Tensor]) -> list[Tensor]:
        with keras.StatelessScope(state_mapping=zip(variables(), values, strict=True)):
            return arrays_of_result(key, arrays)

    def call(*tensors: Any) -> Any:
        key, arrays = _Layout.of(*jax.tree.flatten(tensors))
        shapes = _shapes(key, arrays)
        if (
            not hasattr(getattr(run.step(), "__self__", None), "variables")
            and shapes not in results
        ):
            with _RecordReads() as scope:
                jax.eval_shape(functools.partial(arrays_of_result, key), arrays)
            read.update(scope.variables)
        arrays = traced(key, [variable.value for variable in variables()], arrays)
        return jax.tree.unflatten(results[shapes].structure, results[shapes].join(arrays))

    return call


def _shapes(key: "_Layout", arrays: list[Tensor]) -> tuple[Any, ...]:
    """The key of a trace: layout, shapes and dtypes of the arrays."""
    return key, tuple((array.shape, array.dtype) for array in arrays)


class _Layout(NamedTuple):
    """The structure of a nest, and its leaves that are not arrays."""

    structure: Any
    others: tuple[Any, ...]  # (type, leaf) for each leaf, since 1 == True; None for an array

    @classmethod
    def of(cls, leaves: list[Any], structure: Any) -> tuple["_Layout", list[Tensor]]:
        """(The layout, the arrays.)"""
        is_array = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves]
        pairs = list(zip(leaves, is_array, strict=True))
        others = tuple(None if array else (type(leaf), leaf) for leaf, array in pairs)
        return cls(structure, others), [leaf for leaf, array in pairs if array]

    def join(self, arrays: list[Tensor]) -> list[Any]:
        """All leaves, with these arrays."""
        left = iter(arrays)
        return [next(left) if other is None else other[1] for other in self.others]
