"""What `python -m tfattn.translator` does, and with which status it ends."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

import keras

from tfattn._program import INTERRUPTED, imports_are_done
from tfattn.training.backup import NotFiniteError
from tfattn.translator import exporting, lines, report, scoring
from tfattn.translator.arguments import parse
from tfattn.translator.run import Run

__all__ = ["main"]

FAILED = 1  # argparse ends with 2 where the arguments are wrong


class Refused(Exception):
    """What a user can mend, in words."""


@contextlib.contextmanager
def _mendable(kinds=(ImportError, OSError, ValueError), hint: str = "") -> Iterator[None]:
    """Around what a user can mend; errors of other kinds keep their traceback."""
    try:
        yield
    except BrokenPipeError:
        raise
    except kinds as error:
        raise Refused(" ".join(str(error).split()) + hint) from None


KEPT = "; what was trained up to the last whole epoch goes on with --resume"


def _train(options):
    keras.utils.set_random_seed(options.seed)
    with _mendable():
        run = Run(options)
    with _mendable(OSError, hint=KEPT):  # such as a full disk
        with _mendable(NotFiniteError):
            trained = run.fit()
        report.show(run, *trained)


def _score(options):
    with _mendable():
        scoring.score(options)


def _translate(options):
    with _mendable():
        lines.translate(options)


def _export(options):
    with _mendable():
        exporting.export(options)


COMMANDS = {"train": _train, "score": _score, "translate": _translate, "export": _export}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the status of the process. Defaults to this process's arguments."""
    options = parse(arguments)
    try:
        imports_are_done()
        COMMANDS[options.command](options)
        with _mendable():
            sys.stdout.flush()
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # the disk that standard output goes to is full
            _drop_output()
        return FAILED
    except KeyboardInterrupt:
        print("\nstopped" + (KEPT if options.command == "train" else ""), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # who reads has enough
        _drop_output()
        return FAILED
    return 0


def _drop_output():
    """Leaves nothing to write at the end of the process, where it would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
