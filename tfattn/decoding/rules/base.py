"""The base of all rules of decoding, and their tables of token ids."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.configurable import NO_TOKEN, Configurable


class Ids(NamedTuple):
    """The ids of the special tokens."""

    begin_id: int = 2
    end_id: int = 3
    padding_id: int = 0


class Rule(Configurable):
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
        beams_only: whether the rule needs beams; other searches refuse it.
        state_key: name of an entry that the state of the step must have, or None. `translate`
            passes the name to `model.encode`, as `coverage=True`.
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
    beams_only: bool = False
    state_key: str | None = None
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
        return logits, state

    def score_at_end(self, read: Tensor) -> Tensor:
        """float32 `(R,)`, at most 0: added to a beam's score at its end. For rules with a
        `state_key`.

        Args:
            read: the entry `state_key` of the step's state, after the step.
        """
        raise NotImplementedError

    def required_length(self, ids: Ids) -> tuple[int | np.ndarray, str]:
        """(The least `max_length` that satisfies the rule, a number or ints `(B,)`; its reason, for
        messages.) A search refuses a smaller `max_length`.

        Args:
            ids: `begin_id`, `end_id` and `padding_id` of the search.
        """
        return 0, ""

    def check_vocabulary(self, size: int) -> None:
        """Raises a ValueError if the rule has tokens outside of a vocabulary of that size."""

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


def token_mask(ids: Tensor, where: Tensor, size: int | Tensor) -> Tensor:
    """bool `(R, size)`, whether each token is among the ids `(R, N)` selected by `where`."""
    rows, count = ops.shape(ids)[0], ops.shape(ids)[1]
    where = ops.logical_and(where, ops.logical_and(ids >= 0, ids < size))
    row = ops.broadcast_to(ops.arange(rows, dtype="int32")[:, None], (rows, count))
    # An id that is not selected adds 0 to token 0, so that every index is inside the table.
    indices = ops.stack([row, ops.where(where, ids, 0)], axis=-1)  # (R, N, 2)
    selected = ops.reshape(ops.cast(where, "float32"), (-1,))
    return ops.scatter(ops.reshape(indices, (-1, 2)), selected, (rows, size)) > 0


def checked_ids(who: str, argument: str, value: Any, least: int = 1) -> list[int]:
    """At least `least` token ids."""
    ids = _checks.integers(who, argument, value)
    if len(ids) < least or min(ids, default=0) < 0:
        _checks.fail(who, argument, "hold ids of at least 0, one or more", value)
    return ids


def checked_phrases(who: str, argument: str, value: Any) -> list[list[int]]:
    """Sequences of token ids; a single id is a sequence of one id."""
    expected = "hold ids, or sequences of ids"
    if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
        _checks.fail(who, argument, expected, value)
    value = list(value)
    if not value:
        _checks.fail(who, argument, f"{expected}, at least one", value)
    phrases = []
    for phrase in value:
        is_id = not isinstance(phrase, str | bytes | Iterable)
        is_id = is_id or getattr(phrase, "shape", None) == ()
        phrases.append(checked_ids(who, argument, [phrase] if is_id else phrase))
    return phrases


def padded(rows: Sequence[Sequence[int]], width: int, left: bool = False) -> np.ndarray:
    """int32 `(N, width)`, rows of ids padded with `NO_TOKEN`, on the right or left."""
    table = np.full((len(rows), width), NO_TOKEN, "int32")
    for line, row in zip(table, rows, strict=True):
        line[width - len(row) if left else 0 :][: len(row)] = row
    return table


def check_required_length(
    who: str, rule: Rule, limits: np.integer | np.ndarray, ids: Ids, row: str = "row {}"
) -> None:
    """Raises if a rule needs a greater `max_length` than the limit of all rows or those `(B,)`;
    `row` is the format of the name of a row, from its index.
    """
    needed, reason = rule.required_length(ids)
    needed, limits = np.broadcast_arrays(needed, limits)
    short = np.flatnonzero(limits < needed)
    if len(short):
        index = short[0]
        where = f" for {row.format(index)}" if needed.ndim else ""
        expected = f"be at least {needed.flat[index]}{where}, for {reason}"
        _checks.fail(who, "max_length", expected, int(limits.flat[index]))


def check_ids_below(who: str, argument: str, table: np.ndarray, size: int) -> None:
    """Raises unless all ids of a table are in a vocabulary of that size."""
    highest = int(np.max(table, initial=NO_TOKEN))
    if highest >= size:
        expected = f"hold tokens of the vocabulary, ids below {size}"
        _checks.fail(who, argument, expected, highest)
