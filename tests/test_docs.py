"""The pages: what is listed is there, Chinese pages are as new as their sources, links lead on.

Sphinx itself is not needed: `python docs/build.py` builds the pages, and is as strict.
"""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import tfattn
from tfattn.translator.arguments import EXPORTS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DEMOS = sorted(path.stem for path in (ROOT / "demos").glob("*.py"))


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
stamp, run_blocks = _script("stamp"), _script("run_blocks")
WRITTEN = sorted(
    path
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "demos" / "README.rst"]
    if not {"road", "api"} & {part.name for part in path.parents if part.parent == DOCS}
)


def test_each_demo_has_its_place_in_the_gallery():
    assert set(DEMOS) <= set(ORDER), f"docs/extensions/gallery.py: ORDER lacks {DEMOS}"


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_has_a_chinese_page(name):
    page = DOCS / "zh" / "road" / f"{name}.md"
    assert page.is_file(), f"write {page.relative_to(ROOT)}"
    source, _ = stamp.source_of(page)
    assert source == ROOT / "demos" / f"{name}.py"


def test_no_page_holds_notes_to_its_writers():
    """Readers of the text see comments of HTML too."""
    noted = [path for path in WRITTEN if "<!--" in path.read_text(encoding="utf-8")]
    assert noted == []


def test_the_page_of_translation_names_every_format_of_export():
    page = (DOCS / "translation.md").read_text(encoding="utf-8")
    assert [name for name in EXPORTS if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", stamp.pages(), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_chinese_page_is_as_new_as_its_source(page):
    name = page.relative_to(ROOT).as_posix()
    advice = f"mend it, then: python docs/stamp.py {name}"
    assert stamp.stale(page) is None, f"{stamp.stale(page)}; {advice}"


def test_a_stamp_follows_the_source_and_nothing_else_of_the_page(tmp_path, monkeypatch):
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


def test_every_public_name_has_its_place_in_the_api():
    path = DOCS / "extensions" / "api.py"
    listed = [name for names in _constant(path, "GROUPS").values() for name in names]
    modules = _constant(path, "MODULES")
    assert len(listed) == len(set(listed))
    assert set(tfattn.__all__) - set(listed) - set(modules) == set()


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_local_files_lead_somewhere(path):
    text = re.sub(r"^(```|~~~).*?^\1", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", text)
    for link in links:
        target = link.partition("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            continue
        assert _leads(path.parent, target), f"{path.relative_to(ROOT)}: {link}"


def _leads(folder, target):
    """Whether there is such a file, or a page that is made of a demo or of a docstring."""
    path = (folder / target).resolve() if not target.startswith("/") else DOCS / target[1:]
    if path.exists() or path.with_name(f"{path.name}.md").exists():
        return True
    name = path.name.removesuffix(".html").removesuffix(".md").removesuffix(".rst")
    if path.parent == DOCS / "road":
        return name == "index" or name in ORDER
    if path.parent == DOCS / "road" / "images":
        picture = re.fullmatch(r"sphx_glr_(\w+)_\d{3}\.png", path.name)
        return picture is not None and picture[1] in ORDER
    return path.parent == DOCS / "api" and (name == "index" or name.startswith("tfattn."))


# The pages of the road quote pieces of the demos, which have tests of their own.
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "zh").glob("*.md")]
# They build several blocks, train, export or choose among many bandwidths.
SLOW = {
    "docs/choose.md",
    "docs/kernel-regression.md",
    "docs/save-export-serve.md",
    "docs/start.md",
    "docs/text.md",
    "docs/translation.md",
    "docs/zh/start.md",
}


# They export, and print TensorFlow's tensors.
ABOUT_TENSORFLOW = {"docs/save-export-serve.md", "docs/coming-from-d2l.md"}


def _case(page):
    name = page.relative_to(ROOT).as_posix()
    marks = [pytest.mark.slow] * (name in SLOW)
    marks += [pytest.mark.tensorflow] * (name in ABOUT_TENSORFLOW)
    return pytest.param(page, id=name, marks=marks)


@pytest.mark.parametrize("page", [_case(page) for page in sorted(PAGES) if run_blocks.blocks(page)])
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_blocks.run(page) > 0
    if page.stem == "start":
        assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "model.keras").is_file()


def test_a_page_keeps_the_last_line_of_each_progress_bar(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    gallery = _script("extensions/gallery")
    first, last = "    1/9 ━━━━ 26s 9s/step - loss: 5.8 ", "    9/9 ━━━━ 3s 9ms/step - loss: 0.6"
    for separator in ("\r", "\n"):
        page = [f"    Epoch 1/2\n{separator.join([first, first, last])}\n    Epoch 2/2\n{last}\n"]
        gallery._without_progress(None, "road/positions", page)
        assert page == [f"    Epoch 1/2\n{last}\n    Epoch 2/2\n{last}\n"]
    page = [f"{first}\n{first}\n"]
    gallery._without_progress(None, "start", page)
    assert page == [f"{first}\n{first}\n"]
