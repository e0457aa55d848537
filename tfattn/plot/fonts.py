"""Fonts for characters that matplotlib's own font lacks, such as Chinese characters."""

import dataclasses
import functools
import unicodedata
import warnings
from typing import Any

from tfattn import _optional

REGULAR = 400  # the weight of a font for text

# Preferred fonts, with Chinese and most other East Asian characters.
PREFERRED = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",  # matplotlib's name of the collection of all variants
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "Heiti TC",
    "STHeiti",
    "Microsoft YaHei",
    "SimHei",
    "DengXian",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Arial Unicode MS",
    "SimSun",
    "AR PL UMing CN",
)

INSTALL = (
    "Noto Sans CJK SC (Debian and Ubuntu: apt install fonts-noto-cjk) or WenQuanYi Zen Hei "
    "(fonts-wqy-zenhei) has Chinese characters"
)


def fit(artist: Any) -> None:
    """Appends fonts for missing characters to the fonts of each text in an artist.

    If no installed font has the characters, a warning names a font to install.
    """
    text = _optional.find("matplotlib.text", "plot", "tfattn.plot")
    lacking: set[str] = set()
    for words in artist.findobj(text.Text):
        if words.get_text().isascii():
            continue
        missing = _drawn(words.get_text()) - _known(words.get_fontproperties())
        families, left = _families("".join(sorted(missing)))
        if families:
            words.set_fontfamily([*words.get_fontfamily(), *families])
        lacking |= left
    if lacking:
        found = "".join(sorted(lacking))
        message = f"tfattn.plot: no installed font has {found!r}. Install a font: {INSTALL}."
        warnings.warn(message, UserWarning, stacklevel=4)


def _drawn(words: str) -> frozenset[str]:
    """The characters that need a glyph, without spaces and line breaks."""
    return frozenset(
        letter for letter in words if not letter.isspace() and unicodedata.category(letter) != "Cf"
    )


def _known(properties: Any) -> frozenset[str]:
    """The characters of the fonts of a text."""
    manager = _optional.find("matplotlib.font_manager", "plot", "tfattn.plot")
    known: frozenset[str] = frozenset()
    for family in properties.get_family():
        one = properties.copy()
        one.set_family([family])
        try:
            known |= _characters(manager.findfont(one, fallback_to_default=False))
        except ValueError:  # not installed; matplotlib tries the next family too
            continue
    return known or _characters(manager.findfont(properties))


@functools.lru_cache(maxsize=64)
def _characters(path: str) -> frozenset[str]:
    """The characters of a font file; empty if it cannot be read."""
    ft2font = _optional.find("matplotlib.ft2font", "plot", "tfattn.plot")
    try:
        return frozenset(map(chr, ft2font.FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # a deleted file, or a bitmap font
        return frozenset()


@functools.lru_cache(maxsize=256)
def _families(missing: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Installed families that together have the characters, and the characters without a font.

    Preferred fonts come first.
    """
    left, families = set(missing), []
    for fresh in (False, True):
        for font in _installed(fresh) if left else ():
            found = left & _characters(font.fname)
            if found:
                _add_regular(font)
                families.append(font.name)
                left -= found
            if not left:
                break
    return tuple(families), frozenset(left)


def _installed(fresh: bool) -> list[Any]:
    """The upright fonts of matplotlib, preferred fonts first.

    matplotlib caches a list of fonts in a file; `fresh` adds newly installed fonts.
    """
    manager = _optional.find("matplotlib.font_manager", "plot", "tfattn.plot")
    known = manager.fontManager
    if fresh:
        for path in {*manager.findSystemFonts()} - {font.fname for font in known.ttflist}:
            try:
                known.addfont(path)
            except (OSError, RuntimeError):
                continue
    places = {family: place for place, family in enumerate(PREFERRED)}

    def order(font: Any) -> tuple[int, int, str, str]:
        place = places.get(font.name, len(places))
        return place, abs(_weight(font.weight) - REGULAR), font.name, font.fname

    fonts = (font for font in known.ttflist if font.style == "normal")
    # The font "Last Resort" has a box for every character.
    return sorted((font for font in fonts if "last resort" not in font.name.lower()), key=order)


def _add_regular(font: Any) -> None:
    """Registers a font of any weight as regular.

    matplotlib would log a line at each use of a font with only a medium weight.
    """
    manager = _optional.find("matplotlib.font_manager", "plot", "tfattn.plot")
    irregular = _weight(font.weight) != REGULAR and dataclasses.is_dataclass(font)
    if irregular:
        manager.fontManager.ttflist.append(dataclasses.replace(font, weight=REGULAR))


def _weight(weight: int | str) -> int:
    names = _optional.find("matplotlib.font_manager", "plot", "tfattn.plot").weight_dict
    return weight if isinstance(weight, int) else names.get(weight, REGULAR)
