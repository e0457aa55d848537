"""Communication between the processes of a training run.

Keras supports several processes on JAX only. With other backends, or before a
`keras.distribution` is set, these functions assume a single process.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops


def count() -> int:
    """The number of processes."""
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is None:
        return 1
    import jax

    return jax.process_count()


def _is_first() -> bool:
    import jax

    return jax.process_index() == 0


def _broadcast(array: np.ndarray) -> np.ndarray:
    """The first process's array; the others pass one of the same shape and dtype."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.broadcast_one_to_all(array))


def array_of_first(array: np.ndarray | None, variable: keras.Variable) -> Any:
    """The first process's array for a variable, in all processes. Every process must call this."""
    if count() == 1:
        return array
    if array is None:
        array = np.zeros(variable.shape, variable.dtype)
    return _broadcast(array.astype(variable.dtype))


def on_primary(who: str, make: Callable[[], Any]) -> Any:
    """Calls `make` in the first process and sends its result to all, as JSON if there are several.

    Every process must call this. If `make` fails, all of several processes raise a RuntimeError,
    since the others would wait for the first one forever.
    """
    if count() == 1:
        return make()
    text, error = "", None
    if _is_first():
        try:
            text = json.dumps({"result": make()}, default=lambda value: np.asarray(value).tolist())
        except Exception as caught:
            error = caught
            text = json.dumps({"failure": f"{type(caught).__name__}: {caught}"})
    size = int(_broadcast(np.array(len(text), "int32")))
    letters = np.frombuffer(text.ljust(size).encode(), "uint8")
    outcome = json.loads(_broadcast(letters).tobytes())
    if "failure" in outcome:
        raise RuntimeError(f"{who}: the first process failed with {outcome['failure']}") from error
    return outcome["result"]


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """The full value of a variable that may be sharded. Every process must call this."""
    value = ops.convert_to_tensor(variable)
    if count() > 1 and not value.is_fully_addressable:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return ops.convert_to_numpy(variable)


@contextlib.contextmanager
def without_distribution() -> Iterator[None]:
    """A scope without a distribution: variables and computations are local to this process."""
    distribution = keras.distribution.distribution()
    # Only one process may draw seeds in this scope; restoring the states keeps all in step.
    python_state, numpy_state = random.getstate(), np.random.get_state()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)
        if distribution is not None:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
