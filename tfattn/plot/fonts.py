"""Fonts for characters that matplotlib's own font lacks, such as Chinese characters."""

import dataclasses
import functools
import re
import unicodedata
import warnings
from typing import Any

from tfattn import _optional

REGULAR = 400  # the weight of a font for text

# Fonts that come first, with Chinese and most other East Asian characters.
PREFERRED = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",  # matplotlib's name of the collection of all variants
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "SimSun",
)

# Fonts to install for scripts, by the first word of a character's name in Unicode.
_NOTO = (
    "Arabic Armenian Bengali Devanagari Ethiopic Georgian Gujarati Gurmukhi Hebrew Kannada Khmer "
    "Lao Malayalam Myanmar Oriya Sinhala Tamil Telugu Thai"
)
_CJK = {
    "CJK": "SC",
    "IDEOGRAPHIC": "SC",
    "FULLWIDTH": "SC",
    "HIRAGANA": "JP",
    "KATAKANA": "JP",
    "HANGUL": "KR",
}
_INSTALL = {
    **{script.upper(): (f"Noto Sans {script}", "fonts-noto-core") for script in _NOTO.split()},
    **{script: (f"Noto Sans CJK {kind}", "fonts-noto-cjk") for script, kind in _CJK.items()},
}


def fit(artist: Any) -> None:
    """Appends fonts for missing characters to the fonts of each text in an artist.

    If no installed font has the characters, a warning names a font to install.
    """
    text = _optional.find("matplotlib.text", "plot", "tfattn.plot")
    axis = _optional.find("matplotlib.axis", "plot", "tfattn.plot")
    numbers = {id(each) for one in artist.findobj(axis.Axis) for each in one.findobj(text.Text)}
    lacking: set[str] = set()
    for words in artist.findobj(text.Text):
        letters = words.get_text()
        if id(words) in numbers:  # written when the figure is drawn
            letters += "\N{MINUS SIGN}"
        if letters.isascii():
            continue
        missing = _drawn(letters) - _known(words.get_fontproperties())
        families, left = _families("".join(sorted(missing)))
        if families:
            words.set_fontfamily([*words.get_fontfamily(), *families])
        lacking |= left
    if lacking:
        found = "".join(sorted(lacking))
        message = (
            f"tfattn.plot: no installed font has {found!r}. Install a font: {to_install(found)}."
        )
        warnings.warn(message, UserWarning, stacklevel=4)


def to_install(letters: str) -> str:
    """Names of fonts for the scripts of these characters, with their packages in Debian."""
    names: dict[str, set[str]] = {}
    for letter in letters:
        script = re.split("[ -]", unicodedata.name(letter, ""))[0]
        symbol = ("Symbola", "fonts-symbola") if unicodedata.category(letter) == "So" else None
        if font := _INSTALL.get(script, symbol):
            names.setdefault(font[1], set()).add(font[0])
    return (
        " and ".join(
            f"{', '.join(sorted(fonts))} (Debian and Ubuntu: apt install {package})"
            for package, fonts in sorted(names.items())
        )
        or "one with these characters"
    )


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
