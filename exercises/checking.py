"""Compares an answer with the oracle of its exercise, and reports the first difference."""

import copy
import secrets
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from exercises.exercise import Exercise, Text

_KINDS = {"b": "boolean", "i": "integer", "u": "integer", "f": "float"}
_NOT_RIGHT = Text("{name} is not right yet: {what}.", "{name} 还不正确：{what}。")
_WHERE = Text("with {inputs}, {what}", "输入为 {inputs} 时，{what}")
_INPUTS = Text(" The inputs: ", "这组输入：")
_MESSAGES = {
    "empty": Text(
        "its body is still to be written (it raises NotImplementedError)",
        "函数体还没有写（引发了 NotImplementedError）",
    ),
    "none": Text("it returns None: is there a `return`?", "返回了 None：是不是忘了 `return`"),
    "raised": Text("it raises {error}", "函数引发了 {error}"),
    "raised_at": Text("line {line} raises {error}", "第 {line} 行引发了 {error}"),
    "changed": Text(
        "it changes its argument `{argument}` in place; compute on a copy",
        "函数就地修改了参数 `{argument}`；请在副本上计算",
    ),
    "constant": Text(
        "it returns equal results where the answers differ; compute the answer from the inputs",
        "输入不同、答案也应不同，返回值却总是一样；答案要由输入算出",
    ),
    "number": Text(
        "expected {wanted} results, got {given}", "应返回 {wanted} 个结果，得到 {given} 个"
    ),
    "array": Text("{which}got {given}, which is no array", "{which}得到 {given}，不是数组"),
    "shape": Text(
        "{which}expected shape {wanted}, got {given}", "{which}形状应为 {wanted}，得到 {given}"
    ),
    "kind": Text(
        "{which}expected dtype {wanted}, got {given}",
        "{which}数据类型应为 {wanted}，得到 {given}",
    ),
    "value": Text(
        "{which}at index {index}, expected {wanted}, got {given}",
        "{which}下标 {index} 处应为 {wanted}，得到 {given}",
    ),
    "scalar": Text("{which}expected {wanted}, got {given}", "{which}应为 {wanted}，得到 {given}"),
    "which": Text("result {number} of {count}: ", "第 {number} 个结果（共 {count} 个）："),
}

_OF_EVERY_CASE = ("empty", "none", "constant")
_OF_VALUES = ("number", "array", "shape", "kind", "value", "scalar")


class _Fault(NamedTuple):
    """A key of `_MESSAGES` with the values for its text."""

    key: str
    facts: dict[str, Any]

    def words(self, language: str) -> str:
        which = self.facts.get("which")
        which = _MESSAGES["which"].of(language).format(**which) if which else ""
        return _MESSAGES[self.key].of(language).format(**{**self.facts, "which": which})


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
            found = _Fault("constant", {})
        what, inputs_of_case = found.words(language), ""
        if found.key not in _OF_EVERY_CASE:
            what = _WHERE.of(language).format(inputs=_described(exercise, inputs), what=what)
            call = f"exercises.get({exercise.name!r}).cases({seed})[{number}]"
            inputs_of_case = _INPUTS.of(language) + call
        return _NOT_RIGHT.of(language).format(name=exercise.name, what=what) + inputs_of_case
    return None


def _fault_of_case(
    exercise: Exercise, function: Callable[..., Any], inputs: tuple[Any, ...]
) -> _Fault | None:
    copies = copy.deepcopy(inputs)
    try:
        with np.errstate(all="ignore"):
            given = function(*copies)
    except NotImplementedError as error:
        return _Fault("empty", {}) if not error.args else _raised(function, error)
    except (Exception, SystemExit) as error:  # whatever an answer raises is shown
        return _raised(function, error)
    for argument, before, after in zip(exercise.arguments, inputs, copies, strict=True):
        if not np.array_equal(before, after, equal_nan=np.asarray(before).dtype.kind == "f"):
            return _Fault("changed", {"argument": argument})
    if given is None:
        return _Fault("none", {})
    return _difference(exercise.oracle(*inputs), given, exercise.tolerance)


def _raised(function: Callable[..., Any], error: BaseException) -> _Fault:
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":. ")
    if not lines:
        return _Fault("raised", {"error": text})
    return _Fault("raised_at", {"error": text, "line": lines[-1]})


def _difference(wanted: Any, given: Any, tolerance: float) -> _Fault | None:
    if not isinstance(wanted, tuple):
        return _difference_of_one(wanted, given, tolerance, None)
    if not isinstance(given, tuple | list) or len(given) != len(wanted):
        size = len(given) if isinstance(given, tuple | list) else 1
        return _Fault("number", {"wanted": len(wanted), "given": size})
    for number, (one, other) in enumerate(zip(wanted, given, strict=True), 1):
        which = {"number": number, "count": len(wanted)}
        if found := _difference_of_one(one, other, tolerance, which):
            return found
    return None


def _difference_of_one(
    wanted: Any, given: Any, tolerance: float, which: dict[str, int] | None
) -> _Fault | None:
    wanted, array = np.asarray(wanted), _array(given)
    if array is None:
        return _Fault("array", {"which": which, "given": type(given).__name__})
    if array.shape != wanted.shape:
        return _Fault("shape", {"which": which, "wanted": wanted.shape, "given": array.shape})
    kinds = [_KINDS[wanted.dtype.kind], _KINDS.get(array.dtype.kind, str(array.dtype))]
    if kinds[0] != kinds[1]:
        return _Fault("kind", {"which": which, "wanted": kinds[0], "given": str(array.dtype)})
    far = _differs(wanted, array, tolerance)
    if not far.any():
        return None
    index = tuple(int(place) for place in np.argwhere(far)[0])
    numbers = _short(wanted[index], array[index])
    facts = {"which": which, "wanted": numbers[0], "given": numbers[1]}
    return _Fault("value", {**facts, "index": index}) if index else _Fault("scalar", facts)


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


def _short(wanted: Any, given: Any) -> tuple[str, str]:
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
