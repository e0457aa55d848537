"""Greedy search: the token with the highest score at every step."""

import keras

from tfattn._types import Tensor
from tfattn.decoding.best import best_token
from tfattn.decoding.loop import SearchState
from tfattn.decoding.search import Search


@keras.saving.register_keras_serializable("tfattn")
class GreedySearch(Search):
    """Writes the token with the highest score at every step, until each row has ended.

    Args:
        rules, jit_compile: see `tfattn.decoding.Search`, also for a call's arguments, result, and
            all errors.
    Example: a step that counts up.
        >>> def step(tokens, position, state):
        ...     return keras.ops.one_hot(keras.ops.take(tokens, position, axis=1) + 1, 8), state
        >>> print(np.asarray(GreedySearch()(step, (), batch_size=1, max_length=6, end_id=5)))
        [[3 4 5 0 0 0]]
    """

    def choose(
        self, logits: Tensor, position: Tensor, found: SearchState, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        return best_token(logits), None, found.extra
