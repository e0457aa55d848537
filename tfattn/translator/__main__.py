"""The commands of `python -m tfattn.translator` and their exit status."""

import argparse
import contextlib
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tfattn import _program
from tfattn.translator import converting, lines, report, scoring
from tfattn.translator.arguments import WrongName, check_paths, parse
from tfattn.translator.folder import Folder
from tfattn.translator.run import Run, keep_freed_memory

FAILED = 1
INVALID = 2  # as argparse exits for invalid arguments
NO_MEMORY = re.compile("RESOURCE_EXHAUSTED|ResourceExhausted|out of memory|allocate memory")
_ALARM = [signal.SIGALRM] if hasattr(signal, "SIGALRM") else []  # which Windows lacks
_AGAIN = 2.0  # seconds


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C in this block of a program raises `KeyboardInterrupt` at once, and again every two
    seconds until the block ends: Python drops an exception that is raised in a finalizer or in a
    callback of the garbage collection, and libraries catch others or raise their own instead.
    """
    if signal.getsignal(signal.SIGINT) is not _program.stop:
        yield  # another program, or one that ignores it
        return
    pressed, hook = [], sys.unraisablehook

    def interrupt(*_: object) -> None:
        pressed.append(True)
        if _ALARM:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        raise KeyboardInterrupt

    def show(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            hook(dropped)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ALARM)}
    try:
        sys.unraisablehook = show
        for number in before:
            signal.signal(number, interrupt)
        yield
    finally:
        if _ALARM:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
        if pressed:
            raise KeyboardInterrupt


def _write_utf8() -> None:
    """UTF-8 for files and pipes, whatever the locale; a terminal shows "?" for what it lacks."""
    if hasattr(sys.stdout, "reconfigure"):  # not in a notebook
        encoding = None if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="replace")


def _train(options: argparse.Namespace) -> None:
    keep_freed_memory()
    keras.utils.set_random_seed(options.seed)
    run = Run(options)
    report.show(run, run.fit())


def _run(options: argparse.Namespace) -> None:
    commands = {
        "train": _train,
        "score": scoring.score_pairs if getattr(options, "pairs", None) else scoring.score,
        "translate": lines.translate,
        "import": converting.import_folder,
        "export": converting.export,
    }
    commands[options.command](options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status; `arguments` defaults to `sys.argv[1:]`."""
    options, status = parse(arguments), FAILED
    _write_utf8()
    try:
        with _interruptible(), warnings.catch_warnings():
            # Of unknown words, which `translate` and `score --pairs` note once.
            warnings.filterwarnings("ignore", r"\w+: `\w+` lacks words")
            check_paths(options)
            _run(options)
            sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        print(f"\nInterrupted.{_hint(options)}", file=sys.stderr)
        return _program.INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe
        pass
    except Exception as error:
        print(f"error: {_message(error, options)}", file=sys.stderr)
        status = INVALID if isinstance(error, WrongName) else FAILED
    try:
        sys.stdout.flush()
    except OSError:  # else the flush at exit would fail too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _message(error: Exception, options: argparse.Namespace) -> str:
    """One line for an error that the user can fix; raises any other, for its traceback."""
    # Each backend raises its own error for a lack of memory.
    if isinstance(error, MemoryError) or NO_MEMORY.search(f"{type(error).__name__}: {error}"):
        smaller = "--tokens" if options.command == "train" else "--beam or --max-length"
        return f"out of memory. Use a smaller {smaller}.{_hint(options)}"
    if not isinstance(error, ImportError | OSError | ValueError):
        raise error
    message = " ".join(str(error).split())
    hint = _hint(options) if isinstance(error, OSError) else ""
    return f"{message.rstrip('.')}.{hint}" if hint else message


def _hint(options: argparse.Namespace) -> str:
    if options.command != "train" or not Folder(options.out).backup.exists():
        return ""
    return " Run again with --resume to continue after the last completed epoch."


if __name__ == "__main__":
    sys.exit(main())
