"""Norms of a Transformer block."""

import numpy as np

from tfattn.exercises.arrays import floats
from tfattn.exercises.exercise import Cases, Text, exercise


def _tokens(rng: np.random.Generator) -> Cases:
    for batch, tokens, width in ((2, 3, 5), (3, 5, 2), (1, 1, 7)):
        yield (
            2 + 3 * floats(rng, batch, tokens, width),
            floats(rng, width),
            floats(rng, width),
            1e-3,
        )
    epsilon = round(float(rng.uniform(0.002, 0.01)), 4)
    yield np.float32(0.01) * floats(rng, 2, 3, 5), floats(rng, 5), floats(rng, 5), epsilon


@exercise(
    tutorial="residuals_and_norms",
    title=Text("Layer normalization", "层规范化"),
    statement=Text(
        """
        Normalize each token of x (B, T, D) by itself: subtract the mean of its features, and
        divide by sqrt(variance + epsilon), where the variance is the mean of the squared
        differences. Then multiply by gamma (D,) and add beta (D,). Return (B, T, D).
        """,
        """
        对 x (B, T, D) 的每个词元单独做规范化：减去它各特征的平均值，
        再除以 sqrt(方差 + epsilon)，方差是差的平方的平均值。
        然后乘以 gamma (D,)，加上 beta (D,)。返回 (B, T, D)。
        """,
    ),
    hints=(
        Text("The mean of a token is over the last axis.", "一个词元的平均值沿最后一个轴计算。"),
        Text(
            "`keepdims=True` gives (B, T, 1) to broadcast.",
            "`keepdims=True` 让形状成为 (B, T, 1)。",
        ),
        Text("The small epsilon is inside the root.", "很小的 epsilon 在根号里面。"),
    ),
    draw=_tokens,
)
def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> np.ndarray:
    x = x.astype("float64")
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + epsilon) * gamma + beta


def _branches(rng: np.random.Generator) -> Cases:
    for batch, tokens, width in ((2, 3, 5), (3, 5, 2), (1, 1, 7)):
        x, output = floats(rng, batch, tokens, width), floats(rng, batch, tokens, width)
        yield x, 1 + 2 * output
    yield np.float32(0.01) * floats(rng, 2, 3, 5), np.float32(0.01) * floats(rng, 2, 3, 5)


@exercise(
    tutorial="residuals_and_norms",
    title=Text("Add and norm", "残差连接与规范化"),
    statement=Text(
        """
        A block of the first Transformer (post-norm) adds the output of a sublayer to the sublayer's
        input x, both (B, T, D), and normalizes the sum: each token has mean 0 and variance 1 over
        its features. Add 1e-5 to the variance before the root. There is no gamma and no beta.
        """,
        """
        最初的 Transformer 采用后规范化：把子层的输出 output 加到子层的输入 x 上，
        形状都是 (B, T, D)，再对和做层规范化：每个词元的特征平均值为 0，方差为 1。
        开方之前给方差加上 1e-5。没有 gamma 和 beta。
        """,
    ),
    hints=(
        Text("Which comes first here, the sum or the norm?", "这里先相加还是先规范化？"),
        Text("Begin with layer_norm.", "先完成 layer_norm。"),
    ),
    draw=_branches,
)
def add_norm(x: np.ndarray, output: np.ndarray) -> np.ndarray:
    return layer_norm.oracle(x + output, 1.0, 0.0, 1e-5)
