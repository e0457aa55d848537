"""Characters that matplotlib's own font lacks: another font has them, or a warning names one."""

import os

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager

from tfattn import plot
from tfattn.plot import fonts

CHINESE = list("注意力汇聚")


@pytest.fixture(autouse=True)
def forget():
    """No test finds what another has looked up, or what fonts another has added."""
    known = list(font_manager.fontManager.ttflist)
    fonts._families.cache_clear()
    yield
    fonts._families.cache_clear()
    font_manager.fontManager.ttflist[:] = known


@pytest.fixture
def only_matplotlibs_fonts(monkeypatch):
    """None of the machine's fonts: those that come with matplotlib."""
    known = [font for font in font_manager.fontManager.ttflist if "mpl-data" in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", known)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])


def family(text):
    return text.get_fontfamily()


def test_fonts_of_latin_words_are_kept():
    axes = plot.heatmaps(np.eye(2), ["café", "α"], ["a", "b"]).axes[0]
    assert {tuple(family(label)) for label in axes.get_yticklabels()} == {("sans-serif",)}


@pytest.mark.usefixtures("only_matplotlibs_fonts")
def test_fonts_of_a_text_hold_its_other_characters(tmp_path):
    known, more = (
        fonts._characters(font_manager.findfont(name)) for name in ("DejaVu Sans", "STIXGeneral")
    )
    strange = min(letter for letter in more - known if letter > "\u2a00")  # a sign of mathematics
    figure = plot.heatmaps(np.eye(2), [f"a{strange}", "b"], titles=[strange])
    first, second = figure.axes[0].get_yticklabels()
    assert family(first)[0] == "sans-serif" and len(family(first)) == 2
    assert family(second) == ["sans-serif"]
    assert family(figure.axes[0].title) == family(first)
    figure.savefig(tmp_path / "figure.png")  # where matplotlib warns of what a font lacks


@pytest.mark.usefixtures("only_matplotlibs_fonts")
def test_fonts_without_a_character_warn_and_name_one():
    message = r"tfattn.plot: no installed font has '力意汇注聚'\. Install .* Noto Sans CJK SC"
    with pytest.warns(UserWarning, match=message) as caught:
        figure = plot.heatmaps(np.eye(5), column_labels=CHINESE)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == CHINESE
    assert [warning.filename for warning in caught] == [__file__]  # the caller's line


# Words, and the font that a warning names for them. DejaVu Sans has letters of some.
SCRIPTS = {
    "हिन्दी": "Noto Sans Devanagari (Debian and Ubuntu: apt install fonts-noto-core)",
    "عربي": "Noto Sans Arabic",
    "עברית": "Noto Sans Hebrew",
    "ไทย": "Noto Sans Thai",
    "한국어": "Noto Sans CJK KR",
    "ひらがな": "Noto Sans CJK JP",
    "ラーメン": "Noto Sans CJK JP",
    "汉字。": "Noto Sans CJK SC",
    "🦜🏳": "Symbola",
    "हিন": "Noto Sans Bengali, Noto Sans Devanagari (Debian",
    "\U00012000": "one with these characters",
}


@pytest.mark.usefixtures("only_matplotlibs_fonts")
def test_fonts_are_named_for_script_of_missing_words():
    for words, font in SCRIPTS.items():
        named = fonts.to_install(words)
        assert font in named and ("CJK" in font) == ("CJK" in named), words
    with pytest.warns(UserWarning, match="font: Noto Sans Devanagari .*fonts-noto-core.[.]$"):
        plot.heatmaps(np.eye(2), ["हिन्दी", "b"])


@pytest.mark.usefixtures("only_matplotlibs_fonts")
@pytest.mark.filterwarnings("ignore:cmr10 font should")
def test_fonts_of_numbers_on_axes_hold_minus_sign(tmp_path):
    with matplotlib.rc_context({"font.sans-serif": ["cmr10"]}):  # has none, as many Chinese fonts
        bar = plot.heatmaps([[-1e-9, 2e-9]]).axes[1]
        bar.set_ylim(-7e-9, -3e-9)  # other ticks
        bar.figure.savefig(tmp_path / "figure.png")  # a missing glyph is a warning, an error
    for number in (*bar.get_yticklabels(), bar.yaxis.get_offset_text()):
        assert "\N{MINUS SIGN}" in number.get_text()


def test_fonts_installed_since_matplotlib_looked_are_found(monkeypatch):
    manager = font_manager.fontManager
    stix = font_manager.findfont("STIXGeneral")
    dejavu = [font for font in manager.ttflist if "dejavu" in font.name.lower()]
    strange = sorted(fonts._characters(stix) - fonts._characters(dejavu[0].fname))[-1]
    dejavu = [font for font in dejavu if strange not in fonts._characters(font.fname)]
    monkeypatch.setattr(manager, "ttflist", dejavu)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [stix, "/no/such/font.ttf"])
    assert fonts._families(strange) == (("STIXGeneral",), frozenset())


def test_fonts_of_one_weight_serve_regular_text():
    bold = font_manager.findfont("DejaVu Sans:bold")
    entry = next(font for font in font_manager.fontManager.ttflist if font.fname == bold)
    font_manager.fontManager.ttflist[:] = [
        font for font in font_manager.fontManager.ttflist if font.name != entry.name
    ] + [entry]
    fonts._add_regular(entry)
    weights = [f.weight for f in font_manager.fontManager.ttflist if f.name == entry.name]
    assert fonts.REGULAR in weights


def test_fonts_of_last_resort_are_never_taken():
    assert not [font.name for font in fonts._installed(False) if "last" in font.name.lower()]


@pytest.mark.slow
def test_fonts_draw_chinese_words_with_their_glyphs(tmp_path, caplog):
    _, missing = fonts._families("".join(sorted(CHINESE)))
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            f"no installed font has Chinese: {fonts.to_install('字')}"
        )
    eye = np.eye(5)
    for figure in (
        plot.flow(eye, CHINESE, CHINESE, "注意力"),
        plot.heatmaps(eye, CHINESE, CHINESE, ["注意力"], "键", "查询", "权重"),
    ):
        figure.savefig(tmp_path / "figure.png", dpi=40)  # a missing glyph is a warning, an error
    assert "findfont" not in caplog.text
