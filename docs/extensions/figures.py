"""Figures appear in the size they were drawn in, or as wide as the column, with links to files."""

from pathlib import Path

from docutils import nodes
from PIL import Image


def _size(app, doctree, docname):
    for node in doctree.findall(nodes.image):
        path = Path(app.srcdir) / node["uri"]
        if path.suffix == ".png" and path.is_file() and "thumb" not in path.parts:
            with Image.open(path) as picture:
                inches = picture.width / picture.info.get("dpi", (150,))[0]
            node["width"] = f"{96 * inches:.0f}px"  # an image with a width becomes a link


def setup(app):
    app.connect("doctree-resolved", _size)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
