"""Interactive pages, as single HTML files that need no network."""

import base64
import hashlib
import html
import importlib.resources
import json
import re
from typing import Any


def fill(text: str, data: dict[str, Any] | list[Any], title: str) -> str:
    """Fills the text of a template with data, a title, and the fingerprint of its one script."""
    text = text.replace("{{common_script}}", read("page.js"))
    # The page's policy permits only the template's own script.
    script: Any = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&":  # a word must not end the data's element
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    values = {
        "title": html.escape(title),
        "script_hash": f"sha256-{digest}",
        "common_style": read("page.css"),
        "data": written,
    }
    # A single pass keeps braces in a title or a word.
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text)
    # An unpaired surrogate has no UTF-8 encoding: it is written as an escape, valid in JSON.
    return page.encode("utf-8", "backslashreplace").decode()


def read(name: str) -> str:
    """The text of a file of this folder."""
    return importlib.resources.files("tfattn.plot").joinpath(name).read_text("utf-8")
