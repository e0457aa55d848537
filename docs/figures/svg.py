"""Drawings as SVG: boxes, arrows, labels and matrices of cells on a light panel.

A drawing is an image: its style and fonts are inside it, and it stays light on a dark page. It is
as wide as a phone, so its text keeps the size of a page's text there. A label is one text, or two,
in English and Chinese; `_x` and `_{xy}` are subscripts. A label that is wider than its place raises
ValueError.
"""

import html
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib import colormaps, colors

Label = str | tuple[str, str]
Point = tuple[float, float]

LANGUAGES = ("en", "zh-CN")
WIDTH, SCALE = 344, 1.4  # units, and pixels for each where there is room
INK, MUTED, RULE, ACCENT = "#1f2933", "#52606d", "#b3bcc6", "#c2410c"
FONTS = (
    "'Noto Sans','Segoe UI','Helvetica Neue',Arial,'Noto Sans CJK SC','PingFang SC',"
    "'Microsoft YaHei','WenQuanYi Zen Hei',sans-serif"
)


class Style(NamedTuple):
    """How a box looks. Corners and lines differ too, for prints in gray."""

    fill: str
    line: str
    radius: float
    line_width: float = 1.2


STYLES = {
    "plain": Style("#ffffff", "#7b8794", 4),
    "frame": Style("#f3f5f7", RULE, 8),
    "query": Style("#ffe8cc", "#b35309", 11),
    "key": Style("#d6eaff", "#1d5fa8", 0),
    "value": Style("#d9f2d9", "#2f6f3a", 4, 2.2),
    "attention": Style("#e7defa", "#5b3fa0", 6, 1.8),
    "linear": Style("#e6eaee", "#52606d", 3),
}


class Box(NamedTuple):
    """The place of a box: its left upper corner and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> Point:
        return self.x + self.width / 2, self.y + self.height / 2


def text_width(words: str, size: float, bold: bool = False) -> float:
    """An upper estimate: 1 em for a Chinese glyph, 0.6 em for others, less for subscripts."""
    latin = 0.66 if bold else 0.6
    return sum(
        (0.8 if i % 2 else 1)
        * size
        * sum(1 if ord(c) > 0x2E7F else latin for c in part.strip("{}"))
        for i, part in enumerate(_parts(words))
    )


def _parts(words: str) -> list[str]:
    """A text, a subscript, a text, ..."""
    return re.split(r"_(\{[^}]*\}|\w)", words)


class Drawing:
    """A drawing in one language, which grows downwards as parts are added. `str` gives the SVG,
    in one line.

    Args:
        language: 0 for English, 1 for Chinese: the place in a label of two.
        title, description: labels for screen readers.
    """

    def __init__(self, language: int, title: Label, description: Label):
        self.language = language
        self.title, self.description = self.say(title), self.say(description)
        self.height, self._elements = 0.0, []

    def say(self, label: Label) -> str:
        """The label in the drawing's language."""
        return label if isinstance(label, str) else label[self.language]

    def text(
        self,
        x: float,
        y: float,
        label: Label,
        size: float = 11.5,
        anchor: str = "middle",
        bold: bool = False,
        color: str = INK,
        room: float = WIDTH - 8,
    ) -> None:
        """Lines of text about the height `y`, no wider than `room`."""
        lines = self.say(label).split("\n")
        for i, words in enumerate(lines):
            width = text_width(words, size, bold)
            left = x - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
            if width > room or left < 4 or left + width > WIDTH - 4:
                raise ValueError(f"no room for {words!r} at ({x:g}, {y:g}): {width:.0f} > {room:g}")
            base = y + size * (0.36 + 1.25 * (i - (len(lines) - 1) / 2))
            weight = ' font-weight="bold"' if bold else ""
            self._add(
                f'<text x="{x:g}" y="{base:.4g}" font-size="{size:g}" text-anchor="{anchor}"'
                f' fill="{color}"{weight}>{_spans(words, size)}</text>',
                base + size / 3,
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        label: Label = "",
        style: str = "plain",
        size: float = 11.5,
        fill: str = "",
        color: str = INK,
        bold: bool = False,
    ) -> Box:
        """A box with its label in the middle."""
        look, place = STYLES[style], Box(x, y, width, height)
        self._rectangle(place, fill or look.fill, look.line, look.line_width, look.radius)
        if label:
            self.text(*place.middle, label, size, color=color, bold=bold, room=width - 3)
        return place

    def circle(self, x: float, y: float, radius: float, label: Label = "", fill: str = "#fff"):
        self._add(
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}" stroke="{INK}"/>',
            y + radius,
        )
        if label:
            self.text(x, y, label, bold=True)

    def line(self, *points: Point, color: str = MUTED, width: float = 1.2, dash: str = "") -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._add(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"'
            f' stroke-linejoin="round"{dashes}/>',
            max(y for _, y in points),
        )

    def arrow(self, *points: Point, color: str = MUTED, width: float = 1.2, dash: str = "") -> None:
        """A line through points, with its head at the last."""
        (x0, y0), (x, y) = points[-2:]
        length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
        u, v = (x - x0) / length, (y - y0) / length
        head = 4 + 1.5 * width
        foot = (x - u * head, y - v * head)
        self.line(*points[:-1], foot, color=color, width=width, dash=dash)
        wing = head * 0.45
        corners = (
            (x, y),
            (foot[0] - v * wing, foot[1] + u * wing),
            (foot[0] + v * wing, foot[1] - u * wing),
        )
        path = " ".join(f"{a:.5g},{b:.5g}" for a, b in corners)
        self._add(f'<polygon points="{path}" fill="{color}"/>', y)

    def flow(self, x: float, y0: float, y1: float, label: Label) -> None:
        """An arrow down that is broken by its label."""
        middle = (y0 + y1) / 2 - 2
        self.line((x, y0), (x, middle - 8))
        self.text(x, middle, label, 11, color=MUTED)
        self.arrow((x, middle + 8), (x, y1))

    def legend(self, x: float, y: float, *rows: tuple[str, Label]) -> None:
        """Letters of shapes, one below the other, and their meanings."""
        for i, (letter, meaning) in enumerate(rows):
            self.text(x, y + 18 * i, letter, anchor="start", bold=True)
            self.text(x + 18, y + 18 * i, meaning, 11, anchor="start", color=MUTED)

    def matrix(
        self,
        x: float,
        y: float,
        rows: Sequence[Sequence[float]],
        cell: tuple[float, float],
        number: Callable[[float], str] = "{:.0f}".format,
        style: str = "plain",
        size: float = 11.5,
        shaded: bool = False,
    ) -> Box:
        """Cells of numbers; `shaded` ones are as dark as their numbers are large, from 0 to 1."""
        (width, height), look = cell, STYLES[style]
        place = Box(x, y, width * len(rows[0]), height * len(rows))
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                fill, color = shade(value) if shaded else (look.fill, INK)
                left, top = x + j * width, y + i * height
                self._rectangle(Box(left, top, *cell), fill, look.line, 0.6)
                middle = (left + width / 2, top + height / 2)
                self.text(*middle, number(value), size, color=color, room=width - 2)
        self._rectangle(place, "none", look.line, look.line_width)
        return place

    def _rectangle(self, place: Box, fill: str, line: str, width: float, radius: float = 0) -> None:
        corners = f' rx="{radius:g}"' if radius else ""
        self._add(
            f'<rect x="{place.x:g}" y="{place.y:g}" width="{place.width:g}"'
            f' height="{place.height:g}"{corners} fill="{fill}" stroke="{line}"'
            f' stroke-width="{width:g}"/>',
            place.bottom,
        )

    def _add(self, element: str, bottom: float) -> None:
        self._elements.append(element)
        self.height = max(self.height, bottom)

    def __str__(self) -> str:
        height = round(self.height + 10)
        language = LANGUAGES[self.language]
        return "".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
                f' width="{WIDTH * SCALE:.0f}" height="{height * SCALE:.0f}" role="img"'
                f' aria-labelledby="title desc" lang="{language}" font-family="{FONTS}">',
                f'<title id="title">{html.escape(self.title)}</title>',
                f'<desc id="desc">{html.escape(self.description)}</desc>',
                f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"'
                f' fill="#fff" stroke="{RULE}"/>',
                *self._elements,
                "</svg>\n",
            ]
        )


def shade(weight: float) -> tuple[str, str]:
    """The color of a weight, that of heatmaps, and a color of text that is legible on it."""
    color = colormaps["magma_r"](float(weight))
    red, green, blue, _ = color
    is_bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    return colors.to_hex(color), INK if is_bright else "#ffffff"


def _spans(words: str, size: float) -> str:
    """The text with its subscripts lowered."""
    result, low, drop = "", 0.0, size * 0.25
    for i, part in enumerate(_parts(words)):
        text = html.escape(part.strip("{}") if i % 2 else part)
        if i % 2:
            result += f'<tspan dy="{drop:.3g}" font-size="{size * 0.8:.3g}">{text}</tspan>'
            low = drop
        elif text:
            result += f'<tspan dy="{-low:.3g}">{text}</tspan>' if low else text
            low = 0.0
    return result
