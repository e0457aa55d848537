"""Training and decoding token by token, and hard attention."""

import numpy as np

from exercises.arrays import floats, softmax
from exercises.exercise import Cases, exercise


def _logits(rng: np.random.Generator) -> Cases:
    for batch, tokens, vocabulary in ((2, 5, 7), (3, 2, 5), (1, 1, 3)):
        targets = rng.integers(1, vocabulary, size=(batch, tokens)).astype("int32")
        if batch > 1:
            targets[0, 1:] = 0
        yield floats(rng, batch, tokens, vocabulary), targets
    yield 400 * floats(rng, 2, 3, 5), np.array([[1, 4, 2], [3, 0, 0]], "int32")


@exercise(tutorial="transformer_translation", draw=_logits)
def masked_loss(logits: np.ndarray, targets: np.ndarray) -> float:
    logits = logits.astype("float64") - logits.max(axis=-1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    losses = -np.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    return losses[targets != 0].mean()


def _caches(rng: np.random.Generator) -> Cases:
    for batch, past, width in ((2, 3, 5), (3, 5, 2), (1, 1, 4), (2, 0, 3)):
        x, keys, values = (floats(rng, batch, *size, width) for size in ((), (past,), (past,)))
        yield x, keys, values, *(floats(rng, width, width) for _ in range(3))


@exercise(tutorial="transformer_translation", draw=_caches)
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


@exercise(tutorial="how-it-streams", draw=_parts)
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
    yield np.array([0, -np.inf], "float32"), np.zeros((2, 1), "float32")


@exercise(tutorial="decoding", draw=_beams)
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


@exercise(tutorial="decoding", draw=_probabilities)
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


@exercise(tutorial="hard_attention", draw=_choices)
def hard_attention(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    return values[scores.argmax(axis=1)]


def _rewards(rng: np.random.Generator) -> Cases:
    for keys in (5, 2, 7, 3):
        reward, baseline = (round(float(number), 2) for number in rng.normal((2.0, 1.0)))
        yield floats(rng, keys), int(rng.integers(keys)), reward, baseline


@exercise(tutorial="hard_attention", draw=_rewards)
def choice_gradient(scores: np.ndarray, choice: int, reward: float, baseline: float) -> np.ndarray:
    return (reward - baseline) * (np.eye(len(scores))[choice] - softmax(scores))
