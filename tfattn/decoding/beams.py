"""Beam search: the best few beginnings of each sentence, carried along together."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.arguments import Settings, Start, checked_arguments
from tfattn.decoding.best import best_tokens, top_k
from tfattn.decoding.compiling import compiled
from tfattn.decoding.loop import decode
from tfattn.decoding.search import Found, Search
from tfattn.decoding.state import take_rows

__all__ = ["Hypotheses", "beam_search"]

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
    """

    tokens: Tensor
    scores: Tensor
    state: Any = None


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
    Returns:
        `Hypotheses`: tokens int32 `(B, N, max_length)`, scores float32 `(B, N)`, the best first,
        and state.
    Raises:
        ValueError: an argument is out of its range; the state does not have `batch_size` rows, or a
            `Past` has fewer than `max_length` positions.
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
    the length itself is raised to the power, and in having no coverage penalty.
    """
    who = "beam_search"
    _checks.positive_int(who, "num_beams", num_beams)
    _checks.positive_int(who, "num_results", num_results)
    if num_results > num_beams:
        _checks.fail(who, "num_results", f"be at most `num_beams`={num_beams}", num_results)
    _checks.non_negative_number(who, "length_penalty", length_penalty)
    ids = (begin_id, end_id, padding_id)
    settings, start, state = checked_arguments(
        who, step, state, batch_size, max_length, *ids, return_state
    )
    settings = (settings, int(num_beams), int(num_results))
    length_penalty = ops.convert_to_tensor(length_penalty, dtype="float32")
    tokens, scores, state = compiled(_beams, step, settings)(start, state, length_penalty)
    tokens = ops.reshape(tokens, (batch_size, num_results, start.tokens.shape[1] - 1))
    return Hypotheses(tokens, ops.reshape(scores, (batch_size, num_results)), state)


def _beams(
    step: Step,
    settings: tuple[Settings, int, int],
    start: Start,
    state: Any,
    length_penalty: Tensor,
) -> tuple[Tensor, Tensor, Any]:
    settings, num_beams, num_results = settings
    search = _BeamSearch(
        width=num_beams,
        num_results=num_results,
        length_penalty=length_penalty,
        padding_id=settings.padding_id,
    )
    found, state = decode(step, search, settings, start, state)
    # The beams of a sentence stand in the order of their scores.
    first = ops.arange(ops.shape(start.tokens)[0], dtype="int32") * num_beams  # (B,)
    rows = ops.reshape(first[:, None] + ops.arange(num_results, dtype="int32"), (-1,))  # (B·N,)
    scores = take_rows(search.scores(found), rows)
    tokens = take_rows(found.tokens, rows)
    tokens = ops.where((scores == _NO_SCORE)[:, None], settings.padding_id, tokens)
    state = keras.tree.map_structure(
        lambda leaf: take_rows(leaf, rows) if ops.is_tensor(leaf) else leaf, state
    )
    return tokens[:, 1:], scores, state


@dataclasses.dataclass(kw_only=True)
class _BeamSearch(Search):
    width: int
    num_results: int
    length_penalty: Tensor
    padding_id: int

    def start(self, batch: int | Tensor) -> dict[str, Tensor]:
        return {"sums": ops.zeros((batch,)), "lengths": ops.zeros((batch,))}

    def choose(
        self, logits: Tensor, position: Tensor, found: Found, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        k, ended = self.width, found.ended[:, None]
        # Of one beam no more than K can go on.
        gains, tokens = best_tokens(ops.cast(logits, "float32"), k)  # (R, K)
        # What has ended goes on as itself, and as nothing else.
        gains = ops.where(ended, ops.where(ops.arange(k) == 0, 0.0, _NO_SCORE), gains)
        sums = found.own["sums"][:, None] + gains  # (R, K)
        lengths = found.own["lengths"] + ops.where(found.ended, 0.0, 1.0)  # (R,)
        candidates = sums / ops.power(lengths[:, None], self.length_penalty)
        candidates = ops.reshape(candidates, (-1, width * k))  # (B, width·K)
        chosen = ops.cast(top_k(candidates, k)[1], "int32")  # (B, K)
        sentences = ops.arange(ops.shape(chosen)[0], dtype="int32")[:, None]
        places = ops.reshape(chosen + sentences * (width * k), (-1,))  # (B·K,)
        rows = places // k
        sums, tokens = (ops.take(ops.reshape(each, (-1,)), places) for each in (sums, tokens))
        # The token of a beam that does not exist may lie outside of the vocabulary.
        tokens = ops.where(sums == _NO_SCORE, self.padding_id, tokens)
        return tokens, rows, {"sums": sums, "lengths": take_rows(lengths, rows)}

    def done(self, found: Found) -> Tensor:
        sums, ended, limits, scores = (
            ops.reshape(tensor, (-1, self.width))  # (B, K)
            for tensor in (found.own["sums"], found.ended, found.limits, self.scores(found))
        )
        still_open = ops.logical_and(ops.logical_not(ended), sums > _NO_SCORE)
        # A sum can only fall, so no continuation of an open beam scores more than the beam's sum
        # does at the greatest length.
        bounds = sums / ops.power(ops.cast(limits, "float32"), self.length_penalty)
        best_open = ops.max(ops.where(still_open, bounds, _NO_SCORE), axis=1)
        results = ops.top_k(ops.where(ended, scores, _NO_SCORE), self.num_results)[0]  # (B, N)
        none_open = ops.logical_not(ops.any(still_open, axis=1))
        done = ops.logical_or(best_open < results[:, -1], none_open)  # (B,)
        return ops.repeat(done, self.width)

    def scores(self, found: Found) -> Tensor:
        """Scores `(R,)` of the hypotheses, as long as they are now."""
        return found.own["sums"] / ops.power(found.own["lengths"], self.length_penalty)
