"""Drawings of weights by distance, and of masks."""

import numpy as np
from svg import ACCENT, INK, MUTED, STYLES, Drawing, shade

# The data of demos/kernel_regression.py at nine places, with noise.
PLACES = np.array([0.2, 0.8, 1.3, 1.9, 2.4, 3.0, 3.6, 4.2, 4.8])
HEIGHTS = np.array([0.6, 2.5, 2.9, 3.8, 3.0, 2.9, 1.7, 1.2, 1.7])
ASKED, BANDWIDTH = 2.1, 0.5


def kernel_weights() -> np.ndarray:
    powers = np.exp(-(((ASKED - PLACES) / BANDWIDTH) ** 2) / 2)
    return powers / powers.sum()


def kernel_regression(language: int) -> Drawing:
    """Points, a query between them, its weights below, and the weighted mean."""
    d = Drawing(
        language,
        ("Kernel regression", "核回归"),
        (
            "Nine points, and a query x between them. Below, the kernel gives each point a weight,"
            " the larger the nearer it lies to the query. The prediction is the weighted mean of"
            " the heights of the points.",
            "九个点，中间有一个查询 x。下方，核函数给每个点一个权重，离查询越近，权重越大。"
            "预测是各点高度的加权平均。",
        ),
    )
    weights = kernel_weights()
    mean, tallest = float(weights @ HEIGHTS), weights.max()
    d.text(34, 16, ("value y", "值 y"), anchor="start", color=MUTED)
    d.line((34, 28), (34, 190), (334, 190))
    d.text(334, 204, ("key x_i", "键 x_i"), anchor="end", color=MUTED)
    d.text(334, 240, ("weights α_i", "权重 α_i"), anchor="end", color=MUTED)
    asked, level = _across(ASKED), 190 - 40 * mean
    d.line((asked, 28), (asked, 334), color=STYLES["query"].line, dash="4 3")
    for x, y, weight in zip(_across(PLACES), HEIGHTS, weights, strict=True):
        share = float(weight / tallest)
        color, _ = shade(share)
        d.line((x, 190 - 40 * y), (x, 190), color="#d5dae0", width=0.8)
        d.circle(x, 190 - 40 * y, 6, fill=color)
        if weight >= 0.005:
            top = 322 - 72 * share
            d.box(x - 8, top, 16, 322 - top, style="key", fill=color)
            d.text(x, top - 10, f"{weight:.2f}", 11)
    d.line((34, 322), (334, 322))
    d.text(asked, 342, ("query x", "查询 x"), bold=True)
    d.line((34, level), (asked, level), color=ACCENT, dash="2 2")
    d.box(asked - 6, level - 6, 12, 12, fill=ACCENT)
    d.text(40, level - 12, f"ŷ = {mean:.2f}", anchor="start", bold=True, color=ACCENT)
    d.box(54, 358, 236, 26, "ŷ = α_1 y_1 + α_2 y_2 + … + α_9 y_9", "value")
    return d


def _across(x):
    return 34 + 60 * x


def masks(language: int) -> Drawing:
    """Four masks of six queries and six keys: which query may attend to which key."""
    d = Drawing(
        language,
        ("Four masks", "四种掩码"),
        (
            "Four squares of six queries, the rows, and six keys, the columns. Dark cells may be"
            " attended to. Causal: the key's place is not after the query's. Padding: the first"
            " four keys. Window: keys at most one place away. Causal and padding: both at once.",
            "四个方阵，每行是一个查询，每列是一个键，各六个；深色的格子可以看。"
            "因果：键不在查询之后。填充：前四个键。窗口：相距不超过一。因果与填充：两者同时成立。",
        ),
    )
    query, key = np.indices((6, 6))
    kinds = (
        (("causal", "因果"), key <= query),
        (("padding: 4 real keys", "填充：4 个真实的键"), key < 4),
        (("window of 1", "窗口：前后各 1"), abs(key - query) <= 1),
        (("causal & padding", "因果与填充"), (key <= query) & (key < 4)),
    )
    cell = 20
    for number, (name, may_attend) in enumerate(kinds):
        left, top = 44 + 152 * (number % 2), 48 + 186 * (number // 2)
        d.text(left + 60, top - 26, name, bold=True)
        d.text(left + 60, top - 9, ("keys →", "键 →"), 11, color=MUTED)
        for row, column in np.ndindex(6, 6):
            fill = STYLES["attention"].line if may_attend[row, column] else "#ffffff"
            d.box(left + cell * column, top + cell * row, cell, cell, fill=fill)
        d.text(left - 20, top + 60, ("que-\nries\n↓", "查\n询\n↓"), 11, color=MUTED)
    d.box(96, 378, 14, 14, fill=STYLES["attention"].line)
    d.text(116, 385, ("may attend", "可以看"), anchor="start", color=INK)
    d.box(206, 378, 14, 14, fill="#ffffff")
    d.text(226, 385, ("weight 0", "权重为 0"), anchor="start", color=INK)
    return d
