"""Marks Chinese pages as up to date with their English sources: `python docs/stamp.py [PAGE ...]`.

A page in `docs/zh/` begins with the path of its source and with a hash of it. When the source has
changed, read both, mend the Chinese page, and stamp it. Without a name this stamps all that are
stale. `--check` only names them. (sphinx-intl has a catalog of single sentences; these
pages are written whole.)

A figure in `docs/pictures/` has the same stamp, of the code of its demo. `docs/pictures.py` writes
it.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHINESE = ROOT / "docs" / "zh"
PICTURES = ROOT / "docs" / "pictures"
# A page begins with its stamp. A PNG has it as a chunk of text, behind the chunk's name and a 0.
_HEAD = re.compile(r"(?:\A|\0)---\n(.*?)---\n", re.DOTALL)
_SOURCE = re.compile(r"^source: *(\S+) *$", re.MULTILINE)
_HASH = re.compile(r"^source_sha256: *(\S*) *$", re.MULTILINE)


def digest(path: Path, code_only: bool = False) -> str:
    """The first 16 hex digits of the SHA-256 of a file, or of a demo without its prose."""
    text = path.read_bytes()
    if code_only:
        lines = text.split(b'"""', 2)[-1].splitlines()
        text = b"\n".join(line for line in lines if line and not line.lstrip().startswith(b"#"))
    return hashlib.sha256(text).hexdigest()[:16]


def pages() -> list[Path]:
    """The Chinese pages that have a source: all but the home page."""
    return sorted(path for path in CHINESE.rglob("*.md") if path != CHINESE / "index.md")


def pictures() -> list[Path]:
    """The figures of demos that pages show, in `docs/pictures/`."""
    names = re.compile(r"(?:\(|\{figure\} )\S*pictures/(\w+_\d{3}\.png)")
    written = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *CHINESE.rglob("*.md")]
    found = {name for page in written for name in names.findall(page.read_text(encoding="utf-8"))}
    return sorted(PICTURES / name for name in found)


def source_of(page: Path) -> tuple[Path | None, str]:
    """(the source of a page or picture, the hash in it); None where it names none."""
    head = _HEAD.search(page.read_bytes().decode("latin-1"))
    head = head[1] if head else ""
    source, stamped = _SOURCE.search(head), _HASH.search(head)
    return (ROOT / source[1] if source else None), (stamped[1] if stamped else "")


def stale(page: Path) -> str | None:
    """What is wrong with the stamp of a page or picture, in words; None where it is fresh."""
    name = page.relative_to(ROOT).as_posix()
    if not page.is_file():
        return f"{name} is not there"
    source, stamped = source_of(page)
    if source is None:
        return f"{name} names no source"
    if not source.is_file():
        return f"{name}: its source {source.relative_to(ROOT).as_posix()} is not there"
    if stamped != digest(source, code_only=page.suffix == ".png"):
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
    """Stamps, or names what is stale; 1 where something stays so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="paths (default: all that are stale)")
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    options = parser.parse_args()
    chosen = [page.resolve() for page in options.pages] or [*pages(), *pictures()]
    left = 0
    for page in chosen:
        if (words := stale(page)) and (options.check or page.suffix == ".png"):
            print(words)
            left += 1
        elif words:
            stamp(page)
            print(f"stamped {page.relative_to(ROOT).as_posix()}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
