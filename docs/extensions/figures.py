"""Figures have numbers and captions; pictures appear in the size they were drawn in.

A figure appears as wide as the column at most, with a link to its file. On the fifth tutorial, in
either language, the second one is Figure 5.2; on a guide it is Figure 2. One without a caption is a
warning, and so fails a strict build. On a guide an image that is a paragraph becomes a figure, with
its alternative text as the caption. Home pages have no numbers. What a reader is to know before the
text of a tutorial stands in one box at its top.
"""

from pathlib import Path

from docutils import nodes
from PIL import Image
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from extensions import gallery

logger = logging.getLogger(__name__)

FIRST = ("What you will learn", "Before you begin", "你将学到", "开始之前")
WIDE = 7.0  # inches, above which labels cannot be read in the width of a phone
_PROSE = (nodes.paragraph, nodes.bullet_list)


class NumberFigures(SphinxTransform):
    """Puts a number before the caption of each figure."""

    default_priority = 700

    def apply(self):
        if self.env.docname in ("index", "zh/index"):
            return
        place = gallery.number(self.env.docname)
        if not place:
            _make_figures(self.document)
        prefix = f"{place}." if place else ""
        word = "图" if self.env.docname.startswith("zh/") else "Figure"
        figures = [next(filter(_is_figure, _parents(x)), None) for x in _pictures(self.document)]
        for number, figure in enumerate(filter(None, figures), start=1):
            image, caption = figure.next_node(nodes.image), figure.next_node(nodes.caption)
            if caption is None:
                logger.warning("a figure without a caption: %s", image["uri"], location=image)
                continue
            label = nodes.inline("", f"{word} {prefix}{number}", classes=["caption-number"])
            caption[:0] = [label, nodes.Text(" ")]


def _pictures(document):
    """The images of a page, but for small ones that link to other tutorials."""
    return [image for image in document.findall(nodes.image) if "/thumb/" not in image["uri"]]


def _make_figures(document):
    """Makes figures of the images that are paragraphs of a section."""
    for image in [*document.findall(nodes.image)]:
        paragraph = image.parent
        alone = isinstance(paragraph, nodes.paragraph) and len(paragraph) == 1
        if alone and isinstance(paragraph.parent, nodes.section):
            figure = nodes.figure("", image, nodes.caption("", image["alt"]))
            paragraph.replace_self(figure)
            document.set_id(figure)  # for the link to it


def _is_figure(node):
    return isinstance(node, nodes.figure)


def _parents(node):
    while node.parent is not None:
        node = node.parent
        yield node


class BoxFirstSections(SphinxTransform):
    """Makes one box of the sections before a tutorial's text, without entries in its contents."""

    default_priority = 700

    def apply(self):
        if not gallery.number(self.env.docname):
            return
        box = nodes.container(classes=["before-the-text"])
        for section in [*self.document.findall(nodes.section)]:
            if section[0].astext() in FIRST:
                is_prose = [isinstance(part, _PROSE) for part in section] + [False]
                end = is_prose.index(False, 1)  # code may follow, which has no heading of its own
                at = section.parent.index(section)
                section.parent[at : at + 1] = [*[box] * (not box.children), *section[end:]]
                heading = nodes.rubric("", "", *section[0].children, ids=section["ids"])
                box += nodes.container("", heading, *section[1:end])


def _size(app, doctree, docname):
    for node in doctree.findall(nodes.image):
        path = Path(app.srcdir) / node["uri"]
        if path.suffix == ".png" and path.is_file() and "thumb" not in path.parts:
            with Image.open(path) as picture:
                inches = picture.width / picture.info.get("dpi", (150,))[0]
            node["width"] = f"{96 * inches:.0f}px"  # an image with a width becomes a link
            if inches > WIDE:
                node["classes"].append("wide")  # a phone scrolls it


def setup(app):
    app.add_transform(NumberFigures)
    app.add_transform(BoxFirstSections)
    app.connect("doctree-resolved", _size)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
