"""Scores, masked weights, and attention out of both."""

import numpy as np

from tfattn.exercises.arrays import floats, softmax
from tfattn.exercises.exercise import Cases, Text, exercise


def _scores_and_lengths(rng: np.random.Generator) -> Cases:
    for batch, queries, keys in ((2, 3, 5), (3, 2, 7), (1, 1, 4)):
        scores = floats(rng, batch, queries, keys)
        yield scores, rng.integers(1, keys, size=batch).astype("int32")
    scores = 300 * floats(rng, 2, 3, 5)
    scores[1, :, 4] = 1000  # a hidden key
    yield scores, np.array([5, 2], "int32")
    yield floats(rng, 3, 2, 5), np.array([3, 0, 5], "int32")
    yield floats(rng, 2, 3, 5) - 1000, np.array([4, 2], "int32")


@exercise(
    tutorial="scoring_functions",
    title=Text("Masked softmax", "掩蔽 softmax"),
    statement=Text(
        """
        Turn scores (B, T, S) into weights (B, T, S): the softmax of each row, over the first
        valid_lens[b] keys of its batch row alone. valid_lens is (B,). Keys after them have weights
        of exactly 0, and the others sum to 1. Where a length is 0, all weights are 0.

        Scores can be as large as a thousand, or as small as minus a thousand.
        """,
        """
        把评分 (B, T, S) 变成权重 (B, T, S)：对每一行做 softmax，
        但第 b 个样本只算前 valid_lens[b] 个键。valid_lens 的形状是 (B,)。
        其余的键权重恰好是 0，有效键的权重之和为 1。长度为 0 时，所有权重都是 0。

        评分可能大到一千，也可能小到负一千。
        """,
    ),
    hints=(
        Text(
            "`np.arange(S) < valid_lens[:, None]` says which keys count: (B, S). T is missing.",
            "`np.arange(S) < valid_lens[:, None]` 说明哪些键有效：(B, S)，还缺 T 的轴。",
        ),
        Text(
            "Hide scores before the softmax: then what remains sums to 1 by itself.",
            "在 softmax 之前遮住评分，剩下的权重之和自然是 1。",
        ),
        Text(
            "A row of nothing but -inf gives NaN, a row of -1e9 the same weight to every key. "
            "Treat it by itself.",
            "整行都是 -inf 会得到 NaN，整行都是 -1e9 会让权重均等：这一行要单独处理。",
        ),
    ),
    draw=_scores_and_lengths,
)
def masked_softmax(scores: np.ndarray, valid_lens: np.ndarray) -> np.ndarray:
    visible = np.arange(scores.shape[-1]) < valid_lens[:, None]  # (B, S)
    return softmax(scores, visible[:, None])


def _additive(rng: np.random.Generator) -> Cases:
    for batch, queries, keys in ((2, 3, 5), (3, 5, 2), (1, 1, 7), (2, 3, 3)):
        query, key = floats(rng, batch, queries, 4), floats(rng, batch, keys, 6)
        yield query, key, floats(rng, 4, 8), floats(rng, 6, 8), floats(rng, 8)


@exercise(
    tutorial="scoring_functions",
    title=Text("Additive scores", "加性评分"),
    statement=Text(
        """
        Queries (B, T, Dq) and keys (B, S, Dk) may differ in width. The additive score of a query q
        and a key k is v · tanh(q w_query + k w_key), with w_query (Dq, U), w_key (Dk, U) and
        v (U,). Return the scores of all pairs, (B, T, S).
        """,
        """
        查询 (B, T, Dq) 与键 (B, S, Dk) 的宽度可以不同。
        查询 q 与键 k 的加性评分是 v · tanh(q w_query + k w_key)，
        其中 w_query 是 (Dq, U)，w_key 是 (Dk, U)，v 是 (U,)。
        返回所有查询与键的评分，形状为 (B, T, S)。
        """,
    ),
    hints=(
        Text(
            "Project first, once a token: (B, T, U) and (B, S, U).",
            "先投影，每个词元只算一次：(B, T, U) 和 (B, S, U)。",
        ),
        Text(
            "Give each an axis of size 1, so that their sum is (B, T, S, U).",
            "各添一个大小为 1 的轴，相加就得到 (B, T, S, U)。",
        ),
    ),
    draw=_additive,
)
def additive_scores(
    query: np.ndarray, key: np.ndarray, w_query: np.ndarray, w_key: np.ndarray, v: np.ndarray
) -> np.ndarray:
    query, key = query.astype("float64") @ w_query, key.astype("float64") @ w_key
    return np.tanh(query[:, :, None] + key[:, None]) @ v  # (B, T, S)


def _attention(rng: np.random.Generator) -> Cases:
    for batch, queries, keys in ((2, 3, 5), (3, 5, 2), (1, 1, 7)):
        query, key = floats(rng, batch, queries, 8), floats(rng, batch, keys, 8)
        mask = rng.random((batch, queries, keys)) < 0.7
        mask[:, :, 0] = True
        yield query, key, floats(rng, batch, keys, 3), mask
    query, key, value = floats(rng, 2, 3, 8), floats(rng, 2, 5, 8), floats(rng, 2, 5, 3)
    mask = np.ones((2, 3, 5), bool)
    mask[0, 1] = False
    yield query, key, value, mask
    large, mask = value.copy(), np.ones((2, 3, 5), bool)
    large[0, 1], mask[0, 2, 1] = 1e30, False  # visible to other queries
    yield query, key, large, mask
    mask = np.broadcast_to(np.arange(5) < 3, (2, 3, 5)).copy()
    yield query, key, np.where(mask[:, 0, :, None], value, np.float32("nan")), mask


@exercise(
    tutorial="scoring_functions",
    title=Text("Scaled dot-product attention", "缩放点积注意力"),
    statement=Text(
        """
        Queries (B, T, D) attend to keys (B, S, D) with values (B, S, E). The score is the dot
        product over the square root of D. mask (B, T, S) is True where a query may attend to a key;
        other keys have weights of exactly 0. Return the weighted means of the values, (B, T, E).

        A query that may attend to no key has the mean 0. A value that is hidden from every query of
        its batch row may be NaN, and must not reach the result.
        """,
        """
        查询 (B, T, D) 对键 (B, S, D) 和值 (B, S, E) 做注意力汇聚，
        评分是点积除以 D 的平方根。mask (B, T, S) 为 True 表示可以看这个键；
        其余的键权重恰好是 0。返回值的加权平均 (B, T, E)。

        什么键都不能看的查询，结果为 0。
        如果一个值对同一样本的所有查询都不可见，它可能是 NaN，但不能影响结果。
        """,
    ),
    hints=(
        Text(
            "`np.swapaxes(key, 1, 2)` is (B, D, S).",
            "`np.swapaxes(key, 1, 2)` 的形状是 (B, D, S)。",
        ),
        Text("Mask the scores, then take the softmax.", "先掩蔽评分，再做 softmax。"),
        Text(
            "0 times NaN is NaN: replace the values that no query may see by 0.",
            "0 乘 NaN 还是 NaN：把所有查询都看不见的值换成 0。",
        ),
    ),
    draw=_attention,
)
def dot_product_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    scores = np.einsum("btd,bsd->bts", query.astype("float64"), key) / np.sqrt(query.shape[-1])
    value = np.where(np.expand_dims(mask.any(axis=1), axis=-1), value, 0.0)
    return softmax(scores, mask) @ value


def _states(rng: np.random.Generator) -> Cases:
    for batch, keys, lengths in ((2, 5, (3, 5)), (3, 7, (7, 1, 4)), (1, 1, (1,))):
        state, memory = floats(rng, batch, 4), floats(rng, batch, keys, 6)
        weights = floats(rng, 4, 8), floats(rng, 6, 8), floats(rng, 8)
        yield state, memory, *weights, np.array(lengths, "int32")


@exercise(
    tutorial="bahdanau_translation",
    title=Text("The context of Bahdanau's decoder", "Bahdanau 解码器的上下文变量"),
    statement=Text(
        """
        Before each word the decoder attends to the encoder's outputs, memory (B, S, Dm), by its
        state (B, Ds). The score of a position is v · tanh(state w_state + memory w_memory), with
        w_state (Ds, U), w_memory (Dm, U), v (U,). Positions from lengths[b] on are padding
        of weight 0; lengths (B,) are at least 1. Return two results: the context, which is the
        weighted mean of memory, (B, Dm), and the weights (B, S).
        """,
        """
        写每个词之前，解码器用自己的隐状态 state (B, Ds) 查询编码器的输出
        memory (B, S, Dm)。一个位置的评分是 v · tanh(state w_state + memory w_memory)，
        其中 w_state 是 (Ds, U)，w_memory 是 (Dm, U)，v 是 (U,)。
        从 lengths[b] 起的位置是填充，权重为 0；lengths (B,) 不小于 1。
        返回两个结果：上下文变量，即 memory 的加权平均 (B, Dm)，以及权重 (B, S)。
        """,
    ),
    hints=(
        Text("The state is a query, and T is 1.", "隐状态就是查询，此时 T 为 1。"),
        Text(
            "Keys are projected, but the values are memory as it is.",
            "键是投影过的，值则是原来的 memory。",
        ),
    ),
    draw=_states,
)
def bahdanau_context(
    state: np.ndarray,
    memory: np.ndarray,
    w_state: np.ndarray,
    w_memory: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    scores = additive_scores.oracle(state[:, None], memory, w_state, w_memory, v)
    weights = masked_softmax.oracle(scores, lengths)  # (B, 1, S)
    return (weights @ memory)[:, 0], weights[:, 0]


def _targets(rng: np.random.Generator) -> Cases:
    for batch, length in ((2, 5), (3, 2), (1, 1)):
        targets = rng.integers(2, 20, size=(batch, length)).astype("int32")
        yield targets, int(rng.integers(20, 40))


@exercise(
    tutorial="bahdanau_translation",
    title=Text("Inputs of a decoder in training", "训练时解码器的输入"),
    statement=Text(
        """
        In training a decoder reads the right words and predicts, at each position, the next
        (teacher forcing). From the targets (B, T), token ids, make its inputs (B, T): begin_id at
        position 0, the target of position t - 1 at t.
        """,
        """
        训练时，解码器读到的是正确的词，在每个位置预测下一个词（强制教学）。
        由目标词元的编号 targets (B, T) 得到解码器的输入 (B, T)：
        位置 0 是 begin_id，位置 t 是目标在位置 t - 1 的词元。
        """,
    ),
    hints=(
        Text("The last target is never an input.", "最后一个目标词元从不作为输入。"),
        Text(
            "Join a column of begin_id and all columns but the last.",
            "把一列 begin_id 与除最后一列以外的各列拼接起来。",
        ),
    ),
    draw=_targets,
)
def shift_right(targets: np.ndarray, begin_id: int) -> np.ndarray:
    begin = np.full_like(targets[:, :1], begin_id)
    return np.concatenate([begin, targets[:, :-1]], axis=1)
