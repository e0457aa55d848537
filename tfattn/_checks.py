"""Argument checks of the package; all errors have one form.

    who: `argument` must <expected>. Received: argument=<received>

A check of a value returns it, for `self.units = _checks.positive_int("Score", "units", units)`.
"""

import math
import numbers
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from tfattn._types import Shape

Value = TypeVar("Value")


def fail(
    who: str, argument: str, expected: str, received: object, error: type[Exception] = ValueError
) -> NoReturn:
    """Raises `error` in this form; `expected` begins with a verb: "be a positive integer"."""
    raise error(f"{who}: `{argument}` must {expected}. Received: {argument}={received!r}")


def _check_of(
    kind: Any, returned: Callable[[Any], Value], expected: str, holds: Callable[[Any], bool]
) -> Callable[[str, str, Any], Value]:
    """The check of values of that kind for which `holds` is true. True and False are no numbers."""

    def check(who: str, argument: str, value: Any) -> Value:
        is_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not is_kind or not holds(value):
            fail(who, argument, expected, value)
        return returned(value)

    return check


_int, _number = (numbers.Integral, int), (numbers.Real, float)
positive_int = _check_of(*_int, "be a positive integer", lambda x: x > 0)
non_negative_int = _check_of(*_int, "be an integer of at least 0", lambda x: x >= 0)
# Comparisons with NaN are False.
finite_number = _check_of(*_number, "be a finite number", lambda x: abs(x) < math.inf)
positive_number = _check_of(*_number, "be a positive, finite number", lambda x: 0 < x < math.inf)
non_negative_number = _check_of(
    *_number, "be a finite number of at least 0", lambda x: 0 <= x < math.inf
)
probability = _check_of(*_number, "be a number in [0, 1)", lambda x: 0 <= x < 1)
fraction = _check_of(*_number, "be a number in (0, 1]", lambda x: 0 < x <= 1)
integer = _check_of(*_int, "be an integer", lambda x: True)
boolean = _check_of(bool, bool, "be True or False", lambda x: True)
string = _check_of(str, str, "be a string", lambda x: True)
pair = _check_of(list | tuple, list, "be a pair, of source and target", lambda x: len(x) == 2)
# `os.fspath` accepts bytes too, and `open` accepts a number, as a file descriptor.
path = _check_of(
    str | os.PathLike,
    os.fspath,
    "be a path: a string, or a pathlib.Path",
    lambda x: isinstance(os.fspath(x), str),
)


def seed(who: str, value: Any, argument: str = "seed") -> int | None:
    """A seed of a random number generator: an integer of at least 0, or None."""
    # Backends hold a seed in a signed 64-bit integer.
    if value is not None and non_negative_int(who, argument, value) >= 2**63:
        fail(who, argument, "be below 2**63", value)
    return None if value is None else int(value)


def flag(who: str, argument: str, value: Any) -> None:
    """A flag of a call: True or False, 1 or 0, or a boolean scalar tensor."""
    known = isinstance(value, numbers.Real) and value in (0, 1)
    tensor = hasattr(value, "dtype") and "bool" in str(value.dtype) and not len(value.shape)
    if not known and not tensor:
        fail(who, argument, "be True or False", value)


def array(who: str, argument: str, value: Any, letters: str, booleans: bool = False) -> None:
    """A dense numeric tensor or array of any backend; messages show its shapes as `letters`."""
    dense = f"be dense, of shape {letters}: pass "
    if hasattr(value, "row_splits") or getattr(value, "ragged", False) is True:
        recipe = "`ragged.to_tensor()`, and `valid_lens=ragged.row_lengths()` for the keys"
        fail(who, argument, dense + recipe, type(value).__name__)
    sparse = hasattr(value, "dense_shape") or hasattr(value, "tocoo")
    # Keras marks any symbolic product with a number as sparse: inputs alone tell.
    made_by = getattr(getattr(value, "_keras_history", None), "operation", None)
    is_product = type(made_by).__name__ not in ("InputLayer", "NoneType")
    if sparse or (getattr(value, "sparse", False) is True and not is_product):
        fail(who, argument, f"{dense}`tf.sparse.to_dense(tensor)`", type(value).__name__)
    expected = f"be a tensor of numbers, of shape {letters}"
    if isinstance(value, type) or not (hasattr(value, "shape") and hasattr(value, "dtype")):
        fail(who, argument, expected, value)
    dtype = str(getattr(value.dtype, "name", value.dtype))
    if not ("int" in dtype or "float" in dtype or (booleans and "bool" in dtype)):
        fail(who, argument, expected, f"{dtype}, of shape {value.shape}")


def _entries(who: str, argument: str, value: Any, expected: str) -> list[Any]:
    """The entries of an iterable, other than the characters of a string."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        fail(who, argument, expected, value)
    return list(value)


def strings(who: str, argument: str, value: Any) -> list[str]:
    """The strings of a collection, as a list."""
    entries = _entries(who, argument, value, "be a collection of strings")
    for entry in entries:
        if not isinstance(entry, str):
            fail(who, argument, "hold strings", entry)
    return entries


def integers(who: str, argument: str, value: Any) -> list[int]:
    """The integers of an iterable: a list, an array or a row of a tensor."""
    entries = _entries(who, argument, value, "be a sequence of integers")
    for entry in entries:
        # An entry of a tensor is no Python number, but has `__index__`.
        is_index = hasattr(entry, "__index__") and not len(getattr(entry, "shape", ()))
        if isinstance(entry, bool | float) or not is_index:
            fail(who, argument, "hold integers", entry)
    return [int(entry) for entry in entries]


def pairs(who: str, argument: str, value: Any) -> list[tuple[str, str]]:
    """The pairs of strings of an iterable."""
    checked = []
    for pair in _entries(who, argument, value, "be pairs of strings"):
        sides = () if isinstance(pair, str) or not isinstance(pair, Iterable) else tuple(pair)
        if len(sides) != 2 or not all(isinstance(side, str) for side in sides):
            fail(who, argument, "hold pairs of strings", pair)
        checked.append(sides)
    return checked


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


def has_width(who: str, argument: str, shape: Shape) -> None:
    """A shape whose last axis is not empty."""
    if shape[-1] == 0:
        fail(who, argument, "have at least one feature, on its last axis", tuple(shape))


def known_width(who: str, argument: str, shape: Shape) -> None:
    """A shape whose last size is known when the graph is built."""
    if shape[-1] is None:
        fail(who, argument, "have a last axis of known size", tuple(shape))


def divides(who: str, argument: str, divisor: int, whole_name: str, whole: int) -> None:
    """A divisor of `whole`, such as the heads of a width."""
    if whole % divisor:
        fail(who, argument, f"divide `{whole_name}`={whole} without remainder", divisor)


def rank(who: str, argument: str, shape: Shape, ranks: Collection[int], letters: str) -> Shape:
    """A shape whose rank is in `ranks`; the message shows the shapes as `letters`."""
    if len(shape) not in ranks:
        fail(who, argument, f"have shape {letters}", tuple(shape))
    return shape


def same_size(
    who: str, argument: str, size: Any, other_name: str, other: Any, things: str = "tokens"
) -> None:
    """Two sizes are equal."""
    if None not in (size, other) and size != other:
        fail(who, argument, f"have as many {things} as `{other_name}`, which has {other}", size)


def same_batch(who: str, argument: str, shape: Shape, other_name: str, other: Shape) -> None:
    """Two shapes have the same batch size."""
    if None not in (shape[0], other[0]) and shape[0] != other[0]:
        fail(who, argument, f"have the batch size of `{other_name}`, {other[0]}", tuple(shape))


def broadcasts(who: str, argument: str, shape: Shape, target: Shape, letters: str) -> None:
    """A shape broadcasts to `target`."""
    aligned = zip(tuple(shape)[::-1], tuple(target)[::-1], strict=False)
    fits = all(size in (None, 1) or wanted is None or size == wanted for size, wanted in aligned)
    if not fits or len(shape) > len(target):
        expected = f"have shape {letters}, here {tuple(target)}, or 1 where it repeats"
        fail(who, argument, expected, tuple(shape))


def boolean_dtype(who: str, argument: str, dtype: str, instead: str) -> None:
    """A boolean dtype; the message ends with the hint `instead`."""
    if dtype != "bool":
        fail(who, argument, f"be boolean, True where attention is allowed ({instead})", dtype)


def integer_dtype(who: str, argument: str, dtype: str) -> None:
    """An integer dtype of any width."""
    if "int" not in dtype:
        fail(who, argument, "hold integers", dtype)
