"""Runs the Python blocks of a page, one after the other: `python docs/run_blocks.py docs/start.md`.

They run in one module, in the current folder, as a reader runs them.
"""

import argparse
import re
from pathlib import Path


def blocks(page: Path) -> list[str]:
    """The fenced Python blocks of a Markdown page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run(page: Path) -> int:
    """Runs the blocks of a page, and returns how many there are."""
    variables = {"__name__": "__main__"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), variables)
    return len(blocks(page))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    for path in parser.parse_args().pages:
        print(f"{path}: {run(path)} blocks ran")
