"""Draws docs/drawings/*.svg, the drawings of the pages: `python docs/figures/drawings.py`.

`NAME.svg` is in English, `NAME.zh.svg` in Chinese.
"""

from pathlib import Path

import numpy as np
from architectures import bahdanau, three_layers, transformer
from svg import MUTED, Drawing
from weights import kernel_regression, masks

FOLDER = Path(__file__).resolve().parents[1] / "drawings"


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# Things on a table, each with the color of demos/attention_cues.py, its name and its key there.
TABLE = (
    (("clock", "钟"), ("gray", "灰"), "#8c8c8c", (1, 0, 0, 1)),
    (("plant", "植物"), ("gray-green", "灰绿"), "#7f8a7f", (1, 0, 0, 0)),
    (("cup", "杯子"), ("red", "红"), "#d62728", (6, 4, 0, 0)),
    (("pencil", "铅笔"), ("gray", "灰"), "#99958c", (1, 0, 4, 0)),
    (("book", "书"), ("gray-blue", "灰蓝"), "#6f7b91", (1, 0, 0, 4)),
)
TO_READ = (1, 0, 0, 2)  # the query


def attention_pooling(language: int) -> Drawing:
    """One query, five keys, and the mean of five values."""
    d = Drawing(
        language,
        ("Attention pooling", "注意力汇聚"),
        (
            "The query, to read, meets the keys of five things on a table. Scores and a softmax"
            " give weights: 0.76 for the book, 0.17 for the cup. The output is the weighted mean of"
            " the values.",
            "查询是“想读点什么”，与桌上五样东西的键比较。评分和 softmax 得到权重："
            "书 0.76，杯子 0.17。输出是值的加权平均。",
        ),
    )
    keys = np.array([thing[3] for thing in TABLE])
    weights = softmax(keys @ np.array(TO_READ) / 2)
    colors = np.array([[int(thing[2][i : i + 2], 16) for i in (1, 3, 5)] for thing in TABLE])
    mixed = "#{:02x}{:02x}{:02x}".format(*(weights @ colors).round().astype(int))

    query = d.box(78, 26, 104, 26, ("query: to read", "查询：想读点什么"), "query")
    d.text(130, 15, ("volitional cue", "自主性提示"), color=MUTED)
    top, step = 112, 34
    bottom = top + step * len(TABLE)
    for x, name, cue in (
        (45, ("keys", "键"), ("involuntary\ncues", "非自主性提示")),
        (209, ("weights", "权重"), ""),
        (293, ("values", "值"), ("sensory\ninputs", "感官输入")),
    ):
        d.text(x, top - 14, name, bold=True)
        if cue:
            d.text(x, top - (38, 32)[language], cue, color=MUTED)  # two lines, one line
    match = d.box(
        104,
        top - 22,
        52,
        step * 5 + 20,
        ("score\n+\nsoftmax", "评分\n+\nsoftmax"),
        "attention",
        size=11,
    )
    d.arrow((130, query.bottom), (130, match.y))
    for i, ((thing, color, paint, _), weight) in enumerate(zip(TABLE, weights, strict=True)):
        y = top + step * i
        key = d.box(10, y, 70, 26, thing, "key")
        d.arrow((key.right, y + 13), (match.x, y + 13))
        d.arrow((match.right, y + 13), (186, y + 13))
        d.matrix(186, y, [[weight]], (46, 26), "{:.2f}".format, shaded=True)
        d.text(240, y + 13, "×")
        d.box(248, y, 88, 26, style="value")
        d.box(252, y + 6, 14, 14, fill=paint)
        d.text(270, y + 13, color, 10.5, anchor="start", room=64)
    d.line((186, bottom + 2), (186, bottom + 8), (334, bottom + 8), (334, bottom + 2))
    d.arrow((260, bottom + 8), (260, bottom + 30))
    output = d.box(100, bottom + 30, 234, 30, style="value")
    d.box(output.x + 8, output.y + 8, 14, 14, fill=mixed)
    d.text(231, output.middle[1], ("output = Σ weight × value", "输出 = Σ 权重 × 值"), bold=True)
    return d


def scoring_function(language: int) -> Drawing:
    """Scores of one query with m keys, their softmax, and the weighted sum of m values."""
    d = Drawing(
        language,
        ("A weighted sum through a scoring function", "由评分函数得到的加权和"),
        (
            "A scoring function a gives a score for the query and each of m keys. The softmax turns"
            " the m scores into weights. Each weight multiplies its value, and the sum of the"
            " products is the output.",
            "评分函数 a 对查询和 m 个键各给一个评分，softmax 把 m 个评分变成权重，"
            "每个权重乘以它的值，加起来就是输出。",
        ),
    )
    columns = (("1", 116), ("2", 176), ("", 236), ("m", 296))
    left, wide = 88, 236
    query = d.box(14, 84, 52, 26, "q", "query")
    d.text(40, 70, ("query", "查询"), bold=True)
    d.text(40, 21, ("keys", "键"), bold=True)
    d.text(40, 166, ("scores", "评分"), bold=True)
    d.text(40, 244, ("weights", "权重"), bold=True)
    d.text(40, 304, ("values", "值"), bold=True)
    score = d.box(left, 56, wide, 82, "", "attention")
    d.text(206, 69, ("scoring function a(q, k)", "评分函数 a(q, k)"), bold=True)
    d.text(206, 88, ("for example", "例如"), color=MUTED)
    d.text(206, 106, ("scaled dot product: qᵀk / √d", "缩放点积：qᵀk / √d"))
    d.text(206, 124, ("additive: w_vᵀ tanh(W_q q + W_k k)", "加性：w_vᵀ tanh(W_q q + W_k k)"))
    d.arrow((query.right, query.middle[1]), (score.x, query.middle[1]))
    soft = d.box(left, 190, wide, 24, "softmax", "linear", bold=True)
    total = d.box(left, 344, wide, 26, ("sum", "求和"), "linear", bold=True)
    for index, x in columns:
        if not index:
            for y in (21, 166, 244, 304):
                d.text(x, y, "…", 14)
            continue
        d.box(x - 22, 10, 44, 24, f"k_{index}", "key")
        d.arrow((x, 34), (x, score.y))
        d.arrow((x, score.bottom), (x, 154))
        d.text(x, 166, f"a(q, k_{index})", 11)
        d.arrow((x, 176), (x, soft.y))
        d.arrow((x, soft.bottom), (x, 232))
        d.box(x - 22, 232, 44, 24, f"α_{index}", fill="#cfc8e6")
        d.text(x, 274, "×", 14)
        d.box(x - 22, 292, 44, 24, f"v_{index}", "value")
        d.arrow((x, 316), (x, total.y))
    d.arrow((206, total.bottom), (206, 390))
    d.box(left, 390, wide, 28, "f(q) = α_1 v_1 + α_2 v_2 + … + α_m v_m", "value", size=11)
    d.text(40, 404, ("output", "输出"), bold=True)
    return d


# The example of demos/self_attention_by_hand.py.
INPUTS = np.array([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
W_KEY = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
W_QUERY = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
W_VALUE = np.array([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])


def by_hand() -> dict[str, np.ndarray]:
    """Every number of the eight steps."""
    keys, queries, values = INPUTS @ W_KEY, INPUTS @ W_QUERY, INPUTS @ W_VALUE  # (3, 3)
    scores = queries @ keys.T  # (3, 3)
    weights = softmax(scores)  # (3, 3)
    return {
        "keys": keys,
        "queries": queries,
        "values": values,
        "scores": scores,
        "weights": weights,
        "weighted": weights[0][:, None] * values,  # (3, 3), of the first query
        "output": weights @ values,  # (3, 3)
    }


def self_attention(language: int) -> Drawing:
    """Eight cards of numbers."""
    d = Drawing(
        language,
        ("Self-attention in eight steps", "自注意力的八个步骤"),
        (
            "Eight cards with all numbers of an example: three inputs; three matrices; keys,"
            " queries and values; scores; weights; weighted values; the first output; all outputs.",
            "八张卡片，写出一个例子的全部数字：三个输入，三个矩阵，键、查询和值，"
            "评分，权重，加权的值，第一个输出，全部输出。",
        ),
    )
    hand = by_hand()
    digits, four = (16, 18), (49, 20)
    fixed = "{:.4f}".format

    def small(weight):
        return fixed(weight) if weight > 5e-5 else f"{weight:.0e}"

    def card(number, title, below):
        x, y = 8 + (number - 1) % 2 * 166, 8 + (number - 1) // 2 * 136
        d.box(x, y, 162, 130, style="frame")
        d.circle(x + 14, y + 15, 9, str(number))
        d.text(x + 28, y + 15, title, anchor="start", bold=True, room=132)
        d.text(x + 81, y + 117, below, 10.5, color=MUTED, room=160)
        return x, y + 32

    def three(x, y, names, matrices, styles):
        for i, (name, rows, style) in enumerate(zip(names, matrices, styles, strict=True)):
            place = d.matrix(x + 4 + 53 * i, y, rows, digits, style=style)
            d.text(place.middle[0], place.bottom + 10, name, 10.5)

    kinds = ("key", "query", "value")
    x, y = card(1, ("inputs X", "输入 X"), ("3 tokens of width 4", "3 个词元，宽度 4"))
    d.matrix(x + 81 - 44, y + 4, INPUTS, (22, 22))
    x, y = card(2, ("three matrices", "三个矩阵"), "")
    three(x, y, ("W_k", "W_q", "W_v"), (W_KEY, W_QUERY, W_VALUE), kinds)
    x, y = card(3, ("X times each", "X 乘以各矩阵"), "")
    names = (("keys K", "键 K"), ("queries Q", "查询 Q"), ("values V", "值 V"))
    three(x, y + 6, names, (hand["keys"], hand["queries"], hand["values"]), kinds)
    x, y = card(4, ("scores Q Kᵀ", "评分 Q Kᵀ"), ("row: query, column: key", "行：查询，列：键"))
    d.matrix(x + 81 - 45, y + 4, hand["scores"], (30, 22))
    x, y = card(5, ("weights", "权重"), ("softmax of each row", "每一行做 softmax"))
    d.matrix(x + 7.5, y + 6, hand["weights"], four, small, shaded=True)
    x, y = card(6, ("weight × value", "权重 × 值"), ("of the first query", "第一个查询"))
    d.matrix(x + 7.5, y + 6, hand["weighted"], four, fixed, "value")
    x, y = card(7, ("sum of the rows", "各行相加"), ("the first output", "第一个输出"))
    d.matrix(x + 7.5, y + 26, hand["output"][:1], four, fixed, "value")
    x, y = card(8, ("for all queries", "所有的查询"), ("outputs: weights × V", "输出：权重 × V"))
    d.matrix(x + 7.5, y + 6, hand["output"], four, fixed, "value")
    return d


def multi_head(language: int) -> Drawing:
    """Query, key and value through projections, heads, and the joining projection."""
    d = Drawing(
        language,
        ("Multi-head attention, with shapes", "多头注意力和各处的形状"),
        (
            "Query, key and value are each projected and split into H heads. All heads attend at"
            " once: weights (B, H, T, S), pooled values (B, H, T, p). The heads are joined and"
            " projected to the output (B, T, D).",
            "查询、键和值各自投影，分成 H 个头。所有的头同时做注意力：权重 (B, H, T, S)，"
            "汇聚的值 (B, H, T, p)。各头拼接起来，再投影成输出 (B, T, D)。",
        ),
    )
    for x, name, style, length, matrix in (
        (62, ("query", "查询"), "query", "T", "W_q"),
        (172, ("key", "键"), "key", "S", "W_k"),
        (282, ("value", "值"), "value", "S", "W_v"),
    ):
        d.box(x - 36, 10, 72, 26, name, style, bold=True)
        d.flow(x, 36, 72, f"(B, {length}, D)")
        d.box(x - 49, 72, 98, 26, (f"linear {matrix}", f"线性 {matrix}"), "linear")
        d.flow(x, 98, 134, f"(B, {length}, H·p)")
        d.box(x - 49, 134, 98, 38, ("split: reshape,\ntranspose", "分头：\n变形、转置"), size=10.5)
        d.flow(x, 172, 208, f"(B, H, {length}, p)")
    for shift in (14, 7, 0):
        d.box(10 + shift, 208 + shift, 310, 64, style="attention")
    d.text(165, 223, ("each of the H heads", "H 个头同时计算"), bold=True)
    d.text(165, 241, "softmax( Q Kᵀ / √p ) V")
    d.text(165, 259, ("weights (B, H, T, S)", "权重 (B, H, T, S)"))
    x = 238
    d.flow(x, 286, 322, "(B, H, T, p)")
    d.box(x - 78, 322, 156, 26, ("join: transpose, reshape", "拼接：转置、变形"), size=10.5)
    d.flow(x, 348, 384, "(B, T, H·p)")
    d.box(x - 49, 384, 98, 26, ("linear W_o", "线性 W_o"), "linear")
    d.flow(x, 410, 446, "(B, T, D)")
    d.box(x - 36, 446, 72, 26, ("output", "输出"), bold=True)
    d.legend(
        18,
        346,
        ("B", ("batch", "批量大小")),
        ("T", ("queries", "查询的个数")),
        ("S", ("keys", "键的个数")),
        ("H", ("heads", "头数")),
        ("p", ("width of a head", "每个头的宽度")),
        ("D", ("width", "宽度")),
    )
    return d


DRAWINGS = (
    attention_pooling,
    kernel_regression,
    masks,
    scoring_function,
    self_attention,
    bahdanau,
    multi_head,
    three_layers,
    transformer,
)


def written() -> dict[Path, str]:
    """Each file, and what is to be in it."""
    return {
        FOLDER / f"{draw.__name__.replace('_', '-')}{ending}": str(draw(language))
        for draw in DRAWINGS
        for language, ending in enumerate((".svg", ".zh.svg"))
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
