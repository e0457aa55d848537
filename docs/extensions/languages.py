"""Chinese pages: the frame around them in Chinese, and links to the other language."""

import functools
import gettext
from pathlib import Path

import sphinx.locale

CATALOG = Path(sphinx.locale.__file__).parent / "zh_CN" / "LC_MESSAGES"

# What the theme says around a page. Sphinx has the rest in its own catalog.
WORDS = {
    "Back to top": "回到顶部",
    "Breadcrumb": "当前位置",
    "Collapse Sidebar": "收起侧栏",
    "Color mode": "配色",
    "Dark": "深色",
    "Error": "错误",
    "Expand Sidebar": "展开侧栏",
    "Home": "首页",
    "Light": "浅色",
    "Link to this heading": "本节的链接",
    "Link to this image": "本图的链接",
    "Link to this table": "本表的链接",
    "More": "更多",
    "Note": "注意",
    "On this page": "本页目录",
    "Please activate JavaScript to enable the search functionality.": "搜索需要 JavaScript。",
    "Search": "搜索",
    "Section Navigation": "中文文档",
    "Site navigation": "网站导航",
    "Skip to main content": "跳到正文",
    "System Settings": "跟随系统",
    "Version warning": "版本提示",
    "next": "下一页",
    "next page": "下一页",
    "previous": "上一页",
    "previous page": "上一页",
}
# The menu of Chinese pages: a page, its title there, and where the pages begin that belong to it.
MENU = (
    ("zh/start", "五分钟上手", "zh/start"),
    ("zh/tutorials/attention_cues", "教程", "zh/tutorials/"),
    ("zh/masks", "掩码", "zh/masks"),
    ("zh/glossary", "术语表", "zh/glossary"),
    ("zh/exercises", "练习", "zh/exercises"),
    ("api/index", "API（英文）", "api/"),
)
SEARCH = "search-zh"
_LINK = '<li class="nav-item{}"><a class="nav-link nav-internal" href="{}">{}</a></li>'


class _Chinese(gettext.GNUTranslations):
    def gettext(self, message):
        return WORDS.get(message) or super().gettext(message)


@functools.cache
def _translators():
    with (CATALOG / "sphinx.mo").open("rb") as catalog:
        chinese = _Chinese(catalog)
    return {True: chinese, False: gettext.NullTranslations()}


def _is_chinese(page):
    return page.startswith("zh/") or page == SEARCH


def _speak(page):
    """What Sphinx and the theme say from here on is in the language of a page."""
    translator = _translators()[_is_chinese(page)]
    sphinx.locale.translators["general", "sphinx"] = translator
    return translator


def _menu(context, pagename):
    return "".join(
        _LINK.format(" current active" * pagename.startswith(start), context["pathto"](page), title)
        for page, title, start in MENU
    )


def _languages(app, pagename, templatename, context, doctree):
    pages = app.env.found_docs
    chinese = _is_chinese(pagename)
    other = pagename.removeprefix("zh/") if chinese else f"zh/{pagename}"
    is_home = pagename == "index"  # where the menu has the link
    context["other_language"] = other if other in pages and not is_home else None
    context["other_language_name"] = "English" if chinese else "中文"
    context["other_language_code"] = "en" if chinese else "zh-CN"
    translator = _speak(pagename)
    context["gettext"], context["ngettext"] = translator.gettext, translator.ngettext
    _, *beside = app.builder.relations.get(pagename, (None, None, None))
    for side, page in zip(("prev", "next"), beside, strict=True):
        if page and _is_chinese(page) != chinese:
            context[side] = None


def _chinese_frame(app, pagename, templatename, context, doctree):
    if not _is_chinese(pagename):
        return
    to = context["pathto"]
    context.update(
        language="zh-CN",
        root_doc="zh/index",
        parents=context.get("parents", [])[1:],  # without the home page, which is an icon
        theme_search_bar_text="搜索文档……",
        generate_header_nav_html=lambda *args, **kwargs: _menu(context, pagename),
        pathto=lambda page, *args, **kwargs: to(
            SEARCH if page == "search" else page, *args, **kwargs
        ),
    )
    app.add_js_file("sphinx.js")
    if pagename == SEARCH:
        context.update(pagename="search", title="搜索")  # templates know the page by this name


def setup(app):
    app.config.html_static_path.append(str(CATALOG / "sphinx.js"))  # what the search says
    app.connect("doctree-resolved", lambda app, doctree, docname: _speak(docname))
    app.connect("html-collect-pages", lambda app: [(SEARCH, {}, "search.html")])
    app.connect("html-page-context", _languages)  # before the theme, which drops empty templates
    app.connect("html-page-context", _chinese_frame, priority=900)  # after it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
