"""How the pages are built: `python docs/build.py` from the root of the repository."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import notebooks  # noqa: E402

import tfattn  # noqa: E402

project = "tfattn"
author = "the authors of tfattn"
version = release = tfattn.__version__
language = "en"

extensions = [
    "extensions.gallery",
    "extensions.api",
    "extensions.docstrings",
    "extensions.figures",
    "extensions.glossary",
    "extensions.languages",
    "extensions.live",
    "extensions.mathml",
    "extensions.names",
    "extensions.search",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
root_doc = "index"
exclude_patterns = ["figures", "extensions", "_templates", "tutorials/*.py", "tutorials/*.ipynb"]
templates_path = ["_templates"]
nitpicky = True

# reStructuredText, of docstrings and demos: `x` is code, as it is in Markdown.
default_role = "literal"
highlight_language = "python"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
add_module_names = False
toc_object_entries_show_parents = "hide"

myst_enable_extensions = [
    "amsmath",
    "attrs_block",
    "attrs_inline",
    "colon_fence",
    "deflist",
    "dollarmath",
    "fieldlist",
]
myst_heading_anchors = 3

sphinx_gallery_conf = {
    "examples_dirs": "../demos",
    "gallery_dirs": "tutorials",
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"_figures\.py$",
    "within_subsection_order": "extensions.gallery.place",
    "minigallery_sort_order": "extensions.gallery.place",
    "reset_argv": "extensions.gallery.arguments",
    "reset_modules": ("matplotlib", "extensions.gallery.fresh"),
    "image_scrapers": ("extensions.gallery.scrape",),
    "capture_repr": (),
    "backreferences_dir": "api/backreferences",
    "doc_module": ("tfattn",),
    "first_notebook_cell": notebooks.FIRST_CELL,
    "notebook_images": True,
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": float("inf"),
}

html_theme = "pydata_sphinx_theme"
html_title = "tfattn"
html_static_path = ["_static"]
html_css_files = ["tfattn.css"]
html_js_files = ["tfattn.js"]
html_sidebars = {"start": []}  # a page without a section has nothing to list
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "article_header_end": ["language"],
    "footer_start": [],
    "footer_end": [],
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
}
