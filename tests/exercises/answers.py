"""Answers to the exercises as learners write them: one that is right, and wrong ones by what is
wrong with them.
"""

import numpy as np


def softmax(scores, axis=-1):
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def pooling(scale=np.sqrt, weigh=softmax):
    def attention_pooling(query, keys, values):
        return weigh(keys @ query / scale(len(query))) @ values

    return attention_pooling


def overflowing(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)


def gaussian(scores=lambda d, h: -((d / h) ** 2) / 2, weigh=softmax):
    def gaussian_weights(queries, keys, bandwidth):
        return weigh(scores(queries[:, None] - keys, bandwidth))

    return gaussian_weights


def squares(x, bandwidth):
    return -(((x[:, None] - x) / bandwidth) ** 2) / 2


def left_out(x, bandwidth):
    scores = squares(x, bandwidth)
    np.fill_diagonal(scores, -np.inf)
    return softmax(scores)


def zeroed_after(x, bandwidth):
    return softmax(squares(x, bandwidth)) * (1 - np.eye(len(x)))


def renormalized(x, bandwidth):
    weights = zeroed_after(x, bandwidth)
    return weights / weights.sum(axis=1, keepdims=True)


def scaled_in_place(x, bandwidth):
    x /= bandwidth
    return left_out(x, 1.0)


def error_of(weights, mean=np.mean):
    return lambda x, y, bandwidth: mean((weights(x, bandwidth) @ y - y) ** 2)


def epanechnikov(cut=lambda w: np.maximum(w, 0), empty=1.0):
    def epanechnikov_mean(queries, keys, values, bandwidth):
        weights = cut(1 - ((queries[:, None] - keys) / bandwidth) ** 2)
        total = weights.sum(axis=1)
        return weights @ values / np.where(total == 0, empty, total)

    return epanechnikov_mean


def seen(scores, lengths):
    return np.arange(scores.shape[-1]) < lengths[:, None, None]


def masked(scores, lengths):
    hidden = np.where(seen(scores, lengths), scores, -np.inf)
    hidden = np.where(lengths[:, None, None] == 0, 0.0, hidden)
    return softmax(hidden) * seen(scores, lengths)


def changed_scores(scores, lengths):
    scores[~np.broadcast_to(seen(scores, lengths), scores.shape)] = -1e9
    return softmax(scores) * (lengths > 0)[:, None, None]


def additive(query, key, w_query, w_key, v):
    return np.tanh((query @ w_query)[:, :, None] + (key @ w_key)[:, None]) @ v


def dot(scale=np.sqrt, hide=-np.inf, weigh=softmax, guard=True, empty=True):
    def dot_product_attention(query, key, value, mask):
        scores = query @ key.transpose(0, 2, 1) / scale(query.shape[-1])
        sees = mask.any(axis=-1, keepdims=True) if empty else np.ones_like(mask[..., :1])
        weights = weigh(np.where(mask | ~sees, scores, hide)) * sees
        return weights @ (np.nan_to_num(value) if guard else value)

    return dot_product_attention


def masked_after(query, key, value, mask):
    weights = softmax(query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])) * mask
    return weights @ np.nan_to_num(value)


def bahdanau(axis=-1, project=False, use_lengths=True, state_only=False, hide=-1e9):
    def bahdanau_context(state, memory, w_state, w_memory, v, lengths):
        keys = memory @ w_memory
        scores = np.tanh((state @ w_state)[:, None] + (0 if state_only else keys)) @ v
        if use_lengths:
            scores = np.where(np.arange(scores.shape[1]) < lengths[:, None], scores, hide)
        weights = softmax(scores, axis)
        return np.einsum("bs,bsd->bd", weights, keys if project else memory), weights

    return bahdanau_context


def shift(targets, begin_id):
    result = np.full_like(targets, begin_id)
    result[:, 1:] = targets[:, :-1]
    return result


def rolled_in_place(targets, begin_id):
    targets[:, 1:] = targets[:, :-1].copy()
    targets[:, 0] = begin_id
    return targets


def by_hand(scale=1.0, axis=-1, values=True, both=True):
    def self_attention(x, w_query, w_key, w_value):
        scores = (x @ w_query) @ (x @ w_key).T / scale
        weights = softmax(scores, axis)
        output = weights @ (x @ w_value if values else x)
        return (output, weights) if both else output

    return self_attention


def sinusoids(first=0, exponent=2.0, base=10_000.0, halves=False):
    def sinusoidal_positions(length, width):
        pairs = np.arange(width // 2)
        angles = np.arange(first, first + length)[:, None] / base ** (exponent * pairs / width)
        result = np.zeros((length, width))
        if halves:
            return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        result[:, 0::2], result[:, 1::2] = np.sin(angles), np.cos(angles)
        return result

    return sinusoidal_positions


def rotary(sign=1, halves=False, from_zero=False):
    def rotate_pairs(x, positions):
        width, positions = x.shape[1], np.arange(len(x)) if from_zero else positions
        angles = sign * positions[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
        split = (slice(width // 2), slice(width // 2, None)) if halves else (slice(0, None, 2),)
        first, second = split if halves else (slice(0, None, 2), slice(1, None, 2))
        result = np.empty(x.shape)
        result[:, first] = x[:, first] * np.cos(angles) - x[:, second] * np.sin(angles)
        result[:, second] = x[:, first] * np.sin(angles) + x[:, second] * np.cos(angles)
        return result

    return rotate_pairs


def rotated_in_place(x, positions):
    width = x.shape[1]
    angles = positions[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    x[:, 0::2], x[:, 1::2] = (
        x[:, 0::2] * np.cos(angles) - x[:, 1::2] * np.sin(angles),
        x[:, 0::2] * np.sin(angles) + x[:, 1::2] * np.cos(angles),
    )
    return x


def norm(axis=-1, inside=True, ddof=0, affine=True, root=np.sqrt):
    def layer_norm(x, gamma, beta, epsilon):
        mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True, ddof=ddof)
        scale = root(variance + epsilon) if inside else root(variance) + epsilon
        return (x - mean) / scale * (gamma if affine else 1) + (beta if affine else 0)

    return layer_norm


def normalized(x, axis=-1, epsilon=1e-5):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon)


def added_in_place(x, output):
    x += output
    return normalized(x)


def windows(extra=0, at_start=False, both_sides=False):
    def sliding_window_mask(num_queries, num_keys, size):
        places = np.arange(num_queries)[:, None] + (0 if at_start else num_keys - num_queries)
        distances = places - np.arange(num_keys)
        distances = np.abs(distances) if both_sides else distances
        return (distances >= 0) & (distances < size + extra)

    return sliding_window_mask


def token_losses(logits, targets):
    logs = np.log(softmax(logits.astype("float64")) + 1e-300)
    return -np.take_along_axis(logs, targets[..., None], axis=-1)[..., 0]


def loss(logits, targets):
    logits = logits - logits.max(axis=-1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    chosen = np.take_along_axis(logs, targets[..., None], axis=-1)[..., 0]
    return -chosen[targets != 0].sum() / (targets != 0).sum()


def mean_of_means(logits, targets):
    real = targets != 0
    return ((token_losses(logits, targets) * real).sum(axis=1) / real.sum(axis=1)).mean()


def cached(scale=np.sqrt, in_front=False, misses_itself=False, stores_inputs=False):
    def decoder_step(x, keys, values, w_query, w_key, w_value):
        new = [x, x] if stores_inputs else [x @ w_key, x @ w_value]
        pairs = [(old, one[:, None]) for old, one in zip((keys, values), new, strict=True)]
        longer = [np.concatenate(pair[::-1] if in_front else pair, axis=1) for pair in pairs]
        k, v = (keys, values) if misses_itself else longer
        weights = softmax(np.einsum("bd,bsd->bs", x @ w_query, k) / scale(x.shape[-1]))
        return np.einsum("bs,bsd->bd", weights, v), *longer

    return decoder_step


def merged(output_a, log_sum_a, output_b, log_sum_b):
    top = np.maximum(log_sum_a, log_sum_b)
    top = np.where(np.isinf(top), 0, top)
    a, b = np.exp(log_sum_a - top), np.exp(log_sum_b - top)
    total = np.where(a + b == 0, 1, a + b)
    output = (a[:, None] * output_a + b[:, None] * output_b) / total[:, None]
    return output, np.log(a + b) + top


def merged_by(weigh_a, weigh_b):
    def merge_parts(output_a, log_sum_a, output_b, log_sum_b):
        a, b = weigh_a(log_sum_a), weigh_b(log_sum_b)
        output = (a[:, None] * output_a + b[:, None] * output_b) / (a + b)[:, None]
        return output, np.logaddexp(log_sum_a, log_sum_b)

    return merge_parts


def beam(total=lambda s, p: s[:, None] + p, divide=None, order=slice(None, None, -1)):
    def beam_step(scores, log_probs):
        totals = total(scores, log_probs).ravel()
        best = np.argsort(totals)[order][: len(scores)]
        parents, tokens = np.divmod(best, divide or log_probs.shape[1])
        return totals[best], parents, tokens

    return beam_step


def best_of_each_beam(scores, log_probs):
    tokens = log_probs.argmax(axis=1)
    totals = scores + log_probs.max(axis=1)
    parents = np.argsort(-totals)
    return totals[parents], parents, tokens[parents]


def swapped(scores, log_probs):
    totals, parents, tokens = beam()(scores, log_probs)
    return totals, tokens, parents


def top_p(crossing=True, rescale=True, keep_order=True, below=np.less):
    def nucleus(probabilities, mass):
        order = np.argsort(probabilities)[::-1]
        sums = np.cumsum(probabilities[order])
        kept = below(sums - probabilities[order], mass) if crossing else sums <= mass
        chosen = probabilities[order] * kept
        chosen = chosen / chosen.sum() if rescale else chosen
        return chosen[np.argsort(order)] if keep_order else chosen

    return nucleus


def one_hot(choice, size):
    return np.eye(size)[choice]


ANSWERS = {
    "attention_pooling": {
        "right": pooling(),
        "scaled by d": pooling(scale=float),
        "not scaled": pooling(scale=lambda d: 1.0),
        "an overflow of exp": pooling(weigh=overflowing),
        "scores cut off": pooling(weigh=lambda scores: softmax(np.minimum(scores, 80.0))),
        "no softmax": pooling(weigh=lambda scores: scores / scores.sum()),
        "a mean of the keys": lambda q, k, v: softmax(k @ q / np.sqrt(len(q))) @ k,
    },
    "gaussian_weights": {
        "right": gaussian(),
        "0 / 0 far away": gaussian(weigh=overflowing),
        "bandwidth multiplied": gaussian(lambda d, h: -((d * h) ** 2) / 2),
        "bandwidth not squared": gaussian(lambda d, h: -(d**2) / h / 2),
        "no factor of 2": gaussian(lambda d, h: -((d / h) ** 2)),
        "sums to 1 over queries": gaussian(weigh=lambda scores: softmax(scores, axis=0)),
    },
    "leave_one_out_weights": {
        "right": left_out,
        "zeroed after softmax": zeroed_after,
        "renormalized, 0 / 0 for a small bandwidth": renormalized,
        "-1e4 is too little": lambda x, h: softmax(squares(x, h) - 1e4 * np.eye(len(x))),
        "-1e9 is too little": lambda x, h: softmax(squares(x, h) - 1e9 * np.eye(len(x))),
        "the point itself": lambda x, h: softmax(squares(x, h)),
        "divides in place": scaled_in_place,
    },
    "leave_one_out_error": {
        "right": error_of(left_out),
        "the point itself": error_of(lambda x, h: softmax(squares(x, h))),
        "a sum": error_of(left_out, np.sum),
        "the root": error_of(left_out, lambda squared: np.sqrt(np.mean(squared))),
        "errors, not their mean": error_of(left_out, lambda squared: squared),
    },
    "epanechnikov_mean": {
        "right": epanechnikov(),
        "negative weights": epanechnikov(cut=lambda w: w),
        "0 / 0 without a neighbor": epanechnikov(empty=0.0),
        "weights all alike": epanechnikov(cut=lambda w: 1.0 * (w > 0)),
        "absolute values": epanechnikov(cut=np.abs),
    },
    "weighted_sums": {
        "right": lambda w, v: w @ v,
        "the first problem's values": lambda w, v: w @ v[0],
        "over queries": lambda w, v: np.einsum("bts,btd->bsd", w, v[:, : w.shape[1]]),
        "summed over the batch": lambda w, v: np.einsum("bts,csd->btd", w, v),
        "transposed": lambda w, v: (w @ v).transpose(0, 2, 1),
        "a mean": lambda w, v: w @ v / v.shape[1],
    },
    "masked_softmax": {
        "right": masked,
        "masked after softmax": lambda s, n: softmax(s) * seen(s, n),
        "multiplied before softmax": lambda s, n: softmax(s * seen(s, n)),
        "NaN where the length is 0": lambda s, n: softmax(np.where(seen(s, n), s, -np.inf)),
        "even weights where the length is 0": lambda s, n: softmax(np.where(seen(s, n), s, -1e9)),
        "-100 is too little": lambda s, n: (
            softmax(s - 100.0 * ~seen(s, n)) * (n > 0)[:, None, None]
        ),
        "-1e3 is no less than a score": lambda s, n: (
            softmax(np.where(seen(s, n), s, -1e3)) * (n > 0)[:, None, None]
        ),
        "hidden keys have nearly 0": lambda s, n: np.maximum(masked(s, n), 5e-5),
        "one key too many": lambda s, n: masked(s, n + 1),
        "changes the scores": changed_scores,
    },
    "additive_scores": {
        "right": additive,
        "keys by queries": lambda *a: additive(*a).transpose(0, 2, 1),
        "no tanh": lambda q, k, wq, wk, v: (q @ wq)[:, :, None] @ v + ((k @ wk)[:, None]) @ v,
        "a product": lambda q, k, wq, wk, v: np.tanh((q @ wq)[:, :, None] * (k @ wk)[:, None]) @ v,
        "tanh of the score": lambda q, k, wq, wk, v: np.tanh(
            ((q @ wq)[:, :, None] + (k @ wk)[:, None]) @ v
        ),
        "tokens paired, not all pairs": lambda q, k, wq, wk, v: np.tanh(q @ wq + k @ wk) @ v,
    },
    "dot_product_attention": {
        "right": dot(),
        "scaled by d": dot(scale=float),
        "not scaled": dot(scale=lambda d: 1.0),
        "masked after softmax": masked_after,
        "NaN from a padded value": dot(guard=False),
        "NaN where nothing is seen": dot(empty=False),
        "a mean where nothing is seen": dot(empty=False, hide=-1e9),
        "-12 is too little": dot(hide=-12.0),
        "softmax over queries": dot(hide=-1e9, weigh=lambda scores: softmax(scores, axis=1)),
        "mask inverted": lambda q, k, v, mask: dot()(q, k, v, ~mask),
    },
    "bahdanau_context": {
        "right": bahdanau(),
        "padding seen": bahdanau(use_lengths=False),
        "-20 is too little": bahdanau(hide=-20.0),
        "softmax over the batch": bahdanau(axis=0),
        "projected values": bahdanau(project=True),
        "keys not asked": bahdanau(state_only=True),
        "one result": lambda *a: bahdanau()(*a)[0],
        "results swapped": lambda *a: bahdanau()(*a)[::-1],
    },
    "shift_right": {
        "right": shift,
        "begins with 1 whatever is asked": lambda t, b: shift(t, 1),
        "rolled around": lambda t, b: np.roll(t, 1, axis=1),
        "one longer": lambda t, b: np.concatenate([np.full_like(t[:, :1], b), t], axis=1),
        "shifted left": lambda t, b: np.concatenate([t[:, 1:], np.full_like(t[:, :1], b)], axis=1),
        "not shifted": lambda t, b: np.concatenate([np.full_like(t[:, :1], b), t[:, 1:]], axis=1),
        "in place": rolled_in_place,
    },
    "split_heads": {
        "right": lambda x, h: np.stack(np.split(x, h, axis=-1), axis=1),
        "reshape alone": lambda x, h: x.reshape(x.shape[0], h, x.shape[1], -1),
        "transposed reshape": lambda x, h: x.transpose(0, 2, 1).reshape(
            x.shape[0], h, x.shape[1], -1
        ),
        "heads interleaved": lambda x, h: x.reshape(*x.shape[:2], -1, h).transpose(0, 3, 1, 2),
        "tokens before heads": lambda x, h: x.reshape(*x.shape[:2], h, -1),
    },
    "merge_heads": {
        "right": lambda x: np.concatenate(list(x.swapaxes(0, 1)), axis=-1),
        "reshape alone": lambda x: x.reshape(x.shape[0], x.shape[2], -1),
        "features before heads": lambda x: x.transpose(0, 2, 3, 1).reshape(
            x.shape[0], x.shape[2], -1
        ),
        "a mean of the heads": lambda x: x.mean(axis=1),
        "heads along the tokens": lambda x: x.reshape(x.shape[0], -1, x.shape[3]),
    },
    "repeat_key_heads": {
        "right": lambda k, h: k[:, np.arange(h) // (h // k.shape[1])],
        "tiled": lambda k, h: np.tile(k, (1, h // k.shape[1], 1, 1)),
        "repeated H times": lambda k, h: np.repeat(k, h, axis=1),
        "along the keys": lambda k, h: np.repeat(k, h // k.shape[1], axis=2),
        "the first head for all": lambda k, h: np.repeat(k[:, :1], h, axis=1),
    },
    "self_attention": {
        "right": by_hand(),
        "scaled": by_hand(scale=2.0),
        "softmax over queries": by_hand(axis=0),
        "values not projected": by_hand(values=False),
        "one result": by_hand(both=False),
        "query and key swapped": lambda x, q, k, v: by_hand()(x, k, q, v),
    },
    "layers_to_connect": {
        "right": lambda n, k: int(np.ceil((n - 1) / (k - 1))),
        "floor": lambda n, k: (n - 1) // (k - 1),
        "kernel size for its reach": lambda n, k: -(-(n - 1) // k),
        "tokens for steps": lambda n, k: -(-n // (k - 1)),
        "dilated, a logarithm": lambda n, k: int(np.ceil(np.log(n) / np.log(k))),
        "a float": lambda n, k: np.ceil((n - 1) / (k - 1)),
    },
    "sinusoidal_positions": {
        "right": sinusoids(),
        "sines, then cosines": sinusoids(halves=True),
        "j for 2j": sinusoids(exponent=1.0),
        "from position 1": sinusoids(first=1),
        "another base": sinusoids(base=1_000.0),
    },
    "rotate_pairs": {
        "right": rotary(),
        "turned back": rotary(sign=-1),
        "halves for pairs": rotary(halves=True),
        "positions from 0": rotary(from_zero=True),
        "in place": rotated_in_place,
    },
    "layer_norm": {
        "right": norm(),
        "over the batch": norm(axis=(0, 1)),
        "over the whole text": norm(axis=(1, 2)),
        "another epsilon": lambda x, g, b, epsilon: norm()(x, g, b, 1e-3),
        "epsilon outside the root": norm(inside=False),
        "n - 1": norm(ddof=1),
        "no gamma and beta": norm(affine=False),
        "the variance for its root": norm(root=lambda x: x),
    },
    "add_norm": {
        "right": lambda x, y: normalized(x + y),
        "no epsilon": lambda x, y: normalized(x + y, epsilon=0.0),
        "norm, then add": lambda x, y: x + normalized(y),
        "no residual": lambda x, y: normalized(y),
        "norm of x, then add": lambda x, y: normalized(x) + y,
        "over tokens": lambda x, y: normalized(x + y, axis=1),
        "in place": added_in_place,
    },
    "causal_mask": {
        "right": lambda t, s: np.tri(t, s, s - t, dtype=bool),
        "aligned at the start": lambda t, s: np.tri(t, s, dtype=bool),
        "without its own place": lambda t, s: np.tri(t, s, s - t - 1, dtype=bool),
        "one place ahead": lambda t, s: np.tri(t, s, s - t + 1, dtype=bool),
        "True where hidden": lambda t, s: ~np.tri(t, s, s - t, dtype=bool),
        "numbers": lambda t, s: np.tri(t, s, s - t),
        "keys by queries": lambda t, s: np.tri(t, s, s - t, dtype=bool).T,
    },
    "padding_mask": {
        "right": lambda n, s: (np.arange(s) < n[:, None])[:, None],
        "one key too many": lambda n, s: (np.arange(s) <= n[:, None])[:, None],
        "True where hidden": lambda n, s: (np.arange(s) >= n[:, None])[:, None],
        "no axis for queries": lambda n, s: np.arange(s) < n[:, None],
        "numbers": lambda n, s: (np.arange(s) < n[:, None])[:, None].astype("float32"),
        "padding in front": lambda n, s: (np.arange(s)[::-1] < n[:, None])[:, None],
    },
    "sliding_window_mask": {
        "right": lambda t, s, w: (
            np.tri(t, s, s - t, dtype=bool) & ~np.tri(t, s, s - t - w, dtype=bool)
        ),
        "one place too many": windows(extra=1),
        "one place too few": windows(extra=-1),
        "aligned at the start": windows(at_start=True),
        "the future too": windows(both_sides=True),
    },
    "masked_loss": {
        "right": loss,
        "padding counts": lambda x, t: token_losses(x, t).mean(),
        "padding divides": lambda x, t: (token_losses(x, t) * (t != 0)).mean(),
        "a mean of the texts' means": mean_of_means,
        "a sum": lambda x, t: (token_losses(x, t) * (t != 0)).sum(),
        "an overflow of exp": lambda x, t: (
            -np.log(np.take_along_axis(overflowing(x), t[..., None], -1))[..., 0][t != 0].mean()
        ),
    },
    "decoder_step": {
        "right": cached(),
        "scaled by d": cached(scale=float),
        "does not see itself": cached(misses_itself=True),
        "the new token in front": cached(in_front=True),
        "caches hold inputs": cached(stores_inputs=True),
        "caches not returned": lambda *a: cached()(*a)[0],
        "caches not lengthened": lambda *a: (cached()(*a)[0], a[1], a[2]),
    },
    "merge_parts": {
        "right": merged,
        "a plain mean": merged_by(np.ones_like, np.ones_like),
        "log sums as weights": merged_by(lambda log: log, lambda log: log),
        "an overflow of exp": merged_by(np.exp, np.exp),
        "a number where nothing is seen": lambda *parts: (
            merged(*parts)[0],
            np.nan_to_num(merged(*parts)[1], neginf=7.0),
        ),
        "log sums added": lambda a, x, b, y: (merged(a, x, b, y)[0], x + y),
        "NaN where nothing is seen": lambda a, x, b, y: merged_by(
            lambda log: np.exp(log - np.maximum(x, y)), lambda log: np.exp(log - np.maximum(x, y))
        )(a, x, b, y),
    },
    "beam_step": {
        "right": beam(),
        "the best of each beam": best_of_each_beam,
        "-1e9 instead of -inf": lambda s, p: beam()(np.where(np.isfinite(s), s, -1e9), p),
        "scores not added": beam(total=lambda s, p: 0 * np.nan_to_num(s)[:, None] + p),
        "a product of logs": beam(total=lambda s, p: s[:, None] * p),
        "divided by the beams": lambda s, p: beam(divide=len(s))(s, p),
        "beams and tokens swapped": swapped,
        "the worst": beam(order=slice(None)),
    },
    "nucleus": {
        "right": top_p(),
        "without the token that crosses": top_p(crossing=False),
        "one token more where the sum is just the mass": top_p(below=np.less_equal),
        "not rescaled": top_p(rescale=False),
        "sorted": top_p(keep_order=False),
        "a threshold": lambda p, mass: np.where(p >= mass, p, 0) / max(p[p >= mass].sum(), 1e-9),
        "softmax once more": lambda p, mass: softmax(top_p()(p, mass)),
    },
    "hard_attention": {
        "right": lambda s, v: np.stack([v[row.argmax()] for row in s]),
        "soft": lambda s, v: softmax(s) @ v,
        "over queries": lambda s, v: v[s.argmax(axis=0) % len(v)],
        "the largest value": lambda s, v: np.broadcast_to(v.max(axis=0), (len(s), v.shape[1])),
        "the score times the value": lambda s, v: s.max(axis=1)[:, None] * v[s.argmax(axis=1)],
        "the place of the key": lambda s, v: s.argmax(axis=1),
    },
    "choice_gradient": {
        "right": lambda s, c, r, b: (r - b) * (one_hot(c, len(s)) - softmax(s)),
        "a loss's sign": lambda s, c, r, b: (r - b) * (softmax(s) - one_hot(c, len(s))),
        "no baseline": lambda s, c, r, b: r * (one_hot(c, len(s)) - softmax(s)),
        "a baseline of 0.5": lambda s, c, r, b: (r - 0.5) * (one_hot(c, len(s)) - softmax(s)),
        "of p, not of its log": lambda s, c, r, b: (
            (r - b) * softmax(s)[c] * (one_hot(c, len(s)) - softmax(s))
        ),
        "the choice alone": lambda s, c, r, b: (r - b) * one_hot(c, len(s)) * (1 - softmax(s)),
    },
}
