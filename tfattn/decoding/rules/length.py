"""The minimum length of the result."""

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.rules.base import Ids, Rule


@keras.saving.register_keras_serializable("tfattn")
class MinLength(Rule):
    """Forbids the end token until some tokens are written.

    Args:
        length: int of at least 0, the number of tokens before the end token.
    Raises:
        ValueError: `length` is not such an int; in a search, it is more than `max_length`.
    Example: a step with the highest score for the end token, then for token 5.
        >>> scores = np.array([[0.0, 0.0, 0.0, 2.0, 0.0, 1.0]], "float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(scores, 0 * tokens[:, 0], axis=0), state
        >>> rules = [tfattn.rules.MinLength(2)]
        >>> print(np.asarray(GreedySearch(rules=rules)(step, (), 1, 4)))
        [[5 5 3 0]]
    """

    tensors = ("length",)
    lowers_only = True

    def __init__(self, length: int):
        self.length = _checks.non_negative_int("MinLength", "length", length)

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple[()]
    ) -> tuple[Tensor, tuple[()]]:
        is_end = ops.arange(ops.shape(logits)[1], dtype="int32") == self.end_id
        forbidden = ops.logical_and(is_end, position < self.length)
        return ops.where(forbidden, -float("inf"), logits), state

    def required_length(self, ids: Ids) -> tuple[int, str]:
        return self.length, "the tokens of MinLength"
