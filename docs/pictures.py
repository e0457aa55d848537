"""Copies figures of the built tutorials to where pages show them: `python docs/pictures.py`.

Pages that are read without a build, as in the repository, show figures of `docs/pictures`, the 3rd
of `demos/x.py`, or of the blocks of `docs/x.md`, as `x_003.png`. Run this after `docs/build.py`, or
for a page after `docs/run_blocks.py`. It takes the figures that a page shows, with 256 colors, and
writes into each a stamp: its source, and a hash of that one's code. Then `docs/stamp.py --check`
names figures that are older than their source.
"""

import sys
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stamp  # noqa: E402

BUILT = stamp.ROOT / "docs" / "tutorials" / "images"
DRAWN = stamp.ROOT / "out" / "pictures"  # by the blocks of pages


def figure_of(path: Path) -> Path:
    """The figure that was built for a picture."""
    drawn = DRAWN / path.name
    return drawn if drawn.is_file() else BUILT / f"sphx_glr_{path.name}"


def save(path: Path) -> None:
    """Writes a picture from the figure that was built."""
    name, source = path.stem[:-4], figure_of(path)
    code = f"docs/{name}.md" if source.parent == DRAWN else f"demos/{name}.py"
    hashed = stamp.digest(stamp.ROOT / code, code_only=True)
    info = PngInfo()
    info.add_text("Comment", f"---\nsource: {code}\nsource_sha256: {hashed}\n---\n")
    with Image.open(source) as figure:
        few = figure.convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE)
    few.save(path, optimize=True, pnginfo=info, dpi=figure.info["dpi"])


def main() -> int:
    """Copies what was built, and returns 1 where a picture stays stale."""
    stamp.PICTURES.mkdir(exist_ok=True)
    wanted = stamp.pictures()
    for path in {*stamp.PICTURES.iterdir()}.difference(wanted):
        path.unlink()
    for path in wanted:
        if figure_of(path).is_file():
            save(path)
    left = [f"{words}: run docs/build.py" for path in wanted if (words := stamp.stale(path))]
    print(*left, sep="\n", end="\n" if left else "")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
