"""The arguments of constructors."""

import inspect
from collections.abc import Callable
from typing import Any

from tfattn import _checks


def constructor_arguments(instance: object) -> list[str]:
    """The arguments of the object's constructor that are its attributes, including those that the
    constructor passes on, as `*arguments` or `**options`, to classes other than Keras's.

    Raises:
        ValueError: an argument is not kept, and no `get_config` of its class or a subclass adds it.
    """
    names, added = [], False
    for base in type(instance).__mro__[:-1]:  # without `object`
        added = added or "get_config" in vars(base)
        if "__init__" not in vars(base):
            continue
        if base.__module__.partition(".")[0] == "keras":
            break
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        passed_on = [each for each in parameters if each.kind in _PASSED_ON]
        for name in [each.name for each in parameters if each not in passed_on]:
            if hasattr(instance, name):
                names.append(name)
            elif not added:
                expected = "be kept as an attribute of its name, or `get_config` be overridden"
                _checks.fail(type(instance).__name__, name, expected, "no attribute")
        if not passed_on:
            break
    return names


def written(instance: object, name: str, shown: Callable[[Any], str] = repr) -> str:
    """The object as the code that makes it: `name`, and the arguments that differ from their
    defaults, as `shown`.
    """
    arguments = []
    for argument, parameter in inspect.signature(type(instance)).parameters.items():
        value = getattr(instance, argument, parameter.default)
        if parameter.kind in _PASSED_ON or value is parameter.default:
            continue
        if type(value) is not type(parameter.default) or value != parameter.default:
            prefix = f"{argument}=" if arguments else ""
            arguments.append(prefix + shown(value))
    return f"{name}({', '.join(arguments)})"


_PASSED_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
