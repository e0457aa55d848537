"""Masks: who may attend to whom."""

import numpy as np

from tfattn.exercises.exercise import Cases, Text, exercise


def _squares(rng: np.random.Generator) -> Cases:
    yield from ((5, 5), (3, 5), (1, 4), (1, 1))
    queries = int(rng.integers(2, 6))
    yield queries, queries + int(rng.integers(1, 6))


@exercise(
    tutorial="masked_attention",
    title=Text("The causal mask", "因果掩码"),
    statement=Text(
        """
        Return the causal mask (num_queries, num_keys) of booleans, True where a query may attend
        to a key: to its own position and all before. With more keys than queries, the first keys
        are the past of a text, and the queries its last tokens: the last query has the last
        key's position. num_keys is at least num_queries.
        """,
        """
        返回因果掩码 (num_queries, num_keys)，元素是布尔值，True 表示可以看：
        查询可以看自己的位置和之前的所有位置。
        键比查询多时，前面的键是文本中已有的部分，查询是最后几个词元：
        最后一个查询与最后一个键在同一个位置。num_keys 不小于 num_queries。
        """,
    ),
    hints=(
        Text(
            "At which position is query 0, if there are more keys?",
            "键比查询多时，第 0 个查询在文本的哪个位置？",
        ),
        Text("`np.tri` has an argument k.", "`np.tri` 有一个参数 k。"),
    ),
    draw=_squares,
)
def causal_mask(num_queries: int, num_keys: int) -> np.ndarray:
    positions = np.arange(num_queries)[:, None] + num_keys - num_queries
    return np.arange(num_keys) <= positions


def _padding(rng: np.random.Generator) -> Cases:
    for batch, keys in ((2, 5), (3, 7), (1, 1)):
        yield rng.integers(1, keys + 1, size=batch).astype("int32"), keys
    yield np.array([3, 0, 5], "int32"), 5


@exercise(
    tutorial="masked_attention",
    title=Text("The padding mask", "填充掩码"),
    statement=Text(
        """
        The texts of a batch have the lengths valid_lens (B,), and are filled up to num_keys tokens.
        Return a mask of booleans that fits scores (B, T, S): (B, 1, S), True for the real keys.
        """,
        """
        一批文本的长度是 valid_lens (B,)，都填充到 num_keys 个词元。
        返回适用于评分 (B, T, S) 的布尔掩码：形状为 (B, 1, S)，真实的键为 True。
        """,
    ),
    hints=(
        Text(
            "Keys count from 0: which is the last real one?",
            "键从 0 数起：最后一个真实的键是第几个？",
        ),
        Text("Compare (S,) with (B, 1, 1).", "拿 (S,) 与 (B, 1, 1) 比较。"),
    ),
    draw=_padding,
)
def padding_mask(valid_lens: np.ndarray, num_keys: int) -> np.ndarray:
    return np.arange(num_keys) < valid_lens[:, None, None]


def _windows(rng: np.random.Generator) -> Cases:
    yield from ((5, 5, 2), (7, 7, 3), (3, 7, 3), (1, 4, 2), (4, 4, 9), (3, 3, 1))
    queries = int(rng.integers(2, 6))
    yield queries, queries + int(rng.integers(1, 6)), int(rng.integers(2, 4))


@exercise(
    tutorial="masked_attention",
    title=Text("A sliding window", "滑动窗口"),
    statement=Text(
        """
        Long language models let a token see only the last `size` tokens, itself among them. Return
        this mask (num_queries, num_keys) of booleans. As in causal_mask, the last query has the
        last key's position.
        """,
        """
        处理长文本的语言模型只让词元看最近的 size 个位置，包括它自己的位置。
        返回这个掩码 (num_queries, num_keys)，元素是布尔值。
        与 causal_mask 一样，最后一个查询与最后一个键在同一个位置。
        """,
    ),
    hints=(
        Text(
            "The distance from key to query is at least 0 and less than size.",
            "从键到查询的距离不小于 0，且小于 size。",
        ),
        Text("It is a causal mask without its older part.", "它是一个因果掩码去掉更早的部分。"),
    ),
    draw=_windows,
)
def sliding_window_mask(num_queries: int, num_keys: int, size: int) -> np.ndarray:
    positions = np.arange(num_queries)[:, None] + num_keys - num_queries
    distances = positions - np.arange(num_keys)
    return (distances >= 0) & (distances < size)
