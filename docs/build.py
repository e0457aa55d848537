"""Builds the pages: `python docs/build.py`. They come to `out/docs`.

Runs every demo for its page, and asks it for what it is to find (`tests/demos/expected.py`). Beside
that, on another core, it runs the blocks of code of the other pages (`docs/run_blocks.py`). Then
it asks the search for what it is to find (`docs/queries.py`), which needs Chromium, and runs every
notebook from top to bottom. A warning, a query, a block, demo or notebook that fails makes it end
with an error. It takes about ten minutes on two cores and needs no network.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GENERATED = (DOCS / "api", DOCS / "tutorials", ROOT / "out" / "docs")


def main() -> int:
    """Builds, and returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="keep the pages of demos that did not change, run no notebook, let warnings pass",
    )
    parser.add_argument(
        "--notebooks", nargs="+", default=[], metavar="NAME", help="run these alone (default: all)"
    )
    options = parser.parse_args()
    command = [sys.executable, "-m", "sphinx", "-b", "html", str(DOCS), str(GENERATED[-1])]
    if options.quick:
        return subprocess.run(command, cwd=ROOT).returncode
    for folder in GENERATED:
        shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    with _blocks_of_pages() as blocks:
        for step in (
            [*command, "-W", "--keep-going"],
            [sys.executable, str(DOCS / "queries.py")],
            [sys.executable, str(DOCS / "run_notebooks.py"), *options.notebooks],
        ):
            if status := subprocess.run(step, cwd=ROOT).returncode:
                return status
        if status := blocks.wait():
            return status
    print(f"The pages were built in {(time.perf_counter() - began) / 60:.1f} minutes: out/docs")
    return 0


@contextlib.contextmanager
def _blocks_of_pages() -> Iterator[subprocess.Popen]:
    """A process that runs the blocks of code on one core, and what it says at the end."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        process = subprocess.Popen(
            [sys.executable, str(DOCS / "run_blocks.py")],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()  # where another step has failed
            process.wait()
            said.seek(0)
            print(said.read(), end="")


if __name__ == "__main__":
    sys.exit(main())
