"""A link from each page to the same page in the other language, where there is one."""


def _context(app, pagename, templatename, context, doctree):
    pages = app.env.found_docs
    chinese = pagename.startswith("zh/")
    other = pagename.removeprefix("zh/") if chinese else f"zh/{pagename}"
    context["other_language"] = other if other in pages else None
    context["other_language_name"] = "English" if chinese else "中文"
    context["other_language_code"] = "en" if chinese else "zh-CN"
    if chinese:
        context["language"] = "zh-CN"


def setup(app):
    app.connect("html-page-context", _context)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
