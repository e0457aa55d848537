"""Runs the notebooks of the tutorials from top to bottom, as a reader would: `python
docs/run_notebooks.py`, after the pages were built, with names to run only these.

Each runs in a kernel and an empty folder of its own. The trainings of TRAININGS take one epoch over
a few pairs here, or epochs of a few batches: their pages ran all of them minutes ago, with the same
code.
(nbmake adds no cell that shortens a training, and looks for no figure.)
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
TRAININGS = ("bahdanau_translation", "transformer_from_scratch", "transformer_translation")
LITTLE = """
import keras
import tfattn

_fit, _pairs = keras.Model.fit, tfattn.data.toy_translation
tfattn.data.toy_translation = lambda count, seed: _pairs(3_000, seed)
keras.Model.fit = lambda *args, steps_per_epoch=None, **options: _fit(
    *args, **{**options, **({"steps_per_epoch": 5} if steps_per_epoch else {"epochs": 1})}
)
"""


def run(path: Path) -> str | None:
    """The error that a notebook ends with; None where it runs through and shows a figure."""
    notebook = nbformat.read(path, as_version=4)
    if path.stem in TRAININGS:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(LITTLE))
    with tempfile.TemporaryDirectory() as folder:
        try:
            NotebookClient(
                notebook,
                timeout=900,
                kernel_name="python3",
                resources={"metadata": {"path": folder}},
            ).execute()
        except CellExecutionError as error:
            return str(error)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    if not any("image/png" in output.get("data", {}) for output in outputs):
        return "no cell shows a figure"
    return None


def main() -> int:
    """Runs all notebooks, or those that are named, and returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of demos (default: all)")
    options = parser.parse_args()
    paths = [TUTORIALS / f"{name}.ipynb" for name in options.names] or sorted(
        TUTORIALS.glob("*.ipynb")
    )
    if not paths:
        print("docs/tutorials has no notebooks: build the pages first", file=sys.stderr)
        return 1
    known = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(known)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    failed = 0
    for path in paths:
        began = time.perf_counter()
        error = run(path)
        print(f"{path.name}: {'failed' if error else 'runs'}, {time.perf_counter() - began:.0f} s")
        if error:
            print(error, file=sys.stderr)
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
