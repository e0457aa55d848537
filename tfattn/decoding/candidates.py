"""What beam search does at each step: candidates, and those of them that are kept."""

import dataclasses
from typing import Any, NamedTuple

from keras import ops

from tfattn._types import Tensor
from tfattn.decoding.best import best_tokens, top_k
from tfattn.decoding.rules.base import Rule, counted
from tfattn.decoding.search import Found, Search
from tfattn.decoding.state import take_rows
from tfattn.decoding.trace import Candidates, new_trace, traced, whole_trace

__all__ = ["BeamSearch"]

_NO_SCORE = float("-inf")  # of a beam or a hypothesis that does not exist


@dataclasses.dataclass(kw_only=True)
class BeamSearch(Search):
    """Beams of each sentence, with or without groups.

    Attributes:
        width: beams of a sentence.
        num_results: of them, as many are returned.
        groups: of `DiverseBeams`, or None.
        has_trace: whether each step is noted.
        length_penalty, strength: float32 scalars.
    """

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
        gains, tokens = best_tokens(logits, self.width)  # (R, K)
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
        most = sum(rule.kinds - 1 for rule, _ in required)
        # The best that has ended is a group of its own: open beams with the same tokens may score
        # more now and less at their ends.
        ends = ops.logical_or(found.ended[:, None], tokens == self.settings.end_id)
        ended = ops.where(ops.reshape(ends, shape), candidates.scores, _NO_SCORE)
        # By its place: a score that XLA computes twice need not equal itself.
        best = ops.cast(ops.argmax(ended, axis=1), "int32")[:, None]
        is_best = ops.arange(ops.shape(ended)[1], dtype="int32") == best
        is_best = ops.logical_and(ended > _NO_SCORE, is_best)
        group = ops.where(is_best, most + 1, ops.reshape(met, shape))
        return candidates, _in_turns(candidates.scores, group, most + 2, self.width)

    def _choose_by_groups(
        self, logits: Tensor, position: Tensor, beams: "_Beams", width: int
    ) -> tuple[Candidates, Tensor]:
        """`_choose` for groups, one after the other; in each, candidates of its own beams."""
        size = ops.shape(logits)[1]
        k, per_beam = self.width // self.groups, self.width // self.groups
        logits = ops.reshape(logits, (-1, width, size))  # (B, width, V)
        used = ops.zeros_like(logits[:, 0])  # (B, V)
        parts, chosen, offset = [], [], 0
        for number in range(self.groups):
            here = slice(0, 1) if width == 1 else slice(number * k, (number + 1) * k)
            group = beams.of(here, width)
            own = logits[:, here]  # (B, k, V)
            penalised = ops.reshape(own - self.strength * used[:, None], (-1, size))
            ranks, tokens = best_tokens(penalised, per_beam)  # (B·k, k)
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

    def _required(self, found: Found) -> list[tuple[Rule, Any]]:
        """The rules by which beams are kept side by side, with their states."""
        if not self.rules:
            return []
        pairs = zip(self.rules, found.ruled.states, strict=True)
        return [(rule, state) for rule, state in pairs if rule.kinds > 1]

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
                per_beam += sum(rule.more for rule, _ in self._required(found))
            trace = new_trace(found.tokens, self.width, per_beam)
            done = ops.repeat(done, self.width)
        found = found.of_rows(rows)
        of_beams = {
            "tokens": ops.where(found.ended, self.settings.padding_id, tokens),
            "parents": rows % width,
            "scores": ops.reshape(ops.take_along_axis(candidates.scores, chosen, axis=1), (-1,)),
            "ended": ops.logical_or(found.ended, self.ends(tokens, position, found)),
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
