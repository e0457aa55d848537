"""Beam search: the best few hypotheses of each sentence, extended in parallel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.best import best_tokens, top_k
from tfattn.decoding.loop import SearchState, take_rows
from tfattn.decoding.rules.base import Rule
from tfattn.decoding.search import Search

NO_SCORE = float("-inf")  # marks a beam or a hypothesis that does not exist


class Hypotheses(NamedTuple):
    """The hypotheses of each sentence that `BeamSearch` found, the best first.

    Attributes:
        tokens: int32 `(B, N, L)`, up to the end token (included), then padding. A hypothesis of
            `max_length` tokens may lack the end token.
        scores: float32 `(B, N)`, sums of log-probabilities, divided by length ** length_penalty.
            Where fewer than N hypotheses exist, the score is -inf and the tokens are padding.
        state: None; with `return_state`, the step's state: B·N rows, in the order of `tokens`.
    """

    tokens: Tensor
    scores: Tensor
    state: Any = None


class RankedSearch(Search):
    """A search with beams, which returns `Hypotheses`; it sums scores in `extra["sums"]`."""

    uses_log_probs = True
    tensors = ("length_penalty",)
    num_results: int

    if TYPE_CHECKING:

        def __call__(
            self,
            step: Step,
            state: Any,
            batch_size: int | Tensor,
            max_length: int | Sequence[int] | np.ndarray,
            begin_id: int = 2,
            end_id: int = 3,
            padding_id: int = 0,
            return_state: bool = False,
        ) -> Hypotheses: ...

    def __init__(
        self, num_beams: int, length_penalty: float, rules: Sequence[Rule], jit_compile: bool
    ):
        super().__init__(rules, jit_compile)
        who = type(self).__name__
        self.num_beams = _checks.positive_int(who, "num_beams", num_beams)
        self.length_penalty = _checks.non_negative_number(who, "length_penalty", length_penalty)

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.num_beams

    def answer(self, results: dict[str, Any], batch_size: int | Tensor, length: int) -> Hypotheses:
        shape = (batch_size, self.num_results)
        tokens = ops.reshape(results["tokens"], (*shape, length))
        scores = ops.reshape(results["scores"], shape)
        return Hypotheses(tokens, scores, results.get("state"))

    def alive(self, found: SearchState) -> Tensor:
        return found.extra["sums"] > NO_SCORE

    def _ranked(self, tokens: Tensor, scores: Tensor) -> dict[str, Tensor]:
        """The results, of rows with the best of each sentence first."""
        missing = scores == NO_SCORE
        tokens = ops.where(missing[:, None], self.padding_id, tokens)[:, 1:]
        stuck = ops.reshape(missing, (-1, self.num_results))[:, 0]
        return {"tokens": tokens, "scores": scores, "stuck": stuck}

    def _token_of(self, tokens: Tensor, sums: Tensor) -> Tensor:
        """`tokens` with padding for beams that do not exist, whose ids may be too high."""
        return ops.where(sums == NO_SCORE, self.padding_id, tokens)


def best_candidates(scores: Tensor, width: int, k: int) -> Tensor:
    """Indices `(B, k)` of each sentence's best candidates, among those `(R, C)` of all rows."""
    count = width * scores.shape[1]  # candidates of a sentence
    chosen = ops.cast(top_k(ops.reshape(scores, (-1, count)), k)[1], "int32")
    sentences = ops.arange(ops.shape(chosen)[0], dtype="int32")[:, None]
    return chosen + sentences * count


@keras.saving.register_keras_serializable("tfattn")
class BeamSearch(RankedSearch):
    """Finds hypotheses with high scores by beam search.

        score = Σ log p(token | the tokens before it) / length ** length_penalty

    The end token counts in the sum and in the length. After every step the search keeps the
    `num_beams` best hypotheses of each sentence. A hypothesis that has ended keeps its score, and
    stays until better hypotheses replace it. The search of a sentence stops when no open hypothesis
    can still get a better score. At `max_length` open hypotheses count as ended, with their present
    scores, so the best hypothesis may lack an end token. With one beam this is greedy search. A new
    length penalty compiles nothing new.

    Args:
        num_beams: positive int K, hypotheses that are kept for each sentence.
        length_penalty: number of at least 0. 0 ranks by the sum, which favors short sentences; 1 by
            the mean.
        num_results: positive int N, at most `num_beams`: hypotheses to return for each sentence.
        rules, jit_compile: see `tfattn.decoding.Search`, also for the arguments and errors of a
            call. The state has one row per sentence; the search repeats it for the beams. A score
            is the sum of the adjusted log-probabilities.
    Returns:
        When called, `Hypotheses`: tokens int32 `(B, N, L)`, scores float32 `(B, N)`, the best
        first, and state. With `return_state`, the state of each result as it was when the
        result ended.
    Raises:
        ValueError: an argument is out of its range; when called: the rules leave a sentence no
            hypothesis.
    Example: 4 or 5 follows the begin token 2; the end token 3 always follows 5.
        >>> table = np.full((6, 6), -np.inf, "float32")
        >>> table[[2, 2, 5, 4, 4], [4, 5, 3, 3, 4]] = np.log([0.6, 0.4, 1.0, 0.5, 0.5])
        >>> def step(tokens, position, state):
        ...     last = keras.ops.take(tokens, position, axis=1)
        ...     return keras.ops.take(table, last, axis=0), state
        >>> search = BeamSearch(num_beams=3, length_penalty=0.0, num_results=2)
        >>> found = search(step, (), batch_size=1, max_length=3)
        >>> print(np.asarray(found.tokens))
        [[[5 3 0]
          [4 3 0]]]
        >>> print(np.exp(np.asarray(found.scores)).round(2))
        [[0.4 0.3]]

    Source: the score after Wu et al. 2016, arXiv:1609.08144, section 7; differs from it in that the
    length itself is raised to the power.
    """

    def __init__(
        self,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        num_results: int = 1,
        rules: Sequence[Rule] = (),
        jit_compile: bool = False,
    ):
        super().__init__(num_beams, length_penalty, rules, jit_compile)
        who = type(self).__name__
        self.num_results = _checks.positive_int(who, "num_results", num_results)
        if num_results > num_beams:
            _checks.fail(who, "num_results", f"be at most `num_beams`={num_beams}", num_results)

    def start(self, batch_size: int | Tensor, length: int) -> dict[str, Tensor]:
        zeros = ops.zeros((batch_size,), "float32")
        return {"sums": zeros, "lengths": zeros}

    def choose(
        self, logits: Tensor, position: Tensor, found: SearchState, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        # K are chosen per sentence
        gains, tokens = best_tokens(ops.cast(logits, "float32"), self.width)  # (R, K)
        sums = found.extra["sums"][:, None] + _keep_ended(gains, found.ended)
        lengths = found.extra["lengths"] + ops.cast(ops.logical_not(found.ended), "float32")
        scores = sums / ops.power(lengths[:, None], self.length_penalty)
        indices = ops.reshape(best_candidates(scores, width, self.width), (-1,))  # (B·K,)
        sums, tokens = (ops.take(ops.reshape(each, (-1,)), indices) for each in (sums, tokens))
        rows = indices // self.width
        extra = {"sums": sums, "lengths": take_rows(lengths, rows)}
        return self._token_of(tokens, sums), rows, extra

    def done(self, found: SearchState) -> Tensor:
        sums, ended, limits, scores = (
            ops.reshape(tensor, (-1, self.width))  # (B, K)
            for tensor in (
                found.extra["sums"],
                found.ended,
                found.limits,
                self._present_scores(found),
            )
        )
        still_open = ops.logical_and(ops.logical_not(ended), sums > NO_SCORE)
        none_open = ops.logical_not(ops.any(still_open, axis=1))
        if not all(rule.lowers_only for rule in self.rules):
            return ops.repeat(none_open, self.width)
        # A sum can only fall: a continuation of an open beam scores at most the beam's present sum
        # at the greatest length.
        bounds = sums / ops.power(ops.cast(limits, "float32"), self.length_penalty)
        best_open = ops.max(ops.where(still_open, bounds, NO_SCORE), axis=1)
        results = ops.top_k(ops.where(ended, scores, NO_SCORE), self.num_results)[0]  # (B, N)
        done = ops.logical_or(best_open < results[:, -1], none_open)  # (B,)
        return ops.repeat(done, self.width)

    def _present_scores(self, found: SearchState) -> Tensor:
        return found.extra["sums"] / ops.power(found.extra["lengths"], self.length_penalty)

    def results(self, found: SearchState) -> tuple[dict[str, Any], Tensor]:
        batch = ops.shape(found.tokens)[0] // self.width
        first = ops.arange(batch, dtype="int32") * self.width  # (B,)
        # The beams of a sentence are sorted by score.
        best = ops.arange(self.num_results, dtype="int32")
        rows = ops.reshape(first[:, None] + best, (-1,))  # (B·N,)
        scores = take_rows(self._present_scores(found), rows)
        tokens = take_rows(found.tokens, rows)
        return self._ranked(tokens, scores), rows


def _keep_ended(gains: Tensor, ended: Tensor) -> Tensor:
    """`gains` `(R, K)` in which an ended beam has one candidate: itself, unchanged."""
    is_other = ops.arange(ops.shape(gains)[1], dtype="int32") > 0
    unchanged = ops.where(is_other, NO_SCORE, ops.zeros_like(gains))
    return ops.where(ended[:, None], unchanged, gains)
