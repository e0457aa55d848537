"""The code of tutorials: a Chinese page names the cells of its demo, and translates their comments.

A cell has the name of the heading above it in the demo; a second one under it is "Heading (2)":

    ```{demo} From scratch
    每行之和为 1
    ```

The lines are the Chinese of the cell's comments, in order: consecutive lines of a comment count as
one, and comments without words, such as shapes, stay. A page has all cells of its demo, in their
order, so it runs from top to bottom as the demo does. `python docs/cells.py multi_head` prints the
cells of a demo in this form, with the comments in English.

A Chinese guide names the blocks of an English page by their numbers, from 1, in the same way:

    ```{code} masks.md 3
    每行一个句子
    ```
"""

import argparse
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "zh" / "tutorials"
# What a demo has of its options and of `demos/_figures.py`, which pages and notebooks leave out.
PREAMBLE = """\
from pathlib import Path
from types import SimpleNamespace

options = SimpleNamespace(seed=0, out=Path("out"))  # the folder for figures
options.out.mkdir(exist_ok=True)
"""
PREAMBLE += "\n" + (ROOT / "demos" / "_figures.py").read_text("utf-8").partition('"""\n\n')[2]
_IN_CHINESE = (  # the comment and the docstrings of the preamble, in order
    "放图的文件夹",
    "一张新图的坐标轴，带浅色网格。",
    "按名字画曲线 {名字: (N,)}，或一条曲线 (N,)；横坐标是 (N,) 或 {名字: (N,)}。\n"
    "    marked 给出名字和横坐标，在曲线上画一个圆点。几条曲线相同时，先画的较粗。",
    "每个标签一根柱子，或每个标签、每个名字一根：{名字: (N,)}。",
    "对数坐标轴；数量级不多时，刻度写成普通的数。",
)
_WORDS = re.compile(r'(?<=# )the folder[^\n]*|(?<=""")[^"]+(?="""\n)')
_WORDS_IN_CHINESE = iter(_IN_CHINESE)
CHINESE_PREAMBLE = _WORDS.sub(lambda _: next(_WORDS_IN_CHINESE), PREAMBLE)
_DOWNLOAD = "`python docs/notebooks.py` 写出中文的脚本和 Jupyter 笔记本"
_LINKS = '下载：<a href="{0}.py" download>中文脚本</a>、<a href="{0}.ipynb" download>中文笔记本</a>'
_HEADING = re.compile(r"^(\S.*)\n(?:---+|===+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBERED = re.compile(r"^```\{code\} (\S+) (\d+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```\{demo\} ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OWN_LINES = r"(?:(?<=\n)|\A)[ ]*#.*(?:\n[ ]*#.*)*"  # a comment of one or more lines
_COMMENT = re.compile(rf"(?P<own>{_OWN_LINES})|(?<=\S  )#(?! noqa).*")


def cells(demo: Path) -> dict[str, str]:
    """The code of each cell of a demo, without what pages leave out."""
    from sphinx_gallery.py_source_parser import (
        remove_config_comments,
        remove_ignore_blocks,
        split_code_and_text_blocks,
    )

    named: dict[str, str] = {}
    heading, number = demo.stem, 0
    for kind, text, _ in split_code_and_text_blocks(demo)[1]:
        if kind == "text":
            if headings := _HEADING.findall(text):
                heading, number = headings[-1], 0
        elif code := remove_config_comments(remove_ignore_blocks(text)).strip():
            number += 1
            named[heading if number == 1 else f"{heading} ({number})"] = code
    return named


def comments(code: str) -> list[re.Match[str]]:
    """The comments of a cell that have words."""
    return [found for found in _COMMENT.finditer(code) if re.search("[a-z]{2,}", found[0])]


def with_comments(name: str, code: str, chinese: list[str]) -> str:
    """A cell with its comments in Chinese."""
    found = comments(code)
    if len(found) != len(chinese):
        english = "\n".join(each[0].strip() for each in found)
        raise ValueError(f"{name}: {len(chinese)} comments in Chinese for these:\n{english}")
    for each, words in reversed([*zip(found, chinese, strict=True)]):
        own = each["own"]
        indent = own[: len(own) - len(own.lstrip())] if own else ""
        code = f"{code[: each.start()]}{indent}# {words}{code[each.end() :]}"
    return code


def parts(page: Path) -> Iterator[tuple[str, str]]:
    """("text", Markdown) and ("code", Python) of a Chinese page, in order, without its stamp."""
    text = page.read_text("utf-8").partition("---\n")[2].partition("---\n")[2]
    demo = ROOT / "demos" / f"{page.stem}.py"
    of_demo, named, end = cells(demo), [], 0
    for fence in _FENCE.finditer(text):
        name, chinese = fence[1], fence[2].strip().splitlines()
        if name not in of_demo:
            raise ValueError(f"{page.name}: {demo.name} has no cell {name!r}, only {[*of_demo]}")
        yield "text", text[end : fence.start()]
        yield "code", with_comments(f"{page.name}: {name}", of_demo[name], chinese)
        named, end = [*named, name], fence.end()
    if named != [*of_demo]:
        raise ValueError(f"{page.name} has the cells {named}, and {demo.name} {[*of_demo]}")
    yield "text", text[end:]


def pages() -> list[Path]:
    """The Chinese pages of demos."""
    return sorted(PAGES.glob("*.md"))


def expanded(page: Path) -> str:
    """The Markdown of a Chinese page with its code, and before it what the code needs."""
    folded = f":::{{dropdown}} 选项与画图函数\n```python\n{CHINESE_PREAMBLE}```\n:::\n\n"
    text = ""
    for kind, part in parts(page):
        if kind == "code":
            part, folded = f"{folded}```python\n{part}\n```", ""
        text += part
    return text.replace(_DOWNLOAD, _LINKS.format(page.stem))


def with_english_code(text: str) -> str:
    """The Markdown of a Chinese guide with the blocks of English pages that it names."""

    def block(fence: re.Match[str]) -> str:
        name, number = fence[1], int(fence[2])
        blocks = python_blocks((ROOT / "docs" / name).read_text("utf-8"))
        if not 0 < number <= len(blocks):
            raise ValueError(f"{name} has {len(blocks)} blocks of Python, and no {number}")
        chinese = fence[3].strip().splitlines()
        return f"```python\n{with_comments(f'{name} {number}', blocks[number - 1], chinese)}```"

    return _NUMBERED.sub(block, text)


def python_blocks(text: str) -> list[str]:
    """The fenced Python blocks of a page of Markdown."""
    return _BLOCK.findall(text)


def folded_in_english(page: str) -> str:
    """A page of Sphinx-Gallery with what its code needs before the first cell."""
    first = ".. code-block:: Python\n"
    code = textwrap.indent(PREAMBLE, " " * 7)
    title = ".. dropdown:: Options, and functions that draw"
    return page.replace(first, f"{title}\n\n    .. code-block:: Python\n\n{code}\n\n{first}", 1)


def main() -> None:
    """Prints the cells of a demo as its Chinese page has them, but for the language."""
    parser = argparse.ArgumentParser(description="Prints the cells of a demo for its Chinese page.")
    parser.add_argument("name", help="of the demo")
    for name, code in cells(ROOT / "demos" / f"{parser.parse_args().name}.py").items():
        of_cell = [" ".join(each[0].split()).replace(" # ", " ") for each in comments(code)]
        print(f"```{{demo}} {name}", *of_cell, "```\n", sep="\n")


if __name__ == "__main__":
    main()
