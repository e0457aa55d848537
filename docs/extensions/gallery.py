"""The demos as a gallery: their order, where they write, the files that become pictures, and what
each of them has to find.
"""

import os
import re
import shutil
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import cells
import notebooks
from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx_gallery import notebook

from extensions.captions import CAPTIONS
from tests.demos import expected

# The order of the tutorials. A demo that is not here fails the build.
ORDER = (
    "attention_cues",
    "kernel_regression",
    "kernel_regression_tool",
    "learned_bandwidth",
    "batched_matmul",
    "scoring_functions",
    "bahdanau_translation",
    "multi_head",
    "self_attention_by_hand",
    "convolution_recurrence_attention",
    "positions",
    "residuals_and_norms",
    "masked_attention",
    "transformer_translation",
    "transformer_from_scratch",
    "find_a_head",
    "hard_attention",
    "sets",
    "image_patches",
    "time_series",
    "laws",
)

# The parts of the course, in both languages, by their first tutorials: captions of the sidebar.
PARTS = {
    "attention_cues": ("Weighted means", "加权平均"),
    "scoring_functions": ("Attention", "注意力"),
    "residuals_and_norms": ("The Transformer", "Transformer"),
    "hard_attention": ("Beyond text", "不止于文本"),
}
# The titles of pages that demos write.
_PAGES = {"viewer": "The viewer", "live": "The live translator"}
_VIEWER = """\
<iframe class="viewer" src="{path}" title="{title}" loading="lazy"></iframe>
<p class="viewer-link"><a href="{path}">{own_page}</a></p>"""
_FIGURE = """
.. figure:: /{}
   :alt: {}
   :class: sphx-glr-single-img

   {}
"""
_RAW = "\n.. raw:: html\n\n    {}\n"
# On a Chinese page this shows the viewer of its demo. Nothing shows where the text alone is read.
_CHINESE_VIEWER = '<div class="viewer"></div>'


def place(path: str) -> int:
    """The demo's place among the tutorials, from the path of its script."""
    name = Path(path).stem
    if name not in ORDER:
        raise ExtensionError(f"demos/{name}.py has no place in docs/extensions/gallery.py: ORDER")
    return ORDER.index(name)


def number(page: str) -> int:
    """The number of a tutorial, from the name of its page in either language; 0 for others."""
    folder, _, name = page.removeprefix("zh/").rpartition("/")
    return ORDER.index(name) + 1 if folder == "tutorials" and name in ORDER else 0


def arguments(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """The options that a demo is run with: an empty folder to write to.

    Sphinx-Gallery runs a demo in the folder of its script. A relative path there reads on the page
    as it does for a reader who runs the demo.
    """
    script = Path(script_vars["src_file"])
    shutil.rmtree(script.parent / "out" / script.stem, ignore_errors=True)
    return ["--out", f"out/{script.stem}"]


def fresh(gallery_conf: dict[str, Any], name: str) -> None:
    """Before each demo: Keras forgets the layers that it has named, and its settings."""
    import keras

    keras.utils.clear_session()
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Takes the pictures and viewers that a cell has written, in the order in which it did.

    After the last cell it raises where the demo has not found what it is to find.
    """
    script = Path(block_vars["src_file"])
    folder = script.parent / "out" / script.stem
    taken = block_vars.setdefault("taken", {})
    text = ""
    for path in sorted(folder.rglob("*"), key=lambda path: path.stat().st_mtime_ns):
        written = path.stat().st_mtime_ns
        if taken.get(path) == written:
            continue
        if path.suffix == ".png":
            text += _picture(path, block_vars, gallery_conf)
        elif path.suffix == ".html" and path.stem in _PAGES:
            text += _viewer(path, block_vars)
        taken[path] = written
    if "result" in block_vars["example_globals"]:  # the last cell has run
        expected.check(script.stem, block_vars["example_globals"], folder)
    return text


def _picture(path, block_vars, gallery_conf):
    target = Path(next(block_vars["image_path_iterator"]))
    shutil.copyfile(path, target)
    source = os.path.relpath(target, gallery_conf["src_dir"]).replace(os.sep, "/")
    name = f"{Path(block_vars['src_file']).stem}/{path.stem}"
    if name not in CAPTIONS:
        raise ExtensionError(f"{name}.png has no caption in docs/extensions/captions.py")
    return _FIGURE.format(source, path.stem.replace("_", " "), CAPTIONS[name])


def _viewer(path, block_vars):
    demo = Path(block_vars["target_file"])
    folder = demo.parent / "viewers"
    folder.mkdir(exist_ok=True)
    name = demo.stem if path.stem == "viewer" else f"{demo.stem}-{path.stem}"
    page = path.read_text(encoding="utf-8")
    (folder / f"{name}.html").write_text(page, encoding="utf-8")
    if path.stem == "viewer":
        chinese = page.replace('{"language":"en"', '{"language":"zh"', 1)
        (folder / f"{name}.zh.html").write_text(chinese, encoding="utf-8")
    frame = _VIEWER.format(
        path=f"viewers/{name}.html",
        title=_PAGES[path.stem],
        own_page=f"{_PAGES[path.stem]} on a page of its own",
    )
    return _RAW.format(frame.replace("\n", "\n    "))


def _bring_figures(app, env, docnames):
    """Downloaded scripts have the functions that they import from `demos/_figures.py`."""
    folder = Path(app.srcdir)
    figures = (folder.parent / "demos" / "_figures.py").read_text(encoding="utf-8")
    figures = figures.partition('"""\n\n')[2]
    for script in (folder / "tutorials").glob("*.py"):
        text = script.read_text(encoding="utf-8")
        alone = re.sub(r"^from _figures import .*\n", lambda _: figures, text, flags=re.M)
        if alone != text:
            script.write_text(alone, encoding="utf-8")
            with zipfile.ZipFile(script.with_suffix(".zip"), "w") as together:
                for path in (script, script.with_suffix(".ipynb")):
                    together.write(path, path.name)


def _with_code(app, docname, source):
    """Chinese pages with the code that they name; on all, what the code needs before it."""
    path = Path(app.env.doc2path(docname))
    if path in cells.pages():
        source[0] = cells.expanded(path)
    elif docname.startswith("zh/") and not docname.startswith("zh/tutorials/"):
        source[0] = cells.with_english_code(source[0])
    elif docname.removeprefix("tutorials/") in ORDER:
        source[0] = cells.folded_in_english(source[0])


# On a page, a link to a demo leads to its tutorial. Where pages are files, it finds the file.
_DEMO = re.compile(r"\]\(\.\./demos/(?:(\w+)\.py|README\.rst)\)")


def _to_tutorials(app, docname, source):
    if "/" not in docname:
        source[0] = _DEMO.sub(lambda link: f"](tutorials/{link[1] or 'index'})", source[0])


def _chinese_viewer(app, docname, source):
    demo = docname.removeprefix("zh/tutorials/")
    frame = _VIEWER.format(
        path=f"../../tutorials/viewers/{demo}.zh.html",
        title="注意力查看器",
        own_page="在单独的页面中打开",
    )
    source[0] = source[0].replace(_CHINESE_VIEWER, frame)


# A line of a progress bar, as `fit` prints many of in each epoch.
_PROGRESS = re.compile(r"\s*\d+/\d+ [━╸╺]+ ")


def _without_progress(app, docname, source):
    """Leaves the last line of each progress bar: a terminal writes one over the other."""
    if docname.startswith("tutorials/"):
        lines = re.split(r"[\r\n]", source[0])
        later = [*lines[1:], ""]
        source[0] = "\n".join(
            line
            for line, after in zip(lines, later, strict=True)
            if not (_PROGRESS.match(line) and _PROGRESS.match(after))
        )


# The pages that list the tutorials, and how a list begins there.
_LISTS = {
    "tutorials/index": "\n.. toctree::\n   :hidden:\n   :caption: {}\n\n",
    "zh/index": "```\n\n```{{toctree}}\n:hidden:\n:caption: {}\n\n",
}


def _in_parts(app, docname, source):
    """The list of tutorials as one list for each part of the course."""
    for name, captions in PARTS.items() if docname in _LISTS else ():
        begin = _LISTS[docname].format(captions[docname.startswith("zh/")])
        source[0] = re.sub(rf"^( *)(/?tutorials/{name})$", rf"{begin}\1\2", source[0], flags=re.M)


def _number_tutorials(app, env):
    """Numbers through all parts: Sphinx begins each list at 1. Returns no page to write again."""
    for page in filter(number, env.found_docs):
        first, *others = env.tocs[page].findall(nodes.reference)
        first["secnumber"] = env.titles[page]["secnumber"] = (number(page),)
        env.toc_secnumbers[page] = {"": (number(page),)}
        env.toc_secnumbers[page] |= {other["anchorname"]: () for other in others}
    return []


# Sphinx-Gallery has images in notebooks and no figures: the caption becomes a line of its own.
_CAPTIONED = re.compile(r"^\.\. figure::(.*(?:\n +:.*)*)\n\n +(.*)$", re.M)
# It has no dropdowns there; HTML has.
_DROPDOWN = re.compile(r"^\.\. dropdown:: *(.*)\n((?:\n|   .*\n?)+)", re.M)


def show_answers_in_notebooks() -> None:
    """Has Sphinx-Gallery write the hidden answers of a page into its notebook as HTML."""
    notebook.rst2md = _with_details(notebook.rst2md)


def _with_details(rst2md):
    def convert(text, *args, **kwargs):
        text = rst2md(_CAPTIONED.sub(r".. image::\1\n\n\2", text), *args, **kwargs)
        return _DROPDOWN.sub(_details, text)

    return convert


def _details(match):
    answer = textwrap.dedent(match[2]).strip()
    return f"<details><summary>{match[1]}</summary>\n\n{answer}\n\n</details>\n\n"


def _finish(app, exception):
    """Viewers are pages of their own, which go along unread; demos leave nothing behind."""
    shutil.rmtree(Path(app.srcdir).parent / "demos" / "out", ignore_errors=True)
    viewers = Path(app.srcdir) / "tutorials" / "viewers"
    if exception is None and app.builder.format == "html" and viewers.is_dir():
        shutil.copytree(viewers, Path(app.outdir) / "tutorials" / "viewers", dirs_exist_ok=True)
        notebooks.write_chinese(Path(app.outdir) / "zh" / "tutorials")


def setup(app):
    show_answers_in_notebooks()
    app.connect("env-before-read-docs", _bring_figures)
    app.connect("source-read", _without_progress)
    app.connect("source-read", _with_code)
    app.connect("source-read", _to_tutorials)
    app.connect("source-read", _chinese_viewer)
    app.connect("source-read", _in_parts)
    app.connect("env-get-updated", _number_tutorials)
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True}
