"""The state of a search: tokens, flags and the state of its rules."""

from typing import Any, NamedTuple

import keras

from tfattn._types import Tensor
from tfattn.decoding.state import take_rows


class RuleState(NamedTuple):
    """The state of the rules of a search."""

    states: tuple[Any, ...]  # each rule's state: nested tensors (R, ...)
    at_end: Tensor  # float32 (R,), the rules' addition to the score of a hypothesis at its end


class SearchState(NamedTuple):
    """The tokens so far, one row per hypothesis; the rows of one sentence are neighbors."""

    tokens: Tensor  # int32 (R, 1 + L), the begin token in front
    ended: Tensor  # bool (R,), whether the row has its end token or its maximum length
    done: Tensor  # bool (R,), whether the result of the row's sentence is final
    limits: Tensor  # int32 (R,), the maximum length of the row
    stuck: Tensor  # bool (R,), whether the rules left the row no token, which ends it
    has_nan: Tensor  # bool (R,), whether scores of the row's sentence were NaN, which ends it
    extra: dict[str, Any]  # the search's own tensors (R, ...), from `Search.start` and `choose`
    rule_state: Any = ()  # a RuleState; empty without rules
    prompted: Any = ()  # bool (R,), whether the next token is in the prompt
    prompt_continues: Any = ()  # bool (R,), whether the prompt has a further token

    def of_rows(self, rows: Tensor | None) -> "SearchState":
        """A selection of rows; `extra` is unchanged, since the search selects its rows itself."""
        taken = keras.tree.map_structure(
            lambda tensor: take_rows(tensor, rows), self._replace(extra={})
        )
        return taken._replace(extra=self.extra)
