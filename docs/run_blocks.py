"""Runs the Python blocks of a page, one after the other: `python docs/run_blocks.py docs/start.md`.

They run in one module, in the current folder, as a reader runs them.
"""

import argparse
import re
from pathlib import Path


def blocks(page: Path) -> list[str]:
    """The fenced Python blocks of a Markdown page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    for path in parser.parse_args().pages:
        variables = {"__name__": "__main__"}
        for block in blocks(path):
            exec(compile(block, str(path), "exec"), variables)
        print(f"{path}: {len(blocks(path))} blocks ran")
