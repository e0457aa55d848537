"""Argument checks of the package; all errors have one form.

    who: `argument` must <expected>. Received: argument=<received>

This module imports no tensor library, and of tfattn only the types. A check returns the checked
value, so that a constructor can write
`self.units = _checks.positive_int("AdditiveScore", "units", units)`.
"""

import numbers
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

from tfattn._types import Shape


def fail(
    who: str, argument: str, expected: str, received: object, error: type[Exception] = ValueError
) -> NoReturn:
    """Raises `error` in this form; `expected` begins with a verb: "be a positive integer"."""
    raise error(f"{who}: `{argument}` must {expected}. Received: {argument}={received!r}")


def _is_int(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def positive_int(who: str, argument: str, value: Any) -> int:
    """An integer above 0."""
    if not _is_int(value) or value <= 0:
        fail(who, argument, "be a positive integer", value)
    return int(value)


def non_negative_int(who: str, argument: str, value: Any) -> int:
    """An integer of at least 0."""
    if not _is_int(value) or value < 0:
        fail(who, argument, "be an integer of at least 0", value)
    return int(value)


def positive_number(who: str, argument: str, value: Any) -> float:
    """A finite number above 0."""
    # The chained comparison is False for NaN too.
    if not _is_real(value) or not 0 < value < float("inf"):
        fail(who, argument, "be a positive, finite number", value)
    return float(value)


def non_negative_number(who: str, argument: str, value: Any) -> float:
    """A finite number of at least 0."""
    if not _is_real(value) or not 0 <= value < float("inf"):
        fail(who, argument, "be a finite number of at least 0", value)
    return float(value)


def finite_number(who: str, argument: str, value: Any) -> float:
    """A number that is not NaN or infinite."""
    if not _is_real(value) or not -float("inf") < value < float("inf"):
        fail(who, argument, "be a finite number", value)
    return float(value)


def probability(who: str, argument: str, value: Any) -> float:
    """A rate in [0, 1): a rate of 1 would drop everything."""
    if not _is_real(value) or not 0 <= value < 1:
        fail(who, argument, "be a number in [0, 1)", value)
    return float(value)


def fraction(who: str, argument: str, value: Any, or_none: str = "") -> float:
    """A number in (0, 1]."""
    if not _is_real(value) or not 0 < value <= 1:
        fail(who, argument, f"be a number in (0, 1]{or_none}", value)
    return float(value)


def seed(who: str, value: Any, argument: str = "seed") -> int | None:
    """A seed of a random number generator: an integer of at least 0, or None."""
    if value is None:
        return None
    # Backends hold a seed in a signed 64-bit integer.
    if non_negative_int(who, argument, value) >= 2**63:
        fail(who, argument, "be below 2**63", value)
    return int(value)


def boolean(who: str, argument: str, value: Any) -> bool:
    """True or False; 1 and 0 are refused."""
    if not isinstance(value, bool):
        fail(who, argument, "be True or False", value)
    return value


def flag(who: str, argument: str, value: Any) -> None:
    """A flag of a call: True or False, 1 or 0, or a boolean scalar tensor."""
    known = isinstance(value, numbers.Real) and value in (0, 1)
    tensor = hasattr(value, "dtype") and "bool" in str(value.dtype) and not len(value.shape)
    if not known and not tensor:
        fail(who, argument, "be True or False", value)


def path(who: str, argument: str, value: Any) -> str:
    """The path of a file, as a string."""
    # `os.fspath` accepts bytes too, and `open` accepts a number, as a file descriptor.
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        fail(who, argument, "be a path: a string, or a pathlib.Path", value)
    return os.fspath(value)


def array(who: str, argument: str, value: Any, letters: str, booleans: bool = False) -> None:
    """A dense numeric tensor or array of any backend; messages show its shapes as `letters`."""
    expected = f"be a tensor of numbers, of shape {letters}"
    if hasattr(value, "row_splits") or getattr(value, "ragged", False) is True:
        recipe = "pass `ragged.to_tensor()`, and `valid_lens=ragged.row_lengths()` for the keys"
        fail(who, argument, f"be dense, of shape {letters}: {recipe}", type(value).__name__)
    sparse = hasattr(value, "dense_shape") or hasattr(value, "tocoo")
    if sparse or getattr(value, "sparse", False) is True:
        recipe = "pass `tf.sparse.to_dense(tensor)`"
        fail(who, argument, f"be dense, of shape {letters}: {recipe}", type(value).__name__)
    if isinstance(value, type) or not (hasattr(value, "shape") and hasattr(value, "dtype")):
        fail(who, argument, expected, value)
    dtype = str(getattr(value.dtype, "name", value.dtype))
    if not ("int" in dtype or "float" in dtype or (booleans and "bool" in dtype)):
        fail(who, argument, expected, f"{dtype}, of shape {value.shape}")


def string(who: str, argument: str, value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        fail(who, argument, "be a string", value)
    return value


def integers(who: str, argument: str, value: Any) -> list[int]:
    """The integers of an iterable: a list, an array or a row of a tensor."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        fail(who, argument, "be a sequence of integers", value)
    entries = list(value)
    for entry in entries:
        # An entry of a tensor is no Python number, but has `__index__`.
        is_index = hasattr(entry, "__index__") and not len(getattr(entry, "shape", ()))
        if isinstance(entry, bool | float) or not is_index:
            fail(who, argument, "hold integers", entry)
    return [int(entry) for entry in entries]


# What NumPy raises for symbolic tensors of a backend; an error of a device is another one, except
# on PyTorch, where a tensor on another device than the CPU raises a TypeError too.
SYMBOLIC: Mapping[str, tuple[type[Exception], ...]] = {
    "tensorflow": (NotImplementedError, TypeError),
    "jax": (TypeError,),
    "torch": (RuntimeError, TypeError),
}


def whole(who: str, argument: str, numbers: Any) -> None:
    """A NumPy array of ids: integers, or floats without a fraction."""
    wrong = numbers[(numbers != numbers.round()) | (abs(numbers) == float("inf"))]  # NaN too
    if wrong.size:
        fail(who, argument, "hold integers", wrong[0].item())


def pairs(who: str, argument: str, value: Any) -> list[tuple[str, str]]:
    """The pairs of strings of an iterable."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        fail(who, argument, "be pairs of strings", value)
    checked = []
    for pair in value:
        sides = () if isinstance(pair, str) or not isinstance(pair, Iterable) else tuple(pair)
        if len(sides) != 2 or not all(isinstance(side, str) for side in sides):
            fail(who, argument, "hold pairs of strings", pair)
        checked.append(sides)
    return checked


def strings(who: str, argument: str, value: Any) -> list[str]:
    """The strings of a collection, as a list."""
    # A string is an iterable of strings too.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        fail(who, argument, "be a collection of strings", value)
    entries = list(value)
    for entry in entries:
        if not isinstance(entry, str):
            fail(who, argument, "hold strings", entry)
    return entries


def same_width(who: str, argument: str, shape: Shape, other_name: str, other: Shape) -> None:
    """Two static shapes have the same last size, where both sizes are known."""
    if None not in (shape[-1], other[-1]) and shape[-1] != other[-1]:
        fail(who, argument, f"be as wide as `{other_name}`, {other[-1]}", tuple(shape))


def has_width(who: str, argument: str, shape: Shape) -> None:
    """A static shape whose last axis is not empty."""
    if shape[-1] == 0:
        fail(who, argument, "have at least one feature, on its last axis", tuple(shape))


def known_width(who: str, argument: str, shape: Shape) -> None:
    """A shape whose last size is known when the graph is built."""
    if shape[-1] is None:
        fail(who, argument, "have a last axis of known size", tuple(shape))


def mapping(who: str, argument: str, value: Any, names: Collection[str] = ()) -> None:
    """A dict with an entry for each of `names`."""
    if not isinstance(value, Mapping):
        fail(who, argument, "be a dict with names as keys", value)
    for name in names:
        if name not in value:
            fail(who, argument, f"have the entry {name!r}", sorted(map(str, value)))


def vocabulary(who: str, argument: str, value: Any) -> None:
    """An object with the methods and ids of a vocabulary of `tfattn.data`."""
    if not callable(getattr(value, "encode", None)) or not hasattr(value, "end_id"):
        fail(who, argument, "be a vocabulary, such as tfattn.data.Vocabulary", value)
    padding = getattr(value, "padding_id", 0)
    if padding != 0:
        fail(who, f"{argument}.padding_id", "be 0, which models and losses skip", padding)


def divides(who: str, argument: str, divisor: int, whole_name: str, whole: int) -> int:
    """A divisor of `whole`, such as the heads of a width."""
    if whole % divisor:
        fail(who, argument, f"divide `{whole_name}`={whole} without remainder", divisor)
    return divisor


def rank(who: str, argument: str, shape: Shape, ranks: Collection[int], letters: str) -> Shape:
    """A static shape whose rank is in `ranks`; the message shows the shapes as `letters`."""
    if len(shape) not in ranks:
        fail(who, argument, f"have shape {letters}", tuple(shape))
    return shape


def same_size(
    who: str,
    argument: str,
    size: int | None,
    other_name: str,
    other: int | None,
    things: str = "tokens",
) -> None:
    """Two static sizes are equal, where both are known."""
    if size is not None and other is not None and size != other:
        fail(who, argument, f"have as many {things} as `{other_name}`, which has {other}", size)


def same_batch(who: str, argument: str, shape: Shape, other_name: str, other: Shape) -> None:
    """Two static shapes have the same batch size, where both sizes are known."""
    if None not in (shape[0], other[0]) and shape[0] != other[0]:
        fail(who, argument, f"have the batch size of `{other_name}`, {other[0]}", tuple(shape))


def broadcasts(who: str, argument: str, shape: Shape, target: Shape, letters: str) -> Shape:
    """A static shape broadcasts to `target`, as far as both are known."""
    aligned = zip(tuple(shape)[::-1], tuple(target)[::-1], strict=False)
    fits = all(size in (None, 1) or wanted is None or size == wanted for size, wanted in aligned)
    if not fits or len(shape) > len(target):
        expected = f"have shape {letters}, here {tuple(target)}, or 1 where it repeats"
        fail(who, argument, expected, tuple(shape))
    return shape


def boolean_dtype(who: str, argument: str, dtype: str, instead: str) -> None:
    """A boolean dtype; the message ends with the hint `instead`."""
    if dtype != "bool":
        fail(who, argument, f"be boolean, True where attention is allowed ({instead})", dtype)


def integer_dtype(who: str, argument: str, dtype: str) -> None:
    """An integer dtype of any width."""
    if "int" not in dtype:
        fail(who, argument, "hold integers", dtype)
