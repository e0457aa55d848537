"""An exercise: its random inputs and the answer in NumPy; its words are in `en.md` and `zh.md`."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LANGUAGES = ("en", "zh")
Cases = Iterator[tuple[Any, ...]]  # the inputs of each case


class Text(NamedTuple):
    """The same words in English and in Chinese."""

    en: str
    zh: str

    def of(self, language: str) -> str:
        """The words in a language, "en" or "zh"."""
        return getattr(self, language)


_STUB = '''"""{title}

{statement}

{commands}
"""

import numpy as np


def {name}({arguments}):
    raise NotImplementedError
'''
_LAYER_STUB = '''"""{title}

{statement}

{commands}
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable("exercises")
class {name}(keras.layers.Layer):
    def __init__({init}):
        super().__init__(**kwargs)

    def call({call}):
        raise NotImplementedError

    def get_config(self):
        return {{**super().get_config()}}
'''
_COMMANDS = Text(
    """\
Tutorial: {tutorial}
Hints:    python -m exercises hint {name}
Check:    python -m exercises check {name}.py""",
    """\
教程：{tutorial}
提示：python -m exercises hint {name} --language zh
检查：python -m exercises check {name}.py --language zh""",
)
_PRAISE = Text(
    "{name} is right, on {count} random inputs.", "{name} 正确：{count} 组随机输入都通过。"
)
_LAYER_PRAISE = Text(
    "{name} is right: outputs, gradients, masks and a saved model are those of tfattn.{layer}.",
    "{name} 正确：输出、梯度、掩码和保存的模型都与 tfattn.{layer} 一致。",
)


@dataclasses.dataclass(frozen=True)
class Exercise:
    """A function to write, and what is needed to explain and to check it.

    Attributes:
        name: name of the function.   tutorial: name of its page, such as "masked_attention".
        draw: yields tuples of inputs from a random generator.
        oracle: the answer in NumPy; its arguments are those of the function.
        tolerance: maximum error of a number, relative to 1 plus its magnitude; a 0 must be exact.
    Example:
        >>> exercises.get("split_heads").hints("en")[0]
        'In memory, the features of a token lie side by side: first those of head 0.'
    """

    name: str
    tutorial: str
    draw: Callable[[np.random.Generator], Cases]
    oracle: Callable[..., Any]
    tolerance: float = 1e-4

    @property
    def arguments(self) -> list[str]:
        """The names of the function's arguments."""
        return list(inspect.signature(self.oracle).parameters)

    def title(self, language: str = "en") -> str:
        """Its title in a language."""
        return _words(language)[self.name][0]

    def statement(self, language: str = "en") -> str:
        """The task."""
        return _words(language)[self.name][1]

    def hints(self, language: str = "en") -> list[str]:
        """Hints, from a nudge to nearly the answer."""
        return _words(language)[self.name][2]

    def cases(self, seed: int) -> list[tuple[Any, ...]]:
        """The function's arguments in each case, drawn with a seed."""
        return list(self.draw(np.random.default_rng(seed)))

    def stub(self, language: str = "en") -> str:
        """The text of a file with the statement and a function to fill in."""
        return _STUB.format(
            title=self.title(language),
            statement=self.statement(language),
            commands=_COMMANDS.of(language).format(name=self.name, tutorial=self.tutorial),
            name=self.name,
            arguments=", ".join(self.arguments),
        )

    def praise(self, language: str = "en") -> str:
        """The sentence about an answer that is right."""
        return _PRAISE.of(language).format(name=self.name, count=len(self.cases(0)))


class Setting(NamedTuple):
    """What the oracle of a layer computes with, beside the arguments of the call.

    Attributes:
        weights: the layer's weights, in float64.   config: the arguments of its constructor.
        mistake: what the oracle does wrong, to recognize it in an answer; "" for nothing.
    """

    weights: list[np.ndarray]
    config: dict[str, Any]
    mistake: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerExercise(Exercise):
    """A `keras.layers.Layer` to write.

    `draw` yields pairs: the arguments of the constructor, and those of a call. `oracle` takes a
    `Setting` and the arguments of the call.

    Attributes:
        make: the package's layer, from the arguments of the constructor.
        mistakes: mistakes that the oracle can make.
    Example:
        >>> exercises.get("DotProductAttention").arguments
        ['query', 'value', 'key', 'key_mask']
    """

    make: Callable[..., Any]
    mistakes: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments of the layer's call."""
        return super().arguments[1:]

    def stub(self, language: str = "en") -> str:
        """The text of a file with the statement and a layer to fill in."""
        init, call = (
            [str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters]
            for parameters in (
                inspect.signature(self.make).parameters.values(),
                list(inspect.signature(self.oracle).parameters.values())[1:],
            )
        )
        if any(parameter.startswith("dropout") for parameter in init):
            call.append("training=None")
        return _LAYER_STUB.format(
            title=self.title(language),
            statement=self.statement(language),
            commands=_COMMANDS.of(language).format(name=self.name, tutorial=self.tutorial),
            name=self.name,
            init=", ".join(["self", *init, "**kwargs"]).replace("'", '"'),
            call=", ".join(["self", *call]),
        )

    def praise(self, language: str = "en") -> str:
        """The sentence about a layer that is right."""
        layer = type(self.make(**self.cases(0)[0][0])).__name__
        return _LAYER_PRAISE.of(language).format(name=self.name, layer=layer)


@functools.cache
def _words(language: str) -> dict[str, tuple[str, str, list[str]]]:
    """(Title, statement, hints) of each exercise, from the page of a language."""
    page = Path(__file__).with_name(f"{language}.md").read_text(encoding="utf-8")
    found = {}
    for name, title, text in re.findall(r"^## (\w+): (.+)\n\n((?:(?!## ).*\n)+)", page, re.M):
        statement, _, hints = text.strip().partition("\n\n- ")
        found[name] = title, statement, hints.split("\n- ")
    return found


def exercise(**parts: Any) -> Callable[[Callable[..., Any]], Exercise]:
    """Makes an exercise of the function that answers it; `parts` are the other attributes."""

    def of(oracle: Callable[..., Any]) -> Exercise:
        return Exercise(name=oracle.__name__, oracle=oracle, **parts)

    return of
