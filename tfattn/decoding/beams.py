"""Beam search: the best few hypotheses of each sentence, extended in parallel."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.best import best_tokens, top_k
from tfattn.decoding.candidates import NO_SCORE, Beams, keep_ended, round_robin, with_proposed
from tfattn.decoding.diverse import DiverseBeams, choose_by_groups
from tfattn.decoding.found import Found
from tfattn.decoding.rules.base import Rule
from tfattn.decoding.search import Search
from tfattn.decoding.state import take_rows
from tfattn.decoding.trace import BeamTrace, Candidates, by_sentence, empty_trace, with_step


class Hypotheses(NamedTuple):
    """The hypotheses of each sentence that `BeamSearch` found, the best first.

    Attributes:
        tokens: int32 `(B, N, L)`, up to the end token (included), then padding. A hypothesis of
            `max_length` tokens may lack the end token.
        scores: float32 `(B, N)`, sums of log-probabilities, divided by length ** length_penalty.
            Where fewer than N hypotheses exist, the score is -inf and the tokens are padding.
        state: None; with `return_state`, the step's state: B·N rows, in the order of `tokens`.
        trace: None; with `return_trace`, a `BeamTrace` of every step.
    """

    tokens: Tensor
    scores: Tensor
    state: Any = None
    trace: BeamTrace | None = None


class RankedSearch(Search):
    """A search with beams, which returns `Hypotheses`."""

    sums = True
    num_beams: int

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

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.num_beams


@keras.saving.register_keras_serializable("tfattn")
class BeamSearch(RankedSearch):
    """Finds hypotheses with high scores by beam search.

        score = Σ log p(token | the tokens before it) / length ** length_penalty

    The end token counts in the sum and in the length. After every step the search keeps the
    `num_beams` best hypotheses of each sentence. A hypothesis that has ended keeps its score, and
    stays until better hypotheses replace it. The search of a sentence stops when no open hypothesis
    can still get a better score. At `max_length` open hypotheses count as ended, with their present
    scores, so the best hypothesis may lack an end token. With one beam this is greedy search. A new
    length penalty or strength of `diverse` compiles nothing new.

    Args:
        num_beams: positive int K, hypotheses that are kept for each sentence.
        length_penalty: number of at least 0. 0 ranks by the sum, which favors short sentences; 1 by
            the mean.
        num_results: positive int N, at most `num_beams`: hypotheses to return for each sentence.
        diverse: `DiverseBeams`, for groups of beams that differ.
        return_trace: whether to return the beams of every step, for teaching and debugging.
        rules, jit_compile: see `tfattn.decoding.Search`, also for the arguments and errors of a
            call. The state has one row per sentence; the search repeats it for the beams. A score
            is the sum of the adjusted log-probabilities.
    Returns:
        When called, `Hypotheses`: tokens int32 `(B, N, L)`, scores float32 `(B, N)`, the best
        first, state and trace. With `return_state`, the state of each result as it was when the
        result ended.
    Raises:
        ValueError: an argument is out of its range; the groups do not divide the beams; `rules`
            contains an object that is not a rule; when called: the rules leave a sentence no
            hypothesis.
    Example: 4 or 5 follows the begin token 2; the end token 3 always follows 5.
        >>> table = np.full((6, 6), -np.inf, "float32")
        >>> table[2, 4], table[2, 5], table[5, 3] = np.log([0.6, 0.4, 1.0])
        >>> table[4, 3], table[4, 4] = np.log([0.5, 0.5])
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
    length itself is raised to the power. Its coverage penalty is `tfattn.rules.CoveragePenalty`.
    """

    tensors = ("length_penalty", "strength")

    def __init__(
        self,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        num_results: int = 1,
        diverse: DiverseBeams | None = None,
        return_trace: bool = False,
        rules: Sequence[Rule] = (),
        jit_compile: bool = False,
    ):
        super().__init__(rules, jit_compile)
        who = type(self).__name__
        self.num_beams = _checks.positive_int(who, "num_beams", num_beams)
        self.num_results = _checks.positive_int(who, "num_results", num_results)
        if num_results > num_beams:
            _checks.fail(who, "num_results", f"be at most `num_beams`={num_beams}", num_results)
        self.length_penalty = _checks.non_negative_number(who, "length_penalty", length_penalty)
        if diverse is not None:
            if not isinstance(diverse, DiverseBeams):
                _checks.fail(who, "diverse", "be a DiverseBeams, or None", diverse)
            _checks.divides(who, "diverse", diverse.groups, "num_beams", num_beams)
        self.groups = None if diverse is None else diverse.groups
        self.strength: Any = None if diverse is None else float(diverse.strength)
        self.return_trace = _checks.boolean(who, "return_trace", return_trace)

    @property
    def diverse(self) -> DiverseBeams | None:
        return None if self.groups is None else DiverseBeams(self.groups, self.strength)

    def start(self, batch_size: int | Tensor, length: int) -> dict[str, Tensor]:
        return {name: ops.zeros((batch_size,), "float32") for name in ("sums", "lengths")}

    def answer(self, results: dict[str, Any], batch_size: int | Tensor, length: int) -> Hypotheses:
        shape = (batch_size, self.num_results)
        tokens = ops.reshape(results["tokens"], (*shape, length))
        scores = ops.reshape(results["scores"], shape)
        return Hypotheses(tokens, scores, results.get("state"), results.get("trace"))

    def choose(
        self, logits: Tensor, position: Tensor, found: Found, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        logits = ops.cast(logits, "float32")
        beams = self._beams(found)
        if self.groups is None:
            candidates, chosen = self._choose(logits, position, found, beams, width)
        else:
            candidates, chosen = choose_by_groups(
                logits,
                beams,
                functools.partial(self._scores, position=position),
                (self.num_beams, self.groups, self.strength),
                width,
            )
        count = ops.shape(candidates.tokens)[1]  # M, the same number from each parent
        sentences = ops.arange(ops.shape(chosen)[0], dtype="int32")[:, None]
        indices = ops.reshape(chosen + sentences * count, (-1,))  # (B·K,)
        rows = indices // (count // width)
        sums, tokens = (
            ops.take(ops.reshape(each, (-1,)), indices)
            for each in (candidates.sums, candidates.tokens)
        )
        # The token of a beam that does not exist may lie outside of the vocabulary.
        tokens = ops.where(sums == NO_SCORE, self.padding_id, tokens)
        own = {"sums": sums, "lengths": take_rows(beams.lengths, rows)}
        if self.return_trace:
            own["trace"] = self._trace_step(
                found, position, candidates, chosen, rows, tokens, width
            )
        return tokens, rows, own

    def _choose(
        self, logits: Tensor, position: Tensor, found: Found, beams: Beams, width: int
    ) -> tuple[Candidates, Tensor]:
        """(Candidates `(B, M)`, int32 `(B, K)`, the indices of the chosen candidates)."""
        gains, tokens = best_tokens(logits, self.width)  # (R, K): K are chosen per sentence
        written = found.tokens[:, :-1]
        pairs = list(zip(self.rules, found.rule_state.states if self.rules else (), strict=True))
        for rule, state in pairs:
            if (proposed := rule.proposed(written, position, state)) is not None:
                gains, tokens = with_proposed(gains, tokens, logits, *proposed)
        gains = keep_ended(gains, found.ended)
        sums = beams.sums[:, None] + gains  # (R, N)
        each = tokens, sums, self._scores(tokens, sums, beams, position)
        shape = (-1, width * ops.shape(tokens)[1])
        candidates = Candidates(*(ops.reshape(tensor, shape) for tensor in each))
        if not self._has_levels:
            return candidates, ops.cast(top_k(candidates.scores, self.width)[1], "int32")
        pairs = [(rule, state) for rule, state in pairs if rule.levels > 1]
        level = sum(rule.level(tokens, written, position, state) for rule, state in pairs)
        highest = sum(rule.levels - 1 for rule, _ in pairs)
        # The best ended candidate is a group by itself: open beams of its level may score more now
        # and less at their ends.
        ends = ops.logical_or(found.ended[:, None], tokens == self.end_id)
        ended = ops.where(ops.reshape(ends, shape), candidates.scores, NO_SCORE)
        # Compared by index: XLA may compute a score twice, with different roundings.
        best = ops.cast(ops.argmax(ended, axis=1), "int32")[:, None]
        is_best = ops.arange(ops.shape(ended)[1], dtype="int32") == best
        is_best = ops.logical_and(ended > NO_SCORE, is_best)
        group = ops.where(is_best, highest + 1, ops.reshape(level, shape))
        return candidates, round_robin(candidates.scores, group, highest + 2, self.width)

    def _beams(self, found: Found) -> Beams:
        at_end = found.rule_state.at_end if self._has_score_at_end else None
        lengths = found.own["lengths"] + ops.cast(ops.logical_not(found.ended), "float32")
        return Beams(found.own["sums"], lengths, found.ended, found.limits, at_end)

    @property
    def _has_levels(self) -> bool:
        """Whether the choice of beams depends on levels besides scores."""
        return self.groups is None and any(rule.levels > 1 for rule in self.rules)

    @property
    def _has_score_at_end(self) -> bool:
        return any(rule.reads is not None for rule in self.rules)

    def _scores(self, tokens: Tensor, sums: Tensor, beams: Beams, position: Tensor) -> Tensor:
        """Scores `(R, N)` by which candidates are ranked."""
        scores = sums / ops.power(beams.lengths[:, None], self.length_penalty)
        if beams.at_end is None:
            return scores
        ends = ops.logical_or(beams.ended, position + 1 >= beams.limits)[:, None]
        ends = ops.logical_or(ends, tokens == self.end_id)
        return scores + ops.where(ends, beams.at_end[:, None], 0.0)

    def done(self, found: Found) -> Tensor:
        sums, ended, limits, scores = (
            ops.reshape(tensor, (-1, self.width))  # (B, K)
            for tensor in (found.own["sums"], found.ended, found.limits, self.scores(found))
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

    def scores(self, found: Found) -> Tensor:
        """Scores `(R,)` of the hypotheses at their present lengths."""
        scores = found.own["sums"] / ops.power(found.own["lengths"], self.length_penalty)
        if not self._has_score_at_end:
            return scores
        return scores + ops.where(found.ended, found.rule_state.at_end, 0.0)

    def stuck(self, found: Found) -> Tensor:
        return ops.all(ops.reshape(found.own["sums"], (-1, self.width)) == NO_SCORE, axis=1)

    def alive(self, found: Found) -> Tensor:
        return found.own["sums"] > NO_SCORE

    def results(self, found: Found) -> tuple[dict[str, Any], Tensor]:
        batch = ops.shape(found.tokens)[0] // self.width
        first = ops.arange(batch, dtype="int32") * self.width  # (B,)
        if self.groups is None and not self._has_levels:
            # The beams of a sentence are sorted by score.
            best = ops.arange(self.num_results, dtype="int32")
        else:
            scores = ops.reshape(self.scores(found), (-1, self.width))
            best = ops.cast(top_k(scores, self.num_results)[1], "int32")  # (B, N)
        rows = ops.reshape(first[:, None] + best, (-1,))  # (B·N,)
        scores = take_rows(self.scores(found), rows)
        tokens = take_rows(found.tokens, rows)
        tokens = ops.where((scores == NO_SCORE)[:, None], self.padding_id, tokens)
        results = {"tokens": tokens[:, 1:], "scores": scores}
        if self.return_trace:
            results["trace"] = by_sentence(found.own["trace"], self.width)
        return results, rows

    def _trace_step(
        self,
        found: Found,
        position: Tensor,
        candidates: Candidates,
        chosen: Tensor,
        rows: Tensor,
        tokens: Tensor,
        width: int,
    ) -> dict[str, Tensor]:
        """The trace with this step, which extends `rows` by `tokens`."""
        trace, done = found.own.get("trace"), found.done
        if trace is None:  # before the first step
            per_beam = candidates.tokens.shape[1] // width
            if self.groups is not None:
                per_beam = self.width // self.groups
            trace = empty_trace(found.tokens, self.width, per_beam)
            done = ops.repeat(done, self.width)
        found = found.of_rows(rows)
        of_beams = {
            "tokens": ops.where(found.ended, self.padding_id, tokens),
            "parents": rows % width,
            "scores": ops.reshape(ops.take_along_axis(candidates.scores, chosen, axis=1), (-1,)),
            "ended": ops.logical_or(found.ended, self.ends(tokens, position, found)),
        }
        return with_step(trace, position, done, candidates, chosen, of_beams)
