"""Beam search with a pool of ended hypotheses beside the beams, as in `transformers`."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.beams import NO_SCORE, RankedSearch, best_candidates
from tfattn.decoding.best import best_tokens, top_k
from tfattn.decoding.loop import SearchState
from tfattn.decoding.rules.base import Rule


@keras.saving.register_keras_serializable("tfattn")
class PooledBeamSearch(RankedSearch):
    """Beam search that keeps ended hypotheses in a pool, as `generate` of `transformers` does.

    `BeamSearch` lets ended hypotheses compete with open ones for its K beams. Here K open beams
    always continue, and a pool keeps the K best ended hypotheses. A hypothesis enters it if it
    ends among the K best of all candidates. At `max_length` each beam ends with the end token, at
    no cost, as with `forced_eos_token_id`.

    The search of a sentence stops when the pool is full and the best beam, with its present length,
    scores no more than the worst of the pool: a heuristic, since a longer hypothesis may score
    more. Scores are those of `BeamSearch`.

    Args:
        num_beams: positive int K.
        length_penalty: number of at least 0, as in `BeamSearch`.
        early_stopping: whether to stop as soon as the pool is full.
        rules, jit_compile: see `tfattn.decoding.Search`.
    Returns:
        When called, `Hypotheses`: tokens int32 `(B, K, L)`, scores float32 `(B, K)`, the best
        first; no state.
    Raises:
        ValueError: an argument is out of its range; when called: the rules leave a sentence no
            hypothesis; `return_state` is True.
    Example: whatever the token before it, token 3, the end, follows at 0.6, and 4 at 0.4.
        >>> odds = np.log(np.array([[1e-9, 1e-9, 1e-9, 0.6, 0.4]], "float32"))
        >>> def step(tokens, position, state):
        ...     return keras.ops.repeat(odds, tokens.shape[0], axis=0), state
        >>> search = tfattn.decoding.PooledBeamSearch(num_beams=2, length_penalty=0.0)
        >>> found = search(step, (), batch_size=1, max_length=4)
        >>> print(np.asarray(found.tokens))
        [[[3 0 0 0]
          [4 3 0 0]]]

    Source: `transformers` 5, generation with `num_beams`; its stopping is discussed in
    huggingface/transformers, pull request 20901.
    """

    is_final_at_end = True

    def __init__(
        self,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        early_stopping: bool = False,
        rules: Sequence[Rule] = (),
        jit_compile: bool = False,
    ):
        super().__init__(num_beams, length_penalty, rules, jit_compile)
        who = type(self).__name__
        self.early_stopping = _checks.boolean(who, "early_stopping", early_stopping)

    def start(self, batch_size: int | Tensor, length: int) -> dict[str, Tensor]:
        return {"sums": ops.zeros((batch_size,), "float32")}

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return self.num_beams

    def choose(
        self, logits: Tensor, position: Tensor, found: SearchState, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        if self.return_state:
            _checks.fail(type(self).__name__, "return_state", "be False", True)
        is_last = position + 1 >= found.limits  # (R,)
        sums, tokens, rows = self._candidates(logits, found, is_last, width)  # (B, 2K)
        ends = tokens == self.end_id
        if ops.is_tensor(found.prompt_continues):
            within = ops.take(found.prompt_continues, rows)
            ends = ops.logical_and(ends, ops.logical_not(within))
        ends = ops.logical_or(ends, ops.take(is_last, rows))
        penalty = ops.power(ops.cast(position + 1, "float32"), self.length_penalty)
        best = slice(0, self.width)
        ended = ops.where(ends, sums, NO_SCORE)[:, best] / penalty  # (B, K)
        pool, scores = self._pool(found, position, ended, tokens[:, best], rows[:, best], width)
        sums, indices = top_k(ops.where(ends, NO_SCORE, sums), self.width)  # (B, K)
        rows, tokens = (
            ops.reshape(ops.take_along_axis(each, indices, axis=1), (-1,))
            for each in (rows, tokens)
        )
        sums = ops.reshape(sums, (-1,))
        own = {"sums": sums, "bounds": sums / penalty, "pool": pool, "scores": scores}
        return self._token_of(tokens, sums), rows, own

    def _candidates(
        self, logits: Tensor, found: SearchState, is_last: Tensor, width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(Sums, tokens, parent rows) `(B, 2K)` of the best candidates: up to K of them may end."""
        count = 2 * self.width
        is_other = ops.arange(ops.shape(logits)[1], dtype="int32") != self.end_id
        logits = ops.cast(logits, "float32")
        end = ops.where(is_other, NO_SCORE, ops.zeros_like(logits))
        if ops.is_tensor(found.prompted):  # a prompt stays as it is
            is_last = ops.logical_and(is_last, ops.logical_not(found.prompted))
        logits = ops.where(is_last[:, None], end, logits)
        gains, tokens = best_tokens(logits, count)  # (R, 2K)
        closed = ops.logical_or(found.done, found.ended)[:, None]
        sums = ops.where(closed, NO_SCORE, found.extra["sums"][:, None] + gains)
        indices = best_candidates(sums, width, count)
        sums, tokens = (ops.take(ops.reshape(each, (-1,)), indices) for each in (sums, tokens))
        return sums, tokens, indices // count

    def _pool(
        self,
        found: SearchState,
        position: Tensor,
        ended: Tensor,
        tokens: Tensor,
        rows: Tensor,
        width: int,
    ) -> tuple[Tensor, Tensor]:
        """The pool after this step: tokens `(B·K, 1 + L)`, scores `(B·K,)`, the best first."""
        length = ops.shape(found.tokens)[1]
        here = ops.arange(length, dtype="int32") == position + 1
        pooled = ops.take(found.tokens, rows, axis=0)  # (B, K, 1 + L)
        pooled = ops.where(here, tokens[..., None], pooled)
        if "pool" in found.extra:
            before = ops.reshape(found.extra["pool"], ops.shape(pooled))
            pooled = ops.concatenate([before, pooled], axis=1)
            before = ops.reshape(found.extra["scores"], ops.shape(ended))
            ended = ops.concatenate([before, ended], axis=1)  # (B, 2K)
        scores, indices = top_k(ended, self.width)
        pooled = ops.take_along_axis(pooled, ops.cast(indices, "int32")[..., None], axis=1)
        return ops.reshape(pooled, (-1, length)), ops.reshape(scores, (-1,))

    def done(self, found: SearchState) -> Tensor:
        bounds, scores = (
            ops.reshape(found.extra[name], (-1, self.width)) for name in ("bounds", "scores")
        )
        worst = scores[:, -1]
        done = ops.logical_not(bounds[:, 0] > worst)  # (B,)
        if self.early_stopping:
            done = ops.logical_or(done, worst > NO_SCORE)
        return ops.repeat(done, self.width)

    def results(self, found: SearchState) -> tuple[dict[str, Any], Tensor | None]:
        return self._ranked(found.extra["pool"], found.extra["scores"]), None
