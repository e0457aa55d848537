"""A trace of beam search: the beams and candidates of every step."""

from typing import NamedTuple

from keras import ops

from tfattn._types import Tensor
from tfattn.decoding.rules.base import token_mask

_NO_SCORE = float("-inf")


class BeamTrace(NamedTuple):
    """The trace of `BeamSearch` over L steps, with K beams and M candidates per sentence.

    A step extends each beam by its best tokens. The K best of these candidates are the beams after
    that step, the best first (with `diverse`, the best of each group first). A sentence that is
    done takes no more steps: its scores are then -inf.

    Attributes:
        tokens: int32 `(B, L, K)`, the new token of each beam; padding if it had ended before.
        parents: int32 `(B, L, K)`, the beam of the previous step that it extends; 0 at first.
        scores: float32 `(B, L, K)`, the ranking scores; -inf for a beam that does not exist.
        ended: bool `(B, L, K)`, whether the beam has ended.
        died: bool `(B, L, K)`, whether no beam extends this beam of the previous step.
        candidate_tokens: int32 `(B, L, M)`.
        candidate_parents: int32 `(B, L, M)`, the beam of the previous step.
        candidate_scores: float32 `(B, L, M)`; -inf for a candidate that does not exist.
        kept: bool `(B, L, M)`, whether the candidate is among the beams after the step.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    ended: Tensor
    died: Tensor
    candidate_tokens: Tensor
    candidate_parents: Tensor
    candidate_scores: Tensor
    kept: Tensor


class Candidates(NamedTuple):
    """The candidates of each sentence, those of one parent adjacent."""

    tokens: Tensor  # int32 (B, M)
    sums: Tensor  # float32 (B, M), sums of log-probabilities
    scores: Tensor  # float32 (B, M)


def empty_trace(tokens: Tensor, num_beams: int, per_beam: int) -> dict[str, Tensor]:
    """Buffers for all steps; `tokens` are those of each sentence, `(B, 1 + L)`."""
    shape = (ops.shape(tokens)[0] * num_beams, ops.shape(tokens)[1] - 1)  # (B·K, L)
    many = (*shape, per_beam)
    return {
        "tokens": ops.zeros(shape, "int32"),
        "parents": ops.zeros(shape, "int32"),
        "scores": ops.full(shape, _NO_SCORE, "float32"),
        "ended": ops.zeros(shape, "bool"),
        "candidate_tokens": ops.zeros(many, "int32"),
        "candidate_scores": ops.full(many, _NO_SCORE, "float32"),
        "kept": ops.zeros(many, "bool"),
    }


def with_step(
    trace: dict[str, Tensor],
    position: Tensor,
    done: Tensor,
    candidates: Candidates,
    chosen: Tensor,
    beams: dict[str, Tensor],
) -> dict[str, Tensor]:
    """The trace with one more step.

    Args:
        done: bool `(B·K,)`, whether the sentence was done before the step.
        candidates: `(B, M)`.
        chosen: int32 `(B, K)`, the indices of the chosen candidates.
        beams: the new entries of each beam, `(B·K,)`, by name.
    """
    _, length, per_beam = trace["kept"].shape
    num_candidates, num_beams = ops.shape(candidates.tokens)[1], chosen.shape[1]
    kept = token_mask(chosen, ops.ones_like(chosen, dtype="bool"), num_candidates)
    kept = ops.logical_and(kept, candidates.scores > _NO_SCORE)
    exists = ops.logical_and(candidates.scores > _NO_SCORE, candidates.scores < float("inf"))
    new = {
        **beams,
        "candidate_tokens": ops.where(exists, candidates.tokens, 0),
        "candidate_scores": candidates.scores,
        "kept": kept,
    }
    # The first step has the candidates of only one beam.
    rest = [[0, 0], [0, num_beams * per_beam - num_candidates]]
    for name, empty in (("candidate_tokens", 0), ("candidate_scores", _NO_SCORE), ("kept", False)):
        padded = ops.pad(new[name], rest, constant_values=empty)
        new[name] = ops.reshape(padded, (-1, per_beam))
    here = ops.arange(ops.shape(trace["tokens"])[1], dtype="int32") == position
    here = ops.logical_and(here, ops.logical_not(done)[:, None])  # (B·K, L)
    return {
        name: ops.where(
            here if len(buffer.shape) == 2 else here[..., None], new[name][:, None], buffer
        )
        for name, buffer in trace.items()
    }


def by_sentence(trace: dict[str, Tensor], num_beams: int) -> BeamTrace:
    """The trace by sentence and step."""
    by_step = {}
    for name, buffer in trace.items():
        _, *sizes = ops.shape(buffer)
        buffer = ops.reshape(buffer, (-1, num_beams, *sizes))
        buffer = ops.swapaxes(buffer, 1, 2)  # (B, L, K), or (B, L, K, M / K)
        by_step[name] = buffer
    of_parent = ops.any(by_step["kept"], axis=-1)  # (B, L, K)
    exists = by_step["scores"] > _NO_SCORE
    first = ops.broadcast_to(ops.arange(num_beams) == 0, ops.shape(exists[:, :1]))
    before = ops.concatenate([first, exists[:, :-1]], axis=1)
    took_place = ops.any(exists, axis=-1, keepdims=True)
    died = ops.logical_and(took_place, ops.logical_and(before, ops.logical_not(of_parent)))
    tokens = by_step["candidate_tokens"]
    beam = ops.arange(num_beams, dtype="int32")[:, None]
    step = ops.arange(ops.shape(tokens)[1], dtype="int32")[:, None, None]
    parents = ops.broadcast_to(ops.where(step == 0, 0, beam), ops.shape(tokens))
    flat = {
        name: ops.reshape(each, (*ops.shape(each)[:2], num_beams * each.shape[-1]))
        for name, each in (
            ("candidate_tokens", tokens),
            ("candidate_parents", parents),
            ("candidate_scores", by_step["candidate_scores"]),
            ("kept", by_step["kept"]),
        )
    }
    beams = {name: by_step[name] for name in ("tokens", "parents", "scores", "ended")}
    return BeamTrace(died=died, **beams, **flat)
