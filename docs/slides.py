"""Makes slides of the lessons in teaching.md, in both languages: `python docs/slides.py`.

Each lesson becomes an HTML file in `out/slides`, out of its tutorials. Arrow keys move and open
answers. After `python docs/build.py` they have the figures of the tutorials too.
"""

import argparse
import ast
import base64
import html
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from docutils import core, frontend, nodes, utils
from docutils.parsers.rst import Directive, directives, roles
from docutils.writers import html5_polyglot
from myst_parser.docutils_ import Parser

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from extensions import mathml  # noqa: E402

FOLDERS = {"en": DOCS, "zh": DOCS / "zh"}
FIELDS = ("goal", "minutes", "pages", "drawing", "formula", "questions", "exercises")
LEARN, SUMMARY = {"What you will learn", "你将学到"}, {"Summary", "小结"}
QUESTIONS = {"Questions", "思考题"}
LEFT_OUT = "Before you begin|Where to go next|With this package|开始之前|用本库来写|运行|接下来"
LONG_ENOUGH = {"en": 200, "zh": 80}  # characters, after which a paragraph ends with its sentence
SETTINGS = frontend.get_default_settings(html5_polyglot.Writer)
EXERCISES, ANSWER = {"en": "Exercises", "zh": "练习"}, {"en": "Answer", "zh": "答案"}


class Dropdown(Directive):
    """A question and its answer, `container(title, ...)`, as sphinx-design has it."""

    required_arguments, final_argument_whitespace, has_content = 1, True, True

    def run(self) -> list[nodes.Node]:
        title, _ = self.state.inline_text(self.arguments[0], self.lineno)
        box = nodes.container("", nodes.paragraph("", "", *title), classes=["dropdown"])
        self.state.nested_parse(self.content, self.content_offset, box)
        return [box]


def _role(name, rawtext, text, lineno, inliner, options=None, content=None):
    words = re.sub(r" *<.*>$", "", text).rpartition("/")[2]  # of a link of Sphinx
    return [nodes.inline(rawtext, words.replace("_", " ") if name == "doc" else words)], []


directives.register_directive("dropdown", Dropdown)
for name in ("doc", "class", "func", "meth", "mod", "ref", "py:obj", "py:class", "py:func"):
    roles.register_local_role(name, _role)


class Html(html5_polyglot.HTMLTranslator):
    visit_math, visit_math_block = mathml._inline, mathml._block  # as on the pages

    def visit_system_message(self, node: nodes.system_message) -> None:
        raise nodes.SkipNode


def rendered(parts: Iterable[nodes.Node]) -> str:
    """HTML of parts of a page."""
    translator = Html(utils.new_document("slides", SETTINGS))
    for part in parts:
        part.walkabout(translator)
    return "".join(translator.body)


def parsed(text: str, **settings) -> nodes.document:
    quiet = {"report_level": 5, "halt_level": 5, "doctitle_xform": False}
    myst = {"myst_enable_extensions": {"amsmath", "attrs_inline", "colon_fence", "dollarmath"}}
    return core.publish_doctree(text, settings_overrides=quiet | myst, **settings)


def markdown(text: str) -> nodes.document:
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    return parsed(re.sub(r"(?<!!)\[([^\]]+)\]\([^)]+\)", r"\1", body), parser=Parser())


def tutorial(language: str, page: str) -> nodes.document:
    """A tutorial; in English as it was built, with figures, or as its demo has it."""
    if language == "zh":
        return markdown((DOCS / "zh" / "tutorials" / f"{page}.md").read_text("utf-8"))
    script, built = DOCS.parent / "demos" / f"{page}.py", DOCS / "tutorials" / f"{page}.rst"
    if built.is_file() and built.stat().st_mtime > script.stat().st_mtime:
        return parsed(built.read_text("utf-8"))
    demo = script.read_text("utf-8")
    cells = re.findall(r"^# %%\n((?:#.*\n)+)", demo, re.MULTILINE)
    texts = [re.sub(r"^# ?", "", cell, flags=re.MULTILINE) for cell in cells]
    return parsed("\n\n".join([ast.get_docstring(ast.parse(demo)), *texts]))


def lessons(language: str) -> Iterator[dict[str, str]]:
    """The title and the fields of each lesson."""
    page = (FOLDERS[language] / "teaching.md").read_text("utf-8")
    for title, body in re.findall(r"^## (\d+\. .+)\n((?:(?!^## ).*\n)+)", page, re.MULTILINE):
        fields = re.findall(r"^- (\*\*(?:.+(?:\n  )?)+)$", body, re.MULTILINE)
        yield {"title": title, **dict(zip(FIELDS, fields, strict=True))}


def shortened(paragraph: nodes.paragraph, language: str) -> nodes.paragraph:
    """The first sentences of a paragraph."""
    short, length = nodes.paragraph(), 0
    for child in paragraph.children:
        words = child.astext()
        if isinstance(child, nodes.Text):
            for end in re.finditer(r"[.!?](?=\s)|[。！？]", words):
                if length + end.end() >= LONG_ENOUGH[language]:
                    return short.append(nodes.Text(words[: end.end()])) or short
        short += child.deepcopy()
        length += len(words)
    return short


def picture(page: Path, name: str) -> str:
    """A drawing or a figure inside the file; nothing where it was not made yet."""
    path = DOCS / name[1:] if name.startswith("/") else page.parent / name
    if not path.is_file():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    source = f"data:image/{path.suffix[1:].replace('svg', 'svg+xml')};base64,{data}"
    return f'<div class="picture"><img alt="{path.stem}" src="{source}"></div>'


def slide(title: str, text: str, image: str = "") -> str:
    words = f'<div class="text">{text}</div>' if text else ""
    return f'<section><h2>{title}</h2><div class="body">{words}{image}</div></section>'


def of_page(language: str, name: str) -> Iterator[str]:
    """The slides of a tutorial."""
    top = next(tutorial(language, name).findall(nodes.section))
    path = FOLDERS[language] / "tutorials" / f"{name}.md"
    parts = [part for part in top.children if isinstance(part, nodes.section)]
    for part in sorted(parts, key=lambda part: part[0].astext() not in LEARN):
        title, heading = part[0].astext(), rendered(part[0].children)
        if title in LEARN | SUMMARY | QUESTIONS:
            heading = f"{rendered(top[0].children)}: {heading}"
        if title in LEARN | SUMMARY:
            yield slide(heading, rendered(part.findall(nodes.bullet_list)))
        elif title in QUESTIONS:
            for box in part.findall(nodes.container):
                answer = f"<summary>{ANSWER[language]}</summary>{rendered(box[1:])}"
                asked = box[:1]  # the title, or what stands before a box that is titled "Answer"
                if box[0].astext() == ANSWER[language]:
                    asked = part.children[part.index(box) - 1 : part.index(box)]
                question = f'<div class="question">{rendered(asked)}</div>'
                yield slide(heading, f"{question}<details>{answer}</details>")
        elif title not in LEFT_OUT.split("|"):
            yield from of_section(language, path, heading, part)


def of_section(language: str, path: Path, heading: str, part: nodes.section) -> Iterator[str]:
    """The first words of a section with its formulas, three a slide; its pictures, one a slide."""
    images = [picture(path, image["uri"]) for image in part.findall(nodes.image)]
    images, formulas = [*filter(None, images)], [*part.findall(nodes.math_block)]
    plain = (p for p in part.children if p.tagname == "paragraph" and not p.next_node(nodes.image))
    first = [shortened(next(plain, nodes.paragraph()), language)]
    for i in range(0, len(formulas), 3):
        yield slide(heading, rendered([*first * (i == 0), *formulas[i : i + 3]]))
    if images and not formulas:
        yield slide(heading, rendered(first), images.pop(0))
    yield from (slide(heading, "", image) for image in images)


def deck(language: str, lesson: dict[str, str]) -> str:
    """The file of a lesson."""
    page = FOLDERS[language] / "teaching.md"
    goal, minutes, pages = (rendered(markdown(lesson[field]).children) for field in FIELDS[:3])
    title = html.escape(lesson["title"])
    exercises = re.findall(r"`(\w+)`", lesson["exercises"])
    end = " --language zh\n" if language == "zh" else "\n"
    commands = "".join(f"python -m exercises open {name}{end}" for name in exercises)
    formula = rendered(nodes.math_block("", f) for f in re.findall(r"\$(.+?)\$", lesson["formula"]))
    drawing = picture(page, re.search(r"\((\S+\.svg)\)", lesson["drawing"])[1])
    slides = [slide(title, goal + minutes + pages), slide(title, formula, drawing)]
    again = f'<div class="body">{drawing}</div>'
    for name in re.findall(r"(?:demos|tutorials)/(\w+)", lesson["pages"]):
        slides += [one for one in of_page(language, name) if again not in one]
    slides += [slide(EXERCISES[language], f"<pre>{commands}</pre>")]
    deck = (DOCS / "_templates" / "slides.html").read_text("utf-8")
    deck = deck.replace("[[language]]", "zh-CN" if language == "zh" else language)
    return deck.replace("[[title]]", title).replace("[[slides]]", "\n".join(slides))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=DOCS.parent / "out" / "slides", metavar="DIR")
    options = parser.parse_args()
    for language in FOLDERS:
        (options.out / language).mkdir(parents=True, exist_ok=True)
        for number, lesson in enumerate(lessons(language), 1):
            path = options.out / language / f"{number:02}.html"
            path.write_text(deck(language, lesson), encoding="utf-8")
    print(f"The slides are in {options.out}")


if __name__ == "__main__":
    main()
