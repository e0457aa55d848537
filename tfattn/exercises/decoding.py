"""Training and decoding token by token, and hard attention."""

import numpy as np

from tfattn.exercises.arrays import floats, softmax
from tfattn.exercises.exercise import Cases, Text, exercise


def _logits(rng: np.random.Generator) -> Cases:
    for batch, tokens, vocabulary in ((2, 5, 7), (3, 2, 5), (1, 1, 3)):
        targets = rng.integers(1, vocabulary, size=(batch, tokens)).astype("int32")
        if batch > 1:
            targets[0, 1:] = 0
        yield floats(rng, batch, tokens, vocabulary), targets
    yield 400 * floats(rng, 2, 3, 5), np.array([[1, 4, 2], [3, 0, 0]], "int32")


@exercise(
    tutorial="transformer_translation",
    title=Text("The loss without padding", "不算填充的损失"),
    statement=Text(
        """
        A decoder returns logits (B, T, V), and the right tokens are targets (B, T), where 0 is
        padding. The loss of a token is minus the log of the probability that the softmax of its
        logits gives to its target. Return the mean over all real tokens of the batch, one number.

        Logits can be as large as a thousand.
        """,
        """
        解码器给出 logits (B, T, V)，正确的词元是 targets (B, T)，其中 0 是填充。
        一个词元的损失，是 logits 的 softmax 给目标词元的概率，取对数后再取负。
        返回这一批所有真实词元损失的平均值，是一个数。

        logits 可能大到一千。
        """,
    ),
    hints=(
        Text(
            "Divide by the number of real tokens, not by B · T.", "除以真实词元的个数，不是 B · T。"
        ),
        Text(
            "log softmax is the logits less the log of the sum of their exponentials.",
            "softmax 的对数等于 logits 减去指数之和的对数。",
        ),
        Text(
            "`np.take_along_axis(x, targets[..., None], axis=-1)` picks the targets' entries.",
            "`np.take_along_axis(x, targets[..., None], axis=-1)` 取出目标词元的数。",
        ),
    ),
    draw=_logits,
)
def masked_loss(logits: np.ndarray, targets: np.ndarray) -> float:
    logits = logits.astype("float64") - logits.max(axis=-1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    losses = -np.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    return losses[targets != 0].mean()


def _caches(rng: np.random.Generator) -> Cases:
    for batch, past, width in ((2, 3, 5), (3, 5, 2), (1, 1, 4), (2, 0, 3)):
        x, keys, values = (floats(rng, batch, *size, width) for size in ((), (past,), (past,)))
        yield x, keys, values, *(floats(rng, width, width) for _ in range(3))


@exercise(
    tutorial="transformer_translation",
    title=Text("A step with a cache", "用缓存解码一步"),
    statement=Text(
        """
        A decoder block writes one token at a time. It keeps the keys (B, S, D) and values (B, S, D)
        of the S tokens before, already projected, so that it projects each token once. For the new
        token x (B, D): its query, key and value are its products with w_query, w_key and w_value
        (D, D). It attends to the S tokens before and to itself, with scores scaled by 1 / sqrt(D).
        Return three results: the output (B, D), and the longer caches of keys and of values, each
        (B, S + 1, D). At the first token S is 0.
        """,
        """
        解码器块一次写一个词元。它缓存前面 S 个词元的键 keys (B, S, D) 和值
        values (B, S, D)，这些都已经投影过，所以每个词元只需投影一次。
        对新的词元 x (B, D)，查询、键和值是它与 w_query、w_key、w_value (D, D) 的乘积。
        它看前面的 S 个词元和它自己，评分乘以 1 / sqrt(D)。
        返回三个结果：输出 (B, D)，加长后的键缓存与值缓存，形状都是 (B, S + 1, D)。
        写第一个词元时 S 为 0。
        """,
    ),
    hints=(
        Text("Lengthen the caches first, then attend.", "先加长缓存，再做注意力。"),
        Text(
            "`np.concatenate` along axis 1 needs (B, 1, D).",
            "沿轴 1 使用 `np.concatenate`，需要形状 (B, 1, D)。",
        ),
        Text("One query needs no causal mask.", "只有一个查询，不需要因果掩码。"),
    ),
    draw=_caches,
)
def decoder_step(
    x: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    w_query: np.ndarray,
    w_key: np.ndarray,
    w_value: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    keys = np.concatenate([keys, (x @ w_key)[:, None]], axis=1)
    values = np.concatenate([values, (x @ w_value)[:, None]], axis=1)
    scores = np.einsum("bd,bsd->bs", x.astype("float64") @ w_query, keys) / np.sqrt(x.shape[-1])
    return np.einsum("bs,bsd->bd", softmax(scores), values), keys, values


def _parts(rng: np.random.Generator) -> Cases:
    for queries, width in ((3, 5), (5, 2), (1, 4)):
        yield tuple(floats(rng, *size) for size in ((queries, width), (queries,)) * 2)
    output, other = floats(rng, 3, 5), floats(rng, 3, 5)
    yield output, np.float32(300) + floats(rng, 3), other, np.float32(300) + floats(rng, 3)
    log_sums = floats(rng, 3), floats(rng, 3)
    log_sums[0][1], output[1] = -np.inf, 0.0
    log_sums[0][2], output[2] = -np.inf, 0.0
    log_sums[1][2], other[2] = -np.inf, 0.0
    yield output, log_sums[0], other, log_sums[1]


@exercise(
    tutorial="how-it-streams",
    title=Text("Join two parts of the keys", "合并两部分键的结果"),
    statement=Text(
        """
        Attention to many keys can be computed part by part. A part gives for T queries its outputs
        (T, D), weighted means over its own keys, and log_sums (T,): the log of the sum of the
        exponentials of its scores. From two parts, a and b, return two results, as if all keys had
        been in one part: the outputs (T, D) and the log_sums (T,).

        A query that sees no key of a part has an output of 0 and a log sum of -inf there. If it
        sees no key of either part, the result is 0 and -inf too. Log sums can be several hundred.
        """,
        """
        对很多键的注意力可以一部分一部分地算。一部分对 T 个查询给出：
        输出 output (T, D)，即在它自己的键上的加权平均；
        以及 log_sum (T,)，即各评分的指数之和的对数。
        由 a、b 两部分得到所有键在一起时的两个结果：输出 (T, D) 和 log_sum (T,)。

        查询在某一部分一个键也看不见时，那里的输出为 0，log_sum 为 -inf；
        两部分都看不见时，结果也是这样。log_sum 可能大到几百。
        """,
    ),
    hints=(
        Text("The weight of a part is its sum of exponentials.", "一部分的权重是它的指数之和。"),
        Text(
            "Subtract the larger of both log sums before `np.exp`, and add it again at the end.",
            "用 `np.exp` 之前先减去两个 log_sum 中较大的一个，最后再加回来。",
        ),
        Text("-inf less -inf is NaN: there subtract 0.", "-inf 减 -inf 是 NaN：这时改为减去 0。"),
    ),
    draw=_parts,
)
def merge_parts(
    output_a: np.ndarray, log_sum_a: np.ndarray, output_b: np.ndarray, log_sum_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    log_sums = np.stack([log_sum_a, log_sum_b], axis=-1).astype("float64")  # (T, 2)
    weights = softmax(log_sums, log_sums > -np.inf)
    output = weights[:, :1] * output_a + weights[:, 1:] * output_b
    return output, np.logaddexp(log_sums[:, 0], log_sums[:, 1])


def _beams(rng: np.random.Generator) -> Cases:
    for beams, vocabulary in ((3, 7), (2, 5), (1, 4), (5, 5)):
        log_probs = np.log(softmax(2 * floats(rng, beams, vocabulary))).astype("float32")
        yield 2 * floats(rng, beams) - 5, log_probs
    yield np.array([0, -np.inf, -np.inf], "float32"), log_probs[:3]


@exercise(
    tutorial="decoding",
    title=Text("A step of beam search", "束搜索的一步"),
    statement=Text(
        """
        K hypotheses have the scores (K,), sums of log probabilities. log_probs (K, V) holds for
        each of them the log probability of each next token. Of all K · V continuations keep the K
        best. Return three results, each (K,) and best first: the scores of the new hypotheses, the
        hypotheses that they continue (integers), and the tokens that they add (integers).

        At the first step all scores but one are -inf, since all hypotheses are still the same.
        """,
        """
        K 个候选序列的分数是 scores (K,)，即对数概率之和。
        log_probs (K, V) 是每个候选序列下一个词元的对数概率。
        在全部 K · V 个延续中保留最好的 K 个。返回三个结果，形状都是 (K,)，最好的在前：
        新序列的分数，它们延续的是哪个序列（整数），它们添上哪个词元（整数）。

        第一步时除一个以外分数都是 -inf，因为各个序列还完全相同。
        """,
    ),
    hints=(
        Text(
            "The score of a continuation is a sum: a product of probabilities, in logs.",
            "延续的分数是一个和：概率相乘，对数相加。",
        ),
        Text("Sort all K · V of them together, flattened.", "把全部 K · V 个展平，一起排序。"),
        Text(
            "`divmod(index, V)` splits a flat index.",
            "`divmod(index, V)` 把展平后的下标拆开。",
        ),
    ),
    draw=_beams,
)
def beam_step(
    scores: np.ndarray, log_probs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    totals = (scores[:, None].astype("float64") + log_probs).ravel()
    best = np.argsort(-totals, kind="stable")[: len(scores)]
    parents, tokens = np.divmod(best, log_probs.shape[1])
    return totals[best], parents, tokens


def _probabilities(rng: np.random.Generator) -> Cases:
    for vocabulary, mass in ((5, 0.6), (7, 0.9), (11, 0.5), (1, 0.8), (4, 0.01)):
        yield rng.dirichlet(np.ones(vocabulary)).astype("float32"), mass
    yield rng.permutation(np.array([0.5, 0.3, 0.15, 0.05], "float32")), 0.7
    yield rng.permutation(np.array([0.5, 0.25, 0.125, 0.125], "float32")), 0.5


@exercise(
    tutorial="decoding",
    title=Text("The nucleus", "核采样的候选集"),
    statement=Text(
        """
        Nucleus sampling (top p) draws the next token from the smallest set of most probable tokens
        with a total probability of at least `mass`. Return the probabilities (V,) of all tokens
        for this draw: 0 for the others; the kept ones keep their ratios and sum to 1.
        """,
        """
        核采样（top p）只从少数词元中抽取下一个词元：按概率从大到小取，
        取到它们的概率之和不小于 mass 为止，个数尽量少。
        返回抽取时各词元的概率 (V,)：其余词元为 0，留下的保持比例不变，和为 1。
        """,
    ),
    hints=(
        Text("Sort from the greatest down, and sum up.", "从大到小排序，再累加。"),
        Text(
            "A token is kept if those before it have less than the mass.",
            "排在前面的概率之和小于 mass，这个词元就保留。",
        ),
        Text(
            "So the token that crosses the mass is kept too.", "所以刚好越过 mass 的词元也要保留。"
        ),
    ),
    draw=_probabilities,
)
def nucleus(probabilities: np.ndarray, mass: float) -> np.ndarray:
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order].astype("float64")) - probabilities[order]
    kept = np.where(before < mass, probabilities[order], 0.0)
    result = np.zeros(len(order))
    result[order] = kept / kept.sum()
    return result


def _choices(rng: np.random.Generator) -> Cases:
    for queries, keys, width in ((3, 5, 2), (5, 2, 3), (1, 7, 4), (4, 4, 4)):
        yield floats(rng, queries, keys), floats(rng, keys, width)


@exercise(
    tutorial="hard_attention",
    title=Text("Hard attention", "硬注意力"),
    statement=Text(
        """
        Hard attention takes, for each query, the value of the one key with the greatest score.
        scores are (T, S), values (S, D). Return (T, D).
        """,
        """
        硬注意力为每个查询只取评分最大的那一个键的值。
        scores 的形状是 (T, S)，values 的形状是 (S, D)。返回 (T, D)。
        """,
    ),
    hints=(
        Text("`np.argmax` takes an axis.", "`np.argmax` 有参数 axis。"),
        Text("An array of integers can index another array.", "整数数组可以用作另一个数组的下标。"),
    ),
    draw=_choices,
)
def hard_attention(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    return values[scores.argmax(axis=1)]


def _rewards(rng: np.random.Generator) -> Cases:
    for keys in (5, 2, 7, 3):
        reward, baseline = (round(float(number), 2) for number in rng.normal((2.0, 1.0)))
        yield floats(rng, keys), int(rng.integers(keys)), reward, baseline


@exercise(
    tutorial="hard_attention",
    title=Text("The gradient of a choice", "选择的梯度"),
    statement=Text(
        """
        Hard attention drew the key `choice` with the softmax of the scores (S,) and earned
        `reward`. REINFORCE estimates the gradient of the expected reward with respect to the
        scores as (reward - baseline) times that of log p(choice). Return it, (S,).
        """,
        """
        硬注意力按评分 (S,) 的 softmax 抽到了键 choice，得到奖励 reward。
        REINFORCE 这样估计期望奖励对评分的梯度：
        (reward - baseline) 乘以 log p(choice) 对评分的梯度。返回它，形状为 (S,)。
        """,
    ),
    hints=(
        Text(
            "log p(choice) is the score of the choice less a log of a sum.",
            "log p(choice) 等于被选中的评分减去一个和的对数。",
        ),
        Text(
            "Its derivative with respect to a score is 1 or 0, less that key's probability.",
            "它对某个评分的导数是 1 或 0，减去那个键的概率。",
        ),
    ),
    draw=_rewards,
)
def choice_gradient(scores: np.ndarray, choice: int, reward: float, baseline: float) -> np.ndarray:
    return (reward - baseline) * (np.eye(len(scores))[choice] - softmax(scores))
