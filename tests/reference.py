"""The oracle of the suite: attention in plain float64 NumPy, written for reading, one query at a
time.

It knows nothing of the package. A mask is a bool array that broadcasts to the scores; True = may
attend.
"""

import numpy as np
from scipy import special


def softmax(scores, mask=None):
    """Softmax over the last axis; hidden keys get 0, and a row without keys is all 0."""
    scores = np.asarray(scores, "float64")
    mask = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    weights = np.zeros(scores.shape)
    for row in np.ndindex(scores.shape[:-1]):
        seen = mask[row] & (scores[row] != -np.inf)
        if seen.any():
            exponentials = np.exp(scores[row][seen] - scores[row][seen].max())
            weights[row][seen] = exponentials / exponentials.sum()
    return weights


def log_sum_exp(scores, mask=None):
    """log Σ exp(score) over the last axis, of the keys that the mask lets in; −inf without any."""
    scores = np.asarray(scores, "float64")
    mask = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    sums = np.full(scores.shape[:-1], -np.inf)
    for row in np.ndindex(sums.shape):
        seen = mask[row] & (scores[row] != -np.inf)
        if seen.any():
            largest = scores[row][seen].max()
            sums[row] = largest + np.log(np.exp(scores[row][seen] - largest).sum())
    return sums


def sparsemax(scores, mask=None):
    """Martins & Astudillo 2016: max(score − τ, 0) of what the mask lets in, with τ such that the
    row sums to 1. Each number of keys that may be in it is tried.
    """
    scores = np.asarray(scores, "float64")
    mask = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    weights = np.zeros(scores.shape)
    for row in np.ndindex(scores.shape[:-1]):
        seen = np.flatnonzero(mask[row] & (scores[row] != -np.inf))
        best = np.sort(scores[row][seen])[::-1]
        for number in range(1, len(seen) + 1):
            threshold = (best[:number].sum() - 1) / number
            above = np.maximum(scores[row][seen] - threshold, 0)
            if np.isclose(above.sum(), 1, rtol=0, atol=1e-12):
                weights[row][seen] = above
    return weights


def top_k(scores, k, mask=None):
    """Softmax over the k greatest visible scores, and what equals the k-th."""
    scores = np.asarray(scores, "float64")
    mask = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    kept = np.zeros(scores.shape, bool)
    for row in np.ndindex(scores.shape[:-1]):
        seen = np.sort(scores[row][mask[row]])[::-1]
        if len(seen):
            kept[row] = mask[row] & (scores[row] >= seen[min(k, len(seen)) - 1])
    return softmax(scores, kept)


def with_sinks(scores, sinks, mask=None):
    """(weights, log of the sums) where each head has a score more, `(H,)`, whose weight is left
    out.
    """
    scores = np.asarray(scores, "float64")  # (B, H, T, S)
    sink = np.broadcast_to(np.reshape(sinks, (-1, 1, 1)), (*scores.shape[:-1], 1))
    mask = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    scores = np.concatenate([scores, sink], -1)
    mask = np.concatenate([mask, np.ones(sink.shape, bool)], -1)
    return softmax(scores, mask)[..., :-1], log_sum_exp(scores, mask)


def layer_norm(x, gamma, beta, epsilon=1e-5):
    """Each token with mean 0 and variance 1, times gamma, plus beta."""
    centered = np.asarray(x, "float64") - np.mean(x, axis=-1, keepdims=True, dtype="float64")
    return gamma * centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon) + beta


def rms_norm(x, scale, epsilon=1e-6):
    """Each token over its root mean square, times scale."""
    x = np.asarray(x, "float64")
    return scale * x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)


def gated(x, gate, inner, outer, activation):
    """(activation(x · gate) * (x · inner)) · outer, each map a matrix and a bias, one token at a
    time.
    """
    output = np.zeros((*x.shape[:-1], outer[0].shape[-1]))
    for token in np.ndindex(x.shape[:-1]):
        opening = activation(x[token] @ gate[0] + gate[1])
        output[token] = (opening * (x[token] @ inner[0] + inner[1])) @ outer[0] + outer[1]
    return output


def slopes(function, *arrays, step=1e-5):
    """The gradient of a function to a number, by each array: central differences, one entry at a
    time.
    """
    arrays = [np.array(x, "float64") for x in arrays]
    gradients = [np.zeros(x.shape) for x in arrays]
    for x, gradient in zip(arrays, gradients, strict=True):
        for at in np.ndindex(x.shape):
            here = x[at]
            x[at] = here + step
            above = function(*arrays)
            x[at] = here - step
            gradient[at] = (above - function(*arrays)) / (2 * step)
            x[at] = here
    return gradients


def dot_product(query, key, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return scale * np.einsum("...td,...sd->...ts", query, key)


def additive(query, key, weight):
    """query and key already projected, `(..., T, U)` and `(..., S, U)`; weight `(U,)`."""
    hidden = np.tanh(query[..., :, None, :] + key[..., None, :, :])
    return hidden @ weight


def bilinear(query, key, matrix):
    return np.einsum("...td,de,...se->...ts", query, matrix, key)


def normalized_dot_product(query, key, query_gain, key_gain, scale=None, epsilon=1e-6):
    query, key = rms_norm(query, query_gain, epsilon), rms_norm(key, key_gain, epsilon)
    return dot_product(query, key, scale)


def soft_capped(scores, cap):
    return cap * np.tanh(scores / cap)


def cosine(query, key, temperature=1.0):
    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    return np.einsum("...td,...sd->...ts", unit(query), unit(key)) / temperature


def log_kernel(query, key, bandwidth=1.0, kernel="gaussian"):
    u = np.linalg.norm((query[..., :, None, :] - key[..., None, :, :]) / bandwidth, axis=-1)
    with np.errstate(divide="ignore"):
        density = {
            "boxcar": (u <= 1) * 1.0,
            "triangular": np.maximum(1 - u, 0),
            "epanechnikov": np.maximum(1 - u**2, 0),
        }
        return -(u**2) / 2 if kernel == "gaussian" else np.log(density[kernel])


def pool(weights, value):
    """The weighted sum of the values that count: a value with weight 0 is not looked at, whatever
    it holds.
    """
    shape = (*weights.shape[:-1], value.shape[-1])
    value = np.broadcast_to(value, (*weights.shape[:-2], *value.shape[-2:]))
    output = np.zeros(shape)
    for row in np.ndindex(weights.shape[:-1]):
        seen = weights[row] != 0
        output[row] = weights[row][seen] @ value[row[:-1]][seen]
    return output


def attention(scores, value, mask=None):
    """(output, weights) of scores `(..., T, S)` and values `(..., S, V)`."""
    weights = softmax(scores, mask)
    return pool(weights, value), weights


def split_heads(tokens, kernel, bias):
    """`(B, T, D)` by `(D, H, P)` to `(B, H, T, P)`."""
    return np.einsum("btd,dhp->bhtp", tokens, kernel) + bias[None, :, None, :]


def join_heads(heads, kernel, bias):
    """`(B, H, T, P)` by `(H, P, E)` to `(B, T, E)`."""
    return np.einsum("bhtp,hpe->bte", heads, kernel) + bias


def multi_head(query, value, key, weights, mask=None, score=dot_product):
    """Multi-head attention with the eight arrays of Keras's `get_weights()`; key heads repeat where
    they are fewer.
    """
    wq, bq, wk, bk, wv, bv, wo, bo = (np.asarray(w, "float64") for w in weights)
    q, k, v = split_heads(query, wq, bq), split_heads(key, wk, bk), split_heads(value, wv, bv)
    repeats = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeats, axis=1), np.repeat(v, repeats, axis=1)
    pooled, attended = attention(score(q, k), v, mask)
    return join_heads(pooled, wo, bo), attended


def frequencies(width, base=10_000.0):
    """Radians a token of each of width/2 pairs (Su et al. 2021)."""
    return np.array([base ** (-2 * j / width) for j in range(width // 2)])


def llama3_frequencies(width, base, factor, low_freq_factor, high_freq_factor, original_length):
    """Long waves stretched, short ones kept, those between mixed."""
    scaled = frequencies(width, base)
    for j in range(width // 2):
        wavelength = 2 * np.pi / scaled[j]
        if wavelength > original_length / low_freq_factor:
            scaled[j] /= factor
        elif wavelength > original_length / high_freq_factor:
            part = original_length / wavelength - low_freq_factor
            part /= high_freq_factor - low_freq_factor
            scaled[j] = (1 - part) * scaled[j] / factor + part * scaled[j]
    return scaled


def turned(heads, start=0, speeds=None, interleaved=False):
    """Heads `(B, H, T, P)`, each pair of whose features turns by position · its speed. There are as
    many pairs as speeds; the features that are left pass.
    """
    speeds = frequencies(heads.shape[3]) if speeds is None else speeds
    output, count = np.array(heads, "float64"), len(speeds)
    for t in range(heads.shape[2]):
        for j in range(count):
            pair = [2 * j, 2 * j + 1] if interleaved else [j, j + count]
            angle = (start + t) * speeds[j]
            matrix = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
            output[:, :, t, pair] = heads[:, :, t, pair] @ np.transpose(matrix)
    return output


def bucket(distance, num_buckets, max_distance, bidirectional):
    """T5's bucket of a key's position less the query's (Raffel et al. 2020)."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(0, -distance)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    wide = np.log(distance / exact) / np.log(max_distance / exact) * (num_buckets - exact)
    return first + min(exact + int(wide + 1e-9), num_buckets - 1)  # a start is in its bucket


def relative(table, num_queries, num_keys, max_distance=128, bidirectional=True):
    """`(1, H, T, S)` of a table `(buckets, H)`."""
    bias = np.zeros((1, table.shape[1], num_queries, num_keys))
    for t in range(num_queries):
        for s in range(num_keys):
            distance = s - (t + num_keys - num_queries)
            bias[0, :, t, s] = table[bucket(distance, len(table), max_distance, bidirectional)]
    return bias


def padding(valid_lens, num_keys):
    """`(B,)` to `(B, 1, S)`, `(B, T)` to `(B, T, S)`."""
    lengths = np.asarray(valid_lens)
    lengths = lengths[:, None, None] if lengths.ndim == 1 else lengths[:, :, None]
    return np.arange(num_keys) < lengths


def causal(num_queries, num_keys):
    mask = np.zeros((num_queries, num_keys), bool)
    for t in range(num_queries):
        mask[t, : max(0, t + num_keys - num_queries + 1)] = True
    return mask


def window(size, num_queries, num_keys):
    mask = np.zeros((num_queries, num_keys), bool)
    for t in range(num_queries):
        for s in range(num_keys):
            mask[t, s] = abs(t + num_keys - num_queries - s) < size
    return mask


def chunks(size, num_queries, num_keys):
    mask = np.zeros((num_queries, num_keys), bool)
    for t in range(num_queries):
        for s in range(num_keys):
            mask[t, s] = (t + num_keys - num_queries) // size == s // size
    return mask


def alibi(num_heads, num_queries, num_keys):
    """`(1, H, T, S)`: minus the distance of a pair, times the slope of the head (Press et al.
    2022).
    """

    def slopes_of(heads):  # a power of two: 2^(−8/H), and each next one smaller by as much
        return [(2.0 ** (-8.0 / heads)) ** (head + 1) for head in range(heads)]

    power = 1
    while 2 * power <= num_heads:
        power *= 2
    slopes = slopes_of(power) + slopes_of(2 * power)[::2][: num_heads - power]
    bias = np.zeros((1, num_heads, num_queries, num_keys))
    for _, h, t, s in np.ndindex(bias.shape):
        bias[0, h, t, s] = -slopes[h] * abs(t + num_keys - num_queries - s)
    return bias


def segments(query_segments, key_segments):
    return np.asarray(query_segments)[:, :, None] == np.asarray(key_segments)[:, None, :]


def positions_in_segments(ids):
    positions = np.zeros(np.shape(ids), int)
    for row, of_row in enumerate(ids):
        for t in range(1, len(of_row)):
            if of_row[t] == of_row[t - 1]:
                positions[row, t] = positions[row, t - 1] + 1
    return positions


def cross_entropy(target, weights, tokens, vectors, bias=None, smoothing=0.0):
    """Σ weights · loss of the logits tokens · vectorsᵀ + bias, and its gradients by weights,
    tokens, vectors and bias.
    """
    size, gradients = len(vectors), [np.zeros(x.shape) for x in (weights, tokens, vectors)]
    of_weights, of_tokens, of_vectors = gradients
    loss, of_bias = 0.0, np.zeros(size)
    for row in np.flatnonzero(weights):  # what counts for nothing has no gradient
        logits = vectors @ tokens[row] + (0.0 if bias is None else bias)
        shifted = logits - logits.max()
        log_p = shifted - np.log(np.exp(shifted).sum())
        wanted = (1 - smoothing) * (np.arange(size) == target[row]) + smoothing / size
        of_weights[row] = -(wanted * log_p).sum()
        loss += weights[row] * of_weights[row]
        of_logits = weights[row] * (np.exp(log_p) - wanted)
        of_tokens[row] = of_logits @ vectors
        of_vectors += np.outer(of_logits, tokens[row])
        of_bias += of_logits
    return loss, [*gradients, *([] if bias is None else [of_bias])]


KERNELS = {
    "biweight": lambda u: np.maximum(1 - u**2, 0) ** 2,
    "boxcar": lambda u: (u <= 1) * 1.0,
    "cosine": lambda u: np.where(u < 1, np.cos(np.pi * u / 2), 0),
    "epanechnikov": lambda u: np.maximum(1 - u**2, 0),
    "gaussian": lambda u: np.exp(-(u**2) / 2),
    "laplace": lambda u: np.exp(-u),
    "logistic": lambda u: 4 / (np.exp(u) + 2 + np.exp(-u)),
    "triangular": lambda u: np.maximum(1 - u, 0),
    "tricube": lambda u: np.maximum(1 - u**3, 0) ** 3,
}


def kernel_regression(
    query, x, y, bandwidth, kernel="gaussian", degree=0, weight=None, categories=None
):
    """Local constant or line at each query `(M, D)`, from points `(N, D)` with heights `(N,)`.

    `categories` is None or (columns of the queries `(M, K)`, of the points `(N, K)`, λ `(K,)`, how
    many there are `(K,)`). A query without neighbors gives NaN.
    """
    values = np.full(len(query), np.nan)
    for i, place in enumerate(query):
        away = x - place
        w = KERNELS[kernel](np.linalg.norm(away / bandwidth, axis=1))
        w = w if weight is None else w * weight
        if categories is not None:
            for own, others, width, count in zip(
                categories[0][i], categories[1].T, *categories[2:], strict=True
            ):
                w = w * np.where(others == own, 1 - width, width / (count - 1))
        if w.sum() > 0:
            columns = (
                np.ones((len(x), 1)) if degree == 0 else np.column_stack([np.ones(len(x)), away])
            )
            root = np.sqrt(w)
            values[i] = np.linalg.lstsq(columns * root[:, None], y * root, rcond=None)[0][0]
    return values


def left_out_error(x, y, bandwidth, kernel="gaussian", degree=0, weight=None):
    """The mean squared error of predicting each point from all others."""
    weight = np.ones(len(x)) if weight is None else weight
    errors = [
        kernel_regression(x[[i]], x[keep], y[keep], bandwidth, kernel, degree, weight[keep])[0]
        - y[i]
        for i, keep in enumerate(~np.eye(len(x), dtype=bool))
    ]
    return np.average(np.square(errors), weights=weight)


def robust_band(query, x, y, bandwidth, kernel="gaussian", level=0.95):
    """The ends of the band of the local quadratic fit at each query, `(M,)` each."""

    def kernel_weights(place, x):
        return KERNELS[kernel](np.linalg.norm((x - place) / bandwidth, axis=1))

    def quadratic(place, x):  # what each height weighs in the fit at one place
        away, root = (x - place) / bandwidth, np.sqrt(kernel_weights(place, x))
        squares = [a * b for i, a in enumerate(away.T) for b in away.T[i:]]
        columns = np.column_stack([np.ones(len(x)), away, *squares])
        return np.linalg.pinv(columns * root[:, None])[0] * root

    noise = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        weights = quadratic(x[i], x[others])
        noise.append((y[i] - weights @ y[others]) ** 2 / (1 + weights @ weights))
    ends = []
    for place in query:
        weights, shares = quadratic(place, x), kernel_weights(place, x)
        shares = shares / shares.sum()
        student = special.stdtrit(1 / (shares @ shares), 0.5 + level / 2)
        step = student * np.sqrt((shares @ noise) * (weights @ weights))
        ends.append(weights @ y + np.array([-step, step]))
    return np.transpose(ends)


# Rules of decoding. Each takes the scores of the next token, `(V,)`, and what is written before it,
# a list of ids without the begin token.


def only(scores, tokens):
    """The scores of some tokens, and -inf elsewhere."""
    kept = np.full(len(scores), -np.inf)
    kept[list(tokens)] = scores[list(tokens)]
    return kept


def without(scores, tokens):
    return only(scores, set(range(len(scores))) - set(tokens))


def repetition_penalty(scores, written, penalty):
    scores = np.array(scores, "float64")
    for token in set(written):
        scores[token] = scores[token] * (penalty if scores[token] < 0 else 1 / penalty)
    return scores


def no_repeat_ngrams(scores, written, size):
    there = {tuple(written[i : i + size]) for i in range(len(written) - size + 1)}
    last = tuple(written[len(written) - size + 1 :])
    if len(last) < size - 1:
        return without(scores, ())
    return without(scores, [t for t in range(len(scores)) if (*last, t) in there])


def ends_with(written, phrase):
    return len(written) >= len(phrase) and written[len(written) - len(phrase) :] == list(phrase)


def forbidden_tokens(scores, written, phrases):
    return without(scores, [p[-1] for p in phrases if ends_with(list(written), p[:-1])])


def target_prefix(scores, written, prefix, scored=True):
    if len(written) >= len(prefix):
        return scores
    if not scored:  # the probability of the token is 1
        scores = np.full(len(scores), np.log(np.sum(np.exp(scores))))
    return only(scores, [prefix[len(written)]])


def min_length(scores, written, length, end):
    return without(scores, [end]) if len(written) < length else scores
