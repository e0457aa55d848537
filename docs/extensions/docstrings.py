"""Docstrings in the project's form, as reStructuredText.

Sections begin with a word and a colon: `Args:`, `Call arguments:`, `Returns:`, `Raises:`,
`Example:`, `Source:`. Words may follow the colon. What stands indented outside of a section is a
formula. (napoleon takes a sentence below `Args:` for an argument, and knows no formulas.)
"""

import inspect
import re
import textwrap

from docutils import nodes
from sphinx import addnodes
from sphinx.util.inspect import stringify_signature

_HEAD = re.compile(
    r"(?P<title>(?:Args|Attributes|Call arguments|Returns|Raises|Example|Source)"
    r"(?:, (?:Call arguments|Returns))*):(?: (?P<words>.*))?"
)
_ITEM = re.compile(r"(?P<names>\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*): +(?P<words>.+)")
_SEVERAL = re.compile(r"(?<=[.;]) {3,}(?=\w+: )")  # two arguments on one line
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_FORMULA = [".. code-block:: text", "   :class: formula", ""]
_TITLES = {"Args": "Arguments"}


def converted(lines: list[str]) -> list[str]:
    """The lines of a docstring, dedented, as lines of reStructuredText, the example first."""
    lines = list(lines)
    result: list[str] = []
    start = 0  # where sections begin
    while lines:
        head = _HEAD.fullmatch(lines[0])
        if head is None:
            result += _text(lines)
            start = start or len(result)
            continue
        lines.pop(0)
        words = [head["words"]] if head["words"] else []
        while lines and lines[0].strip() and not lines[0].startswith(" ") and words:
            if _HEAD.fullmatch(lines[0]):
                break
            words.append(lines.pop(0))
        body: list[str] = []
        while lines and (not lines[0].strip() or lines[0].startswith(" ")):
            body.append(lines.pop(0))
        at = start if head["title"] == "Example" else len(result)
        body = textwrap.dedent("\n".join(body)).splitlines()
        result[at:at] = _section(head["title"], words, body)
    return result


def _text(lines):
    """Paragraphs up to the next section, each indented one that stands alone a literal block."""
    result, after_blank, literal = [], True, False
    while lines and not _HEAD.fullmatch(lines[0]):
        line = lines.pop(0)
        if not line.strip():
            after_blank = True
        else:
            if after_blank and line.startswith(" ") and not literal:
                result += _FORMULA
                literal = True
            elif not line.startswith(" "):
                if literal and not after_blank:
                    result.append("")
                literal = False
            after_blank = False
        result.append(line if literal else _links(line))
    return [*result, ""]


def _section(title, words, body):
    title = ", ".join(_TITLES.get(word, word) for word in title.split(", "))
    result = [f".. rubric:: {title}", "", *map(_links, words), ""]
    if title == "Example":
        code = body and body[0].strip() and not body[0].startswith(">>>")
        return [*result, *(["::", "", *(f"    {line}" for line in body)] if code else body), ""]
    # Names of arguments may go on in the next line.
    body = re.sub(r"(?m)^((?:\w+, )*\w+,)\n +", r"\1 ", "\n".join(body)).splitlines()
    body = [part for line in body for part in _split(line)]
    item = None
    for line in body:
        item = _ITEM.fullmatch(line)
        if item:
            names = ", ".join(f"``{name}``" for name in item["names"].split(", "))
            result += [names, f"    {_links(item['words'])}"]
        else:
            result.append(_links(line))
    return [*result, ""]


def _split(line):
    return _SEVERAL.split(line) if not line.startswith(" ") else [line]


def _links(line):
    """A line of prose: papers become links."""
    return _ARXIV.sub(r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", line)


def _process(app, what, name, thing, options, lines):
    lines[:] = converted(lines)


def _signature(app, what, name, thing, options, signature, annotation):
    """Of a class, its constructor's: Keras wraps layers so that they seem to take anything."""
    if what != "class" or "__init__" not in dir(thing) or issubclass(thing, tuple):
        return None
    found = inspect.signature(thing.__init__)
    parameters = [p.replace(annotation=p.empty) for p in list(found.parameters.values())[1:]]
    return stringify_signature(inspect.Signature(parameters)), None


def _contents(app, doctree):
    """What "On this page" has for a page of the API: the sections of the docstring, too."""
    name = app.env.docname
    entries = app.env.tocs[name].next_node(nodes.bullet_list) if name.startswith("api/") else None
    described = next(doctree.findall(addnodes.desc_content), None)
    if entries is None or described is None:
        return
    sections = []
    for rubric in filter(lambda part: isinstance(part, nodes.rubric), described.children):
        rubric["ids"] = [nodes.make_id(rubric.astext())]
        anchor = {"refuri": name, "anchorname": f"#{rubric['ids'][0]}", "internal": True}
        link = nodes.reference("", "", nodes.Text(rubric.astext()), **anchor)
        sections.append(nodes.list_item("", addnodes.compact_paragraph("", "", link)))
    entries[:0] = sections


def setup(app):
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("doctree-read", _contents, priority=900)  # after Sphinx's own contents
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True}
