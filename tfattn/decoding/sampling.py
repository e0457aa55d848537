"""Sampling: each token drawn from what the step says of it."""

import numbers

import keras
from keras import ops

from tfattn import _checks
from tfattn.decoding.arguments import prepared
from tfattn.decoding.compiling import compiled
from tfattn.decoding.loop import decode

__all__ = ["sample"]


def sample(
    step,
    state,
    batch_size,
    max_length,
    temperature=1.0,
    top_k=None,
    top_p=None,
    seed=None,
    begin_id=2,
    end_id=3,
    padding_id=0,
    return_state=False,
):
    """Draws a token at every step, until each row has ended.

        p = softmax(logits / temperature), of the `top_k` best tokens where that is given
        with `top_p`: of these the best ones that together reach it, the fewest possible; p in
        proportion

    Compiled like `greedy_search`; another seed, temperature or `top_p` is no other compiled
    function. A row's tokens depend on its logits, its place in the batch, the greatest `max_length`
    and the seed alone.

    Args:
        step, state, batch_size, max_length: see `greedy_search`.
        temperature: positive number; towards 0 the best token takes everything, above 1 the rare
            ones gain.
        top_k: positive int, or None for all tokens. 1 is greedy search.
        top_p: number in (0, 1], or None for all tokens.
        seed: non-negative int: the same result every time; a `keras.random.SeedGenerator`: the next
            result of its sequence; None: of Keras's own sequence, which
            `keras.utils.set_random_seed` starts.
        begin_id, end_id, padding_id: ints.
        return_state: whether to return the state too, each row of it as it was when the row ended.
    Returns:
        int32 `(B, L)`, L the greatest `max_length`: the tokens after the begin token, up to and
        with the end token, then padding. With `return_state`, `(tokens, state)`.
    Raises:
        ValueError: an argument is out of its range; the state has other than `batch_size` rows, or
            a `Past` less room than `max_length`.
    Example: a step that finds 4 and 5 equally likely.
        >>> odds = np.log([[1e-9, 1e-9, 1e-9, 1e-9, 0.5, 0.5]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(odds, 0 * tokens[:, 0], axis=0), state
        >>> tokens = sample(step, state=(), batch_size=100, max_length=1, seed=7)
        >>> sorted(set(tokens.numpy()[:, 0].tolist()))
        [4, 5]

    Source: top-k after Fan et al. 2018, arXiv:1805.04833, section 5.2; top-p after Holtzman et al.
    2020, arXiv:1904.09751, section 3.1.
    """
    who = "sample"
    _checks.positive_number(who, "temperature", temperature)
    if top_k is not None:
        _checks.positive_int(who, "top_k", top_k)
    if top_p is not None and not (isinstance(top_p, numbers.Real) and 0 < top_p <= 1):
        _checks.fail(who, "top_p", "be a number in (0, 1], or None", top_p)
    if seed is not None and not isinstance(seed, keras.random.SeedGenerator):
        _checks.non_negative_int(who, "seed", seed)
    ids = (begin_id, end_id, padding_id)
    settings, start, state = prepared(who, step, state, batch_size, max_length, *ids, return_state)
    # One number in [0, 1) for each token: so no seed goes into the loop, and no row's luck hangs on
    # other rows.
    length = start[0].shape[1] - 1
    draws = keras.random.uniform((batch_size, length), seed=seed, dtype="float32")
    options = {
        # A temperature so small that float32 has no such number is one that leaves the best token
        # alone.
        "temperature": ops.convert_to_tensor(max(temperature, 1e-30), dtype="float32"),
        "top_p": None if top_p is None else ops.convert_to_tensor(top_p, dtype="float32"),
    }
    tokens, state = compiled(_sample, step, (settings, top_k))(start, state, draws, options)
    tokens = ops.reshape(tokens, (batch_size, length))
    return (tokens, state) if return_state else tokens


def _sample(step, settings, start, state, draws, options):
    settings, top_k = settings
    found, state = decode(step, _Sampling(draws, top_k=top_k, **options), settings, start, state)
    return found.tokens[:, 1:], state


class _Sampling:
    width = 1

    def __init__(self, draws, temperature, top_k, top_p):
        self.draws, self.temperature, self.top_k, self.top_p = draws, temperature, top_k, top_p

    def start(self, batch):
        return {"draws": self.draws}  # (B, L)

    def choose(self, logits, position, found, width):
        logits, ids = ops.cast(logits, "float32"), None
        if self.top_k is not None or self.top_p is not None:
            logits, ids = ops.top_k(logits, self._size(logits))  # (B, K), best first
        # Less the greatest, so that no temperature makes an infinity of it. The sum need not be 1.
        p = ops.exp((logits - ops.max(logits, axis=-1, keepdims=True)) / self.temperature)
        if self.top_p is not None:
            better = ops.cumsum(p, axis=-1) - p  # what the better tokens have together
            p = ops.where(better < self.top_p * ops.sum(p, axis=-1, keepdims=True), p, 0.0)
        draw = ops.take(found.own["draws"], position, axis=1)
        place = _drawn(p, draw)
        token = place if ids is None else ops.take_along_axis(ids, place[:, None], axis=-1)[:, 0]
        return ops.cast(token, "int32"), None, found.own

    def done(self, found):
        return found.ended

    def _size(self, logits):
        size = ops.shape(logits)[-1]
        if self.top_k is None:
            return size
        return min(self.top_k, size) if isinstance(size, int) else ops.minimum(self.top_k, size)


def _drawn(p, draw):
    """The first place at which the sum of `p` `(B, K)` exceeds the fraction `draw` `(B,)`, below 1,
    of the whole.
    """
    sums = ops.cumsum(p, axis=-1)
    return ops.sum(ops.cast(sums <= draw[:, None] * sums[:, -1:], "int32"), axis=-1)
