"""Interactive pages: one HTML file each, which needs no network."""

import base64
import hashlib
import html
import importlib.resources
import json
import re

__all__ = ["filled"]


def filled(template: str, data: dict | list, title: str) -> str:
    """A template of this folder with its data and its title."""
    text = importlib.resources.files("tfattn.plot").joinpath(template).read_text("utf-8")
    # The browser runs the template's own script and no other.
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&":  # so that no word ends the element that holds the data
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    values = {"title": html.escape(title), "script_hash": f"sha256-{digest}", "data": written}
    # In one pass: braces in a title or a word are text.
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text)
    # Half a surrogate pair has no UTF-8: it becomes an escape, which the data's JSON has too.
    return page.encode("utf-8", "backslashreplace").decode()
