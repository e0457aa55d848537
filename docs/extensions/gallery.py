"""The demos as a gallery: their order, where they write, the files that become pictures, and what
each of them has to find.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError

from tests.demos import expected

# The order of the tutorials. A demo that is not here fails the build.
ORDER = (
    "attention_cues",
    "kernel_regression",
    "kernel_regression_tool",
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
    "hard_attention",
)

FIRST_CELL = """\
%matplotlib inline
import sys

sys.argv = sys.argv[:1]  # so that the options below take their defaults
"""

_IFRAME = """
.. raw:: html

    <iframe class="viewer" src="viewers/{name}" title="{title}" loading="lazy"></iframe>
    <p class="viewer-link"><a href="viewers/{name}">{title} on a page of its own</a></p>
"""


def place(path: str) -> int:
    """The demo's place among the tutorials, from the path of its script."""
    name = Path(path).stem
    if name not in ORDER:
        raise ExtensionError(f"demos/{name}.py has no place in docs/extensions/gallery.py: ORDER")
    return ORDER.index(name)


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
        elif path.suffix == ".html" and path.stem.startswith("viewer"):
            text += _viewer(path, block_vars)
        taken[path] = written
    if "result" in block_vars["example_globals"]:  # the last cell has run
        expected.check(script.stem, block_vars["example_globals"], folder)
    return text


def _picture(path, block_vars, gallery_conf):
    target = Path(next(block_vars["image_path_iterator"]))
    shutil.copyfile(path, target)
    source = os.path.relpath(target, gallery_conf["src_dir"]).replace(os.sep, "/")
    words = path.stem.replace("_", " ").replace("-", " ")
    return f"\n.. image:: /{source}\n   :alt: {words}\n   :class: sphx-glr-single-img\n"


def _viewer(path, block_vars):
    demo = Path(block_vars["target_file"])
    name = f"{demo.stem}-{path.name}"
    folder = demo.parent / "viewers"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(path, folder / name)
    return _IFRAME.format(name=name, title="The viewer")


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


def _finish(app, exception):
    """Viewers are pages of their own, which go along unread; demos leave nothing behind."""
    shutil.rmtree(Path(app.srcdir).parent / "demos" / "out", ignore_errors=True)
    viewers = Path(app.srcdir) / "tutorials" / "viewers"
    if exception is None and app.builder.format == "html" and viewers.is_dir():
        shutil.copytree(viewers, Path(app.outdir) / "tutorials" / "viewers", dirs_exist_ok=True)


def setup(app):
    app.connect("source-read", _without_progress)
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True}
