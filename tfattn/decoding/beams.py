"""Beam search: the best few beginnings of each sentence, carried along together."""

import numbers
from typing import Any, NamedTuple

import keras
from keras import ops

from tfattn import _checks
from tfattn.decoding.arguments import prepared
from tfattn.decoding.best import best_tokens
from tfattn.decoding.compiling import compiled
from tfattn.decoding.loop import decode
from tfattn.decoding.state import taken

__all__ = ["Hypotheses", "beam_search"]

_NEVER = float("-inf")  # score of a beam that there is not


class Hypotheses(NamedTuple):
    """What `beam_search` found for each sentence, the best first.

    Attributes:
        tokens: int32 `(B, N, L)`, up to and with the end token, then padding; without one where
            `max_length` came first.
        scores: float32 `(B, N)`, sums of log-probabilities over the length penalty; -inf, and
            nothing but padding, where there are fewer hypotheses than asked for.
        state: None, or on request the step's state: `B·N` rows, those of a sentence together, in
            the order of `tokens`.
    """

    tokens: Any
    scores: Any
    state: Any = None


def beam_search(
    step,
    state,
    batch_size,
    max_length,
    num_beams=4,
    length_penalty=1.0,
    num_results=1,
    begin_id=2,
    end_id=3,
    padding_id=0,
    return_state=False,
):
    """Writes the hypotheses with the best scores that `num_beams` beams find.

        score = (Σ log p(token | the tokens before it)) / length ** length_penalty,    the end token counted

    After every step the `num_beams` best go on. A hypothesis that has ended keeps its place among
    them and its score, for as long as no better ones push it out. A sentence is done when none of
    its open beams can still overtake, which no longer changes its result. At `max_length` the open
    ones count as ended, with the score that they have there: one without an end token may come out
    first. One beam is greedy search. Compiled like `greedy_search`; another length penalty is no
    other compiled function.

    Args:
        step, state, batch_size, max_length: see `greedy_search`. `state` has one row a sentence:
            the search repeats it for the beams by itself.
        num_beams: positive int K, hypotheses carried along for each sentence.
        length_penalty: number of at least 0. 0 ranks by the sum, which favours short sentences; 1
            by the mean.
        num_results: positive int N up to `num_beams`, hypotheses to return for each sentence.
        begin_id, end_id, padding_id: ints.
        return_state: whether to return the state of each result too, as it was when the result
            ended.
    Returns:
        `Hypotheses`: tokens int32 `(B, N, max_length)`, scores float32 `(B, N)`, the best first,
        and state.
    Raises:
        ValueError: an argument is out of its range; the state has other than `batch_size` rows, or
            a `Past` less room than `max_length`.
    Example: after 2 comes 4 or 5, after 5 always the end, 3.
        >>> table = np.full((6, 6), -np.inf, "float32")
        >>> table[2, 4], table[2, 5], table[4, 3], table[4, 4], table[5, 3] = np.log([0.6, 0.4, 0.5, 0.5, 1.0])
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(table, keras.ops.take(tokens, position, axis=1), axis=0), state
        >>> found = beam_search(step, (), batch_size=1, max_length=3, num_beams=3, length_penalty=0.0, num_results=2)
        >>> print(found.tokens.numpy())
        [[[5 3 0]
          [4 3 0]]]
        >>> print(np.exp(found.scores.numpy()).round(2))
        [[0.4 0.3]]

    Source: the sum over a power of the length after Wu et al. 2016, arXiv:1609.08144, section 7;
    differs from it in the plain length as the base, and has no penalty for coverage.
    """
    who = "beam_search"
    own = (
        _checks.positive_int(who, "num_beams", num_beams),
        _checks.positive_int(who, "num_results", num_results),
    )
    if num_results > num_beams:
        _checks.fail(who, "num_results", f"be at most `num_beams`={num_beams}", num_results)
    if not (isinstance(length_penalty, numbers.Real) and 0 <= length_penalty < float("inf")):
        _checks.fail(who, "length_penalty", "be a finite number of at least 0", length_penalty)
    ids = (begin_id, end_id, padding_id)
    settings, start, state = prepared(who, step, state, batch_size, max_length, *ids, return_state)
    penalty = ops.convert_to_tensor(length_penalty, dtype="float32")
    tokens, scores, state = compiled(_beams, step, (settings, *own))(start, state, penalty)
    tokens = ops.reshape(tokens, (batch_size, num_results, start[0].shape[1] - 1))
    return Hypotheses(tokens, ops.reshape(scores, (batch_size, num_results)), state)


def _beams(step, settings, start, state, penalty):
    settings, num_beams, num_results = settings
    beams = _Beams(num_beams, num_results, penalty, settings.padding_id)
    found, state = decode(step, beams, settings, start, state)
    # The beams of a sentence are in order already.
    first = ops.arange(ops.shape(start[0])[0], dtype="int32") * num_beams  # (B,)
    rows = ops.reshape(first[:, None] + ops.arange(num_results, dtype="int32"), (-1,))  # (B·N,)
    scores = taken(beams.scores(found), rows)
    tokens = ops.where((scores == _NEVER)[:, None], settings.padding_id, taken(found.tokens, rows))
    state = keras.tree.map_structure(
        lambda leaf: taken(leaf, rows) if ops.is_tensor(leaf) else leaf, state
    )
    return tokens[:, 1:], scores, state


class _Beams:
    def __init__(self, num_beams, num_results, penalty, padding_id):
        self.width = num_beams
        self.num_results = num_results
        self.penalty = penalty
        self.padding_id = padding_id

    def start(self, batch):
        return {"sums": ops.zeros((batch,)), "lengths": ops.zeros((batch,))}

    def choose(self, logits, position, found, width):
        k, ended = self.width, found.ended[:, None]
        # (R, K): no more than K of one beam can go on
        gains, tokens = best_tokens(ops.cast(logits, "float32"), k)
        # What has ended goes on as itself, and as nothing else.
        gains = ops.where(ended, ops.where(ops.arange(k) == 0, 0.0, _NEVER), gains)
        sums = found.own["sums"][:, None] + gains  # (R, K)
        lengths = found.own["lengths"] + ops.where(found.ended, 0.0, 1.0)  # (R,)
        # (B, width·K)
        candidates = ops.reshape(self.penalised(sums, lengths[:, None]), (-1, width * k))
        chosen = ops.cast(ops.top_k(candidates, k)[1], "int32")  # (B, K)
        sentences = ops.arange(ops.shape(chosen)[0], dtype="int32")[:, None]
        places = ops.reshape(chosen + sentences * (width * k), (-1,))  # (B·K,)
        rows = places // k
        sums, tokens = (ops.take(ops.reshape(each, (-1,)), places) for each in (sums, tokens))
        # The token of a beam that there is not may lie outside of the vocabulary.
        tokens = ops.where(sums == _NEVER, self.padding_id, tokens)
        return tokens, rows, {"sums": sums, "lengths": taken(lengths, rows)}

    def done(self, found):
        sums = ops.reshape(found.own["sums"], (-1, self.width))  # (B, K)
        ended = ops.reshape(found.ended, (-1, self.width))
        still_open = ops.logical_and(ops.logical_not(ended), sums > _NEVER)
        # A sum can only fall: nothing that comes of an open beam scores more than its sum does at
        # the greatest length.
        greatest = ops.cast(ops.reshape(found.limits, (-1, self.width)), "float32")
        hope = ops.max(ops.where(still_open, self.penalised(sums, greatest), _NEVER), axis=1)
        scores = ops.where(ended, ops.reshape(self.scores(found), (-1, self.width)), _NEVER)
        worst_result = ops.top_k(scores, self.num_results)[0][:, -1]
        # (B,)
        done = ops.logical_or(hope < worst_result, ops.logical_not(ops.any(still_open, axis=1)))
        return ops.repeat(done, self.width)

    def scores(self, found):
        return self.penalised(found.own["sums"], found.own["lengths"])

    def penalised(self, sums, lengths):
        return sums / ops.power(lengths, self.penalty)
