"""Exercises on attention that check themselves, in English and Chinese.

An exercise is a function or a Keras layer to write. Its checker calls it with fresh random inputs,
compares each result with that of a few lines of NumPy, or of the package's layer, and reports the
first difference.

    python -m exercises                        # lists them
    python -m exercises open masked_softmax    # writes masked_softmax.py, to be filled in
    python -m exercises check masked_softmax
"""

import difflib
import importlib
from collections.abc import Callable
from typing import Any

from exercises import checking, layer_checking
from exercises.exercise import LANGUAGES, Exercise, LayerExercise

__all__ = ["Exercise", "check", "get", "names"]

# In the order of the tutorials. They are imported when an exercise is asked for.
_MODULES = ("pooling", "scores", "heads", "order", "blocks", "masks", "decoding", "layers")
_exercises: dict[str, Exercise] = {}


def _all() -> dict[str, Exercise]:
    if not _exercises:
        for module in _MODULES:
            for value in vars(importlib.import_module(f"exercises.{module}")).values():
                if isinstance(value, Exercise):
                    _exercises[value.name] = value
    return _exercises


def names() -> list[str]:
    """The names of all exercises, in the order of the tutorials.

    Example:
        >>> exercises.names()[0]
        'attention_pooling'
    """
    return list(_all())


def get(name: str) -> Exercise:
    """An exercise by its name.

    Args:
        name: one of `names()`.
    Raises:
        ValueError: no exercise has this name.
    Example:
        >>> exercises.get("causal_mask").title()
        'The causal mask'
    """
    if not isinstance(name, str) or name not in _all():
        near = difflib.get_close_matches(str(name), _all(), n=1, cutoff=0.6)
        hint = f" such as {near[0]!r}," if near else ""
        known = "names() or run python -m exercises"
        raise ValueError(
            f"exercises.get: `name` must name an exercise,{hint} see {known}. Received: {name=}"
        )
    return _all()[name]


def check(
    name: str, function: Callable[..., Any], *, language: str = "en", seed: int | None = None
) -> bool:
    """Checks an answer on random inputs and prints whether it is right, or where it differs.

    Args:
        name: one of `names()`.
        function: the answer; takes the exercise's arguments, NumPy arrays and numbers, and returns
            NumPy arrays or tensors of Keras's backend. Of an exercise on a layer, the class.
        language: language of the sentence, "en" or "zh".
        seed: seed of the inputs. Defaults to a new one for each call.
    Returns:
        Whether the answer is right.
    Raises:
        ValueError: no exercise has this name; `function` cannot be called.
    Example:
        >>> def causal_mask(num_queries, num_keys):
        ...     return np.tri(num_queries, num_keys) > 0
        >>> exercises.check("causal_mask", causal_mask, seed=0)
        causal_mask is not right yet: with num_queries=3, num_keys=5, at index (0, 1), expected
        True, got False. The inputs: exercises.get('causal_mask').cases(0)[1]
        False
    """
    exercise = get(name)
    if not callable(function):
        raise ValueError(f"exercises.check: `function` must be callable. Received: {function=}")
    if language not in LANGUAGES:
        raise ValueError(
            f"exercises.check: `language` must be one of {LANGUAGES}. Received: {language=}"
        )
    found = (
        layer_checking.fault(exercise, function, language, seed)
        if isinstance(exercise, LayerExercise)
        else checking.fault(exercise, function, language, seed)
    )
    print(found or exercise.praise(language))
    return found is None
