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
    if not {"tutorials", "api"} & {part.name for part in path.parents if part.parent == DOCS}
)


def test_each_demo_has_its_place_in_the_gallery_and_a_chinese_page():
    for demo in (ROOT / "demos").glob("*.py"):
        assert demo.stem in ORDER, f"docs/extensions/gallery.py: ORDER lacks {demo.stem}"
        page = DOCS / "zh" / "tutorials" / f"{demo.stem}.md"
        assert page.is_file(), f"write {page.relative_to(ROOT)}"
        assert stamp.source_of(page)[0] == demo


def test_no_page_holds_notes_to_its_writers():
    """Readers of the text see comments of HTML too."""
    noted = [path for path in WRITTEN if "<!--" in path.read_text(encoding="utf-8")]
    assert noted == []


def test_the_page_of_translation_names_every_format_of_export():
    page = (DOCS / "translation.md").read_text(encoding="utf-8")
    assert [name for name in EXPORTS if f"`{name}`" not in page] == []


def test_each_chinese_page_is_as_new_as_its_source():
    pages = {page.relative_to(ROOT).as_posix(): stamp.stale(page) for page in stamp.pages()}
    stale = [
        f"{why}; mend it, then: python docs/stamp.py {name}" for name, why in pages.items() if why
    ]
    assert len(pages) > 14 and not stale


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
    assert len(listed) == len(set(listed))
    lacking = set(tfattn.__all__) - {*listed, *_constant(path, "MODULES")}
    assert not lacking, f"docs/extensions/api.py: GROUPS lacks {', '.join(sorted(lacking))}"


def test_links_to_local_files_lead_somewhere():
    broken = []
    for path in WRITTEN:
        code = r"^(```|~~~).*?^\1"
        text = re.sub(code, "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", text):
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
    if path.parent == DOCS / "tutorials" / "images":
        picture = re.fullmatch(r"sphx_glr_(\w+)_\d{3}\.png", path.name)
        return picture is not None and picture[1] in ORDER
    return path.parent == DOCS / "api" and (name == "index" or name.startswith("tfattn."))


def _with_code():
    """Pages whose code no other page has: a Chinese page has that of its English one, or more.

    Those of the tutorials quote pieces of the demos, which the build of the pages runs.
    """
    pages = {}
    for page in sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "zh").glob("*.md")]):
        code = "\n".join(run_blocks.blocks(page))
        if code:
            pages.setdefault(ast.dump(ast.parse(code)), page)  # comments are in their languages
    return pages.values()


# They export, and print TensorFlow's tensors.
ABOUT_TENSORFLOW = ("save-export-serve", "coming-from-d2l")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.relative_to(ROOT).as_posix(),
            marks=[pytest.mark.tensorflow] * (page.stem in ABOUT_TENSORFLOW),
        )
        for page in _with_code()
    ],
)
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
        gallery._without_progress(None, "tutorials/positions", page)
        assert page == [f"    Epoch 1/2\n{last}\n    Epoch 2/2\n{last}\n"]
    page = [f"{first}\n{first}\n"]
    gallery._without_progress(None, "start", page)
    assert page == [f"{first}\n{first}\n"]
