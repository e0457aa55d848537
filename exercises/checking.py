"""Compares an answer with the oracle of its exercise, and reports the first difference."""

import copy
import secrets
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from exercises.exercise import Exercise
from exercises.messages import Fault

_KINDS = {"b": "boolean", "i": "integer", "u": "integer", "f": "float"}

_OF_EVERY_CASE = ("empty", "none", "constant")
_OF_VALUES = ("number", "array", "shape", "kind", "value", "scalar")


def fault(
    exercise: Exercise, function: Callable[..., Any], language: str, seed: int | None = None
) -> str | None:
    """The first difference between a function and the oracle, as a sentence; None without one."""
    seed = secrets.randbelow(10**6) if seed is None else seed
    cases = exercise.cases(seed)
    for number, inputs in enumerate(cases):
        found = _fault_of_case(exercise, function, inputs)
        if found is None:
            continue
        if found.key in _OF_VALUES and _is_constant(exercise, function, cases):
            found = Fault("constant", {})
        is_of_inputs = found.key not in _OF_EVERY_CASE
        case = (_described(exercise, inputs), seed, number) if is_of_inputs else None
        return found.sentence(exercise.name, language, case)
    return None


def _fault_of_case(
    exercise: Exercise, function: Callable[..., Any], inputs: tuple[Any, ...]
) -> Fault | None:
    copies = copy.deepcopy(inputs)
    try:
        with np.errstate(all="ignore"):
            given = function(*copies)
    except NotImplementedError as error:
        return Fault("empty", {}) if not error.args else raised(function, error)
    except (Exception, SystemExit) as error:  # whatever an answer raises is shown
        return raised(function, error)
    for argument, before, after in zip(exercise.arguments, inputs, copies, strict=True):
        if not np.array_equal(before, after, equal_nan=np.asarray(before).dtype.kind == "f"):
            return Fault("changed", {"argument": argument})
    if given is None:
        return Fault("none", {})
    return _difference(exercise.oracle(*inputs), given, exercise.tolerance)


def raised(function: Callable[..., Any], error: BaseException) -> Fault:
    """What an answer raised, with its line in the answer's file."""
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":. ")
    if not lines:
        return Fault("raised", {"error": text})
    return Fault("raised_at", {"error": text, "line": lines[-1]})


def _difference(wanted: Any, given: Any, tolerance: float) -> Fault | None:
    if not isinstance(wanted, tuple):
        return _difference_of_one(wanted, given, tolerance, None)
    if not isinstance(given, tuple | list) or len(given) != len(wanted):
        size = len(given) if isinstance(given, tuple | list) else 1
        return Fault("number", {"wanted": len(wanted), "given": size})
    for number, (one, other) in enumerate(zip(wanted, given, strict=True), 1):
        which = {"number": number, "count": len(wanted)}
        if found := _difference_of_one(one, other, tolerance, which):
            return found
    return None


def _difference_of_one(
    wanted: Any, given: Any, tolerance: float, which: dict[str, int] | None
) -> Fault | None:
    wanted, array = np.asarray(wanted), _array(given)
    if array is None:
        return Fault("array", {"which": which, "given": type(given).__name__})
    if array.shape != wanted.shape:
        return Fault("shape", {"which": which, "wanted": wanted.shape, "given": array.shape})
    kinds = [_KINDS[wanted.dtype.kind], _KINDS.get(array.dtype.kind, str(array.dtype))]
    if kinds[0] != kinds[1]:
        return Fault("kind", {"which": which, "wanted": kinds[0], "given": str(array.dtype)})
    far = _differs(wanted, array, tolerance)
    if not far.any():
        return None
    index = tuple(int(place) for place in np.argwhere(far)[0])
    numbers = short(wanted[index], array[index])
    facts = {"which": which, "wanted": numbers[0], "given": numbers[1]}
    return Fault("value", {**facts, "index": index}) if index else Fault("scalar", facts)


def _array(given: Any) -> np.ndarray | None:
    """A result as a NumPy array; None if it is not an array."""
    try:
        if hasattr(given, "dtype") and not isinstance(given, np.ndarray | np.generic):
            import keras

            if keras.ops.is_tensor(given):
                given = keras.ops.convert_to_numpy(given)
        array = np.asarray(given)
    except Exception:  # a ragged list, or another library's tensor
        return None
    if str(array.dtype) == "bfloat16":
        array = array.astype("float32")
    return array if array.dtype.kind in "biufc" else None


def _differs(wanted: np.ndarray, given: np.ndarray, tolerance: float) -> np.ndarray:
    if wanted.dtype.kind != "f":
        return wanted != given
    wanted, given = wanted.astype("float64"), given.astype("float64")
    with np.errstate(invalid="ignore"):  # infinity less infinity
        near = np.abs(given - wanted) <= tolerance * (1 + np.abs(wanted))
    near &= (wanted != 0) | (given == 0)  # a weight of 0 is exactly 0
    near &= np.isfinite(given) & np.isfinite(wanted)  # any number is near to infinity
    return ~near & (given != wanted)


def short(wanted: Any, given: Any) -> tuple[str, str]:
    """Both numbers as text, with as many digits as tell them apart."""
    if wanted.dtype.kind != "f":
        return str(wanted), str(given)
    pairs = [(f"{float(wanted):.{n}g}", f"{float(given):.{n}g}") for n in (4, 7, 17)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])


def _described(exercise: Exercise, inputs: tuple[Any, ...]) -> str:
    """The inputs in words: shapes of arrays, values of numbers."""
    words = []
    for argument, value in zip(exercise.arguments, inputs, strict=True):
        is_array = isinstance(value, np.ndarray)
        words.append(f"{argument} {value.shape}" if is_array else f"{argument}={value}")
    return ", ".join(words)


def _is_constant(
    exercise: Exercise, function: Callable[..., Any], cases: list[tuple[Any, ...]]
) -> bool:
    """Whether a function returns the same for all cases, though the answers differ."""
    try:
        with np.errstate(all="ignore"):
            results = [function(*copy.deepcopy(inputs)) for inputs in cases]
    except (Exception, SystemExit):  # raised in a later case
        return False
    wanted = [exercise.oracle(*inputs) for inputs in cases]
    return _all_equal(results) and not _all_equal(wanted)


def _all_equal(results: list[Any]) -> bool:
    first, *others = (
        [_array(part) for part in (result if isinstance(result, tuple) else (result,))]
        for result in results
    )
    return all(
        len(first) == len(other)
        and all(
            x is not None and y is not None and np.array_equal(x, y)
            for x, y in zip(first, other, strict=True)
        )
        for other in others
    )
