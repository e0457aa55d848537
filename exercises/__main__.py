"""The commands of `python -m exercises`."""

import argparse
import io
import itertools
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exercises import check, get, names
from exercises.exercise import LANGUAGES, LayerExercise

FAILED = 1  # argparse exits with 2 for invalid arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m exercises",
        description="Exercises on attention that check themselves. Without a command: lists them.",
    )
    language: dict[str, Any] = {
        "choices": LANGUAGES,
        "default": "en",
        "help": "language of all texts (default: en)",
    }
    parser.add_argument("--language", **language)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, words in (
        ("list", "list all exercises"),
        ("open", "write the file of an exercise into this folder"),
        ("hint", "show the hints of an exercise, by default the first one"),
        ("check", "check an answer: a file, or a name for NAME.py in this folder"),
    ):
        command = commands.add_parser(name, help=words, description=words.capitalize() + ".")
        command.add_argument("--language", **{**language, "default": argparse.SUPPRESS})
        if name == "check":
            command.add_argument("target", metavar="FILE_OR_NAME")
        elif name != "list":
            command.add_argument("name", metavar="NAME")
        if name == "hint":
            words = "number of hints (default: 1)"
            command.add_argument("--number", type=int, default=1, help=words)
    return parser


def _list(language: str) -> None:
    exercises = [get(name) for name in names()]
    for tutorial, group in itertools.groupby(exercises, lambda exercise: exercise.tutorial):
        print(tutorial)
        for exercise in group:
            print(f"  {exercise.name:24}{exercise.title(language)}")


def _open(name: str, language: str) -> None:
    path = Path(f"{name}.py")
    text = get(name).stub(language)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"{path} exists already and was left as it is") from None
    print(path)


def _hint(name: str, number: int, language: str) -> None:
    hints = get(name).hints(language)
    for place, hint in enumerate(hints[: max(number, 1)], 1):
        print(f"{place}/{len(hints)}  {hint}")


def _is_answer(value: Any) -> bool:
    """Whether a value of a file is an answer, and not a class that the file imports."""
    return callable(value) and not (
        isinstance(value, type) and value.__module__.startswith(("keras.", "tfattn."))
    )


def _check(target: str, language: str) -> bool:
    path = Path(target if target.endswith(".py") else f"{target}.py")
    if not path.is_file():
        raise ValueError(f"{path} does not exist; `open {path.stem}` writes it")
    try:
        found = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:  # in the file
        frames = traceback.extract_tb(error.__traceback__)
        lines: list[Any] = [each.lineno for each in frames if each.filename == str(path)] or ["?"]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1]
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ValueError(f"{path}, line {line}: {text}") from None
    answers = [name for name in names() if _is_answer(found.get(name))]
    if path.stem in names() and path.stem not in answers:
        kind = "class" if isinstance(get(path.stem), LayerExercise) else "function"
        raise ValueError(f"{path} defines no {kind} `{path.stem}`")
    if not answers:
        raise ValueError(f"{path} defines no function or class with the name of an exercise")
    return all([check(name, found[name], language=language) for name in answers])


def _wrong_name(options: argparse.Namespace) -> str | None:
    """The name in the arguments, if it is that of neither an exercise nor a file."""
    name = getattr(options, "name", None)
    if options.command == "check":
        path = Path(options.target)
        is_there = path.suffix == ".py" and path.is_file()
        name = None if is_there else path.name.removesuffix(".py")
    return None if name in names() else name


def _run(options: argparse.Namespace) -> bool:
    """Runs the command; returns whether the answers are right."""
    if options.command == "check":
        return _check(options.target, options.language)
    if options.command == "open":
        _open(options.name, options.language)
    elif options.command == "hint":
        _hint(options.name, options.number, options.language)
    else:
        _list(options.language)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, or 1 for a wrong answer or an error.

    Args:
        arguments: arguments of the command line. Defaults to `sys.argv[1:]`.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # UTF-8 in a file, "?" where a terminal cannot
        encoding = None if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="replace")
    try:
        if (wrong := _wrong_name(options)) is not None:
            parser.error(f"no exercise is called {wrong!r}, but {', '.join(names())}")
        return 0 if _run(options) else FAILED
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
