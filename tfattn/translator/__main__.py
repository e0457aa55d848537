"""The commands of `python -m tfattn.translator` and their exit status."""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence

import keras

from tfattn._program import INTERRUPTED, interruptible, write_utf8
from tfattn.training.backup import NotFiniteError
from tfattn.translator import converting, lines, report, scoring
from tfattn.translator.arguments import WrongName, check_paths, parse
from tfattn.translator.run import Run, keep_freed_memory

FAILED = 1
INVALID = 2  # as argparse exits for invalid arguments


class UserError(Exception):
    """An error the user can fix, and the exit status; shown without a traceback."""


@contextlib.contextmanager
def _user_errors(*kinds: type[Exception], hint: str = "") -> Iterator[None]:
    """Converts errors of these `kinds` to `UserError`; other errors keep their traceback."""
    try:
        yield
    except BrokenPipeError:
        raise
    except kinds as error:
        message = " ".join(str(error).split())
        message = f"{message.rstrip('.')}.{hint}" if hint else message
        raise UserError(message, INVALID if isinstance(error, WrongName) else FAILED) from None


NO_MEMORY = re.compile("RESOURCE_EXHAUSTED|ResourceExhausted|out of memory|allocate memory")
CONTINUE = " Run again with --resume to continue after the last completed epoch."


def _train(options: argparse.Namespace) -> None:
    keep_freed_memory()
    keras.utils.set_random_seed(options.seed)
    with _user_errors(ImportError, OSError, ValueError):
        run = Run(options)
    with _user_errors(OSError, hint=CONTINUE):  # such as a full disk
        with _user_errors(NotFiniteError):
            trained = run.fit()
        report.show(run, *trained)


def _run(options: argparse.Namespace) -> None:
    with _user_errors(ImportError, OSError, ValueError):
        check_paths(options)
    if options.command == "train":
        _train(options)
        return
    commands = {
        "score": scoring.score_pairs if getattr(options, "pairs", None) else scoring.score,
        "translate": lines.translate,
        "import": converting.import_folder,
        "export": converting.export,
    }
    with _user_errors(ImportError, OSError, ValueError):
        commands[options.command](options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status; `arguments` defaults to `sys.argv[1:]`."""
    options = parse(arguments)
    trains = options.command == "train"
    write_utf8()
    try:
        with interruptible():
            _run(options)
            with _user_errors(ImportError, OSError, ValueError):
                sys.stdout.flush()
        return 0
    except UserError as error:
        return _failed(*error.args)
    except KeyboardInterrupt:
        print("\nInterrupted." + (CONTINUE if trains else ""), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe
        _drop_output()
        return FAILED
    except Exception as error:  # each backend raises its own for a lack of memory
        said = f"{type(error).__name__}: {error}"
        if not (isinstance(error, MemoryError) or NO_MEMORY.search(said)):
            raise
        named = "--tokens" if trains else "--beam or --max-length"
        return _failed(f"out of memory. Use a smaller {named}.{CONTINUE if trains else ''}", FAILED)


def _failed(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # the disk behind standard output is full
        _drop_output()
    return status


def _drop_output() -> None:
    """Redirects standard output to the null device, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
