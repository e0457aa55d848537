"""Deliberate mutations of the package, each with the test that must catch it.

    python tests/mutations.py                   # all of them
    python tests/mutations.py --only softmax    # those whose name begins so

Each folder of tests has those of its part of the package, in `mutations.txt`. After a line
"== FILE" come the mutations of that file:

    NAME: what the mutation does to users
    @ the test that must fail
    -text that stands once in the file, its lines as they are
    +text in its place

Each replaces its text in a temporary copy of the tree, and runs the test that is named with it. A
mutation that survives, or whose text is no longer there, is an error. The tests must pass in the
copy before anything is changed. TensorFlow is imported once, and each run is a fork of that.

A mutation belongs here where a plausible slip would cost users something. A change of the code that
moves its text moves the mutation with it.
"""

import argparse
import contextlib
import io
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from typing import NamedTuple

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent
SECONDS = 600  # for one test


class Mutation(NamedTuple):
    """`old` stands once in the file `path`; with `new` in its place, `test` must fail."""

    path: str
    name: str
    effect: str
    test: str
    old: str
    new: str


def mutations():
    """All that `mutations.txt` files hold."""
    path, found = None, []
    files = sorted((ROOT / "tests").rglob("mutations.txt"))
    for block in "\n\n".join(file.read_text(encoding="utf-8").strip() for file in files).split(
        "\n\n"
    ):
        if block.startswith("== "):
            path = block.removeprefix("== ")
            continue
        title, test, *lines = block.split("\n")
        name, effect = title.split(": ", 1)
        old, new = ("\n".join(line[1:] for line in lines if line.startswith(sign)) for sign in "-+")
        found.append(Mutation(path, name, effect, test.removeprefix("@ "), old, new))
    return found


def run(folder, *tests):
    """(exit status of pytest, what it wrote) for some tests of the tree in `folder`."""
    with tempfile.TemporaryFile("w+") as log:
        child = os.fork()
        if not child:
            signal.alarm(SECONDS * len(tests))
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            os.chdir(folder)
            sys.path[:] = [str(folder), *(path for path in sys.path if path != str(ROOT))]
            status = 3
            with contextlib.suppress(BaseException):
                import pytest

                status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])
            sys.stdout.flush()
            os._exit(int(status))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        log.seek(0)
        return status, log.read()


def verdict(folder, each):
    """How a mutation ends: "caught", or what is wrong; and what the tests wrote."""
    file = folder / each.path
    whole = file.read_text(encoding="utf-8") if file.is_file() else ""
    if whole.count(each.old) != 1:
        return f"its text stands {whole.count(each.old)} times in {each.path}", ""
    file.write_text(whole.replace(each.old, each.new), encoding="utf-8")
    try:
        status, log = run(folder, each.test)
    finally:
        file.write_text(whole, encoding="utf-8")
    return {0: "NOT caught", 1: "caught"}.get(
        status, f"no verdict, pytest ended with {status}"
    ), log


def copied(folder):
    """The tree's copy in `folder`, without what is made by tools."""
    made = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "shared", "build", "dist")
    return pathlib.Path(shutil.copytree(ROOT, folder / "tree", ignore=made))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only mutations whose name begins with this")
    parser.add_argument("--verbose", action="store_true", help="show what the tests write")
    options = parser.parse_args()
    chosen = [each for each in mutations() if each.name.startswith(options.only)]
    if not chosen:
        parser.error(f"no mutation's name begins with {options.only!r}")

    # A changed file may be as long and as young as the one before: compiled code would be stale.
    sys.dont_write_bytecode = True
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", MPLBACKEND="Agg")
    with contextlib.redirect_stderr(io.StringIO()):
        import keras  # noqa: F401  (imported once for all forks)
        import pytest  # noqa: F401

    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(pathlib.Path(folder))
        status, log = run(tree, *dict.fromkeys(each.test for each in chosen))
        if status:
            sys.exit(f"{log}\nWithout a mutation, pytest ended with {status}.")
        for each in chosen:
            start = time.perf_counter()
            result, log = verdict(tree, each)
            failed += result != "caught"
            seconds = time.perf_counter() - start
            print(f"{result:12} {each.name} ({each.effect}), {seconds:.0f} s", flush=True)
            if options.verbose or result.startswith("no verdict"):
                print(log)
    print(f"{len(chosen) - failed} of {len(chosen)} mutations caught")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
