"""One compiled loop for each step function, kept as long as the step's owner lives."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Hashable, Iterable
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
    if key not in of_owner or of_owner[key][0].python_state != _python_state(step):
        run = _Run(function, step, settings)
        if backend == "tensorflow":
            import tensorflow as tf

            # The loop needs no AutoGraph, which keeps the step's owner alive after a failure.
            options = {"autograph": False, "reduce_retracing": True}
            of_owner[key] = run, tf.function(run, jit_compile=jit_compile or None, **options)
        else:
            of_owner[key] = run, _compiled_by_jax(run)
    return of_owner[key][1]


def _python_state(step: Step) -> list[Any]:
    """What a trace turns into constants, to compare: the attributes of the models that a step
    belongs to or refers to, of their layers and dataclasses. Numbers, strings, small arrays and
    tuples count by value, all else by identity: LoRA and quantization replace variables, and a
    list may be a log of calls.
    """
    found: list[Any] = []
    inside = [cell.cell_contents for cell in getattr(step, "__closure__", None) or ()]
    holders = [getattr(step, "__self__", step), *(x for x in inside if _kinds[type(x)] == "model")]
    seen: set[int] = set()
    for holder in holders:  # which grows
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in _attributes(holder):
            kind = _kinds[type(value)]
            if isinstance(holder, _MUTABLE) and kind != "model" and not isinstance(value, _MUTABLE):
                continue
            if kind == "value":
                found += name, type(value), value
            elif kind == "array" and value.size <= _LARGE:
                found += name, value.dtype.str, value.shape, value.tobytes()
            elif kind == "model" or kind == "collection" and len(value) <= _LARGE:
                holders.append(value)
                found += name, id(value) if isinstance(value, _MUTABLE) else type(value)
            else:
                found += name, id(value)
    return found


def _attributes(holder: Any) -> Iterable[tuple[Any, Any]]:
    """The parts of a model or a collection, by name."""
    if isinstance(holder, dict):
        return holder.items()
    if isinstance(holder, _COLLECTIONS):
        return enumerate(holder)
    own, skipped = getattr(holder, "__dict__", {}), _names_of_keras()
    layers = holder.layers if isinstance(holder, keras.Model) else ()
    return [*((name, own[name]) for name in own if name not in skipped), *enumerate(layers)]


class _Kinds(dict[type, str]):
    """How `_python_state` compares objects of a class."""

    def __missing__(self, cls: type) -> str:
        if issubclass(cls, keras.Layer) or hasattr(cls, "step") or dataclasses.is_dataclass(cls):
            self[cls] = "model"
        elif issubclass(cls, bool | int | float | complex | str | bytes | None):
            self[cls] = "value"
        elif issubclass(cls, _COLLECTIONS):
            self[cls] = "collection"
        else:
            self[cls] = "array" if issubclass(cls, np.ndarray) else "identity"
        return self[cls]


@functools.cache
def _names_of_keras() -> frozenset[str]:
    """Names of attributes of every model, which hold what training and tracking change."""

    class Model(keras.Model):
        pass

    model = Model(name="model")
    model.layer = keras.layers.Identity(name="layer")
    of_training = {"history", "optimizer", "stop_evaluating", "stop_predicting", "stop_training"}
    of_training |= {"_eval_epoch_iterator", "_jax_state", "_jax_state_synced"}
    return frozenset(vars(model)) - {"layer"} | of_training


_kinds = _Kinds()
_MUTABLE = dict, list, set
_COLLECTIONS = *_MUTABLE, tuple, frozenset
_LARGE = 1024  # size from which arrays and collections count by identity


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
