"""What the demos share: `--seed`, `--out` and the last line."""

import argparse
import json
from pathlib import Path


def arguments(description, default_out):
    """A parser with the options of every demo."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seed", type=seed, default=0, help="seed of everything random (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(default_out),
        metavar="DIR",
        help="folder for figures (default: %(default)s)",
    )
    return parser


def seed(text):
    """An option's number, 0 or more and below 2³², as random generators take it."""
    number = int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 2**32, received {text}")
    return number


def positive_int(text):
    """An option's number, 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, received {text}")
    return number


def print_result(numbers):
    """The last line of a demo, for people and for programs."""
    print("result:", json.dumps(numbers))
