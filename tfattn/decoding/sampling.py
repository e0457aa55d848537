"""Sampling: each token is drawn by its probability."""

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.arguments import Ids
from tfattn.decoding.best import top_k
from tfattn.decoding.plan import Plan, planned
from tfattn.decoding.rules.base import Rule
from tfattn.decoding.search import Found, Search

__all__ = ["plan_samples", "sample"]


def sample(
    step: Step,
    state: Any,
    batch_size: int | Tensor,
    max_length: int | Sequence[int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | keras.random.SeedGenerator | None = None,
    begin_id: int = 2,
    end_id: int = 3,
    padding_id: int = 0,
    return_state: bool = False,
    rules: Sequence[Rule] = (),
) -> Tensor | tuple[Tensor, Any]:
    """Draws a token at every step, until each row has ended.

        p = softmax(logits / temperature)

    With `top_k` only the k best tokens can be drawn. With `top_p` only the smallest set of best
    tokens can be drawn whose probabilities sum to at least `top_p`. In both cases the probabilities
    of these tokens are scaled to sum to 1.

    Compiled like `greedy_search`; another seed, temperature or `top_p` compiles nothing new. The
    tokens of a row depend only on its logits, its place in the batch, the greatest `max_length` and
    the seed.

    Args:
        step, state, batch_size, max_length: see `greedy_search`.
        temperature: positive number; near 0 the best token gets all the probability, above 1 rare
            tokens get more.
        top_k: positive int, or None for all tokens. 1 is greedy search.
        top_p: number in (0, 1], or None for all tokens.
        seed: a non-negative int gives the same result every time; a `keras.random.SeedGenerator`
            gives the next result of its sequence; None takes Keras's global generator, which
            `keras.utils.set_random_seed` sets.
        begin_id, end_id, padding_id: ints of at least 0.
        return_state: whether to return the state too, with each row as it was when the row ended.
        rules: see `greedy_search`. They come first, before temperature, `top_k` and `top_p`.
    Returns:
        int32 `(B, L)`, L the greatest `max_length`: the tokens after the begin token, up to the end
        token (included), then padding. With `return_state`, `(tokens, state)`.
    Raises:
        ValueError: an argument is out of its range; the state does not have `batch_size` rows, or a
            `Past` has fewer than `max_length` positions; the rules do not fit, or leave a row no
            token to write.
    Example: a step for which tokens 4 and 5 are equally likely.
        >>> odds = np.log([[1e-9, 1e-9, 1e-9, 1e-9, 0.5, 0.5]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(odds, 0 * tokens[:, 0], axis=0), state
        >>> tokens = sample(step, state=(), batch_size=100, max_length=1, seed=7)
        >>> sorted(set(np.asarray(tokens)[:, 0].tolist()))
        [4, 5]

    Source: top-k after Fan et al. 2018, arXiv:1805.04833, section 5; top-p after Holtzman et al.
    2020, arXiv:1904.09751, section 3.1.
    """
    plan = plan_samples(
        step=step,
        state=state,
        batch_size=batch_size,
        max_length=max_length,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        begin_id=begin_id,
        end_id=end_id,
        padding_id=padding_id,
        return_state=return_state,
        rules=rules,
    )
    results, state = plan.run()
    tokens = ops.reshape(results["tokens"], (batch_size, plan.start.tokens.shape[1] - 1))
    return (tokens, state) if return_state else tokens


def plan_samples(
    step: Step,
    state: Any,
    batch_size: int | Tensor,
    max_length: int | Sequence[int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | keras.random.SeedGenerator | None = None,
    begin_id: int = 2,
    end_id: int = 3,
    padding_id: int = 0,
    return_state: bool = False,
    rules: Sequence[Rule] = (),
) -> Plan:
    """What `sample` runs."""
    who = "sample"
    _checks.positive_number(who, "temperature", temperature)
    if top_k is not None:
        _checks.positive_int(who, "top_k", top_k)
    real = isinstance(top_p, numbers.Real) and not isinstance(top_p, bool)
    if top_p is not None and not (real and 0 < top_p <= 1):
        _checks.fail(who, "top_p", "be a number in (0, 1], or None", top_p)
    if not isinstance(seed, keras.random.SeedGenerator):
        seed = _checks.seed(who, seed)

    def tensors(length):
        # One number in [0, 1) for each token: so no seed goes into the loop, and no row's luck
        # hangs on other rows.
        draws = keras.random.uniform((batch_size, length), seed=seed, dtype="float32")
        # Below what float32 can hold, a temperature would be 0; this one leaves the best token
        # alone.
        return {
            "draws": draws,
            "temperature": ops.convert_to_tensor(max(temperature, 1e-30), dtype="float32"),
            "top_p": None if top_p is None else ops.convert_to_tensor(top_p, dtype="float32"),
        }

    return planned(
        who,
        _Sampling,
        {"top_k": top_k},
        tensors,
        step=step,
        state=state,
        batch_size=batch_size,
        max_length=max_length,
        ids=Ids(begin_id, end_id, padding_id),
        return_state=return_state,
        rules=rules,
    )


@dataclasses.dataclass
class _Sampling(Search):
    draws: Tensor  # float32 (B, L), in [0, 1)
    temperature: Tensor
    top_k: int | None
    top_p: Tensor | None

    def start(self, batch: int | Tensor) -> dict[str, Tensor]:
        return {"draws": self.draws}

    def choose(
        self, logits: Tensor, position: Tensor, found: Found, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        logits, ids = ops.cast(logits, "float32"), None
        if self.top_k is not None or self.top_p is not None:
            size = ops.shape(logits)[-1]
            if self.top_k is not None:
                least = min if isinstance(size, int) else ops.minimum
                size = least(self.top_k, size)
            logits, ids = top_k(logits, size)  # (B, K), best first
        # The greatest comes off first: divided by a small temperature, a logit may be infinite.
        p = ops.exp((logits - ops.max(logits, axis=-1, keepdims=True)) / self.temperature)
        if self.top_p is not None:
            better = ops.cumsum(p, axis=-1) - p  # what the better tokens have together
            p = ops.where(better < self.top_p * ops.sum(p, axis=-1, keepdims=True), p, 0.0)
        # The first place where the sum of p, which need not reach 1, exceeds the drawn part of it.
        sums = ops.cumsum(p, axis=-1)  # (B, K)
        drawn = ops.take(found.own["draws"], position, axis=1)[:, None] * sums[:, -1:]  # (B, 1)
        token = ops.sum(ops.cast(sums <= drawn, "int32"), axis=-1)  # (B,)
        if ids is not None:
            token = ops.take_along_axis(ids, token[:, None], axis=-1)[:, 0]
        return ops.cast(token, "int32"), None, found.own
