"""An exercise: its random inputs and the answer in NumPy; its words are in `en.md` and `zh.md`."""

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


class Exercise(NamedTuple):
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
