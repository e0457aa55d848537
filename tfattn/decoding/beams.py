"""Beam search: the best few beginnings of each sentence, carried along together."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.arguments import Ids
from tfattn.decoding.best import best_tokens, top_k
from tfattn.decoding.diverse import DiverseBeams
from tfattn.decoding.plan import Plan, planned
from tfattn.decoding.rules.base import Rule, counted
from tfattn.decoding.rules.required import RequiredTokens
from tfattn.decoding.search import Found, Search
from tfattn.decoding.state import take_rows
from tfattn.decoding.trace import BeamTrace, Candidates, new_trace, traced, whole_trace

__all__ = ["Hypotheses", "beam_search", "plan_beams"]

_NO_SCORE = float("-inf")  # of a beam or a hypothesis that does not exist


class Hypotheses(NamedTuple):
    """What `beam_search` found for each sentence, the best first.

    Attributes:
        tokens: int32 `(B, N, L)`, up to the end token (included), then padding. There is no end
            token where `max_length` came first.
        scores: float32 `(B, N)`, sums of log-probabilities, divided by length ** length_penalty.
            Where fewer than N hypotheses exist, the score is -inf and the tokens are padding.
        state: None; with `return_state`, the step's state: B·N rows, those of a sentence together,
            in the order of `tokens`.
        trace: None; with `return_trace`, a `BeamTrace` of every step.
    """

    tokens: Tensor
    scores: Tensor
    state: Any = None
    trace: BeamTrace | None = None


def beam_search(
    step: Step,
    state: Any,
    batch_size: int | Tensor,
    max_length: int | Sequence[int],
    num_beams: int = 4,
    length_penalty: float = 1.0,
    num_results: int = 1,
    begin_id: int = 2,
    end_id: int = 3,
    padding_id: int = 0,
    return_state: bool = False,
    rules: Sequence[Rule] = (),
    diverse: DiverseBeams | None = None,
    return_trace: bool = False,
) -> Hypotheses:
    """Finds hypotheses with high scores by beam search.

        score = Σ log p(token | the tokens before it) / length ** length_penalty

    The end token counts in the sum and in the length. After every step the `num_beams` best
    hypotheses of each sentence are kept. One that has ended keeps its score, and stays among them
    until better ones replace it. The search of a sentence stops when no open hypothesis can still
    get a better score. At `max_length` open hypotheses count as ended, with their present scores,
    so the best one may lack an end token. With one beam this is greedy search. Compiled like
    `greedy_search`; another length penalty compiles nothing new.

    Args:
        step, state, batch_size, max_length: see `greedy_search`. `state` has one row per sentence;
            the search repeats it for the beams.
        num_beams: positive int K, hypotheses that are kept for each sentence.
        length_penalty: number of at least 0. 0 ranks by the sum, which favours short sentences; 1
            ranks by the mean.
        num_results: positive int N, at most `num_beams`: hypotheses to return for each sentence.
        begin_id, end_id, padding_id: ints of at least 0.
        return_state: whether to return the state of each result too, as it was when the result
            ended.
        rules: see `greedy_search`. A score is the sum of the adjusted log-probabilities.
        diverse: `DiverseBeams`, for groups of beams that differ.
        return_trace: whether to return what happened to the beams at every step, for teaching and
            for looking into a search.
    Returns:
        `Hypotheses`: tokens int32 `(B, N, max_length)`, scores float32 `(B, N)`, the best first,
        state and trace.
    Raises:
        ValueError: an argument is out of its range; the state does not have `batch_size` rows, or a
            `Past` has fewer than `max_length` positions; the groups do not divide the beams; the
            rules do not fit, or leave a sentence no hypothesis.
    Example: 4 or 5 follows the begin token 2; the end token 3 always follows 5.
        >>> table = np.full((6, 6), -np.inf, "float32")
        >>> table[2, 4], table[2, 5], table[5, 3] = np.log([0.6, 0.4, 1.0])
        >>> table[4, 3], table[4, 4] = np.log([0.5, 0.5])
        >>> def step(tokens, position, state):
        ...     last = keras.ops.take(tokens, position, axis=1)
        ...     return keras.ops.take(table, last, axis=0), state
        >>> found = beam_search(
        ...     step, (), batch_size=1, max_length=3, num_beams=3, length_penalty=0.0, num_results=2
        ... )
        >>> print(np.asarray(found.tokens))
        [[[5 3 0]
          [4 3 0]]]
        >>> print(np.exp(np.asarray(found.scores)).round(2))
        [[0.4 0.3]]

    Source: the score is after Wu et al. 2016, arXiv:1609.08144, section 7; differs from it in that
    the length itself is raised to the power. Its coverage penalty is a rule,
    `tfattn.rules.CoveragePenalty`.
    """
    plan = plan_beams(
        step=step,
        state=state,
        batch_size=batch_size,
        max_length=max_length,
        num_beams=num_beams,
        length_penalty=length_penalty,
        num_results=num_results,
        begin_id=begin_id,
        end_id=end_id,
        padding_id=padding_id,
        return_state=return_state,
        rules=rules,
        diverse=diverse,
        return_trace=return_trace,
    )
    results, state = plan.run()
    shape = (batch_size, num_results)
    tokens = ops.reshape(results["tokens"], (*shape, plan.start.tokens.shape[1] - 1))
    scores = ops.reshape(results["scores"], shape)
    return Hypotheses(tokens, scores, state, results.get("trace"))


def plan_beams(
    step: Step,
    state: Any,
    batch_size: int | Tensor,
    max_length: int | Sequence[int],
    num_beams: int = 4,
    length_penalty: float = 1.0,
    num_results: int = 1,
    begin_id: int = 2,
    end_id: int = 3,
    padding_id: int = 0,
    return_state: bool = False,
    rules: Sequence[Rule] = (),
    diverse: DiverseBeams | None = None,
    return_trace: bool = False,
) -> Plan:
    """What `beam_search` runs."""
    who = "beam_search"
    _checks.positive_int(who, "num_beams", num_beams)
    _checks.positive_int(who, "num_results", num_results)
    if num_results > num_beams:
        _checks.fail(who, "num_results", f"be at most `num_beams`={num_beams}", num_results)
    _checks.non_negative_number(who, "length_penalty", length_penalty)
    if diverse is not None:
        if not isinstance(diverse, DiverseBeams):
            _checks.fail(who, "diverse", "be a DiverseBeams, or None", diverse)
        _checks.divides(who, "diverse", diverse.groups, "num_beams", num_beams)
    _checks.boolean(who, "return_trace", return_trace)
    options = {
        "width": int(num_beams),
        "num_results": int(num_results),
        "groups": None if diverse is None else diverse.groups,
        "has_trace": return_trace,
    }

    def tensors(length):
        strength = 0.0 if diverse is None else diverse.strength
        return {
            "length_penalty": ops.convert_to_tensor(length_penalty, dtype="float32"),
            "strength": ops.convert_to_tensor(strength, dtype="float32"),
        }

    return planned(
        who,
        _BeamSearch,
        options,
        tensors,
        step=step,
        state=state,
        batch_size=batch_size,
        max_length=max_length,
        ids=Ids(begin_id, end_id, padding_id),
        return_state=return_state,
        rules=rules,
    )


@dataclasses.dataclass(kw_only=True)
class _BeamSearch(Search):
    width: int
    num_results: int
    groups: int | None
    has_trace: bool
    length_penalty: Tensor
    strength: Tensor

    sums = True

    def start(self, batch: int | Tensor) -> dict[str, Tensor]:
        return {"sums": ops.zeros((batch,)), "lengths": ops.zeros((batch,))}

    def choose(
        self, logits: Tensor, position: Tensor, found: Found, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        logits = ops.cast(logits, "float32")
        beams = self._beams(found)
        if self.groups is None:
            candidates, chosen = self._choose(logits, position, found, beams, width)
        else:
            candidates, chosen = self._choose_by_groups(logits, position, beams, width)
        count = ops.shape(candidates.tokens)[1]  # M, of each parent as many
        sentences = ops.arange(ops.shape(chosen)[0], dtype="int32")[:, None]
        places = ops.reshape(chosen + sentences * count, (-1,))  # (B·K,)
        rows = places // (count // width)
        sums, tokens = (
            ops.take(ops.reshape(each, (-1,)), places)
            for each in (candidates.sums, candidates.tokens)
        )
        # The token of a beam that does not exist may lie outside of the vocabulary.
        tokens = ops.where(sums == _NO_SCORE, self.settings.padding_id, tokens)
        own = {"sums": sums, "lengths": take_rows(beams.lengths, rows)}
        if self.has_trace:
            own["trace"] = self._traced(found, position, candidates, chosen, rows, tokens, width)
        return tokens, rows, own

    def _choose(
        self, logits: Tensor, position: Tensor, found: Found, beams: "_Beams", width: int
    ) -> tuple[Candidates, Tensor]:
        """(Candidates `(B, M)`, int32 `(B, K)`, the places of those that are chosen)."""
        # Of one beam no more than K can go on.
        gains, tokens = best_tokens(logits, self.width, normalized=bool(self.rules))  # (R, K)
        written = found.tokens[:, :-1]
        for rule, state in self._required(found):
            gains, tokens = rule.more_candidates(gains, tokens, logits, written, position, state)
        gains = _going_on(gains, found.ended)
        sums = beams.sums[:, None] + gains  # (R, N)
        each = tokens, sums, self._scores(tokens, sums, position, beams)
        shape = (-1, width * ops.shape(tokens)[1])
        candidates = Candidates(*(ops.reshape(tensor, shape) for tensor in each))
        required = self._required(found)
        if not required:
            return candidates, ops.cast(top_k(candidates.scores, self.width)[1], "int32")
        met = sum(rule.tokens_met(tokens, written, position, state) for rule, state in required)
        most = sum(rule.count * rule.width for rule, _ in required)
        # The best that has ended is a group of its own: open beams with the same tokens may score
        # more now and less at their ends.
        ends = ops.logical_or(found.ended[:, None], tokens == self.settings.end_id)
        ended = ops.where(ops.reshape(ends, shape), candidates.scores, _NO_SCORE)
        is_best = ops.logical_and(ended > _NO_SCORE, ended == ops.max(ended, 1, keepdims=True))
        group = ops.where(is_best, most + 1, ops.reshape(met, shape))
        return candidates, _in_turns(candidates.scores, group, most + 2, self.width)

    def _choose_by_groups(
        self, logits: Tensor, position: Tensor, beams: "_Beams", width: int
    ) -> tuple[Candidates, Tensor]:
        """`_choose` for groups, one after the other; in each, candidates of its own beams."""
        size = ops.shape(logits)[1]
        k, per_beam = self.width // self.groups, self.width // self.groups
        if not self.rules:
            logits = _log_softmax(logits)
        logits = ops.reshape(logits, (-1, width, size))  # (B, width, V)
        used = ops.zeros_like(logits[:, 0])  # (B, V)
        parts, chosen, offset = [], [], 0
        for number in range(self.groups):
            here = slice(0, 1) if width == 1 else slice(number * k, (number + 1) * k)
            group = beams.of(here, width)
            own = logits[:, here]  # (B, k, V)
            penalised = ops.reshape(own - self.strength * used[:, None], (-1, size))
            ranks, tokens = best_tokens(penalised, per_beam, normalized=True)  # (B·k, k)
            inside = ops.minimum(tokens, size - 1)
            gains = ops.take_along_axis(ops.reshape(own, (-1, size)), inside, axis=1)
            gains = ops.where(ranks == _NO_SCORE, _NO_SCORE, gains)
            ranks, gains = (_going_on(each, group.ended) for each in (ranks, gains))
            sums = group.sums[:, None] + gains
            scores, ranks = (
                self._scores(tokens, group.sums[:, None] + each, position, group)
                for each in (gains, ranks)
            )
            shape = (ops.shape(logits)[0], own.shape[1] * per_beam)
            part = Candidates(*(ops.reshape(each, shape) for each in (tokens, sums, scores)))
            places = ops.cast(top_k(ops.reshape(ranks, shape), k)[1], "int32")  # (B, k)
            written = ops.take_along_axis(part.tokens, places, axis=1)
            ended = ops.repeat(ops.reshape(group.ended, (shape[0], -1)), per_beam, axis=1)
            ended = ops.take_along_axis(ended, places, axis=1)
            exists = ops.take_along_axis(part.sums, places, axis=1) > _NO_SCORE
            new = ops.logical_and(exists, ops.logical_not(ended))
            used = used + counted(written, new, size)
            parts.append(part)
            chosen.append(places + offset)
            offset += shape[1]
        together = (ops.concatenate(each, axis=1) for each in zip(*parts, strict=True))
        return Candidates(*together), ops.concatenate(chosen, axis=1)

    def _required(self, found: Found) -> list[tuple[RequiredTokens, dict[str, Tensor]]]:
        """The rules by which beams are kept side by side, with their states."""
        if not self.rules:
            return []
        pairs = zip(self.rules, found.ruled.states, strict=True)
        return [(rule, state) for rule, state in pairs if isinstance(rule, RequiredTokens)]

    def _beams(self, found: Found) -> "_Beams":
        at_end = found.ruled.at_end if self._has_score_at_end else None
        lengths = found.own["lengths"] + ops.where(found.ended, 0.0, 1.0)
        return _Beams(found.own["sums"], lengths, found.ended, found.limits, at_end)

    @property
    def _has_score_at_end(self) -> bool:
        return any(rule.reads is not None for rule in self.rules)

    def _scores(self, tokens: Tensor, sums: Tensor, position: Tensor, beams: "_Beams") -> Tensor:
        """Scores `(R, N)` by which candidates are ranked."""
        scores = sums / ops.power(beams.lengths[:, None], self.length_penalty)
        if beams.at_end is None:
            return scores
        ends = ops.logical_or(beams.ended, position + 1 >= beams.limits)[:, None]
        ends = ops.logical_or(ends, tokens == self.settings.end_id)
        return scores + ops.where(ends, beams.at_end[:, None], 0.0)

    def done(self, found: Found) -> Tensor:
        sums, ended, limits, scores = (
            ops.reshape(tensor, (-1, self.width))  # (B, K)
            for tensor in (found.own["sums"], found.ended, found.limits, self.scores(found))
        )
        still_open = ops.logical_and(ops.logical_not(ended), sums > _NO_SCORE)
        none_open = ops.logical_not(ops.any(still_open, axis=1))
        if not all(rule.lowers_only for rule in self.rules):
            return ops.repeat(none_open, self.width)
        # A sum can only fall, so no continuation of an open beam scores more than the beam's sum
        # does at the greatest length.
        bounds = sums / ops.power(ops.cast(limits, "float32"), self.length_penalty)
        best_open = ops.max(ops.where(still_open, bounds, _NO_SCORE), axis=1)
        results = ops.top_k(ops.where(ended, scores, _NO_SCORE), self.num_results)[0]  # (B, N)
        done = ops.logical_or(best_open < results[:, -1], none_open)  # (B,)
        return ops.repeat(done, self.width)

    def scores(self, found: Found) -> Tensor:
        """Scores `(R,)` of the hypotheses, as long as they are now."""
        scores = found.own["sums"] / ops.power(found.own["lengths"], self.length_penalty)
        if not self._has_score_at_end:
            return scores
        return scores + ops.where(found.ended, found.ruled.at_end, 0.0)

    def stuck(self, found: Found) -> Tensor:
        return ops.all(ops.reshape(found.own["sums"], (-1, self.width)) == _NO_SCORE, axis=1)

    def alive(self, found: Found) -> Tensor:
        return found.own["sums"] > _NO_SCORE

    def results(self, found: Found) -> tuple[dict[str, Any], Tensor]:
        batch = ops.shape(found.tokens)[0] // self.width
        first = ops.arange(batch, dtype="int32") * self.width  # (B,)
        if self.groups is None and not self._required(found):
            # The beams of a sentence stand in the order of their scores.
            best = ops.arange(self.num_results, dtype="int32")
        else:
            scores = ops.reshape(self.scores(found), (-1, self.width))
            best = ops.cast(top_k(scores, self.num_results)[1], "int32")  # (B, N)
        rows = ops.reshape(first[:, None] + best, (-1,))  # (B·N,)
        scores = take_rows(self.scores(found), rows)
        tokens = take_rows(found.tokens, rows)
        tokens = ops.where((scores == _NO_SCORE)[:, None], self.settings.padding_id, tokens)
        results = {"tokens": tokens[:, 1:], "scores": scores}
        if self.has_trace:
            results["trace"] = whole_trace(found.own["trace"], self.width)
        return results, rows

    def _traced(
        self,
        found: Found,
        position: Tensor,
        candidates: Candidates,
        chosen: Tensor,
        rows: Tensor,
        tokens: Tensor,
        width: int,
    ) -> dict[str, Tensor]:
        """The trace with this step, in which `rows` go on with `tokens`."""
        trace, done = found.own.get("trace"), found.done
        if trace is None:  # before the first step
            per_beam = self.width // (self.groups or 1)
            if self.groups is None:
                per_beam += sum(rule.count for rule, _ in self._required(found))
            trace = new_trace(found.tokens, self.width, per_beam)
            done = ops.repeat(done, self.width)
        ended, limits = take_rows(found.ended, rows), take_rows(found.limits, rows)
        ends = ops.logical_or(tokens == self.settings.end_id, position + 1 >= limits)
        of_beams = {
            "tokens": ops.where(ended, self.settings.padding_id, tokens),
            "parents": rows % width,
            "scores": ops.reshape(ops.take_along_axis(candidates.scores, chosen, axis=1), (-1,)),
            "ended": ops.logical_or(ended, ends),
        }
        return traced(trace, position, done, candidates, chosen, of_beams)


class _Beams(NamedTuple):
    """What candidates are made of, `(R,)`."""

    sums: Tensor
    lengths: Tensor  # with the next token
    ended: Tensor
    limits: Tensor
    at_end: Tensor | None  # what rules add to the score of one that ends

    def of(self, here: slice, width: int) -> "_Beams":
        """Some beams of each sentence, out of `width`."""

        def some(tensor):
            return ops.reshape(ops.reshape(tensor, (-1, width))[:, here], (-1,))

        return _Beams(*(None if tensor is None else some(tensor) for tensor in self))


def _going_on(gains: Tensor, ended: Tensor) -> Tensor:
    """`gains` `(R, N)`, but what has ended goes on as itself, and as nothing else."""
    as_itself = ops.where(ops.arange(ops.shape(gains)[1]) == 0, 0.0, _NO_SCORE)
    return ops.where(ended[:, None], as_itself, gains)


def _log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities; -inf in a row without any score."""
    log_sum = ops.logsumexp(logits, axis=-1, keepdims=True)
    return logits - ops.where(log_sum == _NO_SCORE, 0.0, log_sum)


def _in_turns(scores: Tensor, group: Tensor, groups: int, count: int) -> Tensor:
    """Places `(B, count)` of candidates `(B, M)`: the best of each group, then the second best of
    each, and so on. The first turn begins with the highest group; every other one, and a single
    place, with the best score.

    Args:
        group: int32 `(B, M)`, below `groups`.
    """
    number = ops.shape(scores)[1]
    scores, order = top_k(scores, number)  # the best first
    is_of = ops.one_hot(ops.take_along_axis(group, order, axis=1), groups, dtype="int32")
    turn = ops.sum(is_of * ops.cumsum(is_of, axis=1), axis=-1)  # (B, M)
    # What comes first has the least; groups in the first turn have less than any second one has.
    if count > 1:
        of_group = ops.take_along_axis(group, order, axis=1)
        turn = ops.where(turn == 1, 1 - ops.cast(of_group, turn.dtype), turn)
    turn = ops.where(scores == _NO_SCORE, number + 1, turn)
    first = top_k(-ops.cast(turn, "float32"), count)[1]
    return ops.cast(ops.take_along_axis(order, first, axis=1), "int32")
