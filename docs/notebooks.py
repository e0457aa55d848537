"""Makes a notebook of each tutorial: `python docs/notebooks.py`. They come to `notebooks/`.

Sphinx-Gallery makes them of the scripts in `demos/`, as it makes those of the pages. They have no
outputs. Each has the hash of its script; `--check` names those whose script has changed since.
"""

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
INSTALL = """\
# In a clone of the repository this installs the clone.
from pathlib import Path

package = ".." if Path("../setup.cfg").is_file() else "tfattn"
%pip install --quiet "{package}[demos]"
"""
# Beside the demos, for those that draw with it.
FIGURES = ROOT / "demos" / "_figures.py"
# Pages and notebooks leave out the options of the script (`sphinx_gallery_start_ignore`).
FIRST_CELL = """\
%matplotlib inline
import sys
import types
from pathlib import Path

sys.argv = sys.argv[:1]
options = types.SimpleNamespace(seed=0, out=Path("out"))  # the folder for figures
options.out.mkdir(exist_ok=True)
"""
FIRST_CELL += "\n" + FIGURES.read_text(encoding="utf-8").partition('"""\n\n')[2]
_TO_A_PAGE = re.compile(r":doc:`([^<`]+?)\s*<(/?)([^>`]+)>`")


def digest(script: Path) -> str:
    """A hash of a script, of its figures and of this one."""
    parts = (script, FIGURES, Path(__file__))
    return hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()[:16]


def stale() -> list[str]:
    """What is wrong with the notebooks, in words."""
    scripts = {script.stem: script for script in (ROOT / "demos").glob("[!_]*.py")}
    written = {path.stem: path for path in NOTEBOOKS.glob("*.ipynb")}
    found = [f"notebooks/{name}.ipynb has no script" for name in written.keys() - scripts.keys()]
    for name, script in scripts.items():
        if name not in written:
            found.append(f"notebooks/{name}.ipynb is missing")
        elif json.loads(written[name].read_text("utf-8"))["metadata"]["source"] != digest(script):
            found.append(f"notebooks/{name}.ipynb is older than demos/{name}.py")
    return sorted(found)


def notebook(script: Path) -> dict[str, Any]:
    """The notebook of a script, as JSON."""
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
        "notebook_images": "../docs/",
        "src_dir": str(ROOT / "docs"),
    }
    made = jupyter_notebook(blocks, {**DEFAULT_GALLERY_CONF, **options}, str(NOTEBOOKS))
    add_code_cell(made, INSTALL)
    made["cells"].insert(0, made["cells"].pop())
    for cell in made["cells"]:  # a line of text is a line of the file, for whoever compares two
        cell["source"] = cell["source"][0].splitlines(keepends=True)
    made["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "source": digest(script),
    }
    return made


def _with_links(text):
    """Links to other tutorials lead to their notebooks, those to pages to their sources."""

    def link(found):
        words, is_page, name = found.groups()
        return f"`{words} <{f'../docs/{name}.md' if is_page else f'{name}.ipynb'}>`_"

    return _TO_A_PAGE.sub(link, text)


def main() -> int:
    """Writes all notebooks, or names those that are stale: then 1 is the status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    if parser.parse_args().check:
        found = stale()
        print(*found, sep="\n")
        return int(bool(found))
    sys.path[:0] = [str(ROOT / "docs"), str(ROOT)]
    from extensions import gallery

    gallery.show_answers_in_notebooks()
    NOTEBOOKS.mkdir(exist_ok=True)
    scripts = sorted((ROOT / "demos").glob("[!_]*.py"))
    for path in NOTEBOOKS.glob("*.ipynb"):
        path.unlink()
    for script in scripts:
        text = json.dumps(notebook(script), indent=1, ensure_ascii=False)
        (NOTEBOOKS / f"{script.stem}.ipynb").write_text(f"{text}\n", encoding="utf-8")
    print(f"{len(scripts)} notebooks are in notebooks/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
