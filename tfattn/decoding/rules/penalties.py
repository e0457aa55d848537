"""Rules that make tokens or hypotheses less likely."""

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.rules.base import Rule, token_mask


@keras.saving.register_keras_serializable("tfattn")
class RepetitionPenalty(Rule):
    """Makes written tokens less likely.

        score / penalty    where the score is positive
        score · penalty    where it is negative

    The begin token does not count as written.

    Args:
        penalty: finite number θ of at least 1. 1 changes nothing.
    Raises:
        ValueError: `penalty` is not such a number.
    Example: token 4 has the highest score at every step, and 5 nearly as much.
        >>> scores = np.array([[0.0, 0.0, 0.0, 0.0, 2.0, 1.9]], "float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(scores, 0 * tokens[:, 0], axis=0), state
        >>> rules = [tfattn.rules.RepetitionPenalty(1.2)]
        >>> print(np.asarray(GreedySearch(rules=rules)(step, (), 1, 4)))
        [[4 5 4 4]]

    Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1; differs from it in that negative
    scores are multiplied, since division would raise them.
    """

    tensors = ("penalty",)
    lowers_only = True

    def __init__(self, penalty: float):
        penalty = _checks.positive_number("RepetitionPenalty", "penalty", penalty)
        if penalty < 1:
            _checks.fail("RepetitionPenalty", "penalty", "be at least 1", penalty)
        self.penalty = penalty

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple[()]
    ) -> tuple[Tensor, tuple[()]]:
        positions = ops.arange(ops.shape(tokens)[1], dtype="int32")
        written = ops.logical_and(positions >= 1, positions <= position)  # not the begin token
        written = ops.broadcast_to(written, ops.shape(tokens))
        repeated = token_mask(tokens, written, ops.shape(logits)[1])
        less = ops.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return ops.where(repeated, less, logits), state


@keras.saving.register_keras_serializable("tfattn")
class CoveragePenalty(Rule):
    """Lowers the score of beams that have attended too little to parts of the source.

        score = Σ log p / length ** length_penalty + strength · Σ_i log min(Σ_j weights_ji, 1)

    The second sum is over the tokens i of the source, the third over the steps j. The penalty is
    added when a beam ends; open beams are compared without it. For `BeamSearch` only.

    The state of the step must have an entry `coverage`, float32 `(B, S)`: the attention weights
    of each source token, summed over the steps so far, and 1 from the start where the source is
    padding. `Transformer` and `BahdanauSeq2Seq` have this entry after
    `model.encode(source, max_length, coverage=True)`; `translate` passes the argument.

    Args:
        strength: number β of at least 0. 0 changes nothing; Wu et al. use 0.2.
    Raises:
        ValueError: `strength` is not such a number; in a search, the state has no coverage, or the
            search has no beams.
    Example:
        >>> model = Transformer(11, num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> state = model.encode(np.array([[4, 5, 6]]), max_length=5, coverage=True)
        >>> rules = [tfattn.rules.CoveragePenalty(0.2)]
        >>> tuple(BeamSearch(rules=rules)(model.step, state, 1, 5).tokens.shape)
        (1, 1, 5)

    Source: Wu et al. 2016, arXiv:1609.08144, equation 14.
    """

    tensors = ("strength",)
    lowers_only = True
    beams_only = True
    state_key = "coverage"

    def __init__(self, strength: float):
        self.strength = _checks.non_negative_number("CoveragePenalty", "strength", strength)

    def score_at_end(self, read: Tensor) -> Tensor:
        # A source token without attention must not make the score -inf, which marks a beam that
        # does not exist.
        coverage = ops.clip(ops.cast(read, "float32"), 1e-30, 1.0)  # (R, S)
        return self.strength * ops.sum(ops.log(coverage), axis=-1)
