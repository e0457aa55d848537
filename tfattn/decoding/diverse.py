"""Groups of beams that differ from each other."""

import dataclasses
from collections.abc import Callable

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.best import best_tokens, top_k
from tfattn.decoding.candidates import NO_SCORE, Beams, keep_ended
from tfattn.decoding.configurable import Configurable
from tfattn.decoding.rules.base import token_counts
from tfattn.decoding.trace import Candidates


@keras.saving.register_keras_serializable("tfattn")
@dataclasses.dataclass(frozen=True)
class DiverseBeams(Configurable):
    """Groups of beams, each penalized for the tokens that earlier groups have just written.

        rank = (Σ log p − strength · n) / length ** length_penalty

    n counts the beams of earlier groups that have just written the same token. At each step the
    groups choose in order, each by its own beam search. The returned scores are without the
    penalty. Two groups may still find the same text; a greater strength makes this rarer. The
    levels of `RequiredTokens` have no effect here.

    Args:
        groups: positive int G that divides `num_beams`.
        strength: finite number of at least 0.
    Raises:
        ValueError: an argument is out of its range; in a search, the groups do not divide the
            beams.
    Example: two groups of one beam; the second chooses another first token.
        >>> log_p = np.log([[1e-9, 1e-9, 1e-9, 1e-9, 0.6, 0.4]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(log_p, 0 * tokens[:, 0], axis=0), state
        >>> groups = tfattn.decoding.DiverseBeams(groups=2, strength=1.0)
        >>> found = BeamSearch(num_beams=2, num_results=2, diverse=groups)(step, (), 1, 3)
        >>> print(np.asarray(found.tokens))
        [[[4 4 4]
          [5 5 5]]]

    Source: Vijayakumar et al. 2018, arXiv:1610.02424, with the Hamming diversity.
    """

    groups: int
    strength: float = 0.5

    def __post_init__(self) -> None:
        _checks.positive_int("DiverseBeams", "groups", self.groups)
        _checks.non_negative_number("DiverseBeams", "strength", self.strength)


def choose_by_groups(
    logits: Tensor,
    beams: Beams,
    scores_of: Callable[[Tensor, Tensor, Beams], Tensor],
    diverse: tuple[int, int, Tensor],
    width: int,
) -> tuple[Candidates, Tensor]:
    """Each group in order chooses among the candidates of its beams.

    Args:
        logits: float32 `(R, V)`.
        beams: the beams that candidates extend.
        scores_of: function of (tokens, sums, beams) to scores.
        diverse: (beams of a sentence, groups, strength).
        width: present beams of a sentence.
    Returns:
        (Candidates `(B, M)`, int32 `(B, K)`, the indices of the chosen candidates).
    """
    num_beams, groups, strength = diverse
    size = ops.shape(logits)[1]
    k = num_beams // groups  # beams of a group, and candidates of each beam
    logits = ops.reshape(logits, (-1, width, size))  # (B, width, V)
    used = ops.zeros_like(logits[:, 0])  # (B, V)
    parts, chosen, offset = [], [], 0
    for number in range(groups):
        members = slice(0, 1) if width == 1 else slice(number * k, (number + 1) * k)
        group = beams.take(members, width)
        own = logits[:, members]  # (B, k, V)
        penalized = ops.reshape(own - strength * used[:, None], (-1, size))
        ranks, tokens = best_tokens(penalized, k)  # (B·k, k)
        inside = ops.minimum(tokens, size - 1)
        gains = ops.take_along_axis(ops.reshape(own, (-1, size)), inside, axis=1)
        gains = ops.where(ranks == NO_SCORE, NO_SCORE, gains)
        ranks, gains = (keep_ended(each, group.ended) for each in (ranks, gains))
        sums = group.sums[:, None] + gains
        scores, ranks = (
            scores_of(tokens, group.sums[:, None] + each, group) for each in (gains, ranks)
        )
        shape = (ops.shape(logits)[0], own.shape[1] * k)
        part = Candidates(*(ops.reshape(each, shape) for each in (tokens, sums, scores)))
        indices = ops.cast(top_k(ops.reshape(ranks, shape), k)[1], "int32")  # (B, k)
        written = ops.take_along_axis(part.tokens, indices, axis=1)
        ended = ops.repeat(ops.reshape(group.ended, (shape[0], -1)), k, axis=1)
        ended = ops.take_along_axis(ended, indices, axis=1)
        exists = ops.take_along_axis(part.sums, indices, axis=1) > NO_SCORE
        new = ops.logical_and(exists, ops.logical_not(ended))
        used = used + token_counts(written, new, size)
        parts.append(part)
        chosen.append(indices + offset)
        offset += shape[1]
    together = (ops.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    return Candidates(*together), ops.concatenate(chosen, axis=1)
