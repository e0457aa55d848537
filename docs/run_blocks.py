"""Runs the Python blocks of pages as a reader runs them, one after the other: `python
docs/run_blocks.py`, with pages to run only these.

The blocks of a page run in a module, a process and an empty folder of its own. What a page says
that they print is compared with it: a comment behind a `print` that begins with a number, a bracket
or the only word of it, and a ```text block below. A page whose code another page has already is
left out: a Chinese page has that of its English one, or more. Those of the tutorials quote pieces
of the demos, which the build of the pages runs.
"""

import argparse
import ast
import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import cells

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# Files that a page promises to its reader.
WRITTEN = {"start": ("weights.png", "model.keras")}


_BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")
# Of a comment, what it says is printed: up to a remark. Letters are sizes, such as (B, T).
_SHOWN = re.compile(
    r"(?=[-\d(\[{<])(?:[^,:：，;；(]|[,:](?! [a-z])|\((?![a-zA-Z]))+|\w+$|\w.* <eos>$"
)


def blocks(page: Path) -> list[str]:
    """The fenced Python blocks of a Markdown page."""
    return [code for code, _ in _with_output(page)]


def _with_output(page):
    """(code, the text below it) of each block."""
    return _BLOCK.findall(cells.with_english_code(page.read_text("utf-8")))


def run(page: Path) -> int:
    """Runs the blocks of a page, and returns how many there are."""
    variables = {"__name__": "__main__"}
    found = _with_output(page)
    for code, text in found:
        printed = "".join(_printed(code, page, variables))
        if text and printed != text:
            raise AssertionError(f"the page shows:\n{text}and the code prints:\n{printed}")
    return len(found)


def _printed(code, page, variables):
    """Runs a block, and gives what each statement prints, which its comment says too."""
    lines = code.splitlines()
    for statement in ast.parse(code).body:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Module([statement], []), str(page), "exec"), variables)
        yield printed.getvalue()
        end = lines[statement.end_lineno - 1][statement.end_col_offset :]
        shown = _SHOWN.match(end.strip().removeprefix("#").strip())
        if shown and ast.unparse(statement).startswith("print(") and _differ(shown[0], printed):
            raise AssertionError(f"line {statement.end_lineno}:{end}, but: {printed.getvalue()}")


def _differ(shown, printed):
    """Whether other words are printed, or other numbers than these to their last digit."""
    printed = printed.getvalue()
    numbers = _NUMBER.findall(shown)
    if not numbers:
        return shown.split() != printed.split()
    pairs = zip(numbers, _NUMBER.findall(printed), strict=False)
    digits = [len(number.partition(".")[2]) for number in numbers]
    found = [(float(a), round(float(b), n)) for (a, b), n in zip(pairs, digits, strict=False)]
    return len(found) < len(numbers) or any(a != b for a, b in found)


def pages() -> list[Path]:
    """The pages whose code no other page has."""
    by_code: dict[str, Path] = {}
    for page in sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "zh").glob("*.md")]):
        code = "\n".join(blocks(page))
        if code:
            by_code.setdefault(ast.dump(ast.parse(code)), page)  # comments are in their languages
    return list(by_code.values())


def _succeeds(page: Path) -> bool:
    """Whether the blocks of a page run without an error or a warning, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # Keras's TensorFlow variables under NumPy 2, on every save; theirs to mend.
                copy = "__array__ implementation doesn't accept a copy keyword"
                warnings.filterwarnings("ignore", copy, DeprecationWarning)
                run(page)
            lacking = [name for name in WRITTEN.get(page.stem, ()) if not Path(name).is_file()]
            assert not lacking, f"the blocks wrote no {lacking}"
            _keep_figures(page)
        except Exception:
            traceback.print_exc()
            return False
        finally:
            os.chdir(ROOT)
    return True


def _keep_figures(page: Path) -> None:
    """Copies the figures in the folder of a page that has run, in their order."""
    kept = ROOT / "out" / "pictures"
    kept.mkdir(parents=True, exist_ok=True)
    figures = sorted(Path().glob("*.png"), key=lambda path: path.stat().st_mtime_ns)
    for number, figure in enumerate(figures, start=1):
        shutil.copyfile(figure, kept / f"{page.stem}_{number:03}.png")


def main() -> int:
    """Runs all pages, or those that are named, and returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="default: all")
    chosen = [page.resolve() for page in parser.parse_args().pages] or pages()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.path.insert(0, str(ROOT))  # for `exercises`
    import tfattn  # noqa: F401  (imported once for all pages)

    failed = 0
    for page in chosen:
        began = time.perf_counter()
        status = _in_a_fork(page) if hasattr(os, "fork") else int(not _succeeds(page))
        words = "failed" if status else f"{len(blocks(page))} blocks ran"
        name = os.path.relpath(page, ROOT)
        print(f"{name}: {words}, {time.perf_counter() - began:.0f} s", flush=True)
        failed += bool(status)
    return failed


def _in_a_fork(page: Path) -> int:
    """The status of a process that begins with what is imported here and has computed nothing."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = int(not _succeeds(page))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
