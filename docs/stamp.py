"""Marks Chinese pages as up to date with their English sources: `python docs/stamp.py [PAGE ...]`.

A page in `docs/zh/` begins with the path of its source and with a hash of it. When the source has
changed, read both, mend the Chinese page, and stamp it. Without a name this stamps all that are
stale. `--check` only names them.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHINESE = ROOT / "docs" / "zh"
_SOURCE = re.compile(r"^source: *(\S+) *$", re.MULTILINE)
_HASH = re.compile(r"^source_sha256: *(\S*) *$", re.MULTILINE)


def digest(path: Path) -> str:
    """The first 16 hex digits of the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def pages() -> list[Path]:
    """The Chinese pages that have a source: all but the home page."""
    return sorted(path for path in CHINESE.rglob("*.md") if path != CHINESE / "index.md")


def source_of(page: Path) -> tuple[Path | None, str]:
    """(the English source of a page, the hash in the page); None where it names none."""
    front = page.read_text(encoding="utf-8").split("---")
    head = front[1] if len(front) > 2 and not front[0].strip() else ""
    source, stamped = _SOURCE.search(head), _HASH.search(head)
    return (ROOT / source[1] if source else None), (stamped[1] if stamped else "")


def stale(page: Path) -> str | None:
    """What is wrong with a page's stamp, in words; None where it is fresh."""
    source, stamped = source_of(page)
    name = page.relative_to(ROOT).as_posix()
    if source is None:
        return f"{name} names no source"
    if not source.is_file():
        return f"{name}: its source {source.relative_to(ROOT).as_posix()} is not there"
    if stamped != digest(source):
        return f"{name} is older than {source.relative_to(ROOT).as_posix()}"
    return None


def stamp(page: Path) -> None:
    """Writes the hash of its source into a page."""
    source, _ = source_of(page)
    if source is None or not source.is_file():
        raise SystemExit(stale(page))
    text = page.read_text(encoding="utf-8")
    line = f"source_sha256: {digest(source)}"
    if _HASH.search(text):
        text = _HASH.sub(line, text, count=1)
    else:
        text = _SOURCE.sub(lambda match: f"{match[0]}\n{line}", text, count=1)
    page.write_text(text, encoding="utf-8")


def main() -> int:
    """Stamps, or names what is stale; 1 where `--check` finds something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="paths (default: all that are stale)")
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    options = parser.parse_args()
    chosen = [page.resolve() for page in options.pages] or pages()
    found = [(page, words) for page in chosen if (words := stale(page))]
    for page, words in found:
        if options.check:
            print(words)
        else:
            stamp(page)
            print(f"stamped {page.relative_to(ROOT).as_posix()}")
    return int(options.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
