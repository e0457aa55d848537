"""The page of ten traps: each block prints what stands below it."""

import contextlib
import io
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
DOCS = Path(__file__).resolve().parents[1] / "docs"
_PYTHON = r"(?:python|\{code\} traps.md \d+)\n(.*?)^```"
CODE = re.compile(rf"^```{_PYTHON}(?:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


def blocks(page):
    """(title, code, what it prints) of each block of a page."""
    start, *sections = re.split(r"^## ", page.read_text("utf-8"), flags=re.MULTILINE)
    return [
        (section.partition("\n")[0], *match.groups())
        for section in (start, *sections)
        for match in CODE.finditer(section)
    ]


@pytest.mark.parametrize("page", [DOCS / "traps.md", DOCS / "zh" / "traps.md"], ids=["en", "zh"])
def test_page_of_traps_has_ten_of_them_and_each_prints_something(page):
    (_, _, nothing), *traps = blocks(page)
    assert nothing is None and len(traps) == 10
    assert [title.partition(".")[0] for title, _, _ in traps] == [*map(str, range(1, 11))]
    assert all(printed for _, _, printed in traps)
    english = [printed for _, _, printed in blocks(DOCS / "traps.md")]
    assert [printed for _, _, printed in blocks(page)] == english


def test_trap_prints_what_its_page_says(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the page shows code of PyTorch, extra `bench`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_KERAS", "0")  # restores it after the page has set it
    variables = {"__name__": "__main__"}
    for title, code, expected in blocks(DOCS / "traps.md"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "traps.md", "exec"), variables)
        assert printed.getvalue() == (expected or ""), title
