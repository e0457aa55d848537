"""Communication between the processes of a training run.

Keras supports several processes on JAX only. With other backends, or before a
`keras.distribution` is set, these functions assume a single process.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

PIECE = 2**28  # bytes per message: each process holds several copies


def count() -> int:
    """The number of processes."""
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is None:
        return 1
    import jax

    return jax.process_count()


def is_first() -> bool:
    """Whether this is the process that writes files and logs for all."""
    if count() == 1:
        return True
    import jax

    return jax.process_index() == 0


def from_first(content: bytes | None) -> bytes | None:
    """Sends the first process's `content` to all processes. Every process must call this."""
    if count() == 1:
        return content
    from jax.experimental import multihost_utils

    def sent(array: np.ndarray) -> np.ndarray:
        return np.asarray(multihost_utils.broadcast_one_to_all(array))

    # JAX integers have 32 bits; the size may need more.
    size = (-1, 0) if content is None else divmod(len(content), PIECE)
    whole, rest = map(int, sent(np.array(size, "int32")))
    if whole < 0:
        return None
    given = memoryview(content) if is_first() and content is not None else None
    pieces = []
    for number in range(whole + 1):
        length = PIECE if number < whole else rest
        if given is None:
            piece = np.zeros(length, "uint8")
        else:
            piece = np.frombuffer(given[number * PIECE :][:length], "uint8")
        pieces.append(sent(piece).tobytes() if length else b"")
    return b"".join(pieces)


def on_primary(who: str, make: Callable[[], bytes | None]) -> Any:
    """Calls `make` in the first process and sends its result to all. Every process must call this.

    Raises:
        RuntimeError: `make` failed; all processes raise it, since the others would wait for the
            first one forever. A single process raises the original error.
    """
    if count() == 1:
        return make()
    content = error = reason = None
    if is_first():
        try:
            content = make()
        except Exception as caught:
            error, reason = caught, f"{type(caught).__name__}: {caught}".encode(errors="replace")
    reason = from_first(reason)
    if reason is not None:
        raise RuntimeError(f"{who}: the first process failed with {reason.decode()}") from error
    return from_first(content)


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """The full value of a variable that may be sharded. Every process must call this."""
    if count() > 1:
        value = ops.convert_to_tensor(variable)
        if not (value.is_fully_addressable or value.is_fully_replicated):
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
