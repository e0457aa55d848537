"""Fonts for characters that matplotlib's own font lacks, such as Chinese characters."""

import dataclasses
import functools
from typing import Any

from tfattn import _optional

REGULAR = 400  # the weight of a font for text

# Fonts that come before the others: matplotlib's own, and some with simplified Chinese.
PREFERRED = (
    "DejaVu Sans",
    *("Noto Sans CJK SC", "Source Han Sans SC", "PingFang SC", "Hiragino Sans GB"),
    *("Microsoft YaHei", "SimHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei"),
)


def fit(artist: Any) -> None:
    """Appends installed fonts to those of each text, for the characters that its own fonts lack."""
    text = _optional.find("matplotlib.text", "plot", "tfattn.plot")
    texts = artist.findobj(text.Text)
    letters = sorted({letter for words in texts for letter in words.get_text()})
    # The numbers of axes are written when the figure is drawn.
    families = dict.fromkeys(map(_family, [*letters, "\N{MINUS SIGN}"]))
    for words in texts:
        words.set_fontfamily([*words.get_fontfamily(), *families])


@functools.cache
def _family(letter: str) -> str:
    """An installed family with a character, or matplotlib's own."""
    manager = _optional.find("matplotlib.font_manager", "plot", "tfattn.plot")
    places = {family: place for place, family in enumerate(PREFERRED)}

    def order(font: Any) -> tuple[int, str, bool]:
        return places.get(font.name, len(places)), font.name, font.weight != REGULAR

    fonts = [font for font in manager.fontManager.ttflist if font.style == "normal"]
    for font in sorted(fonts, key=order):
        # The font "Last Resort" has a box for every character.
        if letter in _characters(font.fname) and "Last Resort" not in font.name:
            if font.weight != REGULAR:  # matplotlib would log a line at each use
                manager.fontManager.ttflist.append(dataclasses.replace(font, weight=REGULAR))
            return font.name
    return PREFERRED[0]


@functools.lru_cache(maxsize=64)
def _characters(path: str) -> frozenset[str]:
    """The characters of a font file; empty if it cannot be read."""
    ft2font = _optional.find("matplotlib.ft2font", "plot", "tfattn.plot")
    try:
        return frozenset(map(chr, ft2font.FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # a deleted file, or a bitmap font
        return frozenset()
