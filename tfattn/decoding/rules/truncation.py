"""Rules that leave out the improbable, for sampling."""

import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.rules.base import Rule

__all__ = ["MinP", "TypicalP"]


class MinP(Rule):
    """Forbids tokens that are much less likely than the likeliest.

        kept: p(token) ≥ share · max p

    p is the softmax of the scores as this rule gets them, before the temperature of `sample`.

    Args:
        share: number in (0, 1]. 1 keeps the best alone.
    Raises:
        ValueError: `share` is not such a number.
    Example: probabilities of 0.6, 0.3 and 0.1.
        >>> scores = np.log([[1e-9, 1e-9, 1e-9, 1e-9, 0.6, 0.3, 0.1]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(scores, 0 * tokens[:, 0], axis=0), state
        >>> rules = [tfattn.rules.MinP(0.4)]
        >>> tokens = sample(step, (), batch_size=100, max_length=1, seed=7, rules=rules)
        >>> sorted(set(np.asarray(tokens)[:, 0].tolist()))
        [4, 5]

    Source: Nguyen et al. 2024, arXiv:2407.01082, section 3.
    """

    tensors = ("share",)
    lowers_only = True

    def __init__(self, share: float):
        self.share = np.float32(_share("MinP", "share", share))

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple
    ) -> tuple[Tensor, tuple]:
        least = ops.max(logits, axis=-1, keepdims=True) + ops.log(self.share)
        return ops.where(logits < least, -float("inf"), logits), state


class TypicalP(Rule):
    """Keeps the tokens whose surprise is closest to what is expected.

        surprise of a token = |−log p(token) − H|,    H = −Σ p log p

    Those with the least are kept, as few as have together at least `mass` of the probability, and
    what equals the last of them. p is as in `MinP`.

    Args:
        mass: number in (0, 1].
    Raises:
        ValueError: `mass` is not such a number.
    Example: the likeliest token is further from what is expected than the two after it.
        >>> scores = np.log([[1e-9, 1e-9, 1e-9, 1e-9, 0.5, 0.2, 0.2, 0.1]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(scores, 0 * tokens[:, 0], axis=0), state
        >>> rules = [tfattn.rules.TypicalP(0.4)]
        >>> tokens = sample(step, (), batch_size=100, max_length=1, seed=7, rules=rules)
        >>> sorted(set(np.asarray(tokens)[:, 0].tolist()))
        [5, 6]

    Source: Meister et al. 2023, arXiv:2202.00666, section 4.
    """

    tensors = ("mass",)
    lowers_only = True

    def __init__(self, mass: float):
        self.mass = np.float32(_share("TypicalP", "mass", mass))

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple
    ) -> tuple[Tensor, tuple]:
        possible = logits > -float("inf")
        greatest = ops.max(ops.where(possible, logits, -1e30), axis=-1, keepdims=True)
        p = ops.where(possible, ops.exp(logits - greatest), 0.0)
        total = ops.sum(p, axis=-1, keepdims=True)
        p = p / ops.maximum(total, 1e-30)
        # 0 log 0 is 0, and what cannot come is the furthest of all.
        log_p = ops.where(possible, logits - greatest - ops.log(ops.maximum(total, 1e-30)), 0.0)
        entropy = -ops.sum(p * log_p, axis=-1, keepdims=True)
        away = ops.where(possible, ops.abs(-log_p - entropy), float("inf"))
        order = ops.argsort(away, axis=-1)
        away_in_order = ops.take_along_axis(away, order, axis=-1)
        together = ops.cumsum(ops.take_along_axis(p, order, axis=-1), axis=-1)
        # The last that is kept is the first with which the sum reaches the mass.
        kept = ops.sum(ops.cast(together < self.mass, "int32"), axis=-1, keepdims=True)
        last = ops.minimum(kept, ops.shape(logits)[1] - 1)
        furthest = ops.take_along_axis(away_in_order, last, axis=-1)
        return ops.where(away > furthest, -float("inf"), logits), state


def _share(who: str, argument: str, value: float) -> float:
    """A number in (0, 1]."""
    value = _checks.positive_number(who, argument, value)
    if value > 1:
        _checks.fail(who, argument, "be a number in (0, 1]", value)
    return value
