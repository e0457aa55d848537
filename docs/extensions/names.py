"""Names of the package in `code` become links, in pages, docstrings and demos alike.

A name that begins with `tfattn.` and is not there is a warning, and so fails a strict build. Other
libraries have classes of the same names: `X` is no link after “Keras's”, nor on a page about
another library, except in the last column of a table, which is about this package.
"""

import functools
import importlib
import re

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from extensions.api import public_names

logger = logging.getLogger(__name__)

_NAME = re.compile(r"([A-Za-z_][\w.]*\w)(\(.*\))?", re.DOTALL)
_OTHER_LIBRARIES = re.compile(r"(zh/)?(coming-from-|convert$|where-write-ups)")
_OF_ANOTHER = re.compile(r"(['’]s|(Keras|KerasHub|Torch) ?的) ?$", re.IGNORECASE)


@functools.cache
def _exists(name):
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        try:
            functools.reduce(getattr, parts[end:], found)
        except AttributeError:
            continue
        return True
    return False


class LinkNames(SphinxTransform):
    """Wraps `tfattn.X`, and `X` where X is a class of the package, in a reference."""

    default_priority = 400

    def apply(self):
        public = public_names()
        for node in list(self.document.findall(nodes.literal)):
            match = _NAME.fullmatch(node.astext())
            inside = (nodes.title, nodes.reference, nodes.term, addnodes.pending_xref)
            if match is None or any(isinstance(parent, inside) for parent in _parents(node)):
                continue
            written = match[1]
            if written.startswith("tfattn."):
                name = written.removeprefix("tfattn.")
                if name not in public:  # one page for tfattn.training.X and tfattn.X
                    name = re.sub(r"^(training|decoding)\.", "", name)
                if name not in public:
                    if not _exists(written):
                        logger.warning("there is no %s", written, location=node)
                    continue
            elif written in public and (written[0].isupper() or "." in written):
                if _is_of_another(node, self.env.docname):
                    continue
                name = written
            else:
                continue
            if self.env.docname == f"api/tfattn.{name}":
                continue
            link = addnodes.pending_xref(
                "",
                refdomain="py",
                reftype="obj",
                reftarget=f"tfattn.{name}",
                refexplicit=True,
                refwarn=True,
                refdoc=self.env.docname,
            )
            node.replace_self(link)
            link += node


def _is_of_another(node, page):
    before = node.previous_sibling()
    if before is not None and _OF_ANOTHER.search(before.astext()):
        return True
    if not _OTHER_LIBRARIES.match(page):
        return False
    cell = next((parent for parent in _parents(node) if isinstance(parent, nodes.entry)), None)
    return cell is None or cell is not cell.parent[-1]


def _parents(node):
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app):
    app.add_transform(LinkNames)
    return {"parallel_read_safe": True}
