"""How far apart tokens are, and where they stand."""

import numpy as np

from tfattn.exercises.arrays import floats
from tfattn.exercises.exercise import Cases, Text, exercise


def _lengths(rng: np.random.Generator) -> Cases:
    yield from ((10, 3), (9, 3), (16, 4), (17, 5), (2, 7), (1, 3))
    yield int(rng.integers(50, 99)), int(rng.integers(2, 9))


@exercise(
    tutorial="convolution_recurrence_attention",
    title=Text("How many convolutions", "要几层卷积"),
    statement=Text(
        """
        Self-attention joins any two tokens in one layer. A convolution with kernels of kernel_size
        tokens (at least 2, and stride 1) joins tokens at most kernel_size - 1 positions
        apart. How many layers of it does a sequence of `length` tokens need, until an output
        depends on the first and on the last token? Return an integer; one token needs 0 layers.
        """,
        """
        自注意力用一层就能连接任意两个词元。卷积核覆盖 kernel_size 个词元
        （不小于 2，步幅为 1），一层卷积连接的词元最多相距 kernel_size - 1 个位置。
        长为 length 的序列要几层卷积，才能有一个输出同时依赖第一个和最后一个词元？
        返回一个整数；只有一个词元时是 0 层。
        """,
    ),
    hints=(
        Text(
            "Each layer widens what an output depends on by kernel_size - 1 tokens.",
            "每多一层，一个输出所依赖的词元就多 kernel_size - 1 个。",
        ),
        Text("There are length - 1 steps to cover; round up.", "要跨过 length - 1 步；向上取整。"),
    ),
    draw=_lengths,
)
def layers_to_connect(length: int, kernel_size: int) -> int:
    return -(-(length - 1) // (kernel_size - 1))


def _sizes(rng: np.random.Generator) -> Cases:
    yield from ((5, 8), (7, 2), (1, 6), (50, 4))
    yield int(rng.integers(8, 30)), 2 * int(rng.integers(2, 9))


@exercise(
    tutorial="positions",
    title=Text("Sinusoidal positions", "正弦位置编码"),
    statement=Text(
        """
        Return the positional encoding (length, width), where width is even. Position t counts from
        0. Column 2j holds sin(t / 10000^(2j / width)), and column 2j + 1 the cosine of the same
        angle.
        """,
        """
        返回位置编码 (length, width)，width 是偶数。位置 t 从 0 开始。
        第 2j 列是 sin(t / 10000^(2j / width))，第 2j + 1 列是同一个角的余弦。
        """,
    ),
    hints=(
        Text("There are width / 2 angles a position.", "每个位置有 width / 2 个角。"),
        Text("2j is `np.arange(0, width, 2)`.", "2j 就是 `np.arange(0, width, 2)`。"),
        Text("`result[:, 0::2]` are the even columns.", "`result[:, 0::2]` 是偶数列。"),
    ),
    draw=_sizes,
)
def sinusoidal_positions(length: int, width: int) -> np.ndarray:
    angles = np.arange(length)[:, None] / 10_000.0 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def _tokens_at(rng: np.random.Generator) -> Cases:
    for tokens, width in ((3, 8), (5, 2), (1, 6), (7, 4)):
        yield floats(rng, tokens, width), rng.integers(1, 40, size=tokens).astype("int32")


@exercise(
    tutorial="positions",
    title=Text("Rotary positions", "旋转位置编码"),
    statement=Text(
        """
        Rotary positions rotate pairs of features. In x (T, D), features 2j and 2j + 1 are the point
        (a, b) of a plane. For a token at position p rotate it by the angle p / 10000^(2j / D):

            a cos - b sin,   a sin + b cos

        Return the rotated tokens (T, D); positions are (T,).
        """,
        """
        旋转位置编码让成对的特征旋转。x (T, D) 中，特征 2j 与 2j + 1 是平面上的点 (a, b)。
        位置为 p 的词元，这个点转过角 p / 10000^(2j / D)：

            a cos - b sin,   a sin + b cos

        返回旋转后的词元 (T, D)；positions 的形状是 (T,)。
        """,
    ),
    hints=(
        Text(
            "`x[:, 0::2]` and `x[:, 1::2]` are all a and all b: (T, D / 2).",
            "`x[:, 0::2]` 和 `x[:, 1::2]` 就是所有的 a 和 b：(T, D / 2)。",
        ),
        Text("Write both into a new array, not into x.", "结果写进新的数组，不要写进 x。"),
    ),
    draw=_tokens_at,
)
def rotate_pairs(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    x, width = x.astype("float64"), x.shape[1]
    angles = positions[:, None] / 10_000.0 ** (np.arange(0, width, 2) / width)
    a, b, cos, sin = x[:, 0::2], x[:, 1::2], np.cos(angles), np.sin(angles)
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)
