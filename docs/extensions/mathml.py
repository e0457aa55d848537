"""Formulas as MathML, which browsers draw by themselves: pages need no network for them."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)


def _mathml(node, as_block):
    try:
        mathml = tex2mathml(node.astext(), as_block=as_block)
        # A bar with an exponent would stretch by itself, below the line.
        return re.sub(r"(<msu[a-z]+>\s*)<mo>‖</mo>", r'\1<mo stretchy="false">‖</mo>', mathml)
    except MathError as error:
        logger.warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{node.astext()}</code>"


def _inline(translator, node):
    translator.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(translator, node):
    translator.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
