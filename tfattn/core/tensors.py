"""Tensors that the engine computes with: checked ones, their sizes, arrays over pairs, products."""

import contextlib
import contextvars
import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Size, Tensor


def given_tensor(who: str, argument: str, value: Any, letters: str) -> Tensor:
    """Numbers, or nested lists of numbers, as a tensor of shape `letters`."""
    if not isinstance(value, list | tuple | numbers.Number):
        _checks.array(who, argument, value, letters, booleans=True)
    if isinstance(value, keras.KerasTensor):
        return value
    try:
        tensor = ops.convert_to_tensor(value)
    except (ValueError, TypeError):
        _checks.fail(who, argument, f"be a tensor of numbers, of shape {letters}", value)
    _checks.array(who, argument, tensor, letters, booleans=True)
    return tensor


def given_parameter(who: str, argument: str, value: Any, letters: str) -> Tensor | keras.Variable:
    """Like `given_tensor`, but a variable stays a variable, to be read when a graph is traced."""
    tensor = given_tensor(who, argument, value, letters)
    return value if isinstance(value, keras.Variable) else tensor


def given_floats(who: str, argument: str, value: Any, letters: str) -> Tensor:
    """Like `given_tensor`, as floats. Booleans raise: they are masks and not numbers."""
    tensor = given_tensor(who, argument, value, letters)
    _checks.array(who, argument, tensor, letters)
    return floating(tensor)


def floating(x: Any, dtype: str | None = None) -> Tensor:
    """`x` as a float tensor: integers and bools become `dtype`, or Keras's float type."""
    x = x if isinstance(x, keras.KerasTensor) else ops.convert_to_tensor(x)
    read = getattr(x, "value", None)
    if callable(read):
        # Keras takes a `tf.Variable` for a tensor, though it lacks attributes of tensors.
        x = read()
    if "float" in keras.backend.standardize_dtype(x.dtype):
        return x
    # Integer values would turn the weights into integers, which are all 0.
    return ops.cast(x, dtype or keras.config.floatx())


# Whether the arguments of the layer have unknown sizes in the batch axis only.
_lengths_are_known: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "tfattn.lengths_are_known", default=False
)


def only_shapes_are_computed() -> bool:
    """Whether this call computes the shapes of a functional model, from placeholders that need not
    have the sizes of the mask's arrays: two for each unknown size on PyTorch, expressions on JAX.
    """
    return keras.backend.backend() != "tensorflow" and is_symbolic()


def is_symbolic() -> bool:
    """Whether this call computes the shapes of a functional model: no number is used."""
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


def is_in_graph(tensor: Any) -> bool:
    """Whether a tensor belongs to a graph of TensorFlow."""
    return keras.backend.backend() == "tensorflow" and not hasattr(tensor, "numpy")


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


_FLOAT_HINT = "a float that is added to the scores, such as 0 and -1e9, goes into `bias`"

# The shapes of an array over all pairs, by the rank of the scores.
SHAPES = {3: "(T, S) or (B, T, S)", 4: "(T, S), (B, T, S) or (B, H, T, S)"}


def checked_bool(
    who: str, argument: str, value: Any, hint: str = _FLOAT_HINT, letters: str = SHAPES[4]
) -> Tensor:
    """`value` as a bool tensor, if it is boolean or holds only 0 and 1; floats raise with `hint`.

    In a graph numbers cannot be checked: all but 0 become True there.
    """
    value = given_tensor(who, argument, value, letters)
    dtype = keras.backend.standardize_dtype(value.dtype)
    if "int" not in dtype:
        _checks.boolean_dtype(who, argument, dtype, hint)
        return value
    for number in _extremes(value):
        if number not in (0, 1):
            expected = "be boolean, or hold 0 and 1, with 1 where attention is allowed"
            _checks.fail(who, argument, expected, int(number))
    return ops.not_equal(value, 0)


def _extremes(value: Tensor) -> list[Any]:
    """The least and the greatest number; empty for a symbolic or an empty tensor."""
    numbers = known_values(value)
    return [] if numbers is None or not numbers.size else [numbers.min(), numbers.max()]


# What NumPy raises for symbolic tensors of a backend; an error of a device is another one, except
# on PyTorch, where a tensor on another device than the CPU raises a TypeError too.
_SYMBOLIC: dict[str, tuple[type[Exception], ...]] = {
    "tensorflow": (NotImplementedError, TypeError),
    "jax": (TypeError,),
    "torch": (RuntimeError, TypeError),
}


def known_values(value: Any) -> np.ndarray | None:
    """The values of a tensor; None in a graph, and on PyTorch on another device."""
    if isinstance(value, keras.KerasTensor):
        return None
    try:
        return np.asarray(value)
    except _SYMBOLIC[keras.backend.backend()]:
        return None


def check_lengths(who: str, argument: str, lengths: Tensor, most: int | None = None) -> None:
    """Raises for lengths below 0 or above `most`, where they are in the memory of the host: a copy
    from an accelerator would wait for all that it computes.
    """
    device = getattr(lengths, "backing_device", None) or getattr(lengths, "device", None)
    if "cpu" not in str(device).lower():
        return
    for length in _extremes(lengths):
        if most is None and length < 0:
            _checks.fail(who, argument, "hold lengths of at least 0", int(length))
        if most is not None and not 0 <= length <= most:
            expected = f"hold lengths from 0 to {most}, the number of keys"
            _checks.fail(who, argument, expected, int(length))


def checked_int(who: str, argument: str, value: Any) -> Tensor:
    """`value` as an int32 tensor, if it holds integers."""
    value = given_tensor(who, argument, value, "(B,) or (B, T)")
    _checks.integer_dtype(who, argument, keras.backend.standardize_dtype(value.dtype))
    return ops.cast(value, "int32")


def check_shape(who: str, argument: str, shape: Shape, scores_shape: Shape) -> None:
    """Raises unless a mask or bias of that static shape broadcasts to scores of `scores_shape`."""
    letters = SHAPES[len(scores_shape)]
    _checks.rank(who, argument, shape, range(2, len(scores_shape) + 1), letters)
    without_heads = (scores_shape[0], *scores_shape[-2:])
    target = tuple(scores_shape) if len(shape) == 4 else without_heads
    _checks.broadcasts(who, argument, shape, target[-len(shape) :], letters)


def with_heads(tensor: Tensor, rank: int) -> Tensor:
    """Gives a `(B, T, S)` tensor an axis of heads where the scores, of that rank, have one."""
    if rank == 4 and len(tensor.shape) == 3:
        return ops.expand_dims(tensor, 1)  # (B, 1, T, S)
    return tensor


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """left `(..., T, X)` · right `(..., X, Y)`; of H heads and G, which divides H, head h of `left`
    is multiplied by head h // (H // G) of `right`.
    """
    heads, groups = left.shape[1], right.shape[1]
    if heads == groups or len(left.shape) != 4:
        return ops.matmul(left, right)
    batch, _, rows, width = ops.shape(left)
    folded = ops.reshape(left, (batch, groups, heads // groups * rows, width))  # (B, G, H/G·T, X)
    product = ops.matmul(folded, right)  # (B, G, H/G·T, Y)
    return ops.reshape(product, (batch, heads, rows, ops.shape(right)[-1]))  # (B, H, T, Y)


def repeat_heads(tensor: Tensor, like: Tensor) -> Tensor:
    """Repeats the heads of `(B, G, S, D)` until there are as many as `like` has."""
    heads, groups = like.shape[1], tensor.shape[1]
    if heads == groups or len(tensor.shape) != 4:
        return tensor
    # A gather: `ops.repeat` would go through a tensor with one more axis.
    return ops.take(tensor, np.repeat(np.arange(groups), heads // groups), axis=1)


def matmul_by_head(tensor: Tensor, matrices: Tensor) -> Tensor:
    """Tokens `(B, H, T, D)` times the matrix of their head, of `(H, D, N)`: `(B, H, T, N)`."""
    # TensorFlow's oneDNN reads beyond the end of a matrix that it broadcasts over a batch beside an
    # axis of 1 (tensorflow#117700).
    if matrices.shape[0] == 1:
        return matmul_shared(tensor, matrices[0])
    return ops.matmul(tensor, matrices)


def matmul_shared(tensor: Tensor, matrix: Tensor) -> Tensor:
    """Every token of `(..., D)` times one `(D, N)` matrix, as one flat product."""
    # The gradient of TensorFlow's batched product holds a copy of the matrix for each row.
    flat = ops.reshape(tensor, (-1, tensor.shape[-1]))  # (B·T, D)
    product = ops.matmul(flat, matrix)  # (B·T, N)
    return ops.reshape(product, (*ops.shape(tensor)[:-1], matrix.shape[-1]))  # (..., N)
