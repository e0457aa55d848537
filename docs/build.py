"""Builds the pages: `python docs/build.py`. They come to `out/docs`.

Runs every demo for its page, and asks it for what it is to find (`tests/demos/expected.py`). Then
it asks the search for what it is to find (`docs/queries.py`), which needs Chromium, and runs every
notebook from top to bottom. A warning, a query, demo or notebook that fails makes it end with an
error. It takes about ten minutes on two cores and needs no network.
"""

import argparse
import shutil
import subprocess
import sys
import time
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
    for step in (
        [*command, "-W", "--keep-going"],
        [sys.executable, str(DOCS / "queries.py")],
        [sys.executable, str(DOCS / "run_notebooks.py"), *options.notebooks],
    ):
        if status := subprocess.run(step, cwd=ROOT).returncode:
            return status
    print(f"The pages were built in {(time.perf_counter() - began) / 60:.1f} minutes: out/docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
