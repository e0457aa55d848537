"""Heads: their split, and attention of a sequence to itself."""

import numpy as np

from tfattn.exercises.arrays import floats, softmax
from tfattn.exercises.exercise import Cases, Text, exercise


def _tokens_and_heads(rng: np.random.Generator) -> Cases:
    for batch, tokens, heads, size in ((2, 3, 2, 5), (3, 7, 5, 2), (1, 1, 2, 3), (2, 4, 4, 4)):
        yield floats(rng, batch, tokens, heads * size), heads


@exercise(
    tutorial="multi_head",
    title=Text("Split into heads", "拆成多个头"),
    statement=Text(
        """
        Tokens x (B, T, H · D) hold the features of num_heads = H heads: first the D features of
        head 0, then those of head 1, and so on. Return them by head: (B, H, T, D).
        """,
        """
        词元 x (B, T, H · D) 里是 num_heads = H 个头的特征：
        先是第 0 个头的 D 个特征，然后是第 1 个头的，以此类推。
        按头返回：(B, H, T, D)。
        """,
    ),
    hints=(
        Text(
            "In memory, the features of a token lie side by side: first those of head 0.",
            "在内存里，一个词元的特征挨在一起：先是第 0 个头的。",
        ),
        Text(
            "A reshape keeps that order, so it can only split the last axis: (B, T, H, D).",
            "reshape 不改变这个次序，所以只能拆开最后一个轴：(B, T, H, D)。",
        ),
        Text("Then two axes change places.", "然后交换两个轴。"),
    ),
    draw=_tokens_and_heads,
)
def split_heads(x: np.ndarray, num_heads: int) -> np.ndarray:
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, num_heads, width // num_heads).transpose(0, 2, 1, 3)


def _heads(rng: np.random.Generator) -> Cases:
    for shape in ((2, 3, 5, 2), (3, 5, 2, 4), (1, 2, 1, 3), (2, 4, 4, 4)):
        yield (floats(rng, *shape),)


@exercise(
    tutorial="multi_head",
    title=Text("Join the heads", "合并多个头"),
    statement=Text(
        """
        The outputs of H heads are x (B, H, T, D). Return them side by side, (B, T, H · D): for each
        token first the D features of head 0, then those of head 1, and so on.
        """,
        """
        H 个头的输出是 x (B, H, T, D)。把它们并排放好，返回 (B, T, H · D)：
        对每个词元，先是第 0 个头的 D 个特征，然后是第 1 个头的，以此类推。
        """,
    ),
    hints=(
        Text("It inverts split_heads, last step first.", "这是 split_heads 的逆运算，步骤反过来。"),
        Text("H and D must be neighbors before a reshape.", "reshape 之前，H 和 D 两个轴要相邻。"),
    ),
    draw=_heads,
)
def merge_heads(x: np.ndarray) -> np.ndarray:
    batch, heads, tokens, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * size)


def _groups(rng: np.random.Generator) -> Cases:
    for batch, groups, keys, size, heads in ((2, 2, 5, 3, 6), (1, 3, 2, 4, 6), (3, 1, 7, 2, 4)):
        yield floats(rng, batch, groups, keys, size), heads


@exercise(
    tutorial="multi_head",
    title=Text("Heads that share their keys", "共用键的头"),
    statement=Text(
        """
        In grouped-query attention, neighboring heads of queries share one head of keys. From G key
        heads (B, G, S, D) make num_heads = H heads (B, H, S, D), where H is a multiple of G: the
        first H / G heads have the keys of head 0, the next H / G those of head 1, and so on.
        """,
        """
        在分组查询注意力中，相邻的几个查询头共用一个键头。
        由 G 个键头 (B, G, S, D) 得到 num_heads = H 个头 (B, H, S, D)，H 是 G 的倍数：
        前 H / G 个头用第 0 个键头，接下来 H / G 个头用第 1 个键头，以此类推。
        """,
    ),
    hints=(
        Text(
            "The order is 0 0 0 1 1 1, not 0 1 0 1 0 1.", "次序是 0 0 0 1 1 1，不是 0 1 0 1 0 1。"
        ),
        Text(
            "`np.repeat` and `np.tile` differ in that.", "`np.repeat` 与 `np.tile` 的区别就在这里。"
        ),
    ),
    draw=_groups,
)
def repeat_key_heads(key: np.ndarray, num_heads: int) -> np.ndarray:
    return np.repeat(key, num_heads // key.shape[1], axis=1)


def _matrices(rng: np.random.Generator) -> Cases:
    for tokens, width, size in ((3, 4, 3), (5, 2, 7), (1, 4, 2), (4, 4, 4)):
        yield floats(rng, tokens, width), *(floats(rng, width, size) for _ in range(3))


@exercise(
    tutorial="self_attention_by_hand",
    title=Text("Self-attention by hand", "手算自注意力"),
    statement=Text(
        """
        Three matrices (D, E) make queries, keys and values of the tokens x (T, D). The scores are
        dot products; as in the tutorial, they are not scaled. Return two results: the outputs
        (T, E) and the weights (T, T), one row a query.
        """,
        """
        三个矩阵 (D, E) 把词元 x (T, D) 变成查询、键和值。评分是点积；
        与教程中一样，不做缩放。返回两个结果：输出 (T, E) 和权重 (T, T)，一行一个查询。
        """,
    ),
    hints=(
        Text(
            "`queries @ keys.T` has a row for each query.",
            "`queries @ keys.T` 的一行对应一个查询。",
        ),
        Text("The softmax runs along a row: axis 1.", "softmax 沿着行计算：axis 为 1。"),
    ),
    draw=_matrices,
)
def self_attention(
    x: np.ndarray, w_query: np.ndarray, w_key: np.ndarray, w_value: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    query, key, value = (x.astype("float64") @ w for w in (w_query, w_key, w_value))
    weights = softmax(query @ key.T)
    return weights @ value, weights
