"""Rules that exclude improbable tokens, for sampling."""

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.rules.base import Rule


@keras.saving.register_keras_serializable("tfattn")
class MinP(Rule):
    """Forbids tokens that are much less likely than the likeliest.

        kept: p(token) ≥ share · max p

    p is the softmax of the scores after all earlier rules, before the temperature of `Sampling`.

    Args:
        share: number in (0, 1]. 1 keeps only the best.
    Raises:
        ValueError: `share` is not such a number.
    Example: probabilities of 0.6, 0.3 and 0.1.
        >>> scores = np.log([[1e-9, 1e-9, 1e-9, 1e-9, 0.6, 0.3, 0.1]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(scores, 0 * tokens[:, 0], axis=0), state
        >>> rules = [tfattn.rules.MinP(0.4)]
        >>> tokens = Sampling(seed=7, rules=rules)(step, (), batch_size=100, max_length=1)
        >>> sorted(set(np.asarray(tokens)[:, 0].tolist()))
        [4, 5]

    Source: Nguyen et al. 2024, arXiv:2407.01082, section 3.
    """

    tensors = ("share",)
    lowers_only = True

    def __init__(self, share: float):
        self.share = _checks.fraction("MinP", "share", share)

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple[()]
    ) -> tuple[Tensor, tuple[()]]:
        least = ops.max(logits, axis=-1, keepdims=True) + ops.log(self.share)
        return ops.where(logits < least, -float("inf"), logits), state


@keras.saving.register_keras_serializable("tfattn")
class TypicalP(Rule):
    """Keeps the tokens with information content closest to its expectation, the entropy.

        distance of a token = |−log p(token) − H|,    H = −Σ p log p

    The smallest set of tokens with the least distances and a probability of at least `mass` is
    kept, with all tokens as distant as the last of them. p is as in `MinP`.

    Args:
        mass: number in (0, 1].
    Raises:
        ValueError: `mass` is not such a number.
    Example: the likeliest token is further from the entropy than the next two.
        >>> scores = np.log([[1e-9, 1e-9, 1e-9, 1e-9, 0.5, 0.2, 0.2, 0.1]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(scores, 0 * tokens[:, 0], axis=0), state
        >>> rules = [tfattn.rules.TypicalP(0.3)]
        >>> tokens = Sampling(seed=7, rules=rules)(step, (), batch_size=100, max_length=1)
        >>> sorted(set(np.asarray(tokens)[:, 0].tolist()))
        [5, 6]

    Source: Meister et al. 2023, arXiv:2202.00666, section 4.
    """

    tensors = ("mass",)
    lowers_only = True

    def __init__(self, mass: float):
        self.mass = _checks.fraction("TypicalP", "mass", mass)

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple[()]
    ) -> tuple[Tensor, tuple[()]]:
        possible = logits > -float("inf")
        greatest = ops.max(ops.where(possible, logits, -1e30), axis=-1, keepdims=True)
        p = ops.where(possible, ops.exp(logits - greatest), 0.0)
        total = ops.sum(p, axis=-1, keepdims=True)
        p = p / ops.maximum(total, 1e-30)
        # 0 log 0 is 0, and an impossible token is infinitely far.
        log_p = ops.where(possible, logits - greatest - ops.log(ops.maximum(total, 1e-30)), 0.0)
        entropy = -ops.sum(p * log_p, axis=-1, keepdims=True)
        distances = ops.where(possible, ops.abs(-log_p - entropy), float("inf"))

        def halved(_: Tensor, bounds: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            """The half of the interval that contains the least distance with enough mass."""
            low, high = bounds
            middle = 0.5 * (low + high)
            mass = ops.sum(ops.where(distances <= middle, p, 0.0), axis=-1, keepdims=True)
            is_enough = mass >= self.mass
            return ops.where(is_enough, low, middle), ops.where(is_enough, middle, high)

        # Bisection takes a third of the time of sorting a large vocabulary. A probability above 0
        # in float32 is above exp(-104), so 32 halvings are exact to the rounding of a distance.
        high = ops.max(ops.where(p > 0, distances, 0.0), axis=-1, keepdims=True)
        _, furthest = ops.fori_loop(0, 32, halved, (ops.full_like(high, -1e-6), high))
        return ops.where(distances > furthest, -float("inf"), logits), state
