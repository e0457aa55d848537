"""The pages: what is listed is there, Chinese pages are as new as their sources, links lead on.

Sphinx itself is not needed: `python docs/build.py` builds the pages, and is as strict.
"""

import ast
import csv
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import image

import tfattn
from tfattn.translator.arguments import EXPORTS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def _script(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _constant(path, name):
    """A literal of a module that imports Sphinx."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no {name}")


ORDER = _constant(DOCS / "extensions" / "gallery.py", "ORDER")
stamp = _script("stamp")
WRITTEN = sorted(
    path
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "demos" / "README.rst"]
    if not {"tutorials", "api"} & {part.name for part in path.parents if part.parent == DOCS}
)


def test_demo_has_a_place_in_the_gallery_and_a_chinese_page():
    for demo in (ROOT / "demos").glob("[!_]*.py"):
        assert demo.stem in ORDER, f"docs/extensions/gallery.py: ORDER lacks {demo.stem}"
        page = DOCS / "zh" / "tutorials" / f"{demo.stem}.md"
        assert page.is_file(), f"write {page.relative_to(ROOT)}"
        assert stamp.source_of(page)[0] == demo


def test_pages_hold_no_comments():
    """Readers of the text see comments of HTML too."""
    noted = [path for path in WRITTEN if "<!--" in path.read_text(encoding="utf-8")]
    assert noted == []


def test_page_of_the_translator_names_every_format_of_export():
    page = (DOCS / "train-on-your-own-files.md").read_text(encoding="utf-8")
    assert [name for name in EXPORTS if f"`{name}`" not in page] == []


def test_chinese_pages_are_as_new_as_their_sources():
    pages = {page.relative_to(ROOT).as_posix(): stamp.stale(page) for page in stamp.pages()}
    stale = [
        f"{why}; mend it, then: python docs/stamp.py {name}" for name, why in pages.items() if why
    ]
    assert len(pages) > 14 and not stale


def test_chinese_page_has_the_code_of_its_demo_in_its_order(sphinx_scripts):
    cells, notebooks = sphinx_scripts
    assert len(cells.pages()) == len(ORDER)
    for page in cells.pages():
        assert "```python" not in page.read_text("utf-8"), f"{page.name}: name a cell of the demo"
        english = notebooks.notebook(ROOT / "demos" / f"{page.stem}.py")["cells"]
        english = ["".join(each["source"]) for each in english if "outputs" in each]
        chinese = [each.source for each in notebooks.chinese_notebook(page).cells]
        assert english[:2] == [notebooks.INSTALL.strip(), notebooks.FIRST_CELL.strip()]
        for ours, theirs in zip(english[:2], chinese[:2], strict=True):
            code = {re.sub(r'#.*|"""[^"]*"""', "", cell) for cell in (ours, theirs)}
            assert len(code) == 1 and not re.search("# (?:In|the) ", theirs)
        of_demo = ast.unparse(ast.parse("\n".join(english[2:])))
        assert ast.unparse(ast.parse(notebooks.chinese_script(page))).endswith(of_demo)


@pytest.fixture
def sphinx_scripts(monkeypatch):
    pytest.importorskip("sphinx_gallery", reason="pages need the extra `docs`")
    monkeypatch.syspath_prepend(str(DOCS))
    return _script("cells"), _script("notebooks")


def test_chinese_page_with_other_cells_or_comments_is_refused(sphinx_scripts, tmp_path):
    cells, _ = sphinx_scripts
    demo = ROOT / "demos" / "multi_head.py"
    first, *others = cells.cells(demo)
    page = tmp_path / "multi_head.md"
    for text, error in (
        (f"```{{demo}} {others[0]}\n```\n", "0 comments in Chinese for these"),
        (f"```{{demo}} {first}\n```\n", "has the cells"),
        ("```{demo} Appendix\n```\n", "has no cell 'Appendix'"),
    ):
        page.write_text(f"---\nsource: x\n---\n\n{text}", encoding="utf-8")
        with pytest.raises(ValueError, match=error):
            cells.expanded(page)


def test_chinese_guide_names_the_code_that_its_english_page_has_too():
    cells = _script("cells")
    for page in sorted((DOCS / "zh").glob("*.md")):
        text = page.read_text("utf-8")
        assert "```{code}" not in cells.with_english_code(text)
        pages = ((DOCS / page.name).read_text("utf-8"), text)
        both, own = ({ast.dump(ast.parse(code)) for code in cells.python_blocks(x)} for x in pages)
        assert not both & own, f"zh/{page.name}: name these blocks of {page.name}"
        in_order = [f"{page.name} {i + 1}" for i in range(len(cells.python_blocks(pages[0])))]
        names = re.findall(r"^```(?:python|\{code\} (.+))$", text, re.MULTILINE)
        assert [name or here for name, here in zip(names, in_order, strict=True)] == in_order


def test_name_of_a_block_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="masks.md has 9 blocks of Python, and no 10"):
        _script("cells").with_english_code("```{code} masks.md 10\n```\n")


def test_stamp_of_a_page_follows_its_source_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(stamp, "ROOT", tmp_path)
    (tmp_path / "start.md").write_text("Start", encoding="utf-8")
    page = tmp_path / "zh.md"
    page.write_text("---\nsource: start.md\nsource_sha256: 0\n---\n\n# 开始\n", encoding="utf-8")
    assert "older than start.md" in stamp.stale(page)
    stamp.stamp(page)
    assert stamp.stale(page) is None
    assert page.read_text(encoding="utf-8").endswith("\n---\n\n# 开始\n")
    (tmp_path / "start.md").write_text("Begin", encoding="utf-8")
    assert "older than start.md" in stamp.stale(page)
    (tmp_path / "start.md").unlink()
    assert "is not there" in stamp.stale(page)


def test_pictures_of_demos_are_as_new_as_their_demos():
    shown = stamp.pictures()
    stale = [words for path in shown if (words := stamp.stale(path))]
    assert len(shown) > 50
    assert not stale, "run: python docs/build.py, then: python docs/pictures.py"
    assert {*stamp.PICTURES.iterdir()} == {*shown}
    assert sum(path.stat().st_size for path in shown) < 3_000_000


def test_picture_whose_demo_changed_its_code_is_stale(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    pictures = _script("pictures")
    monkeypatch.setattr(pictures, "stamp", stamp)
    monkeypatch.setattr(stamp, "ROOT", tmp_path)
    monkeypatch.setattr(pictures, "BUILT", tmp_path)
    (tmp_path / "demos").mkdir()
    demo, picture = tmp_path / "demos" / "cues.py", tmp_path / "cues_001.png"
    demo.write_text('"""Cues."""\n# %%\nx = 1\n', encoding="utf-8")
    image.imsave(tmp_path / "sphx_glr_cues_001.png", np.linspace(0, 1, 300).reshape(15, 20))
    pictures.save(picture)
    assert stamp.stale(picture) is None
    demo.write_text('"""Five things."""\n\n# Prose.\nx = 1\n', encoding="utf-8")
    assert stamp.stale(picture) is None
    demo.write_text('"""Cues."""\n# %%\nx = 2\n', encoding="utf-8")
    assert stamp.stale(picture) == "cues_001.png is older than demos/cues.py"
    close = (
        image.imread(picture)[..., :3] - image.imread(tmp_path / "sphx_glr_cues_001.png")[..., :3]
    )
    assert np.abs(close).max() < 0.02


PAGE_THAT_DRAWS = """\
# Things

```python
from matplotlib import image

image.imsave("b.png", [[0, 1]])
image.imsave("a.png", [[1, 0, 0]] * 2)
```
"""


def test_picture_whose_page_changed_its_code_is_stale(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    pictures, blocks = _script("pictures"), _script("run_blocks")
    monkeypatch.setattr(pictures, "stamp", stamp)
    monkeypatch.setattr(pictures, "DRAWN", tmp_path / "out" / "pictures")
    monkeypatch.setattr(stamp, "ROOT", tmp_path)
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)  # as running a page changes the folder
    (tmp_path / "docs").mkdir()
    page, picture = tmp_path / "docs" / "some-things.md", tmp_path / "some-things_002.png"
    page.write_text(PAGE_THAT_DRAWS, encoding="utf-8")
    assert blocks._succeeds(page)
    pictures.save(picture)  # the second that the page has drawn
    assert image.imread(picture).shape[:2] == (2, 3)
    assert stamp.stale(picture) is None
    page.write_text(PAGE_THAT_DRAWS.replace("Things", "Others"), encoding="utf-8")
    assert stamp.stale(picture) is None
    page.write_text(PAGE_THAT_DRAWS.replace("[1, 0, 0]", "[1, 0, 1]"), encoding="utf-8")
    assert stamp.stale(picture) == "some-things_002.png is older than docs/some-things.md"


@pytest.mark.parametrize(
    "code, is_right",
    [
        ("print(0.1634)  # 0.163, in the unit of x\n", True),
        ("print(0.1634)  # 0.164\n", False),
        ("print([1, 2])  # [1, 2]: two\n", True),
        ("print([1])  # [1, 2]\n", False),
        ("print('bfloat16')  # float32\n", False),
        ("print((2, 3))  # (B, T)\n", True),
        ("print('no leak')\n```\n\n```text\nno leak\n", True),
        ("print('no leak')\n```\n\n```text\na leak\n", False),
        ("pass\n```\n\n```text\na leak\n", False),
    ],
)
def test_output_that_a_page_shows_is_compared_with_what_its_code_prints(tmp_path, code, is_right):
    page = tmp_path / "page.md"
    page.write_text(f"```python\n{code}```\n", encoding="utf-8")
    run = _script("run_blocks").run
    if is_right:
        assert run(page) == 1
    else:
        with pytest.raises(AssertionError, match="but: |the page shows"):
            run(page)


def test_public_names_have_a_place_in_the_api():
    path = DOCS / "extensions" / "api.py"
    listed = [name for names in _constant(path, "GROUPS").values() for name in names]
    assert len(listed) == len(set(listed))
    lacking = set(tfattn.__all__) - {*listed, *_constant(path, "MODULES")}
    assert not lacking, f"docs/extensions/api.py: GROUPS lacks {', '.join(sorted(lacking))}"


def test_links_to_local_files_lead_to_a_page():
    broken = []
    for path in WRITTEN:
        code = r"^(```|~~~).*?^\1"
        text = re.sub(code, "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        for link in re.findall(r"(?:\]\(<?|\{figure\} )([^)\s>]+)", text):
            target = link.partition("#")[0]
            if target and not re.match(r"[a-z]+:", target) and not _leads(path.parent, target):
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert broken == []


def _leads(folder, target):
    """Whether there is such a file, or a page that is made of a demo or of a docstring."""
    path = (folder / target).resolve() if not target.startswith("/") else DOCS / target[1:]
    if path.exists() or path.with_name(f"{path.name}.md").exists():
        return True
    name = path.name.removesuffix(".html").removesuffix(".md").removesuffix(".rst")
    if path.parent == DOCS / "tutorials":
        return name == "index" or name in ORDER
    return path.parent == DOCS / "api" and (name == "index" or name.startswith("tfattn."))


def test_glossary_defines_each_term_once_in_both_languages():
    glossary = _script("extensions/glossary")
    with glossary.TERMS.open(encoding="utf-8", newline="") as file:
        terms = [*csv.DictReader(file)]
    for name in ("English", "中文"):
        assert len({term[name] for term in terms}) == len(terms)
    for term in terms:
        assert all(term[name] for name in ("section", "English", "中文", "meaning", "意思")), term
    for chinese, page, words in (
        (False, "glossary", "**epoch** 轮次 `fit(epochs=)`\n: one pass over the training data\n"),
        (True, "zh/glossary", "**轮次** epoch `fit(epochs=)`\n: 把训练数据完整地用一遍。也叫"),
    ):
        source = [(DOCS / f"{page}.md").read_text("utf-8")]
        glossary._with_terms(None, page, source)
        assert words in source[0]
        assert source[0].count("\n: ") == len(terms)
        titles = ("\n### Kernel regression\n", "\n### 核回归\n")
        assert [title in source[0] for title in titles] == [not chinese, chinese]


@pytest.fixture
def drawings(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "figures"))
    return _script("figures/drawings")


def test_drawings_are_as_their_scripts_draw_them(drawings):
    written = drawings.written()
    assert set(written) == set((DOCS / "drawings").iterdir())
    stale = [path.name for path, text in written.items() if path.read_text("utf-8") != text]
    assert not stale, "run: python docs/figures/drawings.py"
    for path, text in written.items():
        root, svg = ElementTree.fromstring(text), "{http://www.w3.org/2000/svg}"
        assert root.get("role") == "img" and root.find(f"{svg}title").text
        assert (root.get("lang") == "zh-CN") == path.name.endswith(".zh.svg")


def test_drawings_are_on_a_page_of_their_language(drawings):
    english = [*ROOT.glob("demos/[!_]*.py"), ROOT / "README.md"]
    for path in drawings.written():
        pages = DOCS.glob("zh/**/*.md") if path.name.endswith(".zh.svg") else english
        assert any(f"drawings/{path.name}" in page.read_text("utf-8") for page in pages), path


def test_drawings_have_the_numbers_of_their_demos(drawings):
    demo = (ROOT / "demos" / "self_attention_by_hand.py").read_text("utf-8")
    for given in (drawings.INPUTS, drawings.W_KEY, drawings.W_QUERY, drawings.W_VALUE):
        assert str(given.tolist()) in demo
    hand = drawings.by_hand()
    np.testing.assert_allclose(hand["weights"][0], [6.3379e-02, 4.6831e-01, 4.6831e-01], rtol=1e-4)
    np.testing.assert_allclose(hand["output"][0], [1.9366, 6.6831, 1.5951], atol=5e-5)
    demo = (ROOT / "demos" / "attention_cues.py").read_text("utf-8")
    keys = [list(key) for _, _, _, key in drawings.TABLE]
    assert str(keys) in demo and str(list(drawings.TO_READ)) in demo
    assert all(color in demo for _, _, color, _ in drawings.TABLE)


@pytest.mark.parametrize("label", ["wider than its box", ("box", "比方框更宽的文字")])
def test_drawing_with_a_label_wider_than_its_box_is_refused(drawings, label):
    with pytest.raises(ValueError, match="no room for"):
        drawings.Drawing(1, "title", "description").box(10, 10, 60, 20, label)


def test_gallery_keeps_the_last_line_of_a_progress_bar(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    gallery = _script("extensions/gallery")
    first, last = "    1/9 ━━━━ 26s 9s/step - loss: 5.8 ", "    9/9 ━━━━ 3s 9ms/step - loss: 0.6"
    for separator in ("\r", "\n"):
        page = [f"    Epoch 1/2\n{separator.join([first, first, last])}\n    Epoch 2/2\n{last}\n"]
        gallery._without_progress(None, "tutorials/positions", page)
        assert page == [f"    Epoch 1/2\n{last}\n    Epoch 2/2\n{last}\n"]
    page = [f"{first}\n{first}\n"]
    gallery._without_progress(None, "start", page)
    assert page == [f"{first}\n{first}\n"]


def test_search_splits_chinese_into_pairs_and_english_into_words(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    both = _script("extensions/search").SearchBoth({})
    assert both.split("残差连接，softmax的valid_lens") == [
        "残差",
        "差连",
        "连接",
        "softmax",
        "的",
        "valid_lens",
    ]
    again = [both.split("Masks: mask") for _ in range(2)]
    assert again == [["Masks", "mask"], ["Masks", "mask", "mask~3"]]  # the third in the page


@pytest.mark.parametrize(
    "page, before, cells, is_theirs",
    [
        ("start", "Keras’s ", None, True),
        ("zh/start", "与 Keras 的 ", None, True),
        ("start", "our ", None, False),
        ("start", "", (0, 2), False),
        ("convert", "", None, True),
        ("convert", "", (0, 2), True),
        ("zh/coming-from-keras", "", (1, 2), False),
    ],
)
def test_name_of_another_librarys_class_is_no_link(monkeypatch, page, before, cells, is_theirs):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    names = _script("extensions/names")
    name = names.nodes.literal(text="Attention")
    paragraph = names.nodes.paragraph("", "", names.nodes.Text(before), name)
    if cells:
        row = names.nodes.row("", *(names.nodes.entry() for _ in range(cells[1])))
        row[cells[0]] += paragraph
    assert names._is_of_another(name, page) == is_theirs


def test_pictures_that_demos_write_have_captions():
    captions = _constant(DOCS / "extensions" / "captions.py", "CAPTIONS")
    written = {
        f"{name}/{file}"
        for name in ORDER
        for file in re.findall(
            r'options\.out / "(\w+)\.png"', (ROOT / "demos" / f"{name}.py").read_text("utf-8")
        )
    }
    assert written == {*captions}
    assert all(words[0].isupper() and words.endswith(".") for words in captions.values())


PAGE_WITH_FIGURES = """
Title
=====
Introduction

Before you begin
----------------
- You know this.

::

    import keras

First
-----
.. figure:: one.svg

   Caption one

.. figure:: two.png

.. figure:: three.png

   Caption three

|four|

.. |four| image:: four.png
   :alt: Alone
"""


@pytest.mark.parametrize(
    "page, numbered",
    [
        ("tutorials/multi_head", ["Figure {}.1 Caption one", "Figure {}.3 Caption three"]),
        ("zh/tutorials/multi_head", ["图 {}.1 Caption one", "图 {}.3 Caption three"]),
        ("multi_head", ["Figure 1 Caption one", "Figure 3 Caption three", "Figure 4 Alone"]),
        ("zh/multi_head", ["图 1 Caption one", "图 3 Caption three", "图 4 Alone"]),
        ("index", ["Caption one", "Caption three"]),
    ],
)
def test_figures_have_numbers_and_those_without_captions_are_named(monkeypatch, page, numbered):
    pytest.importorskip("sphinx_gallery", reason="pages need the extra `docs`")
    monkeypatch.syspath_prepend(str(DOCS))
    figures = _script("extensions/figures")
    core = pytest.importorskip("docutils.core", reason="pages need the extra `docs`")
    document = core.publish_doctree(PAGE_WITH_FIGURES, settings_overrides={"doctitle_xform": False})
    document.settings.env = SimpleNamespace(docname=page)
    warned = []
    monkeypatch.setattr(figures.logger, "warning", lambda *words, location: warned.append(words))
    figures.NumberFigures(document).apply()
    figures.BoxFirstSections(document).apply()
    place = ORDER.index("multi_head") + 1
    captions = [caption.astext() for caption in document.findall(figures.nodes.caption)]
    assert captions == [words.format(place) for words in numbered]
    is_tutorial = "tutorials/" in page
    assert [words[-1] for words in warned] == ["two.png"] * (page != "index")
    boxes = [*document.findall(figures.nodes.container)]
    assert [box.astext() for box in boxes[:1]] == (
        ["Before you begin\n\nYou know this."] * is_tutorial
    )
    # the code below the heading stays, outside of the box
    assert "import keras" in document.astext()


def test_page_of_the_api_has_the_example_first_and_all_names_of_an_argument():
    pytest.importorskip("sphinx", reason="pages need the extra `docs`")
    docstring = """\
Adds.

Args:
    first, second,
        third: numbers.

Returns: the sum.

Example:
    >>> add(1, 2, 3)
    6
"""
    text = _script("extensions/docstrings").converted(docstring.splitlines())
    titles = [line.removeprefix(".. rubric:: ") for line in text if line.startswith(".. rubric")]
    assert titles == ["Example", "Arguments", "Returns"]
    assert "``first``, ``second``, ``third``" in text
