"""Makes notebooks of the tutorials: `python docs/notebooks.py`. They come to `out/notebooks/`, in
English and in Chinese, with the Chinese scripts.

Sphinx-Gallery makes the English ones of the scripts in `demos/`, as it makes those of the pages;
the Chinese ones are made of the Chinese pages, which have the same code. They have no outputs.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import cells
import nbformat

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "notebooks"
INSTALL = """\
# In a clone of the repository this installs the clone.
from pathlib import Path

root = next((p for p in Path.cwd().parents if (p / "setup.cfg").is_file()), "tfattn")
%pip install --quiet "{root}[demos]"
"""
_OF_INSTALL = (
    "In a clone of the repository this installs the clone.",
    "在克隆下来的仓库里运行时，安装的就是这个仓库。",
)
# Pages and notebooks leave out the options of the script (`sphinx_gallery_start_ignore`).
FIRST_CELL = f"""\
%matplotlib inline
import sys

sys.argv = sys.argv[:1]
{cells.PREAMBLE}"""
_TO_A_PAGE = re.compile(r":doc:`([^<`]+?)\s*<(/?)([^>`]+)>`")
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# From Markdown of the pages to that of notebooks.
_CHINESE = (
    (r":::\{dropdown\} *([^\n]*)\n(.*?)^:::$", r"<details><summary>\1</summary>\n\n\2\n</details>"),
    (r"^:::\{dropdown\} [^\n]*\n?\Z|\A\s*^:::$", ""),  # around a cell
    (
        r":::\{figure\} [./]*(drawings/\S+)\n:alt: ([^\n]*)\n\n(.*?)^:::$",
        r"![\2](../../../docs/\1)\n\n\3",
    ),
    (r":::\{figure\} .*?\n\n(.*?)^:::$", r"\1"),  # the code draws it
    (r"^```\{raw\}.*?^```$", ""),
    (r"^!\[[^\]]*\]\([./]*pictures/.*?\)$", ""),
    (r"\((?:\.\./)+(drawings/[^)]*)\)", r"(../../../docs/\1)"),
    (r"\{doc\}`([^<`]+?) *<[^>`]*>`", r"\1"),
    (r"\{[a-z:]+\}`~?([^`]*)`", r"`\1`"),
    (r"\]\((\w+)\.md", r"](\1.ipynb"),
    (r"\]\(\.\./([\w-]+)\.md", r"](../../../docs/zh/\1.md"),
    (r"\]\(\.\./\.\./([\w-]+)\.md", r"](../../../docs/\1.md"),
)


def notebook(script: Path) -> dict[str, Any]:
    """The English notebook of a demo, as JSON."""
    from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF
    from sphinx_gallery.notebook import add_code_cell, jupyter_notebook
    from sphinx_gallery.py_source_parser import remove_ignore_blocks, split_code_and_text_blocks

    blocks = [
        (kind, _with_links(text) if kind == "text" else remove_ignore_blocks(text), line)
        for kind, text, line in split_code_and_text_blocks(script)[1]
    ]
    blocks = [block for block in blocks if block[1].strip()]
    options = {
        "first_notebook_cell": FIRST_CELL,
        "notebook_images": "../../../docs/",
        "src_dir": str(ROOT / "docs"),
    }
    made = jupyter_notebook(blocks, {**DEFAULT_GALLERY_CONF, **options}, str(OUT / "en"))
    add_code_cell(made, INSTALL)
    made["cells"].insert(0, made["cells"].pop())
    made["metadata"] = _METADATA
    return made


def _with_links(text):
    """Links to other tutorials lead to their notebooks, those to pages to their sources."""

    def link(found):
        words, is_page, name = found.groups()
        return f"`{words} <{f'../../../docs/{name}.md' if is_page else f'{name}.ipynb'}>`_"

    return _TO_A_PAGE.sub(link, text)


def chinese_notebook(page: Path) -> dict[str, Any]:
    """The notebook of a Chinese page, as JSON."""
    made = nbformat.v4.new_notebook(metadata=_METADATA)
    for code in (INSTALL, FIRST_CELL):
        code = code.replace(cells.PREAMBLE, cells.CHINESE_PREAMBLE).replace(*_OF_INSTALL)
        made.cells.append(nbformat.v4.new_code_cell(code.strip()))
    for kind, text in cells.parts(page):
        if kind == "code":
            made.cells.append(nbformat.v4.new_code_cell(text))
        elif text := _in_a_notebook(text).strip():
            made.cells.append(nbformat.v4.new_markdown_cell(text))
    return made


def chinese_script(page: Path) -> str:
    """The script of a Chinese page: its text in comments, and figures in files."""
    text = f"{cells.CHINESE_PREAMBLE}\n"
    for kind, part in cells.parts(page):
        if kind == "code":
            text += f"{part}\n\n"
        elif part := _in_a_notebook(part).strip():
            text += "".join(f"# {line}".rstrip() + "\n" for line in ("%%", *part.splitlines()))
    return text


def _in_a_notebook(text):
    for pattern, new in _CHINESE:
        text = re.sub(pattern, new, text, flags=re.MULTILINE | re.DOTALL)
    return text


def write_chinese(folder: Path) -> None:
    """Writes a notebook and a script of each Chinese page."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in cells.pages():
        nbformat.write(chinese_notebook(page), folder / f"{page.stem}.ipynb")
        (folder / f"{page.stem}.py").write_text(chinese_script(page), encoding="utf-8")


def main() -> None:
    """Writes all notebooks."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.path[:0] = [str(ROOT / "docs"), str(ROOT)]
    from extensions import gallery

    gallery.show_answers_in_notebooks()
    write_chinese(OUT / "zh")
    (OUT / "en").mkdir(exist_ok=True)
    scripts = sorted((ROOT / "demos").glob("[!_]*.py"))
    for script in scripts:
        made = nbformat.from_dict(notebook(script))
        nbformat.write(made, OUT / "en" / f"{script.stem}.ipynb")
    print(f"{len(scripts)} notebooks, {len(cells.pages())} in Chinese too, are in out/notebooks/")


if __name__ == "__main__":
    main()
