"""One compiled loop for each step function, kept as long as the step's owner lives."""

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import keras

from tfattn import _checks
from tfattn._types import Step

__all__ = ["compiled"]

# By the id of the step's owner, since not every owner can be hashed. An entry goes with its owner.
_compiled: dict[int, dict[Hashable, Callable]] = {}


def compiled(search: Callable, step: Step, settings: Hashable) -> Callable:
    """`search` with that step and those settings as a compiled function of tensors.

    Args:
        search: function of (step, settings, *tensors).
        step: function or bound method; its compiled searches are dropped together with it.
        settings: another value is another compiled function.
    Returns:
        A function of the tensors. On TensorFlow it is traced once for each shape of them.
    """
    owner = getattr(step, "__self__", step)
    if id(owner) not in _compiled:
        weakref.finalize(owner, _compiled.pop, id(owner), None)
    of_owner = _compiled.setdefault(id(owner), {})
    key = search, getattr(step, "__name__", None), settings
    if key not in of_owner:
        # A strong reference to the owner would keep it in the table for ever.
        is_method = hasattr(step, "__self__")
        run = _Run(search, (weakref.WeakMethod if is_method else weakref.ref)(step), settings)
        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf

            # Nothing here needs AutoGraph, and where it fails it keeps the step's owner alive.
            run = tf.function(run, autograph=False, reduce_retracing=True)
        elif backend == "jax":
            run = _compiled_by_jax(run)
        of_owner[key] = run
    return of_owner[key]


class _Run:
    """A search with its step, and a name for TensorFlow's messages.

    An object and no inner function: when TensorFlow counts how often a function is traced anew, it
    tells functions apart by their code, and would warn of many searches that are each traced once.
    """

    def __init__(self, search: Callable, step: weakref.ref, settings: Hashable):
        self.search, self.step, self.settings = search, step, settings
        self.__name__ = search.__name__

    def __call__(self, *tensors: Any) -> Any:
        return self.search(self.step(), self.settings, *tensors)


def _compiled_by_jax(run: _Run) -> Callable:
    """`run` for JAX, with the weights of the step's owner as arguments.

    While it traces, JAX would take the weights that it meets for constants.
    """
    import jax

    @jax.jit
    def traced(weights, *tensors):
        variables = run.step().__self__.variables
        with keras.StatelessScope(state_mapping=zip(variables, weights, strict=True)):
            return run(*tensors)

    def call(*tensors):
        owner = getattr(run.step(), "__self__", None)
        variables = getattr(owner, "variables", None)
        if variables is None:  # nobody can tell what the step reads
            return run(*tensors)
        # Weights that are made within the trace would stay there.
        if not getattr(owner, "built", True):
            _checks.fail("decoding", "step", "belong to a model that is built", run.step())
        return traced([variable.value for variable in variables], *tensors)

    return call
