"""Weighted means and kernel regression."""

import numpy as np

from tfattn.exercises.arrays import floats, softmax
from tfattn.exercises.exercise import Cases, Text, exercise


def _one_query(rng: np.random.Generator) -> Cases:
    for size in (5, 7, 1):
        yield floats(rng, 4), floats(rng, size, 4), floats(rng, size, 2)
    query, keys = 4000 * floats(rng, 4), floats(rng, 3, 4)
    # Two different scores too large for the exponential.
    keys[0] = np.sign(query)
    keys[1] = keys[0] / 2
    yield query, keys, floats(rng, 3, 2)


@exercise(
    tutorial="attention_cues",
    title=Text("Attention pooling", "注意力汇聚"),
    statement=Text(
        """
        One query (D,) attends to S keys (S, D), each of which has a value (S, E). The score of a
        key is its dot product with the query, divided by the square root of D. The softmax of the
        scores gives the weights. Return the weighted mean of the values, (E,).

        Scores can be as large as several thousand.
        """,
        """
        一个查询 (D,) 面对 S 个键 (S, D)，每个键对应一个值 (S, E)。
        键的评分是它与查询的点积，再除以 D 的平方根；
        对评分做 softmax 得到权重。返回值的加权平均，形状为 (E,)。

        评分可能大到几千。
        """,
    ),
    hints=(
        Text(
            "`keys @ query` computes all S dot products.", "`keys @ query` 一次算出全部 S 个点积。"
        ),
        Text(
            "A softmax does not change when one number is subtracted from all scores.",
            "所有评分减去同一个数，softmax 的结果不变。",
        ),
        Text("Subtract their maximum before `np.exp`.", "先减去最大值，再用 `np.exp`。"),
    ),
    draw=_one_query,
)
def attention_pooling(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    scores = keys.astype("float64") @ query / np.sqrt(len(query))
    return softmax(scores) @ values


def _points(rng: np.random.Generator) -> Cases:
    for queries, keys, bandwidth, shift in ((3, 5, 0.5, 0), (7, 2, 2.0, 0), (1, 4, 0.3, 0)):
        yield floats(rng, queries) + np.float32(shift), floats(rng, keys), bandwidth
    yield floats(rng, 2) + np.float32(40), floats(rng, 5), 0.5


@exercise(
    tutorial="kernel_regression",
    title=Text("Gaussian weights", "高斯核的权重"),
    statement=Text(
        """
        Kernel regression weighs a key by its distance from the query: the weight is proportional
        to exp(-u² / 2), where u = (query - key) / bandwidth. Return the weights of T queries (T,)
        over S keys (S,): (T, S), each row with the sum 1.

        A query far from all keys still has weights, most of them for the keys nearest to it.
        """,
        """
        核回归按照查询与键的距离给键加权：权重正比于 exp(-u² / 2)，
        其中 u = (查询 - 键) / 带宽。
        返回 T 个查询 (T,) 对 S 个键 (S,) 的权重 (T, S)，每一行的和为 1。

        查询离所有的键都很远时，仍然有权重，而且大多落在离它最近的键上。
        """,
    ),
    hints=(
        Text(
            "`queries[:, None] - keys` holds all differences.",
            "`queries[:, None] - keys` 是所有的差。",
        ),
        Text(
            "Dividing exponentials by their sum is a softmax. What are its scores?",
            "指数除以它们的和就是 softmax。它的评分是什么？",
        ),
        Text(
            "Far away all exponentials are 0, and 0 / 0 is NaN: subtract each row's maximum first.",
            "距离很远时指数全都变成 0，而 0 / 0 是 NaN：先减去每一行的最大值。",
        ),
    ),
    draw=_points,
)
def gaussian_weights(queries: np.ndarray, keys: np.ndarray, bandwidth: float) -> np.ndarray:
    u = (queries[:, None].astype("float64") - keys) / bandwidth
    return softmax(-(u**2) / 2)


def _own_points(rng: np.random.Generator) -> Cases:
    for size, bandwidth in ((5, 0.5), (7, 2.0), (2, 1.0), (3, 0.01)):
        yield floats(rng, size), bandwidth
    yield (2 * rng.permutation(3) + rng.random(3)).astype("float32"), 0.0005


@exercise(
    tutorial="kernel_regression",
    title=Text("Leave-one-out weights", "留一法的权重"),
    statement=Text(
        """
        Each of N points x (N,) is predicted from the other points. Return the Gaussian weights
        (N, N): row i has the weights for the prediction at x[i], proportional to exp(-u² / 2) with
        u = (x[i] - x[j]) / bandwidth. No point has a weight for itself, and each row sums to 1.

        N is at least 2. The bandwidth can be small compared with the distances of the points.
        """,
        """
        N 个点 x (N,) 中的每一点，都由其余各点来预测。返回高斯核的权重 (N, N)：
        第 i 行是预测 x[i] 所用的权重，正比于 exp(-u² / 2)，
        其中 u = (x[i] - x[j]) / 带宽。点对自身的权重为 0，每一行的和为 1。

        N 至少是 2。带宽可能比点与点的距离小得多。
        """,
    ),
    hints=(
        Text("The diagonal is a mask.", "对角线就是一个掩码。"),
        Text(
            "A mask goes before the softmax, so that the others share what the point gives up.",
            "掩码要放在 softmax 之前，这样让出的权重才会分给其余各点。",
        ),
        Text("A score of -inf has a weight of 0.", "评分为 -inf，权重就是 0。"),
    ),
    draw=_own_points,
)
def leave_one_out_weights(x: np.ndarray, bandwidth: float) -> np.ndarray:
    u = (x[:, None].astype("float64") - x) / bandwidth
    return softmax(-(u**2) / 2, ~np.eye(len(x), dtype=bool))


def _labeled_points(rng: np.random.Generator) -> Cases:
    for size, bandwidth in ((5, 0.5), (7, 2.0), (2, 1.0)):
        yield floats(rng, size), floats(rng, size), bandwidth


@exercise(
    tutorial="kernel_regression_tool",
    title=Text("The leave-one-out error", "留一误差"),
    statement=Text(
        """
        A bandwidth is chosen by its leave-one-out error. Predict each y[i] as the mean of the other
        y[j], weighted by the Gaussian kernel exp(-u² / 2) with u = (x[i] - x[j]) / bandwidth.
        Return the mean of the squared errors, one number. x and y are (N,), N is at least 2.
        """,
        """
        带宽可以按留一误差来选。用其余各点的 y[j] 的加权平均预测每个 y[i]，
        权重由高斯核 exp(-u² / 2) 给出，u = (x[i] - x[j]) / 带宽。
        返回误差平方的平均值，是一个数。x 和 y 的形状是 (N,)，N 至少是 2。
        """,
    ),
    hints=(
        Text("Begin with leave_one_out_weights.", "先完成 leave_one_out_weights。"),
        Text("`weights @ y` holds all predictions.", "`weights @ y` 是所有的预测值。"),
    ),
    draw=_labeled_points,
)
def leave_one_out_error(x: np.ndarray, y: np.ndarray, bandwidth: float) -> float:
    return np.mean((leave_one_out_weights.oracle(x, bandwidth) @ y - y) ** 2)


def _near_and_far(rng: np.random.Generator) -> Cases:
    for queries, keys, bandwidth in ((3, 5, 1.0), (7, 2, 2.0), (1, 4, 1.5)):
        yield floats(rng, queries), floats(rng, keys), floats(rng, keys), bandwidth
    yield np.array([0, 9, 0.5], "float32"), floats(rng, 4), floats(rng, 4), 1.5


@exercise(
    tutorial="kernel_regression_tool",
    title=Text("A kernel with bounded support", "有限支撑的核"),
    statement=Text(
        """
        The Epanechnikov kernel weighs a key by 1 - u², where u = (query - key) / bandwidth, and by
        0 where |u| is 1 or more. Return for T queries (T,) the weighted means of the values (S,) of
        the keys (S,): (T,). A query without a key that is near enough has the mean 0.
        """,
        """
        Epanechnikov 核给键的权重是 1 - u²，其中 u = (查询 - 键) / 带宽；
        |u| 不小于 1 时权重为 0。
        对 T 个查询 (T,)，返回各键 (S,) 所对应的值 (S,) 的加权平均，形状为 (T,)。
        附近没有键的查询，结果为 0。
        """,
    ),
    hints=(
        Text("Where is 1 - u² below 0?", "1 - u² 在哪里小于 0？"),
        Text("`np.maximum` cuts numbers off.", "`np.maximum` 可以截断。"),
        Text(
            "Where the weights sum to 0, divide by 1 instead.",
            "权重之和为 0 时，改为除以 1。",
        ),
    ),
    draw=_near_and_far,
)
def epanechnikov_mean(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, bandwidth: float
) -> np.ndarray:
    u = (queries[:, None].astype("float64") - keys) / bandwidth
    weights = np.maximum(1 - u**2, 0)
    total = weights.sum(axis=1)
    return weights @ values / np.where(total == 0, 1, total)


def _batches(rng: np.random.Generator) -> Cases:
    for batch, queries, keys in ((2, 3, 5), (3, 5, 2), (1, 1, 7), (2, 3, 3)):
        yield floats(rng, batch, queries, keys), floats(rng, batch, keys, 4)


@exercise(
    tutorial="batched_matmul",
    title=Text("Many weighted sums at once", "一次算完许多加权和"),
    statement=Text(
        """
        A batch of B problems has the weights (B, T, S) and the values (B, S, D). Return the
        weighted sums (B, T, D): in each problem, for each query, the sum over the keys of weight
        times value. Each problem uses its own values alone. Do without a loop.
        """,
        """
        一批共 B 个问题，权重为 (B, T, S)，值为 (B, S, D)。
        返回加权和 (B, T, D)：每个问题、每个查询，把各键的权重乘以值，再相加。
        每个问题只用自己的值。请不要用循环。
        """,
    ),
    hints=(
        Text("Which axis is summed over, and which stays?", "对哪一个轴求和，保留哪些轴？"),
        Text(
            "`@` multiplies the last two axes, and broadcasts over the others.",
            "`@` 对最后两个轴做矩阵乘法，前面的轴逐个对应。",
        ),
    ),
    draw=_batches,
)
def weighted_sums(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.einsum("bts,bsd->btd", weights.astype("float64"), values)
