"""Beam search: the best few beginnings of each sentence, carried along together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.arguments import Ids
from tfattn.decoding.candidates import BeamSearch
from tfattn.decoding.diverse import DiverseBeams
from tfattn.decoding.plan import Plan, planned
from tfattn.decoding.rules.base import Rule
from tfattn.decoding.trace import BeamTrace

__all__ = ["Hypotheses", "beam_search", "plan_beams"]


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
        BeamSearch,
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
