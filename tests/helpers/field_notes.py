"""The rows of `docs/field-notes.md`, and the keyword by which their tests are found."""

import functools
import re
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "field-notes.md"


class Note(NamedTuple):
    """A row: what happens elsewhere, what happens here, and which tests show it."""

    number: int
    elsewhere: str
    here: str
    tests: list[str]  # file::function, below `tests`


@functools.cache
def names_of_tests():
    """The tests of each row, by its number, from `tests/field_notes.txt`."""
    lines = (TESTS / "field_notes.txt").read_text(encoding="utf-8").splitlines()[1:]
    return {int(number): names for number, *names in map(str.split, lines)}


def notes():
    """All rows in the order of the page."""
    table = PAGE.read_text(encoding="utf-8").split(":::")[1]
    found = []
    for row in re.split(r"^\* - ", table, flags=re.M)[2:]:  # without the head of the table
        number, elsewhere, here = re.split(r"^ {2}- ", row, flags=re.M)
        found.append(Note(int(number), elsewhere, here, names_of_tests().get(int(number), [])))
    return found


def keyword(number):
    """What `pytest -k` takes."""
    return f"field_note_{number:02}"


@functools.cache
def _keywords():
    """Those of each test of a row."""
    found = {}
    for number, names in names_of_tests().items():
        for test in names:
            found.setdefault(test, set()).add(keyword(number))
    return found


def keywords_of(item):
    """Those of an item that pytest has collected."""
    if not item.path.is_relative_to(TESTS):
        return set()
    name = item.nodeid.partition("[")[0].rpartition("::")[2]
    return _keywords().get(f"{item.path.relative_to(TESTS).as_posix()}::{name}", set())
