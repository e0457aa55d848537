"""Shape inference: calls on symbolic tensors."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Size

# Whether the arguments of the layer have unknown sizes in the batch axis only.
_lengths_are_known: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "tfattn.lengths_are_known", default=False
)


def only_shapes_are_computed() -> bool:
    """Whether this call computes the shapes of a functional model, from placeholders that need not
    have the sizes of the mask's arrays: two for each unknown size on PyTorch, expressions on JAX.
    """
    if keras.backend.backend() == "tensorflow":
        return False
    scope = keras.SymbolicScope()
    with scope:  # sets `original_scope`
        return scope.original_scope is not None


@contextlib.contextmanager
def computing_for(arguments: Any) -> Iterator[None]:
    """A scope in which a layer computes the shapes for these symbolic arguments."""
    shapes = [x.shape for x in keras.tree.flatten(arguments) if isinstance(x, keras.KerasTensor)]
    token = _lengths_are_known.set(all(None not in shape[1:] for shape in shapes))
    try:
        yield
    finally:
        _lengths_are_known.reset(token)


def shape_of(tensor: Any) -> tuple[Size, ...]:
    """`ops.shape`, without TensorFlow's operation where all sizes are known."""
    shape = tuple(tensor.shape)
    return ops.shape(tensor) if None in shape else shape


def known_size(size: Any) -> int | None:
    """A length, or None where it may be an expression or a placeholder."""
    if keras.backend.backend() == "torch" and only_shapes_are_computed():
        return size if _lengths_are_known.get() else None
    return size if isinstance(size, int) else None


def check_batch(who: str, argument: str, shape: Shape, other_name: str, other: Shape) -> None:
    """Raises where two shapes have known and different batch sizes."""
    if shape[0] != other[0]:
        shape, other = ((_known_batch(x), *x[1:]) for x in (shape, other))
        _checks.same_batch(who, argument, shape, other_name, other)


def _known_batch(shape: Sequence[Any]) -> int | None:
    is_made_up = keras.backend.backend() == "torch" and only_shapes_are_computed()
    return None if is_made_up else known_size(shape[0])


def known_sizes(shape: Sequence[Any]) -> tuple[int | None, ...]:
    """The known sizes of scores `(B, T, S)` or `(B, H, T, S)`; H is always known."""
    batch = _known_batch(shape)
    heads = tuple(shape[1:2]) if len(shape) == 4 else ()
    return (batch, *heads, *map(known_size, shape[-2:]))
