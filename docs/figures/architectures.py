"""Drawings of models: Bahdanau's, the Transformer, and three kinds of layer side by side."""

from itertools import pairwise

from svg import ACCENT, MUTED, RULE, WIDTH, Box, Drawing, Label, Point, shade

MIDDLE = WIDTH / 2


def bahdanau(language: int) -> Drawing:
    """The encoder reads a sentence; one step of the decoder attends to it."""
    d = Drawing(
        language,
        ("Bahdanau's encoder and decoder", "Bahdanau 的编码器和解码器"),
        (
            "A bidirectional recurrent encoder gives a state for each source word: keys and values."
            " The query is the decoder's previous state. An additive score and a softmax give"
            " weights; the context, the mean of the encoder's states by these weights, enters the"
            " decoder's next state together with the previous word.",
            "双向的循环编码器给每个源语言词一个隐状态，它们既是键也是值。"
            "查询是解码器的上一个隐状态。加性评分和 softmax 得到权重，"
            "上下文变量是编码器隐状态的加权平均，与上一个词一起进入解码器的下一个隐状态。",
        ),
    )
    words = {72: "the", 140: "black", 208: "house", 276: "."}  # by their places
    encoder(d, words)
    score, context = alignment(d, list(words))
    decoder_step(d, score, context)
    sizes = (
        "B batch, S source words, D width,\nU units of a state, V vocabulary size",
        "B 批量大小，S 原文的词数，D 嵌入的宽度，\nU 隐状态的宽度，V 词表大小",
    )
    d.text(MIDDLE, 508, sizes, 11, color=MUTED)
    return d


def encoder(d: Drawing, words: dict[int, str]) -> None:
    """A recurrent network that runs both ways, and a state for each word."""
    d.box(34, 8, 276, 150, style="frame")
    d.text(42, 22, ("Encoder", "编码器"), anchor="start", bold=True)
    ids = ("ids (B, S) → embedding (B, S, D)", "编号 (B, S) → 嵌入 (B, S, D)")
    d.text(302, 22, ids, 10.5, "end", color=MUTED)
    for i, (x, word) in enumerate(words.items(), 1):
        d.text(x, 42, word)
        d.arrow((x, 50), (x, 66))
        cell = d.box(x - 22, 66, 44, 26, "GRU", "linear")
        d.arrow((x, cell.bottom), (x, 112))
        d.box(x - 22, 112, 44, 24, f"h_{i}", "key")
        if i > 1:
            d.arrow((x - 46, 74), (x - 22, 74))
            d.arrow((x - 22, 84), (x - 46, 84))
    states = ("states (B, S, 2U): keys and values", "隐状态 (B, S, 2U)：既是键也是值")
    d.text(MIDDLE, 150, states, 11)


def alignment(d: Drawing, places: list[int]) -> tuple[Box, Box]:
    """The score and the weights, and the context below them; both boxes."""
    label = ("additive score, softmax: weights (B, S)", "加性评分，softmax：权重 (B, S)")
    score = d.box(34, 180, 276, 28, label, "attention", size=11)
    for i, x in enumerate(places, 1):
        d.arrow((x, 158), (x, score.y))
        d.arrow((x, score.bottom), (x, 226))
        fill, color = shade(0.8 if i == 2 else 0.12)  # "noire" is "black"
        d.box(x - 22, 226, 44, 22, f"α_{{t′,{i}}}", fill=fill, color=color)
        d.arrow((x, 248), (x, 266))
    label = (
        "context c_{t′} = Σ_s α_{t′,s} h_s (B, 2U)",
        "上下文变量 c_{t′} = Σ_s α_{t′,s} h_s (B, 2U)",
    )
    context = d.box(34, 266, 276, 28, label, "value", size=11)
    d.line((50, 136), (50, 141), (298, 141), (298, 136))  # all states
    d.arrow((298, 141), (326, 141), (326, 280), (310, 280), dash="4 2")
    return score, context


def decoder_step(d: Drawing, score: Box, context: Box) -> None:
    """From the previous state and word to the next ones."""
    d.box(8, 314, 328, 172, style="frame")
    d.text(16, 464, ("Decoder,\nstep t′", "解码器，\n第 t′ 步"), anchor="start", bold=True)
    query = d.box(16, 372, 48, 26, "s_{t′−1}", "query")
    d.text(40, 409, "(B, U)", 11, color=MUTED)
    d.arrow((24, query.y), (24, 194), (score.x, 194))
    cell = d.box(86, 368, 44, 34, "GRU", "linear")
    readout = d.box(174, 368, 64, 34, ("readout\n(B, D)", "读出层\n(B, D)"), "linear", size=11)
    logits = d.box(266, 368, 64, 34, "logits\n(B, V)", size=11)
    embedding = d.box(86, 426, 152, 24, ("embedding (B, D)", "嵌入 (B, D)"), "linear")
    for part in (cell, readout):
        x = part.middle[0]
        d.arrow((x, context.bottom), (x, part.y))
        d.arrow((x, embedding.y), (x, part.bottom))
    for left, right in pairwise((query, cell, readout, logits)):
        d.arrow((left.right, 385), (right.x, 385))
    d.text(152, 375, "s_{t′}")
    d.arrow((298, logits.y), (298, 354))
    d.text(298, 340, ("next word:\nnoire", "下一个词：\nnoire"))
    d.arrow((162, 466), (162, embedding.bottom))
    d.text(162, 474, ("previous word: maison", "上一个词：maison"))


TOKENS = range(5)
HIGH, HALF, LOW = 52, 96, 140  # heights of outputs, of a layer between, and of inputs


def three_layers(language: int) -> Drawing:
    """The path of a signal from one token to another, and what each layer costs."""
    d = Drawing(
        language,
        ("Convolution, recurrence, self-attention", "卷积、循环与自注意力"),
        (
            "Five tokens. A convolution over three tokens takes two layers from token 1 to token 3;"
            " a recurrence takes five steps from token 1 to token 5; self-attention takes one step"
            " to any token. Operations: k n d², n d², n² d. Sequential steps: 1, n, 1. Longest"
            " path: n / k, n, 1.",
            "五个词元。核宽为 3 的卷积从词元 1 到词元 3 要两层；"
            "循环神经网络从词元 1 到词元 5 要五步；自注意力到任何词元都只要一步。"
            "计算复杂度：k n d²，n d²，n² d。顺序操作：1，n，1。最大路径长度：n / k，n，1。",
        ),
    )
    pairs = [(i, j) for i in TOKENS for j in TOKENS]
    near = [((i, y), (j, y - 44)) for y in (LOW, HALF) for i, j in pairs if abs(i - j) < 2]
    caption = ("1 to 3:\n2 layers", "从 1 到 3：\n两层")
    layer(d, 60, ("convolution", "卷积"), caption, near, [(0, LOW), (1, HALF), (2, HIGH)])
    own = [((i, LOW), (i, HIGH)) for i in TOKENS]
    caption = ("1 to 5:\n5 steps", "从 1 到 5：\n五步")
    path = [(0, LOW), *((i, HIGH) for i in TOKENS)]
    layer(d, 172, ("recurrence", "循环神经网络"), caption, own, path)
    every = [((i, LOW), (j, HIGH)) for i, j in pairs]
    caption = ("1 to any token:\n1 step", "从 1 到任何词元：\n一步")
    layer(d, 284, ("self-attention", "自注意力"), caption, every, [(0, LOW), (4, HIGH)])
    rows = (
        (("operations", "计算复杂度"), "k n d²", "n d²", "n² d"),
        (("sequential steps", "顺序操作"), "1", "n", "1"),
        (("longest path", "最大路径长度"), "n / k", "n", "1"),
    )
    for i, (title, *values) in enumerate(rows):
        y = 216 + 44 * i
        d.line((10, y), (WIDTH - 10, y), color=RULE)
        d.text(MIDDLE, y + 12, title, 12, color=MUTED)
        for x, value in zip((60, 172, 284), values, strict=True):
            d.text(x, y + 30, value, 13, bold=True)
    note = ("n tokens of width d; a kernel over k tokens", "n 个词元，宽度 d；卷积核盖住 k 个词元")
    d.text(MIDDLE, 359, note, color=MUTED)
    return d


def layer(
    d: Drawing,
    center: float,
    title: Label,
    caption: Label,
    lines: list[tuple[tuple[int, float], tuple[int, float]]],
    path: list[tuple[int, float]],
) -> None:
    """Tokens as circles, what each reads as lines, and the path of a signal as thick arrows.

    A circle is (token, height).
    """
    d.text(center, 22, title, bold=True, room=112)
    d.text(center, 184, caption, 11, color=ACCENT, room=112)

    def place(circle: tuple[int, float]) -> Point:
        return center + 22 * (circle[0] - 2), circle[1]

    for start, end in lines:
        d.line(place(start), place(end), color=RULE)
    for start, end in pairwise(map(place, path)):
        x, y = end[0] - start[0], end[1] - start[1]
        u, v = 7 * x / (x**2 + y**2) ** 0.5, 7 * y / (x**2 + y**2) ** 0.5  # to the circle's rim
        d.arrow((start[0] + u, start[1] + v), (end[0] - u, end[1] - v), color=ACCENT, width=2)
    for circle in sorted({circle for line in lines for circle in line}):
        d.circle(*place(circle), 6.5, fill="#ffd9b8" if circle in path else "#ffffff")
    for i in TOKENS:
        d.text(place((i, LOW))[0], LOW + 17, str(i + 1), 11, color=MUTED)


class Tower:
    """Boxes one above the other, from the words at the bottom, each below an arrow and a shape.

    Args:
        x: the middle of the boxes.
        length: the letter of the number of words.
        side: 1 where shapes stand on the right and residuals on the left, else -1.
    """

    def __init__(self, d: Drawing, x: float, length: str, side: int, words: Label):
        self.d, self.x, self.side, self.y = d, x, side, 544.0
        self.shape = f"(B, {length}, D)"
        d.text(x, self.y + 8, words, bold=True)
        self.arrow(f"(B, {length})")
        self.box(("embedding · √D", "嵌入 · √D"), "linear")
        self.arrow(self.shape)
        self.box(("+ positions", "+ 位置编码"))
        self.arrow(self.shape, 36, -8)

    def box(self, label: Label, style: str = "plain") -> Box:
        height = 36 if "\n" in self.d.say(label) else 24
        self.y -= height
        return self.d.box(self.x - 60, self.y, 120, height, label, style, size=11)

    def arrow(self, shape: str, length: float = 20, above: float = 0) -> None:
        """An arrow up, and the shape beside it, `above` its middle."""
        self.d.arrow((self.x, self.y), (self.x, self.y - length))
        place = (self.x + 6 * self.side, self.y - length / 2 - above)
        self.d.text(*place, shape, 11, "start" if self.side > 0 else "end", color=MUTED)
        self.y -= length

    def sublayer(self, label: Label, style: str) -> Box:
        """A sublayer, its residual and its norm."""
        inner = self.box(label, style)
        self.arrow(self.shape)
        norm = self.box(("add & norm", "残差与层规范化"))
        start, outside, height = inner.bottom + 9, self.x - 71 * self.side, norm.middle[1]
        end = (self.x - 60 * self.side, height)
        self.d.arrow((self.x, start), (outside, start), (outside, height), end)
        return inner

    def feed_forward(self) -> None:
        self.arrow(self.shape)
        self.sublayer(("feed-forward", "基于位置的前馈网络"), "linear")


def transformer(language: int) -> Drawing:
    """The encoder on the left, the decoder on the right, from the words at the bottom upwards."""
    d = Drawing(
        language,
        ("The Transformer", "Transformer"),
        (
            "Left: the source words go through an embedding, positions, and N encoder blocks of"
            " self-attention and feed-forward network, each with a residual and a norm. Right: the"
            " target words go through an embedding, positions, and N decoder blocks of masked"
            " self-attention, cross-attention to the encoder's output and feed-forward network;"
            " then a linear map and a softmax give the next words. The shape stands at each arrow.",
            "左边：原文的词经过嵌入、位置编码和 N 个编码器块，"
            "每个块有自注意力和前馈网络，各带残差与层规范化。"
            "右边：译文的词经过嵌入、位置编码和 N 个解码器块，"
            "每个块有掩蔽自注意力、看编码器输出的注意力和前馈网络；"
            "最后由线性层和 softmax 给出下一个词。每个箭头旁写着形状。",
        ),
    )
    d.box(8, 242, 156, 193, style="frame")
    d.box(180, 142, 156, 293, style="frame")
    left = Tower(d, 88, "S", 1, ("source words", "原文的词"))
    left.sublayer(("multi-head\nself-attention", "多头\n自注意力"), "attention")
    left.feed_forward()

    right = Tower(d, 256, "T", -1, ("target words so far", "已有的译文"))
    masked = ("masked multi-head\nself-attention", "掩蔽多头\n自注意力")
    right.sublayer(masked, "attention")
    right.arrow(right.shape)
    label = ("multi-head\ncross-attention", "多头编码器-解码器\n注意力")
    cross = right.sublayer(label, "attention")
    right.feed_forward()
    right.arrow(right.shape, 44, 5)
    right.box(("linear", "线性层"), "linear")
    right.arrow("(B, T, V)")
    right.box("softmax")
    right.arrow("(B, T, V)")
    d.text(256, right.y - 8, ("next words", "下一个词"), bold=True)

    top, height = left.y - 44, cross.middle[1]
    d.arrow((88, left.y), (88, top), (172, top), (172, height), (cross.x, height))
    memory = ("keys and values (B, S, D)", "键和值 (B, S, D)")
    d.text(10, top - 9, memory, 11, "start", color=MUTED)
    d.text(10, 224, ("Encoder:\nN blocks", "编码器：\nN 个块"), anchor="start", bold=True)
    d.text(334, 124, ("Decoder:\nN blocks", "解码器：\nN 个块"), anchor="end", bold=True)
    d.legend(
        14,
        24,
        ("B", ("batch", "批量大小")),
        ("S", ("source words", "原文的词数")),
        ("T", ("target words", "译文的词数")),
        ("D", ("width", "宽度")),
        ("V", ("vocabulary size", "词表大小")),
    )
    return d
