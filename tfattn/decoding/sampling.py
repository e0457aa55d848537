"""Sampling: each token is drawn from the probabilities of the step."""

from collections.abc import Sequence

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.best import top_k as best_first
from tfattn.decoding.loop import SearchState
from tfattn.decoding.rules.base import Rule
from tfattn.decoding.search import Search


@keras.saving.register_keras_serializable("tfattn")
class Sampling(Search):
    """Draws a token at every step, until each row has ended.

        p = softmax(logits / temperature)

    With `top_k` only the k best tokens can be drawn. With `top_p` only the smallest set of best
    tokens can be drawn whose probabilities sum to at least `top_p`. In both cases the probabilities
    of these tokens are scaled to sum to 1.

    A new seed, temperature or `top_p` compiles nothing new. The tokens of a row depend only on its
    logits, its index in the batch, the greatest `max_length` and the seed.

    Args:
        temperature: positive number; near 0 the best token gets all the probability, above 1 rare
            tokens get more.
        top_k: positive int, or None for all tokens. 1 is greedy search.
        top_p: number in (0, 1], or None for all tokens.
        seed: a non-negative int gives the same result at every call (`translate` continues with it
            from batch to batch); a `keras.random.SeedGenerator` gives the next result of its
            sequence; None takes Keras's global generator, which `keras.utils.set_random_seed` sets.
        rules, jit_compile: see `tfattn.decoding.Search`, also for the arguments, result and errors
            of a call. Rules come first, before temperature, `top_k` and `top_p`.
    Raises:
        ValueError: an argument is out of its range; or as in `tfattn.decoding.Search`.
    Example: a step for which tokens 4 and 5 are equally likely.
        >>> log_p = np.log([[1e-9, 1e-9, 1e-9, 1e-9, 0.5, 0.5]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(log_p, 0 * tokens[:, 0], axis=0), state
        >>> tokens = Sampling(seed=7)(step, state=(), batch_size=100, max_length=1)
        >>> sorted(set(np.asarray(tokens)[:, 0].tolist()))
        [4, 5]

    Source: top-k after Fan et al. 2018, arXiv:1805.04833, section 5; top-p after Holtzman et al.
    2020, arXiv:1904.09751, section 3.1.
    """

    tensors = ("temperature", "top_p")
    not_compiled = (*Search.not_compiled, "seed")

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | keras.random.SeedGenerator | None = None,
        rules: Sequence[Rule] = (),
        jit_compile: bool = False,
    ):
        super().__init__(rules, jit_compile)
        who = type(self).__name__
        self.temperature = _checks.positive_number(who, "temperature", temperature)
        self.top_k = None if top_k is None else _checks.positive_int(who, "top_k", top_k)
        if top_p is not None:
            top_p = _checks.fraction(who, "top_p", top_p)
        self.top_p = top_p
        is_generator = isinstance(seed, keras.random.SeedGenerator)
        self.seed = seed if is_generator else _checks.seed(who, seed)

    def start(self, batch_size: int | Tensor, length: int) -> dict[str, Tensor]:
        # One number in [0, 1) for each token: the loop needs no seed, and rows are independent.
        draws = keras.random.uniform((batch_size, length), seed=self.seed, dtype="float32")
        return {"draws": draws}

    def choose(
        self, logits: Tensor, position: Tensor, found: SearchState, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        logits, ids = ops.cast(logits, "float32"), None
        if self.top_k is not None or self.top_p is not None:
            size = ops.shape(logits)[-1]
            if self.top_k is not None:
                least = min if isinstance(size, int) else ops.minimum
                size = least(self.top_k, size)
            logits, ids = best_first(logits, size)  # (B, K), best first
        # Subtract the greatest first: a logit over a small temperature may be infinite. In float32
        # a tiny temperature would be 0; at 1e-30 only the best token remains.
        temperature = ops.maximum(self.temperature, 1e-30)
        p = ops.exp((logits - ops.max(logits, axis=-1, keepdims=True)) / temperature)
        if self.top_p is not None:
            better = ops.cumsum(p, axis=-1) - p  # the sum over better tokens
            p = ops.where(better < self.top_p * ops.sum(p, axis=-1, keepdims=True), p, 0.0)
        p = self.keep(p)
        # The first index whose cumulative sum exceeds the drawn fraction of the total.
        sums = ops.cumsum(p, axis=-1)  # (B, K)
        drawn = ops.take(found.extra["draws"], position, axis=1)[:, None] * sums[:, -1:]  # (B, 1)
        token = ops.sum(ops.cast(sums <= drawn, "int32"), axis=-1)  # (B,)
        if ids is not None:
            token = ops.take_along_axis(ids, token[:, None], axis=-1)[:, 0]
        return token, None, found.extra

    def keep(self, p: Tensor) -> Tensor:
        """`p` with 0 for tokens not to draw; for subclasses.

        Args:
            p: float32 `(B, K)`, proportional to the probabilities; 1 for the best token.
        """
        return p
