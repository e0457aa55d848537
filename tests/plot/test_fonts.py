"""Characters that matplotlib's own font lacks: an installed font has them."""

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
    fonts._family.cache_clear()
    yield
    fonts._family.cache_clear()
    font_manager.fontManager.ttflist[:] = known


@pytest.fixture
def only_matplotlibs_fonts(monkeypatch):
    """None of the machine's fonts: those that come with matplotlib."""
    known = [font for font in font_manager.fontManager.ttflist if "mpl-data" in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", known)


@pytest.mark.usefixtures("only_matplotlibs_fonts")
def test_fonts_of_a_text_hold_its_other_characters(tmp_path):
    known, more = (
        fonts._characters(font_manager.findfont(name)) for name in ("DejaVu Sans", "STIXGeneral")
    )
    strange = min(letter for letter in more - known if letter > "\u2a00")  # a sign of mathematics
    figure = plot.heatmaps(np.eye(2), [f"a{strange}", "é"], titles=[strange])
    families = figure.axes[0].get_yticklabels()[0].get_fontfamily()
    assert families[0] == "sans-serif" and figure.axes[0].title.get_fontfamily() == families
    figure.savefig(tmp_path / "figure.png")  # a missing glyph is a warning, an error


@pytest.mark.usefixtures("only_matplotlibs_fonts")
def test_fonts_without_a_character_keep_the_word_and_matplotlib_warns(tmp_path):
    figure = plot.heatmaps(np.eye(5), column_labels=CHINESE)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == CHINESE
    with pytest.warns(UserWarning, match="Glyph .* missing from font"):
        figure.savefig(tmp_path / "figure.png")


@pytest.mark.usefixtures("only_matplotlibs_fonts")
@pytest.mark.filterwarnings("ignore:cmr10 font should")
def test_fonts_of_numbers_on_axes_hold_minus_sign(tmp_path):
    with matplotlib.rc_context({"font.sans-serif": ["cmr10"]}):  # has none, as many Chinese fonts
        bar = plot.heatmaps([[-1e-9, 2e-9]]).axes[1]
        bar.set_ylim(-7e-9, -3e-9)  # other ticks
        bar.figure.savefig(tmp_path / "figure.png")  # a missing glyph is a warning, an error
    for number in (*bar.get_yticklabels(), bar.yaxis.get_offset_text()):
        assert "\N{MINUS SIGN}" in number.get_text()


def test_fonts_of_one_weight_serve_regular_text():
    bold = font_manager.findfont("DejaVu Sans:bold")
    fonts_known = font_manager.fontManager.ttflist
    fonts_known[:] = [font for font in fonts_known if font.fname == bold]
    assert fonts._family("a") == "DejaVu Sans"
    assert fonts.REGULAR in [font.weight for font in fonts_known]


@pytest.mark.slow
def test_fonts_draw_chinese_words_with_their_glyphs(tmp_path, caplog):
    if fonts._family("字") == fonts.PREFERRED[0]:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no installed font has Chinese")
    eye = np.eye(5)
    for figure in (
        plot.flow(eye, CHINESE, CHINESE, "注意力"),
        plot.heatmaps(eye, CHINESE, CHINESE, ["注意力"], "键", "查询", "权重"),
    ):
        figure.savefig(tmp_path / "figure.png", dpi=40)  # a missing glyph is a warning, an error
    assert "findfont" not in caplog.text
