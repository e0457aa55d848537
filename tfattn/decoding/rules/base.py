"""The base of all rules of decoding."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfattn._types import Tensor
from tfattn.decoding.form import Compilable


class Rule(Compilable):
    """A rule of decoding: it changes the scores of the next token, at every step of a search.

    A subclass defines `adjust`. Attributes named in `tensors` are numbers or NumPy arrays: the
    compiled search takes them as arguments, so that new values of the same shapes compile nothing
    new. All other attributes must be hashable, and are part of the compiled function. If each
    argument of the constructor is an attribute of the same name, Keras can serialize the rule, and
    a search with it.

    Within a search a rule also has `begin_id`, `end_id` and `padding_id`, and the attributes of
    `tensors` are the backend's tensors.

    Attributes:
        tensors: names of attributes.
        per_row: whether each array of `tensors` has a row for each sentence.
        lowers_only: whether no score ever rises. A beam search then stops sooner.
    Example: your own rule, which writes token 7 at every third position.
        >>> class EveryThird(tfattn.rules.Rule):
        ...     def adjust(self, logits, tokens, position, state):
        ...         others = keras.ops.arange(keras.ops.shape(logits)[1]) != 7
        ...         here = (position + 1) % 3 == 0
        ...         hidden = keras.ops.logical_and(here, others)
        ...         return keras.ops.where(hidden, -float("inf"), logits), state
        >>> def step(tokens, position, state):
        ...     return keras.ops.one_hot(keras.ops.take(tokens, position, axis=1) + 1, 11), state
        >>> search = GreedySearch(rules=[EveryThird()])
        >>> print(np.asarray(search(step, (), 1, 7)))
        [[3 0 0 0 0 0 0]]
        >>> print(np.asarray(search(step, (), 1, 7, end_id=10)))
        [[3 4 7 8 9 7 8]]
    """

    per_row: bool = False
    lowers_only: bool = False
    begin_id: int
    end_id: int
    padding_id: int

    def start(self, tokens: Tensor, limits: Tensor) -> Any:
        """The rule's state before the first step: nested tensors, each with a row per sentence.

        A search carries it from step to step, and repeats and reorders its rows with those of the
        hypotheses.

        Args:
            tokens: int32 `(B, 1 + L)`, the begin token, then padding.
            limits: int32 `(B,)`, the maximum length of each row.
        """
        return ()

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: Any
    ) -> tuple[Tensor, Any]:
        """The scores of the token at `position + 1`, and the new state.

        Args:
            logits: float32 `(R, V)`, those of the step after all earlier rules. -inf marks an
                impossible token.
            tokens: int32 `(R, L)`, the begin token, the written tokens, then padding.
            position: scalar int32, the position of the last written token.
            state: from `start`, or from the step before.
        Returns:
            (float32 `(R, V)`, state). A search ignores the scores of rows that have ended.
        """
        raise NotImplementedError

    def take(self, places: Sequence[int]) -> "Rule":
        """The rule for some of its sentences, in that order; a rule without rows unchanged."""
        if not self.per_row:
            return self
        taken = copy.copy(self)
        for name in self.tensors:
            setattr(taken, name, getattr(self, name)[np.asarray(places, "int64")])
        return taken

    @property
    def num_rows(self) -> int | None:
        """The number of sentences that the rule has rows for; None without rows."""
        return len(getattr(self, self.tensors[0])) if self.per_row else None
